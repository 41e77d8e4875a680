import html.parser
import inspect
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from importlib.resources import files
from urllib.parse import unquote

import pytest

import gpulab.sim
from gpulab.sim.base.live import COLOURS
from gpulab.sim.base.simulator import Choice, Flag, Limit, Play, Result, Simulator, Slider
from gpulab.sim.base.words import count, percent, size
from virtualgpu.pictures import display, style, svg

from .page import Page


@dataclass(frozen=True)
class Water(Result):
    litres: int
    cups: int
    warmth: float
    kind: str

    @property
    def finding(self) -> str:
        return f"{self.litres} l of <{self.kind}> & {self.cups} cups"

    def rows(self):
        return [("water", f"{self.litres} l", "virtual"), ("cups", str(self.cups), "")]


def pour(litres, cups, warmth, kind, spill):
    if spill:
        raise RuntimeError("the <floor> is wet")
    return Water(litres, cups, warmth, kind)


def paint(water):
    return svg.Picture(600, 80, water.finding, water.describe(), (svg.text(18, 20, water.kind),))


class Kettle(Simulator[Water]):
    controls = (
        Slider("litres", "Water", 1, 10, 4, unit="l"),
        Play("cups", "Cups", 0, 40, 8),
        Slider("warmth", "Warmth", 0.0, 100.0, 20.0, unit="°C", step=0.5),
        Choice("kind", "Kind", {"tea": "black tea", "mate": "green mate"}, "tea"),
        Flag("spill", "Spill it", False),
    )
    leaves_out = "Biscuits."
    model = staticmethod(pour)
    draw = staticmethod(paint)

    @staticmethod
    def limits(values):
        return {"cups": Limit(0, 4 * values["litres"], f"{values['litres']} l fill {4 * values['litres']} cups")}


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, check=True
    )
    return done.stdout


class TestImport:
    def test_loads_no_widgets_no_torch_and_no_matplotlib(self):
        loaded = run(
            "import sys, gpulab.sim; s = gpulab.sim.accumulation(); s.svg(); str(s)\n"
            "heavy = ('ipywidgets', 'anywidget', 'IPython', 'torch', 'matplotlib', 'numpy')\n"
            "print([module for module in heavy if module in sys.modules])"
        )
        assert loaded.strip() == "[]"

    @pytest.mark.parametrize(
        "first", ["import gpulab.sim.accumulation", "from gpulab.sim.accumulation.model import simulate"]
    )
    def test_a_simulator_is_not_hidden_by_its_own_module(self, first):
        assert "(*, samples=100" in run(
            f"{first}\nimport gpulab, inspect; print(inspect.signature(gpulab.sim.accumulation))"
        )


class TestValuesFromCode:
    def test_defaults_are_the_controls(self):
        assert Kettle().values == {"litres": 4, "cups": 8, "warmth": 20.0, "kind": "tea", "spill": False}

    def test_the_signature_shows_the_controls(self):
        assert str(inspect.signature(Kettle)) == "(*, litres=4, cups=8, warmth=20.0, kind='tea', spill=False)"

    def test_set_moves_the_result_and_the_picture(self):
        kettle = Kettle()
        kettle.set(litres=7, kind="mate")
        assert (kettle.result.litres, kettle.result.kind) == (7, "mate")
        assert "7 l of &lt;mate&gt;" in kettle.svg()

    @pytest.mark.parametrize(
        ("values", "error", "message"),
        [
            ({"litres": 0}, ValueError, "kettle(litres=0): litres must be from 1 to 10 l"),
            ({"litres": 11}, ValueError, "kettle(litres=11): litres must be from 1 to 10 l"),
            ({"litres": 3.5}, TypeError, "kettle(litres=3.5): litres must be a whole number from 1 to 10 l, not float"),
            ({"litres": "8"}, TypeError, "kettle(litres='8'): litres must be a whole number from 1 to 10 l, not str"),
            (
                {"litres": True},
                TypeError,
                "kettle(litres=True): litres must be a whole number from 1 to 10 l, not bool",
            ),
            ({"litres": None}, TypeError, "litres must be a whole number from 1 to 10 l, not NoneType"),
            ({"warmth": float("nan")}, ValueError, "kettle(warmth=nan): warmth must be from 0.0 to 100.0 °C"),
            ({"warmth": float("inf")}, ValueError, "warmth must be from 0.0 to 100.0 °C"),
            ({"warmth": "hot"}, TypeError, "warmth must be a number from 0.0 to 100.0 °C, not str"),
            ({"cups": 17}, ValueError, "kettle(cups=17): cups must be from 0 to 16: 4 l fill 16 cups"),
            ({"cups": 41}, ValueError, "kettle(cups=41): cups must be from 0 to 40"),
            ({"cups": 9, "litres": 2}, ValueError, "cups must be from 0 to 8: 2 l fill 8 cups"),
            ({"kind": "cocoa"}, ValueError, "kettle(kind='cocoa'): kind must be one of 'tea', 'mate'"),
            ({"kind": ["tea"]}, ValueError, "kind must be one of 'tea', 'mate'"),
            ({"spill": 1}, TypeError, "kettle(spill=1): spill must be True or False, not int"),
            ({"litre": 3}, TypeError, "has no control 'litre' (did you mean 'litres'?); it has litres, cups, warmth"),
        ],
    )
    def test_a_bad_value_is_named_with_what_would_be_right(self, values, error, message):
        with pytest.raises(error) as caught:
            Kettle(**values)
        assert message in str(caught.value)

    def test_a_huge_value_does_not_fill_the_page(self):
        with pytest.raises(TypeError) as caught:
            Kettle(litres="8" * 10_000)
        assert len(str(caught.value)) < 200

    def test_an_integer_of_another_library_is_an_integer(self):
        numpy = pytest.importorskip("numpy")
        assert type(Kettle(litres=numpy.int64(3)).values["litres"]) is int

    def test_a_bad_set_changes_nothing(self):
        kettle = Kettle(litres=5)
        with pytest.raises(ValueError, match=re.escape("kettle.set(litres=99)")):
            kettle.set(kind="mate", litres=99)
        with pytest.raises(RuntimeError, match="floor"):
            kettle.set(litres=2, spill=True)
        assert kettle.values == Kettle(litres=5).values
        assert kettle.result == Kettle(litres=5).result

    def test_a_value_not_named_gives_way_to_the_limit_and_comes_back(self):
        kettle = Kettle(cups=16)
        kettle.set(litres=1)
        assert kettle.values["cups"] == 4
        kettle.set(litres=10)
        assert kettle.values["cups"] == 16


class TestForms:
    def test_the_result_prints_as_a_table(self):
        assert str(Kettle().result) == "4 l of <tea> & 8 cups\n\nwater  4 l  virtual\ncups   8"

    def test_being_last_in_the_cell_shows_the_result_as_the_same_table(self):
        result = Kettle().result
        assert result._repr_mimebundle_() == {"text/plain": str(result)}

    def test_in_a_terminal_show_prints_the_table(self, capsys):
        Kettle().show()
        assert capsys.readouterr().out == "4 l of <tea> & 8 cups\n\nwater  4 l  virtual\ncups   8\n\nBiscuits.\n"

    def test_without_a_kernel_picture_and_text_stand_alone(self):
        bundle = Kettle()._repr_mimebundle_()
        assert set(bundle) == {"text/plain", "text/html", "image/svg+xml"}

    def test_in_a_notebook_the_same_output_carries_the_widget(self, monkeypatch):
        monkeypatch.setattr(display, "in_notebook", lambda: True)
        kettle = Kettle()
        bundle = kettle._repr_mimebundle_()
        assert bundle[display.WIDGET_VIEW]["model_id"] == kettle._live.box.model_id
        assert kettle._repr_mimebundle_()[display.WIDGET_VIEW] == bundle[display.WIDGET_VIEW]

    def test_without_anywidget_the_still_picture_is_shown(self, monkeypatch):
        monkeypatch.setattr(display, "in_notebook", lambda: True)
        monkeypatch.setitem(sys.modules, "gpulab.sim.base.live", None)
        assert set(Kettle()._repr_mimebundle_()) == {"text/plain", "text/html", "image/svg+xml"}

    def test_the_still_page_has_the_picture_its_alt_text_and_the_table(self):
        seen = []

        class Reader(html.parser.HTMLParser):
            def handle_starttag(self, tag, attributes):
                seen.append((tag, dict(attributes)))

            def handle_data(self, data):
                seen.append(data)

        kettle = Kettle()
        Reader().feed(kettle._repr_mimebundle_()["text/html"])
        tag, attributes = seen[0]
        assert tag == "img"
        assert attributes["alt"] == "4 l of <tea> & 8 cups. water: 4 l (virtual); cups: 8"
        kind, data = attributes["src"].split(",", 1)
        assert kind == "data:image/svg+xml"
        assert ET.canonicalize(unquote(data)) == ET.canonicalize(kettle.svg())
        assert "Run this cell to move it." in seen
        assert seen[-1] == repr(kettle)


class TestLive:
    def test_what_is_asked_moves_the_simulator_and_the_picture(self):
        page = Page(Kettle())
        view = page.ask(litres=7)
        assert page.simulator.values["litres"] == 7
        assert view["values"]["litres"] == 7
        assert "7 l of" in view["headline"]
        assert view["error"] == ""

    def test_set_moves_the_page(self):
        page = Page(Kettle())
        page.simulator.set(litres=9, kind="mate", warmth=3.5, spill=False)
        assert page.view["values"] == page.simulator.values

    def test_the_page_is_told_what_the_others_forbid(self):
        page = Page(Kettle())
        assert page.view["limits"]["cups"]["high"] == 16
        page.ask(cups=16)
        view = page.ask(litres=2)
        assert (view["limits"]["cups"]["high"], view["values"]["cups"]) == (8, 8)
        view = page.ask(litres=10)
        assert (view["limits"]["cups"]["high"], view["values"]["cups"]) == (40, 16)

    def test_a_slider_with_one_value_left_says_why(self):
        page = Page(gpulab.sim.accumulation())
        limit = page.ask(samples=16, batch=16)["limits"]["steps"]
        assert limit["low"] == limit["high"] == 1
        assert limit["reason"]
        assert page.ask(batch=4)["limits"]["steps"]["high"] == 4

    def test_an_error_of_the_model_is_shown_beside_the_picture_before_and_passes(self):
        page = Page(Kettle())
        before = page.view["svg"]
        view = page.ask(spill=True)
        assert "RuntimeError: the <floor> is wet" in view["error"]
        assert view["refused"] == ["spill"]
        assert view["svg"] == before
        assert view["values"]["spill"] is False
        assert page.ask(litres=5)["error"] == ""

    def test_one_question_has_one_answer(self):
        page = Page(Kettle())
        page.ask(litres=1, cups=3)
        assert page.answers == 1

    def test_a_number_of_another_kind_is_the_option_that_it_equals(self):
        page = Page(gpulab.sim.launch_queue())
        page.ask(item=2.0, kernel=30.0)  # as JSON may have them
        assert page.simulator.values["item"] == 2
        assert type(page.simulator.values["item"]) is type(page.simulator.values["kernel"]) is int

    def test_the_page_knows_every_control_and_its_unit(self):
        controls = Page(Kettle()).live.front.spec["controls"]
        assert [(one["kind"], one["label"], one.get("unit")) for one in controls] == [
            ("slider", "Water", "l"),
            ("play", "Cups", ""),
            ("slider", "Warmth", "°C"),
            ("choice", "Kind", None),
            ("flag", "Spill it", None),
        ]

    def test_a_lecture_enlarges_what_is_shown_again(self, monkeypatch):
        monkeypatch.setattr(display, "in_notebook", lambda: True)
        kettle = Kettle()
        kettle.show()
        assert kettle._live.front.scale == 1
        style.lecture(1.5)
        try:
            kettle.show()
            assert kettle._live.front.scale == 1.5
        finally:
            style.lecture(1)

    def test_the_script_and_its_look_are_small(self):
        front = Page(Kettle()).live.front
        assert len(front.look) < 10_000
        assert len((files("gpulab.sim.base") / "front.js").read_text(encoding="utf-8")) < 26_000


class TestColours:
    def test_every_colour_has_one_for_the_dark_and_a_variable(self):
        named = {getattr(style, name) for name in dir(style) if re.fullmatch("#[0-9A-F]{6}", str(getattr(style, name)))}
        assert set(style.DARK) == set(COLOURS) == named - {style.BLACK, style.ON}

    @pytest.mark.parametrize("colour", sorted(set(style.PALETTE) - {style.BLACK}))
    def test_in_the_dark_words_read_on_the_palette_and_the_palette_shows(self, colour, contrast):
        assert contrast(style.ON, style.DARK[colour]) >= 4.5
        assert contrast(style.DARK[colour], style.DARK[style.PAPER]) >= 3
        assert contrast(style.DARK[colour], style.DARK[style.SEAM]) >= 3

    @pytest.mark.parametrize("colour", [style.INK, style.MUTED, style.BLUE])
    def test_in_the_dark_letters_read_on_the_ground_and_the_ground_on_them(self, colour, contrast):
        assert contrast(style.DARK[colour], style.DARK[style.PAPER]) >= 4.5

    @pytest.mark.parametrize("colour", sorted(set(style.PALETTE) - {style.BLUE, style.BLACK}))
    def test_ink_reads_on_the_palette(self, colour, contrast):
        assert contrast(style.INK, colour) >= 4.5
        assert contrast(style.ON, colour) >= 4.5

    @pytest.mark.parametrize("colour", [style.BLUE, style.BLACK, style.INK, style.MUTED])
    def test_paper_reads_on_the_dark_ones(self, colour, contrast):
        assert contrast(style.PAPER, colour) >= 4.5

    def test_the_ratio_is_the_published_one(self, contrast):
        assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
        assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.005)


class TestDrawingHelpers:
    @pytest.mark.parametrize(("value", "shown"), [(0, "0"), (-0.04, "0"), (1.25, "1.2"), (3.0, "3"), (99.96, "100")])
    def test_coordinates_have_one_decimal(self, value, shown):
        assert svg.num(value) == shown

    def test_words_are_escaped(self):
        assert "a &lt; b &amp; c" in svg.text(0, 0, "a < b & c")

    def test_hatching_stays_inside_its_rectangle(self):
        for width, height in ((40.0, 20.0), (20.0, 40.0), (3.0, 30.0), (30.0, 3.0)):
            path = svg.hatch(10, 100, width, height)
            points = re.findall(r"[ML]([\d.]+) ([\d.]+)", path)
            assert points
            for x, y in points:
                assert 10 <= float(x) <= 10 + width + 0.05
                assert 100 <= float(y) <= 100 + height + 0.05

    def test_an_empty_bar_draws_nothing(self):
        assert svg.bar(0, 0, 0, 10, fill=style.SKY, hatched=True) == ""

    def test_wrapping_loses_no_word_and_fits(self):
        words = "13 micro-batches make 3 updates; the last 4 samples are never used"
        for fold in (svg.wrap, svg.balance):
            folded = fold(words, 200)
            assert " ".join(folded) == words
            assert all(svg.length(line) <= 200 for line in folded)
        assert svg.wrap("", 200) == ()

    def test_a_word_too_long_for_the_line_stands_alone(self):
        assert svg.wrap("a " + "b" * 100 + " c", 100) == ("a", "b" * 100, "c")

    def test_balanced_lines_end_without_a_lonely_word(self):
        first, last = svg.balance("one two three four five six", svg.length("one two three four five"))
        assert abs(len(first) - len(last)) <= 5

    def test_a_living_piece_is_left_out_of_a_still_picture(self):
        picture = svg.Picture(
            200, 50, "Title", "What it shows", (svg.text(0, 9, "seen"), svg.Live(svg.rect(0, 0, 1, 1)))
        )
        still = svg.Picture(200, 50, "Title", "What it shows", picture.body[:1])
        assert picture.text() == still.text()
        assert picture.inner() == still.inner().replace("</svg>", f"{picture.body[1]}</svg>")

    def test_a_rectangle_can_be_strong_pale_and_touched(self):
        assert svg.rect(0, 0, 1, 1, stroke="#111111", edge=2).endswith('stroke="#111111" stroke-width="2"/>')
        assert svg.rect(0, 0, 1, 1, opacity=0.6).endswith('fill="none" fill-opacity="0.6"/>')
        assert svg.rect(0, 0, 1, 1, takes_pointer=True).endswith('fill="none" pointer-events="all"/>')

    def test_lecture_enlarges_the_picture_and_keeps_its_proportions(self):
        picture = svg.Picture(200, 50, "Title", "What it shows", ())
        small, large = (ET.fromstring(picture.text(scale=scale)) for scale in (1.0, 1.5))
        assert large.get("viewBox") == small.get("viewBox")
        assert float(large.get("width")) == 1.5 * float(small.get("width"))


class TestWords:
    def test_counted_things(self):
        assert [count(1, "micro-batch"), count(2, "micro-batch"), count(0, "sample")] == [
            "1 micro-batch",
            "2 micro-batches",
            "0 samples",
        ]

    def test_shares(self):
        assert [percent(s) for s in (0, 0.00991, 0.0734, 0.0996, 0.75, 2.5)] == [
            "0%",
            "0.99%",
            "7.3%",
            "10%",
            "75%",
            "250%",
        ]

    def test_sizes_are_binary(self):
        assert [size(n) for n in (2**20, 2**30 - 2**20, 2**30, 3 * 2**29)] == [
            "1 MiB",
            "1023 MiB",
            "1.00 GiB",
            "1.50 GiB",
        ]

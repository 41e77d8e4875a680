import base64
import html.parser
import os
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from virtualgpu.pictures import display, figures, style


@pytest.fixture(autouse=True)
def desk():
    import matplotlib

    with matplotlib.rc_context():
        yield
        style.lecture(1)


@pytest.fixture
def shown(monkeypatch):
    import IPython.display

    outputs = []
    monkeypatch.setattr(display, "in_notebook", lambda: True)
    monkeypatch.setattr(IPython.display, "display", lambda data, **_: outputs.append(data))
    return outputs


@pytest.fixture
def figure():
    import matplotlib.pyplot as plt

    style.use()
    figure, axes = plt.subplots()
    axes.plot([1, 2, 4])
    yield figure
    plt.close("all")


def image(page: str) -> dict[str, str]:
    seen = []

    class Reader(html.parser.HTMLParser):
        def handle_starttag(self, tag, attributes):
            seen.append((tag, dict(attributes)))

    Reader().feed(page)
    ((tag, attributes),) = seen
    assert tag == "img"
    return attributes


class TestShow:
    def test_puts_one_image_with_its_alt_text_on_the_page(self, figure, shown):
        style.show(figure, alt='A line that "rises" & <bends>')
        (output,) = shown
        attributes = image(output["text/html"])
        assert attributes["alt"] == 'A line that "rises" & <bends>'
        assert output["text/plain"] == 'A line that "rises" & <bends>'
        kind, data = attributes["src"].split(",")
        assert kind == "data:image/svg+xml;base64"
        assert ET.fromstring(base64.b64decode(data)).tag == "{http://www.w3.org/2000/svg}svg"

    def test_closes_the_figure_so_that_it_is_not_shown_again(self, figure, shown):
        import matplotlib.pyplot as plt

        assert plt.get_fignums()
        style.show(figure, alt="A line")
        assert plt.get_fignums() == []

    @pytest.mark.parametrize("alt", ["", "  ", None, 3])
    def test_refuses_to_go_without_alt_text(self, figure, shown, alt):
        with pytest.raises(ValueError, match="alt must say in words what the figure shows"):
            style.show(figure, alt=alt)
        assert shown == []

    def test_refuses_what_is_no_figure(self, shown):
        with pytest.raises(TypeError, match="must be a matplotlib figure, not list"):
            style.show([1, 2], alt="A list")

    def test_prints_the_alt_text_in_a_terminal(self, figure, capsys):
        style.show(figure, alt="A line that rises")
        assert capsys.readouterr().out == "A line that rises\n"

    def test_the_image_is_small(self, figure, shown):
        style.show(figure, alt="A line")
        assert len(shown[0]["text/html"]) < 60_000

    def test_a_lecture_enlarges_it(self, shown):
        import matplotlib.pyplot as plt

        style.use()
        widths = []
        for scale in (1, 1.4):
            style.lecture(scale)
            figure, _ = plt.subplots()
            style.show(figure, alt="Axes")
            svg = base64.b64decode(image(shown[-1]["text/html"])["src"].split(",")[1])
            widths.append(int(ET.fromstring(svg).get("width")))
        assert widths == [720, 1008]

    def test_many_points_are_a_png_of_the_same_size(self, shown):
        import matplotlib.pyplot as plt

        style.use()
        figure, axes = plt.subplots()
        axes.scatter(range(5000), range(5000))
        style.show(figure, alt="Five thousand points")
        kind, data = image(shown[0]["text/html"])["src"].split(",")
        assert kind == "data:image/png;base64"
        assert len(data) < 150_000
        assert struct.unpack(">I", base64.b64decode(data)[16:20])[0] == 720


def drawing():
    """Everything that has a colour, in the colours of the style."""
    import matplotlib.pyplot as plt

    style.use()
    figure, axes = plt.subplots()
    for place, colour in enumerate(style.PALETTE):
        axes.plot([0, 1], [place, place], color=colour)
        axes.scatter([2], [place], color=colour)
        axes.bar([3 + place], [1], color=colour, hatch="//", edgecolor="white")
        axes.text(4, place, "letters $10^3$", color=colour)
    axes.fill_between([0, 1], [1, 2], color="black", alpha=0.2)
    axes.set_title("letters")
    return figure


class TestFigures:
    def test_the_same_figure_is_the_same_to_the_byte_and_has_no_date(self):
        one, other = figures.image(drawing()), figures.image(drawing())
        assert one == other
        assert b"metadata" not in one[1]

    def test_in_the_dark_every_shape_line_and_letter_shows_on_the_ground(self, contrast):
        ground = figures.SHAPES[style.PAPER]
        for colours, least in ((figures.SHAPES, 3), (figures.LINES, 3), (figures.LETTERS, 4.5)):
            for colour in {*style.PALETTE, style.INK, style.MUTED}:
                assert contrast(colours.get(colour, colour), ground) >= least, colour

    def test_letters_read_on_every_shape_in_the_dark_that_ink_reads_on_in_the_light(self, contrast):
        for colour in set(style.PALETTE) - {style.BLUE, style.BLACK}:
            assert contrast(figures.LETTERS[style.INK], figures.SHAPES[colour]) >= 4.5

    def test_blue_and_sky_are_told_apart_in_the_dark(self, contrast):
        assert contrast(figures.LINES[style.BLUE], figures.LINES[style.SKY]) >= 2

    def test_there_is_a_rule_for_each_colour_that_is_drawn_and_no_other(self):
        text = figures.themed(drawing())
        body, rules = text.split("<style>@media (prefers-color-scheme:dark)")
        for colour in figures.SHAPES:
            light, dark = colour.lower(), figures.SHAPES[colour]
            assert (f"fill: {light}" in body) == (f'fill: {light}"]' in rules), colour
            assert f'fill: {light}"]{{fill:{dark}!important}}' in rules or f"fill: {light}" not in body
            assert (f'fill="{light}"' in body) == (f'[fill="{light}"]{{fill:{dark}}}' in rules), colour
        assert 'stroke: #000000"]{stroke:#F2F2F2!important}' in rules
        assert "{svg{fill:#F2F2F2}" in rules  # letters and shapes in black, to which matplotlib gives no colour


class TestLecture:
    def test_enlarges_and_comes_back(self):
        import gpulab

        assert 'width="860"' in gpulab.sim.accumulation().svg()
        style.lecture()
        assert style.scale() == 1.4
        assert 'width="1204"' in gpulab.sim.accumulation().svg()
        style.lecture(1)
        assert style.scale() == 1

    @pytest.mark.parametrize(
        ("scale", "error"), [(0, ValueError), (9, ValueError), ("big", TypeError), (True, TypeError)]
    )
    def test_names_the_argument_and_the_range(self, scale, error):
        with pytest.raises(error, match=r"scale must be .*from 0\.5 to 3"):
            style.lecture(scale)
        assert style.scale() == 1

    def test_not_a_number_is_out_of_range(self):
        with pytest.raises(ValueError, match=r"from 0\.5 to 3"):
            style.lecture(float("nan"))


class TestUse:
    def test_letters_are_large_enough_and_the_colours_are_the_palette(self):
        import matplotlib

        style.use()
        settings = matplotlib.rcParams
        for name in ("font.size", "axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize"):
            assert settings[name] >= 11
        assert settings["axes.prop_cycle"].by_key()["color"] == list(style.PALETTE)
        assert settings["figure.facecolor"] == style.PAPER

    def test_the_palette_is_okabe_and_itos(self):
        assert set(style.PALETTE) == {
            "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
        }  # fmt: skip

    def test_importing_and_enlarging_load_no_matplotlib(self):
        code = "import sys, gpulab; gpulab.style.lecture(); print('matplotlib' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
        assert done.stdout.strip() == "False"

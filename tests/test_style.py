import base64
import html.parser
import os
import struct
import subprocess
import sys

import pytest

from virtualgpu.pictures import display, style


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
        assert kind == "data:image/png;base64"
        assert base64.b64decode(data).startswith(b"\x89PNG")

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
            png = base64.b64decode(image(shown[-1]["text/html"])["src"].split(",")[1])
            widths.append(struct.unpack(">I", png[16:20])[0])
        assert widths == [720, 1008]


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

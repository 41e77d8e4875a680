"""A matplotlib figure on a page: its colours are those of the page's theme, in Chromium."""

import base64
import io

import matplotlib
import matplotlib.pyplot as plt
import pytest
from PIL import Image

from virtualgpu.pictures import figures, style

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def drawn():
    with matplotlib.rc_context():
        style.use()
        figure, axes = plt.subplots()
        for place, colour in enumerate(style.PALETTE):
            axes.plot([0, 1], [place, place], color=colour)
            axes.bar([2 + place], [1], color=colour)
        axes.set_title("letters")
        yield figures.image(figure)
        plt.close(figure)


@pytest.mark.parametrize(("theme", "shapes", "lines"), [("light", {}, {}), ("dark", figures.SHAPES, figures.LINES)])
def test_a_figure_has_the_colours_of_the_pages_theme(browser, drawn, theme, shapes, lines):
    kind, data = drawn
    page = browser.new_page()
    source = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    page.set_content(f'<html style="color-scheme:{theme}"><img alt="" src="{source}"></html>')
    screenshot = Image.open(io.BytesIO(page.locator("img").screenshot())).convert("RGB")
    page.close()
    found = {f"#{r:02X}{g:02X}{b:02X}": times for times, (r, g, b) in screenshot.getcolors(2**24)}
    assert max(found, key=found.get) == shapes.get(style.PAPER, style.PAPER)
    for colours in (shapes, lines):
        assert {colours.get(colour, colour) for colour in (*style.PALETTE, style.INK)} <= found.keys()

"""A recorded timeline in JupyterLab in Chromium: pointed at, in both themes, zoomed into by mouse and by keys."""

import re

import pytest
from browser.reading import LOWEST_CONTRAST, wait_until

from virtualgpu.pictures.style import DARK, PAPER

pytestmark = pytest.mark.browser

RUN = """\
import torch

with gpulab.VirtualGPU("T4", compute=False), gpulab.memory.timeline() as t:
    t.mark("build")
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(6)]).cuda()
    for _ in range(3):
        t.mark("forward")
        loss = model(torch.zeros(4096, 2048, device="cuda")).sum()
        t.mark("backward")
        loss.backward()
t"""


@pytest.fixture(scope="module")
def shown(open_notebook, lab):
    notebook = open_notebook(lab.write("notebooks/timeline.ipynb", "import gpulab", RUN))
    notebook.run_all()
    box = notebook.shown(1).locator(".gpulab-timeline")
    box.locator("svg").wait_for()
    return notebook, box


def title(box):
    return box.locator("svg > title").text_content()


def stretch(box):
    """The first and the last point in the picture."""
    found = re.match(r"Events ([\d,]+) to ([\d,]+) of", title(box))
    return tuple(int(number.replace(",", "")) for number in found.groups()) if found else None


def test_a_band_is_named_under_the_pointer(shown):
    _, box = shown
    words = box.locator("g > title").all_text_contents()
    assert any("32.0 MiB: allocated in “forward”" in one and "loss = model(" in one for one in words)
    assert box.locator("svg").bounding_box()["height"] <= 590


@pytest.mark.parametrize("theme", ["Dark", "Light"])
def test_it_has_the_colours_of_the_theme_and_can_be_read(shown, shoot, theme):
    notebook, box = shown
    notebook.theme(f"JupyterLab {theme}")
    shoot(notebook, f"timeline_{theme.lower()}")
    ground = box.locator("svg > rect").evaluate("(node) => getComputedStyle(node).fill")
    paper = DARK[PAPER] if theme == "Dark" else PAPER
    assert ground == f"rgb({int(paper[1:3], 16)}, {int(paper[3:5], 16)}, {int(paper[5:], 16)})"
    ratio, words = box.locator("p").evaluate(LOWEST_CONTRAST)
    assert ratio >= 4.5, f"{theme}: {words!r} has a contrast of {ratio:.1f}"


def test_dragging_zooms_and_a_double_click_goes_back(shown, shoot):
    notebook, box = shown
    whole, mouse = title(box), notebook.page.mouse
    area = box.locator("svg").bounding_box()
    x, y, width = area["x"], area["y"] + area["height"] / 2, area["width"]
    mouse.move(x + 0.3 * width, y)
    mouse.down()
    mouse.move(x + 0.6 * width, y, steps=4)
    shoot(notebook, "timeline_dragged")
    mouse.up()
    wait_until(notebook.page, lambda: stretch(box), "a stretch of the curve")
    shoot(notebook, "timeline_zoomed")
    assert stretch(box)[0] > 0
    box.locator("svg").dblclick(position={"x": 5, "y": 5})
    wait_until(notebook.page, lambda: title(box) == whole, "the whole curve")


def test_keys_zoom_and_move_and_stay_with_the_picture(shown):
    notebook, box = shown
    whole, cells = title(box), len(notebook.cells())
    box.focus()
    for key in "+", "+", "ArrowRight", "-", "0":
        before = title(box)
        notebook.page.keyboard.press(key)
        wait_until(notebook.page, lambda before=before: title(box) != before, f"another picture after {key}")
    assert title(box) == whole
    assert len(notebook.cells()) == cells
    assert notebook.console == []

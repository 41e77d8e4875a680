"""The states of what a lesson is furnished with, in both themes: live, asleep, passed, failed; each can be read."""

import json

import pytest
from browser.reading import LOWEST_CONTRAST, wait_until

from gpulab.asleep import WORDS

pytestmark = pytest.mark.browser

THEMES = ("Dark", "Light")
WINDOW = {"width": 1280, "height": 720}
LIVE = {
    "quiz": "gpulab.quiz(0)",
    "simulator": "gpulab.sim.accumulation()",
    "prediction": 'guess = gpulab.predict("How many samples are in a batch?", unit="samples")',
}
# What ::before says of the box around live widgets, as the browser has it.
SAYS = "(box) => JSON.parse(getComputedStyle(box, '::before').content.replace('none', '\"\"'))"
ICONS = """(box) => [box, ...box.querySelectorAll('.jupyter-widgets-disconnected')].slice(1)
    .filter((node) => getComputedStyle(node, '::before').content !== 'none').length"""


@pytest.fixture
def shoot_both(shoot):
    """Take a screenshot of a cell in each theme, and hold its letters to a contrast of 4.5."""

    def take(notebook, cell, name):
        for theme in THEMES:
            notebook.theme(f"JupyterLab {theme}")
            outputs = notebook.shown(cell).locator(".jp-OutputArea").first
            shoot(notebook, f"state_{name}_{theme.lower()}")
            ratio, words = outputs.evaluate(LOWEST_CONTRAST)
            assert ratio >= 4.5, f"{theme}, {name}: {words!r} has a contrast of {ratio:.1f}"

    return take


# A kernel that is gone.


@pytest.fixture(scope="module")
def live(open_notebook, lab):
    notebook = open_notebook(lab.write("notebooks/live.ipynb", "import gpulab", *LIVE.values()))
    notebook.page.set_viewport_size(WINDOW)
    notebook.run_all()
    return notebook


def boxes(notebook):
    return {name: notebook.shown(cell).locator(".gpulab-live") for cell, name in enumerate(LIVE, 1)}


# In this order: the later ones go on where the earlier ones stop.


def test_with_a_kernel_nothing_says_that_it_is_asleep(live, shoot_both):
    for cell, (name, box) in enumerate(boxes(live).items(), 1):
        box.wait_for()
        assert box.evaluate(SAYS) == ""
        shoot_both(live, cell, f"{name}_live")


def test_after_a_restart_each_says_run_this_cell_again(live, shoot_both):
    live.restart()
    for cell, (name, box) in enumerate(boxes(live).items(), 1):
        assert box.evaluate(SAYS) == WORDS, name
        assert box.evaluate(ICONS) == 0, "a red icon of a broken link"
        shoot_both(live, cell, f"{name}_asleep")


def test_one_that_is_run_again_is_awake_and_the_others_still_speak(live):
    live.run(0, 2)
    assert {name: box.evaluate(SAYS) for name, box in boxes(live).items()} == {
        "quiz": WORDS,
        "simulator": "",
        "prediction": WORDS,
    }


def test_reopened_there_is_the_still_picture_and_no_error(live, lab, open_notebook, shoot_both):
    path = live.path()
    live.save()
    wait_until(live.page, lambda: WORDS in (lab.course / path).read_text(encoding="utf-8"), "the notebook saved")
    live.save()  # and again: what the server has changed is no conflict
    assert live.page.locator(".jp-Dialog").count() == 0
    live.page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    notebook = open_notebook(path)
    notebook.page.set_viewport_size(WINDOW)
    for cell, name in enumerate(LIVE, 1):
        shown = notebook.shown(cell)
        text = shown.locator(".jp-OutputArea").first.inner_text()
        assert WORDS in text, name
        assert "Error displaying widget" not in text
        shoot_both(notebook, cell, f"{name}_reopened")
    assert notebook.shown(1).locator("details").count() == 4
    assert notebook.shown(2).locator("img").get_attribute("alt").startswith("13 micro-batches make 4 updates")
    assert "Predict: How many samples are in a batch?" in notebook.shown(3).inner_text()
    stored = json.loads((lab.course / path).read_text(encoding="utf-8"))
    assert "widgets" not in stored["metadata"]
    assert notebook.console == []
    assert lab.complaints() == []

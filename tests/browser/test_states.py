"""The states of what a lesson is furnished with, in both themes: live, asleep, passed, failed; each can be read."""

import json

import nbformat
import pytest
from browser.reading import LOWEST_CONTRAST, wait_until
from courselib.venv import ROOT

from virtualgpu.pictures.asleep import WORDS

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


def test_an_answered_quiz_can_be_read(live, shoot_both):
    box = boxes(live)["quiz"]
    for option, answer in ((0, "Not so."), (1, "Right.")):
        box.get_by_role("radio").nth(option).check()
        box.get_by_role("button").click()
        box.get_by_role("status").filter(has_text=answer).wait_for()
        shoot_both(live, 1, f"quiz_answered_{option}")


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
    assert notebook.shown(2).locator("img").get_attribute("alt").startswith("The last update is 1/4")
    assert "Predict: How many samples are in a batch?" in notebook.shown(3).inner_text()
    stored = json.loads((lab.course / path).read_text(encoding="utf-8"))
    assert "widgets" not in stored["metadata"]
    assert notebook.console == []
    assert lab.complaints() == []


# What a cell shows, and has no kernel to lose.


def solution():
    """The answer to `token_weighting`, as the solutions have it."""
    cells = nbformat.read(ROOT / "solutions" / "08_accumulation.ipynb", as_version=4).cells
    (found,) = [cell.source for cell in cells if cell.cell_type == "code" and "def accumulate_tokens(" in cell.source]
    return "import torch.nn.functional as F\n" + found


BUILD = """\
import torch

def build(batch):
    model = torch.nn.Linear(4096, 4096, device="cuda")
    x = torch.randn(batch, 4096, device="cuda")
    return lambda: model(x).sum().backward()

gpulab.plan(build, batch=4096, gpu="T4")"""
FIGURE = """\
import matplotlib.pyplot as plt

gpulab.style.use()
figure, axes = plt.subplots()
axes.plot([1, 2, 4], label="seconds")
axes.legend()"""
CARDS = {
    "setup": "import gpulab\ngpu = gpulab.setup()",
    "doctor": "report = gpulab.doctor()",
    "progress": "gpulab.progress()",
    "passed": f"{solution()}\ngpulab.check.token_weighting(accumulate_tokens)",
    "failed": "gpulab.check.token_weighting(lambda model, micro_batches: 1, seed=0)",
    "not_attempted": "def stub(model, micro_batches):\n    raise gpulab.NotAttempted\n"
    "gpulab.check.token_weighting(stub)",
    "bars": 'near = gpulab.predict("Near?", guess=3)\nnear.compare(4)',
    "points": 'far = gpulab.predict("Far?", guess=3, unit="MiB")\nfar.compare(4000)',
    "figure": FIGURE + '\ngpulab.style.show(figure, alt="A line that rises from 1 to 4 seconds.")',
    "inline": FIGURE + '\naxes.set_title("as matplotlib itself shows it");',
    "plan": BUILD,
    "monitor": "import time\nwith gpulab.VirtualGPU('T4'), gpulab.monitor.watch(every=0.1):\n    time.sleep(1)",
}
PICTURES = ("setup", "figure", "inline", "plan", "monitor")
# How opaque a picture is where it is most transparent, from 0 to 1.
OPAQUE = """async (image) => {
    await image.decode();
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = [image.width, image.height];
    const context = canvas.getContext('2d');
    context.drawImage(image, 0, 0, image.width, image.height);
    const { data } = context.getImageData(8, 8, image.width - 16, image.height - 16); // within rounded corners
    let least = 255;
    for (let i = 3; i < data.length; i += 4) least = Math.min(least, data[i]);
    return least / 255;
}"""


@pytest.fixture(scope="module")
def cards(open_notebook, lab):
    notebook = open_notebook(lab.write("notebooks/cards.ipynb", *CARDS.values()))
    notebook.page.set_viewport_size(WINDOW)
    for cell in range(len(CARDS)):
        notebook.run(cell)  # one by one: two of them fail
    return notebook


@pytest.mark.parametrize("name", CARDS)
def test_a_card_can_be_read_in_both_themes(cards, shoot_both, name):
    cell = list(CARDS).index(name)
    assert cards.output_text(cell)
    shoot_both(cards, cell, name)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_brings_its_own_ground(cards, name):
    image = cards.shown(list(CARDS).index(name)).locator("img")
    assert image.evaluate(OPAQUE) == 1, "the page shines through, and it may be dark"


def test_a_pass_is_a_card_and_not_an_error(cards):
    outputs = cards.cells()[list(CARDS).index("passed")]["outputs"]
    assert [output["output_type"] for output in outputs] == ["display_data"]
    assert (
        cards.shown(list(CARDS).index("passed"))
        .locator(".gpulab-passed")
        .inner_text()
        .startswith("✔ token_weighting passed: ")
    )

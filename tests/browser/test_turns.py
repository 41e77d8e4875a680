"""A turn of the reader's in JupyterLab: as opened, wrong and right, and its solution that opens on a click."""

from pathlib import Path

import nbformat
import pytest
from browser.reading import LOWEST_CONTRAST

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.browser

LECTURE = "notebooks/02_devices.ipynb"
CALL = "gpulab.turn.any_device(padding)"
(GIVEN,) = [cell for cell in nbformat.read(ROOT / LECTURE, as_version=4).cells if cell.source.endswith(CALL)]
THEMES = ("Dark", "Light")
RIGHT = {
    "torch.arange(x.shape[1])": "torch.arange(x.shape[1], device=x.device)",
    "torch.tensor(lengths)": "torch.tensor(lengths, device=x.device)",
}
WRONG = {old: new.replace("x.device", "device") for old, new in RIGHT.items()}


@pytest.fixture(scope="module")
def lecture(open_notebook):
    """02 with its first cell run, in a window as small as a reader's may be."""
    notebook = open_notebook(LECTURE)
    notebook.page.set_viewport_size({"width": 1280, "height": 720})
    notebook.run(notebook.find("gpu = gpulab.setup()"))
    return notebook


def answered(notebook, edits):
    """Write these changes into the cell as it was given, run it, and return its number and what it says."""
    cell = notebook.find(CALL)
    source = GIVEN.source
    for old, new in edits.items():
        source = source.replace(old, new)
    notebook.write(cell, source)
    notebook.run(cell)
    return cell, notebook.shown(cell).locator(".jp-OutputArea").inner_text()


@pytest.mark.parametrize(
    ("name", "edits", "told"),
    [
        ("given", {}, "○ your turn: x is on cuda:1 and the mask on the CPU, as in the code given"),
        (
            "wrong",
            WRONG,
            "✘ not yet: x is on cuda:1, and the mask on cuda:0; expected: on cuda:1\nlikely: the code names",
        ),
        ("right", RIGHT, "✔ the mask is on the device of x"),
    ],
)
def test_it_answers_at_once_and_can_be_read_in_either_theme(lecture, shoot, name, edits, told):
    cell, said = answered(lecture, edits)
    assert told in said
    for theme in THEMES:
        lecture.theme(f"JupyterLab {theme}")
        output = lecture.shown(cell).locator(".jp-OutputArea").first
        ratio, words = output.evaluate(LOWEST_CONTRAST)
        assert ratio >= 4.5, f"{theme}: {words!r} has a contrast of {ratio:.1f}"
        assert "rgb(255, 221, 221)" not in output.evaluate("(node) => getComputedStyle(node).backgroundColor")
        lecture.shown(cell - 1)
        shoot(lecture, f"turn_{name}_{theme.lower()}")


def test_the_solution_is_folded_until_it_is_clicked(lecture, shoot):
    solution = lecture.shown(lecture.find(CALL) + 1)
    code = solution.locator("details pre")
    assert not code.is_visible()
    solution.locator("summary").click()
    code.wait_for(state="visible")
    shoot(lecture, "turn_solution")

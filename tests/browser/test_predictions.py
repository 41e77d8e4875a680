"""Predictions in JupyterLab: the answer is folded until its cell is run, and a guess outlives the kernel."""

import pytest
from browser.reading import LOWEST_CONTRAST, wait_until

pytestmark = pytest.mark.browser

LECTURE = "notebooks/08_accumulation.ipynb"
THEMES = ("Dark", "Light")


@pytest.fixture(scope="module")
def lecture(open_notebook):
    """08 as opened, in a window as small as a student's may be."""
    notebook = open_notebook(LECTURE)
    notebook.page.set_viewport_size({"width": 1280, "height": 720})
    return notebook


@pytest.fixture
def shoot_both(shoot):
    def take(notebook, cell, name):
        for theme in THEMES:
            notebook.theme(f"JupyterLab {theme}")
            notebook.shown(cell)
            shoot(notebook, f"{name}_{theme.lower()}")

    return take


def places(notebook):
    """The cell that asks, the one that answers, and those that the two need."""
    ask, answer = notebook.find("steps_guess = gpulab.predict("), notebook.find("steps_guess.compare(")
    code = [i for i, cell in enumerate(notebook.cells()) if cell["cell_type"] == "code"]
    return ask, answer, [i for i in code if i < answer and i != ask]


def is_folded(notebook, cell):
    return bool(notebook.cells()[cell]["metadata"].get("jupyter", {}).get("outputs_hidden"))


def seen(notebook, cell):
    """What can be read below the source of a cell."""
    return notebook.shown(cell).locator(".jp-Cell-outputWrapper").inner_text()


def type_guess(notebook, cell, text):
    box = notebook.shown(cell).locator(".gpulab-furniture")
    box.get_by_role("textbox").fill(text)
    box.get_by_role("textbox").press("Enter")
    return box.get_by_role("status")


# In this order: the later ones go on where the earlier ones stop.


def test_an_answer_is_folded_as_opened_and_its_question_is_not(lecture, shoot_both):
    ask, answer, _ = places(lecture)
    assert "Predict: How many optimizer steps" in seen(lecture, ask)
    assert "the answer follows: guess before you scroll" in seen(lecture, ask)
    assert is_folded(lecture, answer)
    assert lecture.shown(answer).locator(".jp-OutputPlaceholder").is_visible()
    assert seen(lecture, answer).strip() == ""  # JupyterLab would write the first line on the fold
    shoot_both(lecture, ask, "prediction_opened")


def test_a_cell_that_prints_nothing_shows_no_empty_fold(open_notebook):
    lora = open_notebook("notebooks/06_less_memory.ipynb")
    asked, answered = lora.find("lora_guess = gpulab.predict("), lora.find("lora_guess.compare(")
    cells = lora.cells()
    silent = [i for i in range(asked + 1, answered) if cells[i]["cell_type"] == "code" and not cells[i]["outputs"]]
    assert silent
    for cell in silent:
        assert not lora.shown(cell).locator(".jp-OutputPlaceholder").is_visible()


def test_it_opens_when_its_cell_is_run(lecture, lab, shoot_both):
    ask, answer, needed = places(lecture)
    lecture.run(*needed, ask, answer)
    assert not is_folded(lecture, answer)
    assert "measured: 1 (no prediction was typed)" in seen(lecture, answer)
    assert not lab.progress(), "nothing was typed, and something was kept"
    shoot_both(lecture, ask, "prediction_skipped")


def test_a_guess_is_there_again_after_a_restart_and_is_drawn(lecture, lab, shoot_both):
    ask, answer, needed = places(lecture)
    type_guess(lecture, ask, "2").filter(has_text="kept").wait_for()
    wait_until(lecture.page, lambda: "predictions" in lab.progress(), "the guess in the progress file")
    (row,) = lab.progress()["predictions"].values()
    assert (row["guess"], row["lesson"]) == (2, 8)

    lecture.restart()
    lecture.run(*needed, ask)
    box = lecture.shown(ask).locator(".gpulab-furniture")
    box.get_by_role("status").filter(has_text="your guess from ").wait_for()
    assert box.get_by_role("textbox").input_value() == "2"

    lecture.run(answer)
    assert "measured: 1 · your prediction: 2: 2 times too high" in seen(lecture, answer)
    assert "logarithmic" not in seen(lecture, answer)
    shoot_both(lecture, ask, "prediction_bar")


def test_far_apart_the_bar_says_that_its_scale_is_logarithmic(lecture, shoot_both):
    ask, answer, _ = places(lecture)
    type_guess(lecture, ask, "80").filter(has_text="kept").wait_for()
    lecture.run(answer)
    assert "80 times too high" in seen(lecture, answer)
    assert "logarithmic scale" in seen(lecture, answer)
    shoot_both(lecture, ask, "prediction_far")
    type_guess(lecture, ask, "some").filter(has_text="some is not a number: write it like 12.5").wait_for()
    shoot_both(lecture, ask, "prediction_wrong")


@pytest.mark.parametrize("theme", THEMES)
def test_guess_and_bar_can_be_read_in_either_theme(lecture, theme):
    lecture.theme(f"JupyterLab {theme}")
    for cell in places(lecture)[:2]:
        ratio, words = lecture.shown(cell).locator(".jp-OutputArea").first.evaluate(LOWEST_CONTRAST)
        assert ratio >= 4.5, f"{theme}: {words!r} has a contrast of {ratio:.1f}"

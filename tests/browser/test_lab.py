"""The course in JupyterLab in Chromium, as a student meets it: opened, run, moved, answered, solved.

What the cells print is compared by nbval and what the widgets compute is tested without a browser; here is what
only a browser shows: that it is drawn, can be reached by keyboard, has names for a screen reader, and answers.
"""

import functools

import nbformat
import pytest
from browser.notebook_page import WINDOW
from browser.reading import LOWEST_CONTRAST, OPERABLE, nameless, picture, slider, wait_until
from courselib.venv import ROOT

pytestmark = pytest.mark.browser

START = "notebooks/00_start_here.ipynb"
LECTURE = "notebooks/08_accumulation.ipynb"
EXERCISE = "exercises/08_accumulation.ipynb"

# Faster than any hand: 80 moves of the mouse before the first is answered.
MANY_MOVES = """(range) => {
    const counter = new MutationObserver(() => window.gpulabDrawn++);
    window.gpulabDrawn = 0;
    counter.observe(document.querySelector('.gpulab-picture'), { childList: true });
    for (let step = 1, start = range.valueAsNumber; step <= 80; step++) {
        range.valueAsNumber = start + (step * range.max) / 100;
        range.dispatchEvent(new Event('input', { bubbles: true }));
    }
}"""

FOCUS = "() => ({ tag: document.activeElement.tagName, type: document.activeElement.type ?? '' })"


@pytest.fixture(scope="module")
def opened(open_notebook):
    """Each notebook opened once; nothing is run in it before the tests below ask for that."""
    return functools.cache(open_notebook)


@pytest.fixture(scope="module")
def start_here(opened):
    """00, opened and run."""
    notebook = opened(START)
    notebook.run_all()
    return notebook


@pytest.fixture(scope="module")
def lecture(opened):
    """08, opened and run."""
    notebook = opened(LECTURE)
    notebook.run_all()
    return notebook


@pytest.fixture(scope="module")
def exercise(open_notebook):
    """The exercises of 08, opened and run as they come."""
    notebook = open_notebook(EXERCISE)
    notebook.run_all()
    return notebook


@pytest.fixture
def simulator(lecture):
    """The simulator of 08 as it opens, scrolled to."""
    cell = lecture.find("gpulab.sim.accumulation()")
    lecture.run(cell)
    box = lecture.shown(cell).locator(".gpulab-sim")
    box.get_by_role("slider", name="Micro-batch", exact=True).wait_for()
    box.locator("details").evaluate_all("(folded) => folded.forEach((one) => { one.open = true; })")
    return box


def solution(text, lesson="08_accumulation"):
    """The source of the one cell of the solution notebook that has `text` in it."""
    cells = nbformat.read(ROOT / "solutions" / f"{lesson}.ipynb", as_version=4).cells
    (found,) = [cell.source for cell in cells if cell.cell_type == "code" and text in cell.source]
    return found


def tab_to(notebook, cell, kind):
    """Press Tab from the cell on until the focus is on an `<input type=kind>`; fails if it does not get there."""
    notebook.select(cell)
    for _ in range(30):
        notebook.page.keyboard.press("Tab")
        if notebook.page.evaluate(FOCUS) == {"tag": "INPUT", "type": kind}:
            return
    pytest.fail(f"30 times Tab from cell {cell} on, and no input of type {kind} has the focus")


# Opened, nothing run.


@pytest.mark.parametrize("path", [START, LECTURE])
def test_a_notebook_as_opened_shows_its_saved_pictures_with_their_descriptions(opened, shoot, path):
    notebook = opened(path)
    shoot(notebook, f"{path[10:12]}_opened")
    pictures = ("text/html", "image/svg+xml", "image/png")
    shown = 0
    for number, cell in enumerate(notebook.cells()):
        drawn = [o for o in cell.get("outputs", []) if any(kind in o.get("data", {}) for kind in pictures)]
        if not any("<img" in o["data"].get("text/html", "") or set(pictures[1:]) & set(o["data"]) for o in drawn):
            continue
        images = [node for node in notebook.spoken(notebook.shown(number)) if node.role in ("image", "img")]
        assert images, cell["source"]
        assert all(len(image.name) >= 15 for image in images), images
        for image in notebook.shown(number).locator(".jp-OutputArea img").all():
            assert image.evaluate("(node) => node.complete && node.naturalWidth > 0")
        shown += 1
    assert shown >= 2  # the card of setup(), and what the notebook draws


def test_a_quiz_as_opened_unfolds_to_the_reason_of_each_option(opened, shoot):
    notebook = opened(START)
    cell = notebook.shown(notebook.find("gpulab.quiz(0)"))
    options = cell.locator("details")
    assert options.count() == 4
    assert "Right." not in cell.inner_text()
    for option in options.all():
        option.locator("summary").press("Enter")
    assert cell.inner_text().count("Right.") == 1
    assert cell.inner_text().count("Not so.") == 3
    shoot(notebook, "00_quiz_opened")


def test_a_simulator_as_opened_is_a_picture_with_its_numbers_as_text(opened, shoot):
    notebook = opened(LECTURE)
    cell = notebook.shown(notebook.find("gpulab.sim.accumulation()"))
    assert cell.locator(".gpulab-sim").count() == 0
    (image,) = [node for node in notebook.spoken(cell) if node.role in ("image", "img")]
    assert image.name.startswith("The last update is 1/4")
    assert "GiB (recorded:" in image.name
    shoot(notebook, "08_simulator_opened")


# Run.


@pytest.mark.parametrize("name", ["start_here", "lecture"])
def test_a_lecture_runs_to_its_end_and_fails_only_where_it_means_to(request, shoot, name):
    notebook = request.getfixturevalue(name)
    code = [cell for cell in notebook.cells() if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    failed = [cell["id"] for cell in code if any(o["output_type"] == "error" for o in cell["outputs"])]
    assert failed == [cell["id"] for cell in code if "raises-exception" in cell["metadata"].get("tags", [])]
    notebook.shown(0)
    shoot(notebook, f"{name}_top")
    notebook.leaf_through()  # so that each output is drawn, and can complain
    assert notebook.console == []


def test_callbacks_run_on_the_main_thread(open_notebook, lab):
    source = (
        "import threading, ipywidgets\n"
        "seen = []\n"
        "button = ipywidgets.Button(description='Press me')\n"
        "button.on_click(lambda _: seen.append(threading.current_thread() is threading.main_thread()))\n"
        "button"
    )
    notebook = open_notebook(lab.write("notebooks/threads.ipynb", source, "seen"))
    notebook.run(0)
    notebook.shown(0).get_by_role("button", name="Press me").click()
    notebook.run(1)
    assert notebook.output_text(1) == "[True]"


# The simulator.


def test_an_arrow_key_on_a_slider_changes_the_picture_and_its_numbers(lecture, simulator, shoot):
    title, numbers = picture(simulator)
    assert title.startswith("The last update is 1/4")
    assert "micro-batch" in numbers
    slider(simulator, "Micro-batch").press("ArrowRight")
    wait_until(lecture.page, lambda: picture(simulator)[0] != title, "another title")
    assert picture(simulator)[0].startswith("The last gradient is")  # a last one of one sample
    assert picture(simulator)[1] != numbers
    assert slider(simulator, "Micro-batch").get_attribute("aria-valuetext") == "9 samples"
    shoot(lecture, "08_simulator")


@pytest.mark.parametrize("key", ["ArrowUp", "ArrowDown", "Enter"])
def test_its_keys_are_not_jupyterlabs(lecture, simulator, key):
    active = "window.jupyterapp.shell.currentWidget.content.activeCellIndex"
    cell = lecture.page.evaluate(active)
    mode = lecture.page.evaluate("window.jupyterapp.shell.currentWidget.content.mode")
    for place in (slider(simulator, "Micro-batch"), simulator.locator(".gpulab-picture [data-drag]").first):
        place.press(key)
    for radio in simulator.get_by_role("radio").all():
        if radio.is_checked():
            radio.press(key)
    assert lecture.page.evaluate(active) == cell
    assert lecture.page.evaluate("window.jupyterapp.shell.currentWidget.content.mode") == mode


def test_what_the_picture_says_is_spoken_when_it_has_come_to_rest(lecture, simulator):
    slider(simulator, "Micro-batch").press("ArrowRight")
    simulator.get_by_role("status").filter(has_text="its short micro-batch counts").wait_for()


def test_a_menu_and_a_checkbox_answer_to_keys(lecture, simulator):
    before = picture(simulator)
    simulator.get_by_label("Loss of a micro-batch").press("ArrowDown")
    wait_until(lecture.page, lambda: picture(simulator) != before, "another picture after the menu")
    before = picture(simulator)
    simulator.get_by_role("checkbox").press("Space")
    wait_until(lecture.page, lambda: picture(simulator) != before, "another picture after the checkbox")


def test_a_drag_moves_the_picture_and_leaves_out_what_lies_between(lecture, simulator):
    page, handle = lecture.page, slider(simulator, "Data set")
    before = picture(simulator)
    box = handle.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 20, y, steps=5)
    wait_until(page, lambda: picture(simulator) != before, "another picture during the drag")
    lecture.at_rest()
    page.mouse.up()
    handle.evaluate(MANY_MOVES)
    samples = int(handle.get_attribute("aria-valuetext").split()[0])
    assert samples > 200
    pieces = f"{-(-samples // 8)} of 8 samples"
    wait_until(page, lambda: pieces in picture(simulator)[1].replace(",", ""), "the picture of the last move")
    lecture.at_rest()
    assert page.evaluate("window.gpulabDrawn") in range(1, 11), "pictures drawn for 80 moves in a moment"


def test_every_control_of_a_simulator_has_a_name(lecture, simulator):
    spoken = [node for node in lecture.spoken(simulator) if node.role in OPERABLE]
    assert {"slider", "combobox", "checkbox"} <= {node.role for node in spoken}
    assert nameless(lecture, simulator) == []


# Quizzes and predictions.


def test_a_quiz_is_answered_by_keyboard(start_here, lab, shoot):
    cell = start_here.find("gpulab.quiz(0)")
    start_here.run(cell)
    box = start_here.shown(cell).locator(".gpulab-furniture")
    box.get_by_role("radiogroup", name="Question 1").wait_for()
    status = box.get_by_role("status")
    assert status.inner_text() == ""
    keyboard = start_here.page.keyboard
    tab_to(start_here, cell, "radio")
    keyboard.press("Space")
    keyboard.press("Tab")
    keyboard.press("Enter")
    status.filter(has_text="Not so. That would be called measured.").wait_for()
    assert "00" not in lab.progress().get("questions", {})
    keyboard.press("Shift+Tab")
    keyboard.press("ArrowDown")
    assert box.get_by_role("radio").nth(1).is_checked()
    keyboard.press("Tab")
    keyboard.press("Space")
    status.filter(has_text="Right. Virtual numbers come from a model").wait_for()
    assert status.inner_text().count("Not so.") == 3
    wait_until(start_here.page, lambda: lab.progress().get("questions") == {"0": ["labels"]}, "the question recorded")
    assert start_here.page.evaluate("window.jupyterapp.shell.currentWidget.content.activeCellIndex") == cell
    shoot(start_here, "00_quiz")


def test_every_control_of_a_quiz_has_a_name(lecture, shoot):
    cell = lecture.find("gpulab.quiz(8)")
    boxes = lecture.shown(cell).locator(".gpulab-furniture")
    boxes.nth(4).get_by_role("radiogroup").wait_for()
    shoot(lecture, "08_quiz")
    for box in boxes.all():
        roles = [node.role for node in lecture.spoken(box) if node.role in OPERABLE]
        assert sorted(roles) == ["button", "radio", "radio", "radio", "radio", "radiogroup"]
        assert nameless(lecture, box) == []


def test_a_prediction_is_typed_and_compared(lecture, shoot):
    ask = lecture.find('steps_guess = gpulab.predict("')
    lecture.run(ask)
    box = lecture.shown(ask).locator(".gpulab-furniture")
    box.get_by_role("textbox").wait_for()
    assert nameless(lecture, box) == []
    tab_to(lecture, ask, "text")
    lecture.page.keyboard.type("many")
    lecture.page.keyboard.press("Enter")
    box.get_by_role("status").filter(has_text="many is not a number: write it like 12.5").wait_for()
    lecture.page.keyboard.press("Control+A")
    lecture.page.keyboard.type("2")
    lecture.page.keyboard.press("Enter")
    box.get_by_role("status").filter(has_text="kept").wait_for()
    shoot(lecture, "08_prediction")
    answer = lecture.find("steps_guess.compare(")
    lecture.run(answer)
    assert "measured: 1 · your prediction: 2: 2 times too high" in lecture.output_text(answer)


# Exercises.


def test_an_unsolved_exercise_says_so_at_every_check(exercise):
    checks = [cell for cell in exercise.cells() if "gpulab.check." in cell["source"] and cell["cell_type"] == "code"]
    assert len(checks) == 4
    for cell in checks:
        calm, output = cell["outputs"]
        assert calm["data"]["text/plain"].endswith("not attempted yet")
        assert output["ename"] == "NotAttempted"
        (line,) = output["traceback"]
        assert line.endswith("not attempted yet")
    assert exercise.console == []


def test_what_is_not_attempted_does_not_look_like_an_error(exercise, shoot):
    check = exercise.find("gpulab.check.accumulation_window(")
    cell = exercise.shown(check)
    cell.locator(".gpulab-not-yet").wait_for()
    error = cell.locator(".jp-OutputArea-output").nth(1)
    assert error.text_content().endswith("not attempted yet")
    assert error.is_hidden()
    shoot(exercise, "08_exercise_not_attempted")


def test_a_cell_that_uses_a_stub_does_not_look_like_an_error_either_and_works_once_it_is_solved(open_notebook, shoot):
    notebook = open_notebook("exercises/04_memory.ipynb")
    notebook.run_all()
    stub, uses = notebook.find("def profile_forward("), notebook.find("with_grad, without = profile_forward(")
    cell = notebook.shown(uses)
    cell.locator(".gpulab-not-yet", has_text="profile_forward: not attempted yet: write it in the cell of").wait_for()
    assert cell.locator(".jp-OutputArea-output:visible").count() == 1
    shoot(notebook, "04_exercise_not_attempted")
    notebook.write(stub, solution("def profile_forward(", "04_memory"))
    notebook.run(stub, uses)
    assert "10.0 times as much with gradients" in notebook.output_text(uses)
    notebook.write(stub, "def profile_forward(model, inputs, grad=True):\n    return inputs.no_such_thing")
    notebook.run(stub, uses)
    assert "AttributeError" in notebook.shown(uses).locator(".jp-OutputArea-output:visible").inner_text()


def test_no_line_of_an_exercise_and_no_name_in_the_column_of_files_is_cut(exercise, shoot):
    exercise.page.set_viewport_size({"width": 1280, "height": 720})
    exercise.shown(exercise.find("def accumulate_tokens("))
    cut = "(nodes) => nodes.filter((node) => node.scrollWidth > node.clientWidth).map((node) => node.textContent)"
    names = exercise.page.locator(".jp-DirListing-itemText")
    assert names.count() == 15
    assert names.evaluate_all(cut) == []
    lines = exercise.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .cm-scroller:visible")
    assert lines.count() > 1
    assert lines.evaluate_all(cut) == []
    shoot(exercise, "08_exercise_1280")
    exercise.page.set_viewport_size(WINDOW)


def test_a_wrong_answer_gets_lines_and_no_traceback_and_a_right_one_moves_the_progress(exercise, lab, shoot):
    stub = exercise.find("def train_epoch(")
    check = exercise.find("gpulab.check.accumulation_window(")
    progress = exercise.find("gpulab.progress()")
    right = solution("def train_epoch(")
    wrong = right.replace("* len(x) / in_window", "/ steps")
    assert wrong != right

    exercise.write(stub, wrong)
    exercise.run(stub, check)
    lines = exercise.output_text(check).splitlines()
    assert lines[0].startswith("✘ accumulation_window:")
    assert {"expected", "got", "read"} <= {line.split()[0] for line in lines[1:]}
    assert "Traceback" not in exercise.output_text(check)
    (shown,) = exercise.shown(check).locator(".jp-OutputArea-output:visible").all()
    card = shown.locator(".gpulab-failed")
    assert card.inner_text().split()[:2] == ["✘", "accumulation_window:"]
    exercise.page.set_viewport_size({"width": 800, "height": 720})  # narrow: it wraps, and between words
    assert card.evaluate("(node) => node.scrollWidth <= node.clientWidth")
    assert card.evaluate("(node) => getComputedStyle(node).wordBreak") == "normal"
    exercise.page.set_viewport_size(WINDOW)
    exercise.shown(stub)
    shoot(exercise, "08_exercise_wrong")
    assert "checks" not in lab.progress() or not lab.progress()["checks"]

    exercise.write(stub, right)
    exercise.run(stub, check, progress)
    assert exercise.output_text(check).startswith("✔")
    assert "exercises ●○○○ 1/4" in exercise.output_text(progress)
    assert "1 of 4" in exercise.shown(progress).inner_text()
    assert lab.progress()["checks"] == {"8": ["accumulation_window"]}
    shoot(exercise, "08_exercise_progress")
    exercise.shown(check)
    shoot(exercise, "08_exercise_right")


# Around it.


def test_the_furniture_can_be_read_in_the_light_and_in_the_dark_theme(start_here, shoot):
    parts = {
        "doctor": "gpulab.doctor()",
        "prediction": 'gpulab.predict("How many bytes are',
        "check": "gpulab.check.token_weighting(accumulate_tokens, seed=0)",
        "quiz": "gpulab.quiz(0)",
        "map": "gpulab.progress()",
    }
    for theme in ("Dark", "Light"):
        start_here.theme(f"JupyterLab {theme}")
        for name, text in parts.items():
            outputs = start_here.shown(start_here.find(text)).locator(".jp-OutputArea").first
            ratio, words = outputs.evaluate(LOWEST_CONTRAST)
            assert ratio >= 4.5, f"{theme}, {name}: {words!r} has a contrast of {ratio:.1f}"
            shoot(start_here, f"00_{name}_{theme.lower()}")


@pytest.mark.parametrize(("link", "path"), [("08_accumulation", LECTURE), ("exercises", EXERCISE)])
def test_a_link_of_the_map_opens_that_notebook_in_jupyterlab(start_here, link, path):
    start_here.switch_to(START)
    cell = start_here.shown(start_here.find("gpulab.progress()"))
    row = cell.get_by_role("row").filter(has=start_here.page.get_by_role("link", name="08_accumulation", exact=True))
    row.get_by_role("link", name=link, exact=True).click()
    start_here.wait_for_kernel(path)
    assert len(start_here.page.context.pages) == 1, "it opened in JupyterLab, and not in a tab of its own"

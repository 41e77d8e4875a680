"""Code with explanations in JupyterLab, as saved and without a kernel: clicked, walked through, and untrusted."""

import nbformat
import pytest
from browser.reading import LOWEST_CONTRAST

pytestmark = pytest.mark.browser

LECTURE = "notebooks/07_mixed_precision.ipynb"
VIEWER = "gpulab.annotated(train_step"
ACTIVE = "window.jupyterapp.shell.currentWidget.content.activeCellIndex"


@pytest.fixture(scope="module")
def asleep(open_notebook):
    """07 as saved, its kernel shut down."""
    notebook = open_notebook(LECTURE)
    notebook.page.set_viewport_size({"width": 1280, "height": 720})
    notebook.page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    return notebook


@pytest.fixture
def viewer(asleep):
    """Its viewer, with the first explanation chosen."""
    cell = asleep.find(VIEWER)
    asleep.select(cell)
    box = asleep.shown(cell).locator(".gpulab-annotated")
    first = box.locator("input").first
    first.check()
    first.focus()
    return box


def explanations(box):
    return [text.inner_text() for text in box.locator("blockquote").all() if text.is_visible()]


def test_an_arrow_key_goes_to_the_next_explained_line(asleep, viewer):
    cell = asleep.page.evaluate(ACTIVE)
    (first,) = explanations(viewer)
    assert first.startswith("In the block each operation looks itself up")
    for words in ("Model and loss, and no more", "Outside: the backward", "Divides .grad by the scale"):
        asleep.page.keyboard.press("ArrowDown")
        (now,) = explanations(viewer)
        assert now.startswith(words)
    asleep.page.keyboard.press("ArrowUp")
    assert explanations(viewer)[0].startswith("Outside: the backward")
    assert asleep.page.evaluate(ACTIVE) == cell, "JupyterLab has gone to another cell"


def test_a_click_on_a_line_shows_its_explanation_beside_it(viewer):
    line = viewer.locator("label", has_text="scaler.update()")
    line.click()
    (now,) = explanations(viewer)
    assert now.startswith("Every step, at the end.")
    beside = viewer.locator("blockquote:visible").bounding_box()
    place = line.bounding_box()
    assert beside["x"] >= place["x"] + place["width"]


def test_a_line_is_spoken_with_its_explanation(asleep, viewer):
    radios = [node for node in asleep.spoken(viewer) if node.role == "radio"]
    assert len(radios) == viewer.locator("blockquote").count()
    assert "loss = F.cross_entropy(model(x), y)" in [node.name.strip() for node in radios]
    for radio in viewer.locator("input").all():
        described = radio.get_attribute("aria-describedby")
        assert viewer.locator(f"blockquote#{described}").count() == 1


@pytest.mark.parametrize("theme", ["Dark", "Light"])
def test_it_can_be_read_in_both_themes(asleep, viewer, shoot, theme):
    asleep.theme(f"JupyterLab {theme}")
    asleep.shown(asleep.find(VIEWER))
    viewer.locator("label", has_text="backward()").click()
    shoot(asleep, f"state_annotated_{theme.lower()}")
    ratio, words = viewer.evaluate(LOWEST_CONTRAST)
    assert ratio >= 4.5, f"{theme}: {words!r} has a contrast of {ratio:.1f}"
    assert viewer.evaluate("(box) => box.scrollWidth <= box.clientWidth")


def test_in_an_untrusted_notebook_it_is_a_list_of_lines_with_explanations(asleep, open_notebook, lab, shoot):
    saved = asleep.cells()[asleep.find(VIEWER)]
    path = lab.write("notebooks/untrusted.ipynb", saved["source"])
    notebook = nbformat.read(lab.course / path, as_version=4)
    notebook.cells[0].outputs = [nbformat.from_dict(output) for output in saved["outputs"]]
    nbformat.write(notebook, lab.course / path)  # nobody has signed it
    opened = open_notebook(path)
    box = opened.shown(0).locator(".gpulab-annotated")
    shoot(opened, "state_annotated_untrusted")
    assert opened.page.locator(".jp-mod-trusted").count() == 0
    assert len(explanations(box)) == box.locator("blockquote").count() == 7
    lines = box.inner_text().replace("\xa0", " ").splitlines()
    assert "        loss = F.cross_entropy(model(x), y)" in [line.rstrip() for line in lines]

"""The capstone in JupyterLab: the drawn script comes as a cell of its own, and a question leads to its lesson."""

import pytest

pytestmark = pytest.mark.browser

EXERCISE, LECTURE = "exercises/15_capstone.ipynb", "notebooks/15_capstone.ipynb"
DRAWN = 'gpulab.capstone.draw("Ada Lovelace", "mine.py")'
QUIZ = "gpulab.quiz(15)"


@pytest.fixture(scope="module")
def notebook(open_notebook):
    """One window for both tests, as small as a reader's may be."""
    notebook = open_notebook(EXERCISE)
    notebook.page.set_viewport_size({"width": 1280, "height": 720})
    return notebook


def test_the_drawn_script_comes_in_a_new_cell_below_and_is_written_from_there(notebook, shoot):
    notebook.switch_to(EXERCISE)
    notebook.run(notebook.find("gpulab.setup("))
    notebook.run(notebook.find("def job("))
    cell, before = notebook.find(DRAWN), len(notebook.cells())
    notebook.run(cell)
    cells = notebook.cells()
    assert len(cells) == before + 1
    script = cells[cell + 1]["source"]
    assert script.startswith("%%writefile mine.py\n")
    notebook.write(cell + 1, script.replace("\n", "\n# repaired by me\n", 1))
    notebook.run(cell + 1)
    assert "Overwriting mine.py" in notebook.output_text(cell + 1)
    check = notebook.find("gpulab.check.capstone_drawn(repaired)")
    notebook.run(notebook.find("def repaired"), check)
    assert "not attempted yet" in notebook.output_text(check)
    shoot(notebook, "15_drawn")


def test_the_link_of_a_question_opens_its_lesson_in_jupyterlab(notebook, shoot):
    notebook.switch_to(LECTURE)
    notebook.run(notebook.find("gpulab.setup("))
    quiz = notebook.find(QUIZ)
    notebook.run(quiz)
    link = notebook.shown(quiz).get_by_role("link", name="04_memory", exact=True).first
    shoot(notebook, "15_quiz_links")
    link.click()
    notebook.wait_for_kernel("notebooks/04_memory.ipynb")
    assert len(notebook.page.context.pages) == 1, "it opened in JupyterLab, and not in a tab of its own"

"""A live output whose kernel is gone: what is saved in its place, and by whom."""

import ipywidgets
import nbformat
import pytest
from courselib import lab
from courselib.venv import Venv

from virtualgpu.pictures import asleep, display


@pytest.fixture
def view():
    return display.bundle("a text & more", widget=ipywidgets.IntSlider())


def notebook(*bundles):
    outputs = [nbformat.v4.new_output("display_data", bundle) for bundle in bundles]
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=outputs)])


def saved(*bundles):
    made = notebook(*bundles)
    asleep._before_saving(model={"type": "notebook", "content": made}, path="a.ipynb", contents_manager=None)
    nbformat.validate(made)
    return [output.data for output in made.cells[0].outputs]


def test_text_takes_the_place_of_a_view(view):
    (data,) = saved(view)
    assert set(data) == {"text/plain", "text/html"}
    assert asleep.WORDS in data["text/html"]
    assert data["text/html"].endswith("<pre>a text &amp; more</pre>")
    assert data["text/plain"] == "a text & more"


@pytest.mark.parametrize("page", ["<b>still</b>", ["<b>st", "ill</b>"]], ids=["text", "lines"])
def test_a_page_stays_under_the_words(view, page):
    (data,) = saved(view | {"text/html": page})
    assert data["text/html"].count(asleep.WORDS) == 1
    assert data["text/html"].endswith("<b>still</b>")


def test_what_is_asleep_is_told_once_to_be_run(view):
    (data,) = saved(view | {"text/html": f"<b>still</b>{asleep.UNRUN}"})
    assert data["text/html"].endswith("<b>still</b>")


def test_to_save_twice_says_it_once(view):
    (once,) = saved(view)
    assert saved(dict(once)) == [once]


def test_widgets_of_others_and_all_else_stay_as_they_are():
    other = ipywidgets.IntSlider()._repr_mimebundle_()
    page = {"text/html": "<b>1</b>", "text/plain": "1"}
    assert saved(dict(other), dict(page)) == [other, page]


def test_what_is_no_notebook_is_let_alone():
    model = {"type": "file", "content": "text"}
    asleep._before_saving(model=model)
    assert model == {"type": "file", "content": "text"}


def test_make_lab_asks_for_the_extension(tmp_path):
    command = lab.lab_command(Venv(tmp_path), 8888, folder=tmp_path, browser=False)
    assert f"--ServerApp.jpserver_extensions={{'{asleep.__name__}': True}}" in command


def test_the_extension_comes_in_when_all_others_are_there():
    later, hooks = [], []

    class Server:
        contents_manager = None
        io_loop = type("Loop", (), {"add_callback": staticmethod(later.append)})

    server = Server()
    asleep._load_jupyter_server_extension(server)
    server.contents_manager = type("Manager", (), {"register_pre_save_hook": staticmethod(hooks.append)})
    later[0]()
    assert hooks == [asleep._before_saving]


def test_a_box_carries_the_style_that_speaks_for_it():
    child = ipywidgets.IntSlider()
    box = asleep.mark_without_kernel(ipywidgets.VBox([child]))
    first, style = box.children
    assert first is child
    assert style.layout.display == "none"
    assert asleep.WORDS in style.value
    assert all(f".{name}.jupyter-widgets-disconnected" in style.value for name in box._dom_classes)

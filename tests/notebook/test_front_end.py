"""The box around a quiz or a prediction: helped in the browser by anywidget, and whole without it."""

import sys

import ipywidgets
import pytest

from gpulab.notebook import front_end


@pytest.fixture
def made():
    front_end._front_end_class.cache_clear()
    question, answer = ipywidgets.HTML("How many?"), ipywidgets.HTML()
    yield lambda: (front_end.box([question, answer], answer=answer, label="How many?"), question, answer)
    front_end._front_end_class.cache_clear()


def test_a_box_carries_the_label_for_the_script(made):
    box, question, answer = made()
    assert box.children[:2] == (question, answer)
    (helper,) = box.children[2].children
    assert helper.label == "How many?"
    assert front_end.BOX_CLASS in box._dom_classes
    assert front_end.ANSWER_CLASS in answer._dom_classes


def test_a_box_is_whole_where_anywidget_is_not_installed(made, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    box, question, answer = made()
    assert box.children[:2] == (question, answer)
    assert box.children[2].children == ()


def test_script_and_style_look_for_the_classes_that_the_box_has():
    for name in (front_end.BOX_CLASS, front_end.ANSWER_CLASS):
        assert f".{name} " in front_end._SCRIPT + front_end._STYLE

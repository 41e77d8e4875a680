"""The quizzes: every question has one right answer and a reason for each option, in each of its forms."""

import json
import re
import xml.etree.ElementTree as ET

import pytest

import gpulab
from gpulab import course
from gpulab.notebook import quiz as module
from gpulab.notebook.check_output import look
from gpulab.notebook.front_end import ANSWER_CLASS
from gpulab.notebook.quiz import questions

LESSONS = [lesson.number for lesson in course.LESSONS if lesson.questions]
EVERY = [question for number in LESSONS for question in questions(number)]


@pytest.mark.parametrize("question", EVERY, ids=lambda q: f"{q.lesson:02d}-{q.id}")
def test_a_question_has_one_right_option_and_a_reason_for_each(question):
    assert [o.right for o in question.options].count(True) == 1
    assert 3 <= len(question.options) <= 6
    assert all(len(o.why) > 20 for o in question.options)
    assert len({o.text for o in question.options}) == len({o.why for o in question.options}) == len(question.options)


@pytest.mark.parametrize("number", LESSONS)
def test_the_course_table_counts_the_questions(number):
    assert len(questions(number)) == course.lesson(number).questions
    assert len({q.id for q in questions(number)}) == len(questions(number))


def test_the_right_answer_is_not_always_in_the_same_place():
    places = [[o.right for o in q.options].index(True) for q in EVERY]
    assert len(set(places)) > 1


def test_without_a_kernel_the_text_is_printed(capsys):
    gpulab.quiz(8, "memory")
    printed = capsys.readouterr().out
    question = next(q for q in questions(8) if q.id == "memory")
    assert printed.startswith(f"Question 1: {question.text}")
    assert all(f"  {letter}) {o.text}" in printed for letter, o in zip("ABCD", question.options, strict=True))


@pytest.mark.parametrize("question", EVERY, ids=lambda q: f"{q.lesson:02d}-{q.id}")
def test_the_saved_page_unfolds_to_every_reason(question):
    page = ET.fromstring(module._as_html(question, 1))
    options = page.findall("details")
    assert len(options) == len(question.options)
    for option, detail in zip(question.options, options, strict=True):
        text = "".join(detail.itertext())
        assert option.why.replace("`", "") in text
        assert ("✔ Right." if option.right else "✘ Not so.") in text
        assert look(option.right) in detail.find("p").get("style")


@pytest.fixture
def live(tmp_path, monkeypatch):
    """A question's widgets, and the progress file that it writes."""
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "progress.json"))
    question = questions(8)[0]
    _, choice, button, feedback = module._as_widget(question, 1).children[:4]
    return question, choice, button, feedback, tmp_path / "progress.json"


def test_no_option_is_chosen_at_first_and_the_button_says_so(live):
    _, choice, button, feedback, file = live
    assert choice.value is None
    button.click()
    assert "Choose an option first" in feedback.value
    assert ANSWER_CLASS in feedback._dom_classes  # so that a screen reader speaks it
    assert not file.exists()


def test_a_wrong_option_gets_its_reason_and_another_try(live):
    question, choice, button, feedback, file = live
    wrong = [o.right for o in question.options].index(False)
    choice.value = wrong
    button.click()
    assert "Not so." in feedback.value
    assert module._inline(question.options[wrong].why) in feedback.value
    assert "Right." not in feedback.value
    assert look(False) in feedback.value
    assert look(True) not in feedback.value
    assert not file.exists()


def test_the_right_option_gets_all_reasons_and_is_recorded(live):
    question, choice, button, feedback, file = live
    choice.value = [o.right for o in question.options].index(True)
    button.click()
    assert all(module._inline(o.why) in feedback.value for o in question.options)
    assert feedback.value.count(look(True)) == 1
    assert feedback.value.count(look(False)) == len(question.options) - 1
    assert json.loads(file.read_text())["questions"] == {"8": [question.id]}


def test_what_was_answered_before_stands_there_after_a_restart_and_can_be_tried_again(live):
    question, choice, button, _, _ = live
    right = [o.right for o in question.options].index(True)
    choice.value = right
    button.click()
    _, choice, button, feedback = module._as_widget(question, 1).children[:4]
    assert choice.value == right
    assert feedback.value.startswith("<p>You have answered this one.</p>")
    assert all(module._inline(o.why) in feedback.value for o in question.options)
    choice.value = [o.right for o in question.options].index(False)
    button.click()
    assert "Not so." in feedback.value
    other = next(q for q in questions(8) if q.id != question.id)
    assert module._as_widget(other, 2).children[1].value is None


def test_a_progress_file_that_cannot_be_used_is_named(live):
    question, *_, file = live
    file.write_text("{")
    feedback = module._as_widget(question, 1).children[3]
    assert "progress.damaged-1.json" in feedback.value


def test_code_and_signs_are_shown_as_they_are():
    assert module._inline("`a < b` & c") == "<code>a &lt; b</code> &amp; c"
    assert not re.search("`", module._as_html(questions(8)[0], 1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gpulab.quiz(8, "nothing"), "ids: lesson 08 has no question 'nothing'; it has: last-window"),
        (lambda: gpulab.quiz(99), f"lesson must be a whole number from 0 to {len(course.LESSONS) - 1}, not 99"),
        (lambda: gpulab.quiz("08"), f"lesson must be a whole number from 0 to {len(course.LESSONS) - 1}, not '08'"),
    ],
)
def test_a_quiz_that_does_not_exist_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_question_of_the_knowledge_check_leads_to_the_lesson_that_it_is_about(capsys):
    gpulab.quiz(15, "why_gpus")
    assert capsys.readouterr().out.splitlines()[-1] == "Question 1 is about lesson 01_why_gpus"
    about = [question.see for question in questions(15)]
    assert len(about) == 10
    assert set(about) <= {lesson.number for lesson in course.LESSONS}
    assert all(question.see is None for question in questions(8))

"""The table of lessons agrees with the tree: its notebooks, checks and questions exist, and no others do."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gpulab
from gpulab import course

ROOT = Path(__file__).parents[1]
LESSONS = pytest.mark.parametrize("lesson", course.LESSONS, ids=lambda lesson: lesson.name)
WITH_CHECKS = [lesson for lesson in course.LESSONS if lesson.checks]
CHECKS = [(lesson, name) for lesson in WITH_CHECKS for name in lesson.checks]


def test_lessons_are_numbered_as_they_stand():
    assert [lesson.number for lesson in course.LESSONS] == list(range(len(course.LESSONS)))


@LESSONS
def test_a_lesson_has_its_lecture(lesson):
    assert (ROOT / "notebooks" / f"{lesson.name}.ipynb").is_file()
    assert (lesson.folder / "lecture.py").is_file()


@LESSONS
def test_a_lesson_has_exercises_and_solutions_exactly_when_it_has_checks(lesson):
    for folder in ("exercises", "solutions"):
        assert (ROOT / folder / f"{lesson.name}.ipynb").is_file() == bool(lesson.checks)


@LESSONS
def test_the_number_of_questions_is_that_of_the_quiz(lesson):
    questions = tomllib.loads((lesson.folder / "quiz.toml").read_text(encoding="utf-8"))["question"]
    assert len(questions) == lesson.questions


@pytest.mark.parametrize(("lesson", "name"), CHECKS, ids=[name for _, name in CHECKS])
def test_a_check_of_the_table_exists_and_says_what_it_wants(lesson, name):
    check = getattr(gpulab.check, name)
    assert check.__name__ == name
    assert check.__doc__
    assert name in dir(gpulab.check)


@pytest.mark.parametrize("lesson", WITH_CHECKS, ids=lambda lesson: lesson.name)
def test_the_checks_that_exist_are_those_of_the_table(lesson):
    files = {path.stem: path.read_text("utf-8") for path in (lesson.folder / "checks").glob("*.py")}
    assert {name for name, text in files.items() if "\nEXERCISE = " in text} <= set(lesson.checks) <= set(files)


@pytest.mark.parametrize("lesson", WITH_CHECKS, ids=lambda lesson: lesson.name)
def test_each_check_is_called_once_in_the_exercises(lesson):
    source = (lesson.folder / "exercises.py").read_text(encoding="utf-8")
    assert {name: source.count(f"gpulab.check.{name}(") for name in lesson.checks} == dict.fromkeys(lesson.checks, 1)


def test_names_of_checks_are_not_used_twice():
    assert len({name for _, name in CHECKS}) == len(CHECKS)


@pytest.mark.parametrize("number", [-1, len(course.LESSONS), 8.0, "8", True, None])
def test_a_number_that_is_no_lesson_is_named_with_the_range(number):
    with pytest.raises(ValueError, match=f"lesson must be a whole number from 0 to {len(course.LESSONS) - 1}, not "):
        course.lesson(number)


def test_a_lesson_is_found_by_its_number():
    assert course.lesson(8).name == "08_accumulation"


def test_the_course_folder_is_found_from_inside_it():
    assert course.folder(ROOT / "notebooks") == ROOT
    assert course.folder(ROOT) == ROOT


def test_there_is_no_course_folder_elsewhere(tmp_path):
    assert course.folder(tmp_path) is None


def test_a_notebook_that_goes_elsewhere_is_still_in_the_course(tmp_path):
    """As lesson 12 does for its scripts, after `gpulab.setup()`: its predictions are kept in the course folder."""
    code = "import os, gpulab; gpulab.setup('T4'); os.chdir(r'{}'); from gpulab import course; print(course.folder())"
    command = [sys.executable, "-c", code.format(tmp_path)]
    said = subprocess.run(command, cwd=ROOT / "notebooks", capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1] == str(ROOT)

"""The worked examples of CONTRIBUTING.md work: what an author copies from there runs."""

import dataclasses
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import build
import nbformat
import pytest
from banks import edits

import gpulab
from gpulab import course
from gpulab.exercise import base

from .wrong_answers import test_contracts

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)


def block(containing):
    (found,) = [b for b in BLOCKS if containing in b]
    return found


@pytest.fixture
def built(tmp_path, monkeypatch):
    """Builds a block as a source, in a course of its own."""
    monkeypatch.setattr(build, "ROOT", tmp_path)
    (tmp_path / "lessons" / "99_example").mkdir(parents=True)

    def parse(text, name):
        path = tmp_path / "lessons" / "99_example" / name
        path.write_text(text, encoding="utf-8")
        source = next(s for s in build.sources([]) if s.path == path)
        notebook = build.parse(source)
        return notebook, build.exercise_of(notebook)

    return parse


def test_the_example_of_a_lesson_is_a_source(built):
    notebook, _ = built(block("# %% saved-text"), "lecture.py")
    assert [c.cell_type for c in notebook.cells] == ["markdown", "code", "code", "code"]
    nbformat.validate(notebook)


def test_the_example_of_an_exercise_gives_a_stub_and_its_check_judges(built, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "progress.json"))
    text = block("# %% check-double")
    solved, exercise = built(text, "exercises.py")
    lessons = [dataclasses.replace(row, checks=("double",)) if row.number == 2 else row for row in course.LESSONS]
    monkeypatch.setattr(course, "LESSONS", tuple(lessons))
    file = tmp_path / "02_devices" / "checks" / "double.py"
    file.parent.mkdir(parents=True)
    names = {"gpulab": gpulab, "__file__": str(file), "__name__": "gpulab.lessons.02_devices.checks.double"}
    exec(block("EXERCISE = Contract("), names)
    check = names["EXERCISE"].check
    monkeypatch.setitem(
        sys.modules, "gpulab.lessons.02_devices.checks.double", SimpleNamespace(EXERCISE=names["EXERCISE"])
    )

    (tmp_path / "02_devices" / "exercises.py").write_text(text)
    monkeypatch.setattr(edits, "FOLDER", tmp_path)
    edits._solution.cache_clear()
    bank_names = {}
    exec(block('BANK = Bank("double"'), bank_names)
    bank = bank_names["BANK"]
    file.with_suffix(".json").write_text(bank.fingerprints())
    for holds in (
        test_contracts.test_a_clause_is_a_sentence_of_the_exercise,
        test_contracts.test_a_clause_has_a_scene,
        test_contracts.test_what_is_judged_belongs_to_one_clause,
        test_contracts.test_a_clause_has_a_wrong_answer_that_breaks_it_alone,
        test_contracts.test_the_words_stored_are_those_of_the_bank,
        test_contracts.test_a_fingerprint_belongs_to_one_mistake,
    ):
        holds(bank)
    edits._solution.cache_clear()

    exec(solved.cells[0].source, names)
    check(names["double"])
    assert "✔ double: every element is doubled" in capsys.readouterr().out
    exec(exercise.cells[0].source, names)
    with pytest.raises(base.NotAttempted):
        check(names["double"])
    with pytest.raises(base.CheckFailed, match="x is squared"):
        check(lambda x: x**2)
    with pytest.raises(base.CheckFailed, match="the result is not twice x"):
        check(lambda x: 3 * x)
    with pytest.raises(base.CheckFailed, match="changed its argument x"):
        check(lambda x: x.mul_(2))


def test_the_example_of_a_turn_gives_the_code_to_change_and_answers(built, capsys):
    lecture, _ = built(block("# %% double-turn"), "lecture.py")
    names = {"gpulab": SimpleNamespace(turn=SimpleNamespace())}
    exec("import torch\nfrom typing import Any\nfrom gpulab.exercise.wording import brief\n", names)
    exec("from gpulab.exercise.turns import AsGiven, NotYet, turn\n", names)
    exec(block("@turn("), names)
    names["gpulab"].turn.double = names["double"]
    for notebook in (lecture, build.solved(lecture)):
        exec(notebook.cells[1].source, names)
    names["gpulab"].turn.double(lambda x: x**2)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("○ your turn: the numbers are what they were, as in the code given")
    assert said[1] == "✔ every element is doubled"
    assert said[2].endswith("of other values; expected: 2 * x")


def test_the_example_of_a_simulator_is_whole():
    names = {"__name__": "lilies"}
    exec(block("class Lilies"), names)
    pond = names["Lilies"](days=3)
    assert "after 3 days there are 8 lilies" in repr(pond)
    assert "<title" in pond.svg()
    with pytest.raises(ValueError, match="days"):
        pond.set(days=0)

"""The bank of answers to an exercise: right ones that must pass, wrong ones that must each fail in their own words.

A bank stands in lessons/NN_topic/answers/NAME.py, where NAME is that of the check, as `BANK`; test_banks.py tries all
of them. A mistake is a row: what its author is told, and the answers that make it, each an edit of the solution,
several at once as a tuple, or a function.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import gpulab
from gpulab import course
from gpulab.exercise.contract import Contract
from gpulab.exercise.numbers import Numbers

from .edits import Edit, solution

ENDLESS_SECONDS = (
    1.0  # of processor time, that an answer is given of which its bank says it never ends; others get more
)


@dataclass(frozen=True)
class Wrong:
    """A wrong answer: what its author must read in the summary line and, where given, in the lines `likely` and
    `also`. `row` is the number of its mistake: answers of one row may be told the same."""

    name: str
    answer: Any
    row: int
    summary: str
    likely: str
    also: str = ""


@dataclass(eq=False)
class Bank:
    """The answers to the exercise of this check; `object_name` is what the student writes, if it has another name."""

    name: str
    object_name: str = ""
    wrong_answers: list[Wrong] = field(default_factory=list)
    _right: list[Any] = field(default_factory=list)
    _rows: list[tuple[str, str]] = field(default_factory=list)

    @cached_property
    def lesson(self) -> int:
        return next(lesson.number for lesson in course.LESSONS if self.name in lesson.checks)

    @property
    def check(self) -> Callable[..., None]:
        check: Callable[..., None] = getattr(gpulab.check, self.name)
        return check

    def __post_init__(self) -> None:
        if isinstance(self.exercise, Numbers):
            for mistake, answer in self.exercise.answers():
                self._keep(answer, mistake.summary, mistake.likely)

    @cached_property
    def exercise(self) -> Contract | Numbers[Any] | None:
        """What judges; None for the capstone."""
        module = course.lesson(self.lesson).part(f"checks.{self.name}")
        exercise: Contract | Numbers[Any] | None = getattr(module, "EXERCISE", None)
        return exercise

    @property
    def contract(self) -> Contract | None:
        return self.exercise if isinstance(self.exercise, Contract) else None

    @cached_property
    def solution(self) -> Any:
        return self.edited()

    @property
    def right_answers(self) -> list[Any]:
        """The solution is the first of them."""
        return [self.solution, *self._right] if self.exercise else self._right

    @cached_property
    def sections(self) -> set[str]:
        """The headings of the lecture, to which the line `read` may point."""
        lecture = course.lesson(self.lesson).folder / "lecture.py"
        return set(re.findall(r"^# ##+ (.*)$", lecture.read_text("utf-8").replace("`", ""), flags=re.M))

    def edited(self, *edits: Edit, called: str = "") -> Any:
        return solution(self.lesson, self.object_name or self.name, *edits, called=called)

    def mistakes(self, *rows: tuple[Any, ...]) -> None:
        """Rows of (summary, likely, answer, …)."""
        for summary, likely, *answers in rows:
            for answer in answers:
                self._keep(answer, summary, likely)

    def wrong(self, summary: str, likely: str = "", *, also: str = "") -> Callable[[Any], Any]:
        """A function or class that is a wrong answer; without `likely` it may be another answer of a row."""

        def keep(answer: Any) -> Any:
            self._keep(answer, summary, likely, also)
            return answer

        return keep

    def _keep(self, answer: Any, summary: str, likely: str, also: str = "") -> None:
        same = [i for i, row in enumerate(self._rows) if row == (summary, likely) or (row[0] == summary and not likely)]
        if len(same) > 1:
            raise ValueError(f"{self.name}: several rows say {summary!r}: which is meant?")
        if not same:
            self._rows.append((summary, likely))
        row = same[0] if same else len(self._rows) - 1
        own = sum(wrong.row == row for wrong in self.wrong_answers)
        name = f"{row + 1}.{own + 1}_{re.sub('[^a-z0-9]+', '_', summary.lower())[:50].strip('_')}"
        if isinstance(answer, tuple) or getattr(answer, "is_edit", False):
            edits = answer if isinstance(answer, tuple) else (answer,)
            answer = self.edited(*edits, called=name)
        self.wrong_answers.append(Wrong(name, answer, row, summary, self._rows[row][1], also))

    def right(self, *answers: Any) -> Any:
        """Right answers beside the solution: edits of it, or functions."""
        for answer in answers:
            if isinstance(answer, tuple) or getattr(answer, "is_edit", False):
                edits = answer if isinstance(answer, tuple) else (answer,)
                answer = self.edited(*edits, called=f"right_{len(self._right) + 1}")
            self._right.append(answer)
        return answers[0]

    def told(self, summary: str) -> list[Wrong]:
        """The wrong answers that are told this."""
        found = [wrong for wrong in self.wrong_answers if wrong.summary == summary]
        if not found:
            raise KeyError(f"no wrong answer of {self.name} is told {summary!r}")
        return found

    def fingerprints(self) -> str:
        """The text of the contract's file."""
        assert self.contract
        return self.contract.store(self.solution, [(w.name, w.summary, w.likely, w.answer) for w in self.wrong_answers])

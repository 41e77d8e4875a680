"""The bank of answers to an exercise: right ones that must pass, wrong ones that must each fail in their own words.

It is shared by the tests of all lessons; the answers themselves stand in one file for each check.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import gpulab

Check = Callable[..., None]
MOST_LINES = 10  # wrapped, so that a message is seen without scrolling
SEED = 1  # of the wrong answers; the right ones are tried with several


@dataclass(frozen=True)
class Wrong:
    """A wrong answer: what its author must read in the summary line and, where given, in the line `likely`."""

    answer: Any
    summary: str
    likely: str
    same_as: str

    @property
    def name(self) -> str:
        return str(self.answer.__name__)


@dataclass
class Bank:
    """The answers to one exercise. `same_as` names a wrong answer that is the same misconception in other code."""

    sections: tuple[str, ...]
    wrong_answers: list[Wrong] = field(default_factory=list)
    right_answers: list[Any] = field(default_factory=list)

    def wrong(self, summary: str, likely: str = "", *, same_as: str = "") -> Callable[[Any], Any]:
        def keep(answer: Any) -> Any:
            self.wrong_answers.append(Wrong(answer, summary, likely, same_as))
            return answer

        return keep

    def right(self, answer: Any) -> Any:
        self.right_answers.append(answer)
        return answer

    def each_wrong(self) -> pytest.MarkDecorator:
        return pytest.mark.parametrize("wrong", self.wrong_answers, ids=lambda wrong: wrong.name)

    def each_right(self) -> pytest.MarkDecorator:
        return pytest.mark.parametrize("answer", self.right_answers, ids=lambda answer: answer.__name__)


@functools.cache
def failure(check: Check, answer: Any) -> gpulab.CheckFailed:
    with pytest.raises(gpulab.CheckFailed) as caught:
        check(answer, seed=SEED)
    return caught.value


def assert_fails_in_its_own_words(check: Check, wrong: Wrong, bank: Bank) -> None:
    failed = failure(check, wrong.answer)
    assert failed.summary == wrong.summary
    assert wrong.likely in failed.rows["likely"]
    lines = str(failed).splitlines()
    assert len(lines) <= MOST_LINES
    assert f"seed={SEED}" in str(failed)
    section = failed.rows["read"].partition("“")[2].removesuffix("”")
    assert not section or section in bank.sections


def assert_words_differ(check: Check, bank: Bank) -> None:
    """No two wrong answers are told the same, unless the bank says that they are the same misconception."""
    said: dict[tuple[str, str, str], str] = {}
    for wrong in bank.wrong_answers:
        failed = failure(check, wrong.answer)
        words = failed.summary, failed.rows["likely"], failed.rows["also"]
        first = said.setdefault(words, wrong.name)
        assert wrong.same_as == (first if first != wrong.name else ""), f"{wrong.name} is told the same as {first}"


def assert_passes(check: Check, answer: Any, capsys: pytest.CaptureFixture[str], seeds: range = range(3)) -> None:
    for seed in seeds:
        check(answer, seed=seed)
    out = capsys.readouterr().out.splitlines()
    assert len(out) == len(seeds)
    assert all(line.startswith("✔") for line in out)


def assert_not_attempted(check: Check) -> None:
    """The course's own stub, and the one that an instructor's grader puts in its place."""

    def stub(*args: Any) -> None:
        raise gpulab.NotAttempted

    def graders_stub(*args: Any) -> None:
        raise NotImplementedError()

    for empty in (stub, graders_stub):
        with pytest.raises(gpulab.NotAttempted, match="not attempted yet"):
            check(empty)

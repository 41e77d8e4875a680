"""The bank of answers to an exercise: right ones that must pass, wrong ones that must each fail in their own words.

A bank stands in lessonNN/NAME.py, where NAME is that of the check, as `BANK`; test_banks.py tries all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import gpulab
from gpulab.check.contract import Contract

from .edits import Edit, solution

ENDLESS_SECONDS = (
    1.0  # of processor time, that an answer is given of which its bank says it never ends; others get more
)


@dataclass(frozen=True)
class Wrong:
    """A wrong answer: what its author must read in the summary line and, where given, in the lines `likely` and
    `also`."""

    answer: Any
    summary: str
    likely: str
    also: str
    same_as: str
    on_gpu: bool

    @property
    def name(self) -> str:
        return str(self.answer.__name__)


@dataclass(eq=False)
class Bank:
    """The answers to the exercise of this check. `same_as` names a wrong answer that is the same misconception in
    other code; `on_gpu` is for answers that are tried on a virtual GPU only."""

    name: str
    sections: tuple[str, ...]  # of the lecture, which the line `read` may name
    wrong_answers: list[Wrong] = field(default_factory=list)
    right_answers: list[Any] = field(default_factory=list)
    right_on_gpu: list[Any] = field(default_factory=list)
    solution: tuple[int, str] = (0, "")  # lesson and name, for a check that is a contract

    @property
    def check(self) -> Callable[..., None]:
        check: Callable[..., None] = getattr(gpulab.check, self.name)
        return check

    def wrong(
        self, summary: str, likely: str = "", *, also: str = "", same_as: str = "", on_gpu: bool = False
    ) -> Callable[[Any], Any]:
        def keep(answer: Any) -> Any:
            self.wrong_answers.append(Wrong(answer, summary, likely, also, same_as, on_gpu))
            return answer

        return keep

    def mistake(self, name: str, summary: str, likely: str, *edits: Edit, same_as: str = "") -> None:
        """A wrong answer that is an edit of the solution."""
        answer = solution(*self.solution, *edits, called=name)
        self.wrong_answers.append(Wrong(answer, summary, likely, "", same_as, False))

    def variant(self, name: str, *edits: Edit) -> None:
        """A right answer that is an edit of the solution."""
        self.right_answers.append(solution(*self.solution, *edits, called=name))

    @property
    def contract(self) -> Contract | None:
        """That of the check, if it is one."""
        if not self.solution[0]:
            return None
        module = import_module(f"gpulab.check.lesson{self.solution[0]:02d}.{self.name}")
        contract: Contract = module.CONTRACT
        return contract

    def fingerprints(self) -> str:
        """The text of the contract's file."""
        assert self.contract
        said = {w.name: w for w in self.wrong_answers}
        answers = [(w.name, said[w.same_as or w.name], w.answer) for w in self.wrong_answers]
        return self.contract.store(
            solution(*self.solution), [(name, of.summary, of.likely, answer) for name, of, answer in answers]
        )

    def right(self, answer: Any) -> Any:
        self.right_answers.append(answer)
        return answer

    def right_with_a_gpu(self, answer: Any) -> Any:
        self.right_on_gpu.append(answer)
        return answer

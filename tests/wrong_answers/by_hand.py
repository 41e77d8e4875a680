"""The bank of an exercise whose check judges by hand; such checks are being replaced.

A bank stands in lessonNN/NAME.py, where NAME is that of the check, as `BANK`; test_banks.py tries all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gpulab

from .bank import ENDLESS_SECONDS  # noqa: F401


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

    @property
    def row(self) -> str:
        return self.same_as or self.name


@dataclass(eq=False)
class Bank:
    """The answers to the exercise of this check. `same_as` names a wrong answer that is the same misconception in
    other code; `on_gpu` is for answers that are tried on a virtual GPU only."""

    name: str
    sections: tuple[str, ...]  # of the lecture, which the line `read` may name
    wrong_answers: list[Wrong] = field(default_factory=list)
    right_answers: list[Any] = field(default_factory=list)
    right_on_gpu: list[Any] = field(default_factory=list)

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

    contract = exercise = None

    def right(self, answer: Any) -> Any:
        self.right_answers.append(answer)
        return answer

    def right_with_a_gpu(self, answer: Any) -> Any:
        self.right_on_gpu.append(answer)
        return answer

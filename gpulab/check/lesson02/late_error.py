"""The check of a search for the step whose kernel fails: the error surfaces later, or nowhere, and ends all else."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..base import Trial, check
from ..measure import virtual_gpu
from ..wording import is_whole, show
from .sections import LATE

ROWS = 12


@dataclass(frozen=True)
class Case:
    """`count` steps of which `fault` fails, on the host or in a kernel; None where none does."""

    count: int
    fault: int | None
    on_host: bool = False

    @property
    def about(self) -> str:
        if self.fault is None:
            return f"{self.count} steps without a fault"
        where = "raises at the call" if self.on_host else "fails in its kernel"
        return f"{self.count} steps, of which steps[{self.fault}] {where}"


CASES = (
    Case(6, 2),
    Case(4, 3),
    Case(5, 0),
    Case(5, None),
    Case(5, 3, on_host=True),
    Case(1, 0),
    Case(0, None),
)


class Line:
    """A line of steps on the GPU, each of which is at work for long. It keeps which were called, in order, what each
    was given, and whether one began before the one before it was over."""

    def __init__(self, case: Case) -> None:
        self.called: list[int] = []
        self.given_other = self.overtaken = False
        self._expects: Tensor | None = None
        self.batch = torch.randint(0, ROWS, (8,), device="cuda")
        self.steps = [self._step(number, case) for number in range(case.count)]
        self._expects = self.batch

    def _step(self, number: int, case: Case) -> Callable[[Tensor], Tensor]:
        rows = ROWS if number != case.fault or case.on_host else 0
        # a table whose values are row numbers of the next one; the faulty one is too short for its batch
        table = torch.randint(0, ROWS, (max(rows, 1),), device="cuda")
        shift = ROWS if number == case.fault and not case.on_host else 0

        def step(batch: Tensor) -> Tensor:
            self.called.append(number)
            self.given_other |= not _is_same(batch, self._expects)
            self.overtaken |= number > 0 and not torch.cuda.default_stream().query()
            if number == case.fault and case.on_host:
                raise RuntimeError("shape '[3, 3]' is invalid for input of size 8")
            self._expects = table.index_select(0, batch + shift if shift else batch)
            torch.cuda._sleep(10**8)  # some 60 ms: who asks until it is done asks for so long
            return self._expects

        return step


def _is_same(batch: Any, expects: Tensor | None) -> bool:
    """Whether it is this tensor, or a view of all of it: what detach() gives, and no copy."""
    return (
        isinstance(batch, Tensor)
        and expects is not None
        and (batch.shape, batch.dtype, batch.data_ptr()) == (expects.shape, expects.dtype, expects.data_ptr())
    )


@check(lesson=2, says="the step that fails is found, also the last one, and nothing runs after it")
def late_error(student: Any, trial: Trial) -> None:
    """Check a function of (steps, batch): it runs the steps one after the other on the GPU, each on what the one
    before gave, and returns the number of the step that fails, in its kernel or at the call, or None."""
    trial.function(student, ("steps", "batch"))
    for case in CASES:
        with virtual_gpu():
            line = Line(case)
            got = trial.call(student, line.steps, line.batch, inside=_without_assertions(), explain=_explain)
        _judge(trial, case, line, got)


def _judge(trial: Trial, case: Case, line: Line, got: Any) -> None:
    ran = case.count if case.fault is None else case.fault + 1
    in_order = line.called == list(range(len(line.called)))
    trial.expect(
        (got is None if case.fault is None else is_whole(got) and got == case.fault),
        "this is not the step that fails",
        expected=f"{case.fault} for {case.about}",
        got=show(got),
        likely=_about(case, line, got),
        read=LATE,
    )
    trial.expect(
        in_order and len(line.called) >= ran,
        "the steps did not run one after the other",
        expected=f"steps {list(range(ran))} for {case.about}, each called once",
        got=f"calls of {show(line.called)}",
        likely="a step that ran again, or was left out: after a failed kernel nothing can be tried again in the same "
        "process, so one pass has to find it",
        read=LATE,
    )
    trial.expect(
        len(line.called) == ran,
        "steps ran after the one that fails",
        expected=f"calls of {list(range(ran))} for {case.about}",
        got=f"calls of {show(line.called)}",
        likely="right by luck: nobody waited, the next step raised, and one was taken off. How much later an error "
        "surfaces is not fixed: wait after each step"
        if case.fault is not None and line.called == list(range(ran + 1))
        else "the GPU is lost to the process after a failed kernel: stop there",
        read=LATE,
    )
    trial.expect(
        not line.given_other,
        "a step was not given what the step before gave",
        expected="batch = steps[0](batch), then steps[1] of that, and so on",
        got="another tensor",
        likely="the first batch was given to every step, or a copy of it",
        read=LATE,
    )
    trial.expect(
        not line.overtaken,
        "a step began before the one before it was over",
        expected=f"a wait after each step, for {case.about}",
        got="kernels of an earlier step under way at the call of the next",
        likely="right by luck: here an error surfaces at the next call of any kind, on a GPU perhaps at a later one. "
        "Wait after each step",
        read=LATE,
    )


def _about(case: Case, line: Line, got: Any) -> str:
    if isinstance(got, BaseException):
        return "the error itself was returned: return the number of the step"
    if isinstance(got, bool):
        return "the number is wanted, not whether there is a fault"
    if case.fault is None:
        return "no step fails here: return None after the last one"
    if got is None and case.on_host:
        return "an error at the call counts too: catch RuntimeError, of which torch.AcceleratorError is a kind"
    if got is None and len(line.called) > case.fault:
        return (
            "the kernel of the last step fails after the call has returned, and nobody waited for it: synchronize "
            "after each step"
        )
    if not isinstance(got, int):
        return ""
    if got == case.fault + 1 and len(line.called) == case.fault + 1:
        return "steps are counted from 0, as in a list; or the wait stands before the step, and finds the one before"
    if got == case.fault + 1:
        return "that is where the error surfaced: the kernel was launched by the step before. Wait for each step"
    if got == case.fault - 1:
        return "the step before is blamed: a fault is found by the wait after a step, and belongs to that step"
    if got < case.fault:
        return "a step that is in order was blamed. Its table is on the GPU: give it the batch as it is"
    if got == case.count - 1:
        return "one wait for all of them tells that something failed, not where: synchronize after each step"
    return ""


@contextmanager
def _without_assertions() -> Iterator[None]:
    """Holds back what the failing kernels write to stderr: it is not the student's."""
    own, sys.stderr = sys.stderr, _Filter(sys.stderr)
    try:
        yield
    finally:
        sys.stderr = own


class _Filter(io.TextIOBase):
    def __init__(self, to: Any) -> None:
        self._to, self._line = to, ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            if "Assertion" not in line:
                self._to.write(line + "\n")
        return len(text)


def _explain(error: str) -> str:
    if "device-side assert" in error:
        return (
            "the wait that finds the fault raises: it has to be inside the try, and nothing on the GPU works after it"
        )
    if "shape '[3, 3]'" in error:
        return "a step may also raise at the call, as any line of Python: that is its fault too"
    if "index out of range" in error:
        return "the list of steps may be empty, and then none fails: ask before the first is taken"
    if "same device" in error:
        return "the steps' tables are on the GPU: give them the batch as it is"
    return ""

"""Checks exercise 02.4, "the error three lines late": which synchronisation, if any, reports a failed kernel."""

from __future__ import annotations

import io
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gpulab.exercise.contract import Clause, Contract, Facts
from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import brief, is_whole

LATE = "The error that comes late"
KERNEL, CALLED = "the step whose kernel fails", "the step whose call raises"
NONE = "the step that fails, of none that do"
ORDER, AFTER, GIVEN = "the calls up to the step that fails", "calls after it", "tensors that are not the last one"
EARLY = "steps that began before the one before was over"
CLAUSES = [
    Clause(quote, [fact], summary, rule, LATE)
    for fact, quote, summary, rule in (
        (KERNEL, "or if one of its kernels does", "a step whose kernel fails was not found",
         "a kernel may fail after the call of its step has returned"),
        (CALLED, "A step fails if its call raises", "a step whose call raises was not found",
         "its own number is asked for"),
        (NONE, "None if none does", "a step was reported though none fails", "also where the list is empty"),
        (ORDER, "in order, each once", "the steps did not run one after the other",
         "after a failed kernel nothing can be tried again in the same process"),
        (AFTER, "and none after the one that fails", "steps ran after the one that fails",
         "after a failed kernel the process can no longer use the GPU"),
        (GIVEN, "for the next step", "a step did not get the result of the step before",
         "the tensor itself, on the GPU"),
        (EARLY, "when the one before it has finished", "a step began before the one before it had finished",
         "how much later an error surfaces can vary"),
    )
]  # fmt: skip
EDGES = {
    "fails": ("none", "the first", "one in the middle", "the last"),
    "where": ("in its kernel", "at its call"),
    "count": ("no steps", "one step", "several steps"),
}
ROWS = 12  # of each step's table, whose values are row numbers of the next one


class Line:
    """Steps on the GPU, each of which is at work for long. It keeps which were called, which of them were given
    something else than the one before gave, and which began before the one before was over."""

    def __init__(self, count: int, fails: int | None, at_call: bool) -> None:
        self.called: list[int] = []
        self.given: list[str] = []
        self.early: list[int] = []
        self.batch = self._expects = torch.randint(0, ROWS, (8,), device="cuda")
        self.steps = [self._step(number, number == fails, at_call) for number in range(count)]

    def _step(self, number: int, fails: bool, at_call: bool) -> Callable[[Tensor], Tensor]:
        table = torch.randint(0, ROWS, (ROWS,), device="cuda")
        beyond = ROWS if fails and not at_call else 0

        def step(batch: Tensor) -> Tensor:
            self.called.append(number)
            if not is_same(batch, self._expects):
                self.given.append(f"steps[{number}] got {'the first' if is_same(batch, self.batch) else 'another'}")
            if number and not torch.cuda.default_stream().query():
                self.early.append(number)
            if fails and at_call:
                raise RuntimeError("shape '[3, 3]' is invalid for input of size 8")
            self._expects = table.index_select(0, batch + beyond if beyond else batch)
            torch.cuda._sleep(10**8)  # some 60 ms: who asks until it is done asks for so long
            return self._expects

        return step


def is_same(batch: Any, expects: Tensor) -> bool:
    """Whether it is this tensor, or a view of all of it: what detach() gives, and no copy."""
    alike = isinstance(batch, Tensor) and (batch.shape, batch.dtype) == (expects.shape, expects.dtype)
    return alike and batch.data_ptr() == expects.data_ptr()


@contextmanager
def without_assertions() -> Iterator[None]:
    """Hold back what the failing kernels write to stderr: it is not the student's."""
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
        self._to.write("".join(f"{line}\n" for line in lines if "Assertion" not in line))
        return len(text)


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    count = {"no steps": 0, "one step": 1, "several steps": random.randint(4, 6)}[scene.count]
    middle = random.randint(1, max(1, count - 2))
    fails = {"the first": 0, "one in the middle": middle, "the last": count - 1}.get(scene.fails)
    which = "none fails" if fails is None else f"steps[{fails}] fails {scene.where}"
    facts = Facts(f"steps: {count}, of which {which}")
    with virtual_gpu():
        line = Line(count, fails, scene.where == "at its call")
        got = call(line.steps, line.batch, inside=without_assertions())
    fact = NONE if fails is None else KERNEL if scene.where == "in its kernel" else CALLED
    facts.add(fact, int(got) if is_whole(got) else None if got is None else brief(got), fails)
    wanted = [*range(count if fails is None else fails + 1)]
    called = line.called if fails is None else line.called[: fails + 1]
    facts.add(ORDER, called, wanted)
    if called == wanted:
        facts.add(AFTER, line.called[len(called) :], [])
        facts.add(GIVEN, line.given, [])
        facts.add(EARLY, line.early, [])
    return facts


def possible(scene: Scene) -> bool:
    if scene.fails == "none":
        return bool(scene.where == "in its kernel")
    return bool(scene.count == "several steps" or (scene.count, scene.fails) == ("one step", "the first"))


EXERCISE = Contract(
    __file__,
    says="the step that fails is found, also the last one, and nothing runs after it",
    parameters=("steps", "batch"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=possible,
    every=True,
    errors={
        "device-side assert": "the wait that finds the fault raises, and so does whatever comes after it on the GPU",
        "shape '[3, 3]'": "a step's call may also raise, like any line of Python: that is a failure of this step too",
        "index out of range": "the steps are numbered from 0 to len(steps) - 1, and there may be none",
        "same device": "the steps' tables are on the GPU: give them the batch as it is",
    },
)

"""Detect the steps of a training loop: every `optimizer.step()` is a mark.

A skipped step (`GradScaler` skips one after an overflow) leaves none; a script with two optimizers has two series of
marks. Where a function builds the steps, and they have no optimizer, the end of each is a mark. Intervals run from a
step to the next of the same optimizer, and include everything in between.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import weakref
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..planning import tensor_roles
from .loader_waits import LoaderWaits
from .meters import Meter
from .report import Steps

_MOST = 20_000  # marks kept for one optimizer; later steps are counted
_SPLIT = 1000  # steps that are split into phases
_SETTLED = 3  # steps after which a loop has allocated what it keeps


class _NoOptimizer:
    """What marks steps without one."""

    def __init__(self) -> None:
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[Any, Any] = {}


class _Series:
    def __init__(self, optimizer: Any, device: Any, meter: Meter, waits: LoaderWaits | None) -> None:
        self.name = "" if isinstance(optimizer, _NoOptimizer) else type(optimizer).__name__
        self.parameters = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        self.device = device
        self.meter = meter
        self.waits = waits
        self.count = 0
        self.marks: list[Any] = []
        self.waited, self.batches = array("d"), array("q")  # seconds in loaders until each mark, and batches
        self.samples, self.tokens = array("q"), array("q")
        self.workers = 0
        self.held, self.state = array("q"), array("q")
        self.cuts: list[tuple[str, Any]] = []  # the phase that ends at each mark; "" where a step does

    def mark(self, optimizer: Any) -> None:
        self.count += 1
        if len(self.marks) < _MOST:
            mark, allocated = self.meter.reading(self.device)
            self.marks.append(mark)
            if len(self.marks) <= _SPLIT:
                self.cuts.append(("", mark))
            more = bool(self.held) and allocated > self.held[-1]
            self.state.append(sum(t.nbytes for t in tensor_roles.tensors_in(optimizer.state)) if more else -1)
            self.held.append(allocated)
            if self.waits is not None:
                self.waited.append(self.waits.seconds)
                self.batches.append(self.waits.batches)
                self.samples.append(self.waits.samples)
                self.tokens.append(self.waits.tokens)
                self.workers = self.waits.workers

    def cut(self, phase: str) -> None:
        """Note that a phase ends now, and another begins."""
        if 0 < len(self.marks) < _SPLIT:
            self.cuts.append((phase, self.meter.mark(self.device)))

    def parts(self) -> tuple[tuple[str, float], ...]:
        """Return the median seconds of a step in each phase: of what its GPU does of each."""
        times = self.meter.seconds([mark for _, mark in self.cuts])
        if times is None:
            return ()
        steps: list[dict[str, float]] = [{}]
        for (begin, end), (phase, _) in zip(itertools.pairwise(times), self.cuts[1:], strict=True):
            steps[-1][phase or "forward"] = steps[-1].get(phase or "forward", 0.0) + max(0.0, end - begin)
            if not phase:
                steps.append({})
        return tuple(
            (phase, statistics.median(step.get(phase, 0.0) for step in steps[:-1]))
            for phase in ("data", "forward", "backward", "optimizer")
        )

    def steps(self) -> Steps:
        what = self.name, self.parameters, str(self.device), self.count
        if len(self.marks) < 2:
            return Steps(*what)
        times = self.meter.seconds(self.marks)
        python = self.meter.python(self.marks)
        waited = waited_share = None
        if self.waited and self.batches[-1] > self.batches[0] and times is not None:
            waiting = self.waited[-1] - self.waited[0]
            passed = times[-1] - times[0] + (0.0 if self.meter.counts_host else waiting)
            waited, waited_share = waiting / (len(self.marks) - 1), waiting / passed if passed > 0 else None
        held = self.held[_SETTLED - 1 :]
        state = [(at, nbytes) for at, nbytes in enumerate(self.state) if at >= _SETTLED - 1 and nbytes >= 0]
        median = None if times is None else _median(times)
        rates = [_median(amounts) / median if median and amounts else 0.0 for amounts in (self.samples, self.tokens)]
        return Steps(
            *what,
            median=median,
            samples=rates[0] or None,
            tokens=rates[1] or None,
            parts=self.parts(),
            busy_share=self.meter.busy(self.marks),
            between=self.meter.between(self.device, self.marks),
            waited=waited,
            waited_share=waited_share,
            workers=self.workers,
            python=None if python is None else python / (len(self.marks) - 1),
            growth=growth_per_step(held),
            state_growth=(state[-1][1] - state[0][1]) // (state[-1][0] - state[0][0]) if len(state) > 1 else 0,
        )


def growth_per_step(held: Sequence[int]) -> int:
    """Return the bytes by which `held`, read at each step, grows per step on average; 0 where there is no trend.

    There is one if the minimum over stretches of some steps never falls, rises at least twice, and also in the second
    half. Memory kept at every fifth step makes a trend, memory allocated once does not.
    """
    if len(held) <= _SETTLED:
        return 0
    stretches = len(held) if len(held) < 8 else min(max(5, len(held) // 4), 20)
    edges = [at * len(held) // stretches for at in range(stretches + 1)]
    least = [min(held[a:b]) for a, b in itertools.pairwise(edges)]
    rises = [at for at, (a, b) in enumerate(itertools.pairwise(least)) if b > a]
    needed = len(least) - 1 if len(held) < 8 else 2
    if any(b < a for a, b in itertools.pairwise(least)) or len(rises) < needed or rises[-1] < (len(least) - 1) // 2:
        return 0
    return (least[-1] - least[0]) // edges[-2]


def _median(times: Sequence[float]) -> float:
    return statistics.median(b - a for a, b in itertools.pairwise(times))


class StepMarks:
    """Marks the steps of all optimizers until `end`; `meter()` returns the reader of the current GPU.

    `also` is called before and after each, with the optimizer, its device, and True after the step. `waits` is read
    at each for the time waited for data.
    """

    def __init__(
        self,
        meter: Callable[[], Meter | None],
        also: Callable[[Any, Any, bool], None] | None = None,
        waits: LoaderWaits | None = None,
    ) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self._meter, self._also, self._waits = meter, also or (lambda *_: None), waits
        self._series: weakref.WeakKeyDictionary[Any, _Series] = weakref.WeakKeyDictionary()
        self._all: list[_Series] = []
        self._phases = ["forward"]
        self._without = _NoOptimizer()
        self.elsewhere = 0  # the steps of optimizers that are not on a GPU
        self._hooks = register_optimizer_step_pre_hook(self._begins), register_optimizer_step_post_hook(self._step)

    def end(self) -> None:
        """Stop marking."""
        for hook in self._hooks:
            hook.remove()

    def steps(self) -> tuple[Steps, ...]:
        """Return all optimizers that have taken a step, in the order of their first."""
        return tuple(series.steps() for series in self._all)

    def passes(self, phase: str, begins: bool) -> None:
        """Note in the first optimizer's series that a phase begins within another, or has ended."""
        if self._all:
            with self._all[0].meter.aside():
                self._all[0].cut(self._phases[-1])
        if begins:
            self._phases.append(phase)
        elif phase in self._phases:  # an optimizer's step that failed has left its own
            del self._phases[self._phases.index(phase) if phase == "optimizer" else -1 :]

    def _begins(self, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        self.passes("optimizer", True)
        meter, device = self._meter(), _device(optimizer)
        if device is not None:
            with contextlib.nullcontext() if meter is None else meter.aside():
                self._also(optimizer, device, False)
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._as_forward(kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._as_forward(args[1])), kwargs
        return None

    def _as_forward(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return the closure of an optimizer's step, whose time is not the optimizer's."""

        def within() -> Any:
            self.passes("forward", True)
            try:
                return closure()
            finally:
                self.passes("forward", False)

        return within

    def took(self) -> None:
        """Note that a step has ended which a function has built."""
        meter = self._meter()
        if meter is not None and not self.elsewhere and set(self._series) <= {self._without}:
            self._mark(self._without, meter, torch.device("cuda", torch.cuda.current_device()))

    def _step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.passes("optimizer", False)
        self._mark(optimizer, self._meter(), _device(optimizer))

    def _mark(self, optimizer: Any, meter: Meter | None, device: Any) -> None:
        series = self._series.get(optimizer)
        if series is not None:
            meter = series.meter
        elif meter is None or device is None:
            self.elsewhere += 1
            return
        with meter.aside():
            if series is None:
                series = self._series[optimizer] = _Series(optimizer, device, meter, self._waits)
                self._all.append(series)
            series.mark(optimizer)
            self._also(optimizer, series.device, True)


def _device(optimizer: Any) -> Any:
    """Return the GPU of its first parameter, None for an optimizer on the host."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            return parameter.device if parameter.device.type == "cuda" else None
    return None

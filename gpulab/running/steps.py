"""The steps of a training run, without knowing its loop: every `optimizer.step()` is a mark.

An optimizer that takes no step (`GradScaler` skips one after an overflow) leaves none; a script with two optimizers has
two series of marks. Intervals are between a step and the next of the same optimizer, so they hold all that is between.
"""

from __future__ import annotations

import itertools
import statistics
import time
import weakref
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from .feeding import Feeding
from .meters import Meter
from .report import Steps

_MOST = 20_000  # marks kept for one optimizer; later steps are counted
_SETTLED = 3  # steps after which a loop has allocated what it keeps


class _Series:
    def __init__(self, optimizer: Any, device: Any, meter: Meter, feeding: Feeding | None) -> None:
        self.name = type(optimizer).__name__
        self.parameters = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        self.device = device
        self.meter = meter
        self.feeding = feeding
        self.count = 0
        self.marks: list[Any] = []
        self.host = array("d")
        self.waited, self.batches = array("d"), array("q")  # seconds in loaders until then, and what they gave
        self.held = array("q")

    def mark(self) -> None:
        self.count += 1
        if len(self.marks) < _MOST:
            mark, allocated = self.meter.reading(self.device)
            self.marks.append(mark)
            self.host.append(time.monotonic())  # which no scope replaces
            self.held.append(allocated)
            if self.feeding is not None:
                self.waited.append(self.feeding.seconds)
                self.batches.append(self.feeding.batches)

    def steps(self) -> Steps:
        what = self.name, self.parameters, str(self.device), self.count
        if len(self.marks) < 2:
            return Steps(*what)
        held = self.held[_SETTLED - 1 :]
        grew = len(held) > _SETTLED and all(b > a for a, b in itertools.pairwise(held))
        times = self.meter.seconds(self.marks)
        waited = waited_share = None
        passed = self.host[-1] - self.host[0]
        if self.waited and self.batches[-1] > self.batches[0] and passed > 0:
            waiting = self.waited[-1] - self.waited[0]
            waited, waited_share = waiting / (len(self.marks) - 1), waiting / passed
        return Steps(
            *what,
            median=None if times is None else _median(times),
            host_median=_median(self.host),
            busy_share=self.meter.busy(self.marks),
            between=self.meter.between(self.device, self.marks),
            waited=waited,
            waited_share=waited_share,
            growth=(held[-1] - held[0]) // (len(held) - 1) if grew else 0,
        )


def _median(times: Sequence[float]) -> float:
    return statistics.median(b - a for a, b in itertools.pairwise(times))


class StepMarks:
    """Marks the steps of all optimizers from now on; `meter()` says what reads the GPU at this moment.

    `also` is called before and after each, with the optimizer, its device, and whether the step is over. `feeding` is
    read at each for what was waited for data.
    """

    def __init__(
        self,
        meter: Callable[[], Meter | None],
        also: Callable[[Any, Any, bool], None] | None = None,
        feeding: Feeding | None = None,
    ) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self._meter, self._also, self._feeding = meter, also or (lambda *_: None), feeding
        self._series: weakref.WeakKeyDictionary[Any, _Series] = weakref.WeakKeyDictionary()
        self._all: list[_Series] = []
        self.elsewhere = 0  # the steps of optimizers that are not on a GPU
        self._hooks = register_optimizer_step_pre_hook(self._begins), register_optimizer_step_post_hook(self._step)

    def end(self) -> None:
        """Mark no longer."""
        for hook in self._hooks:
            hook.remove()

    def steps(self) -> tuple[Steps, ...]:
        """All optimizers that have taken a step, in the order of their first."""
        return tuple(series.steps() for series in self._all)

    def _begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        device = _device(optimizer)
        if device is not None:
            self._also(optimizer, device, False)

    def _step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        series = self._series.get(optimizer)
        if series is None:
            meter = self._meter()
            device = _device(optimizer)
            if meter is None or device is None:
                self.elsewhere += 1
                return
            series = self._series[optimizer] = _Series(optimizer, device, meter, self._feeding)
            self._all.append(series)
        series.mark()
        self._also(optimizer, series.device, True)


def _device(optimizer: Any) -> Any:
    """The GPU of its first parameter, None for an optimizer of the host's."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            return parameter.device if parameter.device.type == "cuda" else None
    return None

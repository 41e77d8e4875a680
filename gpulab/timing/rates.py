"""Computes throughput from a time and a number of items."""

from __future__ import annotations

import math
from dataclasses import dataclass

from virtualgpu.readings.source import Numbers, numbers
from virtualgpu.units import three_figures

from .measuring import Timing
from .stopwatch import Timer

Time = Timing | Timer | float


@dataclass(frozen=True, repr=False)
class Throughput:
    """A rate, `per_second` of `unit`, and the origin of its time: measured or virtual."""

    per_second: float
    unit: str
    numbers: Numbers

    def __str__(self) -> str:
        return f"{three_figures(self.per_second)} {self.unit}/s ({self.numbers})"

    __repr__ = __str__


def throughput(items: float, time: Time, unit: str = "items") -> Throughput:
    """Return the rate of `items` in `time`, in `unit` (images, tokens, samples) per second.

    `time` is a `Timing` (its median counts), a Timer, or a number of seconds. Raises ValueError unless both are above
    0, TypeError if they are no numbers.
    """
    count = positive("items", items)
    taken, source = seconds(time)
    return Throughput(count / taken, unit, source)


def seconds(time: Time) -> tuple[float, Numbers]:
    """Return a time in seconds and its origin; that of a number is the origin of torch.cuda's values now."""
    if isinstance(time, Timing):
        return positive("time", time.median_ms / 1e3), time.numbers
    if isinstance(time, Timer):
        return positive("time", time.ms / 1e3), time.numbers
    if isinstance(time, bool) or not isinstance(time, (int, float)):
        raise TypeError(
            f"time must be a result of timing.measure, a timing.Timer or a number of seconds, not {time!r:.60} "
            f"({type(time).__name__})"
        )
    return positive("time", time), numbers()


def positive(name: str, value: float) -> float:
    """Return `value` if it is a finite number above 0; else raise TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number above 0, not {value!r:.60} ({type(value).__name__})")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a number above 0, not {value!r}")
    return float(value)

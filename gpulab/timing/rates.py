"""`throughput`: how many of something a second, from a time and a number."""

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
    """`per_second` of `unit`, and whether the time behind it is measured or virtual."""

    per_second: float
    unit: str
    numbers: Numbers

    def __str__(self) -> str:
        return f"{three_figures(self.per_second)} {self.unit}/s ({self.numbers})"

    __repr__ = __str__


def throughput(items: float, time: Time, unit: str = "items") -> Throughput:
    """How many `unit` (images, tokens, samples) a second, when `items` of them take `time`.

    `time` is what `measure` gave (its median counts), a Timer, or a number of seconds. Raises ValueError for a time or
    a number of items that is not above 0, TypeError for what is none.
    """
    count = positive("items", items)
    taken, source = seconds(time)
    return Throughput(count / taken, unit, source)


def seconds(time: Time) -> tuple[float, Numbers]:
    """A time in seconds, and what it is. A bare number is taken for what torch.cuda gives at this moment."""
    if isinstance(time, Timing):
        return positive("time", time.median_ms / 1e3), time.numbers
    if isinstance(time, Timer):
        return positive("time", time.ms / 1e3), time.numbers
    if isinstance(time, bool) or not isinstance(time, (int, float)):
        raise TypeError(
            f"time must be what timing.measure gave, a timing.Timer or a number of seconds, not {time!r:.60} "
            f"({type(time).__name__})"
        )
    return positive("time", time), numbers()


def positive(name: str, value: float) -> float:
    """`value` if it is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number above 0, not {value!r:.60} ({type(value).__name__})")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a number above 0, not {value!r}")
    return float(value)

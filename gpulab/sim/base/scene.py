"""Scales of a picture: values to pixels for what is drawn, and back for what is dragged."""

from __future__ import annotations

import math
from typing import NamedTuple

from .touch import Grip


class Scale(NamedTuple):
    """Values from `low` to `high` between `start` and `end`; `log`: equal ways are equal factors."""

    start: float
    end: float
    low: float
    high: float
    log: bool = False

    def at(self, value: float) -> float:
        """Where `value` is; at the nearer end if it is beyond."""
        low, high = sorted((self.low, self.high))
        value = min(max(value, low), high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + (self.end - self.start) * share

    def value(self, place: float) -> float:
        """The value at `place`: the inverse of `at`."""
        share = (place - self.start) / (self.end - self.start)
        return self.low * (self.high / self.low) ** share if self.log else self.low + (self.high - self.low) * share

    def decades(self) -> list[float]:
        """The powers of ten on it."""
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        return [10.0**power for power in range(first, last + 1)]

    def grip(self, name: str) -> Grip:
        """A control whose values these are, dragged along x."""
        return Grip(name, self.start, self.end, self.low, self.high, log=self.log)

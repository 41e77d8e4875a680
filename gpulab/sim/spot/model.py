"""How long a run takes that is interrupted at random, saves itself now and then, and goes on from the last checkpoint.

Interruptions come at a constant rate, so that the time to the next is exponential; then mean and variance are exact.
Hours throughout. It draws nothing and knows no prices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Time(NamedTuple):
    """A time that differs from run to run, in hours: its mean and its variance."""

    mean: float
    variance: float


AT_ONCE = Time(0.0, 0.0)


def retried(length: float, between: float, again: Time = AT_ONCE) -> Time:
    """The time until `length` hours have gone by without an interruption, where `between` is the mean time to one.

    Every interruption starts the stretch anew after `again`. With `again` a restart of R hours that can itself be
    interrupted, the mean is between · exp(R / between) · (exp(length / between) - 1): Daly, Future Generation Computer
    Systems 22 (2006), equation 20 for one interval.
    """
    if length == 0:
        return AT_ONCE
    odds = math.expm1(length / between)  # interruptions before the stretch succeeds
    # of an attempt that fails, which lasts less than `length`
    lost = between - length / odds
    square = 2 * between * (between - length / odds) - length**2 / odds
    variance = odds * (max(0.0, square - lost**2) + again.variance) + odds * (1 + odds) * (lost + again.mean) ** 2
    return Time(length + odds * (lost + again.mean), variance)


def young(checkpoint: float, between: float) -> float:
    """The best interval to first order, √(2 · checkpoint · between): Young, Communications of the ACM 17 (1974)."""
    return math.sqrt(2 * checkpoint * between)


def best_interval(checkpoint: float, between: float) -> float:
    """The interval of work with the least expected time, where the run is long: (1 - x) exp(x + checkpoint) = 1 with
    times over `between` (Daly 2006), by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        x = (low + high) / 2
        low, high = (x, high) if math.log1p(-x) + x + checkpoint / between > 0 else (low, x)
    return low * between


@dataclass(frozen=True)
class Plan:
    """What a run needs and what it meets; hours, and the price of an hour."""

    work: float
    checkpoint: float
    between: float
    restart: float

    @cached_property
    def restarting(self) -> Time:
        return retried(self.restart, self.between)

    def stretches(self, interval: float) -> list[tuple[int, float]]:
        """How many stretches between checkpoints, and how long with the checkpoint that ends each; the last is a rest.

        A run ends with a checkpoint: its result.
        """
        whole = max(0, math.ceil(self.work / interval - 1e-9) - 1)
        return [(whole, interval + self.checkpoint), (1, self.work - whole * interval + self.checkpoint)]

    def checkpoints(self, interval: float) -> int:
        return sum(number for number, _ in self.stretches(interval))

    def best(self) -> float:
        """The interval with the least expected time: the work in equal parts, about as long as `best_interval` says."""
        parts = self.work / best_interval(self.checkpoint, self.between)
        numbers = {max(1, math.floor(parts)), math.ceil(parts)}
        return self.work / min(numbers, key=lambda number: self.time(self.work / number).mean)

    def time(self, interval: float) -> Time:
        """From the start to the last checkpoint."""
        mean = variance = 0.0
        for number, hours in self.stretches(interval):
            one = retried(hours, self.between, self.restarting)
            mean, variance = mean + number * one.mean, variance + number * one.variance
        return Time(mean, variance)

    def lost(self, interval: float) -> float:
        """Expected hours of work, and of checkpoints half written, that are done again."""
        return sum(n * (retried(hours, self.between).mean - hours) for n, hours in self.stretches(interval))

    def extra(self, interval: float) -> tuple[float, float, float]:
        """Expected hours beside the work: in checkpoints, in restarts, in work done again."""
        writing, lost = self.checkpoints(interval) * self.checkpoint, self.lost(interval)
        return writing, max(0.0, self.time(interval).mean - self.work - writing - lost), lost

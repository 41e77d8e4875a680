"""Gradients in fp16, and the scale that keeps them in its range, moved step by step as torch's GradScaler does it.

The gradients are a toy: a million of them, the same in every step, whose sizes in powers of two lie on a bell curve
below the largest. The scaler is no toy: it follows torch to the bit.
"""

from __future__ import annotations

import bisect
import math
import random
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

from ..base.floats import FP16, FP32
from ..base.simulator import Result, Row
from ..base.words import percent

STEPS = 5000
VIRTUAL = "virtual: toy gradients"
# The largest of a million normally distributed numbers stands about this many standard deviations above the mean.
_BELL = NormalDist()
REACH = _BELL.inv_cdf(1 - 1e-6)

# What is half of fp16's smallest number or less becomes 0; below its smallest normal number bits are missing; what
# is half a spacing above its largest or more becomes inf. The same as powers of two:
INF_FROM = FP16.largest + FP16.spacing(FP16.largest) / 2
TO_ZERO = math.log2(FP16.smallest / 2)
TO_NORMAL = math.log2(FP16.smallest_normal)
TO_INF = math.log2(INF_FROM)


@dataclass
class Scaler:
    """What `torch.amp.GradScaler` keeps: the scale, in fp32, and how many good steps since it last changed."""

    scale: float
    growth_interval: int
    good: int = 0

    def update(self, found_inf: bool) -> None:
        """A step is over: halve the scale if it had an inf, double it after `growth_interval` steps without."""
        if found_inf:
            self.scale, self.good = FP32.nearest(self.scale * 0.5), 0
            return
        self.good += 1
        if self.good == self.growth_interval:
            doubled = FP32.nearest(self.scale * 2.0)
            self.scale, self.good = doubled if math.isfinite(doubled) else self.scale, 0


@dataclass(frozen=True)
class Shares:
    """Which part of the gradients fp16 turns into what, at one scale."""

    zero: float
    subnormal: float
    normal: float
    inf: float


@dataclass(frozen=True)
class Run(Result):
    """A run of `STEPS` steps, looked at in one of them, counted from 1."""

    largest_power: float
    spread: float
    growth_interval: int
    step: int
    changes: tuple[tuple[int, float], ...]  # from which step on there is which scale; the last may follow the run
    skipped: tuple[int, ...]  # the steps with an inf
    bad: tuple[int, ...]  # those of them that have one at any scale

    def scale_in(self, step: int) -> float:
        """The scale in a step; `STEPS + 1` is after the last."""
        return self.changes[bisect.bisect(self.changes, (step, math.inf)) - 1][1]

    @property
    def scale(self) -> float:
        """The scale in the step looked at."""
        return self.scale_in(self.step)

    @property
    def overflows(self) -> bool:
        """Whether the largest gradient is inf in the step looked at."""
        return overflows(self.scale, self.largest_power)

    @property
    def largest(self) -> str:
        """The largest gradient of the step looked at, scaled, as fp16 has it."""
        largest = FP16.nearest(self.scale * 2.0**self.largest_power)
        return f"{largest:,.0f}" if largest >= 1000 else f"{largest:.3g}"

    @property
    def centre(self) -> float:
        """The median gradient, unscaled, as a power of two."""
        return self.largest_power - REACH * self.spread

    @property
    def ceiling(self) -> float:
        """The power of two from which on a scale takes the largest gradient to inf."""
        return TO_INF - self.largest_power

    def floor(self, share: float) -> float:
        """The power of two below which a scale leaves more than `share` of the gradients 0."""
        return TO_ZERO - self.centre - _BELL.inv_cdf(share) * self.spread

    def below(self, power: float, scale: float = 1.0) -> float:
        """The share of the gradients that, scaled, are below two to the `power`."""
        place = (power - math.log2(scale) - self.centre) / self.spread
        return 0.0 if place <= -REACH else 1.0 if place > REACH else _BELL.cdf(place)

    def shares(self, scale: float) -> Shares:
        zero, subnormal, finite = (self.below(power, scale) for power in (TO_ZERO, TO_NORMAL, TO_INF))
        return Shares(zero, subnormal - zero, finite - subnormal, 1 - finite)

    @property
    def finding(self) -> str:
        """What became of the scale, and of the gradients in the step looked at; or why it is skipped."""
        if self.overflows:
            return f"{size(self.scale)} is too large: the largest gradient is inf, so step {self.step:,} is skipped"
        if self.step in self.skipped:
            return f"In step {self.step:,} {self.happened}"
        first, last = self.scale_in(1), self.scale_in(STEPS + 1)
        way = "The scale comes back to where it began"
        if len(self.changes) > 1 and self.step < self.changes[1][0]:
            way = "At the first scale"
        elif last < first:
            way = "Bad batches halve the scale" if self.bad else "The scale falls until it fits"
        elif last > first:
            slow = not self.skipped and math.log2(last) < self.floor(0.01)
            way = "The scale rises too slowly" if slow else "The scale rises until it fits"
        plain, scaled = (part(self.shares(scale).zero) for scale in (1.0, self.scale))
        when = f" by step {self.step:,}" if self.step < STEPS else ""
        if scaled == "100%":
            return f"{way}:{when} every gradient is 0"
        compared = "as without scaling" if plain == scaled else f"not {plain}"
        return f"{way}:{when}{',' * bool(when)} {scaled} of gradients become 0, {compared}"

    @property
    def happened(self) -> str:
        """What the scaler does in the step looked at."""
        now, after = self.scale, self.scale_in(self.step + 1)
        if self.step in self.skipped:
            why = "the largest gradient is inf" if self.overflows else "a bad batch, inf at any scale"
            return f"{why}: skipped, and the scale halved to {size(after)}"
        if after > now:
            without = "a step" if self.growth_interval == 1 else f"{self.growth_interval:,} steps"
            return f"{without} without an inf: the scale doubles to {size(after)}"
        if self.largest == "0":
            return (
                f"all gradients are 0, which is finite: the optimizer steps with nothing, the scale stays {size(now)}"
            )
        return f"all gradients are finite: the optimizer steps, and the scale stays {size(now)}"

    def rows(self) -> list[Row]:
        now, plain = self.shares(self.scale), self.shares(1.0)
        lowest, highest = (pick(scale for _, scale in self.changes) for pick in (min, max))
        return [
            ("step", f"{self.step:,} of {STEPS:,}", ""),
            ("what happens", self.happened, VIRTUAL),
            ("scale", size(self.scale), VIRTUAL),
            ("largest gradient, scaled", self.largest, VIRTUAL),
            ("become 0, unscaled", part(plain.zero), VIRTUAL),
            ("become 0, scaled", part(now.zero), VIRTUAL),
            ("subnormal, with fewer bits, scaled", part(now.subnormal), VIRTUAL),
            ("become inf, scaled", part(now.inf), VIRTUAL),
            ("steps skipped", f"{len(self.skipped):,} of {STEPS:,}, {len(self.bad):,} of them bad batches", VIRTUAL),
            ("lowest and highest scale", f"{size(lowest)} and {size(highest)}", VIRTUAL),
            ("scale at the end", size(self.scale_in(STEPS + 1)), VIRTUAL),
        ]


def simulate(
    scale_power: int, step: int, largest_power: float, spread: float, bad_batches: int, growth_interval: int
) -> Run:
    """The run of a scaler that starts at two to the `scale_power`.

    The largest gradient is two to the `largest_power`, `spread` the standard deviation of all in powers of two;
    about `bad_batches` in 10,000 steps have an inf at any scale.
    """
    scaler = Scaler(2.0**scale_power, growth_interval)
    changes, skipped, bad = [(1, scaler.scale)], [], []
    for number, chance in enumerate(_chances(), 1):
        found_inf = overflows(scaler.scale, largest_power)
        if chance < bad_batches / 10_000:
            bad.append(number)
            found_inf = True
        if found_inf:
            skipped.append(number)
        scaler.update(found_inf)
        if scaler.scale != changes[-1][1]:
            changes.append((number + 1, scaler.scale))
    return Run(largest_power, spread, growth_interval, step, tuple(changes), tuple(skipped), tuple(bad))


def overflows(scale: float, largest_power: float) -> bool:
    """Whether fp16 makes inf of the largest gradient."""
    return bool(scale * 2.0**largest_power >= INF_FROM)


def part(share: float) -> str:
    """A share as a percentage, which says 100% only of all."""
    return "over 99%" if 0.995 <= share < 1 else percent(share)


RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def size(number: float) -> str:
    """`65,536`, or `2⁻²⁴` and `2⁴⁰` where that would be long; `number` is a power of two."""
    return f"{number:,.0f}" if 1 <= number < 10**8 else power_of_two(round(math.log2(number)))


def power_of_two(power: int) -> str:
    """`2⁻²⁴`."""
    return f"2{str(power).translate(RAISED)}"


@cache
def _chances() -> tuple[float, ...]:
    """A number from 0 to 1 for each step, the same on every machine."""
    numbers = random.Random(1)
    return tuple(numbers.random() for _ in range(STEPS))

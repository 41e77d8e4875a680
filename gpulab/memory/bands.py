"""Stacks the tensors of a `MemoryCurve` over one another: the earliest at the bottom; above one that is freed, all come
down. Numbers only, no drawing.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from virtualgpu.readings.curve import Allocation, MemoryCurve


@dataclass(frozen=True)
class Stretch:
    """The points `first` to `last` of a curve, and what is too small to be a band there: below so many bytes, or held
    for fewer points."""

    first: int
    last: int
    least_bytes: float = 0
    least_points: float = 0

    def start(self, allocation: Allocation) -> int:
        return max(allocation.born, self.first)

    def end(self, allocation: Allocation) -> int:
        return self.last if allocation.freed is None else min(allocation.freed, self.last)

    def holds(self, allocation: Allocation) -> bool:
        return allocation.born <= self.last and (allocation.freed is None or allocation.freed > self.first)


@dataclass
class Band:
    """A tensor, and how many bytes lie below it: `steps` are (point, bytes below from there on), until point `end`."""

    allocation: Allocation
    end: int
    steps: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Stack:
    """`bands` stand over `base`: the allocations without a band that are there in the whole stretch. `others` are those
    that come or go; they lie above the bands."""

    bands: list[Band]
    base: list[Allocation]
    others: list[Allocation]


def stack(curve: MemoryCurve, stretch: Stretch, most: int) -> Stack:
    """Return the `most` largest allocations in `stretch` as bands, and what is left."""
    present = [one for one in curve.allocations if stretch.holds(one)]

    def held(one: Allocation) -> int:
        return stretch.end(one) - stretch.start(one)

    wide = [one for one in present if one.nbytes >= stretch.least_bytes and held(one) >= stretch.least_points]
    chosen = heapq.nlargest(most, wide, key=lambda one: (one.nbytes, held(one)))
    known = set(map(id, chosen))
    left = [one for one in present if id(one) not in known]
    base = [one for one in left if one.born <= stretch.first and (one.freed is None or one.freed > stretch.last)]
    known |= set(map(id, base))
    others = [one for one in left if id(one) not in known]
    return Stack(_piled(chosen, stretch, sum(one.nbytes for one in base)), base, others)


def _piled(chosen: list[Allocation], stretch: Stretch, base: int) -> list[Band]:
    bands = [Band(one, stretch.end(one)) for one in sorted(chosen, key=lambda one: (stretch.start(one), one.born))]
    begins = [(stretch.start(band.allocation), 1, i) for i, band in enumerate(bands)]
    ends = [
        (band.end, 0, i)
        for i, band in enumerate(bands)
        if band.allocation.freed is not None and band.allocation.freed <= stretch.last
    ]
    pile: list[Band] = []
    top = base
    for point, begins_here, i in sorted(begins + ends):
        band = bands[i]
        if begins_here:
            band.steps.append((point, top))
            pile.append(band)
            top += band.allocation.nbytes
            continue
        place = next(place for place, one in enumerate(pile) if one is band)
        for above in pile[place + 1 :]:
            lower = above.steps[-1][1] - band.allocation.nbytes
            if above.steps[-1][0] == point:
                above.steps.pop()
            above.steps.append((point, lower))
        del pile[place]
        top -= band.allocation.nbytes
    return bands

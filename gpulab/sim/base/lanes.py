"""Drawing helpers for what happened when: time runs to the right, one lane under another.

Many bars become one piece of SVG, and bars too thin to see become one bar, so that a thousand kernels stay a small
picture. Nothing here knows what a lane is for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from virtualgpu.pictures.style import INK, MUTED, PAPER, RULE, VERMILLION
from virtualgpu.pictures.svg import SMALL, Live, edge, hatch, length, line, num, rect, text

from .scene import END, fitted, pointer, small
from .touch import Grip, draggable, grasp

Stretch = tuple[float, float]  # from when until when, in seconds


class Axis(NamedTuple):
    """Time on the page: `seconds` take the room from `left` to `right`."""

    left: float
    right: float
    seconds: float

    def x(self, seconds: float) -> float:
        return self.left + (self.right - self.left) * seconds / self.seconds

    def seen(self, seconds: float) -> float:
        """So many seconds in pixels."""
        return (self.right - self.left) * seconds / self.seconds

    def draw(self, top: float, bottom: float) -> list[str]:
        """Marks of time at round distances, and thin lines through the lanes from `top` to `bottom`."""
        apart = round_step(self.seconds / 7)
        unit, factor = ("s", 1.0) if apart >= 0.5 else ("ms", 1e3) if apart >= 0.5e-3 else ("µs", 1e6)
        body, edge = [], 0.0
        for mark in range(int(self.seconds / apart * 1.0001) + 1):
            x = self.x(mark * apart)
            words = f"{mark * apart * factor:g} {unit}" if mark else "0"
            if unit == "µs" and mark * apart > 0.9999e-3:
                words = f"{mark * apart * 1e3:g} ms"
            half = length(words, SMALL) / 2
            if x + half > self.right:
                break
            body.append(line(x, top, x, bottom, stroke=RULE))
            if x - half > edge:
                body.append(text(x, top - 5, words, size=SMALL, anchor="middle", fill=MUTED))
                edge = x + half + 8
        return body


def round_step(least: float) -> float:
    """The next of 1, 2, 5, 10, 20, … (times any power of ten) from `least` up."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * step for step in (1, 2, 5, 10) if power * step >= least * 0.9999)


def blocks(
    axis: Axis,
    stretches: Iterable[Stretch],
    top: float,
    high: float,
    *,
    fill: str,
    stroke: str = "",
    hatched: bool = False,
) -> str:
    """A bar for each stretch of time, all in one piece; none is narrower than half a pixel."""
    bars = [(axis.x(start), max(axis.seen(end - start), 0.5)) for start, end in joined(stretches, axis.seconds / 1200)]
    if not bars:
        return ""
    y, down = num(top), num(high)
    drawn = "".join(f"M{num(x)} {y}h{(wide := num(width))}v{down}h-{wide}z" for x, width in bars)
    extra = f' stroke="{stroke}" stroke-width="0.5"' if stroke else ""
    lines = "".join(hatch(x, top, width, high, stroke=edge(fill)) for x, width in bars) if hatched else ""
    return f'<path d="{drawn}" fill="{fill}"{extra}/>{lines}'


def joined(stretches: Iterable[Stretch], least: float) -> list[Stretch]:
    """The stretches in the order of their starts; what cannot be told apart is one: gaps below `least` are closed
    where one of the neighbours is shorter than three of it."""
    found: list[Stretch] = []
    for start, end in sorted(stretches):
        if found and start - found[-1][1] < least and min(end - start, found[-1][1] - found[-1][0]) < 3 * least:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def inside(axis: Axis, stretch: Stretch, words: Sequence[str], base: float) -> str:
    """The first of `words` that fits into a bar, in its middle, its base line at `base`; nothing if none does."""
    start, end = stretch
    return fitted(axis.x(start), axis.seen(end - start), base, *words, halo=True)


def veil(axis: Axis, seconds: float, top: float, bottom: float) -> str:
    """What comes after the moment, made paler; the words are to be drawn over it."""
    x = axis.x(seconds)
    if axis.right - x < 1:
        return ""
    return rect(x, top, axis.right - x, bottom - top, fill=PAPER, opacity=0.6)


def cursor(axis: Axis, seconds: float, top: float, bottom: float) -> str:
    """The moment: a line through the lanes with a triangle at its upper end."""
    x = axis.x(seconds)
    return line(x, top, x, bottom, stroke=INK, width=1.5) + pointer(x, top + 8, fill=VERMILLION)


def beside(x: float, base: float, *words: str) -> list[str]:
    """Words under one another to the right of an upright line at `x`, or to its left where the right has no room."""
    left = x + 8 + max(length(one, SMALL) for one in words) > END
    at, anchor = (x - 8, "end") if left else (x + 8, "start")
    return [small(at, base + 18 * row, one, anchor=anchor, halo=True) for row, one in enumerate(words)]


def playhead(axis: Axis, until: float, top: float, bottom: float, *, last: int, over: str = "") -> Live:
    """The lanes as the grip of the control `moment`, which goes from 0 to `last` while `until` seconds pass: where they
    are touched the moment is. `over` lies on them, such as names."""
    ground = grasp(axis.left - 8, top, axis.seen(until) + 16, bottom - top)
    return Live(draggable(ground + over, "Moment", Grip("moment", axis.left, axis.x(until), 0, last)))


def total(stretches: Iterable[Stretch]) -> float:
    """Seconds in which at least one of them goes on."""
    seconds, until = 0.0, -math.inf
    for start, end in sorted(stretches):
        seconds += max(0.0, end - max(start, until))
        until = max(until, end)
    return seconds

"""Blocks of a picture, which know their own size: scales, plots, bars with name and value, keys, chips, signs.

A picture says what it shows and where it begins; what lies beside what is worked out here. Nothing here knows a model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

from virtualgpu.pictures.style import INK, MUTED, ON, PAPER, RULE
from virtualgpu.pictures.svg import BODY, MARGIN, SMALL, Picture, bar, key, length, line, polyline, rect, shape, text

from .simulator import Result
from .touch import Grip

WIDTH, END = 860.0, 860.0 - MARGIN  # of every simulator's picture, and where its content ends
Box = tuple[float, float, float, float]  # x, y, width, height
Part = tuple[float, str, bool]  # of a bar: how wide, its fill, whether it is hatched

small = partial(text, size=SMALL)
note = partial(text, size=SMALL, fill=MUTED)  # what explains


def picture(result: Result, height: float, *parts: Iterable[str]) -> Picture:
    """The parts, one over another, with the result's finding as title."""
    return Picture(WIDTH, height, result.finding, result.describe(), tuple(piece for part in parts for piece in part))


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
        return self.beyond(min(max(value, low), high))

    def beyond(self, value: float) -> float:
        """Where `value` is, or would be if the scale went on."""
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

    def ticks(self, y: float, words: Mapping[float, str], *, top: float | None = None) -> list[str]:
        """A mark below `y`, or a line down to it from `top`, at each of these values along x, with its words below."""
        body = []
        for value, name in words.items():
            x = self.at(value)
            body.append(line(x, y, x, y + 5, stroke=MUTED) if top is None else line(x, top, x, y, stroke=RULE))
            body.append(note(x, y + 18, name, anchor="middle"))
        return body

    def grip(self, name: str) -> Grip:
        """A control whose values these are, dragged along x."""
        return Grip(name, self.start, self.end, self.low, self.high, log=self.log)


class Plot(NamedTuple):
    """A field with a scale to the right and one upwards, which starts at the lower edge."""

    x: Scale
    y: Scale

    def at(self, x: float, y: float) -> tuple[float, float]:
        return self.x.at(x), self.y.at(y)

    def box(self, beyond: float = 0.0) -> Box:
        """The field, and so many pixels beyond it on all sides."""
        left, right, low, top = self.x.start - beyond, self.x.end + beyond, self.y.start + beyond, self.y.end - beyond
        return left, top, right - left, low - top

    def frame(self) -> str:
        return rect(*self.box(), stroke=RULE)

    def floor(self) -> str:
        """The lower edge."""
        return line(self.x.start, self.y.start, self.x.end, self.y.start, stroke=MUTED)

    def levels(self, words: Mapping[float, str]) -> list[str]:
        """A line through the field at each of these values, with its words to the left."""
        body = []
        for value, name in words.items():
            y = self.y.at(value)
            body.append(line(self.x.start, y, self.x.end, y, stroke=RULE))
            body.append(note(self.x.start - 7, y + 5, name, anchor="end"))
        return body

    def curve(
        self, points: Iterable[tuple[float, float]], *, stroke: str = INK, width: float = 1, dash: str = ""
    ) -> str:
        """A line through these values of x and y."""
        return polyline([self.at(x, y) for x, y in points], stroke=stroke, width=width, dash=dash)


def named_bar(left: float, base: float, name: str, parts: Iterable[Part], value: str, *, high: float = 20) -> str:
    """A row on one base line: `name` at the left margin, from `left` a bar of `parts`, and its value behind it."""
    x, drawn = left, text(MARGIN, base, name)
    for wide, fill, hatched in parts:
        drawn += bar(x, base - 5 - high / 2, wide, high, fill=fill, hatched=hatched)
        x += wide
    return drawn + text(x + 10, base, value, weight="bold")


def keys(x: float, base: float, *entries: tuple[str, str] | tuple[str, str, bool], ends: bool = False) -> list[str]:
    """A legend from `x` on, or with `ends` up to there: for each entry words, fill, whether it is hatched. What has no
    room in its row begins another."""
    rooms = [length(words, SMALL) + 36 for words, *_ in entries]
    x -= sum(rooms) - 14 if ends else 0
    body, left = [], x
    for (words, fill, *hatched), room in zip(entries, rooms, strict=True):
        if x + room - 14 > END + 1:  # with `ends` the last one ends there, to a rounding error
            x, base = left, base + 20
        body.append(key(x, base, words, fill=fill, hatched=any(hatched)))
        x += room
    return body


class Chip(NamedTuple):
    """A button with words, and where the next one has room."""

    drawn: str
    next: float


def chip(
    x: float, base: float, words: str, *, fill: str = PAPER, stroke: str = INK, radius: float = 4, weight: str = ""
) -> Chip:
    """Words in a frame that fits them, its left edge at `x`."""
    wide = length(words, SMALL) + 16  # bold words have room too
    frame = rect(x, base - 15, wide, 21, fill=fill, stroke=stroke, radius=radius)
    ink = INK if fill in (PAPER, RULE) else ON
    return Chip(frame + small(x + wide / 2, base, words, anchor="middle", weight=weight, fill=ink), x + wide + 6)


def readouts(x: float, end: float, base: float, rows: Iterable[tuple[str, str, str]], *, apart: float) -> list[str]:
    """Names and their values with their weight, one under another."""
    body = []
    for row, (name, value, weight) in enumerate(rows):
        y = base + row * apart
        body += [text(x, y, name, weight=weight), text(end, y, value, anchor="end", weight=weight)]
    return body


def line_key(x: float, base: float, words: str, *, stroke: str = INK, width: float = 2, dash: str = "") -> str:
    """A legend's entry for a line."""
    return line(x, base - 4, x + 18, base - 4, stroke=stroke, width=width, dash=dash) + note(x + 24, base, words)


def fitted(x: float, room: float, base: float, *words: str, fill: str = INK, halo: bool = False) -> str:
    """The first of `words` that has room in small letters, in the middle of it; nothing if none has."""
    for word in words:
        if length(word, SMALL) + 6 <= room:
            return small(x + room / 2, base, word, anchor="middle", fill=fill, halo=halo)
    return ""


def beside_ends(x: float, lowest: float, ends: Mapping[str, float]) -> list[str]:
    """The name of each curve at the height where it ends, apart from one another and none below `lowest`."""
    order = sorted(ends, key=ends.__getitem__)
    places: list[float] = []
    for name in order:
        places.append(max(ends[name], places[-1] + 17) if places else ends[name])
    for index in range(len(places)):  # the last one has room, and so has each above it
        places[-1 - index] = min(places[-1 - index], lowest - 2 - 17 * index)
    return [small(x, y + 5, name) for name, y in zip(order, places, strict=True)]


def between(
    left: float, right: float, x: float, base: float, words: str, *, size: float = BODY, weight: str = ""
) -> str:
    """Words with their middle at `x`, or as near to it as they stay between `left` and `right`."""
    half = length(words, size, bold=bool(weight)) / 2
    return text(
        min(max(x, left + half), right - half), base, words, size=size, anchor="middle", weight=weight, halo=True
    )


def pointer(x: float, tip: float, *, fill: str = INK, half: float = 6, high: float = 10) -> str:
    """A triangle that points down to `tip`, with a negative `high` up to it."""
    return shape([(x - half, tip - high), (x + half, tip - high), (x, tip)], fill=fill)


def diamond(x: float, y: float, r: float = 8, *, fill: str = INK) -> str:
    return shape([(x - r, y), (x, y - r), (x + r, y), (x, y + r)], fill=fill)


def arrow(
    start: float, tip: float, y: float, *, stroke: str = INK, width: float = 2, head: float = 9, wing: float = 5
) -> str:
    """A level arrow; where its ends are too near for a head, only a line."""
    if abs(tip - start) <= head:
        return line(start, y, tip, y, stroke=stroke, width=width)
    back = tip - math.copysign(head, tip - start)
    shaft = line(start, y, back, y, stroke=stroke, width=width)
    return shaft + shape([(tip, y), (back, y - wing), (back, y + wing)], fill=stroke)

"""Draws a `MemoryCurve`, or a stretch of it: the tensors as bands under the curve, the phases by name, the peak.

A band is as high as its tensor is large, and a colour is a line of code. Tensors that would be less than half a pixel
high, or a pixel wide, are drawn together, so that the picture of a run of any length is of about the same size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from virtualgpu.pictures.style import BLUE, GREEN, INK, MUTED, ON, ORANGE, PAPER, PURPLE, RULE, SKY, VERMILLION, YELLOW
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, balance, dot, key, length, line, num, polyline, text
from virtualgpu.readings.curve import Allocation, MemoryCurve
from virtualgpu.units import MIB, count, mib

from .bands import Band, Stack, Stretch, stack

WIDTH, LEFT, RIGHT = 860.0, 76.0, 842.0
PLOT = 340.0  # pixels from zero to the top
BANDS = 512  # at most: the largest; fewer if they would take more than MOST
MOST = 60_000  # letters of SVG for the bands; the whole is then below 150 kB in a notebook
COLUMNS = int(RIGHT - LEFT)
FILLS = (SKY, ORANGE, GREEN, PURPLE, YELLOW, VERMILLION)
ROWS, ROW = 3, 18.0  # of names above the plot; names without room are in the description alone


@dataclass(frozen=True)
class _Scale:
    """Where a point and a number of bytes are in the picture."""

    first: int
    last: int
    most: float  # bytes at the top of the plot
    top: float

    @property
    def bottom(self) -> float:
        return self.top + PLOT

    def x(self, point: float) -> float:
        return LEFT + (point - self.first) / max(self.last - self.first, 1) * (RIGHT - LEFT)

    def y(self, nbytes: float) -> float:
        return self.bottom - PLOT * nbytes / self.most


def draw(curve: MemoryCurve, first: int = 0, last: int | None = None) -> Picture:
    """Draw the points `first` to `last` of `curve`; all of them by default, under its finding."""
    end = len(curve.allocated_bytes) - 1
    last = end if last is None else last
    whole = (first, last) == (0, end)
    high = max(range(first, last + 1), key=curve.allocated_bytes.__getitem__)
    peak = curve.allocated_bytes[high]
    names, rows = _names(curve, first, last)
    most = max(*curve.reserved_bytes[first : last + 1], peak, MIB / 64) * 1.1
    scale = _Scale(first, last, most, rows * ROW + 4)
    phase = curve.phase(high)
    words = f"{'peak' if whole else 'highest here'}: {mib(peak)}{f' in “{phase}”' if phase else ''}"
    title = curve.finding() if whole else f"Events {first:,} to {last:,} of {end:,}: at most {mib(peak)} allocated"
    body = [
        *_axes(curve, scale),
        *_tensors(curve, scale),
        *_lines(curve, scale),
        *(line(x, scale.top, x, scale.bottom, stroke=MUTED, dash="4 3") for x in _apart(curve, scale)),
        *names,
        dot(scale.x(high), scale.y(peak), 4, fill=INK),
        _near(scale.x(high), scale.y(peak) - 9, words),
        *_keys(curve, scale.bottom + 42),
    ]
    lines = len(balance(title, WIDTH - 2 * MARGIN, 18, bold=True))
    return Picture(WIDTH, scale.bottom + 46, title, curve.describe(), tuple(body), head_lines=lines)


def _axes(curve: MemoryCurve, scale: _Scale) -> Iterator[str]:
    step = 10 ** math.floor(math.log10(scale.most / MIB))
    step = next(step * part for part in (0.2, 0.5, 1, 2) if scale.most / MIB / (step * part) <= 6)
    for i in range(int(scale.most / MIB / step) + 1):
        y = scale.y(i * step * MIB)
        yield line(LEFT, y, RIGHT, y, stroke=RULE)
        yield text(LEFT - 8, y + 4, f"{round(i * step, 6):,g}", size=SMALL, anchor="end", fill=MUTED)
    what = "allocations, frees and changes of the reserve, in order" if curve.every_event else "marks"
    y = scale.bottom + 18
    yield text(LEFT, y, f"{scale.first:,}", size=SMALL, fill=MUTED)
    yield text((LEFT + RIGHT) / 2, y, what, size=SMALL, anchor="middle", fill=MUTED)
    yield text(RIGHT, y, f"{scale.last:,}", size=SMALL, anchor="end", fill=MUTED)


def _keys(curve: MemoryCurve, y: float) -> Iterator[str]:
    yield text(MARGIN, y, f"MiB on {curve.device}, {curve.numbers}", size=SMALL, fill=MUTED)
    x = 270.0
    if curve.allocations:
        yield text(x, y, "a band: a tensor", size=SMALL, fill=MUTED)
        yield key(x + 140, y, "the small ones together", fill=RULE)
        x += 350
    yield line(x, y - 5, x + 16, y - 5, stroke=BLUE, width=2) + text(x + 22, y, "reserved", size=SMALL, fill=MUTED)


def _tensors(curve: MemoryCurve, scale: _Scale) -> Iterator[str]:
    if not curve.allocations:
        return
    pixel = (scale.last - scale.first) / (RIGHT - LEFT)
    stretch = Stretch(scale.first, scale.last, 0.5 * scale.most / PLOT, pixel)
    most = BANDS
    while True:
        piled = stack(curve, stretch, most)
        bands = _bands(curve, scale, piled.bands)
        letters = sum(map(len, bands))
        if letters <= MOST:
            break
        most = int(len(bands) * min(0.9, MOST / letters))
    yield from _together(curve, scale, piled)
    yield from bands
    marks = _apart(curve, scale)
    labels = (_label(band, scale, marks) for band in piled.bands)
    yield f'<g pointer-events="none">{"".join(labels)}</g>'  # over a label, its band is what is pointed at


def _bands(curve: MemoryCurve, scale: _Scale, bands: list[Band]) -> list[str]:
    """One piece for each band. Those of a line of code, or of a phase where the line is not known, have one colour."""
    colours: dict[str | None, str] = {}
    pieces = []
    for band in bands:
        one = band.allocation
        fill = colours.setdefault(one.line or curve.phase(one.born), FILLS[len(colours) % len(FILLS)])
        edge = f' stroke="{PAPER}" stroke-width=".5"' if PLOT * one.nbytes / scale.most >= 3 else ""
        pieces.append(_named(_said(curve, one), f'<path d="{_outline(band, scale)}" fill="{fill}"{edge}/>'))
    return pieces


def _together(curve: MemoryCurve, scale: _Scale, piled: Stack) -> Iterator[str]:
    """The allocations without a band: those that are there throughout at the bottom, the others up to the curve."""
    corners = _steps(curve.allocated_bytes, scale)
    path = f"M{num(LEFT)} {num(scale.bottom)}" + "".join(f"V{num(y)}H{num(x)}" for x, y in corners[1::2])
    area = f'<path d="{path}V{num(scale.bottom)}z" fill="{RULE}"/>'
    most = max((one.nbytes for one in piled.others), default=0)
    words = f"{count(len(piled.others), 'tensor')} too small or too short for a band, of {mib(most)} at most"
    yield _named(words, area)
    if piled.base:
        size = sum(one.nbytes for one in piled.base)
        path = f"M{num(LEFT)} {num(scale.bottom)}V{num(scale.y(size))}H{num(RIGHT)}V{num(scale.bottom)}z"
        words = f"{count(len(piled.base), 'small tensor')} there throughout: {mib(size)} together"
        yield _named(words, f'<path d="{path}" fill="{RULE}" stroke="{PAPER}"/>')


def _said(curve: MemoryCurve, one: Allocation) -> str:
    """What a band's tensor is: its size, its phases, its line."""
    born = "from the start" if one.born == 0 else "allocated" + _within(curve.phase(one.born))
    freed = "there at the end" if one.freed is None else "freed" + _within(curve.phase(one.freed))
    return "\n".join(filter(None, (f"{mib(one.nbytes)}: {born}, {freed}", one.line)))


def _within(phase: str | None) -> str:
    return f" in “{phase}”" if phase else " before the first mark"


def _outline(band: Band, scale: _Scale) -> str:
    """The path around a band, of whole pixels across: its lower edge to the right, its upper edge back."""
    last = {round(scale.x(point)): below for point, below in band.steps}  # of steps in one column the last
    steps, size = list(last.items()), band.allocation.nbytes
    ends = [*(x for x, _ in steps[1:]), round(scale.x(band.end))]
    there = "".join(f"V{num(scale.y(below))}H{x}" for (_, below), x in zip(steps, ends, strict=True))
    back = "".join(f"V{num(scale.y(below + size))}H{x}" for x, below in reversed(steps))
    return f"M{steps[0][0]} {num(scale.y(steps[0][1]))}{there}{back}z"


def _label(band: Band, scale: _Scale, marks: Sequence[float]) -> str:
    """The size and the line in the widest piece of a band, as far as there is room between `marks`; else nothing."""
    one = band.allocation
    if PLOT * one.nbytes / scale.most < SMALL + 2:
        return ""
    ends = [*(point for point, _ in band.steps[1:]), band.end]
    pieces = [(end - start, start, below) for (start, below), end in zip(band.steps, ends, strict=True)]
    wide, start, below = max(pieces)
    left, right = scale.x(start), scale.x(start + wide)
    edges = [left, *(x for x in marks if left < x < right), right]
    room, left = max((after - before - 12, before + 6) for before, after in itertools.pairwise(edges))
    code = one.line.partition("\n")[0].partition(": ")[2]
    for words in (f"{mib(one.nbytes)}  {code}", mib(one.nbytes)):
        if length(words, SMALL) <= room:
            return text(left, scale.y(below + one.nbytes / 2) + 4.5, words, size=SMALL, fill=ON)
    return ""


def _lines(curve: MemoryCurve, scale: _Scale) -> Iterator[str]:
    """Allocated and reserved memory; without every event, with a dot at each mark."""
    yield polyline(_steps(curve.reserved_bytes, scale), stroke=BLUE, width=2)
    yield polyline(_steps(curve.allocated_bytes, scale), stroke=INK)
    if not curve.every_event:
        for point in range(scale.first, scale.last + 1):
            yield dot(scale.x(point), scale.y(curve.reserved_bytes[point]), 4, fill=BLUE)
            yield dot(scale.x(point), scale.y(curve.allocated_bytes[point]), 4, fill=INK)


def _steps(values: Sequence[int], scale: _Scale) -> list[tuple[float, float]]:
    """The corners of a curve of steps; of several points in one column of pixels, the highest."""
    each = max(1, -(-(scale.last - scale.first + 1) // COLUMNS))
    corners: list[tuple[float, float]] = []
    for point in range(scale.first, scale.last + 1, each):
        after = min(point + each, scale.last + 1)
        x, y = scale.x(point), scale.y(max(values[point:after]))
        if corners and corners[-1][1] == y:
            corners.pop()
        else:
            corners.append((x, y))
        corners.append((scale.x(min(after, scale.last)), y))
    return corners


def _names(curve: MemoryCurve, first: int, last: int) -> tuple[list[str], int]:
    """The names of the phases above the plot, each in the first row with room, and the number of rows."""
    scale = _Scale(first, last, 1, 0)
    begun = curve.phase(first) if all(mark.point != first for mark in curve.marks) else None
    named = [(f"… {begun}", first)] if begun else []
    named += [(mark.name, mark.point) for mark in curve.marks if first <= mark.point <= last]
    ends = [0.0] * ROWS
    placed = []
    for name, point in named:
        wide = length(name, SMALL)
        x = max(MARGIN, min(scale.x(point) - 2, RIGHT - wide))
        row = next((row for row, end in enumerate(ends) if x >= end), None)
        if row is not None and x + wide <= RIGHT:
            ends[row] = x + wide + 8
            placed.append((x, row, name))
    rows = max((row for _, row, _ in placed), default=-1) + 1
    return [text(x, (rows - row) * ROW - 4, name, size=SMALL, fill=MUTED) for x, row, name in placed], rows


def _apart(curve: MemoryCurve, scale: _Scale) -> list[float]:
    """Where the marks are, without those that are within three pixels of the one before."""
    places: list[float] = []
    for x in (scale.x(mark.point) for mark in curve.marks if scale.first <= mark.point <= scale.last):
        if not places or x - places[-1] >= 3:
            places.append(x)
    return places


def _near(x: float, y: float, words: str) -> str:
    """Words over a point, within the picture."""
    half = length(words, SMALL, bold=True) / 2
    return text(max(LEFT + half, min(x, RIGHT - half)), y, words, size=SMALL, anchor="middle", weight="bold", halo=True)


def _named(words: str, piece: str) -> str:
    return f"<g><title>{escape(words)}</title>{piece}</g>"

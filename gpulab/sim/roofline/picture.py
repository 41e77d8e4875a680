"""The roofs, the operations under them and their times: draws a result of `model`."""

from __future__ import annotations

import math

from virtualgpu.pictures.style import GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, RULE, SKY
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, bar, dot, length, line, polyline, rect, shape, text, wrap

from ..base.scene import END, Box, Plot, Scale, note, picture, pointer, small
from ..base.touch import clickable, grasp, named, on_track
from ..base.words import duration, many, percent
from .model import DTYPES, Operation, Roofs, digits, rate

LEFT, RIGHT, TOP, BOTTOM = 78.0, 556.0, 26.0, 398.0  # of the plot
PANEL = 588.0
INTENSITIES = Scale(LEFT, RIGHT, 0.1, 20_000.0, log=True)  # operations per byte
SIZE = {"attention": "token", "conv": "pixel"}  # what the rows are


def draw(result: Roofs) -> Picture:
    """The roofs and the operations below them on the left, the operations' times on the right."""
    plot = Plot(INTENSITIES, _rates(result))
    return picture(result, 446.0, _axes(plot), _roofs(result, plot), _points(result, plot), _panel(result))


def _rates(result: Roofs) -> Scale:
    """Operations per second: from far below the slope's lower end to above the GPU's highest roof, in any dtype."""
    low = INTENSITIES.low * result.rates.memory_rate / 10
    return Scale(BOTTOM, TOP, low, 6e12 * max(result.spec.tflops[dtype] or 0 for dtype in DTYPES), log=True)


def _axes(plot: Plot) -> list[str]:
    words = "intensity: operations for each byte read or written"
    return [
        plot.frame(),
        *plot.x.ticks(BOTTOM, {value: f"{value:,g}" for value in plot.x.decades()}, top=TOP),
        *plot.levels({value: f"{value / 1e12:,g}" for value in plot.y.decades()}),
        note(MARGIN, TOP - 12, "TFLOP/s (data sheet: recorded, reached: virtual)"),
        note((LEFT + RIGHT) / 2, BOTTOM + 36, words, anchor="middle"),
    ]


def _roofs(result: Roofs, plot: Plot) -> list[str]:
    body, ridge, (_, top, _, high) = [], INTENSITIES.at(result.balance), plot.box()
    for left, right, words, fill in ((LEFT, ridge, "memory-bound", PURPLE), (ridge, RIGHT, "compute-bound", GREEN)):
        body.append(rect(left, top, right - left, high, fill=fill, opacity=0.15))
        body.append(text((left + right) / 2, BOTTOM - 12, words, anchor="middle", weight="bold", halo=True))
    sheet, reached = result.spec.bandwidth_gbps, result.rates.memory_gbps
    for peak, gbps, stroke, width, dash in (
        (result.peak, sheet, MUTED, 2.0, "6 4"),
        (result.reached, reached, INK, 3.0, ""),
    ):
        turns = (INTENSITIES.low, peak / gbps / 1e9, INTENSITIES.high)
        points = [(x, min(peak, x * gbps * 1e9)) for x in turns]
        body.append(plot.curve(points, stroke=stroke, width=width, dash=dash))
    (x, y, wide, _), (left, top, *_) = _named(result, plot)
    words = f"data sheet {digits(result.peak / 1e12)}, reached {rate(result.reached)}"
    body += [small(x + wide, y + 12, "arithmetic’s limit:", anchor="end"), small(x + wide, y + 29, words, anchor="end")]
    lines = ("memory’s limit:", f"data sheet {sheet:,.0f},", f"reached {reached:,.0f} GB/s")
    return body + [small(left, top + 12 + 17 * row, words) for row, words in enumerate(lines)]


def _named(result: Roofs, plot: Plot) -> tuple[Box, Box]:
    """Where the flat roofs and the slopes have their names."""
    high, slope = plot.y.at(max(result.peak, result.reached)), plot.y.at(4e9 * result.spec.bandwidth_gbps)
    return (RIGHT - 256, high - 37, 250, 31), (LEFT + 8, slope - 58, 136, 48)


def _points(result: Roofs, plot: Plot) -> list[str]:
    """A sign for each operation; the chosen one lies on its track, over all numbers of rows, and is dragged along."""
    chosen, size = result.operation, SIZE.get(result.selected, "row")
    track = [(*plot.at(op.intensity, op.rate), rows) for rows, op in result.by_rows.items()]
    body = [polyline([(x, y) for x, y, _ in track], stroke=ORANGE, width=3)]
    x, y = plot.at(chosen.intensity, chosen.rate)
    grip = grasp(x - 14, y - 14, 28, 28) + _point(chosen, plot, chosen=True)
    hints, signs = [], []
    for (at, low, rows), right, down in ((track[0], -8, 6), (track[-1], 0, 24)):
        if math.dist((at, low), (x, y)) > 30:
            hints.append((at + right, low + down, many(rows, size)))
    for op in result.operations.values():
        (at, low), roof = plot.at(op.intensity, op.rate), min(result.reached, op.intensity * result.rates.memory_rate)
        if op.bound == "arithmetic" and op.rate < 0.7 * roof:
            body.append(line(at, plot.y.at(roof), at, low, stroke=MUTED))
            hints.append((at - 14, low + 5, f"{percent(op.rate / roof)} of roof"))
        if op.bound == "least time":
            hints.insert(0, (at + 14 + length("launch-bound", SMALL), low + 5, "launch-bound"))
        signs.append((at - 8, low - 8, 16, 16))
        if op is not chosen:
            sign = named(_point(op, plot), f"{op.words}: {rate(op.rate)}, {op.verdict}")
            if math.dist((at, low), (x, y)) < 14:  # it would be hidden
                grip += sign
            else:
                body.append(sign)
    words, area = _label(result, plot.y, many(result.size, size))
    label = f"{size.capitalize()}s of the {chosen.words}: drag it along its line"
    taken = [area, (0, 0, LEFT, BOTTOM), (0, BOTTOM - 28, RIGHT, 60), *signs, *_named(result, plot)]
    return [*body, *_hints(hints, taken), *words, on_track(grip, label, "rows", track)]


def _hints(hints: list[tuple[float, float, str]], taken: list[Box]) -> list[str]:
    """Those of the words that have room to the left of their place, beside what is `taken` and one another."""
    body = []
    for right, base, words in hints:
        wide = length(words, SMALL)
        if all(right < x or x + w < right - wide or base < y or y + h < base - 11 for x, y, w, h in taken):
            body.append(small(right, base, words, anchor="end", halo=True))
            taken.append((right - wide, base - 16, wide, 20))
    return body


def _point(op: Operation, plot: Plot, *, chosen: bool = False) -> str:
    """Its sign; on the plot's lower edge, with an arrow down, if its rate lies below."""
    x, y = plot.at(op.intensity, op.rate)
    if op.rate >= plot.y.low:
        return _marker(op.name, x, y, chosen=chosen)
    return pointer(x, y, high=8) + _marker(op.name, x, y - 18, chosen=chosen)


def _label(result: Roofs, rates: Scale, size: str) -> tuple[list[str], Box]:
    """The chosen operation's rate, and where: beside its sign, or below the flat roof with a line up to it."""
    op, x, y = result.operation, INTENSITIES.at(result.operation.intensity), rates.at(result.operation.rate)
    words = f"{op.words}, {size}:", rate(op.rate) + (" (below)" if op.rate < rates.low else "")
    wide = max(length(one, bold=True) for one in words)
    near = x + 24 + wide < RIGHT
    at, anchor, left = (x + 18, "start", x + 18) if near else (RIGHT - 6, "end", RIGHT - 6 - wide)
    base = min(y + (20 if near else 58), BOTTOM - 50)
    body = [] if near else [line(x, y, x, base - 13, stroke=MUTED)]
    body += [text(at, base + 18 * row, one, anchor=anchor, weight="bold", halo=True) for row, one in enumerate(words)]
    return body, (left, base - 12, wide, 32)


def _marker(name: str, x: float, y: float, *, chosen: bool) -> str:
    """A sign of its own for each operation: square, triangle, circle, diamond, cross bar."""
    fill, size = (ORANGE, 8.0) if chosen else (SKY, 6.0)
    if name == "gelu":
        return dot(x, y, size + 1, fill=fill, stroke=INK)
    outline = shape(_corners(name, x, y, size + 1.5), fill=INK)
    return outline + shape(_corners(name, x, y, size), fill=fill)


def _corners(name: str, x: float, y: float, r: float) -> list[tuple[float, float]]:
    turns = {
        "matmul": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        "layer_norm": ((0, -1.3), (1.25, 0.95), (-1.25, 0.95)),
        "attention": ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
        "conv": ((-1.25, -0.95), (1.25, -0.95), (0, 1.3)),
    }
    return [(x + r * dx, y + r * dy) for dx, dy in turns[name]]


def _panel(result: Roofs) -> list[str]:
    body = [note(PANEL, 14, "the operations at these sizes (virtual)")]
    for place, op in enumerate(result.operations.values()):
        top = 26 + place * 42
        chosen = op is result.operation
        outline = INK if chosen else PAPER
        row = (
            rect(PANEL - 6, top, END - PANEL + 12, 40, fill=PAPER, stroke=outline, radius=4),
            _marker(op.name, PANEL + 10, top + 20, chosen=chosen),
            text(PANEL + 28, top + 16, op.words, weight="bold" if chosen else ""),
            text(END, top + 16, duration(op.seconds), anchor="end", weight="bold"),
            note(PANEL + 28, top + 34, op.verdict),
        )
        body.append(clickable("".join(row), f"{op.words}: {op.verdict}", op=op.name))
    return body + _times(result, 256)


def _times(result: Roofs, top: float) -> list[str]:
    """How long the parts of the chosen operation take, its shape, and how its tiles fill the SMs."""
    op = result.operation
    body = [note(PANEL, top, f"{op.words}: what takes how long")]
    parts = (("arithmetic", op.arithmetic, GREEN), ("memory", op.memory, PURPLE), ("launch", op.least, RULE))
    most, y = max(seconds for _, seconds, _ in parts), top + 26
    for words, seconds, fill in parts:
        wide = 98 * seconds / most  # what only moves memory has no arithmetic that the clock counts
        body.append(small(PANEL, y, words))
        body.append(bar(PANEL + 84, y - 13, wide, 16, fill=fill))
        body.append(small(PANEL + 90 + wide, y, duration(seconds) if seconds else "too little to count"))
        y += 24
    told = [
        *wrap(op.shape, END - PANEL, SMALL),
        *(line for part in result.tiles.split(": ") for line in wrap(part, END - PANEL, SMALL)),
    ]
    if op.name == "matmul" and op.tiling and result.size < op.tiling.height:
        told.insert(1, f"{many(result.size, 'row')} padded to tiles of {op.tiling.height}")
    if op.kernels > 1:
        told.append(f"{op.kernels} kernels, as none is fused")
    return [*body, *(small(PANEL, y + 8 + place * 18, words) for place, words in enumerate(told))]

"""The roofs, the operations under them and their times: draws a result of `model`."""

from __future__ import annotations

import math

from virtualgpu.pictures.style import GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, RULE
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, bar, dot, length, line, polyline, rect, shape, text, wrap

from ..base.scene import END, Box, Plot, Scale, between, note, picture, pointer, small
from ..base.touch import clickable, grasp, named, on_track
from ..base.words import duration, many, percent
from .model import DTYPES, Operation, Roofs, digits, rate

LEFT, RIGHT, TOP, BOTTOM = 78.0, 570.0, 26.0, 398.0  # of the plot
PANEL, ABOVE = 588.0, 356.0  # from where the chosen operation's label may stand above the flat roof
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
    return [
        plot.frame(),
        *plot.x.ticks(BOTTOM, {value: f"{value:,g}" for value in plot.x.decades()}, top=TOP),
        *plot.levels({value: f"{value / 1e12:,g}" for value in plot.y.decades()}),
        note(MARGIN, TOP - 12, "TFLOP/s (data sheet: recorded, reached: virtual)"),
        note((LEFT + RIGHT) / 2, BOTTOM + 36, "intensity: operations for each byte read or written", anchor="middle"),
    ]


def _roofs(result: Roofs, plot: Plot) -> list[str]:
    body, ridge, (_, top, _, high) = [], INTENSITIES.at(result.balance), plot.box()
    for left, right, words, fill in ((LEFT, ridge, "memory-bound", PURPLE), (ridge, RIGHT, "compute-bound", GREEN)):
        body.append(rect(left, top, right - left, high, fill=fill, opacity=0.15))
        body.append(text((left + right) / 2, BOTTOM - 12, words, anchor="middle", weight="bold", halo=True))
    sheet, reached = result.spec.bandwidth_gbps, result.rates.memory_gbps
    roofs = (result.peak, sheet, MUTED, 2.0, "6 4"), (result.reached, reached, INK, 3.0, "")
    for peak, gbps, stroke, width, dash in roofs:
        points = [(x, min(peak, x * gbps * 1e9)) for x in (INTENSITIES.low, peak / gbps / 1e9, INTENSITIES.high)]
        body.append(plot.curve(points, stroke=stroke, width=width, dash=dash))
    return [*body, *(small(x, y, words, anchor=anchor, halo=True) for words, x, y, anchor in _named(result, plot))]


def _named(result: Roofs, plot: Plot) -> list[tuple[str, float, float, str]]:
    """The name of each limit beside its line: words, x, base, anchor."""
    sheet, reached = result.spec.bandwidth_gbps, result.rates.memory_gbps
    lower = 0.3 if 2.5 < result.operation.intensity < 60 else 5.0  # not where the chosen operation has its label
    left, top = plot.at(5, 5e9 * sheet)
    right, base = plot.at(lower, lower * 1e9 * reached)
    ridge, roof = plot.at(result.sheet_balance, max(result.peak, result.reached))
    rates = f"data sheet {digits(result.peak / 1e12)}, reached {digits(result.reached / 1e12)} TFLOP/s"
    end = max(LEFT + 6 + length(rates, SMALL), min(ridge - 16, ABOVE - 6))
    return [
        (f"data sheet {sheet:,.0f} GB/s", left - 6, top - 6, "end"),
        (f"reached {reached:,.0f} GB/s", right + 8, base + 16, "start"),
        (rates, end, roof + (4 if end < ridge - 8 else -9), "end"),
    ]


def _points(result: Roofs, plot: Plot) -> list[str]:
    """A sign for each operation; the chosen one lies on its track, over all numbers of rows, and is dragged along."""
    chosen, size = result.operation, SIZE.get(result.selected, "row")
    track = [(*plot.at(op.intensity, op.rate), rows) for rows, op in result.by_rows.items()]
    body = [polyline([(x, y) for x, y, _ in track], stroke=ORANGE, width=3)]
    x, y = plot.at(chosen.intensity, chosen.rate)
    hidden: list[str] = []
    hints, signs, late = [], [], []
    for (at, low, rows), word in ((track[0], f"{chosen.words}, "), (track[-1], "")):
        words = word + many(rows, size)
        body.append(dot(at, low, 4, fill=ORANGE))
        if math.dist((at, low), (x, y)) > 30:
            hints.append((at + (12 + length(words, SMALL)) * bool(word), low + (24 if low < BOTTOM - 70 else 5), words))
    for op in result.operations.values():
        (at, low), roof = plot.at(op.intensity, op.rate), min(result.reached, op.intensity * result.rates.memory_rate)
        if op is chosen and op.bound == "arithmetic" and op.rate < 0.7 * roof:
            body.append(line(at, plot.y.at(roof), at, low, stroke=MUTED))
            beside = at + 10 + length(words := f"{percent(op.rate / roof)} of roof", SMALL)
            hints.insert(0, (beside if beside < RIGHT - 12 else at - 14, low + 22, words))  # below its track
        late += [(at, low)] if op.bound == "least time" else []
        signs.append((at - 8, low - 8, 16, 16))
        if op is not chosen:
            near = math.dist((at, low), (x, y)) < 14  # it would be hidden: larger, it is seen around the chosen one
            sign = named(_point(op, plot, size=12 if near else 5), f"{op.words}: {rate(op.rate)}, {op.verdict}")
            (hidden if near else body).append(sign)
    if late:
        words, top = "hollow: launch takes longer", min(low for _, low in late) - 14
        hints.insert(0, (min(late)[0] - 8 + length(words, SMALL), top, words))
    beside_it, area = _label(result, plot.y, many(result.size, size))
    taken = [area, (0, 0, LEFT, BOTTOM), (0, BOTTOM - 28, RIGHT, 60), *signs]
    for name, at, base, anchor in _named(result, plot):
        taken.append((at - (wide := length(name, SMALL)) * (anchor == "end"), base - 14, wide, 17))
    label = f"{size.capitalize()}s of the {chosen.words}: drag it along its line"
    grip = grasp(x - 14, y - 14, 28, 28) + "".join(hidden) + _point(chosen, plot, size=8, chosen=True)
    return [*body, *_hints(hints, taken), *beside_it, on_track(grip, label, "rows", track)]


def _hints(hints: list[tuple[float, float, str]], taken: list[Box]) -> list[str]:
    """Those of the words that have room to the left of their place, beside what is `taken` and one another."""
    body = []
    for right, base, words in hints:
        wide = length(words, SMALL)
        if all(right < x or x + w < right - wide or base < y or y + h < base - 11 for x, y, w, h in taken):
            body.append(small(right, base, words, anchor="end", halo=True))
            taken.append((right - wide, base - 16, wide, 20))
    return body


def _point(op: Operation, plot: Plot, *, size: float, chosen: bool = False) -> str:
    """Its sign; on the plot's lower edge, with an arrow down, if its rate lies below."""
    x, y = plot.at(op.intensity, op.rate)
    if op.rate >= plot.y.low:
        return _marker(op, x, y, size, chosen)
    return pointer(x, y, high=8) + _marker(op, x, y - 18, size, chosen)


def _label(result: Roofs, rates: Scale, size: str) -> tuple[list[str], Box]:
    """The chosen operation's rate, and where: beside its sign, or short above the flat roof."""
    op, x, y = result.operation, INTENSITIES.at(result.operation.intensity), rates.at(result.operation.rate)
    words = f"{op.words}, {size}:", rate(op.rate) + (" (below)" if op.rate < rates.low else "")
    if rates.at(result.reached) < y - 36 and x + 24 + length(words[0], bold=True) >= RIGHT:
        words = f"{size}:", words[1]
    wide, base = max(length(one, bold=True) for one in words), min(y + 20, BOTTOM - 50)
    if x + 24 + wide < RIGHT:
        body = [text(x + 18, base + 18 * row, one, weight="bold", halo=True) for row, one in enumerate(words)]
        return body, (x + 18, base - 12, wide, 32)
    base, short = rates.at(max(result.peak, result.reached)) - 12, f"{size}: {words[1]}"
    return [between(ABOVE, RIGHT - 6, x, base, short, weight="bold")], (x, base, 0, 0)


def _marker(op: Operation, x: float, y: float, size: float, chosen: bool) -> str:
    """A sign of its own for each operation: square, triangle, circle, diamond, cross bar."""
    fill, edge = ORANGE if chosen else PAPER if op.bound == "least time" else RULE, INK if chosen else MUTED
    if op.name == "gelu":
        return dot(x, y, size + 1, fill=fill, stroke=edge)
    outline = shape(_corners(op.name, x, y, size + 1.5), fill=edge)
    return outline + shape(_corners(op.name, x, y, size), fill=fill)


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
        row = (
            rect(PANEL - 6, top, END - PANEL + 12, 40, fill=PAPER, stroke=INK if chosen else PAPER, radius=4),
            _marker(op, PANEL + 10, top + 20, 8 if chosen else 6, chosen),
            text(PANEL + 28, top + 16, op.words, weight="bold" if chosen else ""),
            text(END, top + 16, duration(op.seconds), anchor="end", weight="bold"),
            note(PANEL + 28, top + 34, op.verdict),
        )
        body.append(clickable("".join(row), f"{op.words}: {op.verdict}", op=op.name))
    return body + _times(result, 256)


def _times(result: Roofs, top: float) -> list[str]:
    """How long the parts of the chosen operation take, its shape, and how its tiles fill the SMs."""
    op, body = result.operation, [note(PANEL, top, "the longer of two, and the launch")]
    parts = (("arithmetic", op.arithmetic, GREEN), ("memory", op.memory, PURPLE), ("launch", op.least, RULE))
    for y, (words, seconds, fill) in zip((top + 26, top + 50, top + 74), parts, strict=True):
        wide = 98 * seconds / max(op.arithmetic, op.memory, op.least)  # what only moves memory has no arithmetic
        body.append(small(PANEL, y, words))
        body.append(bar(PANEL + 84, y - 13, wide, 16, fill=fill))
        body.append(small(PANEL + 90 + wide, y, duration(seconds) if seconds else "too little to count"))
    told = [row for words in (op.shape, *result.tiles.split(": ")) for row in wrap(words, END - PANEL, SMALL)]
    return [*body, *(small(PANEL, top + 106 + place * 18, words) for place, words in enumerate(told))]

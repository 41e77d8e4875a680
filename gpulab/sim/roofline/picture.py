"""The roofs, the operations under them and their times: draws a result of `model`."""

from __future__ import annotations

from virtualgpu.pictures.style import GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, RULE, SKY
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, bar, dot, length, line, polyline, rect, shape, text, wrap

from ..base.scene import END, Plot, Scale, line_key, note, picture, pointer, small
from ..base.touch import clickable, grasp, named, on_track
from ..base.words import duration, many
from .model import DTYPES, Operation, Roofs, rate

LEFT, RIGHT, TOP, BOTTOM = 78.0, 556.0, 58.0, 398.0  # of the plot
PANEL = 588.0
INTENSITIES = Scale(LEFT, RIGHT, 0.1, 20_000.0, log=True)  # operations per byte
SIZE = {"attention": "token", "conv": "pixel"}  # what the rows are


def draw(result: Roofs) -> Picture:
    """The roofs and the operations below them on the left, the operations' times on the right."""
    plot = Plot(INTENSITIES, _rates(result))
    return picture(
        result, 446.0, _legend(result), _axes(plot), _roofs(result, plot), _points(result, plot), _panel(result)
    )


def _rates(result: Roofs) -> Scale:
    """Operations per second: from far below the slope's lower end to above the GPU's highest roof, in any dtype."""
    low = INTENSITIES.low * result.rates.memory_rate / 10
    return Scale(BOTTOM, TOP, low, 4e12 * max(result.spec.tflops[dtype] or 0 for dtype in DTYPES), log=True)


def _legend(result: Roofs) -> list[str]:
    spec, reached, kind = result.spec, result.rates, DTYPES[result.peak_dtype]
    sheet = f"data sheet: {rate(result.peak)} in {kind}, {spec.bandwidth_gbps:,.0f} GB/s (recorded)"
    found = f"reached: {rate(result.reached)}, {reached.memory_gbps:,.0f} GB/s (virtual)"
    track = f"{result.operation.words}, 1 to {max(result.by_rows):,} {SIZE.get(result.selected, 'row')}s"
    return [
        line(MARGIN, 9, MARGIN + 30, 9, stroke=MUTED, width=2, dash="6 4"),
        small(MARGIN + 38, 14, sheet),
        line(MARGIN, 29, MARGIN + 30, 29, stroke=INK, width=3),
        small(MARGIN + 38, 34, found),
        line_key(RIGHT - 24 - length(track, SMALL), 52, track, stroke=ORANGE, width=3),
    ]


def _axes(plot: Plot) -> list[str]:
    words = "intensity: operations for each byte read or written"
    return [
        plot.frame(),
        *plot.x.ticks(BOTTOM, {value: f"{value:,g}" for value in plot.x.decades()}, top=TOP),
        *plot.levels({value: f"{value / 1e12:,g}" for value in plot.y.decades()}),
        note(MARGIN, TOP - 6, "TFLOP/s"),
        note((LEFT + RIGHT) / 2, BOTTOM + 36, words, anchor="middle"),
    ]


def _roofs(result: Roofs, plot: Plot) -> list[str]:
    body, ridge, (_, top, _, high) = [], INTENSITIES.at(result.balance), plot.box()
    for left, right, words, fill in ((LEFT, ridge, "memory-bound", PURPLE), (ridge, RIGHT, "compute-bound", GREEN)):
        body.append(rect(left, top, right - left, high, fill=fill, opacity=0.15))
        body.append(text((left + right) / 2, BOTTOM - 12, words, anchor="middle", weight="bold", halo=True))
    for peak, bandwidth, stroke, width, dash in (
        (result.peak, result.spec.bandwidth_gbps * 1e9, MUTED, 2.0, "6 4"),
        (result.reached, result.rates.memory_rate, INK, 3.0, ""),
    ):
        turns = (INTENSITIES.low, peak / bandwidth, INTENSITIES.high)
        points = [(x, min(peak, x * bandwidth)) for x in turns]
        body.append(plot.curve(points, stroke=stroke, width=width, dash=dash))
    slope, sign = plot.at(result.sheet_balance / 4, result.peak / 4), plot.x.at(result.operation.intensity)
    beside = sign - 10 if sign > RIGHT - 124 else RIGHT - 6  # the line from the sign up to its words goes through none
    body.append(note(slope[0] - 14, slope[1], "memory’s limit", anchor="end"))
    body.append(note(beside, plot.y.at(result.peak) - 7, "arithmetic’s limit", anchor="end"))
    return body


def _points(result: Roofs, plot: Plot) -> list[str]:
    """A sign for each operation; the chosen one lies on its track, over all numbers of rows, and is dragged along."""
    body = []
    chosen, size = result.operation, SIZE.get(result.selected, "row")
    for op in result.operations.values():
        if op is not chosen:
            body.append(named(_point(op, plot), f"{op.words}: {rate(op.rate)}"))
    track = [(*plot.at(op.intensity, op.rate), rows) for rows, op in result.by_rows.items()]
    body.append(polyline([(x, y) for x, y, _ in track], stroke=ORANGE, width=3))
    x, y = plot.at(chosen.intensity, chosen.rate)
    grip = grasp(x - 14, y - 14, 28, 28) + _point(chosen, plot, chosen=True)
    label = f"{size.capitalize()}s of the {chosen.words}: drag it along its line"
    return [*body, *_label(result, plot.y, many(result.size, size)), on_track(grip, label, "rows", track)]


def _point(op: Operation, plot: Plot, *, chosen: bool = False) -> str:
    """Its sign; on the plot's lower edge, with an arrow down, if its rate lies below."""
    x, y = plot.at(op.intensity, op.rate)
    if op.rate >= plot.y.low:
        return _marker(op.name, x, y, chosen=chosen)
    return pointer(x, y, high=8) + _marker(op.name, x, y - 18, chosen=chosen)


def _label(result: Roofs, rates: Scale, size: str) -> list[str]:
    """The chosen operation's rate: under the slope beside its sign, else above the roofs, where nothing else is."""
    op = result.operation
    words = f"{op.words}, {size}: {rate(op.rate)}" + (" (below)" if op.rate < rates.low else "")
    x, wide = INTENSITIES.at(op.intensity), length(words, bold=True)
    if x + 18 + wide < RIGHT:
        return [text(x + 18, min(rates.at(op.rate) + 20, BOTTOM - 32), words, weight="bold", halo=True)]
    at, roof = max(LEFT + 6, min(x - wide / 2, RIGHT - 6 - wide)), rates.at(result.peak) - 24
    return [line(x, roof + 4, x, rates.at(op.rate), stroke=MUTED), text(at, roof, words, weight="bold", halo=True)]


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
    parts = (("arithmetic", op.arithmetic, GREEN), ("memory", op.memory, PURPLE), ("a launch", op.least, RULE))
    most, y = max(seconds for _, seconds, _ in parts), top + 26
    for words, seconds, fill in parts:
        if seconds:  # what only moves memory has no arithmetic that the clock counts
            wide = 98 * seconds / most
            body.append(small(PANEL, y, words))
            body.append(bar(PANEL + 84, y - 13, wide, 16, fill=fill, hatched=fill == PURPLE))
            body.append(small(PANEL + 90 + wide, y, duration(seconds)))
            y += 24
    told = [
        *wrap(op.shape, END - PANEL, SMALL),
        *(line for part in result.tiles.split(": ") for line in wrap(part, END - PANEL, SMALL)),
    ]
    if op.kernels > 1:
        told.append(f"{op.kernels} kernels, as none is fused")
    return [*body, *(small(PANEL, y + 8 + place * 18, words) for place, words in enumerate(told))]

"""The roofs, the operations under them and their times: draws a result of `model`.

Both axes are logarithmic. Times are those of the virtual GPU's clock.
"""

from __future__ import annotations

import math

from virtualgpu.pictures.style import GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, RULE, SKY
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, bar, dot, length, line, polyline, rect, shape, text, wrap

from ..base.words import duration, many, percent
from .model import DTYPES, Roofs, rate

WIDTH, HEIGHT = 860.0, 446.0
LEFT, RIGHT, TOP, BOTTOM = 78.0, 556.0, 58.0, 398.0  # of the plot
PANEL = 588.0
LEAST_X, MOST_X = 0.1, 20_000.0  # operations per byte
LEAST_Y, MOST_Y = 1e10, 2e16  # operations per second


def draw(result: Roofs) -> Picture:
    """The roofs and the operations below them on the left, the operations' times on the right."""
    body = (*_legend(result), *_axes(), *_roofs(result), *_points(result), *_panel(result))
    return Picture(WIDTH, HEIGHT, result.finding, result.describe(), body)


def _x(intensity: float) -> float:
    part = math.log(min(max(intensity, LEAST_X), MOST_X) / LEAST_X) / math.log(MOST_X / LEAST_X)
    return LEFT + (RIGHT - LEFT) * part


def _y(per_second: float) -> float:
    part = math.log(min(max(per_second, LEAST_Y), MOST_Y) / LEAST_Y) / math.log(MOST_Y / LEAST_Y)
    return BOTTOM - (BOTTOM - TOP) * part


def _legend(result: Roofs) -> list[str]:
    spec, reached, kind = result.spec, result.rates, DTYPES[result.peak_dtype]
    sheet = f"data sheet: {rate(result.peak)} in {kind}, {spec.bandwidth_gbps:,.0f} GB/s (recorded)"
    found = f"reached: {rate(result.reached)}, {reached.memory_gbps:,.0f} GB/s (virtual)"
    return [
        line(MARGIN, 9, MARGIN + 30, 9, stroke=MUTED, width=2, dash="6 4"),
        text(MARGIN + 38, 14, sheet, size=SMALL),
        line(MARGIN, 29, MARGIN + 30, 29, stroke=INK, width=3),
        text(MARGIN + 38, 34, found, size=SMALL),
    ]


def _axes() -> list[str]:
    body = [rect(LEFT, TOP, RIGHT - LEFT, BOTTOM - TOP, stroke=RULE)]
    for power in range(-1, 5):
        x = _x(10.0**power)
        if LEFT < x < RIGHT:
            body.append(line(x, TOP, x, BOTTOM, stroke=RULE))
        body.append(text(x, BOTTOM + 17, f"{10.0**power:g}", size=SMALL, fill=MUTED, anchor="middle"))
    for power in range(10, 17):
        y = _y(10.0**power)
        if y < BOTTOM:
            body.append(line(LEFT, y, RIGHT, y, stroke=RULE))
        body.append(text(LEFT - 7, y + 5, f"{10.0 ** (power - 12):g}", size=SMALL, fill=MUTED, anchor="end"))
    body.append(text(MARGIN, TOP - 6, "TFLOP/s", size=SMALL, fill=MUTED))
    words = "intensity: operations for each byte read or written"
    body.append(text((LEFT + RIGHT) / 2, BOTTOM + 36, words, size=SMALL, fill=MUTED, anchor="middle"))
    return body


def _roofs(result: Roofs) -> list[str]:
    body = []
    ridge = _x(result.balance)
    for peak, bandwidth, stroke, width, dash in (
        (result.peak, result.spec.bandwidth_gbps * 1e9, MUTED, 2.0, "6 4"),
        (result.reached, result.rates.memory_rate, INK, 3.0, ""),
    ):
        points = [(LEAST_X, LEAST_X * bandwidth), (peak / bandwidth, peak), (MOST_X, peak)]
        body.append(polyline([(_x(x), _y(y)) for x, y in points], stroke=stroke, width=width, dash=dash))
    body.append(line(ridge, _y(result.reached), ridge, BOTTOM, stroke=MUTED, dash="2 4"))
    body.append(text((LEFT + ridge) / 2, BOTTOM - 22, "memory-bound", size=SMALL, fill=MUTED, anchor="middle"))
    words = "compute-bound"
    body.append(text((RIGHT + ridge) / 2, BOTTOM - 22, words, size=SMALL, fill=MUTED, anchor="middle"))
    return body


def _points(result: Roofs) -> list[str]:
    body = []
    chosen = result.operation
    for op in (*(other for other in result.operations.values() if other is not chosen), chosen):
        x, y = _x(op.intensity), _y(op.rate)
        if op is chosen:
            roof = _y(min(result.reached, op.intensity * result.rates.memory_rate))
            body.append(line(x, roof, x, max(y, roof), stroke=ORANGE, width=3))
        body.append(_marker(op.name, x, y, chosen=op is chosen))
    return [*_label(result), *body]


def _label(result: Roofs) -> list[str]:
    """The chosen operation's rate, above the roofs, where nothing else is."""
    op = result.operation
    words = f"{op.words}: {rate(op.rate)}" + (" (below)" if op.rate < LEAST_Y else "")
    x, wide = _x(op.intensity), length(words, bold=True)
    at = min(max(x - wide / 2, LEFT + 6), RIGHT - 6 - wide)
    y = _roof(result, at + wide) - 12
    top = max(_y(op.rate), _roof(result, x))
    return [line(x, y + 4, x, min(top, BOTTOM), stroke=MUTED), text(at, y, words, weight="bold")]


def _roof(result: Roofs, x: float) -> float:
    """Where the upper roof is at `x`, both in pixels."""
    intensity = LEAST_X * (MOST_X / LEAST_X) ** ((x - LEFT) / (RIGHT - LEFT))
    return _y(min(result.peak, intensity * result.spec.bandwidth_gbps * 1e9))


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
    body = [text(PANEL, 14, "the operations at these sizes (virtual)", size=SMALL, fill=MUTED)]
    for place, op in enumerate(result.operations.values()):
        top = 26 + place * 42
        chosen = op is result.operation
        if chosen:
            body.append(rect(PANEL - 6, top, WIDTH - MARGIN - PANEL + 12, 40, fill="none", stroke=INK, radius=4))
        body.append(_marker(op.name, PANEL + 10, top + 20, chosen=chosen))
        body.append(text(PANEL + 28, top + 16, op.words, weight="bold" if chosen else ""))
        body.append(text(WIDTH - MARGIN, top + 16, duration(op.seconds), anchor="end", weight="bold"))
        body.append(text(PANEL + 28, top + 34, f"bound by {op.bound}", size=SMALL, fill=MUTED))
    return body + _times(result, 256)


def _times(result: Roofs, top: float) -> list[str]:
    op = result.operation
    body = [text(PANEL, top, f"{op.words}: what takes how long", size=SMALL, fill=MUTED)]
    most = max(op.arithmetic, op.memory, op.least)
    for place, (words, seconds, fill) in enumerate(
        (("arithmetic", op.arithmetic, GREEN), ("memory", op.memory, PURPLE), ("least time", op.least, RULE))
    ):
        y = top + 12 + place * 24
        body.append(text(PANEL, y + 14, words, size=SMALL))
        wide = 98 * seconds / most
        body.append(bar(PANEL + 84, y + 1, wide, 16, fill=fill, hatched=fill == PURPLE, stroke=INK if wide > 1 else ""))
        known = "not counted" if not op.arithmetic and words == "arithmetic" else duration(seconds)
        body.append(text(PANEL + 90 + wide, y + 14, known, size=SMALL))
    return body + _shares(result, top + 102)


def _shares(result: Roofs, y: float) -> list[str]:
    """The shape, and how its tiles fill the SMs."""
    op, tiling, sms = result.operation, result.operation.tiling, result.spec.sms
    room = WIDTH - MARGIN - PANEL
    words = list(wrap(op.shape, room, SMALL))
    if tiling:
        share = tiling.tiles * tiling.splits / sms
        parts = f" × {tiling.splits} parts" if tiling.splits > 1 else ""
        number = f"{share:,.1f}" if share >= 1 else f"{share:.2f}"
        words.append(f"{many(tiling.tiles, 'tile')}{parts} / {sms} SMs = {number}")
    elif op.kernels > 1:
        words.append(f"{op.kernels} kernels, as none is fused")
    body = [text(PANEL, y + place * 18, words_, size=SMALL) for place, words_ in enumerate(words)]
    if tiling:
        y += 18 * len(words) - 8
        body.append(rect(PANEL, y, room, 12, fill=PAPER, stroke=INK))
        body.append(bar(PANEL, y, room * result.full, 12, fill=GREEN, stroke=""))
        rest = f"{many(tiling.waves, 'wave')}, {percent(result.full)} of the places filled"
        body.append(text(PANEL, y + 28, rest, size=SMALL, fill=MUTED))
    return body

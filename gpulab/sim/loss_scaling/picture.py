"""Where the gradients lie in the range of fp16, and the scale over the steps: draws a result of `model`."""

from __future__ import annotations

import math
from itertools import groupby

from virtualgpu.pictures.style import BLUE, INK, MUTED, ORANGE, RULE, SKY, VERMILLION
from virtualgpu.pictures.svg import (
    MARGIN,
    SMALL,
    Picture,
    bar,
    hatch,
    key,
    length,
    line,
    num,
    polyline,
    rect,
    shape,
    text,
)

from .model import STEPS, TO_INF, TO_NORMAL, TO_ZERO, Run, part, size

WIDTH, BODY_HEIGHT = 860.0, 452.0
LEFT, RIGHT = MARGIN, WIDTH - MARGIN
LOW, HIGH = -64, 28  # the powers of two that the upper picture shows
BARS_TOP, AXIS = 92.0, 196.0
RUN_HIGH, RUN_LOW, RUN_LEFT = 264.0, 402.0, 118.0


def draw(run: Run) -> Picture:
    """Above, the gradients of the step looked at, scaled and unscaled; below, the scale over the run."""
    body = [*_zones(run), *_gradients(run), *_scales(run)]
    return Picture(WIDTH, BODY_HEIGHT, run.finding, run.describe(), tuple(body))


def _at(power: float) -> float:
    return LEFT + (RIGHT - LEFT) * (min(max(power, LOW), HIGH) - LOW) / (HIGH - LOW)


def _zones(run: Run) -> list[str]:
    """What fp16 makes of each size, and the share of the scaled gradients that are of it."""
    shares = run.shares(run.scale)
    body = []
    for name, share, low, high in (
        ("become 0", shares.zero, LOW, TO_ZERO),
        ("subnormal", shares.subnormal, TO_ZERO, TO_NORMAL),
        ("all bits kept", shares.normal, TO_NORMAL, TO_INF),
        ("inf", shares.inf, TO_INF, HIGH),
    ):
        x, middle = _at(low), (_at(low) + _at(high)) / 2
        if name in ("become 0", "inf"):
            body.append(hatch(x, 22, _at(high) - x, AXIS - 22, stroke=RULE, gap=12))
        body.append(rect(x, 22, _at(high) - x, AXIS - 22, stroke=MUTED))
        body.append(text(middle, 40, name, anchor="middle", halo=True))
        body.append(text(middle, 58, part(share), anchor="middle", weight="bold", halo=True))
    ticks = {"1e-16": -16 / math.log10(2), "1e-12": -12 / math.log10(2), "3e-08": TO_ZERO, "6e-05": TO_NORMAL}
    for words, power in (ticks | {"1": 0, "65,504": TO_INF}).items():
        body.append(line(_at(power), AXIS, _at(power), AXIS + 5))
        body.append(text(_at(power), AXIS + 19, words, size=SMALL, anchor="middle", fill=MUTED))
    return body


def _gradients(run: Run) -> list[str]:
    shift = round(math.log2(run.scale))
    powers = range(LOW, HIGH)
    scaled = [run.below(power + 1, run.scale) - run.below(power, run.scale) for power in powers]
    plain = [run.below(power + 1) - run.below(power) for power in powers]
    # the tallest bar of the whole curve, whether it is in the picture or not
    unit = (AXIS - BARS_TOP) / (run.below(run.centre + 0.5) - run.below(run.centre - 0.5))
    body = [key(LEFT, 12, f"sizes of the gradients in step {run.step:,}, scaled by {size(run.scale)}", fill=SKY)]
    words = f"unscaled: {part(run.shares(1.0).zero)} become 0"
    x = RIGHT - length(words, SMALL)
    body += [line(x - 24, 8, x - 6, 8, dash="4 3", width=2), text(x, 12, words, size=SMALL, fill=MUTED)]
    width = _at(LOW + 1) - _at(LOW)
    for power, share in zip(powers, scaled, strict=True):
        fill = SKY if TO_NORMAL <= power < TO_INF - 1 else ORANGE if TO_ZERO <= power < TO_NORMAL else VERMILLION
        high = share * unit
        if high >= 0.5:
            body.append(bar(_at(power), AXIS - high, width, high, fill=fill))
    outline = [(_at(power + 0.5), AXIS - share * unit) for power, share in zip(powers, plain, strict=True)]
    body.append(polyline([(x, y) for x, y in outline if y <= AXIS - 0.5], width=2, dash="5 3"))
    return [*body, *_shift(run, shift), *_largest(run, shift)]


def _shift(run: Run, shift: int) -> list[str]:
    """An arrow from where the gradients are to where the scale takes them."""
    x1, x2, y = _at(run.centre), _at(run.centre + shift), BARS_TOP - 8
    if abs(x2 - x1) < 12:
        return []
    head = 9 if x2 > x1 else -9
    words = f"× {size(run.scale)}"
    middle = min(max((x1 + x2) / 2, LEFT + length(words) / 2), RIGHT - length(words) / 2)
    return [
        line(x1, y, x2, y, width=2),
        shape([(x2, y), (x2 - head, y - 5), (x2 - head, y + 5)], fill=INK),
        text(middle, y - 6, words, anchor="middle", halo=True),
    ]


def _largest(run: Run, shift: int) -> list[str]:
    x = min(max(_at(run.largest_power + shift), LEFT + 7), RIGHT - 7)
    words = f"largest: {run.largest}"
    half = length(words, SMALL) / 2
    return [
        shape([(x, AXIS - 1), (x - 6, AXIS - 13), (x + 6, AXIS - 13)], fill=INK),
        text(min(max(x, LEFT + half), RIGHT - half), AXIS + 36, words, size=SMALL, anchor="middle"),
    ]


def _scales(run: Run) -> list[str]:
    powers = [math.log2(scale) for _, scale in run.changes]
    low, high = min(0, 8 * math.floor(min(powers) / 8)), max(24, 8 * math.ceil(max(powers) / 8))

    def down(power: float) -> float:
        return RUN_LOW - (RUN_LOW - RUN_HIGH) * (min(max(power, low), high) - low) / (high - low)

    body = [*_corridor(down(run.ceiling), down(run.floor(0.01)))]
    every = 8 if high - low <= 40 else 8 * math.ceil((high - low) / 40)
    for power in range(low, high + 1, every):
        body.append(line(RUN_LEFT - 5, down(power), RUN_LEFT, down(power), stroke=MUTED))
        body.append(text(RUN_LEFT - 9, down(power) + 5, size(2.0**power), size=SMALL, anchor="end", fill=MUTED))
    for step in range(0, STEPS + 1, 1000):
        words = f"{step:,}" if step else "step 1"
        anchor = "middle" if 0 < step < STEPS else "end" if step else "start"
        body.append(text(_along(step), RUN_LOW + 42, words, size=SMALL, anchor=anchor, fill=MUTED))
    body.append(polyline([(_along(step), down(power)) for step, power in _corners(run)], stroke=BLUE, width=3))
    body.append(text(RUN_LEFT - 9, RUN_LOW + 24, "skipped", size=SMALL, anchor="end", fill=MUTED))
    columns = sorted({round(_along(step)) for step in run.skipped})
    if columns:
        path = "".join(f"M{x} {num(RUN_LOW + 12)}v12" for x in columns)
        body.append(f'<path d="{path}" stroke="{VERMILLION}" stroke-width="2" fill="none"/>')
    x, y = _along(run.step), down(math.log2(run.scale))
    body.append(line(x, RUN_HIGH, x, RUN_LOW + 24, dash="2 2"))
    return [*body, shape([(x - 7, y), (x, y - 7), (x + 7, y), (x, y + 7)], fill=INK)]


def _along(step: int) -> float:
    return RUN_LEFT + 8 + (RIGHT - RUN_LEFT - 16) * step / STEPS


def _corridor(ceiling: float, floor: float) -> list[str]:
    """Which scales are too large, and which too small."""
    wide = RIGHT - RUN_LEFT
    words = "the scale over the run; hatched: too large (the largest gradient is inf), too small (over 1% become 0)"
    return [
        text(LEFT, RUN_HIGH - 13, words, size=SMALL, fill=MUTED),
        hatch(RUN_LEFT, RUN_HIGH, wide, ceiling - RUN_HIGH, stroke=RULE, gap=12),
        hatch(RUN_LEFT, floor, wide, RUN_LOW - floor, stroke=RULE, gap=12),
        line(RUN_LEFT, ceiling, RIGHT, ceiling, stroke=MUTED),
        line(RUN_LEFT, floor, RIGHT, floor, stroke=MUTED),
        rect(RUN_LEFT, RUN_HIGH, wide, RUN_LOW - RUN_HIGH, stroke=MUTED),
    ]


def _corners(run: Run) -> list[tuple[int, float]]:
    """The scale as stairs; where it changes too often to see, its range in every 20 steps."""
    changes = [(step, math.log2(scale)) for step, scale in run.changes]
    if len(changes) <= 200:
        stairs = [changes[0]]
        for step, power in changes[1:]:
            stairs += [(step, stairs[-1][1]), (step, power)]
        return [*stairs, (STEPS, stairs[-1][1])]
    found: list[tuple[int, float]] = []
    for start, group in groupby(changes, lambda change: change[0] // 20):
        seen = [power for _, power in group]
        found += [
            (20 * start, seen[0]),
            (20 * start + 6, max(seen)),
            (20 * start + 12, min(seen)),
            (20 * start + 18, seen[-1]),
        ]
    return [*found, (STEPS, changes[-1][1])]

"""Where the gradients lie in the range of fp16, and the scale over the steps: draws a result of `model`."""

from __future__ import annotations

import math
from itertools import groupby

from virtualgpu.pictures.style import BLUE, GREEN, INK, MUTED, ORANGE, RULE, SKY, VERMILLION
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, bar, dot, length, line, num, polyline, rect, text

from ..base.scene import END, Plot, Scale, arrow, beside_ends, between, diamond, line_key, note, picture, pointer, small
from ..base.touch import Grip, clickable, draggable, grasp
from .model import STEPS, TO_INF, TO_NORMAL, TO_ZERO, Run, part, power_of_two, size

LEFT, RIGHT = MARGIN, END
LOW, HIGH = -72, 28  # the powers of two that the upper picture shows
POWERS = Scale(LEFT, RIGHT, LOW, HIGH)
BARS_TOP, AXIS = 92.0, 196.0
RUN_HIGH, RUN_LOW, RUN_LEFT, RUN_RIGHT = 268.0, 402.0, 90.0, 660.0


def draw(run: Run) -> Picture:
    """Above, the gradients of the step looked at, scaled and unscaled; below, the scale over the run."""
    return picture(run, 452.0, _zones(run), _gradients(run), _scales(run))


def _zones(run: Run) -> list[str]:
    """What fp16 makes of each size, and the share of the scaled gradients that are of it."""
    shares = run.shares(run.scale)
    body = []
    for name, share, low, high, fill in (
        ("become 0", shares.zero, LOW, TO_ZERO, VERMILLION),
        ("subnormal", shares.subnormal, TO_ZERO, TO_NORMAL, ORANGE),
        ("all bits kept", shares.normal, TO_NORMAL, TO_INF, SKY),
        ("inf", shares.inf, TO_INF, HIGH, VERMILLION),
    ):
        x, wide = POWERS.at(low), POWERS.at(high) - POWERS.at(low)
        middle = x + wide / 2 + 7
        ground = "none" if fill != VERMILLION else VERMILLION if name == "inf" and run.overflows else RULE
        body.append(rect(x, 22, wide, AXIS - 22, fill=ground, stroke=MUTED, opacity=0.3))
        body.append(bar(middle - length(name, SMALL) / 2 - 14, 28, 11, 11, fill=fill, hatched=name == "inf"))
        body.append(small(middle, 38, name, anchor="middle"))
        body.append(text(middle - 7, 55, part(share), anchor="middle", weight="bold"))
        body.append(note(middle - 7, 70, "fewer bits", anchor="middle") if fill == ORANGE else "")
    marks = {power: power_of_two(round(power)) for power in (-56, -40, TO_ZERO, TO_NORMAL)}
    return [*body, *POWERS.ticks(AXIS, marks | {0: "1", TO_INF: "65,504"})]


def _gradients(run: Run) -> list[str]:
    shift, width = round(math.log2(run.scale)), POWERS.at(LOW + 1) - POWERS.at(LOW)
    powers = range(LOW, HIGH)
    scaled = [run.below(power + 1, run.scale) - run.below(power, run.scale) for power in powers]
    plain = [run.below(power + 1) - run.below(power) for power in powers]
    # the tallest bar of the whole curve, whether it is in the picture or not
    unit = (AXIS - BARS_TOP) / (run.below(run.centre + 0.5) - run.below(run.centre - 0.5))
    body = [note(LEFT, 12, f"sizes of the gradients in step {run.step:,}, scaled by {size(run.scale)} (virtual)")]
    words = f"without scaling: {part(run.shares(1.0).zero)} become 0"
    body.append(line_key(RIGHT - length(words, SMALL) - 24, 12, words, dash="4 3"))
    for power, share in zip(powers, scaled, strict=True):
        fill = SKY if TO_NORMAL <= power < TO_INF - 1 else ORANGE if TO_ZERO <= power < TO_NORMAL else VERMILLION
        high = share * unit
        if high >= 0.5:
            body.append(bar(POWERS.at(power), AXIS - high, width, high, fill=fill, hatched=power >= TO_INF - 1))
    outline = [(POWERS.at(power + 0.5), AXIS - share * unit) for power, share in zip(powers, plain, strict=True)]
    body.append(polyline([(x, y) for x, y in outline if y <= AXIS - 0.5], width=2, dash="5 3"))
    return [*body, *_shift(run, shift), *_largest(run, shift)]


def _shift(run: Run, shift: int) -> list[str]:
    """An arrow from where the gradients are to where the scale takes them. Its end is dragged: that is the scale to
    begin with, so step 1 is looked at."""
    x1, x2, y = POWERS.at(run.centre), POWERS.at(run.centre + shift), BARS_TOP - 8
    words, way = f"all × {size(run.scale)}", 1 if x2 >= x1 else -1
    clipped = not LOW <= run.centre + shift <= HIGH
    middle = x2 + way * (length(words) / 2 + 12)
    under = not LEFT + length(words) / 2 <= middle <= RIGHT - length(words) / 2
    if under:  # no room beyond the end
        middle = 2 * x2 - middle
    body = [arrow(x1, x2 - 8 * way * (not clipped), y)] if abs(x2 - x1) >= 24 else []
    handle = grasp(x2 - 12, y - 8, 24, AXIS - y + 8) + line(x2, y, x2, AXIS, width=2)
    handle += "" if clipped else dot(x2, y, 7, fill=INK)
    first = Grip("scale_power", POWERS.beyond(run.centre), POWERS.beyond(run.centre + 24), 0, 24)
    body.append(draggable(handle, "First scale, power of 2", first, first._replace(name="step", low=1, high=1)))
    return [*body, text(middle, y + (24 if under else 5), words, anchor="middle", halo=True)]


def _largest(run: Run, shift: int) -> list[str]:
    power = run.largest_power + shift
    x = min(max(POWERS.at(power), LEFT + 7), RIGHT - 7)
    lost = {"0": f"about {power_of_two(math.ceil(power))}, stored as 0", "inf": f"{2**power:,.0f}, stored as inf"}
    fill, half, weight = (VERMILLION, 8, "bold") if run.overflows else (INK, 6, "")
    words = f"largest: {lost.get(run.largest, run.largest)}"
    sign = pointer(x, AXIS - 1, fill=fill, half=half, high=2 * half)
    told = between(LEFT + 150, RIGHT, x, AXIS + 36, words, size=SMALL, weight=weight)
    return [sign, told, note(LEFT, AXIS + 36, "size of a gradient")]


def _scales(run: Run) -> list[str]:
    powers = [math.log2(scale) for _, scale in run.changes]
    low, high = math.floor(min(*powers, run.ceiling) - 2), math.ceil(max(*powers, run.ceiling) + 1.5)
    plot = Plot(Scale(RUN_LEFT + 8, RUN_RIGHT - 8, 0, STEPS), Scale(RUN_LOW, RUN_HIGH, low, high))
    along, down = plot.x.at, plot.y.at
    body = [
        *_corridor(down(run.ceiling), down(run.floor(0.01))),
        note(RUN_LEFT - 9, RUN_HIGH - 13, "scale", anchor="end"),
        small(RUN_LEFT, RUN_HIGH - 13, f"step {run.step:,}: {run.happened}"),
        *(note(RUN_LEFT - 9, RUN_LOW + y, name, anchor="end") for y, name in ((24, "skipped"), (42, "step"))),
    ]
    every = 2 ** math.ceil(math.log2((high - low) / 7))
    for power in range(every * math.ceil(low / every), high + 1, every):
        body.append(line(RUN_LEFT - 5, down(power), RUN_LEFT, down(power), stroke=MUTED))
        body.append(note(RUN_LEFT - 9, down(power) + 5, power_of_two(power), anchor="end"))
    body += [note(along(step), RUN_LOW + 42, f"{step or 1:,}", anchor="middle") for step in range(0, STEPS + 1, 1000)]
    body.append(plot.curve(_corners(run), stroke=BLUE, width=3))
    columns = {round(along(step)): step for step in reversed(run.skipped)}
    few = len(columns) <= 40  # more cannot be told apart
    path = "".join(f"M{x} {num(RUN_LOW + 12)}v12" for x in columns)
    body.append(f'<path d="{path}" stroke="{VERMILLION}" stroke-width="2" fill="none"/>' if path else "")
    body += [dot(x, down(math.log2(run.scale_in(step))), 5, fill=VERMILLION) for x, step in columns.items() if few]
    body += [] if columns else [note(RUN_LEFT, RUN_LOW + 24, "none")]
    body += _fallen(run, plot)
    x, y = plot.at(run.step, math.log2(run.scale))
    cursor = grasp(RUN_LEFT, RUN_HIGH, RUN_RIGHT - RUN_LEFT, RUN_LOW - RUN_HIGH + 10)
    cursor += line(x, RUN_HIGH, x, RUN_LOW + 10, dash="2 2") + diamond(x, y)
    body.append(draggable(cursor, "Look at step", Grip("step", along(1), along(STEPS), 1, STEPS)))
    for x, step in columns.items() if few else ():
        body.append(clickable(grasp(x - 8, RUN_LOW + 10, 16, 18), f"Look at skipped step {step:,}", step=step))
    return body


def _fallen(run: Run, plot: Plot) -> list[str]:
    """What moves the scale, where bad batches have taken it down so far that the words have room."""
    words = "each bad batch halves the scale,", f"{run.growth_interval:,} good ones double it"
    low = run.bad and plot.y.at(math.log2(run.scale_in(STEPS // 2))) > plot.y.end + 54
    drawn = (small(plot.x.end - 8, plot.y.end + 28 + 18 * row, one, anchor="end") for row, one in enumerate(words))
    return [*drawn] if low else []


def _corridor(ceiling: float, floor: float) -> list[str]:
    """Which scales are too large, and which too small; where no scale fits, the two overlap."""
    wide = RUN_RIGHT - RUN_LEFT
    body = [rect(RUN_LEFT, RUN_HIGH, wide, RUN_LOW - RUN_HIGH, stroke=MUTED)]
    body.append(rect(RUN_LEFT, RUN_HIGH, wide, ceiling - RUN_HIGH, fill=RULE, opacity=0.3))
    body.append(rect(RUN_LEFT, floor, wide, RUN_LOW - floor, fill=RULE, opacity=0.3))
    names = {"too large: inf": (RUN_HIGH + ceiling) / 2} if ceiling - RUN_HIGH > 14 else {}
    names |= {"too small: over 1% are 0": (floor + RUN_LOW) / 2} if RUN_LOW - floor > 1 else {}
    if floor > ceiling:
        body.append(rect(RUN_LEFT, ceiling, wide, floor - ceiling, fill=GREEN, opacity=0.5))
        names["the scales that fit"] = (ceiling + floor) / 2
    return [*body, *beside_ends(RUN_RIGHT + 8, RUN_LOW, names)]


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
        some = seen[0], max(seen), min(seen), seen[-1]
        found += [(20 * start + 6 * place, power) for place, power in enumerate(some)]
    return [*found, (STEPS, changes[-1][1])]

"""The layers at one moment, and memory over the step: draws a result of `model`.

Above, the layers at one moment; below, the whole step, and how much each number of segments keeps.
"""

from __future__ import annotations

from collections.abc import Iterator

from virtualgpu.pictures.style import GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, RULE, SKY, VERMILLION, YELLOW
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, bar, key, length, line, num, polyline, rect, shape, text

from ..base.lanes import Axis, cursor, playhead, round_step
from ..base.touch import Grip, draggable
from ..base.words import duration, percent, size
from .model import (
    CATEGORIES,
    FRAMES,
    Step,
    in_last,
    kept,
    now_alive,
    since,
)

WIDTH, HEIGHT = 860.0, 452.0
STRIP, STRIP_HIGH = 26.0, 38.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 600.0, 128.0, 356.0  # of the curve
PANEL = 640.0
BASE, HIGH = BOTTOM + 26, 66.0  # of the bars in the panel
COLUMNS = 220  # of the curve at most
STROKE = 7.0  # from one stroke of a hatched part to the next
FILLS = dict(zip(CATEGORIES, (SKY, RULE, GREEN, ORANGE, PURPLE, YELLOW), strict=True))


def draw(step: Step) -> Picture:
    """The layers at the moment, the curve over the step, the bytes at the moment, the choice of segments."""
    body = (*_layers(step), *_curve(step), *_now(step), *_choice(step))
    grip = playhead(_axis(step), step.seconds, TOP - 8, BOTTOM + 16, last=FRAMES)
    return Picture(WIDTH, HEIGHT, step.finding, step.describe(), body, touched=(grip, *_bars_as_grip(step)))


def _axis(step: Step) -> Axis:
    return Axis(LEFT, RIGHT, step.seconds)


def _layers(step: Step) -> list[str]:
    now = step.moment
    found = [text(MARGIN, 14, f"the layers at {since(now.start)}: {now.words}", weight="bold")]
    found += [
        key(560, 14, "input", fill=ORANGE),
        key(640, 14, "what it keeps inside", fill=PURPLE, hatched=True),
    ]
    gap = 6.0 if len(step.segments) < 30 else 2.0
    wide = (WIDTH - 2 * MARGIN - 8 - gap * len(step.segments)) / step.sizes.layers
    thin = min(6.0, wide / 3)
    x = MARGIN
    for layers, again in zip(step.segments, step.again, strict=True):
        start = x
        for layer in layers:
            interior, has_input = step.state[layer]
            if has_input:
                found.append(rect(x, STRIP, thin, STRIP_HIGH, fill=ORANGE, stroke=INK))
            found.append(rect(x + thin, STRIP, wide - thin, STRIP_HIGH, stroke=RULE))
            if interior and step.sizes.interior > step.sizes.boundary:
                found.append(bar(x + thin, STRIP, wide - thin, STRIP_HIGH, fill=PURPLE, hatched=True))
            if layer == now.layer:
                found.append(_pointer(x + wide / 2, now.kind))
            x += wide
        found.append(line(start + 1, STRIP + STRIP_HIGH + 7, x - 1, STRIP + STRIP_HIGH + 7, stroke=MUTED, width=2))
        words = "computed again" if again else "kept"
        words = next((w for w in (words, "again" if again else "kept", "") if length(w, SMALL) < x - start), "")
        if words:
            middle = (start + x) / 2
            found.append(text(middle, STRIP + STRIP_HIGH + 24, words, size=SMALL, fill=MUTED, anchor="middle"))
        x += gap
    if step.state[-1].input:
        found.append(rect(x, STRIP, thin, STRIP_HIGH, fill=ORANGE, stroke=INK))
    return found


def _pointer(x: float, kind: str) -> str:
    """An arrow in the layer at work: to the right forward, to the left backward."""
    way, y = -1 if kind == "backward" else 1, STRIP + STRIP_HIGH / 2
    corners = [(x - 5 * way, y - 8), (x + 5 * way, y), (x - 5 * way, y + 8)]
    under = [(x - 7 * way, y - 12), (x + 9 * way, y), (x - 7 * way, y + 12)]
    return shape(under, fill=PAPER) + shape(corners, fill=INK)


def _columns(step: Step) -> Iterator[tuple[float, float, tuple[int, ...]]]:
    """Start, end and bytes by category along the curve: all moments, or the fullest of those in a column."""
    scale = (RIGHT - LEFT) / step.seconds
    if len(step.moments) <= COLUMNS:
        for moment in step.moments:
            yield LEFT + moment.start * scale, LEFT + (moment.start + moment.seconds) * scale, moment[4:]
        return
    each = -(-len(step.moments) // COLUMNS)
    for first in range(0, len(step.moments), each):
        some = step.moments[first : first + each]
        end = some[-1].start + some[-1].seconds
        yield LEFT + some[0].start * scale, LEFT + end * scale, max((m[4:] for m in some), key=sum)


def _curve(step: Step) -> list[str]:
    most = max(step.plain_peak, step.peak.total) * 1.08
    high = (BOTTOM - TOP) / most
    columns = list(_columns(step))
    found = [text(MARGIN, TOP - 10, "memory, GiB (virtual)", size=SMALL, fill=MUTED)]
    tick = round_step(most / 2**30 / 6)
    level = 0.0
    while level * 2**30 < most:
        y = BOTTOM - level * 2**30 * high
        found.append(line(LEFT, y, RIGHT, y, stroke=RULE))
        found.append(text(LEFT - 7, y + 5, f"{level:.3g}", size=SMALL, fill=MUTED, anchor="end"))
        level += tick
    for upto in range(len(CATEGORIES), 0, -1):  # each over the one before, so that only its own part is seen
        path = f"M{num(LEFT)} {num(BOTTOM)}"
        before = ""
        for _, end, alive in columns:
            at = num(BOTTOM - sum(alive[:upto]) * high)
            path += f"V{at}H{num(end)}" if at != before else f"H{num(end)}"
            before = at
        path += f"V{num(BOTTOM)}Z"
        fill = FILLS[CATEGORIES[upto - 1]]
        found.append(f'<path d="{path}" fill="{fill}" stroke="{INK}" stroke-width="0.5"/>')
    return [*found, _strokes(columns, high), *_marks(step, high), *_phases(step)]


def _strokes(columns: list[tuple[float, float, tuple[int, ...]]], high: float) -> str:
    """A second sign beside the colour of what layers keep inside."""
    below = CATEGORIES.index("inside layers")
    path, x = "", LEFT + STROKE
    for _, end, alive in columns:
        while x < end:
            if alive[below]:
                low, top = (BOTTOM - sum(alive[:upto]) * high for upto in (below, below + 1))
                path += f"M{num(x)} {num(low)}V{num(top)}"
            x += STROKE
    return f'<path d="{path}" stroke="{INK}" stroke-width="1" fill="none"/>'


def _marks(step: Step, high: float) -> list[str]:
    """The peak, the peak without checkpointing, and the moment that is looked at."""
    scale = (RIGHT - LEFT) / step.seconds
    x = LEFT + (step.peak.start + step.peak.seconds / 2) * scale
    y, plain = BOTTOM - step.peak.total * high, BOTTOM - step.plain_peak * high
    words = f"peak {size(step.peak.total)}"
    half = length(words, bold=True) / 2
    at = min(max(x, LEFT + half), RIGHT - half)
    found = [
        # it moves with the slider, also within a layer's pass
        cursor(_axis(step), step.seconds * step.frame / FRAMES, TOP - 6, BOTTOM + 14),
        shape([(x - 5, y - 9), (x + 5, y - 9), (x, y - 1)], fill=INK),
    ]
    if y - plain > 44:
        found.append(line(LEFT, plain, RIGHT, plain, stroke=INK, width=1.5, dash="6 4"))
        without = f"without checkpointing {size(step.plain_peak)}"
        found.append(text(RIGHT - 4, plain - 6, without, size=SMALL, anchor="end", halo=True))
    found.append(text(at, y - 12, words, weight="bold", anchor="middle", halo=True))
    return found


def _phases(step: Step) -> list[str]:
    """A band under the curve: backward in half its height, what is computed again in all of it."""
    scale = (RIGHT - LEFT) / step.seconds
    found = [rect(LEFT, BOTTOM + 4, RIGHT - LEFT, 10, stroke=MUTED)]
    for kind, fill, high in (("recompute", VERMILLION, 10.0), ("backward", MUTED, 5.0)):
        runs: list[list[float]] = []
        for moment in step.moments:
            if moment.kind == kind:
                if runs and abs(runs[-1][1] - moment.start) < step.seconds * 1e-9:
                    runs[-1][1] = moment.start + moment.seconds
                else:
                    runs.append([moment.start, moment.start + moment.seconds])
        path = "".join(
            f"M{num(LEFT + start * scale)} {num(BOTTOM + 14)}v-{num(high)}H{num(LEFT + end * scale)}v{num(high)}z"
            for start, end in runs
        )
        if path:
            found.append(f'<path d="{path}" fill="{fill}"/>')
    found += [
        text(LEFT, BOTTOM + 33, "0", size=SMALL, fill=MUTED, anchor="middle"),
        text(RIGHT, BOTTOM + 33, duration(step.seconds), size=SMALL, fill=MUTED, anchor="end"),
        key(LEFT + 40, BOTTOM + 33, "forward", fill=PAPER),
        key(LEFT + 140, BOTTOM + 33, "backward (low)", fill=MUTED),
        key(LEFT + 290, BOTTOM + 33, "computed again (high)", fill=VERMILLION),
    ]
    extra = f"computed again: {step.recomputed} of {step.sizes.layers} layers, {percent(step.extra)} more compute"
    why = "The last segment stays, as backward begins with it and needs it at once."
    if not any(step.again):
        why = "Every layer keeps its inside until its backward pass."
    elif step.again[-1]:
        why = "The last segment goes and comes back at once: backward begins with it."
    found += [text(LEFT, BOTTOM + 54, extra, size=SMALL), text(LEFT, BOTTOM + 72, why, size=SMALL)]
    if step.jump:
        now, before = (in_last(step.sizes.layers, number) for number in (step.jump, step.jump - 1))
        words = f"From {step.jump - 1} to {step.jump} segments more is kept: the last has {now} layers, not {before}."
        found.append(text(LEFT, BOTTOM + 90, words, size=SMALL))
    return found


def _now(step: Step) -> list[str]:
    found = [text(PANEL, TOP - 10, f"at {since(step.moment.start)} (virtual)", size=SMALL, fill=MUTED)]
    y = TOP + 10
    for name, value in reversed(now_alive(step.moment)):  # as they lie upon one another
        words = "weights, copies" if name == "weights" and step.sizes.copies else name
        found.append(key(PANEL, y, words, fill=FILLS[name], hatched=name == "inside layers"))
        found.append(text(WIDTH - MARGIN, y, size(value), size=SMALL, anchor="end"))
        y += 21
    found.append(line(PANEL, y - 13, WIDTH - MARGIN, y - 13, stroke=MUTED))
    found.append(text(PANEL, y + 4, "total", weight="bold"))
    found.append(text(WIDTH - MARGIN, y + 4, size(step.moment.total), weight="bold", anchor="end"))
    return found


def _choice(step: Step) -> list[str]:
    """What each number of segments keeps, the chosen one filled, the best one and the largest rise marked."""
    sizes, chosen = step.sizes, len(step.segments)
    most = sizes.layers * sizes.interior
    wide = min(_pitch(step) - (1 if _pitch(step) > 3 else 0), 40)
    found = [text(PANEL, BASE - HIGH - 18, "activations kept, by segments", size=SMALL, fill=MUTED)]

    def place(number: int) -> tuple[float, float]:
        """The middle of a bar's upper edge."""
        return _middle(step, number), BASE - max(1.5, HIGH * kept(sizes, number) / most)

    for number in range(1, sizes.layers + 1):
        (x, y), picked = place(number), number == chosen
        fill, edge = (INK, INK) if picked else (RULE, "")
        found.append(rect(x - wide / 2, y, wide, BASE - y, fill=fill, stroke=edge))
    x, y = place(step.best)
    found.append(shape([(x - 5, y - 12), (x + 5, y - 12), (x, y - 3)], fill=INK))
    if step.jump:
        (before, low), (x, y) = place(step.jump - 1), place(step.jump)
        half = length(words := f"{step.jump - 1} → {step.jump}", SMALL) / 2
        found.append(polyline([(before, low - 3), (before, y - 3), (x, y - 3)], stroke=VERMILLION, width=2.5))
        found.append(text(min(x, WIDTH - MARGIN - half), y - 8, words, size=SMALL, anchor="middle", halo=True))
    best = f"▼ least, {step.best}: {size(kept(sizes, step.best))}"
    return [
        *found,
        text(PANEL, BASE + 19, f"now {chosen}: {size(kept(sizes, chosen))}", size=SMALL, weight="bold"),
        text(PANEL, BASE + 37, best, size=SMALL),
        text(PANEL, BASE + 55, f"√(L·interior/boundary): {step.formula:.1f}", size=SMALL),
    ]


def _pitch(step: Step) -> float:
    """From one bar of `_choice` to the next."""
    return (WIDTH - MARGIN - PANEL) / step.sizes.layers


def _middle(step: Step, segments: int) -> float:
    return PANEL + (segments - 1) * _pitch(step) + min(_pitch(step), 40) / 2


def _bars_as_grip(step: Step) -> list[str]:
    """The bars choose the number of segments: that under the pointer."""
    if (layers := step.sizes.layers) == 1:
        return []
    ground = rect(PANEL - 4, BASE - HIGH - 12, WIDTH - MARGIN - PANEL + 8, HIGH + 16, fill="transparent")
    return [draggable(ground, "Segments", Grip("segments", _middle(step, 1), _middle(step, layers), 1, layers))]

"""The layers at one moment, and memory over the step: draws a result of `model`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby

from virtualgpu.pictures.palette import MEMORY
from virtualgpu.pictures.style import EDGE, INK, MUTED, PAPER, PURPLE, RULE, SKY, VERMILLION
from virtualgpu.pictures.svg import (
    MARGIN,
    SMALL,
    Live,
    Picture,
    dot,
    hatch,
    key,
    line,
    num,
    polyline,
    rect,
    shape,
    text,
)

from ..base.lanes import Axis, Stretch, blocks, cursor, playhead, round_step
from ..base.scene import END, Plot, Scale, between, fitted, keys, note, picture, pointer, small
from ..base.touch import draggable, grasp
from ..base.words import count, duration, percent, size
from .model import CATEGORIES, FRAMES, Step, in_last, kept, now_alive, since

STRIP, STRIP_HIGH = 26.0, 38.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 590.0, 128.0, 356.0  # of the curve
LANE, HIGH = BOTTOM + 6, 17.0  # of the passes, and of what is computed again below them
PANEL = 634.0
BASE, BARS = BOTTOM + 14, 58.0  # of the bars in the panel
GIB = 2**30
COLUMNS = 220  # of the curve at most
Column = tuple[float, tuple[int, ...]]  # where it ends, and its bytes by category
FILLS = {name: MEMORY.get(name, PURPLE) for name in CATEGORIES} | {"inputs of layers": SKY}


def draw(step: Step) -> Picture:
    """The layers at the moment, the curve over the step, the bytes at the moment, the choice of segments."""
    grip = playhead(_axis(step), step.seconds, TOP - 8, LANE + HIGH + 16, last=FRAMES)
    living = [grip, *_bars_as_grip(step)]
    return picture(step, 452.0, _layers(step), _curve(step), _now(step), _choice(step), living)


def _axis(step: Step) -> Axis:
    return Axis(LEFT, RIGHT, step.seconds)


def _layers(step: Step) -> list[str]:
    now, stages = step.moment, dict[int | None, str]()
    for moment in step.moments[: step.at + 1]:
        stages = {} if (moment.kind, moment.layer) == ("forward", 0) else stages
        stages[moment.layer] = moment.kind
    words = ("input kept", SKY), ("inside kept", PURPLE), ("dropped", PAPER, True), ("finished", RULE)
    found = [text(MARGIN, 14, f"{since(now.start)}: {now.words}", weight="bold"), *keys(END, 14, *words, ends=True)]
    gap = 6.0 if len(step.segments) < 30 else 2.0
    wide = (END - MARGIN - 8 - gap * len(step.segments)) / step.sizes.layers
    thin = min(6.0, wide / 3)
    x = MARGIN
    for layers, again in zip(step.segments, step.again, strict=True):
        start = x
        for layer in layers:
            interior, has_input = step.state[layer]
            stage = "" if interior else stages.get(layer, "")
            fill, edge = (RULE, PAPER) if stage == "backward" else (PAPER, RULE)
            fill = PURPLE if interior and step.sizes.interior > step.sizes.boundary else fill
            found.append(rect(x, STRIP, wide, STRIP_HIGH, fill=fill, stroke=edge))
            found.append(hatch(x, STRIP, wide, STRIP_HIGH, stroke=RULE) if stage == "forward" else "")
            if has_input:
                found.append(rect(x, STRIP, thin, STRIP_HIGH, fill=SKY, stroke=EDGE))
            if layer == now.layer:
                found.append(_pointer(x + wide / 2, now.kind))
            x += wide
        found.append(line(start + 1, STRIP + STRIP_HIGH + 7, x - 1, STRIP + STRIP_HIGH + 7, stroke=MUTED, width=2))
        ends = f"{layers[0] + 1}–{layers[-1] + 1}" if len(layers) > 1 else f"{layers[0] + 1}"
        done = all(stages.get(layer) == "backward" and not step.state[layer].interior for layer in layers)
        what = "done" if done else "computed again" if again else "kept"
        found.append(fitted(start, x - start, STRIP + STRIP_HIGH + 24, f"{ends}: {what}", ends, fill=MUTED))
        x += gap
    if step.state[-1].input:
        found.append(rect(x, STRIP, thin, STRIP_HIGH, fill=SKY, stroke=EDGE))
    return found


def _pointer(x: float, kind: str) -> str:
    """An arrow in the layer at work: to the right forward, to the left backward."""
    way, y = -1 if kind == "backward" else 1, STRIP + STRIP_HIGH / 2
    corners = [(x - 5 * way, y - 8), (x + 5 * way, y), (x - 5 * way, y + 8)]
    under = [(x - 7 * way, y - 12), (x + 9 * way, y), (x - 7 * way, y + 12)]
    return shape(under, fill=PAPER) + shape(corners, fill=INK)


def _columns(step: Step) -> Iterator[Column]:
    """The curve: all moments, or the fullest of those in a column."""
    axis, each = _axis(step), -(-len(step.moments) // COLUMNS)
    for first in range(0, len(step.moments), each):
        some = step.moments[first : first + each]
        yield axis.x(some[-1].start + some[-1].seconds), max((moment[4:] for moment in some), key=sum)


def _curve(step: Step) -> list[str]:
    most = max(step.plain_peak, step.peak.total) * 1.08 / GIB
    plot = Plot(Scale(LEFT, RIGHT, 0, step.seconds), Scale(BOTTOM, TOP, 0, most))
    apart, columns = round_step(most / 6), list(_columns(step))
    found = [note(LEFT, TOP - 14, "memory, GiB (virtual)")]
    found += plot.levels({apart * mark: f"{apart * mark:.3g}" for mark in range(math.ceil(most / apart))})
    for upto in range(len(CATEGORIES), 0, -1):  # each over the one before, so that only its own part is seen
        path, before = f"M{num(LEFT)} {num(BOTTOM)}", ""
        for end, alive in columns:
            at = num(plot.y.at(sum(alive[:upto]) / GIB))
            path += f"V{at}H{num(end)}" if at != before else f"H{num(end)}"
            before = at
        fill = FILLS[CATEGORIES[upto - 1]]
        found.append(f'<path d="{path}V{num(BOTTOM)}Z" fill="{fill}" stroke="{INK}" stroke-width="0.5"/>')
    return [*found, *_phases(step), *_marks(step, plot)]


def _marks(step: Step, plot: Plot) -> list[str]:
    """The peak, the peak without checkpointing, and the moment that is looked at."""
    x, y = plot.at(step.peak.start + step.peak.seconds / 2, step.peak.total / GIB)
    plain, peak = plot.y.at(step.plain_peak / GIB), f"peak {size(step.peak.total)}"
    # it moves with the slider, also within a layer's pass
    now = cursor(_axis(step), step.seconds * step.frame / FRAMES, TOP - 6, LANE + HIGH + 16)
    found = [now, dot(x, y, 4, fill=INK), between(LEFT, RIGHT, x, y - 12, peak, weight="bold")]
    if y - plain > 44:
        without = f"without checkpointing {size(step.plain_peak)}"
        found.append(line(LEFT, plain, RIGHT, plain, stroke=INK, width=1.5, dash="6 4"))
        found.append(small(RIGHT - 4, plain - 6, without, anchor="end", halo=True))
    return found


def _runs(step: Step, *kinds: str) -> list[Stretch]:
    """When such moments follow one another."""
    runs = [list(group) for one, group in groupby(step.moments, lambda moment: moment.kind in kinds) if one]
    return [(run[0].start, run[-1].start + run[-1].seconds) for run in runs]


def _phases(step: Step) -> list[str]:
    """Lanes under the curve: the passes, and what is computed again, with a pale band up through its hump."""
    axis, again, low, y = _axis(step), _runs(step, "recompute"), LANE + HIGH + 3, BOTTOM + 58
    found = [note(RIGHT, y, duration(step.seconds), anchor="end")]
    for name, fill, runs in (
        ("forward", PAPER, _runs(step, "forward", "loss")),
        ("backward", RULE, _runs(step, "backward", "recompute")),
    ):
        found.append(blocks(axis, runs, LANE, HIGH, fill=fill, stroke=EDGE))
        found += [fitted(axis.x(start), axis.seen(end - start), LANE + 13, name) for start, end in runs]
    if not again:
        return [*found, small(LEFT, y, "Every layer keeps its inside until its backward pass.")]
    found += [small(LEFT - 7, low + 12, "again", anchor="end"), blocks(axis, again, low, 13, fill=INK)]
    for start, end in again if len(again) <= 12 else ():
        found.append(rect(axis.x(start), TOP, axis.seen(end - start), low - TOP, fill=INK, opacity=0.12))
    words = f"{step.recomputed} of {step.sizes.layers} layers are computed again: {percent(step.extra)} more compute"
    why = "The last segment stays, as backward begins with it and needs it at once."
    if step.again[-1]:
        why = "The last segment goes and comes back at once: backward begins with it."
    return [*found, small(LEFT, y, words), note(LEFT, y + 19, why)]


def _now(step: Step) -> list[str]:
    found = [note(PANEL, TOP - 10, f"at {since(step.moment.start)} (virtual)")]
    y = TOP + 10
    for name, value in reversed(now_alive(step.moment)):  # as they lie upon one another
        words = "weights, copies" if name == "weights" and step.sizes.copies else name
        found.append(key(PANEL, y, words, fill=FILLS[name]))
        found.append(small(END, y, size(value), anchor="end"))
        y += 21
    found.append(line(PANEL, y - 13, END, y - 13, stroke=MUTED))
    found.append(text(PANEL, y + 4, "total", weight="bold"))
    found.append(text(END, y + 4, size(step.moment.total), weight="bold", anchor="end"))
    return found


def _choice(step: Step) -> list[str]:
    """What each number of segments keeps, the chosen one filled, the best one and the largest rise marked."""
    sizes, layers, chosen = step.sizes, step.sizes.layers, len(step.segments)
    most, bars = kept(sizes, 1) / GIB, _bars(step)
    plot = Plot(Scale(PANEL, END, 0, 1), Scale(BASE, BASE - BARS, 0, most))
    pitch = bars.at(2) - bars.at(1)
    wide = min(pitch - (1 if pitch > 3 else 0), 40)
    found = [note(PANEL, plot.y.end - 16, "activations kept, GiB"), *plot.levels({0: "0", most: f"{most:.3g}"})]

    def place(number: int) -> tuple[float, float]:
        """The middle of a bar's upper edge."""
        return bars.at(number), min(BASE - 1.5, plot.y.at(kept(sizes, number) / GIB))

    for number in range(1, sizes.layers + 1):
        (x, y), picked = place(number), number == chosen
        fill, edge = (INK, INK) if picked else (RULE, "")
        found.append(rect(x - wide / 2, y, wide, BASE - y, fill=fill, stroke=edge))
    x, y = place(step.best)
    found.append(pointer(x, y - 3, half=5, high=9))
    if step.jump and chosen in (step.jump - 1, step.jump):
        (before, low), (x, y) = place(step.jump - 1), place(step.jump)
        found.append(polyline([(before, low - 3), (before, y - 3), (x, y - 3)], stroke=VERMILLION, width=2.5))
        words = f"{step.jump - 1} → {step.jump}"
        found.append(between(PANEL, END, x, max(y - 8, plot.y.end - 4), words, size=SMALL))
    found += [note(PANEL, BASE + 17, "1"), note(END, BASE + 17, count(layers, "segment"), anchor="end")]
    found.append(note(END, BASE + 39, "more compute", anchor="end"))
    for row, (words, number) in enumerate((("now", chosen), ("▼ least,", step.best))):
        y, price = BASE + 58 + 19 * row, step.extra if number == chosen else (1 - in_last(layers, number) / layers) / 3
        found.append(small(PANEL, y, f"{words} {number}: {size(kept(sizes, number))}", weight="" if row else "bold"))
        found.append(note(END, y, f"+{percent(price)}", anchor="end"))
    return found


def _bars(step: Step) -> Scale:
    """The numbers of segments, each where the middle of its bar is."""
    pitch, most = (END - PANEL) / step.sizes.layers, max(2, step.sizes.layers)
    first = PANEL + min(pitch, 40) / 2
    return Scale(first, first + pitch * (most - 1), 1, most)


def _bars_as_grip(step: Step) -> list[str]:
    """The bars choose the number of segments: that under the pointer."""
    ground = grasp(PANEL - 4, BASE - BARS - 12, END - PANEL + 8, BARS + 16)
    return [Live(draggable(ground, "Segments", _bars(step).grip("segments")))] if step.sizes.layers > 1 else []

"""The layers at one moment, and memory over the step: draws a result of `model`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby

from virtualgpu.pictures.palette import MEMORY
from virtualgpu.pictures.style import EDGE, INK, MUTED, ON, PAPER, PURPLE, RULE, SKY
from virtualgpu.pictures.svg import (
    MARGIN,
    SMALL,
    Live,
    Picture,
    boxes,
    dot,
    edge,
    hatch,
    key,
    length,
    line,
    rect,
    shape,
    text,
)

from ..base.lanes import Axis, Stretch, blocks, cursor, playhead, round_step
from ..base.scene import END, Plot, Scale, between, fitted, keys, note, picture, pointer, small
from ..base.touch import draggable, grasp
from ..base.words import count, duration, percent, size
from .model import CATEGORIES, FRAMES, Step, kept, peak_with, since

STRIP, STRIP_HIGH = 26.0, 38.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 530.0, 124.0, 386.0  # of the curve
LANE, HIGH = BOTTOM + 6, 17.0  # of the passes, and of what is computed again below them
PANEL = 568.0  # where the bars begin, beside the curve and as high
GIB = 2**30
COLUMNS = 220  # of the curve at most
Column = tuple[float, tuple[int, ...]]  # where it ends, and its bytes by category
FILLS = {name: MEMORY.get(name, PURPLE) for name in CATEGORIES} | {"inputs of layers": SKY}


def draw(step: Step) -> Picture:
    """The layers at the moment, the curve over the step, and beside it the choice of segments."""
    grip = playhead(_axis(step), step.seconds, TOP - 8, LANE + HIGH + 16, last=FRAMES)
    living = [grip, *_bars_as_grip(step)]
    return picture(step, 452.0, _layers(step), _curve(step), _choice(step), living)


def _axis(step: Step) -> Axis:
    return Axis(LEFT, RIGHT, step.seconds)


def _layers(step: Step) -> list[str]:
    now, stages = step.moment, dict[int | None, str]()
    for moment in step.moments[: step.at + 1]:
        stages = {} if (moment.kind, moment.layer) == ("forward", 0) else stages
        stages[moment.layer] = moment.kind
    words = ("input kept", SKY), ("inside kept", PURPLE), ("dropped", PAPER, True), ("finished", RULE)
    told = f"{since(step.now)}: {now.words}, {size(now.total)}"
    found = [text(MARGIN, 14, told, weight="bold"), *keys(END, 14, *words, ends=True)]
    gap = 6.0 if len(step.segments) < 30 else 2.0
    wide = (END - MARGIN - 8 - gap * len(step.segments)) / step.sizes.layers
    thin = min(6.0, wide / 3)
    x, spans, last = MARGIN, list[tuple[float, float, str, str]](), len(step.segments)
    for layers, again in zip(step.segments, step.again, strict=True):
        start = x
        for layer in layers:
            interior, has_input = step.state[layer]
            stage = "" if interior else stages.get(layer, "")
            fill, border = (RULE, PAPER) if stage == "backward" else (PAPER, RULE)
            fill = PURPLE if interior and step.sizes.interior > step.sizes.boundary else fill
            found.append(rect(x, STRIP, wide, STRIP_HIGH, fill=fill, stroke=border))
            found.append(hatch(x, STRIP, wide, STRIP_HIGH, stroke=RULE) if stage == "forward" else "")
            found.append(rect(x, STRIP, thin, STRIP_HIGH, fill=SKY, stroke=EDGE) if has_input else "")
            found.append(_pointer(x + wide / 2, now.kind) if layer == now.layer else "")
            x += wide
        found.append(line(start + 1, STRIP + STRIP_HIGH + 7, x - 1, STRIP + STRIP_HIGH + 7, stroke=MUTED, width=2))
        ends = f"{layers[0] + 1}–{layers[-1] + 1}" if len(layers) > 1 else f"{layers[0] + 1}"
        done = all(stages.get(layer) == "backward" and not step.state[layer].interior for layer in layers)
        seen = {stages.get(layer) for layer in layers}
        what = "computed again" if seen & {"recompute", "backward"} else "dropped" if "forward" in seen else "to drop"
        what = "done" if done else what if again else "kept"
        spans.append((start, x - start, f"{ends}: {what}", ends))
        x += gap
    if length(spans[0][2], SMALL) + 6 > spans[0][1]:  # no room for each: all but the last are named as one
        (start, room, kept_last, _), each = spans[-1], count(len(step.segments[0]), "layer")
        spans = [(MARGIN, start - MARGIN, f"segments 1 … {last - 1}: {each} each", f"1 … {last - 1}")]
        spans.append((start, room, f"segment {last}: layers {kept_last}", f"segment {last}"))
    found += [fitted(start, room, STRIP + STRIP_HIGH + 24, *words, fill=MUTED) for start, room, *words in spans]
    found.append(rect(x, STRIP, thin, STRIP_HIGH, fill=SKY, stroke=EDGE) if step.state[-1].input else "")
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


def _height(step: Step) -> Scale:
    """GiB, of the curve and of the bars."""
    return Scale(BOTTOM, TOP, 0, max(step.plain_peak, step.peak.total) * 1.08 / GIB)


def _curve(step: Step) -> list[str]:
    plot = Plot(Scale(LEFT, RIGHT, 0, step.seconds), _height(step))
    apart, columns = round_step(plot.y.high / 6), list(_columns(step))
    found = [note(LEFT, TOP - 10, "memory, GiB (virtual)")]
    marks = {apart * mark: f"{apart * mark:.3g}" for mark in range(math.ceil(plot.y.high / apart))}
    found += Plot(Scale(LEFT, END, 0, 1), plot.y).levels(marks)
    for upto in range(len(CATEGORIES), 0, -1):  # each over the one before, so that only its own part is seen
        corners, fill = [(LEFT, BOTTOM)], FILLS[CATEGORIES[upto - 1]]
        for end, alive in columns:
            y = plot.y.at(sum(alive[:upto]) / GIB)
            corners += [(corners[-1][0], y), (end, y)]
        found.append(shape([*corners, (RIGHT, BOTTOM)], fill=fill, stroke=edge(fill)))
    return [*found, *_names(step, plot, columns), *_phases(step), *_marks(step, plot)]


def _names(step: Step, plot: Plot, columns: list[Column]) -> list[str]:
    """The bands that go to the end, named there where they are high enough."""
    found, inks = [], (PAPER, ON, ON)
    for place, (name, ink) in enumerate(zip(("weights", "optimizer state", "gradients"), inks, strict=True)):
        words = "weights, copies" if name == "weights" and step.sizes.copies else name
        under = [alive for end, alive in columns if end > RIGHT - 18 - length(words, SMALL)]
        low = min(plot.y.at(sum(alive[:place]) / GIB) for alive in under)
        high = max(plot.y.at(sum(alive[: place + 1]) / GIB) for alive in under)
        if low - high > 12:
            found.append(small(RIGHT - 12, (low + high) / 2 + 5, words, anchor="end", fill=ink))
    return found


def _marks(step: Step, plot: Plot) -> list[str]:
    """The peak, the peak without checkpointing, and the moment that is looked at."""
    x, y = plot.at(step.peak.start + step.peak.seconds / 2, step.peak.total / GIB)
    plain, peak = plot.y.at(step.plain_peak / GIB), f"peak {size(step.peak.total)}"
    peak += ": optimizer step" if step.peak.kind == "optimizer" else ""
    # it moves with the slider, also within a layer's pass
    now = cursor(_axis(step), step.now, TOP - 6, LANE + HIGH + 16)
    found = [now, dot(x, y, 4, fill=INK), between(LEFT, RIGHT - 14, x, y - 12, peak, weight="bold")]
    if y - plain > 44:
        without = f"without checkpointing {size(step.plain_peak)}"
        found.append(line(LEFT, plain, RIGHT, plain, stroke=INK, width=1.5, dash="6 4"))
        found.append(small(RIGHT - 4, plain - 6, without, anchor="end", halo=True))
    return [*found, *_stepping(step, plot, x + length(peak, bold=True) / 2, plain)]


def _stepping(step: Step, plot: Plot, taken: float, plain: float) -> list[str]:
    """What the last block of the curve is, above all that lies below the words, if `taken` and `plain` leave room."""
    words, last = "optimizer step: temporaries", step.moments[-1]
    x, left = RIGHT - _axis(step).seen(last.seconds) / 2, RIGHT - length(words, SMALL) - 8
    most = max(moment.total for moment in step.moments if _axis(step).x(moment.start + moment.seconds) > left)
    y = plot.y.at((step.peak.total if taken > left else most) / GIB) - 34
    if not last.temporary or step.peak.kind == "optimizer" or plain > y - 14:
        return []
    return [line(x, y + 4, x, plot.y.at(last.total / GIB)), small(RIGHT, y, words, anchor="end", halo=True)]


def _runs(step: Step, *kinds: str) -> list[Stretch]:
    """When such moments follow one another."""
    runs = [list(group) for one, group in groupby(step.moments, lambda moment: moment.kind in kinds) if one]
    return [(run[0].start, run[-1].start + run[-1].seconds) for run in runs]


def _phases(step: Step) -> list[str]:
    """Lanes under the curve: the passes, and what is computed again."""
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
    found.append(blocks(axis, again, low, 13, fill=INK))
    words = f"{step.recomputed} of {step.sizes.layers} layers are computed again: {percent(step.extra)} more compute"
    return [*found, key(LEFT, y, words, fill=INK)]


def _choice(step: Step) -> list[str]:
    """The peak with each number of segments, and of it the activations; the chosen one is filled."""
    layers, chosen, bars = step.sizes.layers, len(step.segments), _bars(step)
    peaks = {number: peak_with(step.sizes, number) / GIB for number in range(1, layers + 1)}
    activations = {number: kept(step.sizes, number) / GIB for number in peaks}
    height, pitch = _height(step), bars.at(2) - bars.at(1)
    wide = min(pitch - (1 if pitch > 3 else 0), 40)
    found = [line(PANEL, BOTTOM, END, BOTTOM, stroke=MUTED)]
    for values, fill in ((peaks, RULE), (activations, PURPLE)):
        sides = ((bars.at(number) - wide / 2, height.at(value)) for number, value in values.items())
        found.append(boxes(((x, y, wide, BOTTOM - y) for x, y in sides), fill=fill))
    x, y = bars.at(chosen), height.at(peaks[chosen])
    found += [rect(x - wide / 2, y, wide, BOTTOM - y, fill=INK, stroke=INK), line(x, TOP - 5, x, y)]
    told = f"peak with {count(chosen, 'segment')}: {size(step.peak.total)}"
    found.append(between(PANEL, END, x, TOP - 10, told, size=SMALL, weight="bold"))
    found += [note(PANEL, BOTTOM + 25, "1"), note(END, BOTTOM + 25, count(layers, "segment"), anchor="end")]
    signs = (bars.at(step.best), BOTTOM + 2), (PANEL + 133, BOTTOM + 48)
    found += [pointer(at, tip, half=5, high=-8) for at, tip in signs]
    found.append(note(PANEL + 144, BOTTOM + 58, f"least: {step.best}"))
    return [*found, key(PANEL, BOTTOM + 58, "activations", fill=PURPLE)]


def _bars(step: Step) -> Scale:
    """The numbers of segments, each where the middle of its bar is."""
    pitch, most = (END - PANEL) / step.sizes.layers, max(2, step.sizes.layers)
    first = PANEL + min(pitch, 40) / 2
    return Scale(first, first + pitch * (most - 1), 1, most)


def _bars_as_grip(step: Step) -> list[str]:
    """The bars choose the number of segments: that under the pointer."""
    ground = grasp(PANEL - 4, TOP - 8, END - PANEL + 8, BOTTOM - TOP + 20)
    return [Live(draggable(ground, "Segments", _bars(step).grip("segments")))] if step.sizes.layers > 1 else []

"""The picture of a training step on N GPUs: both time lines, the ring at work on one bucket, and the scaling."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

from virtualgpu.pictures.style import BLUE, EDGE, GREEN, INK, MUTED, ON, ORANGE, PAPER, PURPLE, RULE, SKY, VERMILLION
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, bar, boxes, dot, length, line, polyline, rect, text

from ..base.lanes import Axis, blocks, cursor, playhead
from ..base.scene import END, Box, Plot, Scale, beside_ends, chip, fitted, keys, note, picture, pointer, small
from ..base.touch import clickable, draggable, grasp, named
from ..base.words import count, duration, percent
from .model import BUCKETS, MOST_GPUS, data_parallel_seconds, ddp_seconds, held, hops, sends
from .result import FRAMES, Step, times

LEFT, RIGHT, READ = 130.0, 700.0, 718.0
DDP, RING, OTHER, LOW, CHIPS = 44.0, 86.0, 128.0, 168.0, 190.0  # the lanes, from top to bottom
HIGH, RING_HIGH = 38.0, 34.0
WAITS = ("waits for the all-reduce", "waits")
FEW = 40  # buckets: more are not named
BELOW = 222.0
PIECES, PIECES_TOP, PIECES_HIGH = 96.0, BELOW + 65, 160.0  # of all GPUs, a row for each
NUMBERED = 8  # GPUs: the pieces of more have no room for a number


def draw(step: Step) -> Picture:
    """Both steps on one time line, and below it the ring at work and the speed over the number of GPUs."""
    axis = Axis(LEFT, RIGHT, max(step.seconds, step.data_parallel_seconds or 0))
    lanes = _lanes(step)
    body = [
        text(MARGIN, 14, "One training step", weight="bold"),
        note(MARGIN, 33, "virtual time"),
        *keys(END, 14, ("forward", SKY), ("backward", ORANGE), ("between GPUs", PURPLE), ends=True),
        *axis.draw(DDP - 6, LOW),
        text(MARGIN, DDP + 24, "DDP computes"),
        text(MARGIN, RING + 22, "all-reduce"),
        text(MARGIN, OTHER + 21, "DataParallel"),
        *_ddp(step, axis),
        *(lane.draw(axis) for lane in lanes),
        cursor(axis, step.now, DDP - 6, LOW),
        *(lane.named(axis, step.now) for lane in lanes),
        *_left_over(step, axis),
        *_chips(step),
        *_readings(step, axis, DDP + 12, step.seconds),
        *_readings(step, axis, OTHER + 12, step.data_parallel_seconds),
    ]
    grip = playhead(axis, step.seconds, DDP - 12, LOW, last=FRAMES, over=_names(step, axis))
    return picture(step, 452.0, body, _ring(step), _scaling(step, BELOW), [grip])


class Lane(NamedTuple):
    """A stretch of time in a lane; `words` are tried until some fit."""

    begin: float
    end: float
    top: float
    fill: str
    words: tuple[str, ...] = ()

    def draw(self, axis: Axis) -> str:
        return bar(axis.x(self.begin), self.top, axis.seen(self.end - self.begin), HIGH, fill=self.fill)

    def named(self, axis: Axis, now: float) -> str:
        """Its words, in all of it or in the longer part to one side of the moment, whose line goes through no word."""
        at = min(max(now, self.begin), self.end)
        part = max((self.begin, at), (at, self.end), key=lambda part: part[1] - part[0])
        ink = INK if self.fill == PAPER else ON
        return fitted(axis.x(part[0]), axis.seen(part[1] - part[0]), self.top + HIGH / 2 + 5, *self.words, fill=ink)


def _ddp(step: Step, axis: Axis) -> list[str]:
    """Backward and the ring, bucket by bucket."""
    work = step.work
    room = axis.seen(work.compute - work.forward) / len(step.buckets)
    ends = [bucket.ready for bucket in step.buckets] if room > 5 else [work.compute]
    drawn = [blocks(axis, pairwise((work.forward, *ends)), DDP, HIGH, fill=ORANGE, stroke=EDGE)]
    if step.gpus > 1:
        drawn.append(blocks(axis, (bucket[1:] for bucket in step.buckets), RING, RING_HIGH, fill=PURPLE, stroke=EDGE))
    return drawn


def _left_over(step: Step, axis: Axis) -> list[str]:
    """What the GPUs wait for the ring, where no word has room in it."""
    if step.exposed < 0.005 * step.seconds or length(WAITS[-1], SMALL) + 6 < axis.seen(step.exposed):
        return []
    x, low = axis.x(step.seconds) + 5, RING + RING_HIGH
    share, bracket = percent(1 - step.hidden), polyline([(x, DDP), (x + 5, DDP), (x + 5, low), (x, low)])
    words = f"not hidden: {duration(step.exposed)} ({share})"
    if x + 18 + length(words, bold=True) > READ:  # below what is read off
        return [bracket, small(READ, RING + 22, f"{share} not hidden", weight="bold")]
    return [bracket, text(x + 12, (DDP + low) / 2 + 5, words, weight="bold", halo=True)]


def _lanes(step: Step) -> list[Lane]:
    """What no bucket cuts in pieces."""
    work, copies, at = step.work, step.copies, 0.0
    lanes = [Lane(0, work.forward, DDP, SKY), Lane(work.compute, step.seconds, DDP, PAPER, WAITS)]
    if copies is None:
        return lanes
    for seconds, fill, words in (
        (copies.weights, PURPLE, ("send weights to all", "send weights", "weights")),
        (work.forward, SKY, ("forward",)),
        (copies.outputs + copies.output_gradients, PURPLE, ("outputs to GPU 0 and back", "send outputs")),
        (work.compute - work.forward, ORANGE, ("backward",)),
        (copies.gradients, PURPLE, ("sum gradients on GPU 0", "sum gradients", "sum")),
    ):
        lanes.append(Lane(at, at + seconds, OTHER, fill, words))
        at += seconds
    return lanes


def _readings(step: Step, axis: Axis, y: float, seconds: float | None) -> list[str]:
    if seconds is None:
        now, words = axis.x(step.now) + 6, "its one process cannot leave its machine"
        return [note(LEFT + 6 if now > LEFT + 18 + length(words, SMALL) else now, y + 9, words, halo=True)]
    speedup = times(step.gpus * step.work.compute / seconds)
    return [text(READ, y, duration(seconds), weight="bold"), small(READ, y + 19, f"{speedup} × one GPU")]


def _names(step: Step, axis: Axis) -> str:
    """What is told of a bucket where the pointer rests on its way through the ring."""
    found = []
    for number, (ready, start, end) in enumerate(step.buckets if len(step.buckets) <= FEW else ()):
        area = grasp(axis.x(start), RING, axis.seen(end - start), RING_HIGH)
        way = f"in the ring from {duration(start)} to {duration(end)}"
        found.append(named(area, f"bucket {number + 1} of {len(step.buckets)}: full at {duration(ready)}, {way}"))
    return "".join(found)


def _chips(step: Step) -> list[str]:
    """The sizes of a bucket, each to be chosen."""
    work, x = step.work, LEFT
    body = [note(MARGIN, CHIPS, "DDP’s buckets")]
    for value, words in BUCKETS.items():
        here = work.bucket_bytes == (work.gradient_bytes if isinstance(value, str) else value * 2**20)
        fill, stroke, weight = (RULE, INK, "bold") if here else (PAPER, MUTED, "")
        drawn, x = chip(x, CHIPS, words, fill=fill, stroke=stroke, radius=10, weight=weight)
        body.append(clickable(drawn, f"Gradient bucket: {words}", bucket=value))
    return [*body, small(x + 8, CHIPS, f"makes {count(len(step.buckets), 'bucket')}")]


def _ring(step: Step) -> list[str]:
    """One bucket on its way: a row of pieces for each GPU, a number in those that travel now."""
    gpus, done = step.gpus, step.hops_done
    pitch, wide = min(30.0, PIECES_HIGH / gpus), min(42.0, 336 / gpus)
    high, moving = 0.76 * pitch, done is not None and done < hops(gpus)
    cells: dict[tuple[bool, str], list[Box]] = {}
    body = [
        text(MARGIN, BELOW, "One bucket in slow motion", weight="bold"),
        note(462, BELOW, f"{step.work.link.words}, {step.work.rate / 1e9:.3g} GB/s", anchor="end"),
        note(MARGIN, BELOW + 19, _now(step)),
        *keys(MARGIN, BELOW + 39, ("its own", RULE), ("sum of some", PURPLE), (f"sum of all {gpus}", GREEN)),
        note(PIECES - 8, PIECES_TOP - 7, count(gpus, "piece"), anchor="end"),
    ]
    numbers = []
    for gpu in range(gpus):
        top, base = PIECES_TOP + gpu * pitch, PIECES_TOP + gpu * pitch + high / 2 + 5
        if pitch > 14 or gpu % 2 == 0:
            body.append(small(PIECES - 8, base, f"GPU {gpu}", anchor="end"))
        for piece in range(gpus):
            number, x = 0 if done is None else held(gpu, piece, gpus, done), PIECES + piece * wide
            now = moving and piece in (sends(gpu, gpus, done or 0), sends((gpu - 1) % gpus, gpus, done or 0))
            fill = GREEN if number == gpus else PURPLE if number > 1 else RULE
            cells.setdefault((now, fill), []).append((x + 1, top, wide - 2, high))
            if now and gpus <= NUMBERED:
                ink = INK if fill == RULE else ON
                numbers.append(small(x + wide / 2, base, str(number), anchor="middle", fill=ink))
    veil = rect(PIECES, PIECES_TOP, gpus * wide, gpus * pitch, fill=PAPER, opacity=0.6)
    resting, busy = ([boxes(c, fill=k[1], stroke=EDGE * k[0]) for k, c in cells.items() if k[0] == on] for on in (0, 1))
    body += [*resting, veil, *busy] if moving or done is None else resting
    return [*body, *numbers, *(_messages(gpus, done or 0, pitch, wide) if moving else [])]


def _messages(gpus: int, done: int, pitch: float, wide: float) -> list[str]:
    """A frame around the piece that each GPU hands on, and a head at who gets it; the last one's goes to the first."""
    body, high = [], 0.76 * pitch
    for gpu in range(gpus):
        left, top = PIECES + sends(gpu, gpus, done) * wide, PIECES_TOP + gpu * pitch
        x, tip = left + wide / 2, top + pitch
        if gpu == gpus - 1:
            side, tip, low = PIECES + gpus * wide + 12, PIECES_TOP, top + high
            body.append(polyline([(x, low), (x, low + 5), (side, low + 5), (side, tip - 8), (x, tip - 8)], width=1.5))
        body.append(rect(left + 1, top, wide - 2, high, stroke=INK, edge=2))
        body.append(pointer(x, tip, half=min(5.5, wide / 4), high=min(6, pitch - high)))
    return body


def _now(step: Step) -> str:
    done, half = step.hops_done, step.gpus - 1
    if step.gpus == 1:
        return "one GPU: its gradients are all there are"
    if done is None:
        return "no bucket is full yet"
    if done >= 2 * half:
        return f"done: every GPU has the sum of all {step.gpus}"
    what = "reduce-scatter: each adds its part to a piece" if done < half else "all-gather: finished sums go round"
    return f"hop {done + 1} of {2 * half}, {what}"


def _scaling(step: Step, top: float) -> list[str]:
    """Speed against one GPU, for every number of GPUs, all else as it is."""
    numbers = range(1, MOST_GPUS + 1)
    speeds = {"DDP": [n * step.work.compute / ddp_seconds(step.work, n) for n in numbers]}
    if step.copies is not None:
        others = (data_parallel_seconds(step.work, n) or math.inf for n in numbers)
        speeds["DataParallel"] = [n * step.work.compute / seconds for n, seconds in zip(numbers, others, strict=True)]
    most = next(most for most in (2, 4, 8, MOST_GPUS) if most >= max(map(max, speeds.values())) - 1e-9)
    plot = Plot(Scale(516.0, 690.0, 1, MOST_GPUS), Scale(top + 206, top + 42, 0, most))
    right, bottom = plot.x.end, plot.y.start
    body = [
        text(490, top, "Speed, in single GPUs (virtual)", weight="bold"),
        note(490, top + 19, "each with a batch of its own"),
        *plot.levels({most * part / 4: f"{most * part / 4:g}" for part in range(5)}),
        *plot.x.ticks(bottom, {value: str(value) for value in (1, 4, 8, 12, 16)}),
        plot.floor(),
        note(right + 12, bottom + 18, "GPUs"),
        plot.curve([(1, 1), (MOST_GPUS, 1)], stroke=MUTED),
        plot.curve([(1, 1), (most, most)], stroke=MUTED, width=1.5, dash="5 4"),
    ]
    ends, worth = {"as fast as one GPU": plot.y.at(1)}, speeds["DDP"]
    linear = worth[-1] > 0.93 * MOST_GPUS
    for name, values in reversed(speeds.items()):
        stroke, dash = (BLUE, "") if name == "DDP" else (VERMILLION, "2 3")
        body.append(plot.curve(zip(numbers, values, strict=True), stroke=stroke, width=2.5, dash=dash))
        ends[f"{name}, almost linear" if name == "DDP" and linear else name] = plot.y.at(values[-1])
        (x, y), words = plot.at(step.gpus, values[step.gpus - 1]), times(values[step.gpus - 1])
        body.append(dot(x, y, 6, fill=BLUE) if name == "DDP" else rect(x - 5, y - 5, 10, 10, fill=VERMILLION))
        left = max(x + 3 - length(words, SMALL), plot.x.start) if name == "DDP" else x + 8
        body.append(small(left, y + (-10 if name == "DDP" else 18), words, halo=True))
    first = next((n for n in numbers if n > 1 and worth[n - 1] >= 1), None)
    if step.copies is None and first and worth[1] < 1:
        x, y = plot.at(first, worth[first - 1])
        body += [line(x, y, x, bottom, stroke=MUTED, dash="3 3"), dot(x, y, 4, fill=PAPER, stroke=INK)]
        body.append(small(x + 6, bottom - 8, f"faster from {first} GPUs on"))
    if most == MOST_GPUS and not linear:
        ends["linear"] = plot.y.at(most) - 1
    elif most < MOST_GPUS:
        body.append(note(plot.x.at(most) + 8, plot.y.end + 13, "linear"))
    return [*body, *beside_ends(right + 12, bottom, ends), draggable(grasp(*plot.box(24)), "GPUs", plot.x.grip("gpus"))]

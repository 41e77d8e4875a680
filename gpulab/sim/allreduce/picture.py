"""The picture of a training step on N GPUs: both time lines, the ring at work on one bucket, and the scaling.

What it shows is computed in `allreduce` and `ring`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from virtualgpu.pictures.style import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, RULE, SKY, VERMILLION
from virtualgpu.pictures.svg import MARGIN, Picture, bar, boxes, dot, polyline, rect, shape, text

from ..base.lanes import Axis, Stretch, cursor, inside, playhead, veil
from ..base.scene import Plot, Scale, beside_ends, chip, note, picture, small
from ..base.touch import clickable, draggable, grasp, named
from ..base.words import count, duration
from .model import BUCKETS, MOST_GPUS, Bucket, data_parallel_seconds, ddp_seconds, held, hops, sends
from .result import FRAMES, Step, times

LEFT, RIGHT, READ = 130.0, 700.0, 718.0
DDP, RING, OTHER, LOW, CHIPS = 24.0, 57.0, 89.0, 121.0, 126.0  # the lanes, from top to bottom
BLOCKS = 40  # drawn in a lane at most; where there are more buckets, a block stands for several
BELOW = 174.0
SEATS = 8  # at the ring: of more GPUs some are told in words
MIDDLE, CENTRE, ACROSS, DOWN = 232.0, BELOW + 150, 172.0, 100.0  # of the ring
NODE, NODE_HIGH, PIECES_HIGH = 72.0, 38.0, 18.0


def draw(step: Step) -> Picture:
    """Both steps on one time line, and below it the ring at work and the speed over the number of GPUs."""
    axis = Axis(LEFT, RIGHT, max(step.seconds, step.data_parallel_seconds or 0))
    lanes = [*_ddp_lanes(step), *_data_parallel_lanes(step)]
    body = [
        note(MARGIN, DDP - 11, "virtual time"),
        *axis.draw(DDP - 6, LOW),
        text(MARGIN, DDP + 18, "DDP computes"),
        text(MARGIN, RING + 17, "all-reduce"),
        text(MARGIN, OTHER + 18, "DataParallel"),
        *(lane.draw(axis) for lane in lanes),
        veil(axis, step.now, DDP - 4, LOW),
        cursor(axis, step.now, DDP - 6, LOW),
        *(inside(axis, lane.beside(step.now), lane.words, lane.top + lane.high / 2 + 5) for lane in lanes),
        *_chips(step),
        *_readings(DDP + 12, step.seconds, step.speedup),
        *_readings(OTHER + 12, step.data_parallel_seconds, step.data_parallel_speedup),
    ]
    grip = playhead(axis, step.seconds, DDP - 12, LOW, last=FRAMES, over=_names(step, axis))
    return picture(step, 452.0, body, _ring(step), _scaling(step, BELOW), [grip])


class Lane(NamedTuple):
    """A stretch of time in a lane; `words` are tried until some fit."""

    begin: float
    end: float
    top: float
    high: float
    fill: str
    words: tuple[str, ...] = ()
    busy: float = 1.0  # share of `high` that is drawn

    def beside(self, now: float) -> Stretch:
        """All of it, or the longer part to one side of the moment: words stand there, and no line goes through them."""
        at = min(max(now, self.begin), self.end)
        return max((self.begin, at), (at, self.end), key=lambda part: part[1] - part[0])

    def draw(self, axis: Axis) -> str:
        wide, high = axis.seen(self.end - self.begin), self.high * self.busy
        top, edge = self.top + self.high - high, INK if wide > 3 else ""
        hatched = self.fill == PURPLE and wide > 6
        return bar(axis.x(self.begin), top, wide, high, fill=self.fill, hatched=hatched, stroke=edge)


def _ddp_lanes(step: Step) -> list[Lane]:
    work, begin = step.work, step.work.forward
    lanes = [Lane(0, begin, DDP, 28, SKY, ("forward",))]
    for block in _blocks(step.buckets):
        lanes.append(Lane(begin, block[-1].ready, DDP, 28, ORANGE))
        begin = block[-1].ready
        if step.gpus > 1:
            start, end = block[0].start, block[-1].end
            busy = sum(bucket.end - bucket.start for bucket in block) / (end - start)
            lanes.append(Lane(start, end, RING, 24, PURPLE, busy=busy))
    lanes.append(Lane(work.forward, work.compute, DDP, 28, "none", ("backward",)))
    return [*lanes, Lane(work.compute, step.seconds, DDP, 28, PAPER, ("waits for the all-reduce", "waits"))]


def _data_parallel_lanes(step: Step) -> list[Lane]:
    if step.copies is None:
        return []
    work, copies, at, lanes = step.work, step.copies, 0.0, []
    for seconds, fill, words in (
        (copies.weights, PURPLE, ("weights to all", "weights")),
        (work.forward, SKY, ("forward",)),
        (copies.outputs + copies.output_gradients, PURPLE, ("outputs to GPU 0 and back", "outputs")),
        (work.compute - work.forward, ORANGE, ("backward",)),
        (copies.gradients, PURPLE, ("gradients to GPU 0", "gradients", "sum")),
    ):
        lanes.append(Lane(at, at + seconds, OTHER, 28, fill, words))
        at += seconds
    return lanes


def _readings(y: float, seconds: float | None, speedup: float | None) -> list[str]:
    if seconds is None or speedup is None:
        return [note(READ, y, "one process,"), note(READ, y + 17, "one machine")]
    return [text(READ, y, duration(seconds), weight="bold"), small(READ, y + 19, f"{times(speedup)} × one GPU")]


def _blocks(buckets: Sequence[Bucket]) -> list[Sequence[Bucket]]:
    several = math.ceil(len(buckets) / BLOCKS)
    return [buckets[start : start + several] for start in range(0, len(buckets), several)]


def _names(step: Step, axis: Axis) -> str:
    """What is told of a bucket where the pointer rests on its way through the ring."""
    found = []
    for number, (ready, start, end) in enumerate(step.buckets if len(step.buckets) <= BLOCKS else ()):
        area = grasp(axis.x(start), RING, axis.seen(end - start), 24)
        way = f"in the ring from {duration(start)} to {duration(end)}"
        found.append(named(area, f"bucket {number + 1} of {len(step.buckets)}: full at {duration(ready)}, {way}"))
    return "".join(found)


def _chips(step: Step) -> list[str]:
    """The sizes of a bucket, each to be chosen."""
    work, x = step.work, LEFT
    body = [note(MARGIN, CHIPS + 14, "DDP's buckets")]
    for value, words in BUCKETS.items():
        here = work.bucket_bytes == (work.gradient_bytes if isinstance(value, str) else value * 2**20)
        fill, stroke, weight = (RULE, INK, "bold") if here else (PAPER, MUTED, "")
        drawn, x = chip(x, CHIPS + 14, words, fill=fill, stroke=stroke, radius=10, weight=weight)
        body.append(clickable(drawn, f"Gradient bucket: {words}", bucket=value))
    return [*body, small(x + 8, CHIPS + 14, f"makes {count(len(step.buckets), 'bucket')}")]


def _ring(step: Step) -> list[str]:
    """One bucket on its way: the GPUs with their pieces on a ring, and what each hands to the next."""
    gpus, done = step.gpus, step.hops_done
    seats: list[int | None] = list(range(gpus))
    if gpus > SEATS:
        seats = [0, 1, 2, 3, None, gpus - 3, gpus - 2, gpus - 1]
    moving = done is not None and done < hops(gpus)
    body = [
        text(MARGIN, BELOW, "Inside the ring: one bucket, in slow motion", weight="bold"),
        note(MARGIN, BELOW + 19, _now(step)),
    ]
    if gpus > 1:
        sent = f"{(done or 0) / gpus:.3g} of {hops(gpus) / gpus:.3g} buckets"
        body += [
            polyline([_place(turn / 60) for turn in range(61)], stroke=MUTED, width=1.5),
            note(MIDDLE, CENTRE - 22, "each GPU has sent", anchor="middle"),
            text(MIDDLE, CENTRE - 4, sent, anchor="middle", weight="bold"),
            note(MIDDLE, CENTRE + 20, "bars: the bucket’s pieces;", anchor="middle"),
            note(MIDDLE, CENTRE + 37, "height: GPUs summed so far,", anchor="middle"),
            note(MIDDLE, CENTRE + 54, "green: all of them", anchor="middle"),
        ]
    for seat, gpu in enumerate(seats):
        x, y = _place(seat / len(seats))
        if gpu is None:
            words = count(gpus - len(seats) + 1, "more GPU").replace("more GPUs", "more")
            body.append(small(x, y + 5, words, anchor="middle", halo=True))
        else:
            body += _node(step, gpu, x, y)
        if gpus > 1:
            passed = (step.hops_passed or 0) - (done or 0) if moving else 0.5
            turn = (seat + 0.5 + (passed - 0.5) * (1 - len(seats) / 9.5)) / len(seats)
            body += _message(step, gpus - 4 if gpu is None else gpu, turn, moving)
    return body


def _place(turn: float) -> tuple[float, float]:
    """A point of the ring, so much of a turn from its top on, as a clock goes."""
    return MIDDLE + ACROSS * math.sin(2 * math.pi * turn), CENTRE - DOWN * math.cos(2 * math.pi * turn)


def _node(step: Step, gpu: int, x: float, y: float) -> list[str]:
    """A GPU and its pieces; a finished sum is full and green, and a tick says that all are."""
    gpus, done = step.gpus, step.hops_done
    left, low, wide = x - NODE / 2 + 3, y + NODE_HIGH / 2 - 3, (NODE - 6) / step.gpus
    sums = [0 if done is None else held(gpu, piece, gpus, done) for piece in range(gpus)]
    bars = [
        (left + piece * wide, low - PIECES_HIGH * number / gpus, wide, PIECES_HIGH * number / gpus)
        for piece, number in enumerate(sums)
    ]
    parts, whole = (
        [box for box, number in zip(bars, sums, strict=True) if (number == gpus) == full] for full in (False, True)
    )
    found = [
        rect(x - NODE / 2, y - NODE_HIGH / 2, NODE, NODE_HIGH, fill=PAPER, stroke=INK, radius=3),
        small(x - NODE / 2 + 5, y - NODE_HIGH / 2 + 13, f"GPU {gpu}"),
        boxes(parts, fill=PURPLE, stroke=PAPER),
        boxes(whole, fill=GREEN, stroke=PAPER),
    ]
    if len(whole) == gpus:
        tick = [(x + 20, y - 11), (x + 24, y - 7), (x + 31, y - 16)]
        found.append(polyline(tick, stroke=INK, width=2))
    return found


def _message(step: Step, gpu: int, turn: float, moving: bool) -> list[str]:
    """The piece that a GPU hands on, at a point of the ring, and before it an arrow."""
    x, y = _place(turn)
    after = _place(turn + 1e-3)
    way = math.atan2(after[1] - y, after[0] - x)
    ahead = 12 if moving else 0
    corners = [
        (x + ahead * math.cos(way) + far * math.cos(way + side), y + ahead * math.sin(way) + far * math.sin(way + side))
        for far, side in ((6.0, 0.0), (6.0, 2.2), (6.0, -2.2))
    ]
    found = [shape(corners, fill=INK)]
    if moving and step.hops_done is not None:
        number = held(gpu, sends(gpu, step.gpus, step.hops_done), step.gpus, step.hops_done)
        high = PIECES_HIGH * number / step.gpus
        found.append(rect(x - 5, y - PIECES_HIGH / 2, 10, PIECES_HIGH, fill=PAPER, stroke=INK))
        found.append(bar(x - 5, y + PIECES_HIGH / 2 - high, 10, high, fill=GREEN if number == step.gpus else PURPLE))
    return found


def _now(step: Step) -> str:
    done, half = step.hops_done, step.gpus - 1
    if step.gpus == 1:
        return "one GPU: its gradients are all there are"
    if done is None:
        return "no bucket is full yet"
    if done >= 2 * half:
        return f"done: every GPU has the sum of all {step.gpus}"
    if done < half:
        return f"hop {done + 1} of {2 * half}, reduce-scatter: each adds its part to a piece"
    return f"hop {done + 1} of {2 * half}, all-gather: finished sums go round"


def _scaling(step: Step, top: float) -> list[str]:
    """Speed against one GPU, for every number of GPUs, all else as it is."""
    numbers = range(1, MOST_GPUS + 1)
    plot = Plot(Scale(494.0, 736.0, 1, MOST_GPUS), Scale(top + 244, top + 30, 0, MOST_GPUS))
    right, bottom = plot.x.end, plot.y.start
    speeds = [n * step.work.compute / ddp_seconds(step.work, n) for n in numbers]
    body = [
        text(462, top, "Speed, in single GPUs (virtual)", weight="bold"),
        note(462, top + 19, "each with a batch of its own"),
        *plot.levels({value: str(value) for value in (4, 8, 12, 16)}),
        *plot.x.ticks(bottom, {value: str(value) for value in (1, 4, 8, 12, 16)}),
        plot.floor(),
        note(right + 12, bottom + 18, "GPUs"),
        plot.curve([(1, 1), (MOST_GPUS, MOST_GPUS)], stroke=MUTED, width=1.5, dash="5 4"),
        plot.curve(zip(numbers, speeds, strict=True), stroke=BLUE, width=2.5),
    ]
    ends = {"linear": plot.y.at(MOST_GPUS), "DDP": plot.y.at(speeds[-1])}
    if step.copies is not None:
        others = [n * step.work.compute / (data_parallel_seconds(step.work, n) or math.inf) for n in numbers]
        body.append(plot.curve(zip(numbers, others, strict=True), stroke=VERMILLION, width=2.5, dash="2 3"))
        ends["DataParallel"] = plot.y.at(others[-1])
        x, y = plot.at(step.gpus, others[step.gpus - 1])
        body.append(rect(x - 5, y - 5, 10, 10, fill=VERMILLION))
    body += [dot(*plot.at(step.gpus, step.speedup), 6, fill=BLUE), *beside_ends(right + 12, bottom, ends)]
    return [*body, draggable(grasp(*plot.box(24)), "GPUs", plot.x.grip("gpus"))]

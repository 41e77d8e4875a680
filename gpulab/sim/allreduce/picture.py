"""The picture of a training step on N GPUs: both time lines, the ring at work on one bucket, and the scaling."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

from virtualgpu.pictures.style import BLUE, EDGE, GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, RULE, SKY, VERMILLION
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, bar, boxes, dot, length, polyline, rect, text

from ..base.lanes import Axis, blocks, cursor, inside, playhead, veil
from ..base.scene import END, Box, Plot, Scale, arrow, beside_ends, chip, keys, note, picture, pointer, small
from ..base.touch import clickable, draggable, grasp, named
from ..base.words import count, duration, percent
from .model import BUCKETS, MOST_GPUS, data_parallel_seconds, ddp_seconds, held, hops, sends
from .result import FRAMES, Step, times

LEFT, RIGHT, READ = 130.0, 700.0, 718.0
DDP, RING, OTHER, LOW, CHIPS = 44.0, 80.0, 112.0, 146.0, 168.0  # the lanes, from top to bottom
HIGH, RING_HIGH = 32.0, 26.0
WAITS = ("waits for the all-reduce", "waits")
FEW = 40  # buckets: more are not hatched and not named
BELOW = 198.0
PIECES, PIECES_TOP, PIECES_HIGH = 96.0, BELOW + 60, 192.0  # of all GPUs, a row for each


def draw(step: Step) -> Picture:
    """Both steps on one time line, and below it the ring at work and the speed over the number of GPUs."""
    axis = Axis(LEFT, RIGHT, max(step.seconds, step.data_parallel_seconds or 0))
    lanes = _lanes(step)
    body = [
        text(MARGIN, 14, "One training step", weight="bold"),
        note(MARGIN, 33, "virtual time"),
        *keys(END, 14, ("forward", SKY), ("backward", ORANGE), ("between GPUs", PURPLE, True), ends=True),
        *axis.draw(DDP - 6, LOW),
        text(MARGIN, DDP + 21, "DDP computes"),
        text(MARGIN, RING + 18, "all-reduce"),
        text(MARGIN, OTHER + 21, "DataParallel"),
        *_ddp(step, axis),
        *(lane.draw(axis) for lane in lanes),
        veil(axis, step.now, DDP - 4, LOW),
        cursor(axis, step.now, DDP - 6, LOW),
        *(lane.named(axis, step.now) for lane in lanes),
        *_left_over(step, axis),
        *_chips(step),
        *_readings(step, DDP + 12, step.seconds),
        *_readings(step, OTHER + 12, step.data_parallel_seconds),
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
        x, wide = axis.x(self.begin), axis.seen(self.end - self.begin)
        return bar(x, self.top, wide, HIGH, fill=self.fill, hatched=self.fill == PURPLE)

    def named(self, axis: Axis, now: float) -> str:
        """Its words, in all of it or in the longer part to one side of the moment, whose line goes through no word."""
        at = min(max(now, self.begin), self.end)
        part = max((self.begin, at), (at, self.end), key=lambda part: part[1] - part[0])
        return inside(axis, part, self.words, self.top + HIGH / 2 + 5)


def _ddp(step: Step, axis: Axis) -> list[str]:
    """Backward and the ring, bucket by bucket."""
    work = step.work
    room = axis.seen(work.compute - work.forward) / len(step.buckets)
    ends = [bucket.ready for bucket in step.buckets] if room > 5 else [work.compute]
    drawn = [blocks(axis, pairwise((work.forward, *ends)), DDP, HIGH, fill=ORANGE, stroke=EDGE)]
    if step.gpus > 1:
        ring, few = ((start, end) for _, start, end in step.buckets), len(step.buckets) <= FEW
        drawn.append(blocks(axis, ring, RING, RING_HIGH, fill=PURPLE, stroke=EDGE, hatched=few))
    return drawn


def _left_over(step: Step, axis: Axis) -> list[str]:
    """What the GPUs wait for the ring, where no word has room in it."""
    if step.exposed < 0.005 * step.seconds or length(WAITS[-1], SMALL) + 6 < axis.seen(step.exposed):
        return []
    x, words = axis.x(step.seconds) + 8, f"waits {duration(step.exposed)}"
    tries = (f"{words}: {percent(1 - step.hidden)} is left over", words)
    fit = [small(x, DDP + 21, words, weight="bold", halo=True) for words in tries if x + 1.2 * length(words) < READ]
    return fit[:1]


def _lanes(step: Step) -> list[Lane]:
    """What no bucket cuts in pieces."""
    work, copies, at = step.work, step.copies, 0.0
    lanes = [Lane(0, work.forward, DDP, SKY), Lane(work.compute, step.seconds, DDP, PAPER, WAITS)]
    if copies is None:
        return lanes
    for seconds, fill, words in (
        (copies.weights, PURPLE, ("weights to all", "weights")),
        (work.forward, SKY, ()),
        (copies.outputs + copies.output_gradients, PURPLE, ("outputs to GPU 0 and back", "outputs")),
        (work.compute - work.forward, ORANGE, ()),
        (copies.gradients, PURPLE, ("gradients to GPU 0", "gradients", "sum")),
    ):
        lanes.append(Lane(at, at + seconds, OTHER, fill, words))
        at += seconds
    return lanes


def _readings(step: Step, y: float, seconds: float | None) -> list[str]:
    if seconds is None:
        return [note(LEFT + 6, y + 9, "its one process cannot leave its machine", halo=True)]
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
    """One bucket on its way: a row of pieces for each GPU, and where each hands one to the next."""
    gpus, done, pitch = step.gpus, step.hops_done, min(25.0, PIECES_HIGH / step.gpus)
    wide, high = min(38.0, 330 / gpus), pitch - 4
    sent = f"each GPU has sent {(done or 0) / gpus:.3g} of its {hops(gpus) / gpus:.3g} buckets"
    legend = BELOW + 52
    body = [
        text(MARGIN, BELOW, "One bucket in slow motion", weight="bold"),
        note(MARGIN, BELOW + 18, _now(step)),
        note(MARGIN, BELOW + 35, sent),
        *keys(MARGIN, legend, ("a piece: the sum of some GPUs", PURPLE), ("sum of all", GREEN)),
        pointer(382, legend, half=5, high=9),
        note(394, legend, "being sent on"),
    ]
    cells: list[Box] = []
    parts: list[Box] = []
    whole: list[Box] = []
    for gpu in range(gpus):
        top = PIECES_TOP + gpu * pitch
        body.append(small(PIECES - 8, top + high / 2 + 5, f"GPU {gpu}", anchor="end"))
        for piece in range(gpus):
            number = 0 if done is None else held(gpu, piece, gpus, done)
            x, up = PIECES + piece * wide, high * number / gpus
            cells.append((x, top, wide, high))
            (whole if number == gpus else parts).append((x, top + high - up, wide, up))
    body += [boxes(parts, fill=PURPLE), boxes(whole, fill=GREEN), boxes(cells, stroke=EDGE)]
    if gpus > 1:
        first, last, left = PIECES_TOP + high / 2, PIECES_TOP + (gpus - 1) * pitch + high / 2, MARGIN + 2
        body.append(polyline([(left + 10, last), (left, last), (left, first), (left + 4, first)], stroke=MUTED))
        body.append(arrow(left, left + 12, first, stroke=MUTED, width=1))
    if done is not None and done < hops(gpus):
        for gpu in range(gpus):
            passed = (step.hops_passed or 0) - done
            row = gpu + passed if gpu < gpus - 1 or passed < 0.5 else passed - 1  # the last hands to the first
            x = PIECES + (sends(gpu, gpus, done) + 0.5) * wide
            body.append(pointer(x, PIECES_TOP + row * pitch + high / 2 + 5, half=5, high=9))
    return body


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
    plot = Plot(Scale(516.0, 690.0, 1, MOST_GPUS), Scale(top + 226, top + 42, 0, MOST_GPUS))
    right, bottom = plot.x.end, plot.y.start
    speeds = [n * step.work.compute / ddp_seconds(step.work, n) for n in numbers]
    body = [
        text(490, top, "Speed, in single GPUs (virtual)", weight="bold"),
        note(490, top + 19, "each with a batch of its own"),
        *plot.levels({value: str(value) for value in (0, 4, 8, 12, 16)}),
        *plot.x.ticks(bottom, {value: str(value) for value in (1, 4, 8, 12, 16)}),
        plot.floor(),
        note(right + 12, bottom + 18, "GPUs"),
        plot.curve([(1, 1), (MOST_GPUS, MOST_GPUS)], stroke=MUTED, width=1.5, dash="5 4"),
        plot.curve(zip(numbers, speeds, strict=True), stroke=BLUE, width=2.5),
    ]
    ends = {"linear": plot.y.at(MOST_GPUS), "DDP": plot.y.at(speeds[-1])}
    if speeds[-1] > 0.95 * MOST_GPUS:
        ends = {"DDP, almost linear": plot.y.at(speeds[-1])}
    if step.copies is not None:
        others = [n * step.work.compute / (data_parallel_seconds(step.work, n) or math.inf) for n in numbers]
        body.append(plot.curve(zip(numbers, others, strict=True), stroke=VERMILLION, width=2.5, dash="2 3"))
        ends["DataParallel"] = plot.y.at(others[-1])
        x, y = plot.at(step.gpus, others[step.gpus - 1])
        body.append(rect(x - 5, y - 5, 10, 10, fill=VERMILLION))
    body += [dot(*plot.at(step.gpus, step.speedup), 6, fill=BLUE), *beside_ends(right + 12, bottom, ends)]
    return [*body, draggable(grasp(*plot.box(24)), "GPUs", plot.x.grip("gpus"))]

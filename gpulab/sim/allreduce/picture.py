"""The picture of a training step on N GPUs: both time lines, the ring at work on one bucket, and the scaling.

What it shows is computed in `allreduce` and `ring`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from virtualgpu.pictures.style import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, RULE, SKY, VERMILLION
from virtualgpu.pictures.svg import (
    MARGIN,
    SMALL,
    Picture,
    bar,
    boxes,
    dot,
    key,
    length,
    line,
    num,
    polyline,
    rect,
    shape,
    text,
)

from ..base.words import duration
from .model import MOST_GPUS, Bucket, data_parallel_seconds, ddp_seconds, held, hops, sends
from .result import Step, times

Box: TypeAlias = tuple[float, float, float, float]  # x, y, width, height

WIDTH, LEFT, RIGHT, READ = 860.0, 126.0, 700.0, 718.0
LANES = 32.0
BLOCKS = 40  # drawn in a lane at most; where there are more buckets, a block stands for several


def draw(step: Step) -> Picture:
    """Both steps on one time line, and below it the ring at work and the speed over the number of GPUs."""
    longest = max(step.seconds, step.data_parallel_seconds or 0)
    unit = (RIGHT - LEFT) / longest
    lanes = [*_ddp_lanes(step), *_data_parallel_lanes(step)]
    body = [
        text(MARGIN, 14, "one step (virtual time)", size=SMALL, fill=MUTED),
        key(214, 14, "forward", fill=SKY),
        key(302, 14, "backward", fill=ORANGE),
        key(402, 14, "moving data", fill=PURPLE, hatched=True),
        key(524, 14, "still to come", fill=PAPER),
        text(MARGIN, LANES + 18, "DDP computes"),
        text(MARGIN, LANES + 50, "its ring"),
        text(MARGIN, LANES + 94, "DataParallel"),
        *(part for lane in lanes for part in lane.draw(step.now, unit)),
        *_axis(longest, unit, LANES + 112),
        *_cursor(LEFT + step.now * unit, LANES + 112),
        *(lane.label(unit) for lane in lanes),
        *_readings(LANES + 12, step.seconds, step.speedup),
        *_readings(LANES + 88, step.data_parallel_seconds, step.data_parallel_speedup),
        *_pieces(step, 200),
        *_scaling(step, 200),
    ]
    return Picture(WIDTH, 452, step.finding, step.describe(), tuple(body))


class Lane(NamedTuple):
    """A stretch of time in a lane: filled up to now, outlined from there; `words` are tried until some fit."""

    begin: float
    end: float
    top: float
    high: float
    fill: str
    words: tuple[str, ...] = ()
    busy: float = 1.0  # share of `high` that is drawn

    def draw(self, now: float, unit: float) -> list[str]:
        x, width, high = LEFT + self.begin * unit, (self.end - self.begin) * unit, self.high * self.busy
        top = self.top + self.high - high
        past = min(max(now - self.begin, 0), self.end - self.begin) * unit
        edge = INK if width > 3 else ""
        body = [bar(x, top, past, high, fill=self.fill, hatched=self.fill == PURPLE and past > 6, stroke=edge)]
        if self.end > now:
            body.append(rect(x + past, top, width - past, high, stroke=edge or MUTED))
        return body

    def label(self, unit: float) -> str:
        width = (self.end - self.begin) * unit
        middle, base = LEFT + (self.begin + self.end) / 2 * unit, self.top + self.high / 2 + 5
        fits = (words for words in self.words if length(words, SMALL) + 6 < width)
        return next((text(middle, base, words, size=SMALL, anchor="middle", halo=True) for words in fits), "")


def _ddp_lanes(step: Step) -> list[Lane]:
    work, top = step.work, LANES
    lanes = [Lane(0, work.forward, top, 28, SKY, ("forward",))]
    begin = work.forward
    blocks = _blocks(step.buckets)
    for block in blocks:
        lanes.append(Lane(begin, block[-1].ready, top, 28, ORANGE))
        begin = block[-1].ready
    lanes.append(Lane(work.compute, step.seconds, top, 28, PAPER, ("waits for the ring", "waits")))
    if step.gpus > 1:
        for block in blocks:
            begin, end = block[0].start, block[-1].end
            busy = sum(bucket.end - bucket.start for bucket in block) / (end - begin)
            lanes.append(Lane(begin, end, top + 33, 24, PURPLE, busy=busy))
    return lanes


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
        lanes.append(Lane(at, at + seconds, LANES + 76, 28, fill, words))
        at += seconds
    return lanes


def _readings(y: float, seconds: float | None, speedup: float | None) -> list[str]:
    if seconds is None or speedup is None:
        words = "one process with a thread for each GPU: it cannot leave its machine"
        return [text(LEFT + 6, y + 6, words, fill=MUTED)]
    work = f"work of {times(speedup)} GPU" + ("" if speedup == 1 else "s")
    return [text(READ, y, duration(seconds), weight="bold"), text(READ, y + 19, work, size=SMALL)]


def _blocks(buckets: Sequence[Bucket]) -> list[Sequence[Bucket]]:
    several = math.ceil(len(buckets) / BLOCKS)
    return [buckets[start : start + several] for start in range(0, len(buckets), several)]


def _axis(longest: float, unit: float, y: float) -> list[str]:
    """Ticks at round times, five at most."""
    power = 10.0 ** math.floor(math.log10(longest))
    tick = next(power * part for part in (0.2, 0.5, 1, 2) if longest / (power * part) <= 5.5)
    body = [line(LEFT, y, RIGHT, y, stroke=MUTED)]
    for index in range(math.floor(longest / tick * (1 + 1e-9)) + 1):
        x = LEFT + index * tick * unit
        body.append(line(x, y, x, y + 5, stroke=MUTED))
        words = duration(index * tick) if index else "0"
        body.append(text(x, y + 19, words, size=SMALL, anchor="middle", fill=MUTED))
    return body


def _cursor(x: float, bottom: float) -> list[str]:
    mark = shape([(x - 6, LANES - 8), (x + 6, LANES - 8), (x, LANES)], fill=INK)
    return [line(x, LANES - 2, x, bottom, width=2), mark]


def _pieces(step: Step, top: float) -> list[str]:
    """One bucket on every GPU: a row for each GPU, a column for each piece; how full a cell is, is what it sums."""
    gpus, done = step.gpus, step.hops_done
    body = [text(MARGIN, top, "The ring, one bucket in slow motion", weight="bold")]
    body.append(text(MARGIN, top + 19, _now(step), size=SMALL, fill=MUTED))
    left, first, wide, high = 76.0, top + 30, 330.0 / gpus, 190.0 / gpus
    parts: list[Box] = []
    sums: list[Box] = []
    for gpu in range(gpus):
        y = first + gpu * high
        if gpus <= 12 or gpu in (0, gpus - 1):
            body.append(text(MARGIN, y + high / 2 + 5, f"GPU {gpu}", size=SMALL))
        if done is None:
            continue
        for piece in range(gpus):
            number = held(gpu, piece, gpus, done)
            part = high * number / gpus
            (sums if number == gpus else parts).append((left + piece * wide, y + high - part, wide, part))
    body += [boxes(parts, fill=SKY), boxes(sums, fill=GREEN), _ticks(sums)]
    edges = range(gpus + 1)
    body += [line(left + i * wide, first, left + i * wide, first + 190, stroke=MUTED) for i in edges]
    body += [line(left, first + i * high, left + 330, first + i * high, stroke=MUTED) for i in edges]
    if done is not None and done < hops(gpus):
        moving = [(left + sends(gpu, gpus, done) * wide, first + gpu * high) for gpu in range(gpus)]
        frames = "".join(f"M{num(x)} {num(y)}h{num(wide)}v{num(high)}h{num(-wide)}z" for x, y in moving)
        body.append(f'<path d="{frames}" fill="none" stroke="{INK}" stroke-width="2.5"/>')
        tips = "".join(f"M{num(x + wide / 2)} {num(y + high + 5)}l-6 -9h12z" for x, y in moving)
        body.append(f'<path d="{tips}" fill="{INK}" stroke="{PAPER}"/>')
    foot = "a row: a GPU; a column: a piece; how full: GPUs summed in it"
    return [*body, text(MARGIN, first + 190 + 20, foot, size=SMALL, fill=MUTED)]


def _ticks(rects: Iterable[Box]) -> str:
    """A tick in each rectangle: a second sign beside its colour."""
    data = "".join(f"M{num(x + wide / 2 - 4)} {num(y + high / 2)}l3 4l5 -8" for x, y, wide, high in rects)
    return f'<path d="{data}" fill="none" stroke="{INK}" stroke-width="2"/>' if data else ""


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
    left, right, bottom, high = 494.0, 736.0, top + 220.0, 190.0
    numbers = range(1, MOST_GPUS + 1)

    def at(gpus: float, speedup: float) -> tuple[float, float]:
        return left + (gpus - 1) / (MOST_GPUS - 1) * (right - left), bottom - speedup / MOST_GPUS * high

    body = [text(462, top, "Work of how many GPUs (virtual)", weight="bold")]
    body.append(text(462, top + 19, "each with a batch of its own", size=SMALL, fill=MUTED))
    for value in (4, 8, 12, 16):
        (x, y), (low_x, _) = at(1, value), at(value, 0)
        body.append(line(left, y, right, y, stroke=RULE))
        body.append(text(left - 6, y + 5, str(value), size=SMALL, anchor="end", fill=MUTED))
        body.append(text(low_x, bottom + 17, str(value), size=SMALL, anchor="middle", fill=MUTED))
        body.append(line(low_x, bottom, low_x, bottom + 4, stroke=MUTED))
    body.append(line(left, bottom, right, bottom, stroke=MUTED))
    body.append(text(left, bottom + 17, "1", size=SMALL, anchor="middle", fill=MUTED))
    body.append(text(right + 12, bottom + 17, "GPUs", size=SMALL, fill=MUTED))
    body.append(polyline([at(1, 1), at(16, 16)], stroke=MUTED, width=1.5, dash="5 4"))
    ends = [(at(16, 16)[1], "linear", MUTED)]
    speeds = [n * step.work.compute / ddp_seconds(step.work, n) for n in numbers]
    body.append(polyline([at(n, s) for n, s in zip(numbers, speeds, strict=True)], stroke=BLUE, width=2.5))
    ends.append((at(16, speeds[-1])[1], "DDP", INK))
    if step.copies is not None:
        others = [n * step.work.compute / (data_parallel_seconds(step.work, n) or math.inf) for n in numbers]
        points = [at(n, s) for n, s in zip(numbers, others, strict=True)]
        body.append(polyline(points, stroke=VERMILLION, width=2.5, dash="2 3"))
        ends.append((points[-1][1], "DataParallel", INK))
        x, y = points[step.gpus - 1]
        body.append(shape([(x - 5, y - 5), (x + 5, y - 5), (x + 5, y + 5), (x - 5, y + 5)], fill=VERMILLION))
    x, y = at(step.gpus, step.speedup)
    body.append(dot(x, y, 6, fill=BLUE))
    ends.sort()
    places = [y + 5 for y, _, _ in ends]
    for index in range(1, len(ends)):  # apart from one another, then up from the axis
        places[index] = max(places[index], places[index - 1] + 16)
    for index, lowest in enumerate(reversed(places)):
        places[-1 - index] = min(lowest, bottom + 3 - 16 * index)
    body += [
        text(right + 12, y, words, size=SMALL, fill=fill) for y, (_, words, fill) in zip(places, ends, strict=True)
    ]
    return body

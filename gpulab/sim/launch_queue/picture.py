"""The picture of `launch_queue`: host, queue and GPU over time, two timers, and the same step in each mode."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from virtualgpu.pictures.style import GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, RULE, SKY, VERMILLION, YELLOW
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, bar, key, length, line, rect, shape, text

from ..base.lanes import Axis, Stretch, blocks, cursor, inside, joined, veil
from ..base.words import count, duration, percent
from .model import MODE_NAMES, MODES, STEPS, Run
from .result import Queue

WIDTH, LEFT, RIGHT = 860.0, 150.0, 772.0
HOST, HOST_HIGH = 24.0, 30.0
AHEAD, AHEAD_HIGH = 66.0, 42.0
GPU, GPU_HIGH = 120.0, 76.0
COPIES, COPIES_HIGH = 206.0, 14.0
TIMER, TIMER_HIGH = 236.0, 26.0
BELOW = 328.0


def draw(queue: Queue) -> Picture:
    """Host, queue and GPU over time; two timers; the same step in each mode."""
    axis = Axis(LEFT, RIGHT, queue.run.end)
    low = COPIES + COPIES_HIGH
    bars, words = _lanes(queue.run, queue.work.streams)
    body = [
        *axis.draw(HOST - 6, low + 4),
        *bars,
        veil(axis, queue.moment, HOST - 4, low + 4),
        *words,
        cursor(axis, queue.moment, HOST - 6, low + 4),
        *_labels(queue),
        *_timers(queue, axis),
        *_comparison(queue),
        *_readouts(queue),
    ]
    return Picture(WIDTH, BELOW + 104, queue.finding, queue.describe(), tuple(body))


@lru_cache(maxsize=4)
def _lanes(done: Run, streams: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The bars, and the words over them. They stay while the moment moves."""
    axis = Axis(LEFT, RIGHT, done.end)
    bars = [
        blocks(axis, done.launches, HOST, HOST_HIGH, fill=SKY, stroke=_edge(axis, done.launches)),
        blocks(axis, [*done.items, *done.full], HOST, HOST_HIGH, fill=VERMILLION, hatched=True),
        _backlog(done, axis),
    ]
    words = [inside(axis, wait, ("waits",), HOST + 20) for wait in joined([*done.items, *done.full], done.end / 600)]
    words += _step_names(done, done.launches, axis, HOST + 20, done.full)
    each = GPU_HIGH / streams
    high = min(each - 4, 40)
    for stream in range(streams):
        top = GPU + each * stream + (each - high) / 2
        mine = [kernel for kernel, where in zip(done.kernels, done.streams, strict=True) if where == stream]
        bars.append(rect(LEFT, top, RIGHT - LEFT, high, stroke=RULE))
        bars.append(blocks(axis, mine, top, high, fill=GREEN, stroke=_edge(axis, mine)))
        if stream == 0:
            words += _step_names(done, done.kernels, axis, top + high / 2 + 5)
    bars.append(blocks(axis, done.copies, COPIES, COPIES_HIGH, fill=PURPLE, stroke=PURPLE))
    return tuple(bars), tuple(words)


def _edge(axis: Axis, stretches: Sequence[Stretch]) -> str:
    """An edge sets bars apart that are wide enough for one."""
    return INK if stretches and axis.seen(max(end - start for start, end in stretches)) >= 4 else ""


def _step_names(
    done: Run, stretches: Sequence[Stretch], axis: Axis, base: float, apart: Sequence[Stretch] = ()
) -> list[str]:
    """The number of each step over its launches, or over its kernels in the first stream; not where `apart` has part
    in them."""
    bounds: dict[int, Stretch] = {}
    for stretch, step, stream in zip(stretches, done.steps, done.streams, strict=True):
        if stream == 0:
            bounds[step] = (bounds.get(step, stretch)[0], stretch[1])
    found = []
    for step, (start, end) in bounds.items():
        if not any(one < end and start < other for one, other in apart):
            found.append(inside(axis, (start, end), (f"step {step + 1}", str(step + 1)), base))
    return found


def _backlog(done: Run, axis: Axis) -> str:
    """How far the host is ahead: it rises with each launch and falls as time goes by."""
    most = max(behind for _, behind in done.backlog)
    low, unit = AHEAD + AHEAD_HIGH, AHEAD_HIGH / max(most, done.end / 4)  # a host that is hardly ahead looks so
    points = [(axis.left, low)]
    ahead = last = 0.0  # how far, and since when
    for at, behind in done.backlog:
        before = ahead - (at - last)
        if before < 0:
            points.append((axis.x(last + ahead), low))
        points += [(axis.x(at), low - max(0.0, before) * unit), (axis.x(at), low - behind * unit)]
        ahead, last = behind, at
    points += [(axis.x(last + ahead), low)]
    return shape(_thinned(points), fill=YELLOW).replace("/>", f' stroke="{INK}" stroke-width="1"/>')


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points nearer than a pixel to the last one kept are left out, but for the first and the last."""
    kept = points[:1]
    for x, y in points[1:-1]:
        if abs(x - kept[-1][0]) >= 1.2 or abs(y - kept[-1][1]) >= 4:
            kept.append((x, y))
    return [*kept, points[-1]]


def _labels(queue: Queue) -> list[str]:
    gpu, streams = queue.gpu, queue.work.streams
    side = RIGHT + 70
    return [
        text(side, HOST - 11, "busy", size=SMALL, anchor="end", fill=MUTED),
        text(MARGIN, HOST + 20, "host launches"),
        text(side, HOST + 20, percent(queue.launching), anchor="end", weight="bold"),
        text(MARGIN, AHEAD + 18, "ahead of the"),
        text(MARGIN, AHEAD + 35, "GPU: the queue"),
        line(LEFT, AHEAD + AHEAD_HIGH, RIGHT, AHEAD + AHEAD_HIGH, stroke=RULE),
        text(MARGIN, GPU + 34, gpu or "GPU"),
        text(MARGIN, GPU + 52, count(streams, "stream"), size=SMALL, fill=MUTED),
        text(side, GPU + GPU_HIGH / 2 + 5, percent(queue.running), anchor="end", weight="bold"),
        text(MARGIN, COPIES + 12, ".item() copies", size=SMALL, fill=MUTED),
    ]


def _timers(queue: Queue, axis: Axis) -> list[str]:
    body = []
    for row, (name, seconds, fill) in enumerate(
        (("no synchronize", queue.run.unsynchronised, ORANGE), ("synchronize first", queue.run.end, RULE))
    ):
        top = TIMER + row * (TIMER_HIGH + 8)
        words = f"timer reads {duration(seconds)}: {duration(seconds / STEPS)} a step"
        wide = axis.seen(seconds)
        outside = LEFT + wide + 8 + length(words, bold=True) <= RIGHT + 70
        body.append(text(MARGIN, top + 18, name))
        body.append(bar(LEFT, top, wide, TIMER_HIGH, fill=fill))
        body.append(text(LEFT + (wide if outside else 0) + 8, top + 18, words, weight="bold"))
    return body


def _comparison(queue: Queue) -> list[str]:
    """The same step in every mode."""
    body = [text(MARGIN, BELOW, "this step in each mode (virtual)", size=SMALL, fill=MUTED)]
    left, unit = 244.0, 112 / max(queue.modes)
    for row, (mode, seconds) in enumerate(zip(MODES, queue.modes, strict=True)):
        base = BELOW + 23 + row * 23
        here = mode == queue.work.mode
        if here:
            body.append(shape([(MARGIN, base - 10), (MARGIN + 9, base - 5), (MARGIN, base)], fill=INK))
        body.append(text(MARGIN + 14, base, MODE_NAMES[mode], weight="bold" if here else ""))
        body.append(bar(left, base - 12, seconds * unit, 15, fill=GREEN if here else PAPER))
        body.append(text(left + seconds * unit + 8, base, duration(seconds), weight="bold" if here else ""))
    return body


def _readouts(queue: Queue) -> list[str]:
    left, side = 448.0, RIGHT + 70
    found = [
        ("host ahead of the GPU by up to", duration(queue.ahead)),
        ("of the GPU's capacity in use", percent(queue.used)),
        ("each .item() costs", duration(queue.item_cost) if queue.run.items else "–"),
        (
            f"work before the GPU at {duration(queue.moment) if queue.moment else 0}",
            duration(queue.behind) if queue.behind > 1e-9 else "none",
        ),
    ]
    body = [
        key(left, BELOW, "launching", fill=SKY),
        key(left + 110, BELOW, "waiting", fill=VERMILLION, hatched=True),
        key(left + 205, BELOW, "kernels", fill=GREEN),
        key(left + 298, BELOW, "ahead", fill=YELLOW),
    ]
    for row, (name, value) in enumerate(found):
        base = BELOW + 23 + row * 23
        body += [text(left, base, name), text(side, base, value, anchor="end", weight="bold")]
    return body

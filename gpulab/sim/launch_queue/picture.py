"""The picture of `launch_queue`: host, queue and GPU over time, two timers, and the same step in each mode."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from virtualgpu.pictures.style import GREEN, INK, ORANGE, PAPER, PURPLE, RULE, SKY, VERMILLION, YELLOW
from virtualgpu.pictures.svg import MARGIN, Picture, bar, dot, key, length, line, rect, shape, text

from ..base.lanes import Axis, Stretch, blocks, cursor, inside, joined, playhead, veil
from ..base.scene import END, note, picture, readouts
from ..base.touch import clickable, grasp, named
from ..base.words import count, duration, percent
from .model import MODE_NAMES, MODES, STEPS, Run
from .result import FRAMES, Queue

LEFT, RIGHT = 150.0, 772.0
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
    veiled = veil(axis, queue.moment, HOST - 4, low + 4)
    now = cursor(axis, queue.moment, HOST - 6, low + 4)
    grip = playhead(axis, axis.seconds, HOST - 12, low + 4, last=FRAMES, over=_names(queue, axis))
    lanes = [*axis.draw(HOST - 6, low + 4), *bars, veiled, *_flow(queue, axis), now, *words, *_labels(queue)]
    return picture(queue, BELOW + 104, lanes, _timers(queue, axis), _comparison(queue), _readouts(queue), [grip])


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
    for stream in range(streams):
        top, high = _lane(stream, streams)
        mine = [kernel for kernel, where in zip(done.kernels, done.streams, strict=True) if where == stream]
        bars.append(rect(LEFT, top, RIGHT - LEFT, high, stroke=RULE))
        bars.append(blocks(axis, mine, top, high, fill=GREEN, stroke=_edge(axis, mine)))
        if stream == 0:
            words += _step_names(done, done.kernels, axis, top + high / 2 + 5)
    bars.append(blocks(axis, done.copies, COPIES, COPIES_HIGH, fill=PURPLE, stroke=PURPLE))
    return tuple(bars), tuple(words)


def _lane(stream: int, streams: int) -> tuple[float, float]:
    """Where the kernels of a stream are drawn: from where down, how high."""
    each = GPU_HIGH / streams
    high = min(each - 4, 58)
    return GPU + each * stream + (each - high) / 2, high


def _flow(queue: Queue, axis: Axis) -> list[str]:
    """From the launch of the kernel that runs at the moment to its start."""
    if queue.at_work is None:
        return []
    launched, started = queue.run.launches[queue.at_work][1], queue.run.kernels[queue.at_work][0]
    top, _ = _lane(queue.run.streams[queue.at_work], queue.work.streams)
    x, end = axis.x(launched), axis.x(started)
    return [
        line(x, HOST + HOST_HIGH, end, top, width=2),
        dot(x, HOST + HOST_HIGH, 3.5, fill=INK),
        dot(end, top, 3.5, fill=INK),
    ]


def _names(queue: Queue, axis: Axis) -> str:
    """Each kernel says what became of it where the pointer rests on it; not those too thin to be pointed at."""
    found = []
    for kernel, ((start, end), stream) in enumerate(zip(queue.run.kernels, queue.run.streams, strict=True)):
        if axis.seen(end - start) >= 3:
            top, high = _lane(stream, queue.work.streams)
            area = grasp(axis.x(start), top, axis.seen(end - start), high)
            found.append(named(area, f"{queue.name(kernel)}: {queue.fate(kernel)}, started at {duration(start)}"))
    return "".join(found)


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
    return shape(_thinned(points), fill=YELLOW, stroke=INK)


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points nearer than a pixel to the last one kept are left out, but for the first and the last."""
    kept = points[:1]
    for x, y in points[1:-1]:
        if abs(x - kept[-1][0]) >= 1.2 or abs(y - kept[-1][1]) >= 4:
            kept.append((x, y))
    return [*kept, points[-1]]


def _labels(queue: Queue) -> list[str]:
    return [
        note(END, HOST - 11, "busy", anchor="end"),
        text(MARGIN, HOST + 20, "host launches"),
        text(END, HOST + 20, percent(queue.launching), anchor="end", weight="bold"),
        text(MARGIN, AHEAD + 18, "ahead of the"),
        text(MARGIN, AHEAD + 35, "GPU: the queue"),
        line(LEFT, AHEAD + AHEAD_HIGH, RIGHT, AHEAD + AHEAD_HIGH, stroke=RULE),
        text(MARGIN, GPU + 34, queue.gpu or "GPU"),
        note(MARGIN, GPU + 52, count(queue.work.streams, "stream")),
        text(END, GPU + GPU_HIGH / 2 + 5, percent(queue.running), anchor="end", weight="bold"),
        *([note(MARGIN, COPIES + 12, ".item() copies")] if queue.run.copies else []),
    ]


def _timers(queue: Queue, axis: Axis) -> list[str]:
    body = []
    reads = (("no synchronize", queue.run.unsynchronised, ORANGE), ("synchronize first", queue.run.end, RULE))
    for row, (name, seconds, fill) in enumerate(reads):
        top = TIMER + row * (TIMER_HIGH + 8)
        words = f"timer reads {duration(seconds)}: {duration(seconds / STEPS)} a step"
        wide = axis.seen(seconds)
        outside = LEFT + wide + 8 + length(words, bold=True) <= END
        body.append(text(MARGIN, top + 18, name))
        body.append(bar(LEFT, top, wide, TIMER_HIGH, fill=fill))
        body.append(text(LEFT + (wide if outside else 0) + 8, top + 18, words, weight="bold"))
    return body


def _comparison(queue: Queue) -> list[str]:
    """The same step in every mode: each row chooses its own."""
    body = [note(MARGIN, BELOW, "the same step, launched otherwise: click (virtual)")]
    left, unit = 244.0, 112 / max(queue.modes)
    for row, (mode, seconds) in enumerate(zip(MODES, queue.modes, strict=True)):
        base, here = BELOW + 23 + row * 23, mode == queue.work.mode
        weight = "bold" if here else ""
        drawn = rect(MARGIN - 4, base - 16, 426, 22, fill=PAPER)
        drawn += dot(MARGIN + 5, base - 5, 5, fill=PAPER, stroke=INK)
        drawn += dot(MARGIN + 5, base - 5, 3, fill=INK) if here else ""
        drawn += text(MARGIN + 18, base, MODE_NAMES[mode], weight=weight)
        drawn += bar(left, base - 12, seconds * unit, 15, fill=GREEN if here else PAPER)
        drawn += text(left + seconds * unit + 8, base, duration(seconds), weight=weight)
        body.append(clickable(drawn, f"Launched by {MODE_NAMES[mode]}: {duration(seconds)} a step", mode=mode))
    return body


def _readouts(queue: Queue) -> list[str]:
    left, moment, running = 470.0, duration(queue.moment) if queue.moment else "0", queue.at_work
    found = [
        (f"at {moment} the GPU runs", "nothing" if running is None else queue.name(running)),
        ("", "" if running is None else queue.fate(running)),
        (f"work before the GPU at {moment}", duration(queue.behind) if queue.behind > 1e-9 else "none"),
        ("each .item() costs", duration(queue.item_cost))
        if queue.run.items
        else ("of the GPU's capacity in use", percent(queue.used)),
    ]
    waits = key(left, BELOW, "the host waits", fill=VERMILLION, hatched=True)
    told = readouts(left, END, BELOW + 23, found, apart=23)
    return [waits, *told] if queue.run.items or queue.run.full else told

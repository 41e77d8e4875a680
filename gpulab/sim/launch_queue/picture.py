"""The picture of `launch_queue`: host, queue and GPU over time, two timers, and the same step in each mode."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from virtualgpu.pictures.style import EDGE, GREEN, INK, PAPER, PURPLE, RULE, SKY, VERMILLION, YELLOW
from virtualgpu.pictures.svg import MARGIN, Picture, bar, dot, length, line, rect, shape, text

from ..base.lanes import Axis, Stretch, beside, blocks, cursor, inside, joined, playhead, total, veil
from ..base.scene import END, keys, note, picture, small
from ..base.touch import clickable, grasp, named
from ..base.words import count, duration, percent
from .model import MODE_NAMES, MODES, STEPS, Run
from .result import FRAMES, Queue

Place = tuple[Stretch, tuple[str, ...], float]  # of words in a lane: when, which of them has room, their base line

LEFT, RIGHT = 150.0, 772.0
HOST, HOST_HIGH = 32.0, 30.0
AHEAD, AHEAD_HIGH = 82.0, 42.0
GPU, GPU_HIGH = 136.0, 76.0
LOW = GPU + GPU_HIGH + 4
TIMER, TIMER_HIGH = 254.0, 24.0
BELOW = 344.0


def draw(queue: Queue) -> Picture:
    """Host, queue and GPU over time; two timers; the same step in each mode."""
    axis = Axis(LEFT, RIGHT, queue.run.end)
    lanes = [
        *axis.draw(HOST - 6, LOW),
        *_lanes(queue.run, queue.work.streams),
        veil(axis, queue.moment, HOST - 4, LOW),
        *_flow(queue, axis),
        cursor(axis, queue.moment, HOST - 6, LOW),
        *_words(queue, axis),
        *_labels(queue),
    ]
    grip = playhead(axis, axis.seconds, HOST - 12, LOW, last=FRAMES, over=_names(queue, axis))
    return picture(queue, BELOW + 104, lanes, _timers(queue, axis), _comparison(queue), [grip])


@lru_cache(maxsize=4)
def _lanes(done: Run, streams: int) -> tuple[str, ...]:
    """The bars. They stay while the moment moves."""
    axis = Axis(LEFT, RIGHT, done.end)
    solid = axis.seen(max(end - start for start, end in done.launches)) < 1.5  # one bar, with an edge around it
    bars = [
        rect(LEFT, HOST, RIGHT - LEFT, HOST_HIGH, fill=RULE, opacity=0.6),
        blocks(axis, done.launches, HOST, HOST_HIGH, fill=SKY, stroke=EDGE if solid else _edge(axis, done.launches)),
        blocks(axis, [*done.items, *done.full], HOST, HOST_HIGH, fill=VERMILLION, hatched=True),
        *_starts(axis, _bounds(done, done.launches, 0), HOST, HOST_HIGH),
        _backlog(done, axis),
    ]
    for stream in range(streams):
        top, high = _lane(stream, streams)
        mine = [kernel for kernel, where in zip(done.kernels, done.streams, strict=True) if where == stream]
        bars.append(rect(LEFT, top, RIGHT - LEFT, high, fill=RULE, opacity=0.6))
        bounds = _bounds(done, done.kernels, stream)
        if len(mine) > STEPS and axis.seen(done.end) < 5 * len(mine):  # stripes too fine to be seen: their share
            for start, end in bounds.values():
                part = high * total(one for one in mine if start <= one[0] < end) / (end - start)
                bars.append(rect(axis.x(start), top + high - part, axis.seen(end - start), part, fill=GREEN))
        else:
            bars.append(blocks(axis, mine, top, high, fill=GREEN, stroke=_edge(axis, mine)))
        bars += _starts(axis, bounds, top, high)
    top, high = _lane(0, streams)
    return (*bars, blocks(axis, done.copies, top, high, fill=PURPLE, stroke=PURPLE))


def _starts(axis: Axis, bounds: dict[int, Stretch], top: float, high: float) -> list[str]:
    """A line where each step begins that is wide enough for one."""
    wide = [axis.x(start) for start, end in bounds.values() if axis.seen(end - start) > 6]
    return [line(x, top, x, top + high, width=1.5) for x in wide]


def _words(queue: Queue, axis: Axis) -> list[str]:
    """What is in the bars, beside the moment's line; below them what it meets, and a legend."""
    done, (top, high) = queue.run, _lane(0, queue.work.streams)
    places = _steps(done, done.launches, HOST + 20, done.full) + _steps(done, done.kernels, top + high / 2 + 5)
    places.append(((done.unsynchronised, done.end), ("idle",), HOST + 20))
    places += [(wait, ("waits",), HOST + 20) for wait in joined([*done.items, *done.full], done.end / 600)]
    if done.most < done.end / 100:  # hardly more than a launch takes to arrive
        places.append(((0, done.end), ("almost empty: the GPU waits for launches",), AHEAD + 28))
    found = []
    for (start, end), words, base in places:
        if start < queue.moment < end:  # the wider side of the line
            early = queue.moment - start > end - queue.moment
            start, end = (start, queue.moment) if early else (queue.moment, end)
        found.append(inside(axis, (start, end), words, base))
    said = "all is done" if queue.moment >= done.end else "the GPU has nothing to run"
    if queue.at_work is not None:
        said = f"{queue.name(queue.at_work)} runs; {duration(queue.behind)} are left"
    fine = queue.running < 0.95 and axis.seen(done.end) < 5 * len(done.kernels) / queue.work.streams
    shown = ("height: share of the time", GREEN, fine), ("copy for .item()", PURPLE, bool(done.copies))
    more = ("waits", VERMILLION, bool(done.items or done.full)), ("idle", RULE, True)
    entries = [(name, fill, fill == VERMILLION) for name, fill, there in shown + more if there]
    found.append(small(MARGIN, LOW + 18, f"at {duration(queue.moment)}, {said}"))
    return found + keys(END, LOW + 18, *entries, ends=True)


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
    stream = queue.run.streams[queue.at_work]
    x, end, top = axis.x(launched), axis.x(started), _lane(stream, queue.work.streams)[0]
    body = [
        line(x, HOST + HOST_HIGH, end, top, width=2),
        dot(x, HOST + HOST_HIGH, 3.5, fill=INK),
        dot(end, top, 3.5, fill=INK),
    ]
    body.append(small(x - 8, HOST + HOST_HIGH + 14, "launched", anchor="end"))
    if stream:  # no room between two
        return body
    words = f"{queue.name(queue.at_work).split(', ')[-1]} {queue.waited(queue.at_work)}"
    return body + beside(max(end, axis.x(queue.moment)), top - 6, words)


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
    return INK if stretches and axis.seen(max(end - start for start, end in stretches)) >= 5 else ""


def _steps(done: Run, stretches: Sequence[Stretch], base: float, apart: Sequence[Stretch] = ()) -> list[Place]:
    """When each step is launched, or runs in the first stream, and its name; not where `apart` has part in it."""
    bounds = _bounds(done, stretches, 0)
    free = {n: b for n, b in bounds.items() if not any(one < b[1] and b[0] < other for one, other in apart)}
    return [(bound, (f"step {step + 1}", str(step + 1)), base) for step, bound in free.items()]


def _bounds(done: Run, stretches: Sequence[Stretch], stream: int) -> dict[int, Stretch]:
    """From when until when each step is launched or runs in the stream."""
    bounds: dict[int, Stretch] = {}
    for stretch, step, where in zip(stretches, done.steps, done.streams, strict=True):
        if where == stream:
            bounds[step] = (bounds.get(step, stretch)[0], stretch[1])
    return bounds


def _backlog(done: Run, axis: Axis) -> str:
    """How far the host is ahead: it rises with each launch and falls as time goes by."""
    low, unit = AHEAD + AHEAD_HIGH, AHEAD_HIGH / max(done.most, done.end / 25)  # a host that is hardly ahead looks so
    points = [(axis.left, low)]
    ahead = last = 0.0  # how far, and since when
    for at, behind in done.backlog:
        before = ahead - (at - last)
        if before < 0:
            points.append((axis.x(last + ahead), low))
        points += [(axis.x(at), low - max(0.0, before) * unit), (axis.x(at), low - behind * unit)]
        ahead, last = behind, at
    points += [(axis.x(last + ahead), low)]
    return shape(_thinned(points), fill=YELLOW, stroke=EDGE)


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
        *(text(MARGIN, AHEAD + y, words) for y, words in ((10, "launched,"), (26, "not yet run"))),
        note(MARGIN, AHEAD + 42, f"up to {duration(queue.run.most)}"),
        line(LEFT, AHEAD + AHEAD_HIGH, RIGHT, AHEAD + AHEAD_HIGH, stroke=RULE),
        text(MARGIN, GPU + 34, queue.gpu or "GPU"),
        note(MARGIN, GPU + 52, count(queue.work.streams, "stream")),
        text(END, GPU + GPU_HIGH / 2 + 5, percent(queue.running), anchor="end", weight="bold"),
    ]


def _timers(queue: Queue, axis: Axis) -> list[str]:
    """What each reads, and whether that is right, to a twentieth; one row where they agree."""
    body, rows = [], [("no synchronize", queue.run.unsynchronised, "✗"), ("synchronize", queue.run.end, "✓")]
    if queue.run.unsynchronised > 0.95 * queue.run.end:
        rows = [("both timers", queue.run.end, "✓")]
    for row, (name, seconds, sign) in enumerate(rows):
        top, wide = TIMER + (row + 1 - len(rows) / 2) * (TIMER_HIGH + 8), axis.seen(seconds)
        words = f"{sign} timer reads {duration(seconds)}: {duration(seconds / STEPS)} a step"
        outside = LEFT + wide + 8 + length(words, bold=True) <= END
        body += [text(MARGIN, top + 17, name), rect(LEFT, top, wide, TIMER_HIGH, stroke=INK)]
        body.append(text(LEFT + (wide if outside else 0) + 8, top + 17, words, weight="bold"))
    return body


def _comparison(queue: Queue) -> list[str]:
    """The same step in every mode: each row chooses its own."""
    body = [text(MARGIN, BELOW, "a step by how it is launched (virtual): click one", weight="bold")]
    left, unit, eager = 244.0, 480 / max(queue.modes), queue.modes[0]
    for row, (mode, seconds) in enumerate(zip(MODES, queue.modes, strict=True)):
        base, here = BELOW + 25 + row * 23, mode == queue.work.mode
        weight, same = "bold" if here else "", row and not here and seconds > 0.98 * eager
        drawn = rect(MARGIN - 4, base - 16, END - MARGIN + 4, 22, fill=PAPER)
        drawn += dot(MARGIN + 5, base - 5, 5, fill=PAPER, stroke=INK)
        drawn += dot(MARGIN + 5, base - 5, 3, fill=INK) if here else ""
        drawn += text(MARGIN + 18, base, MODE_NAMES[mode], weight=weight)
        drawn += bar(left, base - 12, seconds * unit, 15, fill=GREEN if here else PAPER)
        drawn += text(left + seconds * unit + 8, base, duration(seconds) + ", no gain" * same, weight=weight)
        body.append(clickable(drawn, f"Launched by {MODE_NAMES[mode]}: {duration(seconds)} a step", mode=mode))
    return body

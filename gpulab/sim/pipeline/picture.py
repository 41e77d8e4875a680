"""The picture of `pipeline`: two short epochs over time, a step over the workers, and what each choice does."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from virtualgpu.clock.clock import Span
from virtualgpu.pictures.style import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, RULE, SKY, VERMILLION, YELLOW
from virtualgpu.pictures.svg import MARGIN, Picture, dot, line, rect, shape, text

from ..base.lanes import Axis, Stretch, blocks, cursor, inside, playhead, veil
from ..base.scene import END, Plot, Scale, keys, line_key, note, picture, small
from ..base.touch import clickable, draggable, grasp
from ..base.words import count, duration, percent
from .model import BATCHES, EPOCHS, MOST_WORKERS, Run, Work
from .result import FRAMES, Change, Feed

LEFT, RIGHT = 150.0, 772.0
WORKERS, WORKERS_HIGH = 24.0, 60.0
READY, READY_HIGH = 92.0, 22.0
MAIN, MAIN_HIGH = 121.0, 24.0
PIN, PIN_HIGH = 150.0, 14.0
COPY, COPY_HIGH = 169.0, 18.0
GPU, GPU_HIGH = 192.0, 26.0
LOW = GPU + GPU_HIGH + 4
# From where down and how high the lanes of the main process, of copies, of the GPU are: with workers, without any.
LANES = {True: ((MAIN, MAIN_HIGH), (COPY, COPY_HIGH), (GPU, GPU_HIGH)), False: ((24, 74), (112, 36), (162, 56))}
BELOW = 304.0


def draw(feed: Feed) -> Picture:
    """Two short epochs over time; a step over the workers; what each choice does."""
    axis = Axis(LEFT, RIGHT, feed.run.end)
    bars, words = _lanes(feed.work, feed.run)
    veiled, now = veil(axis, feed.moment, WORKERS - 4, LOW), cursor(axis, feed.moment, WORKERS - 6, LOW)
    lanes = [*axis.draw(WORKERS - 6, LOW), *bars, veiled, *words, *_first_waits(feed, axis), now, *_labels(feed)]
    grip = playhead(axis, axis.seconds, WORKERS - 12, LOW, last=FRAMES)
    return picture(feed, BELOW + 152, lanes, _keys(feed), _over_workers(feed), _buys(feed), [grip])


@lru_cache(maxsize=4)
def _lanes(work: Work, done: Run) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The bars, and the words over them. They stay while the moment moves."""
    axis = Axis(LEFT, RIGHT, done.end)
    bars: list[str] = []
    words: list[str] = []

    def lane(spans: Iterable[Span], top: float, high: float, fill: str, *names: str, hatched: bool = False) -> None:
        here = list(spans)
        bars.append(blocks(axis, map(_stretch, here), top, high, fill=fill, stroke=INK, hatched=hatched))
        if high >= 14:
            for span in here:
                labels = names or (str(int(span.name) + 1),)
                words.append(inside(axis, _stretch(span), labels, top + high / 2 + 5))

    for worker in range(work.workers):
        each = WORKERS_HIGH / work.workers
        high = min(each - 1.5, 24)
        top = WORKERS + worker * each + (each - high) / 2
        bars.append(line(LEFT, top + high, RIGHT, top + high, stroke=RULE))
        lane((s for s in done.spans if (s.where, s.stream) == ("worker", worker)), top, high, SKY)
    if work.workers:
        bars.append(_ready(axis, done, work.workers * work.prefetch))
        bars.append(rect(LEFT, PIN, RIGHT - LEFT, PIN_HIGH, stroke=RULE))
    kinds = ("host", "main", "pin", "to GPU", "kernels")
    of = {kind: [span for span in done.spans if span.where == kind] for kind in kinds}
    main, copies, gpu = LANES[work.workers > 0]
    for top, high in (main, copies, gpu):
        bars.append(rect(LEFT, top, RIGHT - LEFT, high, stroke=RULE))
    lane((s for s in of["main"] if s.name == "start"), *main, BLUE, "starts workers", "starts")
    lane((s for s in of["main"] if s.name != "start"), *main, SKY)
    lane((s for s in of["host"] if s.name == "a batch"), *main, VERMILLION, "waits", hatched=True)
    lane((s for s in of["host"] if s.name != "a batch"), *main, YELLOW, "waits")
    lane(of["pin"], *((PIN, PIN_HIGH) if work.workers else main), ORANGE)
    lane(of["to GPU"], *copies, PURPLE)
    lane(of["kernels"], *gpu, GREEN)
    x = axis.x(done.begun[1])
    bars.append(line(x, WORKERS - 6, x, LOW, stroke=INK, dash="3 3"))
    return tuple(bars), tuple(words)


def _first_waits(feed: Feed, axis: Axis) -> list[str]:
    """How long the GPU has nothing to do at the start of an epoch, where that is more than a step."""
    found = []
    for epoch in range(EPOCHS):
        since, idle = feed.run.computed[epoch * BATCHES - 1] if epoch else 0.0, feed.idle(epoch)
        if idle > feed.work.compute:
            names = (f"{duration(idle)} until the first batch is there", f"waits {duration(idle)}")
            found.append(inside(axis, (since, since + idle), names, _bases(feed.work)[2]))
    return found


def _bases(work: Work) -> list[float]:
    """The base lines of words in the lanes of the main process, of copies, of the GPU."""
    return [top + high / 2 + 5 for top, high in LANES[work.workers > 0]]


def _stretch(span: Span) -> Stretch:
    return span.start, span.start + span.seconds


def _ready(axis: Axis, done: Run, most: int) -> str:
    """How many batches are ready to be taken, over time."""
    low = READY + READY_HIGH
    events = sorted([(at, 1) for at in done.arrivals] + [(at, -1) for at in done.taken])
    height, points = 0, [(axis.left, low)]
    for at, change in events:
        x = axis.x(at)
        points.append((x, low - READY_HIGH * max(0, height) / most))
        height += change
        points.append((x, low - READY_HIGH * max(0, height) / most))
    return shape([*points, (axis.right, low)], fill=SKY) + line(LEFT, low, RIGHT, low, stroke=RULE)


def _labels(feed: Feed) -> list[str]:
    work, middle = feed.work, WORKERS + WORKERS_HIGH / 2
    main, copies, gpu = _bases(work)
    second = Axis(LEFT, RIGHT, feed.run.end).x(feed.run.begun[1])
    body = [
        note(END, WORKERS - 11, "of a step", anchor="end"),
        text(MARGIN, main, "main process"),
        text(MARGIN, copies, "copies to GPU"),
        text(MARGIN, gpu, f"{work.gpu} computes"),
        text(END, copies, percent(feed.copying), anchor="end", weight="bold"),
        text(END, gpu, percent(feed.computing), anchor="end", weight="bold"),
        note(LEFT, LOW + 16, "epoch 1"),
        note(second, LOW + 16, "epoch 2"),
    ]
    if work.workers:
        body.append(text(MARGIN, middle, count(work.workers, "worker")))
        body.append(note(MARGIN, middle + 18, "load batches"))
        body.append(text(MARGIN, READY + 17, "batches ready"))
        body.append(note(MARGIN, PIN + 12, "thread that pins" if work.pinned else "nothing pinned"))
        body.append(note(END, READY + 17, f"of {work.workers * work.prefetch}", anchor="end"))
        body.append(text(END, middle + 5, percent(feed.loading), anchor="end", weight="bold"))
    else:
        body.append(note(MARGIN, main + 18, "loads: no workers"))
        body.append(text(END, main, percent(feed.loading + feed.pinning), anchor="end", weight="bold"))
    if work.pinned and work.workers:
        body.append(text(END, PIN + 12, percent(feed.pinning), anchor="end", weight="bold"))
    return body


def _keys(feed: Feed) -> list[str]:
    base, moment = LOW + 57, duration(feed.moment) if feed.moment else 0
    waits = (("waits for a batch", VERMILLION, True), ("waits for a copy or the GPU", YELLOW))
    starts = [("starts workers", BLUE)] if feed.work.workers else []
    pins = [("pins", ORANGE)] if feed.work.pinned else []
    told = small(MARGIN, base - 21, f"at {moment}: {feed.now}")
    return [told, *keys(MARGIN, base, *starts, ("loads", SKY), *pins, *waits)]


def _over_workers(feed: Feed) -> list[str]:
    """A step with each number of workers."""
    most, alone, low = max(feed.by_workers), feed.work.compute, BELOW + 108
    plot = Plot(Scale(66.0, 370.0, 0, MOST_WORKERS), Scale(low, BELOW + 16, 0, most))
    left, right = plot.x.start, plot.x.end + 8
    (_, floor), (_, top) = plot.at(0, alone), plot.at(0, most)
    body = [
        note(MARGIN, BELOW, "a step, over the number of workers (virtual)"),
        line(left, top, left, low, stroke=MUTED),
        line(left, low, right, low, stroke=MUTED),
        note(left - 8, top + 5, duration(most), anchor="end"),
        line(left, floor, right, floor, stroke=GREEN, width=2, dash="5 4"),
        plot.curve(enumerate(feed.by_workers), stroke=INK, width=1.5),
        *([note(left - 8, floor + 5, duration(alone), anchor="end")] if floor - top > 20 else []),
    ]
    alone_key = line_key(left, low + 36, "GPU alone", stroke=GREEN, dash="5 4")
    for n, step in enumerate(feed.by_workers):
        (x, y), here = plot.at(n, step), n == feed.work.workers
        body.append(dot(x, y, 7 if here else 4, fill=VERMILLION if here else INK))
        body.append(small(x, low + 18, str(n), anchor="middle", weight="bold" if here else ""))
    body += [small(right, low + 36, feed.gains, anchor="end"), alone_key]
    return [*body, draggable(grasp(*plot.box(24)), "num_workers", plot.x.grip("workers"))]


def _buys(feed: Feed) -> list[str]:
    """What each choice does, against the same loop without it: each row is its switch."""
    left = 418.0
    body = [text(left, BELOW, "What would help?", weight="bold")]
    body.append(note(END, BELOW, f"a step of {duration(feed.step)}, each alone (virtual)", anchor="end"))
    for row, change in enumerate(feed.changes):
        base, nothing, words = BELOW + 25 + row * 22, change.nothing(feed.step), change.words(feed.step)
        weight, fill = "" if nothing else "bold", RULE if nothing else GREEN if change.seconds < 0 else VERMILLION
        drawn = rect(left - 6, base - 16, END - left + 12, 22, fill=PAPER)
        drawn += _switch(left, base - 5, change, getattr(feed.work, change.control), fill)
        drawn += text(left + 34, base, change.name, weight=weight) + text(END, base, words, anchor="end", weight=weight)
        body.append(clickable(drawn, f"{change.name}: {words}", **{change.control: change.other}))
    return body


def _switch(x: float, y: float, change: Change, now: int, fill: str) -> str:
    """A switch with its knob to the left or, if on, to the right; what is a number has a step."""
    if not isinstance(change.other, bool):
        sign = "+" if change.other > now else "−"
        return rect(x + 6, y - 8, 16, 16, stroke=INK, radius=3) + text(x + 14, y + 5, sign, anchor="middle")
    knob = dot(x + (20 if change.on else 8), y, 5, fill=INK if change.on else PAPER, stroke=INK)
    return rect(x, y - 8, 28, 16, fill=fill if change.on else PAPER, stroke=INK, radius=8) + knob

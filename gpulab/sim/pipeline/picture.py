"""The picture of `pipeline`: two short epochs over time, a step over the workers, and what each choice does."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from virtualgpu.clock.clock import Span
from virtualgpu.pictures.style import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, RULE, SKY, VERMILLION, YELLOW
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, dot, key, line, polyline, rect, shape, text

from ..base.lanes import Axis, Stretch, blocks, cursor, inside, playhead, veil
from ..base.touch import Grip, clickable, draggable
from ..base.words import count, duration, percent
from .model import BATCHES, EPOCHS, MOST_WORKERS, Run, Work
from .result import FRAMES, Change, Feed

WIDTH, LEFT, RIGHT, SIDE = 860.0, 150.0, 772.0, 842.0
WORKERS, WORKERS_HIGH = 24.0, 60.0
READY, READY_HIGH = 92.0, 22.0
MAIN, MAIN_HIGH = 121.0, 24.0
PIN, PIN_HIGH = 150.0, 14.0
COPY, COPY_HIGH = 169.0, 18.0
GPU, GPU_HIGH = 192.0, 26.0
LOW = GPU + GPU_HIGH + 4
BELOW = 304.0


def draw(feed: Feed) -> Picture:
    """Two short epochs over time; a step over the workers; what each choice does."""
    axis = Axis(LEFT, RIGHT, feed.run.end)
    bars, words = _lanes(feed.work, feed.run)
    body = [
        *axis.draw(WORKERS - 6, LOW),
        *bars,
        veil(axis, feed.moment, WORKERS - 4, LOW),
        *words,
        *_first_waits(feed, axis),
        cursor(axis, feed.moment, WORKERS - 6, LOW),
        *_labels(feed),
        *_keys(feed),
        *_over_workers(feed),
        *_buys(feed),
    ]
    grip = playhead(axis, axis.seconds, WORKERS - 12, LOW, last=FRAMES)
    return Picture(WIDTH, BELOW + 152, feed.finding, feed.describe(), tuple(body), touched=(grip,))


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
    bars.append(_ready(axis, done, max(1, work.workers * work.prefetch)))
    kinds = ("host", "main", "pin", "to GPU", "kernels")
    of = {kind: [span for span in done.spans if span.where == kind] for kind in kinds}
    for top, high in ((MAIN, MAIN_HIGH), (PIN, PIN_HIGH), (COPY, COPY_HIGH), (GPU, GPU_HIGH)):
        bars.append(rect(LEFT, top, RIGHT - LEFT, high, stroke=RULE))
    lane((s for s in of["main"] if s.name == "start"), MAIN, MAIN_HIGH, BLUE, "starts workers", "starts")
    lane((s for s in of["main"] if s.name != "start"), MAIN, MAIN_HIGH, SKY)
    lane((s for s in of["host"] if s.name == "a batch"), MAIN, MAIN_HIGH, VERMILLION, "waits", hatched=True)
    lane((s for s in of["host"] if s.name != "a batch"), MAIN, MAIN_HIGH, YELLOW, "waits")
    lane(of["pin"], *((PIN, PIN_HIGH) if work.workers else (MAIN, MAIN_HIGH)), ORANGE)
    lane(of["to GPU"], COPY, COPY_HIGH, PURPLE)
    lane(of["kernels"], GPU, GPU_HIGH, GREEN)
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
            found.append(inside(axis, (since, since + idle), names, GPU + 18))
    return found


def _stretch(span: Span) -> Stretch:
    return span.start, span.start + span.seconds


def _ready(axis: Axis, done: Run, most: int) -> str:
    """How many batches are ready to be taken, over time."""
    low = READY + READY_HIGH
    events = sorted([(at, 1) for at in done.arrivals] + [(at, -1) for at in done.taken])
    if len(events) == len(done.taken):
        return line(LEFT, low, RIGHT, low, stroke=RULE)
    height, points = 0, [(axis.left, low)]
    for at, change in events:
        x = axis.x(at)
        points.append((x, low - READY_HIGH * max(0, height) / most))
        height += change
        points.append((x, low - READY_HIGH * max(0, height) / most))
    return shape([*points, (axis.right, low)], fill=SKY) + line(LEFT, low, RIGHT, low, stroke=RULE)


def _labels(feed: Feed) -> list[str]:
    work = feed.work
    none = "0 workers" if not work.workers else count(work.workers, "worker")
    middle = WORKERS + WORKERS_HIGH / 2
    body = [
        text(MARGIN, middle, none),
        text(MARGIN, READY + 17, "batches ready"),
        text(MARGIN, MAIN + 17, "main process"),
        text(
            MARGIN,
            PIN + 12,
            "nothing pinned" if not work.pinned else "thread that pins" if work.workers else "no thread pins",
            size=SMALL,
            fill=MUTED,
        ),
        text(MARGIN, COPY + 14, "copies to GPU"),
        text(MARGIN, GPU + 18, f"{work.gpu} computes"),
        text(SIDE, COPY + 14, percent(feed.copying), anchor="end", weight="bold"),
        text(SIDE, GPU + 18, percent(feed.computing), anchor="end", weight="bold"),
        text(LEFT, LOW + 16, "epoch 1", size=SMALL, fill=MUTED),
    ]
    x = Axis(LEFT, RIGHT, feed.run.end).x(feed.run.begun[1])
    body.append(text(x, LOW + 16, "epoch 2", size=SMALL, fill=MUTED))
    if work.workers:
        most = work.workers * work.prefetch
        body.append(text(MARGIN, middle + 18, "load batches", size=SMALL, fill=MUTED))
        body.append(text(SIDE, READY + 17, f"of {most}", size=SMALL, anchor="end", fill=MUTED))
        body.append(text(SIDE, middle + 5, percent(feed.loading), anchor="end", weight="bold"))
    else:
        words = "none: the main process loads"
        body.append(text(LEFT + 8, middle + 5, words, halo=True))
        body.append(text(SIDE, MAIN + 17, percent(feed.loading + feed.pinning), anchor="end", weight="bold"))
    if work.pinned and work.workers:
        body.append(text(SIDE, PIN + 12, percent(feed.pinning), anchor="end", weight="bold"))
    return body


def _keys(feed: Feed) -> list[str]:
    base = LOW + 57
    return [
        text(MARGIN, base - 21, f"at {duration(feed.moment) if feed.moment else 0}: {feed.now}", size=SMALL),
        key(MARGIN, base, "loads", fill=SKY),
        key(MARGIN + 78, base, "pins", fill=ORANGE),
        key(MARGIN + 152, base, "waits for a batch", fill=VERMILLION, hatched=True),
        key(MARGIN + 316, base, "waits for a copy or the GPU", fill=YELLOW),
        text(SIDE, base, "busy in the long run", size=SMALL, anchor="end", fill=MUTED),
    ]


def _over_workers(feed: Feed) -> list[str]:
    """A step with each number of workers."""
    left, right, top, low = 66.0, 370.0, BELOW + 16, BELOW + 108
    most = max(feed.by_workers)
    apart, unit = (right - left) / MOST_WORKERS, (low - top) / most

    def place(workers: int) -> tuple[float, float]:
        return left + workers * apart, low - feed.by_workers[workers] * unit

    floor = low - feed.work.compute * unit
    body = [
        text(MARGIN, BELOW, "a step, over the number of workers (virtual)", size=SMALL, fill=MUTED),
        line(left, top, left, low, stroke=MUTED),
        line(left, low, right + 8, low, stroke=MUTED),
        text(left - 8, top + 5, duration(most), size=SMALL, anchor="end", fill=MUTED),
        line(left, floor, right + 8, floor, stroke=GREEN, width=2, dash="5 4"),
        polyline([place(n) for n in range(MOST_WORKERS + 1)], stroke=INK, width=1.5),
    ]
    if floor - top > 20:
        body.append(text(left - 8, floor + 5, duration(feed.work.compute), size=SMALL, anchor="end", fill=MUTED))
    for n in range(MOST_WORKERS + 1):
        x, y = place(n)
        here = n == feed.work.workers
        body.append(dot(x, y, 7 if here else 4, fill=VERMILLION if here else INK))
        body.append(text(x, low + 18, str(n), size=SMALL, anchor="middle", weight="bold" if here else "", fill=INK))
    body.append(text(right + 8, low + 36, feed.gains, size=SMALL, anchor="end"))
    body.append(text(left, low + 36, "- - GPU alone", size=SMALL, fill=MUTED))
    ground = rect(left - 14, top - 10, right - left + 28, low - top + 34, fill="transparent")
    return [*body, draggable(ground, "num_workers", Grip("workers", left, right, 0, MOST_WORKERS))]


def _buys(feed: Feed) -> list[str]:
    """What each choice does, against the same loop without it: each row is its switch."""
    left = 418.0
    body = [text(left, BELOW, f"a step of {duration(feed.step)}: each choice alone (virtual)", size=SMALL, fill=MUTED)]
    for row, change in enumerate(feed.changes):
        base = BELOW + 25 + row * 22
        nothing = change.nothing(feed.step)
        weight, words = "" if nothing else "bold", change.words(feed.step)
        drawn = (
            rect(left - 6, base - 16, SIDE - left + 12, 22, fill=PAPER),
            _switch(
                left,
                base - 5,
                change,
                getattr(feed.work, change.control),
                RULE if nothing else GREEN if change.seconds < 0 else VERMILLION,
            ),
            text(left + 34, base, change.name, weight=weight),
            text(SIDE, base, words, anchor="end", weight=weight),
        )
        body.append(clickable("".join(drawn), f"{change.name}: {words}", **{change.control: change.other}))
    return body


def _switch(x: float, y: float, change: Change, now: int, fill: str) -> str:
    """A switch with its knob to the left or, if on, to the right; what is a number has a step."""
    if not isinstance(change.other, bool):
        sign = "+" if change.other > now else "−"
        return rect(x + 6, y - 8, 16, 16, stroke=INK, radius=3) + text(x + 14, y + 5, sign, anchor="middle")
    knob = dot(x + (20 if change.on else 8), y, 5, fill=INK if change.on else PAPER, stroke=INK)
    return rect(x, y - 8, 28, 16, fill=fill if change.on else PAPER, stroke=INK, radius=8) + knob

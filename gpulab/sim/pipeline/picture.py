"""The picture of `pipeline`: two short epochs over time, a step over the workers, and what each choice does."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

from virtualgpu.clock.clock import Span
from virtualgpu.pictures.style import BLUE, EDGE, GREEN, INK, ORANGE, PAPER, PURPLE, RULE, SKY, VERMILLION, YELLOW
from virtualgpu.pictures.svg import MARGIN, Picture, dot, line, rect, text

from ..base.lanes import Axis, Stretch, blocks, cursor, inside, playhead, round_step, veil
from ..base.scene import END, Plot, Scale, keys, note, picture, small
from ..base.touch import clickable, draggable, grasp
from ..base.words import count, duration, percent
from .model import BATCHES, EPOCHS, MOST_WORKERS, Run, Work
from .result import FRAMES, Change, Feed, doing

LEFT, RIGHT = 150.0, 746.0
TOP, LOW = 24.0, 222.0  # of the lanes
BELOW = 304.0
MAIN = {
    "starts workers": BLUE,
    "loads": SKY,
    "waits for a batch": VERMILLION,
    "waits for a copy": YELLOW,
    "waits for the GPU": YELLOW,
}


def draw(feed: Feed) -> Picture:
    """Two short epochs over time; a step over the workers; what each choice does."""
    axis = Axis(LEFT, RIGHT, feed.run.end)
    bars, words = _lanes(feed.work, feed.run)
    now = [veil(axis, feed.moment, TOP - 4, LOW), cursor(axis, feed.moment, TOP - 6, LOW)]
    lanes = [*axis.draw(TOP - 6, LOW), *bars, *now, *words, *_first_waits(feed, axis), *_labels(feed, axis)]
    grip = playhead(axis, axis.seconds, TOP - 12, LOW, last=FRAMES)
    return picture(feed, BELOW + 152, lanes, _keys(feed), _over_workers(feed), _buys(feed), [grip])


def _rooms(work: Work) -> dict[str, tuple[float, float]]:
    """From where down and how high each lane is."""
    if not work.workers:
        return {"main": (TOP, 62), "copies": (TOP + 70, 36), "gpu": (TOP + 114, 80)}
    pins = {"pin": (TOP + 88, 16.0)} if work.pinned else {}
    high = 76.0 - 22 * len(pins)
    return {"workers": (TOP, high), "main": (TOP + high + 6, 24.0)} | pins | {"copies": (134, 18), "gpu": (158, 60)}


@lru_cache(maxsize=4)
def _lanes(work: Work, done: Run) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The bars, and the words over them. They stay while the moment moves."""
    axis, rooms = Axis(LEFT, RIGHT, done.end), _rooms(work)
    bars: list[str] = []
    words: list[str] = []

    def lane(spans: Iterable[Span], top: float, high: float, fill: str, *names: str, hatched: bool = False) -> None:
        here = list(spans)
        bars.append(blocks(axis, map(_stretch, here), top, high, fill=fill, stroke=EDGE, hatched=hatched))
        if high >= 14:
            for span in here:
                labels = names or (str(int(span.name) + 1),)
                words.append(inside(axis, _stretch(span), labels, top + high / 2 + 5))

    for top, high in rooms.values():
        bars.append(rect(LEFT, top, RIGHT - LEFT, high, stroke=RULE))
    bars.append(rect(LEFT, rooms["gpu"][0], RIGHT - LEFT, rooms["gpu"][1], fill=VERMILLION, opacity=0.2))
    for worker in range(work.workers):
        top, high = rooms["workers"]
        each = high / work.workers
        high = min(each - 1.5, 24)
        lane((s for s in done.spans if (s.where, s.stream) == ("worker", worker)), top + worker * each, high, SKY)
    for what, fill in MAIN.items():
        names = {"starts workers": ("starts workers", "starts"), "loads": ()}.get(what, ("waits",))
        lane((s for s in done.spans if doing(s) == what), *rooms["main"], fill, *names, hatched=fill == VERMILLION)
    for where, room, fill in (("pin", "pin", ORANGE), ("to GPU", "copies", PURPLE), ("kernels", "gpu", GREEN)):
        lane((s for s in done.spans if s.where == where), *rooms.get(room, rooms["main"]), fill)
    return tuple(bars), tuple(words)


def _stretch(span: Span) -> Stretch:
    return span.start, span.start + span.seconds


def _first_waits(feed: Feed, axis: Axis) -> list[str]:
    """How long the GPU has nothing to do at the start of an epoch, where that is more than a step."""
    found, (top, high) = [], _rooms(feed.work)["gpu"]
    for epoch in range(EPOCHS):
        since, idle = feed.run.computed[epoch * BATCHES - 1] if epoch else 0.0, feed.idle(epoch)
        if idle > feed.work.compute:
            names = (f"idle {duration(idle)} until the first batch is there", f"idle {duration(idle)}")
            found.append(inside(axis, (since, since + idle), names, top + high / 2 + 5))
    return found


def _labels(feed: Feed, axis: Axis) -> list[str]:
    work, second = feed.work, axis.x(feed.run.begun[1])
    body = [
        note(END, TOP - 11, "busy", anchor="end"),
        note(END, TOP + 6, "once running", anchor="end"),
        line(second, TOP - 6, second, LOW, stroke=INK, dash="3 3"),
        note(LEFT, LOW + 16, "epoch 1"),
        note(second, LOW + 16, "epoch 2"),
    ]
    lanes = {
        "workers": (count(work.workers, "worker"), feed.loading),
        "main": ("main process", 0.0 if work.workers else feed.loading + feed.pinning),
        "pin": ("pinning thread", feed.pinning),
        "copies": ("copies to GPU", feed.copying),
        "gpu": (f"GPU ({work.gpu})", feed.computing),
    }
    for lane, (top, high) in _rooms(work).items():
        (name, busy), weight = lanes[lane], "bold" if lane == "gpu" else ""
        body.append(text(MARGIN, top + high / 2 + 5, name, weight=weight))
        if busy:
            body.append(text(END, top + high / 2 + 5, percent(busy), anchor="end", weight=weight))
    return body


def _keys(feed: Feed) -> list[str]:
    """What happens at the moment, and what the colours stand for."""
    moment = duration(feed.moment) if feed.moment else 0
    done = set(map(doing, feed.run.spans))
    there = {fill: what for what, fill in MAIN.items() if what == "loads" or what in done}
    there |= {ORANGE: "pins"} if feed.work.pinned else {}
    there |= {YELLOW: "waits for a copy or the GPU"} if YELLOW in there else {}
    entries = [(what, fill, fill == VERMILLION) for fill, what in there.items()]
    idle = rect(MARGIN, LOW + 46, 16, 12, fill=VERMILLION, stroke=INK, opacity=0.2)
    told = small(MARGIN, LOW + 36, f"at {moment}: {feed.now}")
    return [told, idle, note(MARGIN + 22, LOW + 57, "idle"), *keys(MARGIN + 62, LOW + 57, *entries)]


def _over_workers(feed: Feed) -> list[str]:
    """A step with each number of workers."""
    alone, low, most = feed.work.compute, BELOW + 108, max(feed.by_workers)
    apart = round_step(most / 4)
    levels = [apart * mark for mark in range(math.ceil(most / apart) + 1)]
    plot = Plot(Scale(76.0, 370.0, 0, MOST_WORKERS), Scale(low, BELOW + 16, 0, levels[-1]))
    floor, right = plot.y.at(alone), plot.x.end + 8
    body = [
        note(MARGIN, BELOW, "a step, over the number of workers (virtual)"),
        *plot.levels({level: duration(level) if level else "0" for level in levels}),
        line(plot.x.start, floor, right, floor, stroke=GREEN, width=2, dash="5 4"),
        plot.curve(enumerate(feed.by_workers), width=1.5),
    ]
    for n, step in enumerate(feed.by_workers):
        (x, y), here = plot.at(n, step), n == feed.work.workers
        body.append(dot(x, y, 7 if here else 4, fill=VERMILLION if here else INK))
        body.append(small(x, low + 18, str(n), anchor="middle", weight="bold" if here else ""))
    under = floor + 16 if floor < low - 20 else floor - 10
    body.append(small(right, under, f"GPU alone {duration(alone)}", anchor="end", halo=True))
    body.append(small(right, low + 36, feed.gains, anchor="end"))
    return [*body, draggable(grasp(*plot.box(24)), "num_workers", plot.x.grip("workers"))]


def _buys(feed: Feed) -> list[str]:
    """What each choice does, against the same loop without it: each row is its switch."""
    left = 418.0
    body = [text(left, BELOW, "What would help?", weight="bold")]
    body.append(note(END, BELOW, f"a step of {duration(feed.step)}, each alone (virtual)", anchor="end"))
    for row, change in enumerate(feed.changes):
        base, nothing, words = BELOW + 25 + row * 22, change.nothing(feed.step), change.words(feed.step)
        helps = change.seconds < 0 and not nothing
        weight, fill = "bold" if helps else "", RULE if nothing else GREEN if helps else VERMILLION
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

"""The picture of `pipeline`: two short epochs over time, a step over the workers, and what each choice does."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise

from virtualgpu.clock.clock import Span
from virtualgpu.pictures.style import BLUE, EDGE, GREEN, INK, MUTED, ON, ORANGE, PAPER, PURPLE, RULE, SKY
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, dot, length, line, rect, text

from ..base.lanes import Axis, blocks, cursor, playhead, round_step
from ..base.scene import END, Plot, Scale, fitted, keys, note, picture, small
from ..base.touch import clickable, draggable, grasp
from ..base.words import count, duration, percent
from .model import BATCHES, EPOCHS, MOST_WORKERS, Run, Work
from .result import FRAMES, Change, Feed, doing

LEFT, RIGHT = 150.0, 746.0
TOP, LOW = 50.0, 238.0  # of the lanes
BELOW = 301.0
WAITS = ("waits for a batch", "waits for a copy", "waits for the GPU")
# What is done: its fill, and the words in it; without words the number of the batch.
LOOKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "starts workers": (RULE, ("starts",)),
    **dict.fromkeys(("loads", "worker"), (SKY, ())),
    **dict.fromkeys(WAITS, (PAPER, ("waits",))),
    **dict.fromkeys(("pin", "to GPU"), (PURPLE, ())),
    "kernels": (GREEN, ()),
}
ROOM = 18.0  # for a number of two digits


def draw(feed: Feed) -> Picture:
    """Two short epochs over time; a step over the workers; what each choice does."""
    axis = Axis(LEFT, RIGHT, feed.run.end)
    bars, words = _lanes(feed.work, feed.run)
    lanes = [*axis.draw(TOP - 6, LOW), *bars, *_followed(feed, axis), cursor(axis, feed.moment, TOP - 6, LOW)]
    for x, y, name, ink in words:
        if abs(x - axis.x(feed.moment)) > length(name, SMALL) / 2 + 2:  # the line goes through no word
            lanes.append(small(x, y, name, anchor="middle", fill=ink))
    lanes += [*_first_waits(feed, axis), *_labels(feed, axis)]
    grip = playhead(axis, axis.seconds, TOP - 12, LOW, last=FRAMES)
    return picture(feed, BELOW + 150, lanes, _keys(feed), _over_workers(feed), _buys(feed), [grip])


def _rooms(work: Work) -> dict[str, tuple[float, float]]:
    """From where down and how high each lane is."""
    if not work.workers:
        return {"main": (TOP, 64), "copies": (TOP + 72, 10), "gpu": (TOP + 90, 98)}
    pins = {"pin": (TOP + 94, 10.0)} if work.pinned else {}
    high, low = 80.0 - 18 * len(pins), {"copies": (TOP + 112, 10.0), "gpu": (TOP + 128, 60.0)}
    return {"workers": (TOP, high), "main": (TOP + high + 4, 22.0)} | pins | low


def _place(work: Work, span: Span) -> tuple[float, float]:
    """From where down and how high it is in its lane."""
    rooms = _rooms(work)
    if span.where == "worker":
        top, high = rooms["workers"]
        each = high / work.workers
        return top + span.stream * each, min(each - 1.5, 24)
    return rooms.get({"to GPU": "copies", "kernels": "gpu"}.get(span.where, span.where), rooms["main"])


@lru_cache(maxsize=4)
def _lanes(work: Work, done: Run) -> tuple[tuple[str, ...], tuple[tuple[float, float, str, str], ...]]:
    """The bars, and the words over them: their middle, base line, and ink. They stay while the moment moves."""
    axis, rooms = Axis(LEFT, RIGHT, done.end), _rooms(work)
    bars = [rect(LEFT, top, RIGHT - LEFT, high, stroke=RULE) for top, high in rooms.values()]
    bars.append(rect(LEFT, rooms["gpu"][0], RIGHT - LEFT, rooms["gpu"][1], fill=ORANGE, stroke=EDGE))
    words: list[tuple[float, float, str, str]] = []
    found: dict[tuple[str, tuple[float, float]], list[Span]] = {}
    for span in done.spans:
        found.setdefault((doing(span) or span.where, _place(work, span)), []).append(span)
    for (what, (top, high)), spans in found.items():
        fill, names = LOOKS[what]
        times = ((span.start, span.start + span.seconds) for span in spans)
        base, numbered = top + high / 2 + 5, high >= 14 and min(axis.seen(span.seconds) for span in spans) >= ROOM
        if what == "kernels" and not numbered:  # above the blocks, where there is room
            numbered = min(axis.seen(two.start - one.start) for one, two in pairwise(spans)) >= ROOM
            base, top, high = (top + 13, top + 17, high - 17) if numbered else (base, top, high)
        bars.append(blocks(axis, times, top, high, fill=fill, stroke=EDGE))
        for span in spans:
            fit = [name for name in names if length(name, SMALL) + 6 < axis.seen(span.seconds)]
            fit += [str(int(span.name) + 1)] if numbered and not names else []
            middle, ink = axis.x(span.start + span.seconds / 2), INK if fill in (RULE, PAPER) else ON
            words += [(min(middle, RIGHT - length(name, SMALL) / 2), base, name, ink) for name in fit[:1]]
    return tuple(bars), tuple(words)


def _followed(feed: Feed, axis: Axis) -> list[str]:
    """A frame around all that is done with the batch that the GPU computes at the moment, or will compute next."""
    body, followed = [], str(feed.followed)
    for span in feed.run.spans:
        if span.name == followed:
            top, high = _place(feed.work, span)
            body.append(rect(axis.x(span.start), top, axis.seen(span.seconds), high, stroke=INK, edge=2))
    return body


def _first_waits(feed: Feed, axis: Axis) -> list[str]:
    """How long the GPU has nothing to do at the start of an epoch, where that is more than a step."""
    found, (top, high) = [], _rooms(feed.work)["gpu"]
    for epoch in range(EPOCHS):
        since, idle = feed.run.computed[epoch * BATCHES - 1] if epoch else 0.0, feed.idle(epoch)
        if idle > feed.work.compute:
            found.append(fitted(axis.x(since), axis.seen(idle), top + high / 2 + 5, f"idle {duration(idle)}", fill=ON))
    return found


def _labels(feed: Feed, axis: Axis) -> list[str]:
    work, ends = feed.work, {"main": feed.run.begun[1], "gpu": feed.run.computed[BATCHES - 1]}
    body = [
        text(MARGIN, 19, "Two short epochs", weight="bold"),
        note(END, 19, "busy in mid-epoch", anchor="end"),
        note(LEFT, LOW + 16, "epoch 1"),
        note(axis.x(ends["gpu"]), LOW + 16, "epoch 2"),
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
        if lane in ends:
            body.append(line(axis.x(ends[lane]), top - 3, axis.x(ends[lane]), top + high + 3, width=2, dash="4 3"))
        body.append(text(MARGIN, top + high / 2 + 5, name, weight=weight))
        if busy:
            body.append(text(END, top + high / 2 + 5, percent(busy), anchor="end", weight=weight))
    return body


def _keys(feed: Feed) -> list[str]:
    """What happens at the moment, and what the colours stand for."""
    moment = duration(feed.moment) if feed.moment else 0
    body, y = [small(MARGIN, LOW + 36, f"at {moment}: {feed.now}")], LOW + 36
    if feed.followed is not None:
        body += [rect(682, y - 11, 16, 12, stroke=INK, edge=2), note(704, y, f"batch {feed.followed + 1} on its way")]
    some = [("starts", RULE)] if feed.work.workers else []
    some += [("loads", SKY), ("waits", PAPER), ("pins, copies" if feed.work.pinned else "copies", PURPLE)]
    return [*body, *keys(164, 19, *some, ("computes", GREEN), ("idle", ORANGE))]


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
        body.append(dot(x, y, 7 if here else 4, fill=BLUE if here else INK))
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
        base, words = BELOW + 25 + row * 22, change.words(feed.step)
        weight = "bold" if change.seconds < 0 and not change.nothing(feed.step) else ""
        drawn = rect(left - 6, base - 16, END - left + 12, 22, fill=PAPER)
        drawn += _switch(left, base - 5, change, getattr(feed.work, change.control))
        drawn += text(left + 34, base, change.name, weight=weight)
        drawn += text(END, base, words, anchor="end", weight=weight, fill=INK if weight else MUTED)
        body.append(clickable(drawn, f"{change.name}: {words}", **{change.control: change.other}))
    return body


def _switch(x: float, y: float, change: Change, now: int) -> str:
    """A switch with its knob to the left or, if on, to the right; what is a number has a step."""
    if not isinstance(change.other, bool):
        sign = "+" if change.other > now else "−"
        return rect(x + 6, y - 8, 16, 16, stroke=INK, radius=3) + text(x + 14, y + 5, sign, anchor="middle")
    knob = dot(x + (20 if change.on else 8), y, 5, fill=PAPER, stroke=INK)
    return rect(x, y - 8, 28, 16, fill=BLUE if change.on else PAPER, stroke=INK, radius=8) + knob

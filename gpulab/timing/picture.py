"""Draws the timeline of one call: a lane for the host, one for each stream of the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from virtualgpu.pictures.style import GREEN, INK, PURPLE, RULE, SKY, VERMILLION
from virtualgpu.pictures.svg import MARGIN, Picture, key, rect, text

from ..sim.base.lanes import Axis, blocks, inside, joined
from ..sim.base.touch import named

if TYPE_CHECKING:
    from .lanes import Timeline
    from .recording import Event

_WIDTH, _LEFT, _RIGHT, _TOP, _HIGH, _APART = 860.0, 110.0, 830.0, 26.0, 34.0, 46.0
_FILLS = {"launch": SKY, "wait": VERMILLION, "kernel": GREEN, "copy": PURPLE}
_HATCHED = ("wait", "copy")  # so that colour alone need not distinguish them
_POINTED = 2.0  # pixels from which a bar says what it is where the pointer rests on it


def draw(call: Timeline) -> Picture:
    """The lanes under one another over time, with a legend."""
    axis = Axis(_LEFT, _RIGHT, max(call.ms, 1e-3) / 1e3)
    lanes = call.lanes
    low = _TOP + _APART * len(lanes)
    body = axis.draw(_TOP, low - 6)
    for number, (name, events) in enumerate(lanes.items()):
        top = _TOP + 6 + _APART * number
        body.append(text(MARGIN, top + 22, name))
        body.append(rect(_LEFT, top, _RIGHT - _LEFT, _HIGH, stroke=RULE))
        body += _lane(axis, events, top)
    for number, (kind, fill) in enumerate(_FILLS.items()):
        body.append(key(_LEFT + 110 * number, low + 16, kind, fill=fill, hatched=kind in _HATCHED))
    return Picture(_WIDTH, low + 26, call.finding, call.describe(), tuple(body))


def _lane(axis: Axis, events: tuple[Event, ...], top: float) -> list[str]:
    body, words = [], []
    for kind, fill in _FILLS.items():
        mine = [event for event in events if event.kind == kind]
        stretches = [(event.start_ms / 1e3, event.end_ms / 1e3) for event in mine]
        edge = INK if mine and axis.seen(max(end - start for start, end in stretches)) >= 4 else ""
        body.append(blocks(axis, stretches, top, _HIGH, fill=fill, stroke=edge, hatched=kind in _HATCHED))
        if kind == "wait":
            words += [inside(axis, wait, ("waits",), top + 22) for wait in joined(stretches, axis.seconds / 600)]
        elif kind != "launch":
            words += [inside(axis, at, _names(event), top + 22) for event, at in zip(mine, stretches, strict=True)]
    for event in events:
        if axis.seen(event.ms / 1e3) >= _POINTED:
            area = rect(axis.x(event.start_ms / 1e3), top, axis.seen(event.ms / 1e3), _HIGH, fill="transparent")
            words.append(named(area, f"{event.kind} {event.name}: {event.ms:.3f} ms from {event.start_ms:.3f} ms"))
    return [piece for piece in (*body, *words) if piece]


def _names(event: Event) -> tuple[str, str]:
    """The name, and a shorter one: "copy to GPU, pinned" and "to GPU"."""
    return event.name, event.name.partition(",")[0].removeprefix("copy ").removeprefix("Memcpy ")

"""Make a piece of a picture a control: it can be dragged, clicked, and reached by keyboard and screen reader.

The marks do nothing in a still picture; `front.js` gives them their cursor, role and answer where a kernel is alive.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from virtualgpu.pictures.svg import rect


class Grip(NamedTuple):
    """A control that follows the pointer: from `low` to `high`, between `start` and `end` in the picture's pixels.

    `step` is for a control whose own step is too coarse to follow.
    """

    name: str
    start: float
    end: float
    low: float
    high: float
    log: bool = False
    axis: str = "x"
    step: float = 0.0


def draggable(piece: str, label: str, *grips: Grip) -> str:
    """`piece` moves one control, or two: the second by the arrow keys up and down. `label` is what is spoken."""
    marks = {
        "drag": " ".join(grip.name for grip in grips),
        "from": " ".join(f"{grip.start:g}" for grip in grips),
        "to": " ".join(f"{grip.end:g}" for grip in grips),
        "low": " ".join(f"{grip.low:.12g}" for grip in grips),
        "high": " ".join(f"{grip.high:.12g}" for grip in grips),
        "log": " ".join(str(int(grip.log)) for grip in grips),
        "axis": " ".join(grip.axis for grip in grips),
        "step": " ".join(f"{grip.step:g}" for grip in grips),
        "label": label,
    }
    return _marked(piece, marks)


def on_track(piece: str, label: str, name: str, track: Iterable[tuple[float, float, float]]) -> str:
    """`piece` moves the control `name` along a curve: points of x, y and its value there, equal factors between two."""
    points = " ".join(f"{x:.1f},{y:.1f},{value:g}" for x, y, value in track)
    return _marked(piece, {"drag": name, "track": points, "label": label})


def clickable(piece: str, label: str, **values: Any) -> str:
    """A click, Enter or the space bar on `piece` sets controls to `values`."""
    return _marked(piece, {"set": json.dumps(values), "label": label})


def command(piece: str, label: str, name: str, words: str) -> str:
    """A click, Enter or the space bar on `piece` adds the command `words` to the script `name`."""
    return _marked(piece, {"add": json.dumps([name, words]), "label": label})


def grasp(x: float, y: float, width: float, height: float) -> str:
    """A rectangle that is not seen: room for a pointer around what is thin or hollow."""
    return rect(x, y, width, height, takes_pointer=True)


def after(pieces: Iterable[str], script: str, **values: Any) -> str:
    """The commands in `pieces` follow those of `script`, not all that there are, and set the other `values` too."""
    return _marked("".join(pieces), {"after": json.dumps([script, values])})


def carried(piece: str, x: float, y: float, width: float, height: float) -> str:
    """`piece`, which holds a clickable or a command, may also be carried into a rectangle: as if it was clicked."""
    return _marked(piece, {"drop": f"{x:g} {y:g} {width:g} {height:g}"})


def grows(piece: str, start: str) -> str:
    """`piece` comes from its `start`, left or right, after a click in the picture."""
    return f'<g class="gs-grows" style="transform-box:fill-box;transform-origin:{start}">{piece}</g>'


def named(piece: str, words: str) -> str:
    """`piece` with words that show where the pointer rests on it."""
    return f"<g>{piece}<title>{escape(words)}</title></g>"


def _marked(piece: str, marks: dict[str, str]) -> str:
    return "<g " + " ".join(f"data-{name}={quoteattr(value)}" for name, value in marks.items()) + f">{piece}</g>"

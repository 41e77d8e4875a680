"""The picture of a `MemoryCurve` in a running notebook: `zoom.js` asks for a stretch of it, which is drawn here.

Imported only where a timeline is displayed in a kernel.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import anywidget
import ipywidgets
import traitlets

from virtualgpu.pictures import asleep, style
from virtualgpu.readings.curve import MemoryCurve

from .picture import LEFT, RIGHT, WIDTH, draw

_BOX = ".gpulab-timeline"
_LOOK = f"""{_BOX} {{ position: relative; }}
{_BOX} svg {{ display: block; max-width: 100%; height: auto; user-select: none; }}
{_BOX} p {{ margin: 2px 0 0; color: light-dark({style.MUTED}, {style.DARK[style.MUTED]}); font-size: 13px; }}
{_BOX} .gt-shade {{ position: absolute; top: 0; background: {style.SKY}; opacity: 0.3; pointer-events: none; }}
{_BOX}:focus-visible {{ outline: 2px solid {style.BLUE}; }}
{_BOX} g:hover > path {{ filter: brightness(1.12); }}
"""


def _themes() -> str:
    """The rules by which the colours of pictures are those of the page's theme."""
    rule = "{0} [{1}='{2}']{{{1}:light-dark({2},{3})}}"
    pairs = style.DARK.items()
    return "\n".join(rule.format(_BOX, part, *pair) for part in ("fill", "stroke") for pair in pairs)


class Zoom(anywidget.AnyWidget):
    """What page and kernel share: the page sets `asked`, the kernel `svg` and `stretch`, which it shows."""

    _esm = (files(__package__) / "zoom.js").read_text(encoding="utf-8")
    _css = _LOOK + _themes()
    svg = traitlets.Unicode().tag(sync=True)
    words = traitlets.Unicode().tag(sync=True)
    stretch = traitlets.List(traitlets.Int()).tag(sync=True)
    home = traitlets.List(traitlets.Int()).tag(sync=True)
    end = traitlets.Int().tag(sync=True)  # the last point of the curve
    plot = traitlets.List(traitlets.Float(), [LEFT / WIDTH, RIGHT / WIDTH]).tag(sync=True)  # shares of the width
    asked = traitlets.List(traitlets.Int()).tag(sync=True)


def zoomed(curve: MemoryCurve, first: int, last: int) -> Any:
    """Return the widget, which shows the points `first` to `last` at first."""
    scale = style.scale()

    def drawn(first: int, last: int) -> str:
        return draw(curve, first, last).text(scale=scale)

    zoom = Zoom(
        svg=drawn(first, last),
        words=curve.describe(),
        stretch=[first, last],
        home=[first, last],
        end=len(curve.allocated_bytes) - 1,
    )

    def answer(change: Any) -> None:
        first, last = change["new"]
        with zoom.hold_sync():
            zoom.svg, zoom.stretch = drawn(first, last), [first, last]

    zoom.observe(answer, names="asked")
    return asleep.mark_without_kernel(ipywidgets.VBox([zoom]))

"""Draw a plan: one bar of memory in use against the GPU's capacity, with a numbered legend.

Every part has a number in the bar where there is room, the same number in the legend, and every second one is
hatched: the picture reads without colours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..pictures import palette, style
from ..pictures.svg import BODY, MARGIN, SMALL, Picture, bar, line, rect, text
from ..units import MIB, in_mib

if TYPE_CHECKING:
    from .result import Plan

_WIDTH, _BAR, _TOP = 760.0, 44.0, 26.0
_ROW = 22.0
_COLOURS = palette.MEMORY | {"free": style.PAPER}


def draw_plan(plan: Plan) -> Picture:
    """Draw the parts of the memory in use from left to right, and a line where the GPU's memory ends."""
    rows = [*plan.rows(), ("free", plan.free)][: None if plan.free > 0 else -1]
    full = max(plan.memory, plan.total)
    scale = (_WIDTH - 2 * MARGIN) / full
    body = [rect(MARGIN, _TOP, plan.memory * scale, _BAR, fill=style.PAPER, stroke=style.MUTED)]
    left = MARGIN
    for number, (name, nbytes) in enumerate(rows, 1):
        width = nbytes * scale
        body.append(bar(left, _TOP, width, _BAR, fill=_COLOURS[name], hatched=_hatched(number)))
        if width > 18:
            body.append(_number(left + width / 2, _TOP + _BAR / 2 + 5, number, _COLOURS[name]))
        left += width
    end = MARGIN + plan.memory * scale
    body.append(line(end, _TOP - 6, end, _TOP + _BAR + 6, width=3))
    words = f"{plan.gpu}: {plan.memory / MIB:,.0f} MiB"
    body.append(text(end, _TOP - 10, words, size=SMALL, anchor="end" if end > _WIDTH / 2 else "start"))
    half = -(-len(rows) // 2)
    for index, (name, nbytes) in enumerate(rows):
        x = MARGIN + (index // half) * (_WIDTH / 2)
        y = _TOP + _BAR + 36 + (index % half) * _ROW
        body.append(bar(x, y - 14, 20, 18, fill=_COLOURS[name], hatched=_hatched(index + 1)))
        body.append(_number(x + 10, y, index + 1, _COLOURS[name]))
        body.append(text(x + 30, y, name, size=BODY))
        body.append(text(x + 310, y, f"{in_mib(nbytes)} MiB", size=BODY, anchor="end"))
    height = _TOP + _BAR + 36 + half * _ROW
    return Picture(_WIDTH, height, plan.finding, plan.describe(), tuple(body), head_lines=1)


def _hatched(number: int) -> bool:
    return number % 2 == 0 and number < 10


def _number(x: float, y: float, number: int, colour: str) -> str:
    dark, halo = colour in (style.BLUE, style.MUTED, style.INK), _hatched(number)
    fill = style.INK if halo or colour == style.PAPER else style.PAPER if dark else style.ON
    return text(x, y, str(number), size=SMALL, anchor="middle", weight="bold", fill=fill, halo=halo)

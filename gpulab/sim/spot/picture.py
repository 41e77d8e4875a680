"""The plot of a run with interruptions: the time beside its work over the interval between checkpoints, and its cost.

What it shows is computed in `spot` and `interruptions`.
"""

from __future__ import annotations

import math

from virtualgpu.pictures.style import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, RULE, SKY
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, bar, dot, length, line, num, polyline, shape, text

from ..base.scene import Scale
from ..base.touch import clickable, draggable, grasp
from ..base.words import percent
from .model import Plan
from .result import LONGEST_INTERVAL, Run, money, span

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 860.0, 70.0, 842.0, 76.0, 296.0
POINTS = 96
BEYOND = 2.0  # of the plot's height: what is higher is drawn there, and cut off
MINUTES = Scale(LEFT, RIGHT, 1, LONGEST_INTERVAL, log=True)
TICKS = (1, 2, 5, 10, 20, 60, 120, 240, 480)


def draw(run: Run) -> Picture:
    """The time that a run takes beside its work, over the interval between checkpoints; below it what it costs."""
    share = Scale(BOTTOM, TOP, 0, _limit(run.best_hours / run.plan.work - 1))
    body = [
        text(MARGIN, 14, "time beside the work, expected (virtual):", size=SMALL, fill=MUTED),
        *_key(318, "checkpoints", SKY),
        *_key(440, "restarts", PURPLE),
        *_key(540, "lost work", ORANGE, ruled=True),
        *_grid(share),
        *_areas(run.plan, share),
        *_marks(run, share),
        *_costs(run, BOTTOM + 62),
    ]
    return Picture(WIDTH, BOTTOM + 152, run.finding, run.describe(), tuple(body))


def _x(hours: float) -> float:
    return MINUTES.at(60 * hours)


def _limit(least: float) -> float:
    """The top of the plot, a round number: some three times the least that can be had."""
    wanted = max(3 * least, 0.01)
    power = 10.0 ** math.floor(math.log10(wanted))
    return next(power * part for part in (1, 2, 5, 10) if power * part >= wanted * (1 - 1e-9))


def _key(x: float, words: str, fill: str, *, ruled: bool = False) -> list[str]:
    body = [bar(x, 3, 16, 12, fill=fill), text(x + 22, 14, words, size=SMALL, fill=MUTED)]
    return body + [line(x + dx, 3, x + dx, 15) for dx in (4, 8, 12) if ruled]


def _grid(share: Scale) -> list[str]:
    body = []
    parts = 4 if f"{share.high:e}".startswith("2") else 5
    for part in range(parts + 1):
        value = share.high * part / parts
        y = share.at(value)
        body.append(line(LEFT, y, RIGHT, y, stroke=RULE if part else MUTED))
        words = f"{100 * value:,.3g}%" if share.high < 10 else f"{100 * value:,.0f}%"
        body.append(text(LEFT - 8, y + 5, words, size=SMALL, anchor="end", fill=MUTED))
    for minutes in TICKS:
        at = MINUTES.at(minutes)
        body.append(line(at, BOTTOM, at, BOTTOM + 5, stroke=MUTED))
        words = span(minutes / 60) if minutes < 60 else f"{minutes // 60} h"
        body.append(text(at, BOTTOM + 19, words, size=SMALL, anchor="middle", fill=MUTED))
    words = "work between two checkpoints"
    return [*body, text(RIGHT, BOTTOM + 37, words, size=SMALL, anchor="end", fill=MUTED)]


def _areas(plan: Plan, share: Scale) -> list[str]:
    """Three areas on one another; the last is ruled, the total has a line of its own."""
    edges: list[list[tuple[float, float]]] = [[], [], [], []]
    for point in range(POINTS + 1):
        at = LEFT + (RIGHT - LEFT) * point / POINTS
        hours = MINUTES.value(at) / 60
        height = 0.0
        for edge, part in zip(edges, (0.0, *plan.extra(hours)), strict=True):
            height += part / plan.work
            edge.append((at, BOTTOM - min(height / share.high, BEYOND) * (BOTTOM - TOP)))
    # an SVG in an SVG cuts off what is outside it
    place = f"{num(LEFT)} {num(TOP)} {num(RIGHT - LEFT)} {num(BOTTOM - TOP)}"
    size = f'x="{num(LEFT)}" y="{num(TOP)}" width="{num(RIGHT - LEFT)}" height="{num(BOTTOM - TOP)}"'
    body = [f'<svg {size} viewBox="{place}">']
    for low, high, fill in zip(edges, edges[1:], (SKY, PURPLE, ORANGE), strict=False):
        body.append(shape([*low, *reversed(high)], fill=fill))
    ruled = zip(edges[2][1::2], edges[3][1::2], strict=True)
    data = "".join(f"M{num(at)} {num(low)}V{num(high)}" for (at, low), (_, high) in ruled if low - high > 1)
    body.append(f'<path d="{data}" stroke="{INK}" stroke-width="0.8" fill="none"/>' if data else "")
    return [*body, polyline(edges[3], stroke=INK, width=2), "</svg>"]


def _marks(run: Run, share: Scale) -> list[str]:
    """Where the run is, with the spread of single runs: a line to be dragged. And the interval to be advised."""
    work = run.plan.work
    here, best = run.hours / work - 1, run.advised_hours / work - 1
    at, middle, high = _x(run.interval), _x(run.advised), share.at(best)
    words = f"best: {span(run.advised)}{' = √(2 · checkpoint · between)' * run.by_formula}, {_more(best)}"
    target = [
        line(middle, 60, middle, high, stroke=INK, width=1.5, dash="4 3"),
        shape([(middle - 8, high), (middle, high - 8), (middle + 8, high), (middle, high + 8)], fill=GREEN),
        _label(middle, 56, words, clear_of=at),
    ]
    spread, top = run.spread / work, TOP
    words = f"every {span(run.interval)}: {_more(here)}"
    grip = [
        grasp(at - 12, 22, 24, BOTTOM - 22),
        line(at, 40, at, BOTTOM, stroke=BLUE, width=3),
    ]
    if here > share.high:
        words += ", off the top"
        grip.append(shape([(at - 9, top + 9), (at + 9, top + 9), (at, top - 7)], fill=BLUE))
    else:
        words += f", single runs ± {span(run.spread)}"
        low, high = share.at(here - spread), share.at(here + spread)
        grip.append(line(at, low, at, high, stroke=BLUE, width=6))
        grip += [line(at - 9, end, at + 9, end, stroke=BLUE, width=3) for end in (low, high)]
        grip.append(dot(at, share.at(here), 8, fill=BLUE))
    moved = draggable("".join(grip), "Minutes between two checkpoints", MINUTES.grip("interval"))
    return [*target, moved, _label(at, 36, words, weight="bold")]


def _more(share: float) -> str:
    return f"+{percent(share)}" if share < 9.995 else f"{share + 1:,.0f} × the work" if share < 1e4 else "never done"


def _label(at: float, y: float, words: str, weight: str = "", clear_of: float | None = None) -> str:
    half = length(words, SMALL, bold=bool(weight)) / 2
    if clear_of is not None and abs(at - clear_of) < half + 8:
        left, right = clear_of - half - 8, clear_of + half + 8
        at = left if left - half > LEFT and (at < clear_of or right + half > RIGHT) else right
    at = min(max(at, LEFT + half), RIGHT - half)
    return text(at, y, words, size=SMALL, anchor="middle", weight=weight, halo=True)


def _costs(run: Run, top: float) -> list[str]:
    """Three bars, none longer than twice the other two."""
    most = 2 * max(run.cost_on_demand, run.advised_cost)
    unit = 420 / min(most, max(run.cost, run.cost_on_demand, run.advised_cost))
    body = []
    for row, (words, cost, fill) in enumerate(
        (
            ("on demand", run.cost_on_demand, RULE),
            (f"spot, every {span(run.interval)}", run.cost, BLUE),
            (f"spot, every {span(run.advised)} (best)", run.advised_cost, GREEN),
        )
    ):
        y, wide = top + 28 * row, min(cost, most) * unit
        amount = money(cost) + (" …" if cost > most else "")
        drawn = (
            text(MARGIN, y + 15, words)
            + bar(236, y, wide, 20, fill=fill)
            + text(246 + wide, y + 15, amount, weight="bold")
        )
        if fill == GREEN:
            minutes = min(max(round(60 * run.advised), 1), LONGEST_INTERVAL)
            drawn = clickable(drawn, f"Checkpoint every {span(run.advised)}, the best", interval=minutes)
        body.append(drawn)
    return body

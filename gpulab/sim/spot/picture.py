"""The plot of a run with interruptions: the time beside its work over the interval between checkpoints, and its cost.

What it shows is computed in `spot` and `interruptions`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from virtualgpu.pictures.style import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, RULE, SKY
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, bar, dot, length, line, num, polyline, shape, text

from ..base.words import percent
from .model import Plan
from .result import LONGEST_INTERVAL, Run, money, span

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 860.0, 70.0, 842.0, 76.0, 296.0
POINTS = 96
BEYOND = 2.0  # of the plot's height: what is higher is drawn there, and cut off
TICKS = (1, 2, 5, 10, 20, 60, 120, 240, 480)  # minutes


def draw(run: Run) -> Picture:
    """The time that a run takes beside its work, over the interval between checkpoints; below it what it costs."""
    plan = run.plan
    limit = _limit(plan.time(run.best).mean / plan.work - 1)

    def x(hours: float) -> float:
        return LEFT + math.log(max(hours * 60, 1)) / math.log(LONGEST_INTERVAL) * (RIGHT - LEFT)

    def y(share: float) -> float:
        return BOTTOM - min(max(share / limit, 0), BEYOND) * (BOTTOM - TOP)

    body = [text(MARGIN, 14, "time beside the work, expected (virtual):", size=SMALL, fill=MUTED)]
    body += [
        *_key(318, "checkpoints", SKY),
        *_key(440, "restarts", PURPLE),
        *_key(540, "lost work", ORANGE, ruled=True),
        *_grid(limit, x, y),
        *_areas(plan, x, y),
        *_marks(run, limit, x, y),
        *_costs(run, BOTTOM + 62),
    ]
    return Picture(WIDTH, BOTTOM + 152, run.finding, run.describe(), tuple(body))


Scale: TypeAlias = Callable[[float], float]


def _limit(least: float) -> float:
    """The top of the plot, a round number: some three times the least that can be had."""
    wanted = max(3 * least, 0.01)
    power = 10.0 ** math.floor(math.log10(wanted))
    return next(power * part for part in (1, 2, 5, 10) if power * part >= wanted * (1 - 1e-9))


def _key(x: float, words: str, fill: str, *, ruled: bool = False) -> list[str]:
    body = [bar(x, 3, 16, 12, fill=fill), text(x + 22, 14, words, size=SMALL, fill=MUTED)]
    return body + [line(x + dx, 3, x + dx, 15) for dx in (4, 8, 12) if ruled]


def _grid(limit: float, x: Scale, y: Scale) -> list[str]:
    body = []
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        body.append(line(LEFT, y(part * limit), RIGHT, y(part * limit), stroke=RULE if part else MUTED))
        words = f"{100 * part * limit:,.3g}%" if limit < 10 else f"{100 * part * limit:,.0f}%"
        body.append(text(LEFT - 8, y(part * limit) + 5, words, size=SMALL, anchor="end", fill=MUTED))
    for minutes in TICKS:
        at = x(minutes / 60)
        body.append(line(at, BOTTOM, at, BOTTOM + 5, stroke=MUTED))
        words = span(minutes / 60) if minutes < 60 else f"{minutes // 60} h"
        body.append(text(at, BOTTOM + 19, words, size=SMALL, anchor="middle", fill=MUTED))
    words = "work between two checkpoints"
    return [*body, text(RIGHT, BOTTOM + 37, words, size=SMALL, anchor="end", fill=MUTED)]


def _areas(plan: Plan, x: Scale, y: Scale) -> list[str]:
    """Three areas on one another; the last is ruled, the total has a line of its own."""
    edges: list[list[tuple[float, float]]] = [[], [], [], []]
    for point in range(POINTS + 1):
        hours = LONGEST_INTERVAL ** (point / POINTS) / 60
        height = 0.0
        for edge, part in zip(edges, (0.0, *plan.extra(hours)), strict=True):
            height += part / plan.work
            edge.append((x(hours), y(height)))
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


def _marks(run: Run, limit: float, x: Scale, y: Scale) -> list[str]:
    """Where the run is, with the spread of single runs, and where Young's interval is."""
    work = run.plan.work
    here, best = run.hours / work - 1, run.plan.time(run.young).mean / work - 1
    body, labels = [], []
    words = f"√(2 · checkpoint · between) = {span(run.young)}: {_more(best)}"
    body.append(line(x(run.young), 60, x(run.young), y(best), stroke=INK, width=1.5, dash="4 3"))
    labels.append(_label(x(run.young), 56, words))
    middle, high = x(run.young), y(best)
    body.append(shape([(middle - 7, high), (middle, high - 7), (middle + 7, high), (middle, high + 7)], fill=GREEN))
    at, spread, top = x(run.interval), run.spread / work, y(limit)
    words = f"every {span(run.interval)}: {_more(here)}"
    body.append(line(at, 40, at, BOTTOM, stroke=BLUE, width=2))
    if here > limit:
        words += ", off the top"
        body.append(shape([(at - 9, top + 9), (at + 9, top + 9), (at, top - 7)], fill=BLUE))
    else:
        words += f", single runs ± {span(run.spread)}"
        low, high = y(here - spread), max(y(here + spread), top)
        body.append(line(at, low, at, high, stroke=BLUE, width=5))
        body += [line(at - 9, end, at + 9, end, stroke=BLUE, width=3) for end in (low, high)]
        body.append(dot(at, y(here), 7, fill=BLUE))
    labels.append(_label(at, 36, words, weight="bold"))
    return body + labels


def _more(share: float) -> str:
    return f"+{percent(share)}" if share < 9.995 else f"{share + 1:,.0f} × the work" if share < 1e4 else "never done"


def _label(at: float, y: float, words: str, weight: str = "") -> str:
    half = length(words, SMALL, bold=bool(weight)) / 2
    at = min(max(at, LEFT + half), RIGHT - half)
    return text(at, y, words, size=SMALL, anchor="middle", weight=weight, halo=True)


def _costs(run: Run, top: float) -> list[str]:
    """Three bars, none longer than twice the other two."""
    most = 2 * max(run.cost_on_demand, run.best_cost)
    unit = 420 / min(most, max(run.cost, run.cost_on_demand, run.best_cost))
    body = []
    for row, (words, cost, fill) in enumerate(
        (
            ("on demand", run.cost_on_demand, RULE),
            (f"spot, every {span(run.interval)}", run.cost, BLUE),
            (f"spot, every {span(run.best)} (best)", run.best_cost, GREEN),
        )
    ):
        y, wide = top + 28 * row, min(cost, most) * unit
        body += [text(MARGIN, y + 15, words), bar(236, y, wide, 20, fill=fill)]
        amount = money(cost) + (" …" if cost > most else "")
        body.append(text(236 + wide + 10, y + 15, amount, weight="bold"))
    return body

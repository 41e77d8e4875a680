"""The plot of a run with interruptions: the time beside its work over the interval between checkpoints, and its cost.

What it shows is computed in `spot` and `interruptions`.
"""

from __future__ import annotations

import math

from virtualgpu.pictures.style import BLUE, GREEN, INK, ORANGE, PURPLE, RULE, SKY
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, dot, key, length, line, num, polyline, shape

from ..base.scene import Plot, Scale, between, diamond, keys, named_bar, note, picture, pointer
from ..base.touch import clickable, draggable, grasp
from .model import Plan
from .result import LONGEST_INTERVAL, Run, money, more, span

LEFT, RIGHT, TOP, BOTTOM = 70.0, 842.0, 76.0, 296.0
POINTS = 192
BEYOND = 2.0  # of the plot's height: what is higher is drawn there, and cut off
MINUTES = Scale(LEFT, RIGHT, 1, LONGEST_INTERVAL, log=True)
TICKS = (1, 2, 5, 10, 20, 60, 120, 240, 480)


def draw(run: Run) -> Picture:
    """The time that a run takes beside its work, over the interval between checkpoints; below it what it costs."""
    plot = Plot(MINUTES, Scale(BOTTOM, TOP, 0, _limit(run.best_hours / run.plan.work - 1)))
    legend = [
        note(MARGIN, 14, "expected time on top of the work (virtual):"),
        *keys(318, 14, ("checkpoints", SKY), ("restarts", PURPLE)),
        key(540, 14, "lost work", fill=ORANGE),
        *(line(x, 3, x, 15) for x in (544, 548, 552)),
    ]
    return picture(run, BOTTOM + 152, legend, _grid(plot), _areas(run.plan, plot.y), _marks(run, plot.y), _costs(run))


def _x(hours: float) -> float:
    return MINUTES.at(60 * hours)


def _limit(least: float) -> float:
    """The top of the plot, a round number: some three times the least that can be had."""
    wanted = max(3 * least, 0.01)
    power = 10.0 ** math.floor(math.log10(wanted))
    return next(power * part for part in (1, 2, 5, 10) if power * part >= wanted * (1 - 1e-9))


def _grid(plot: Plot) -> list[str]:
    most = plot.y.high
    parts = 4 if f"{most:e}".startswith("2") else 5
    shares = [most * part / parts for part in range(parts + 1)]
    return [
        *plot.levels({share: f"{100 * share:,.3g}%" if most < 10 else f"{100 * share:,.0f}%" for share in shares}),
        plot.floor(),
        *MINUTES.ticks(BOTTOM, {at: span(at / 60) if at < 60 else f"{at // 60} h" for at in TICKS}),
        note(RIGHT, BOTTOM + 37, "work between two checkpoints", anchor="end"),
    ]


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
    words = f"best: {span(run.advised)}{' = √(2 · checkpoint · between)' * run.by_formula}, {more(best)}"
    target = [
        line(middle, 60, middle, high, stroke=INK, width=1.5, dash="4 3"),
        diamond(middle, high, fill=GREEN),
        _label(middle, 56, words, clear_of=at),
    ]
    spread = run.spread / work
    words = f"every {span(run.interval)}: {more(here)}"
    grip = [grasp(at - 12, 22, 24, BOTTOM - 22), line(at, 40, at, BOTTOM, stroke=BLUE, width=3)]
    if here > share.high:
        words += ", off the top"
        grip.append(pointer(at, TOP - 7, fill=BLUE, half=9, high=-16))
    else:
        words += f", single runs ± {span(run.spread)}"
        low, high = share.at(here - spread), share.at(here + spread)
        grip.append(line(at, low, at, high, stroke=BLUE, width=6))
        grip += [line(at - 9, end, at + 9, end, stroke=BLUE, width=3) for end in (low, high)]
        grip.append(dot(at, share.at(here), 6, fill=BLUE))
    moved = draggable("".join(grip), "Minutes between two checkpoints", MINUTES.grip("interval"))
    return [*target, moved, _label(at, 36, words, weight="bold")]


def _label(at: float, y: float, words: str, weight: str = "", clear_of: float | None = None) -> str:
    half = length(words, SMALL, bold=bool(weight)) / 2
    if clear_of is not None and abs(at - clear_of) < half + 8:
        left, right = clear_of - half - 8, clear_of + half + 8
        at = left if left - half > LEFT and (at < clear_of or right + half > RIGHT) else right
    return between(LEFT, RIGHT, at, y, words, size=SMALL, weight=weight)


def _costs(run: Run) -> list[str]:
    """Three bars, none longer than twice the other two."""
    most = 2 * max(run.cost_on_demand, run.advised_cost)
    unit = 420 / min(most, max(run.cost, run.cost_on_demand, run.advised_cost))
    rows = (
        ("on demand", run.cost_on_demand, RULE),
        (f"spot, every {span(run.interval)}", run.cost, BLUE),
        (f"spot, every {span(run.advised)} (best)", run.advised_cost, GREEN),
    )
    body = []
    for row, (words, cost, fill) in enumerate(rows):
        amount = money(cost) + (" …" if cost > most else "")
        body.append(named_bar(236, BOTTOM + 77 + 28 * row, words, [(min(cost, most) * unit, fill, False)], amount))
    minutes = min(max(round(60 * run.advised), 1), LONGEST_INTERVAL)
    best = clickable(body.pop(), f"Checkpoint every {span(run.advised)}, the best", interval=minutes)
    return [*body, best]

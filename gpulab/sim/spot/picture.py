"""The plot of a run with interruptions: the time beside its work over the interval between checkpoints, and its cost.

What it shows is computed in `model` and `result`.
"""

from __future__ import annotations

import math

from virtualgpu.pictures.style import GREEN, INK, ORANGE, PURPLE, RULE, SKY
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, dot, key, length, line, num, polyline, shape, text

from ..base.scene import Plot, Scale, between, diamond, fitted, keys, named_bar, note, picture, pointer
from ..base.touch import clickable, draggable, grasp
from ..base.words import percent
from .model import Plan
from .result import LONGEST_INTERVAL, Run, money, more, span

LEFT, RIGHT, TOP, BOTTOM = 70.0, 842.0, 86.0, 300.0
POINTS = 192
MINUTES = Scale(LEFT, RIGHT, 1, LONGEST_INTERVAL, log=True)
TICKS = (1, 2, 5, 10, 20, 60, 120, 240, 480)


def draw(run: Run) -> Picture:
    """The time that a run takes beside its work, over the interval between checkpoints; below it what it costs."""
    plot = Plot(MINUTES, Scale(BOTTOM, TOP, 0, _limit(run.best_hours / run.plan.work - 1)))
    legend = [
        text(MARGIN, 20, f"expected time on top of {span(run.plan.work)} of work (virtual)", weight="bold"),
        *keys(RIGHT - 108, 20, ("checkpoints", SKY), ("restarts", PURPLE), ends=True),
        key(RIGHT - 88, 20, "lost work", fill=ORANGE),
        *(line(x, 9, x, 21) for x in (RIGHT - 84, RIGHT - 80, RIGHT - 76)),
    ]
    return picture(
        run, BOTTOM + 148, legend, _grid(run, plot), _areas(run.plan, plot.y), _marks(run, plot.y), _costs(run)
    )


def _x(hours: float) -> float:
    return MINUTES.at(60 * hours)


def _limit(least: float) -> float:
    """The top of the plot, a round number: some three times the least that can be had."""
    wanted = max(3 * least, 0.01)
    power = 10.0 ** math.floor(math.log10(wanted))
    return next(power * part for part in (1, 2, 5, 10) if power * part >= wanted * (1 - 1e-9))


def _grid(run: Run, plot: Plot) -> list[str]:
    most = plot.y.high
    parts = 4 if f"{most:e}".startswith("2") else 5
    shares = [most * part / parts for part in range(parts + 1)]
    return [
        *plot.levels({share: f"{100 * share:,.3g}%" if most < 10 else f"{100 * share:,.0f}%" for share in shares}),
        plot.floor(),
        *MINUTES.ticks(BOTTOM, {at: span(at / 60) if at < 60 else f"{at // 60} h" for at in TICKS}),
        note(RIGHT, BOTTOM + 37, "work between two checkpoints", anchor="end"),
        note(LEFT, BOTTOM + 37, "the best is √(2 × writing a checkpoint × interrupted every)")
        if run.by_formula
        else "",
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
            edge.append((at, share.at(height)))
    body = []
    for low, high, fill in zip(edges, edges[1:], (SKY, PURPLE, ORANGE), strict=False):
        body.append(shape([*low, *reversed(high)], fill=fill))
    ruled = zip(edges[2][1::2], edges[3][1::2], strict=True)
    data = "".join(f"M{num(at)} {num(low)}V{num(high)}" for (at, low), (_, high) in ruled if low - high > 1)
    body.append(f'<path d="{data}" stroke="{INK}" stroke-width="0.8" fill="none"/>' if data else "")
    body.append(polyline([place for place in edges[3] if place[1] > TOP], width=2))
    beyond = [at for at, y in edges[3] if y <= TOP]
    for side in ([at for at in beyond if (at < (LEFT + RIGHT) / 2) == left] for left in (True, False)):
        body.append(fitted(side[0], side[-1] - side[0], TOP + 18, "↑ goes on", halo=True) if side else "")
    return body


def _marks(run: Run, share: Scale) -> list[str]:
    """Where the run is, with the spread of single runs: a line to be dragged. And the interval to be advised."""
    work, same = run.plan.work, span(run.interval) == span(run.advised)
    here, best, spread = run.hours / work - 1, run.advised_hours / work - 1, run.spread / work
    at, middle, high = _x(run.interval), _x(run.advised), share.at(best)
    words = f"every {span(run.interval)}{', the best' * same}: {more(here)}"
    grip = [grasp(at - 12, 32, 24, BOTTOM - 32), line(at, 50, at, BOTTOM, width=3)]
    target = []
    if not same:
        label = _label(middle, 66, f"best: {span(run.advised)}, {more(best)}", clear_of=at)
        target = [line(middle, 70, middle, high, width=1.5, dash="4 3"), diamond(middle, high, fill=GREEN), label]
    if here > share.high:
        words += ", off the top"
        grip.append(pointer(at, TOP - 7, half=9, high=-16))
    else:
        words += f", single runs ± {percent(spread)}"
        low, top = share.at(here - spread), share.at(here + spread)
        grip += [line(at - 9, end, at + 9, end, width=3) for end in (low, top)]
        grip.append(diamond(at, high, fill=GREEN) if same else dot(at, share.at(here), 6, fill=INK))
    moved = draggable("".join(grip), "Minutes between two checkpoints", MINUTES.grip("interval"))
    return [*target, moved, _label(at, 44, words, weight="bold")]


def _label(at: float, y: float, words: str, weight: str = "", clear_of: float | None = None) -> str:
    half = length(words, SMALL, bold=bool(weight)) / 2
    if clear_of is not None and abs(at - clear_of) < half + 8:
        left, right = clear_of - half - 8, clear_of + half + 8
        at = left if left - half > LEFT and (at < clear_of or right + half > RIGHT) else right
    return between(LEFT, RIGHT, at, y, words, size=SMALL, weight=weight)


def _costs(run: Run) -> list[str]:
    """Bars for the price, none longer than twice the others; the run's own is left out where it is the best."""
    most = 2 * max(run.cost_on_demand, run.advised_cost)
    unit = 420 / min(most, max(run.cost, run.cost_on_demand, run.advised_cost))
    best, rows = span(run.advised), [("on demand", run.cost_on_demand, RULE)]
    if span(run.interval) != best:
        rows.append((f"spot, every {span(run.interval)}", run.cost, INK))
    rows.append((f"spot, every {best} (best)", run.advised_cost, GREEN))
    body = []
    for row, (words, cost, fill) in enumerate(rows):
        amount = money(cost) + (" …" if cost > most else "")
        body.append(named_bar(236, BOTTOM + 74 + 28 * row, words, [(min(cost, most) * unit, fill, False)], amount))
    minutes = min(max(round(60 * run.advised), 1), LONGEST_INTERVAL)
    return [*body[:-1], clickable(body[-1], f"Checkpoint every {best}, the best", interval=minutes)]

"""The plot of a run with interruptions: the time beside its work over the interval between checkpoints, and its cost.

What it shows is computed in `model` and `result`.
"""

from __future__ import annotations

import math
from itertools import accumulate, pairwise

from virtualgpu.pictures.style import GREEN, INK, MUTED, ORANGE, PAPER, PURPLE, RULE, SKY
from virtualgpu.pictures.svg import MARGIN, SMALL, Picture, dot, key, length, line, num, polyline, rect, shape, text

from ..base.scene import END, Plot, Scale, arrow, between, diamond, keys, named_bar, note, picture
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
        *(line(x, 9, x, 21, stroke=PAPER) for x in (RIGHT - 84, RIGHT - 80, RIGHT - 76)),
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
    ]


def _columns(plan: Plan, share: Scale) -> list[list[float]]:
    """An x, and upwards from it the heights at which the areas begin and end. Where there are many intervals they are
    equal parts of the work: a rest that is shorter by chance would make the curve shake."""
    hours = [MINUTES.value(LEFT + (RIGHT - LEFT) * point / POINTS) / 60 for point in range(POINTS + 1)]
    columns: list[list[float]] = []
    for at in sorted({_x(plan.work / round(plan.work / h) if plan.work > 8 * h else h) for h in hours}):
        heights = accumulate((0.0, *plan.extra(MINUTES.value(at) / 60)))
        column = [at, *(share.beyond(height / plan.work) for height in heights)]
        last = columns[-1] if columns else column
        for before, after in zip(last[1:], column[1:], strict=True):
            if (before - TOP) * (after - TOP) < 0:  # an edge leaves the plot between the two
                part = (before - TOP) / (before - after)
                columns.append([x + part * (y - x) for x, y in zip(last, column, strict=True)])
        columns.append(column)
    return sorted(columns)


def _areas(plan: Plan, share: Scale) -> list[str]:
    """Three areas on one another, fading where they have no room; the last is ruled, the total is a line."""
    columns = _columns(plan, share)
    edges = [[(column[0], max(column[edge], TOP)) for column in columns] for edge in range(1, 5)]
    fills = zip(edges, edges[1:], (SKY, PURPLE, ORANGE), strict=False)
    body = [shape([*low, *reversed(high)], fill=fill) for low, high, fill in fills]
    ruled = ((x, _height(edges[2], x), _height(edges[3], x)) for x in range(int(LEFT) + 8, int(RIGHT), 8))
    data = "".join(f"M{num(x)} {num(low)}V{num(high)}" for x, low, high in ruled if low - high > 1)
    body.append(f'<path d="{data}" stroke="{PAPER}" stroke-width="0.8" fill="none"/>' if data else "")
    total = [(column[0], column[4]) for column in columns if column[4] > TOP - 0.1]
    first, last = (total[0][0], total[-1][0]) if total else (RIGHT, RIGHT)
    return [*body, polyline(total, width=2), *_fading(LEFT, first), *_fading(last, RIGHT)]


def _height(edge: list[tuple[float, float]], x: float) -> float:
    """How high it is at `x`."""
    return next(Scale(y, then, left, right).at(x) for (left, y), (right, then) in pairwise(edge) if left <= x < right)


def _fading(left: float, right: float) -> list[str]:
    """An upper edge beyond which the areas go on."""
    if right - left < 32:
        return []
    at, anchor = (left, "start") if left == LEFT else (right, "end")
    veils = [rect(left, TOP - 1, right - left, 5 * step, fill=PAPER, opacity=0.2) for step in range(1, 7)]
    return [*veils, note(at, TOP - 6, "off the scale", anchor=anchor)]


def _marks(run: Run, share: Scale) -> list[str]:
    """Where the run is, with the spread of single runs: a line to be dragged. And the interval to be advised."""
    plan, same = run.plan, span(run.interval) == span(run.advised)
    here, best, spread = run.hours / plan.work - 1, run.advised_hours / plan.work - 1, run.spread / plan.work
    at, middle, high = _x(run.interval), _x(run.advised), share.at(best)
    formula = f" ≈ √(2 × {span(plan.checkpoint)} × {span(plan.between)})" if run.by_formula else ""
    words = f"every {span(run.interval)}{f', the best{formula}' if same else ''}: {more(here)}"
    grip = [grasp(at - 12, 32, 24, BOTTOM - 32), line(at, 50, at, BOTTOM, stroke=MUTED, width=2)]
    target = []
    if not same:
        label = _label(middle, 66, f"best: {span(run.advised)}{formula}, {more(best)}", clear_of=at)
        target = [line(middle, 70, middle, high, width=1.5, dash="4 3"), diamond(middle, high, fill=GREEN), label]
    if here > share.high:
        words += ", off the scale"
    else:
        words += f", ± {f'{100 * spread:,.0f}%' if spread >= 0.005 else percent(spread)} from run to run"
        low, top = share.at(here - spread), share.at(here + spread)
        if low - top > 14:  # else the dot hides it
            grip += [line(at, low, at, top, width=4), *(line(at - 7, y, at + 7, y, width=3) for y in (low, top))]
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
    """Bars for the price, none longer than twice the others, and what it comes from."""
    most = 2 * max(run.cost_on_demand, run.advised_cost)
    unit = 380 / min(most, max(run.cost, run.cost_on_demand, run.advised_cost))
    here, best, body = span(run.interval), span(run.advised), []
    rows = [("on demand", run.plan.work, run.price, RULE)]
    rows += [(f"spot, every {here}", run.hours, run.spot_price, INK)] if here != best else []
    rows += [(f"spot, every {best} (best)", run.advised_hours, run.spot_price, GREEN)]
    for row, (words, hours, price, fill) in enumerate(rows):
        base, cost = BOTTOM + 74 + 28 * row, hours * price
        amount, wide = money(cost) + (" …" if cost > most else ""), min(cost, most) * unit
        drawn = named_bar(222, base, words, [(wide, fill, False)], amount)
        x, reason = 222 + wide + 18 + length(amount, bold=True), f"≈ {span(hours)} × {money(price)}"
        body.append(drawn + (note(x, base, reason) if x + length(reason, SMALL) < END else ""))
    if len(rows) == 2:
        low, (end, start) = BOTTOM + 125, (222 + min(one, most) * unit for one in (run.cost, run.cost_on_demand))
        return [*body, arrow(start, end, low), text(max(start, end) + 10, low + 5, run.saved, weight="bold")]
    minutes = min(max(round(60 * run.advised), 1), LONGEST_INTERVAL)
    return [*body[:-1], clickable(body[-1], f"Checkpoint every {best}, the best", interval=minutes)]

"""A long run on machines that can be taken away: how long it takes, and what it costs, by how often it saves itself.

The times are those of `model`; this file adds prices, one plot, and controls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ..base.simulator import Result, Row, Simulator, Slider
from ..base.words import percent
from .model import Plan, Time, young
from .picture import LONGEST_INTERVAL, draw, money, span

EXACT = "virtual: exact for interruptions at a constant rate"


@dataclass(frozen=True)
class Run(Result):
    """A run with a checkpoint after every `interval` hours of work; prices by the hour."""

    plan: Plan
    interval: float
    price: float
    discount: float

    @cached_property
    def time(self) -> Time:
        return self.plan.time(self.interval)

    @property
    def hours(self) -> float:
        """Expected."""
        return self.time.mean

    @property
    def spread(self) -> float:
        """Standard deviation of a single run, in hours."""
        return math.sqrt(self.time.variance)

    @property
    def interruptions(self) -> float:
        """Expected."""
        return self.hours / self.plan.between

    @property
    def young(self) -> float:
        return young(self.plan.checkpoint, self.plan.between)

    @cached_property
    def best(self) -> float:
        return self.plan.best()

    @cached_property
    def best_hours(self) -> float:
        return self.plan.time(self.best).mean

    @property
    def spot_price(self) -> float:
        return self.price * (1 - self.discount)

    @property
    def cost(self) -> float:
        return self.hours * self.spot_price

    @property
    def best_cost(self) -> float:
        return self.best_hours * self.spot_price

    @property
    def cost_on_demand(self) -> float:
        """Without interruptions, and so without checkpoints."""
        return self.plan.work * self.price

    @property
    def finding(self) -> str:
        every = f"A checkpoint every {span(self.interval)}"
        by_formula = self.plan.time(self.young).mean
        better = f"{span(self.young)} = √(2 · {span(self.plan.checkpoint)} · {span(self.plan.between)})"
        if by_formula > 1.02 * self.best_hours:  # it is to first order, for checkpoints short against `between`
            better, by_formula = span(self.best), self.best_hours
        if self.hours <= 1.02 * self.best_hours:
            saved = 1 - self.cost / self.cost_on_demand
            cheap = f"{percent(saved)} less than" if saved > 0 else f"{percent(-saved)} more than"
            cheap = "as much as" if abs(saved) < 0.005 else cheap
            spent = f"{span(self.plan.work)} of work take {span(self.hours)} and cost {cheap} on demand"
            return f"{every} is near the best, {better}: {spent}"
        writing, _, lost = self.plan.extra(self.interval)
        why = f"spends {span(writing)} writing" if self.interval < self.best else f"loses {span(lost)} of work"
        takes = f"{span(self.plan.work)} of work take {span(by_formula)}, not {span(self.hours)}"
        return f"{every} {why}; every {better}, {takes}"

    def rows(self) -> list[Row]:
        writing, restarts, lost = self.plan.extra(self.interval)
        number = self.plan.checkpoints(self.interval)
        return [
            ("work", span(self.plan.work), ""),
            ("checkpoints", f"{number}, one every {span(self.interval)} of work", ""),
            ("expected time", span(self.hours), EXACT),
            ("of it writing checkpoints", span(writing), ""),
            ("of it restarting", span(restarts), EXACT),
            ("of it lost work", span(lost), EXACT),
            ("single runs differ by", f"± {span(self.spread)}, one standard deviation", EXACT),
            ("expected interruptions", f"{self.interruptions:.3g}", EXACT),
            ("best interval, √(2 · cost · between)", span(self.young), "virtual: Young, first order"),
            ("best interval", f"{span(self.best)}, the work in equal parts", EXACT),
            ("expected time with it", span(self.best_hours), EXACT),
            ("cost on spot", money(self.cost), "virtual"),
            ("cost on demand, no interruptions", money(self.cost_on_demand), ""),
        ]


def simulate(work: int, checkpoint: int, interval: int, between: int, restart: int, price: float, discount: int) -> Run:
    """`work` and `between` interruptions in hours, `checkpoint` in seconds, `interval` and `restart` in minutes.

    `price` of an hour on demand; spot is `discount` percent cheaper.
    """
    return Run(Plan(work, checkpoint / 3600, between, restart / 60), interval / 60, price, discount / 100)


class Spot(Simulator[Run]):
    """A run on machines that can be taken away: how often to save, what interruptions cost, what spot saves."""

    controls = (
        Slider("work", "Work", 10, 500, 100, unit="h"),
        Slider("checkpoint", "Writing a checkpoint", 1, 1800, 120, unit="s"),
        Slider("interval", "Checkpoint every", 1, LONGEST_INTERVAL, 240, unit="min"),
        Slider("between", "Interrupted every", 1, 100, 8, unit="h"),
        Slider("restart", "Restart", 0, 120, 10, unit="min"),
        Slider("price", "On demand", 0.5, 100.0, 12.0, unit="$/h", step=0.5),
        Slider("discount", "Spot is cheaper by", 0, 95, 65, unit="%"),
    )
    model = staticmethod(simulate)
    draw = staticmethod(draw)
    leaves_out = (
        "Interruptions come at a constant rate and without notice; a checkpoint halts training. A restart is paid for."
        " Left out: the notice, half a minute or two, that can save work; waiting for a machine to be free; prices that"
        " move; storage."
    )

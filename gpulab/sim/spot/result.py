"""Results of a run on machines that can be taken away: expected time and cost, from the times of `model`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ..base.simulator import Result, Row
from ..base.words import percent
from .model import Plan, Time, young

LONGEST_INTERVAL = 720  # minutes


def span(hours: float) -> str:
    """`20 s`, `1 min`, `44 min`, `6.5 h`, `131 h`."""
    minutes = hours * 60
    if minutes < 1.995 and abs(minutes - 1) > 0.005:
        return f"{minutes * 60:.0f} s" if minutes > 0.15 else f"{minutes * 60:.2g} s"
    if hours < 1.995 and abs(hours - 1) > 1e-9:
        return f"{minutes:.2g} min" if minutes < 9.95 else f"{minutes:.0f} min"
    if hours < 99.5:
        return f"{hours:.2g} h" if hours < 9.95 else f"{hours:.3g} h"
    return f"{hours:,.0f} h" if hours < 99_999 else "over 100,000 h"


def money(amount: float) -> str:
    return f"${amount:,.2f}" if amount < 100 else f"${amount:,.0f}" if amount < 9_999_999 else "over $10 million"


def more(share: float) -> str:
    """Of the time that the work takes."""
    return f"+{percent(share)}" if share < 9.995 else f"{share + 1:,.0f} × the work" if share < 1e4 else "never done"


def longer(share: float) -> str:
    """As `more`, in words."""
    words = f"{percent(share)} longer" if share < 9.995 else f"{share + 1:,.0f} times as long"
    return f"take {words}" if share < 1e4 else "never end"


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

    @cached_property
    def by_formula(self) -> bool:
        """Whether Young's interval is as good as the best. It is to first order, for checkpoints that are short
        against the time between interruptions."""
        return self.plan.time(self.young).mean <= 1.02 * self.best_hours

    @property
    def advised(self) -> float:
        """The interval that is shown as the best: Young's, which one can work out, where it is as good."""
        return self.young if self.by_formula else self.best

    @property
    def advised_hours(self) -> float:
        return self.plan.time(self.advised).mean

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
    def advised_cost(self) -> float:
        return self.advised_hours * self.spot_price

    @property
    def cost_on_demand(self) -> float:
        """Without interruptions, and so without checkpoints."""
        return self.plan.work * self.price

    @property
    def saved(self) -> str:
        """What spot costs against on demand, in words."""
        share = 1 - self.cost / self.cost_on_demand
        return f"{percent(abs(share))} {'less' if share > 0 else 'more'}"

    @property
    def finding(self) -> str:
        work = f"{span(self.plan.work)} of work {longer(self.hours / self.plan.work - 1)}"
        took = f"Saved every {span(self.interval)}, {work}"
        if self.hours <= 1.02 * self.best_hours:
            return f"{took} and cost {self.saved}"
        best = longer(self.advised_hours / self.plan.work - 1).removeprefix("take ")
        return f"{took}; every {span(self.advised)}, {best}"

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
            ("best interval, √(2 × writing × between)", span(self.young), "virtual: Young, first order"),
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

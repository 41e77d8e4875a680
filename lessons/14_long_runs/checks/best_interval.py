"""Checks an interval between checkpoints: the hours lost against the minimum, and the expected time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gpulab.exercise.numbers import Clause, Numbers, Part
from gpulab.exercise.scenes import Scene
from gpulab.sim.spot.model import Plan, best_interval

OFTEN = "How often to save"


@dataclass(frozen=True)
class Job:
    checkpoint_seconds: float
    restart_minutes: float
    hours_between: float
    machines: int
    work_hours: float

    @cached_property
    def plan(self) -> Plan:
        between = self.hours_between / self.machines
        return Plan(self.work_hours, self.checkpoint_seconds / 3600, between, self.restart_minutes / 60)

    @cached_property
    def in_parts(self) -> float:
        """The work over the best interval of a run that goes on for ever: M, where a checkpoint takes far longer."""
        plan = self.plan
        far = plan.checkpoint > 30 * plan.between  # as where its seconds are taken for minutes
        return self.work_hours / (plan.between if far else best_interval(plan.checkpoint, plan.between))

    @cached_property
    def best(self) -> float:
        numbers = {max(1, math.floor(self.in_parts)), math.ceil(self.in_parts)}
        return self.work_hours / min(numbers, key=lambda number: self.plan.time(self.work_hours / number).mean)

    @cached_property
    def expected(self) -> float:
        return self.plan.time(self.best).mean

    @property
    def parts(self) -> int:
        return round(self.work_hours / self.best)

    def loses_least(self, interval: float) -> bool:
        if not self.work_hours / 1e6 < interval <= 1.001 * self.work_hours:
            return False
        lost = self.plan.time(min(interval, self.work_hours)).mean - self.work_hours
        return lost <= 1.01 * (self.expected - self.work_hours)


def draw(edge: Scene) -> Job:
    cost, parts, restart = (random.uniform(*ends) for ends in (edge.cost, edge.parts, edge.restart))
    between, machines = random.uniform(3, 9), random.randint(30, 200) if edge.many else 1  # of the whole run
    interval = best_interval(cost * between, between)
    return Job(3600 * cost * between, 60 * restart * between, between * machines, machines, parts * interval)


def at(formula: Callable[[Plan], float]) -> Callable[[Job], float]:
    """The interval by a formula; not more than the work."""
    return lambda j: min(j.work_hours, formula(j.plan))


def other(part: str, **times: Callable[[Job], float]) -> Callable[[Job], Any]:
    """The answer where these arguments are so many times as large."""

    def formula(j: Job) -> Any:
        try:
            return getattr(replace(j, **{name: getattr(j, name) * by(j) for name, by in times.items()}), part)
        except OverflowError:
            return math.inf

    return formula


def expected(formula: Callable[[Job, Plan], float]) -> Callable[[Job], float]:
    return lambda j: formula(j, j.plan)


CLAUSES: list[Clause[Job]] = [
    Clause("and if it is best to save only at the end", "interval", "a short run loses less with another interval",
           "a single stretch is allowed too", lambda j: j.parts == 1),
    Clause("even if a checkpoint takes about as long as the time between interruptions", "interval",
           "with frequent interruptions, another interval loses less",
           "compute the hours lost with the whole formula", lambda j: j.plan.checkpoint > j.plan.between / 2),
    Clause("expected - work_hours, are the least", "interval", "another interval loses less",
           "choose among equal stretches of the work, in hours"),
    Clause("expected is the mean time of the whole run", "expected", "the expected time is wrong",
           "add up all stretches, each with its checkpoint, all in hours"),
]  # fmt: skip
MISTAKES: list[tuple[Any, ...]] = [
    ("interval", "the number of stretches is returned, not their length", "work_hours divided by it",
     lambda j: j.parts),
    ("interval", "the interval is not in hours", "return hours for both, not minutes or seconds",
     lambda j: 60 * j.best, lambda j: 3600 * j.best),
    ("interval", "√(2 · checkpoint · between) is used though a checkpoint is not short compared with the time between "
                 "interruptions", "it is only a first-order approximation: compare the expected times themselves",
     at(lambda p: math.sqrt(2 * p.checkpoint * p.between)),
     lambda j: j.work_hours / math.ceil(j.work_hours / math.sqrt(2 * j.plan.checkpoint * j.plan.between))),
    ("interval", "the interval of an endless run is used, whatever the work",
     "a few stretches have to fit the work: try the neighbouring whole numbers, and take the best",
     at(lambda p: best_interval(p.checkpoint, p.between)),
     lambda j: j.work_hours / max(1, math.floor(j.in_parts)), lambda j: j.work_hours / math.ceil(j.in_parts)),
    ("interval", "the interval is √(checkpoint · between), without the 2",
     "an interruption comes on average in the middle of a stretch, so half of it is lost: √(2 · checkpoint · between)",
     at(lambda p: math.sqrt(p.checkpoint * p.between))),
    ("interval", "the interval grows with the checkpoint's time itself",
     "twice the time for a checkpoint, √2 times the interval", at(lambda p: 2 * p.checkpoint)),
    ("interval", "the interval is the time between interruptions",
     "then half of the work is done twice; compare the expected times", at(lambda p: p.between)),
    ("interval", "the restart is counted as a part of the checkpoint",
     "however often you save, a restart follows each interruption: it lengthens all expected times by the same factor",
     at(lambda p: math.sqrt(2 * (p.checkpoint + p.restart) * p.between)),
     lambda j: replace(j, checkpoint_seconds=j.checkpoint_seconds + 60 * j.restart_minutes).best),
    ("interval", "too few stretches are tried for a long run with short checkpoints",
     "there may be thousands: the work over √(2 · checkpoint · between), and a few times as many",
     lambda j: j.work_hours / min(j.parts, 199), lambda j: j.work_hours / min(j.parts, 1000)),
    ("interval", "a short run is cut in two", "one stretch, saved at its end, may be the best: range(1, …)",
     lambda j: j.work_hours / max(j.parts, 2)),
    ("interval", "the interval is longer than the work", "then there is one stretch: min(interval, work_hours)",
     lambda j: 3 * j.work_hours if j.parts == 1 else j.best),
    *((part, *row, other(name, **times)) for part, name in (("interval", "best"), ("expected", "expected"))
      for *row, times in (
        ("the checkpoint's seconds are used as hours", "3,600 seconds are an hour: checkpoint_seconds / 3600",
         {"checkpoint_seconds": lambda j: 3600}),
        ("the checkpoint's seconds are used as minutes", "3,600 seconds are an hour: checkpoint_seconds / 3600",
         {"checkpoint_seconds": lambda j: 60}),
        ("only the interruptions of one machine are counted",
         "a failure of any machine stops the run: hours_between / machines",
         {"hours_between": lambda j: j.machines}),
        ("more machines are assumed to interrupt the run less often",
         "a failure of any machine stops the run: hours_between / machines",
         {"hours_between": lambda j: j.machines**2}),
        ("the time between interruptions is divided by the root of the machines",
         "N machines mean N times as many interruptions", {"hours_between": lambda j: math.sqrt(j.machines)}),
    )),
    ("expected", "the restart's minutes are used as hours", "60 minutes are an hour: restart_minutes / 60",
     other("expected", restart_minutes=lambda j: 60)),
    ("expected", "the expected time is not in hours", "return hours for both, not minutes or seconds",
     lambda j: 60 * j.expected, lambda j: 3600 * j.expected),
    ("expected", "the expected time has no restarts",
     "each interruption costs a restart, which can be interrupted itself: exp(R / M)", other("expected",
     restart_minutes=lambda j: 0)),
    ("expected", "a restart is assumed never to be interrupted",
     "R hours for each interruption are too few: exp(R / M)",
     expected(lambda j, p: j.expected * (1 + p.restart / p.between) / math.exp(p.restart / p.between))),
    ("expected", "the expected time has no checkpoints", "a stretch includes its work and the checkpoint after it",
     expected(lambda j, p: j.parts * p.between * math.exp(p.restart / p.between) * math.expm1(j.best / p.between))),
    ("expected", "the expected time is that of one stretch", "multiply it by the number of stretches",
     lambda j: j.expected / j.parts),
    ("expected", "the hours lost are returned, without the work",
     "return the time of the whole run, including the work",
     lambda j: j.expected - j.work_hours),
    ("expected", "the expected time is a first-order approximation: half a stretch and a restart for each M hours of "
                 "work",
     "with frequent interruptions, repeated work is interrupted again: the exponential accounts for that",
     expected(lambda j, p: p.work + j.parts * p.checkpoint + p.work / p.between * (j.best / 2 + p.restart))),
]  # fmt: skip
EXERCISE = Numbers(
    __file__,
    says="the interval that loses least, and the hours to request for the run",
    parameters=tuple(Job.__dataclass_fields__),
    job=Job,
    edges={
        "cost": ((0.02, 0.05), (0.6, 1.2), (0.001, 0.0012)),  # of a checkpoint, in times between interruptions
        "parts": ((0.2, 0.6), (1.05, 1.15), (1.85, 1.95), (2.85, 2.95), (8, 20), (1800, 2000)),
        "restart": ((0.005, 0.01), (0.3, 0.6)),
        "many": (False, True),
    },
    draw=draw,
    possible=lambda e: e.parts[0] < 1000 or e.cost[0] == 0.001,  # the work is at most 100 times the mean time
    parts={
        "interval": Part(lambda j: j.best, OFTEN, same=Job.loses_least, unit="hours"),
        "expected": Part(lambda j: j.expected, OFTEN, within=0.01, unit="hours"),
    },
    clauses=CLAUSES,
    mistakes=MISTAKES,
    explain=lambda j, error: "a huge exponent: is everything in hours?" if "OverflowError" in error else "",
)

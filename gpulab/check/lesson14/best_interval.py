"""The check of an interval between checkpoints: its expected time, exactly, beside the least that there is."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from ...sim.spot.model import Plan
from ..contract import Clause, Contract, Facts, Near
from ..scenes import Scene
from ..wording import is_finite
from .sections import OFTEN

PAIR = "(interval, expected), two numbers"
KIND, EXPECTED, LONGER = "what is returned", "hours expected with that interval", "an interval beyond the work"
USUAL, COSTLY, SHORT, MANY = (
    "usual",
    "writing costs as much as what lies between interruptions",
    "short",
    "many machines",
)
WORDS = {
    USUAL: "a long run",
    COSTLY: "a run that is interrupted about as often as it could save",
    SHORT: "a run that ends before long",
}
INTERVAL = {case: f"the interval, for {words}" for case, words in WORDS.items()}
MACHINES, BEST = "the answer on many machines", "within 1 % of the fewest hours lost"
AS_ONE = "that for one machine which is interrupted as often as all of them"
CLAUSES = [
    Clause("(interval, expected)", [KIND], "what came back is no pair of numbers", "return interval, expected", OFTEN),
    Clause(
        "expected - work_hours, are the least",
        [INTERVAL[USUAL]],
        "another interval loses less",
        "√(2 · checkpoint · mean time between interruptions) is near it, in hours",
        OFTEN,
    ),
    Clause(
        "also where a checkpoint takes about as long as an interruption lets it",
        [INTERVAL[COSTLY]],
        "where interruptions are frequent, another interval loses less",
        "the square root is for checkpoints that are short beside the time between interruptions: compare the times",
        OFTEN,
    ),
    Clause(
        "and where it is best to save at the end alone",
        [INTERVAL[SHORT], LONGER],
        "a short run loses less with another interval",
        "the work is cut into equal parts, and one part is a number of parts too",
        OFTEN,
    ),
    Clause(
        "each of them interrupts the whole run",
        [MACHINES],
        "the machines are counted in another way",
        "with N machines interruptions come N times as often",
        OFTEN,
    ),
    Clause(
        "expected is the mean time of the whole run",
        [EXPECTED],
        "the expected time is another",
        "the sum over all stretches: M · exp(R / M) · (exp((interval + checkpoint) / M) - 1), all in hours",
        OFTEN,
    ),
]
EDGES = {"case": (USUAL, COSTLY, SHORT, MANY), "restart": ("long", "short"), "again": (0, 1)}


def drawn(scene: Scene) -> tuple[float, float, float, int, float]:
    """What the exercise's function is given: checkpoint [s], restart [min], hours between [h], machines, work [h]."""
    machines = random.randint(30, 200) if scene.case == MANY else 1
    between = random.uniform(3.0, 9.0)  # of the whole run
    many = scene.case == USUAL and scene.again  # stretches, about 2,000
    part = {COSTLY: random.uniform(0.6, 1.2), SHORT: random.uniform(0.1, 0.2)}.get(
        scene.case, random.uniform(0.001, 0.0015) if many else random.uniform(0.02, 0.05)
    )
    if scene.case == COSTLY:
        between /= 20
    checkpoint = part * between
    restart = between * (random.uniform(0.3, 0.6) if scene.restart == "long" else random.uniform(0.005, 0.01))
    times = random.uniform(0.1, 0.2) if scene.case == SHORT else random.uniform(8.0, 25.0)
    work = between * (random.uniform(90.0, 99.0) if many else times)
    return checkpoint * 3600, restart * 60, between * machines, machines, work


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    seconds, minutes, hours, machines, work = given = drawn(scene)
    plan = Plan(work, seconds / 3600, hours / machines, minutes / 60)
    got = call(*given)
    names = "checkpoint_seconds", "restart_minutes", "hours_between", "machines", "work_hours"
    facts = Facts(", ".join(f"{name} {value:.4g}" for name, value in zip(names, given, strict=True)))
    pair = isinstance(got, tuple | list) and len(got) == 2 and all(is_finite(x) and x > 0 for x in got)
    facts.add(KIND, PAIR if pair else type(got).__name__, PAIR)
    if not pair:
        return facts
    interval, expected = map(float, got)
    best, case = plan.best(), USUAL if scene.case == MANY else scene.case
    facts.seen["times the best"] = interval / best if interval < 100 * best else "hundreds"
    if scene.case == MANY:
        as_one = call(seconds, minutes, hours / machines, 1, work)
        facts.add(MACHINES, AS_ONE if is_near(got, as_one) else "another", AS_ONE)
        if not facts.hold():
            return facts
    if scene.case == SHORT:
        facts.add(LONGER, "more than the work" if interval > 1.001 * work else "at most the work", "at most the work")
    facts.add(INTERVAL[case], judged(plan, min(interval, work), best), BEST)
    if facts.hold():
        right = plan.time(interval).mean
        facts.add(EXPECTED, expected, Near(right, 0.01))
        facts.seen["expected, over the right one"] = expected / right
    return facts


def is_near(got: Any, other: Any) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(got, other, strict=True))


def judged(plan: Plan, interval: float, best: float) -> str:
    """Whether with this interval about as few hours are lost as with the best one."""
    if plan.time(interval).mean - plan.work <= 1.01 * (plan.time(best).mean - plan.work):
        return BEST
    return "too long" if interval > best else "too short"


EXERCISE = Contract(
    __file__,
    says="the interval that loses least, and the hours that the run is to be given",
    own_gpu=False,
    parameters=("checkpoint_seconds", "restart_minutes", "hours_between", "machines", "work_hours"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
)

"""The check of a decision from measurements: a job of which each switch does one known thing, and noise."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from ..contract import Clause, Contract, Facts
from ..scenes import Scene
from .sections import TABLE

KIND, STEPS = "what came back", "steps run beyond those asked for"
ERROR, OF_THE_JOB = "the other exception", "the exception of the job without the switch"
WITH, ORDER = "what the steps were run with", "in which order"
FIRST_SLOW, REST = 20.0, "the rest"
SENTENCES = {  # of the exercise: what they decide about the last switch, and the words for those who break them
    "is below the fastest of those without it": (
        ("gains", "costs", "gains less than the noise"),
        "a switch stays or goes that should not",
        "its median against the fastest without it: two medians of one job differ too",
    ),
    "its median time": (
        ("gains, and hiccups in almost half of its steps", "gains, and stumbles once", "does nothing, beside a hiccup"),
        "one slow step decides",
        "a median leaves it alone, a mean not",
    ),
    "right before": (
        ("does nothing, on a machine that warms up", "gains, on a machine that slows down"),
        "times of different moments are compared",
        "the machine has changed since: measure again what it is compared with",
    ),
    "no step with it, the first included": (
        ("takes too much at first",),
        "too much memory in the first step is not seen",
        "what is compiled or tuned at first needs memory as well",
    ),
    "takes more than `most_mib`": (
        ("takes too much", "takes exactly as much as allowed"),
        "a switch stays that does not fit, or one goes that does",
        "more than most_mib, so not >=",
    ),
    "within `tolerance` of the loss without any switch": (
        ("changes the loss", "changes the loss a little more", "makes a NaN of the loss"),
        "another result is taken for a gain",
        "the loss is compared too, upwards and downwards, and always with that of the job without any switch",
    ),
    "that raises RuntimeError does not stay": (
        ("is missing here", "fails in a later step"),
        "a switch stays that cannot be used",
        "except RuntimeError, round all steps with it",
    ),
}
ALONE = "gains only alone"
TRAPS = (*(trap for traps, *_ in SENTENCES.values() for trap in traps), ALONE)


def decided(trap: str) -> tuple[str, str]:
    """The facts of a scene with this trap."""
    return f"a switch that {trap} stays", f"{REST}, where one {trap}"


CLAUSES = [
    Clause("a list in the order of `switches`", [KIND], "what came back is no list of names", "", TABLE),
    Clause(
        "Other exceptions reach the caller",
        [ERROR],
        "an exception of run is swallowed",
        "RuntimeError only",
        TABLE,
    ),
    Clause(
        "what the job raises without the switch",
        [OF_THE_JOB],
        "an exception of the job itself is swallowed",
        "the try stands round the steps with the switch alone",
        TABLE,
    ),
    Clause(
        "one step that does not count, then `repeats` that do",
        [STEPS],
        "another number of steps is run",
        "2 × (1 + repeats) for each switch, and fewer where it raises",
        TABLE,
    ),
    Clause("first without the switch", [ORDER], "the steps are run in another order", "", TABLE),
    Clause(
        "each on top of those that stay",
        [*decided(ALONE), WITH],
        "the steps are run with other switches",
        "two switches may save the same launches: try it with those that stay, and no others",
        TABLE,
    ),
    *(
        Clause(quote, [fact for trap in traps for fact in decided(trap)], summary, likely, TABLE)
        for quote, (traps, summary, likely) in SENTENCES.items()
    ),
]
EDGES = {
    "trap": TRAPS,
    "repeats": (3, 5, 7),
    "up": (True, False),  # whether a loss that changes grows
    "fails": ("never", "with a switch", "without it"),
}
STAYS = {
    "gains",
    "gains, and hiccups in almost half of its steps",
    "gains, and stumbles once",
    "gains, on a machine that slows down",
    "takes exactly as much as allowed",
}


FAILING = {"is missing here", "fails in a later step"}


class Job:
    """Steps of which the time, the memory and the loss follow from the switches, and from how often it was called."""

    def __init__(self, scene: Scene, names: Sequence[str]) -> None:
        self._trap, self._repeats, self._up = scene.trap, scene.repeats, scene.up
        self.good, self.slow, self.last = names
        self.ms, self.mib, self.loss = random.uniform(20, 80), random.randint(2000, 6000), random.uniform(1, 4)
        self.loss *= random.choice((-1, 1))  # as a log-likelihood
        self.tolerance, self.most_mib = 0.01, self.mib + 1000
        self.on: list[list[str]] = []  # of each step
        self.raises: Exception | None = None  # in the steps with the first switch, or in those without any
        self.raises_with = True
        self.fails_at = random.randint(1, scene.repeats) if scene.trap == "fails in a later step" else 0
        spread = [0.98 + 0.04 * i / (scene.repeats - 1) for i in range(scene.repeats)]
        self._noise = random.sample(spread, len(spread))

    def run(self, on: Any) -> tuple[float, float, float]:
        self.on.append(sorted(on))
        if self.raises and (self.good in on) == self.raises_with:
            raise self.raises
        since = next((i for i, other in enumerate(reversed(self.on)) if other != self.on[-1]), len(self.on)) - 1
        return self._ms(set(on), since), self._mib(set(on), since), self._loss(set(on))

    def _ms(self, on: set[str], since: int) -> float:
        ms, trap, last = self.ms * self._noise[since % self._repeats], self._trap, self.last in on
        ms *= 0.7 if self.good in on else 1.0
        ms *= 1.15 if self.slow in on else 1.0
        if last and trap == "is missing here":
            raise RuntimeError(f"{self.last}: no compiler was found")
        if last and trap == "fails in a later step" and since == self.fails_at:
            raise RuntimeError(f"{self.last}: out of memory")
        if last:
            factors = {"costs": 1.2, "gains less than the noise": 0.99}
            factors |= {"gains only alone": 1.1 if self.good in on else 0.8}
            ms *= 1.0 if trap.startswith("does nothing") else factors.get(trap, 0.8)
        counted = range(1, self._repeats + 1)
        slowest = max(counted, key=lambda step: self._noise[step % self._repeats])  # the fastest is left as it is
        hiccup: dict[str, tuple[bool, list[int], float]] = {
            "does nothing, beside a hiccup": (False, [slowest], 9.0),
            "gains, and hiccups in almost half of its steps": (True, [*counted[: self._repeats // 2]], 9.0),
            "gains, and stumbles once": (True, [self._repeats], 1.5),  # the mean hardly notices, the slowest step does
        }
        side, when, factor = hiccup.get(trap, (None, [], 1.0))
        if side is last and since in when:
            ms *= factor
        ms *= FIRST_SLOW if since == 0 else 1.0
        drift = {"does nothing, on a machine that warms up": 0.9, "gains, on a machine that slows down": 1.25}.get(trap)
        comparison = (len(self.on) - 1) // (2 * (1 + self._repeats))  # whole comparisons go before
        return float(ms * drift**comparison) if drift else ms

    def _mib(self, on: set[str], since: int) -> float:
        much = {"takes too much": 1500, "takes too much at first": 1500 if since == 0 else 0}.get(self._trap, 0)
        much = 1000 if self._trap == "takes exactly as much as allowed" else much
        return float(self.mib + (much if self.last in on else 0))

    def _loss(self, on: set[str]) -> float:
        off = 0.0
        if self._trap == "changes the loss a little more":
            off = 0.7 * self.tolerance * ((self.good in on) + (self.last in on))
        elif self._trap == "changes the loss":
            off = 3 * self.tolerance * (self.last in on)
        elif self._trap == "makes a NaN of the loss" and self.last in on:
            return math.nan
        return self.loss + abs(self.loss) * (off if self._up else -off)

    def wanted_steps(self, switches: Sequence[str], keeps: Sequence[str]) -> list[list[str]]:
        """With what each step is to be run."""
        steps: list[list[str]] = []
        on: list[str] = []
        for name in switches:
            steps += [sorted(on)] * (1 + self._repeats)
            with_it = [sorted([*on, name])] * (1 + self._repeats)
            fails = self._trap in FAILING and name == self.last
            steps += with_it[: 1 + self.fails_at] if fails else with_it
            on += [name] * (name in keeps)
        return steps


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    names = random.sample(["autotune", "bf16", "channels_last", "compile", "fused", "graph", "tf32"], 3)
    job = Job(scene, names)
    switches = [job.good, job.slow, job.last]
    if scene.trap in FAILING:  # others come after it
        switches.sort(key=[job.last, job.good, job.slow].index)
    facts = Facts(f"switches={switches}, of which {job.last} {scene.trap}; repeats={scene.repeats}")
    got = call(job.run, list(switches), scene.repeats, job.most_mib, job.tolerance)
    good = isinstance(got, list) and all(isinstance(name, str) and name in switches for name in got)
    keeps = [job.good, job.last] if scene.trap in STAYS else [job.good]
    facts.add(KIND, "a list of names" if good else type(got).__name__, "a list of names")
    wanted = job.wanted_steps(switches, keeps)
    if job.on == [[], *wanted]:  # the loss without any switch may be taken before
        del job.on[0]
    if good:
        stays, rest = decided(scene.trap)
        facts.add(stays, job.last in got, job.last in keeps)
        if facts.hold():
            others = [_role(name, job) for name in got if name != job.last or name in keeps]
            facts.add(rest, others, [_role(name, job) for name in keeps])
    if facts.hold():
        facts.add(STEPS, len(job.on) - len(wanted), 0)
        if facts.hold():
            facts.add(WITH, _pattern(sorted(job.on), job), _pattern(sorted(wanted), job))
        if facts.hold():
            facts.add(ORDER, _pattern(job.on, job), _pattern(wanted, job))
    facts.seen |= {"first": job.on[:1] == [[]], "steps, right or wrong": len(job.on) - len(wanted)}
    if scene.fails != "never" and facts.hold():
        _failing(facts, call, scene, names)
    return facts


def _role(name: str, job: Job) -> str:
    return {job.good: "the first", job.slow: "the second"}.get(name, "the last")


def _pattern(steps: list[list[str]], job: Job) -> list[str]:
    """The combinations in the order in which they come, each with its number of steps."""
    found: list[list[Any]] = []
    for on in steps:
        said = " + ".join(_role(name, job) for name in sorted(on, key=[job.good, job.slow, job.last].index)) or "none"
        if found and found[-1][0] == said:
            found[-1][1] += 1
        else:
            found.append([said, 1])
    return [f"{said}: {count}" for said, count in found]


class Interrupted(Exception):
    """What run raises, and nobody is to catch."""


def _failing(facts: Facts, call: Callable[..., Any], scene: Scene, names: Sequence[str]) -> None:
    job = Job(scene, names)
    job.raises_with = scene.fails == "with a switch"
    job.raises = Interrupted("the job was ended") if job.raises_with else RuntimeError("the job has failed")
    seen = []

    def through(
        student: Callable[..., Any], run: Any, switches: Any, repeats: Any, most_mib: Any, tolerance: Any
    ) -> None:
        try:
            student(run, switches, repeats, most_mib, tolerance)
        except Exception as error:
            if error is not job.raises:
                raise
            seen.append(type(error).__name__)

    call(job.run, list(names), scene.repeats, job.most_mib, job.tolerance, through=through)
    facts.add(ERROR if job.raises_with else OF_THE_JOB, seen, [type(job.raises).__name__])


EXERCISE = Contract(
    __file__,
    says="what gains more than the noise stays; what costs memory or digits does not",
    own_gpu=False,
    parameters=("run", "switches", "repeats", "most_mib", "tolerance"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
)

"""Checks exercise 11.2, "which switches stay": a job with a known effect of each switch, and noise."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import torch

from gpulab.exercise.contract import Clause, Contract, Facts
from gpulab.exercise.scenes import Scene

KIND, STEPS = "what came back", "steps run beyond those asked for"
WITH, ORDER = "what the steps were run with", "in which order"
ERROR, OF_THE_JOB = "the other exception", "the exception of the job without the switch"
SENTENCES = (  # what one switch does and whether it stays, and the words for those who break the sentence
    ("each on top of those that stay", {"gains only alone": False}, "the steps are run with the wrong switches",
     "two switches may save the same launches: try each with those that stay, and no others"),
    ("is below the fastest of those without it",
     {"gains": True, "costs": False, "gains a little more than the noise": True,
      "gains a little less than the noise": False, "is just as fast as the fastest step without it": False},
     "a switch stays or goes that should not",
     "compare its median with the fastest step without it: even two medians of the same job differ"),
    ("its median time", {"gains, and hiccups in almost half of its steps": True, "gains, and stumbles once": True,
                         "does nothing, beside a hiccup": False},
     "one slow step decides", "one slow step changes the mean, not the median"),
    ("measured anew", {"does nothing, on a machine that warms up": False, "gains, on a machine that slows down": True},
     "times of different moments are compared", "a machine's speed changes: measure the baseline again"),
    ("no step with it, the first included", {"takes too much at first": False, "takes too much at last": False},
     "too much memory in one of the steps is not seen", "all 1 + repeats steps with the switch count here"),
    ("takes more than `most_mib`", {"takes too much": False, "takes exactly as much as allowed": True},
     "a switch stays that does not fit, or one goes that does", "more than most_mib, so not >="),
    ("within `tolerance` of the loss without any switch",
     {"changes the loss": False, "changes the loss within the tolerance": True, "makes a NaN of the loss": False,
      "changes the loss as much again as the first": False},
     "a different result is accepted, or the same one rejected",
     "upwards and downwards, always as a fraction of the loss without any switch"),
    ("that raises RuntimeError does not stay", {"is missing here": False, "fails in a later step": False},
     "a switch stays that cannot be used", "except RuntimeError, round all steps with it"),
)  # fmt: skip
STAYS = {trap: stays for _, traps, *_ in SENTENCES for trap, stays in traps.items()}


def decided(trap: str) -> str:
    """The fact of a scene with this trap."""
    return f"what stays, where a switch {trap}"


CLAUSES = [
    Clause(quote, facts, summary, rule, "Your decision table")
    for quote, facts, summary, rule in (
        ("a list in the order of `switches`", [KIND], "what was returned is not a list of names", ""),
        ("Other exceptions reach the caller", [ERROR], "an exception of run is swallowed", "RuntimeError only"),
        ("what the job raises without the switch", [OF_THE_JOB], "an exception of the job itself is swallowed",
         "put the try around the steps with the switch only"),
        ("one step that does not count, then `repeats` that do", [STEPS], "the wrong number of steps is run",
         "2 × (1 + repeats) for each switch, and fewer where it raises"),
        ("first without the switch", [ORDER], "the steps are run in the wrong order", ""),
        *((quote, [*map(decided, traps), *([WITH] if i == 0 else [])], summary, rule)
          for i, (quote, traps, summary, rule) in enumerate(SENTENCES)),
    )
]  # fmt: skip
EDGES = {
    "trap": tuple(STAYS),
    "repeats": (3, 5),
    "noise": (0.01, 0.05),
    "loss": ((2.0, True), (2.0, False), (-2.0, True), (-2.0, False)),  # its sign, and whether a change goes up
    "fails": ("never", "with a switch", "without it"),
}
FAILING = ("is missing here", "fails in a later step")


class Interrupted(ValueError, KeyError):
    """What run raises, and nobody is to catch."""


class Job:
    """Steps of which the time, the memory and the loss follow from the switches, and from how often it was called."""

    def __init__(self, scene: Scene, names: Sequence[str]) -> None:
        self.trap, self.repeats, (sign, self.up) = scene.trap, scene.repeats, scene.loss
        self.good, self.slow, self.last = names
        self.ms, self.mib, self.plain_loss = random.uniform(20, 80), random.randint(2000, 6000), random.uniform(1, 2)
        self.plain_loss *= sign
        self.most_mib, self.tolerance = self.mib + 1000, random.uniform(0.3, 0.6) if "loss" in scene.trap else 0.01
        self.on: list[list[str]] = []  # of each step
        self.raises: Exception | None = None  # in the steps with the first switch, or in those without any
        self.raises_with = scene.fails == "with a switch"
        self.fails_at = random.randint(1, scene.repeats) if scene.trap == "fails in a later step" else 0
        spread = [1 + scene.noise * (2 * i / (scene.repeats - 1) - 1) for i in range(scene.repeats)]
        self.noise = random.sample(spread, len(spread))
        self.factor = {  # of the last switch
            "costs": 1.2,
            "gains a little more than the noise": 0.995 * spread[0],
            "gains a little less than the noise": 1.005 * spread[0],
        }.get(scene.trap, 1.0 if "does nothing" in scene.trap or "just as fast" in scene.trap else 0.8)

    def run(self, on: Any) -> tuple[float, float, float]:
        self.on.append(sorted(on))
        if self.raises and (self.good in on) == self.raises_with:
            raise self.raises
        since = next((i for i, other in enumerate(reversed(self.on)) if other != self.on[-1]), len(self.on)) - 1
        if self.last in on and self.trap == "is missing here":
            raise RuntimeError(f"{self.last}: no compiler was found")
        if self.last in on and self.trap == "fails in a later step" and since == self.fails_at:
            raise torch.OutOfMemoryError(f"{self.last}: out of memory")
        return self.ms_of(set(on), since), self.mib_of(set(on), since), self.loss_of(set(on))

    def ms_of(self, on: set[str], since: int) -> float:
        last, noise = self.last in on, self.noise[since % self.repeats]
        if last and "just as fast" in self.trap:
            noise = min(self.noise)
        ms = self.ms * noise * (0.7 if self.good in on else 1.0) * (1.15 if self.slow in on else 1.0)
        if last:
            ms *= 1.1 if self.trap == "gains only alone" and self.good in on else self.factor
        slowest = self.noise.index(max(self.noise)) or self.repeats  # the fastest is left as it is
        with_it, when, factor = {
            "does nothing, beside a hiccup": (False, [slowest], 9.0),
            "gains, and hiccups in almost half of its steps": (True, [*range(1, 1 + self.repeats // 2)], 9.0),
            "gains, and stumbles once": (True, [self.repeats], 1.5),  # the mean hardly notices, the slowest step does
        }.get(self.trap, (None, list[int](), 1.0))
        ms *= factor if with_it is last and since in when else 1.0
        drift = {"does nothing, on a machine that warms up": 0.9, "gains, on a machine that slows down": 1.25}
        comparison = (len(self.on) - 1 - self.ahead()) // (2 * (1 + self.repeats))  # whole comparisons go before
        return float(ms * drift.get(self.trap, 1.0) ** comparison * (20.0 if since == 0 else 1.0))

    def mib_of(self, on: set[str], since: int) -> float:
        too_much = {"takes too much": True, "takes too much at first": since == 0}
        too_much["takes too much at last"] = since == self.repeats
        more = 1000 if self.trap == "takes exactly as much as allowed" else 1500 * too_much.get(self.trap, False)
        return float(self.mib + (more if self.last in on else 0))

    def loss_of(self, on: set[str]) -> float:
        if self.trap == "makes a NaN of the loss" and self.last in on:
            return math.nan
        off = 0.55 * ((self.good in on) + (self.last in on)) if "as much again" in self.trap else 0.0
        if self.last in on:
            off = {"changes the loss": 1.2, "changes the loss within the tolerance": 0.8}.get(self.trap, off)
        return self.plain_loss + abs(self.plain_loss) * self.tolerance * (off if self.up else -off)

    def ahead(self) -> bool:
        """Whether a step without any switch was made before the comparisons, as it may be, for its loss."""
        return self.on[: 2 + self.repeats] == [[]] * (2 + self.repeats)

    def wanted(self, switches: Sequence[str], keeps: Sequence[str]) -> list[list[str]]:
        """With what each step is to be run."""
        steps: list[list[str]] = []
        on: list[str] = []
        for name in switches:
            fails = self.trap in FAILING and name == self.last
            steps += [sorted(on)] * (1 + self.repeats)
            steps += [sorted([*on, name])] * (1 + (self.fails_at if fails else self.repeats))
            on += [name] * (name in keeps)
        return steps

    def roles(self, on: Sequence[str]) -> list[str]:
        places = (self.good, "the first"), (self.slow, "the second"), (self.last, "the other")
        return [role for name, role in places if name in on]

    def pattern(self, steps: Sequence[Sequence[str]]) -> list[str]:
        """The combinations in the order in which they come, each with its number of steps."""
        return [f"{' + '.join(self.roles(on)) or 'none'}: {len([*same])}" for on, same in groupby(steps)]


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    names = random.sample(["autotune", "bf16", "channels_last", "compile", "fused", "graph", "tf32"], 3)
    job = Job(scene, names)
    switches = [job.good, job.last, job.slow] if scene.repeats == 5 else [job.good, job.slow, job.last]
    if scene.trap in FAILING:  # others come after it
        switches = [job.last, job.good, job.slow]
    facts = Facts(f"switches={switches}, of which {job.last} {scene.trap}; repeats={scene.repeats}")
    got = call(job.run, list(switches), scene.repeats, job.most_mib, job.tolerance)
    good = isinstance(got, list) and all(isinstance(name, str) and name in switches for name in got)
    facts.add(KIND, "a list of names" if good else type(got).__name__, "a list of names")
    keeps = [job.good, job.last] if STAYS[scene.trap] else [job.good]
    steps, wanted = job.on[job.ahead() :], job.wanted(switches, keeps)
    if good:
        in_order = sorted(got, key=switches.index) == got
        facts.add(decided(scene.trap), job.roles(got) if in_order else ["another order"], job.roles(keeps))
    if facts.hold():
        facts.add(STEPS, len(steps) - len(wanted), 0)
        if facts.hold():
            facts.add(WITH, job.pattern(sorted(steps)), job.pattern(sorted(wanted)))
        if facts.hold():
            facts.add(ORDER, job.pattern(steps), job.pattern(wanted))
    facts.seen |= {"first": steps[:1] == [[]], "steps, right or wrong": len(steps) - len(wanted)}
    if scene.fails != "never" and facts.hold():
        failing = Job(scene, names)
        failing.raises = Interrupted("the job was ended") if failing.raises_with else RuntimeError("the job has failed")

        def raised(student: Callable[..., Any], *args: Any) -> str:
            try:
                student(*args)
            except Exception as error:
                if error is not failing.raises:
                    raise
                return type(error).__name__
            return "nothing"

        seen = call(failing.run, names, scene.repeats, job.most_mib, job.tolerance, through=raised)
        facts.add(ERROR if failing.raises_with else OF_THE_JOB, seen, type(failing.raises).__name__)
    return facts


def hides(scene: Scene) -> list[str]:
    """The sign of a change matters where the loss changes, and an exception of the job anywhere: once is enough."""
    return ["loss"] * ("loss" not in scene.trap) + ["fails"] * (scene.trap != "gains")


EXERCISE = Contract(
    __file__,
    says="what gains more than the noise stays; what costs memory or accuracy does not",
    own_gpu=False,
    parameters=("run", "switches", "repeats", "most_mib", "tolerance"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    hides=hides,
)

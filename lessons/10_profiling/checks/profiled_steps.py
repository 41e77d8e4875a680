"""Checks a loop that profiles some of its steps: which steps, in which files, and the reported kernel times."""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Container
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.profiler import ProfilerActivity

from gpulab.exercise.contract import Clause, Contract, Facts, Near
from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import as_float, is_number

MISTAKES, RECORDS = "Common mistakes", "What torch.profiler records"

KIND, CALLS, NAMES, TIMES, CYCLES = "what came back", "calls of step", "operations", "ms in all", "ms in all, of cycles"
FILES, STEPS, AT_END, WARM = "files", "steps in the files", "steps in the files, at the end", "steps of warm-up"
ACTIVITIES, RAISED, RUNS = "activities", "the exception", "a profiler runs on"
CLAUSES = [
    Clause(quote, facts, summary, rule, MISTAKES if facts[0] in (ACTIVITIES, TIMES) else RECORDS)
    for facts, quote, summary, rule in (
        ([KIND], "{name: ms}", "what was returned is not a dict from names to numbers", "a text and a plain number"),
        ([CALLS], "exactly this often", "step is called the wrong number of times", "also where nothing is recorded"),
        ([ACTIVITIES], "The activities are CPU and CUDA", "the activities are not CPU and CUDA", "on every machine"),
        ([FILES], "one Chrome trace for each cycle", "the files are wrong", "each its own, that ends in .json"),
        ([STEPS], "the last `count` of every `every` calls are recorded", "the wrong steps are recorded",
         "counted from the call after the first `skip`"),
        ([AT_END], "An incomplete cycle at the end is not recorded", "an incomplete cycle is recorded",
         "it leaves no file"),
        ([WARM], "after one step of the profiler's warm-up", "the warm-up is wrong", "before each cycle"),
        ([NAMES], "operations without kernels of their own, and kernels, are left out", "the names are wrong",
         "every operation that launched kernels itself must be there"),
        ([TIMES, CYCLES], "milliseconds per recorded step, over all cycles", "the times are wrong",
         "count an operation's own kernels"),
        ([RAISED], "An exception of step reaches the caller", "step's exception does not reach the caller",
         "as it was raised"),
        ([RUNS], "no profiler keeps running", "a profiler keeps running after an exception", "whatever step raises"),
    )
]  # fmt: skip
EDGES = {
    "cycles": (1, 2, 3),
    "skip": (0, 2),
    "count": (1, 2),
    "wait": (0, 2),
    "end": ("whole", "in the wait", "in the record"),  # where the loop ends in the cycle after the last whole one
    "fails": (False, True),
    "path": (str, Path),
}


class Failed(Exception):
    """What a step of the check raises."""


class FailedOnGpu(Failed, RuntimeError):
    """The same, as CUDA's errors are."""


class Steps:
    """A training step whose products are larger each time; `at` is the step in which it raises."""

    def __init__(self, gpu: Any, most: int, at: int | None, error: type[Failed]) -> None:
        self._at, self._error, self.calls = at, error, 0
        self._layer, self._width = torch.nn.Linear(512, 512, device="cuda"), random.randint(3, 6)
        self.ms: list[Counter[str]] = []  # of each call, by operation
        for number in range(most):
            with gpu.timeline() as timeline:
                self._work(number)
            own: Counter[str] = Counter()
            for span in timeline.spans:
                if span.where == "kernels":
                    own[f"aten::{span.name.partition('.')[0]}"] += span.seconds * 1e3
            self.ms.append(own)

    def __call__(self) -> None:
        self.calls += 1
        if self.calls - 1 == self._at:
            raise self._error(f"step {self._at} went wrong")
        self._work(self.calls - 1)

    def _work(self, number: int) -> None:
        y = self._layer(torch.empty(512 * (self._width + number), 512, device="cuda"))
        if number % 2:  # not in every step
            y.relu_()
        y.add_(1)
        y.neg_()
        y.sigmoid_()

    def among(self, durations: list[float]) -> list[int]:
        """The calls whose kernels took these µs."""
        found = {round(us, 3) for us in durations}
        return [i for i, own in enumerate(self.ms) if round(1e3 * own["aten::add_"], 3) in found]


class Eye:
    """What is asked of the profiler while it is entered: activities, and in which step it warms up and begins."""

    def __init__(self, step: Steps) -> None:
        self._step, self._patches = step, ExitStack()
        self.runs_on, self.error = False, "none"
        self.activities, self.prepared, self.started = set[Any](), list[int](), list[int]()

    def around(self, student: Callable[..., Any], *args: Any) -> Any:
        try:
            with self:
                return student(*args)
        except Failed as error:
            self.error = str(error)
        finally:
            self.runs_on = torch._C._autograd._profiler_enabled()
            if self.runs_on:
                torch._C._autograd._disable_profiler()

    def __enter__(self) -> Eye:
        kind: Any = torch.profiler.profiler._KinetoProfile

        def watched(name: str, see: Callable[..., None]) -> None:
            own = getattr(kind, name)

            def method(profiler: Any, *args: Any, **kwargs: Any) -> Any:
                see(profiler)
                return own(profiler, *args, **kwargs)

            self._patches.enter_context(mock.patch.object(kind, name, method))

        def prepared(profiler: Any) -> None:
            self.activities |= set(profiler.activities)
            self.prepared.append(self._step.calls)

        watched("prepare_trace", prepared)
        watched("start_trace", lambda profiler: self.started.append(self._step.calls))
        return self

    def __exit__(self, *error: object) -> None:
        self._patches.close()


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    every = scene.wait + 1 + scene.count
    steps = scene.skip + scene.cycles * every
    steps += {"whole": 0, "in the wait": min(1, scene.wait), "in the record": every - 1}[scene.end]
    facts = Facts(f"steps={steps}, skip={scene.skip}, every={every}, count={scene.count}")
    ends = [scene.skip + (n + 1) * every for n in range(scene.cycles)]
    recorded = [list(range(end - scene.count, end)) for end in ends]
    for fails in (False, True)[: 1 + scene.fails]:
        if not facts.hold():
            break
        with tempfile.TemporaryDirectory() as folder, virtual_gpu("A100-80", compute=False) as gpu:
            error = Failed if scene.path is str else FailedOnGpu
            step = Steps(gpu, steps, recorded[-1][-1] if fails else None, error)
            eye = Eye(step)
            args = steps, scene.skip, every, scene.count, scene.path(folder)
            got = call(step, *args, through=eye.around)
            if fails:
                facts.add(RAISED, eye.error, f"step {recorded[-1][-1]} went wrong")
                facts.add(RUNS, eye.runs_on, False)
            else:
                judge(facts, scene, step, steps, eye, got, recorded, Path(folder))
    return facts


def judge(
    facts: Facts, scene: Scene, step: Steps, steps: int, eye: Eye, got: Any, recorded: list[list[int]], folder: Path
) -> None:
    table = isinstance(got, dict) and all(isinstance(k, str) and is_number(v) for k, v in got.items())
    facts.add(KIND, "a dict" if table else f"{type(got).__name__}, not of numbers by name", "a dict")
    facts.add(CALLS, step.calls, steps)
    if eye.prepared:
        facts.add(ACTIVITIES, sorted(a.name for a in eye.activities), sorted(a.name for a in BOTH))
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    if not facts.hold():
        return
    inside = []
    for file in files:
        try:
            events = json.loads(file.read_text("utf-8"))["traceEvents"]
        except (ValueError, KeyError, TypeError, OSError):
            inside.append([-1])  # no Chrome trace
            continue
        inside.append(
            step.among([e["dur"] for e in events if e.get("cat") == "kernel" and e["name"].startswith("add_")])
        )
    at_end = [steps_in for steps_in in inside if not steps_in or steps_in[-1] > recorded[-1][-1]]
    facts.seen |= {"recordings begun": len(eye.started), "steps in the files, right or wrong": sorted(inside)}
    facts.add(AT_END, at_end, [])
    if facts.hold():
        facts.add(FILES, [len(files), *sorted({f.suffix for f in files})], [len(recorded), ".json"])
    if facts.hold():
        facts.add(STEPS, sorted(inside), recorded)
    if facts.hold():
        warm = [begun - max((p for p in eye.prepared if p <= begun), default=-1) for begun in eye.started]
        warm = warm[: len(recorded)]  # what comes at the end is judged already
        facts.add(WARM, warm, [1] * len(recorded))
        own = sum((step.ms[i] for cycle in recorded for i in cycle), Counter())
        facts.add(NAMES, sorted({name if name in own else kind_of(name, own) for name in got}), sorted(own))
    if facts.hold():
        name = CYCLES if scene.cycles > 1 else TIMES
        per = scene.count * scene.cycles
        facts.add(
            name, [as_float(got[key]) for key in sorted(own)], Near([own[key] / per for key in sorted(own)], 1e-3)
        )


def kind_of(name: str, own: Container[str]) -> str:
    """What a row without kernels of its own is: which operations have such rows is another matter in each PyTorch."""
    if f"aten::{name}" in own:
        return "a name without its aten::"
    if name.startswith("ProfilerStep"):
        return "a range"
    if name.startswith("cuda"):
        return "a call of CUDA's"
    return "an operation without kernels" if name.startswith("aten::") else "a row of another kind"


BOTH = {ProfilerActivity.CPU, ProfilerActivity.CUDA}
EXERCISE = Contract(
    __file__,
    says="the right steps recorded, a file for each cycle, and times that add up",
    parameters=("step", "steps", "skip", "every", "count", "folder"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
)

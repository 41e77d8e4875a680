"""Checks the MFU of a job: the operations counted, the time measured, and the peak to compare with."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from gpulab.exercise.clocks import Clocks, clocks_here, scope
from gpulab.exercise.contract import Clause, Contract, Facts, Near, holds
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import as_float, is_finite, is_number

MFU, TIMER = "How far from the chip: MFU", "Time it so that the number holds"

WITHIN = 0.03
KIND, UNIT, CALLS, COUNTED = "what came back", "unit", "calls of step", "calls of plain_step"
CLOCK, FLOPS, MEDIAN, WARM = (
    "clocks other than events, by which the time is wrong",
    "MFU",
    "MFU of steps of different length",
    "MFU after warm-up",
)
EMPTY = "timed steps before which the queue was empty"
SPARSE, TF32, FP32, SIDE = "MFU by a sheet with sparsity", "MFU in TF32", "MFU in fp32", "MFU where work was queued"
CLAUSES = [
    Clause(quote, facts, summary, rule, TIMER if facts[0] in (CALLS, SIDE, WARM, CLOCK, EMPTY) else MFU)
    for facts, quote, summary, rule in (
        ([KIND], "as a float", "what was returned is not a finite number", "the number itself"),
        ([UNIT], "1 is the peak", "the number is not a fraction of the peak", "a sheet's TFLOP/s are 10¹² FLOP/s"),
        ([CALLS], "and no more often", "step is called the wrong number of times", "warm_up + repeats calls"),
        ([COUNTED], "called once", "plain_step is not called exactly once", "each call of it trains the model"),
        ([FLOPS], "those that the model needs", "the number is wrong", "FLOPs, by seconds, by the peak in FLOP/s"),
        ([SIDE], "has been queued", "with work in the queue the number is wrong",
         "a step's time begins after that work"),
        ([WARM, MEDIAN], "median of single steps, after", "the number is not that of the median step", ""),
        ([SPARSE], "twice the dense one", "with such a sheet the number is wrong", "the dense rate is the peak"),
        ([FP32], "torch.float32", "for float32 the number is wrong",
         "use the row of the format in which the products run"),
        ([TF32], "run in TF32 if", "if TF32 is allowed the number is wrong", "and the sheet has a row for it"),
        ([CLOCK], "that of events", "the clock is not suited to this", "events are the GPU's own clock"),
        ([EMPTY], "only at the end", "the host waits between the timed steps", "a wait empties the queue"),
    )
]  # fmt: skip
FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}
SHEETS = {  # TFLOP/s, and whether with 2:4 sparsity; one has another rate for fp16 than for bf16
    "A100-80": {"fp32": (19.5, False), "tf32": (156.0, False), "bf16": (312.0, False), "fp16": (312.0, False)},
    "H100": {"fp32": (67.0, False), "tf32": (989.0, True), "bf16": (1979.0, True), "fp16": (1600.0, True)},
    "T4": {"fp32": (8.1, False), "fp16": (65.0, False)},
}
EDGES = {
    "gpu": tuple(SHEETS),
    "format": tuple(FORMATS),
    "tf32": (False, True),  # allowed
    "repeats": (1, 5),
    "warm_up": (0, 2),
    "current": (0, 1),  # the GPU
}


def possible(scene: Scene) -> bool:
    """TF32 where it is allowed and the GPU has it; in fp32 it is not allowed, or the GPU has none."""
    has = "tf32" in SHEETS[scene.gpu]
    if scene.format == "tf32":
        return bool(scene.tf32 and has)
    if scene.format == "fp32":
        return not (has and bool(scene.tf32))
    return scene.format in SHEETS[scene.gpu]


class Job:
    """Two layers of a training step, for which a kernel is queued beside: the first call takes the first of `parts`
    times what its FLOPs need at the peak, and so on."""

    def __init__(self, gpu: Any, scene: Scene, parts: list[float]) -> None:
        self._gpu, self._parts = gpu, parts
        self._dtype = FORMATS[scene.format]
        tflops, sparse = SHEETS[scene.gpu][scene.format]
        self.peak = tflops * 1e12 / (2 if sparse else 1)
        rows, width = 2048 * random.randint(2, 4), 4096
        self._x = torch.empty(rows, width, device="cuda")
        self._first, self._second = (torch.empty(width, width, device="cuda", requires_grad=True) for _ in range(2))
        self.flops = 5 * 2 * rows * width * width  # two products forward, three backward: x needs no gradient
        self.seconds: list[float] = []  # of each call
        self.waited = list[bool]()  # before each call: the GPU had nothing left to do
        self.plain_calls = 0

    def step(self) -> None:
        number, timer = len(self.seconds), self._gpu.device(None).timer
        self.waited.append(self._gpu.clock.host > timer.streams[0])
        begin = max(self._gpu.clock.host, timer.streams[0])
        self._train(recompute=True)
        part = self._parts[min(number, len(self._parts) - 1)]
        timer.kernel(0, part * self.flops / self.peak, "the rest of the step")
        self.seconds.append(timer.streams[0] - begin)

    def plain_step(self) -> None:
        self.plain_calls += 1
        self._train(recompute=False)

    def _train(self, recompute: bool) -> None:
        def layers(x: torch.Tensor) -> torch.Tensor:
            return (x @ self._first).relu() @ self._second

        with torch.autocast("cuda", self._dtype, enabled=self._dtype.itemsize == 2):
            y = checkpoint(layers, self._x, use_reentrant=False) if recompute else layers(self._x)
        y.sum().backward()
        self._first.grad = self._second.grad = None

    def mfu(self, warm_up: int) -> float:
        return self.flops / statistics.median(self.seconds[warm_up:]) / self.peak


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    """One call of step in 16 bits, by a dense sheet; one in the scene's format; then, by a sheet of one row, one after
    work that is still queued, or steps of different length, or one after a warm-up."""
    dtype = FORMATS[scene.format]
    named = {"fp32": FP32, "tf32": TF32}.get(scene.format, SPARSE if SHEETS[scene.gpu][scene.format][1] else FLOPS)
    plain = scene if named == FLOPS else Scene(**{**vars(scene), "gpu": "A100-80", "format": "bf16"})
    facts = Facts(f"{dtype} on {scene.gpu}, cuda:{scene.current}, warm_up={scene.warm_up}, repeats={scene.repeats}")
    part = random.uniform(2, 4)
    parts = [part * factor for factor in (0.4, 0.5, 1.0, 1.9, 4.0)]
    random.shuffle(parts)
    warm = [part * 9, part * 7][: scene.warm_up]
    last = MEDIAN if scene.repeats > 1 else WARM if scene.warm_up else SIDE
    several = [*warm, *parts[: scene.repeats]], last == SIDE, scene.warm_up, scene.repeats
    for name, where, earlier, queue, warm_up, repeats in (
        (FLOPS, plain, [part], False, 0, 1),
        (named, scene, [part], False, 0, 1),
        (last, scene, *several),
    ):
        if name in facts.wanted:
            continue
        if not (facts.hold() or (name == named and wrong(facts, [FLOPS]))):  # the sheets tell some mistakes apart
            break
        allowed = torch.backends.cuda.matmul.allow_tf32
        try:
            torch.backends.cuda.matmul.allow_tf32 = scene.tf32
            sheet = SHEETS[where.gpu]
            sheet = {where.format: sheet[where.format]} if name == last else dict(sheet)
            one_call(facts, name, call, where, sheet, earlier, queue, warm_up, repeats)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = allowed
    return facts


def one_call(
    facts: Facts,
    name: str,
    call: Callable[..., Any],
    scene: Scene,
    sheet: dict[str, tuple[float, bool]],
    parts: list[float],
    queue: bool,
    *times: int,
) -> None:
    before = clocks_here()
    warm_up, repeats = times
    with scope(scene.gpu, compute=False, count=2) as gpu, torch.cuda.device(scene.current):
        job, used = Job(gpu, scene, parts), set[str]()
        if queue:
            gpu.device(None).timer.kernel(0, 20 * job.flops / job.peak, "earlier work")

        def timed(student: Callable[..., Any], *args: Any) -> Any:
            with torch.cuda.device(scene.current), Clocks(student, before, gpu.clock) as clocks:
                try:
                    return student(*args)
                finally:
                    used.update(clocks.used)

        got = call(job.step, job.plain_step, FORMATS[scene.format], sheet, *times, through=timed)
    number = is_finite(got)
    facts.add(KIND, "a number" if number else kind_of(got), "a number")
    facts.add(CALLS, len(job.seconds), warm_up + repeats)
    facts.add(COUNTED, job.plain_calls, 1)
    if wrong(facts, [FLOPS]) and number:
        facts.seen[f"{name}, also"] = float(got)
    if facts.hold():
        wanted, got = job.mfu(warm_up), float(got)
        facts.add(CLOCK, sorted(used) if abs(got - wanted) > WITHIN * wanted else [], [])
        if facts.hold():
            facts.add(UNIT, unit(got, wanted), "a part of 1")
        if facts.hold():
            facts.add(name, got if got < 100 * wanted else "far too much", Near(wanted, WITHIN))
        if facts.hold() and repeats > 1:
            facts.add(EMPTY, sum(job.waited[warm_up + 1 :]), 0)


def wrong(facts: Facts, names: list[str]) -> bool:
    """Whether these facts are broken, and no others."""
    return [name for name in facts.wanted if not holds(facts, name)] == names


def kind_of(got: Any) -> str:
    return f"{as_float(got):g}" if is_number(got) else type(got).__name__


def unit(got: float, wanted: float) -> str:
    """That in which `got` is the right number; a part of 1 where it is in none."""
    units = {"per cent": 100, "TFLOP/s for FLOP/s": 1e12, "ms for seconds": 1e-3}
    return next((name for name, times in units.items() if abs(got / times - wanted) <= WITHIN * wanted), "a part of 1")


EXERCISE = Contract(
    __file__,
    says="the FLOPs that the model needs, in the time that the job takes, over the dense peak of its format",
    parameters=("step", "plain_step", "dtype", "sheet", "warm_up", "repeats"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=possible,
)

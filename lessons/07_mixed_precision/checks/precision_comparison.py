"""Checks exercise 07.1, "a comparison that can be believed": equal starts, a synchronised clock, separate peaks.

Hooks of the models that are handed out note what each run does, and keep the GPU at work for a time that is known. The
peak of a run is read from the memory's timeline, which nobody can reset.
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from gpulab.exercise.base import OPTIMIZERS
from gpulab.exercise.contract import Clause, Contract, Facts, Near
from gpulab.exercise.machines import on_the_cpu
from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import as_float, brief, is_finite, is_number, is_whole
from gpulab.memory import timeline

AUTOCAST, SAVES = "Autocast decides for each operation", "What it saves, and from which batch on"
SCALER, TF32 = "Gradients that vanish, and the scaler", "TF32: the switch that is already on"
KEYS = ("ms", "peak_bytes", "losses", "skipped")
SECONDS = {"fp32": 0.5, "fp16": 0.25, "bf16": 0.3}  # that the GPU works for a step
SLOW, LONG = 8, 3  # times as long: each step of the warm-up, and one of those that count
WIDTH, ROWS, SMALL = 256, 256, 2**16  # the last in bytes: a fourth of a model's weights
GPUS = ("cuda:0", "cuda:1")
RAISES = {"cuda:0, and loss_fn raises": RuntimeError, "cuda:0, and loss_fn raises another error": LookupError}
RAISED = "what comes of an exception of loss_fn"
BACK = "TF32 settings that are not as before", "TF32 settings that are not as before, when loss_fn raises"
TF32_RUNS = ("runs with TF32 in matrix products", "runs with TF32 in convolutions")
CLAUSES = [
    Clause(quote, facts, summary, rule, read)
    for facts, quote, read, summary, rule in (
        (["runs on another device", "runs with other data"],
         "the one batch to train on, already on the device to train on",
         AUTOCAST, "a run is not on the device of x, or uses other data than x and y", ""),
        (["precisions of the forward passes"], "On a GPU the precisions are", AUTOCAST,
         "the model does not run in each of the precisions, and in no other", "fp32 is without autocast"),
        (["forward passes and losses of each run"], "further steps, before them", SAVES,
         "a run has the wrong number of steps",
         "make warm_up + steps steps, with one forward pass and one loss in each"),
        (["missing or too many in the result"], "Returns a dict {precision: row}; each row is a dict with", SAVES,
         "the result is not a dict of rows with four entries each", "three rows on a GPU, two on the CPU"),
        (["runs with a loss outside of autocast", "runs with backward under autocast"],
         "use autocast around model and loss; backward is outside", AUTOCAST,
         "the loss is not under autocast, or backward is", "put model and loss in its block, and nothing else"),
        (["runs in evaluation mode", "runs that start elsewhere"], "the same initial weights, in training mode", SAVES,
         "the runs do not all start from the weights of one new model, in training mode",
         "a run changes the model it is given"),
        (TF32_RUNS, '"fp32" is without TF32', TF32, "the fp32 baseline is secretly TF32", "not in convolutions either"),
        (["skipped"], "how many of all steps, warm-up included, the scaler skipped", SCALER,
         "skipped is not how many steps the scaler skipped", ""),
        ([f"losses while {name} trains" for name in SECONDS], "with torch.optim.SGD, lr=0.01", SCALER,
         "the training differs", "take one step of plain SGD after each backward, with that step's gradient"),
        (["ms", "ms on the CPU, off by thousands"], "milliseconds for one of the counted steps, the mean", SAVES,
         "ms is not the milliseconds of a counted step", "the time of all GPU work in them, divided by their number"),
        (["peak_bytes", "peak_bytes on the CPU"], "the most memory allocated on the GPU in this run", SAVES,
         "peak_bytes is not the peak of the run", "in bytes, on the GPU of x; None on the CPU"),
        (["runs that begin with more than model and data on the GPU", "memory that stays on the GPU"],
         "nothing of another run is on the GPU, and nothing stays there at the end", SAVES,
         "something of a run is on the GPU when another one begins, or at the end", ""),
        (["kinds of the losses", "losses of the counted steps"],
         "the loss of each counted step, a list of floats, not scaled", SCALER,
         "losses are not the losses of the counted steps", "as loss_fn gave them, in their order, as floats"),
        ([*BACK, RAISED], "as before the call, even if loss_fn raises; its exception passes through", TF32,
         "the TF32 settings are not as before, or the exception of loss_fn does not come out", ""),
    )
]  # fmt: skip
OF_RUNS = [fact for clause in CLAUSES for fact in clause.facts if fact.startswith("runs ")]
EDGES = {
    "place": (*GPUS, "cpu", "cpu, beside a GPU", *RAISES),
    "tf32": ((True, True), (False, False), (False, True)),  # before the call, in products and in convolutions
    "counts": ((2, 1), (1, 2)),  # steps and warm_up
    "overflows": (False, True),  # of fp16, one in the warm-up and one after it
}
CPU_ONLY = "on the CPU there is no GPU to query or to wait for: test x.device.type first"
ONE_CAST = "only one of data and model was converted: with autocast convert neither"
ERRORS = {
    "unscale FP16": "the model was converted to half; under autocast it stays float32",
    "Expected a cuda device": "x is on the CPU, though there is a GPU: test x.device.type, not is_available()",
    "on the same device": "make_model() returns a model on the CPU: move it to x.device",
    "must have the same dtype": ONE_CAST, "should be the same": ONE_CAST,
    "NVIDIA driver": CPU_ONLY, "not compiled with CUDA": CPU_ONLY, "No CUDA GPUs": CPU_ONLY,
    "No inf checks": "scaler.step(optimizer) looks for inf and NaN, and scaler.update() asks what it found",
    "mix of the legacy and new APIs": "fp32_precision was set, and allow_tf32 is read: use one of the two",
}  # fmt: skip


def network() -> nn.Sequential:
    """Its activations take more memory than its weights, so that their precision shows."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *(nn.ReLU() for _ in range(3)), nn.Linear(WIDTH, 10))


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).float().cpu()


def settings() -> dict[str, str]:
    names = [f"{kind}.fp32_precision" for kind in ("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul")]
    return {f"torch.backends.{name}": attrgetter(name)(torch.backends) for name in names}


class Watch:
    """What the runs of one call do, by precision. The models and the loss function that are handed out tell it."""

    def __init__(self, scene: Scene, gpu: Any, line: Any) -> None:
        self.gpu, self.line, (self.steps, self.warm_up) = gpu, line, scene.counts
        self.error = RAISES[scene.place]("this loss_fn raises in the fp32 run") if scene.place in RAISES else None
        early, late = random.randrange(self.warm_up), self.warm_up + random.randrange(self.steps)
        self.overflows, self.long = {early, late} if scene.overflows else set(), random.randrange(self.steps)
        self.data = 4 * torch.randn(ROWS, WIDTH), torch.randint(0, 10, (ROWS,))
        self.device = torch.device(scene.place.partition(",")[0])
        self.x, self.y = (tensor.to(self.device) for tensor in self.data)
        self.name, self.held = "", self.allocated()
        self.made: list[torch.Tensor] = []  # the weights of the models that were handed out
        self.starts: dict[str, torch.Tensor] = {}
        self.seconds = defaultdict[str, list[float]](list)  # of each step, on the GPU
        self.losses = defaultdict[str, list[torch.Tensor]](list)
        self.times = defaultdict[str, list[float]](list)  # when these were computed
        self.runs = defaultdict[str, set[str]](set)  # of which each of OF_RUNS is true

    def allocated(self) -> int:
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0

    def note(self, fact: str, true: bool) -> None:
        self.runs[fact] |= {self.name} if true else set()

    def autocast(self) -> str:
        kind = self.device.type
        return str(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else ""

    def differs(self, got: torch.Tensor, given: torch.Tensor) -> bool:
        """Only another tensor is looked at: that waits for the GPU."""
        return got.data_ptr() != given.data_ptr() and not torch.equal(got.detach().cpu().to(given.dtype), given.cpu())

    def make_model(self) -> nn.Module:
        model = network()
        self.made.append(weights(model))
        model.register_forward_pre_hook(lambda *given: self.before(*given))  # a copy of the model has it too
        return model

    def before(self, model: nn.Module, given: tuple[torch.Tensor]) -> None:
        (x,), dtype = given, self.autocast()
        name = self.name = {"": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16"}.get(dtype, dtype)
        if name not in self.starts:  # a run begins
            own = [*model.parameters(), *([] if x is self.x else [x])]
            more = self.allocated() - self.held - sum(tensor.nbytes for tensor in own)
            self.note("runs that begin with more than model and data on the GPU", more > SMALL)
            start = self.starts[name] = weights(model)
            same = start.equal(next(iter(self.starts.values()))) and any(map(start.equal, self.made))
            self.note("runs that start elsewhere", not same)
            if self.line:
                self.line.mark(name)
        number, first = len(self.seconds[name]), self.warm_up
        factor = SLOW if number < first else LONG if number == first + self.long else 1
        self.seconds[name].append(factor * SECONDS.get(name, 0.1))
        self.note("runs on another device", x.device != self.device)
        self.note("runs in evaluation mode", not model.training)
        self.note("runs with other data", self.differs(x, self.x))
        for fact, precision in zip(TF32_RUNS, settings().values(), strict=False):
            self.note(fact, name == "fp32" and precision == "tf32" and x.is_cuda)
        if x.is_cuda:
            device = self.gpu.device(x.device.index)
            device.timer.kernel(device.stream, self.seconds[name][-1], "the model")

    def loss_fn(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        overflow = self.name == "fp16" and len(self.losses["fp16"]) in self.overflows

        def backward(gradient: torch.Tensor) -> torch.Tensor | None:
            self.note("runs with backward under autocast", self.autocast() != "")
            return torch.full_like(gradient, torch.inf) if overflow else None

        if self.error and self.name not in ("fp16", "bf16"):
            raise self.error
        self.note("runs with a loss outside of autocast", self.name != "fp32" and not self.autocast())
        self.note("runs with other data", self.differs(targets, self.y))
        if outputs.requires_grad:
            outputs.register_hook(backward)
        loss = F.cross_entropy(outputs, targets)
        self.losses[self.name].append(loss.detach())
        self.times[self.name].append(time.perf_counter())
        return loss

    def trained(self, name: str) -> list[float]:
        """The losses of a right run from this one's start."""
        model, losses = network(), []
        nn.utils.vector_to_parameters(self.starts[name].clone(), model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number in range(self.warm_up + self.steps):
            optimizer.zero_grad()
            losses.append(loss := F.cross_entropy(model(self.data[0]), self.data[1]))
            loss.backward()
            if name != "fp16" or number not in self.overflows:
                optimizer.step()
        return [loss.item() for loss in losses]

    def through(self, student: Any) -> tuple[Any, dict[str, str]]:
        """What the student's function returns, or what loss_fn raised in it; and the settings by then."""
        try:
            return student(self.make_model, self.loss_fn, self.x, self.y, self.steps, self.warm_up), settings()
        except Exception as raised:
            if raised is not self.error:
                raise
            return raised, settings()


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    backends: Any = torch.backends  # the older flags set the newer settings too: students may use either
    backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("high" if scene.tf32[0] else "highest")
    backends.cudnn.allow_tf32 = scene.tf32[1]
    before, on_gpu = settings(), scene.place.startswith("cuda")
    facts = Facts(f"{scene.counts[0]} steps after {scene.counts[1]} of warm-up, on {scene.place}")
    with on_the_cpu() if scene.place == "cpu" else virtual_gpu(count=2) as gpu:
        with timeline(scene.place[:6]) if on_gpu else nullcontext() as line:
            watch = Watch(scene, gpu, line)
            if gpu:
                gpu.clock.ignores_own = on_gpu  # the steps are the GPU's then; this machine may have other things to do
                torch.ones(2**26, dtype=torch.uint8, device=watch.device)  # an old peak, which is nobody's
            got, after = call(
                through=watch.through,
                inside=torch.cuda.device(watch.device) if on_gpu else nullcontext(),
                besides={"x": watch.x, "y": watch.y},
                may_seed=True,  # one way to give each run the same model
                may_leave=("the float32 matmul precision", *before),
            )
        changed = [f"{name} at {after[name]}, not {old}" for name, old in before.items() if after[name] != old]
        if watch.error:
            facts.add(RAISED, "it comes out" if got is watch.error else "an answer comes back", "it comes out")
        else:
            rows = got.items() if isinstance(got, Mapping) else ()
            judge(facts, watch, {str(name): row if isinstance(row, Mapping) else {} for name, row in rows})
        facts.add(BACK[watch.error is not None], changed, [])
    return facts


def judge(facts: Facts, watch: Watch, rows: dict[str, Mapping[str, Any]]) -> None:
    names = [*SECONDS] if watch.line else ["fp32", "bf16"]
    total = [[watch.warm_up + watch.steps] * 2] * len(names)
    lacks = [f"{key} of {name}" for name in names if name in rows for key in KEYS if key not in rows[name]]
    for fact, seen, wanted in (  # each makes sense only where those before it hold
        (OF_RUNS[0], sorted(watch.runs[OF_RUNS[0]]), []),
        ("precisions of the forward passes", sorted(watch.seconds), sorted(names)),
        (
            "forward passes and losses of each run",
            [[len(watch.seconds[n]), len(watch.losses[n])] for n in names],
            total,
        ),
        ("missing or too many in the result", sorted([*({*rows} ^ {*names}), *lacks]), []),
    ):
        if facts.hold():
            facts.add(fact, seen, wanted)
    if not facts.hold():
        return
    for fact in OF_RUNS[1:]:
        facts.add(fact, sorted(watch.runs[fact]), [])
    given = {key: [rows[name][key] for name in names] for key in KEYS}
    said = {key: [*map(number, values)] for key, values in given.items()}
    losses = {name: [loss.item() for loss in watch.losses[name]] for name in names}
    facts.add("skipped", said["skipped"], [len(watch.overflows) if name == "fp16" else 0 for name in names])
    for name in names:
        within = 1e-4 if name == "fp32" else 0.01
        facts.add(f"losses while {name} trains", losses[name], Near(watch.trained(name), within))
    lists = [[*values] if isinstance(values, list | tuple) else [values] for values in given["losses"]]
    kinds = {type(value).__name__ for values in lists for value in values if not is_number(value)}
    facts.add("kinds of the losses", sorted(kinds) or ["float"], ["float"])
    if not kinds:
        counted = [losses[name][watch.warm_up :] for name in names]
        facts.add("losses of the counted steps", [[*map(as_float, values)] for values in lists], Near(counted, 1e-5))
    if not watch.line:
        off: list[Any] = []
        for name, ms in zip(names, given["ms"], strict=True):
            took = 1000 * (watch.times[name][-1] - watch.times[name][watch.warm_up - 1]) / watch.steps
            off.append(round(math.log10(ms / took) / 3) if is_finite(ms) and ms > 0 < took else brief(ms, 20))
        facts.add("ms on the CPU, off by thousands", off, [0] * len(names))
        facts.add("peak_bytes on the CPU", said["peak_bytes"], [None] * len(names))
        return
    took = [1000 * sum(watch.seconds[name][watch.warm_up :]) / watch.steps for name in names]
    facts.add("ms", said["ms"], Near(took))
    sizes, marks = watch.line.curve.allocated_bytes, watch.line.curve.marks
    ends = [*(mark.point for mark in marks[1:]), None]
    peaks = {mark.name: max(sizes[mark.point : end]) for mark, end in zip(marks, ends, strict=True)}
    facts.add("peak_bytes", said["peak_bytes"], Near([peaks[name] for name in names], 1e-3))
    watch.losses.clear()
    if watch.allocated() > watch.held:
        gc.collect()
    if (left := watch.allocated() - watch.held) > 0:
        facts.about += f"; {left:,} bytes stay"
    if not kinds:  # tensors among the losses stay where they are
        facts.add("memory that stays on the GPU", "some" if left else "none", "none")


def number(value: Any) -> Any:
    if value is None or is_whole(value):
        return value if value is None else int(value)
    return as_float(value) if is_number(value) else brief(value, 20)


EXERCISE = Contract(
    __file__,
    says="the same initial weights for each precision, true fp32, its own peak, a clock that waits, every skip counted",
    parameters=("make_model", "loss_fn", "x", "y", "steps", "warm_up"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=lambda scene: scene.place in GPUS or (scene.tf32 == (True, True) and not scene.overflows),
    hides=lambda scene: () if scene.place in GPUS else ("counts", "overflows"),
    errors=ERRORS,
    imports=[OPTIMIZERS],
)

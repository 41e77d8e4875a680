"""Checks exercise 04.1, "what does this forward pass cost?": a profiler on a GPU that is not current, or on none."""

from __future__ import annotations

import io
import random
import re
import sys
import weakref
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from gpulab.exercise.base import OPTIMIZERS
from gpulab.exercise.contract import Clause, Contract, Facts, Near
from gpulab.exercise.machines import on_the_cpu
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import as_float, brief, is_number
from gpulab.memory.storages import storages
from virtualgpu.gpu import VirtualGPU

from .common import MIB, Halves, gpus, near

NUMBERS, KEEPS, ALLOCATOR = "Four numbers for one GPU", "What the forward pass keeps", "The caching allocator"
DECIMALS, EXACT = "kept_mib with two decimals", 1e-9
NOISE = 3 * MIB + 700 * 1024  # taken on the current GPU in every pass on the other
CLAUSES = [
    Clause("return a dict", ["what is returned"], "the function does not return the dict that is asked for",
           'its keys are "source", "kept_mib" and "peak_mib"', NUMBERS),
    Clause("Measure one forward pass, model(inputs)", ["the model is called"], "the model was never called",
           "one pass of the whole model is measured", KEEPS),
    Clause('"allocator" for a pass on a GPU, "estimate" for one on the CPU', ["the source"], "the source is not right",
           "one of these two words: it depends on where the inputs are", NUMBERS),
    Clause("True: a pass that backward could follow, even if the caller is under torch.no_grad()",
           ["backward could follow", "backward could follow, called under no_grad"],
           "no pass was made that backward could follow", "all that autograd saves is alive when the pass ends", KEEPS),
    Clause("False: a pass under torch.no_grad()", ["a pass without a graph"], "the pass kept a graph though grad is "
           "False", "with grad=False the pass runs under torch.no_grad()", KEEPS),
    Clause("What only the first pass allocates and then keeps, such as a workspace of cuBLAS, does not count",
           ["numbers with a workspace in them"], "what only a first pass allocates is counted",
           "run a pass before the one that you measure", ALLOCATOR),
    Clause("the bytes allocated after the pass, its output still alive, less those before it", ["MiB kept on the GPU"],
           "kept_mib is not what the allocator counts", "counted on the inputs' GPU, in MiB of 2**20 bytes", KEEPS),
    Clause("the bytes of every storage that autograd saves, and of the output's; each storage once",
           ["MiB kept on the CPU"], "kept_mib is not the estimate that is asked for",
           "whole storages in MiB of 2**20 bytes, and none of parameters, buffers and inputs", KEEPS),
    Clause("without those of parameters, buffers and inputs, which existed before", ["MiB kept of nothing new"],
           "something is counted that existed before", "the model returns its inputs, so nothing new is kept", KEEPS),
    Clause("the most that was allocated at any moment of the pass, less what was allocated before it",
           ["MiB at the peak"],
           "peak_mib is not the peak of the pass", "counted on the GPU of the inputs, in MiB of 2**20 bytes", NUMBERS),
    Clause("None, since it was not measured", ["the peak on the CPU"], "a peak is given where none was measured",
           "autograd's hooks do not see what is allocated and freed during the pass", KEEPS),
    Clause('The function prints a line with kept_mib to two decimals, "MiB", and the source', ["the printed line"],
           "the printed line does not have everything that it should", "one line holds all three", NUMBERS),
    Clause("the GPU is idle", ["the GPU is idle"], "the GPU was still at work when the function returned",
           "the GPU of the inputs, whichever is current", NUMBERS),
    Clause("nothing of the pass is left in memory", ["something of the pass in memory"],
           "memory is still held when the function has returned",
           "nothing may keep the output and its graph after the call", KEEPS),
    Clause("An exception of the model passes through", ["the model's exception"],
    "the model's exception does not reach the caller", "the caller gets the exception itself", KEEPS),
]  # fmt: skip
SLICE, SAVED = "the output is a slice", "the last layer saves its output"
INPUTS, RAISES = "the output is the inputs", "a layer raises"
EDGES = {
    "place": ("cuda:1", "cpu", "cpu beside GPUs"),
    "grad": ("True", "True, under no_grad", "False"),
    "ends": (SLICE, SAVED, INPUTS, RAISES),
}


class Slice(nn.Module):
    """A view of the first half of the columns, times a buffer that state_dict() leaves out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.rand(width), persistent=False)
        self.scale: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale)[:, : x.shape[1] // 2]


class Broken(Exception):
    """What a model raises."""


class Spoilt(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise Broken("this layer is not finished")


class Job:
    """A network that ends so, and its inputs, in sizes that are drawn: odd, so that the allocator rounds.

    No activation is above 1 MiB: the small pool always splits off what is left of a block, so that what is allocated
    does not depend on what lay in the cache before.
    """

    def __init__(self, ends: str, device: str) -> None:
        odd = (2 * random.randrange(low, high) + 1 for low, high in ((50, 70), (600, 700), (200, 300), (150, 190)))
        self.ends, self.device, self.rows, self.sizes = ends, device, random.randrange(120, 180), tuple(odd)

    def model(self) -> nn.Sequential:
        """With a norm in evaluation mode. Linear and ReLU share a tensor, Tanh saves its own output,
        dropout a mask, pooling indices, and two halves of dropout's output are saved, of which nobody saves more."""
        width, hidden, middle, out = self.sizes
        if self.ends == INPUTS:
            model = nn.Sequential(nn.Flatten())
            model.register_parameter("unused", nn.Parameter(torch.ones(8)))
            return model.to(self.device)
        layers = [nn.Linear(width, hidden), nn.BatchNorm1d(hidden).eval()]
        layers += [Spoilt() if self.ends == RAISES else nn.ReLU(), nn.Flatten(), nn.Linear(hidden, middle), nn.Tanh()]
        layers += [nn.Dropout(0.2), Halves(), nn.MaxPool1d(2), nn.Linear(middle // 4, out)]
        layers += [nn.Tanh() for _ in range(5)] if self.ends == SAVED else [Slice(out)]
        return nn.Sequential(*layers).to(self.device)

    def inputs(self) -> torch.Tensor:
        """A part of a larger tensor."""
        return torch.randn(self.rows + 1, self.sizes[0], device=self.device)[1:]


class Watch:
    """Looks on as a model is called: whether its passes had a graph, and what of its layers' outputs is alive."""

    def __init__(self, model: nn.Sequential, x: torch.Tensor) -> None:
        self.graphs: list[bool] = []  # of each pass
        self.held: list[int] = []  # at the end of each pass, in bytes
        self.earlier = False  # whether the output of the pass before was alive at the beginning of the last
        self._noise: list[torch.Tensor] = []
        self._tensors: list[weakref.ref[torch.Tensor]] = []  # what the layers have returned, the model's output last
        self._given = x.untyped_storage()._cdata
        self._made: list[tuple[StorageWeakRef, int]] = []
        model.register_forward_pre_hook(self._before)
        model.register_forward_hook(self._after)
        for layer in model:
            layer.register_forward_hook(self._within)

    def __deepcopy__(self, memo: Any) -> Watch:
        """A copy of the model is watched, too."""
        return self

    def _before(self, model: nn.Module, args: Any) -> None:
        self.earlier = bool(self._tensors) and self._tensors[-1]() is not None
        self.graphs.append(torch.is_grad_enabled())

    def _within(self, module: nn.Module, args: Any, out: torch.Tensor) -> None:
        self._tensors.append(weakref.ref(out))
        storage = out.untyped_storage()
        if storage._cdata not in (self._given, *(made.cdata for made, _ in self._made)):
            self._made.append((StorageWeakRef(storage), storage.nbytes()))

    def _after(self, model: nn.Module, args: Any, out: torch.Tensor) -> None:
        self.held.append(self.alive)
        if out.is_cuda:
            self._noise.append(torch.empty(NOISE, dtype=torch.uint8, device="cuda:0"))

    @property
    def circle(self) -> bool:
        """Whether a layer's output itself is alive, with its part of the graph, and the model's is not."""
        return self._tensors[-1]() is None and any(tensor() is not None for tensor in self._tensors)

    @property
    def alive(self) -> int:
        return sum(nbytes for made, nbytes in self._made if not made.expired())


@dataclass(frozen=True)
class Want:
    """What a pass keeps, in MiB: `rounded` as an allocator would, and `held` by the layers' outputs at its end."""

    kept: float
    peak: float = 0.0
    workspace: float = 0.0
    rounded: float = 0.0
    held: int = 0


def measure(job: Job, grad: bool) -> Want:
    """On a GPU, by its allocator."""
    model, x, device = job.model(), job.inputs(), job.device
    start = torch.cuda.memory_allocated(device)
    with torch.set_grad_enabled(grad):
        model(x)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        out = model(x)
    kept, peak = torch.cuda.memory_allocated(device) - before, torch.cuda.max_memory_allocated(device) - before
    del out
    return Want(kept / MIB, peak / MIB, (before - start) / MIB)


def estimate(job: Job, grad: bool) -> Want:
    """On the CPU, by what autograd saves."""
    model, x, saved = job.model(), job.inputs(), list[torch.Tensor]()
    watch = Watch(model, x)

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.detach())
        return saved[-1]

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with torch.set_grad_enabled(grad), hooks:
        out = model(x).detach()
    there = storages([*model.parameters(), *model.buffers(), x])
    new = [nbytes for key, nbytes in storages([*saved, out]).items() if key not in there]
    return Want(sum(new) / MIB, rounded=sum(-(-nbytes // 512) * 512 for nbytes in new) / MIB, held=watch.held[-1])


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    grad, off, raises = scene.grad != "False", scene.grad == "True, under no_grad", scene.ends == RAISES
    cuda = scene.place == "cuda:1"
    job = Job(scene.ends, "cuda:1" if cuda else "cpu")
    where = "cuda:1, while cuda:0 is current" if cuda else scene.place.replace("cpu", "the CPU")
    facts = Facts(f"grad={grad} on {where}{', the caller under no_grad' if off else ''}; {scene.ends}")
    with two_gpus() if cuda else nullcontext():
        want = Want(0.0) if raises else measure(job, grad) if cuda else estimate(job, grad)
    with nullcontext() if scene.place == "cpu" else two_gpus():
        model, x = job.model(), job.inputs()
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        stays, watch = history() if cuda else None, Watch(model, x)
        before = torch.cuda.memory_allocated(job.device) if cuda else 0
        text, raised, idle = io.StringIO(), "none", True

        def through(student: Callable[..., Any], model: nn.Module, inputs: torch.Tensor, grad: bool) -> Any:
            nonlocal raised, idle
            value = None
            try:
                with redirect_stdout(text), torch.no_grad() if off else nullcontext():
                    value = student(model, inputs, grad)
            except Broken:
                raised = "Broken"
            except BaseException:
                sys.stdout.write(text.getvalue())
                raise
            idle = not cuda or torch.cuda.default_stream(job.device).query()
            return value

        value = call(model, x, grad, through=through, inside=on_the_cpu() if scene.place == "cpu" else None)
        left = torch.cuda.memory_allocated(job.device) - before > want.workspace * MIB if cuda else False
        del stays
    facts.add("the model is called", bool(watch.graphs), True)
    if raises and watch.graphs:
        facts.add("the model's exception", raised, "Broken")
    if raises:
        return facts
    found = sorted(map(str, value)) if isinstance(value, dict) else [type(value).__name__]
    facts.add("what is returned", found, ["kept_mib", "peak_mib", "source"])
    if facts.hold():
        follows = [graph and (cuda or held >= want.held) for graph, held in zip(watch.graphs, watch.held, strict=False)]
        if grad:
            facts.add("backward could follow" + ", called under no_grad" * off, any(follows), True)
        else:
            facts.add("a pass without a graph", not all(watch.graphs), True)
        numbers(facts, value["kept_mib"], value["peak_mib"], want, cuda)
        facts.add("the source", brief(value["source"]), brief("allocator" if cuda else "estimate"))
        facts.seen["an earlier output alive in the pass"] = watch.earlier
        if is_number(value["kept_mib"]):
            facts.add("the printed line", printed(text.getvalue(), value), [DECIMALS, "MiB", "the source"])
        facts.add("the GPU is idle", idle, True)
        facts.seen["a layer's output alive, the model's not"] = watch.circle
        facts.add("something of the pass in memory", left or watch.alive > 0, False)
    return facts


def numbers(facts: Facts, kept: Any, peak: Any, want: Want, cuda: bool) -> None:
    """Whether both are right. A workspace that is in them is a fact of its own; and kept_mib is judged only of a pass
    that was made as it is to be."""

    def near_to(number: Any, right: float) -> bool:
        return is_number(number) and near(number, right)

    kept, peak = (as_float(n) if is_number(n) else n if n is None else brief(n) for n in (kept, peak))
    made, with_workspace = facts.hold(), list[str]()
    if cuda:
        rights = {"kept_mib": (kept, want.kept), "peak_mib": (peak, want.peak)}
        with_workspace = [name for name, (got, right) in rights.items() if near_to(got, right + want.workspace)]
        facts.add("numbers with a workspace in them", with_workspace, [])
    if "peak_mib" not in with_workspace:
        facts.add("MiB at the peak" if cuda else "the peak on the CPU", peak, Near(want.peak, EXACT) if cuda else None)
    if made and "kept_mib" not in with_workspace:
        name = "on the GPU" if cuda else "on the CPU" if want.kept else "of nothing new"
        rounded = not cuda and near_to(kept, want.rounded)  # as an allocator would: right, too
        facts.add(f"MiB kept {name}", want.kept if rounded else kept, Near(want.kept, EXACT))


def printed(text: str, value: dict[str, Any]) -> list[str]:
    """What of what is asked for stands in the line that has most of it."""
    kept, most = as_float(value["kept_mib"]), list[str]()
    for line in text.splitlines():
        numbers = [float(n.replace(",", "")) for n in re.findall(r"(?<![\d.,])-?\d[\d,]*\.\d\d(?!\d)", line)]
        has = {
            DECIMALS: any(abs(number - kept) <= 0.0051 for number in numbers),
            "MiB": "MiB" in line,
            "the source": str(value["source"]).lower() in line.lower(),
        }
        most = max(most, [name for name, there in has.items() if there], key=len)
    return most


def two_gpus() -> VirtualGPU:
    """On which cuBLAS keeps its workspace, as it does up to PyTorch 2.14."""
    scope = gpus(2)
    scope.keeps_workspaces = True
    return scope


def history() -> torch.Tensor:
    """What was on the GPU before: a tensor that stays, and a higher peak."""
    stays = torch.empty(30 * MIB + 300, dtype=torch.uint8, device="cuda:1")
    torch.empty(200 * MIB, dtype=torch.uint8, device="cuda:1")
    torch.cuda.empty_cache()
    return stays


NO_GPU = "without a GPU torch.cuda raises: decide by inputs.device.type, and count by hooks on the CPU"
EXERCISE = Contract(
    __file__,
    says="what the pass keeps and its peak, on the right GPU, with and without gradients, and an estimate on the CPU",
    parameters=("model", "inputs", "grad"),
    clauses=CLAUSES,
    edges=EDGES,
    possible=lambda scene: (
        (scene.place, scene.ends) not in (("cuda:1", INPUTS), ("cpu beside GPUs", RAISES))
        and (scene.ends in (SLICE, SAVED) or scene.grad == "True")
    ),
    play=play,
    imports=[OPTIMIZERS],
    hides=lambda scene: {RAISES: ("grad",)}.get(scene.ends, ("ends",) * (scene.grad == "False")),
    errors={
        "Expected a cuda device": "a model can be on the CPU beside a GPU: decide by inputs.device.type",
        "No CUDA GPUs": NO_GPU,
        "NVIDIA driver": NO_GPU,
    },
)

"""What a profiler is held against: a network whose passes are watched, and its passes measured rightly and wrongly.

Every function here runs in the thread of a trial: on two virtual GPUs of its own, or on a machine without one.
"""

from __future__ import annotations

import io
import random
import sys
import weakref
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from ...memory.activations import activation_bytes
from ..audit import Audit, Change
from .common import KEEPS, MIB, Halves, Suspect

GPU = 1  # not the current one
NOISE = 3 * MIB + 700 * 1024  # taken on the current GPU in every pass on the other


@dataclass(frozen=True)
class Sizes:
    """The sizes of a network with dropout and a norm that stays in evaluation mode, such that the allocator rounds.

    No activation is above 1 MiB: the small pool always splits off what is left of a block, so that what is allocated
    does not depend on what lay in the cache before.
    """

    batch: int
    width: int
    hidden: int
    middle: int
    out: int

    @classmethod
    def draw(cls) -> Sizes:
        odd = (2 * random.randrange(low, high) + 1 for low, high in ((50, 70), (600, 700), (200, 300), (150, 190)))
        return cls(random.randrange(120, 180), *odd)

    def model(self, device: str, ends: str = "sliced") -> nn.Sequential:
        """Linear and ReLU share a tensor, Tanh saves its own output, dropout a mask, and the two halves of dropout's
        output are saved, of which nobody else saves more.

        How it ends: "sliced", the output is a slice that nobody saves; "saved", the last layer saves its output, and
        each one before it a tensor as large; "inputs", the model is one layer, and its output is what it got.
        """
        if ends == "inputs":
            model = nn.Sequential(nn.Flatten())
            model.register_parameter("unused", nn.Parameter(torch.ones(8)))
            return model.to(device)
        layers = [nn.Linear(self.width, self.hidden), nn.BatchNorm1d(self.hidden).eval(), nn.ReLU()]
        layers += [nn.Flatten(), nn.Linear(self.hidden, self.middle), nn.Tanh(), nn.Dropout(0.2)]
        layers += [Halves(), nn.Linear(self.middle // 2, self.out)]
        layers += [FirstHalf()] if ends == "sliced" else [nn.Tanh() for _ in range(5)]
        return nn.Sequential(*layers).to(device)

    def inputs(self, device: str) -> torch.Tensor:
        return torch.randn(self.batch, self.width, device=device)


class FirstHalf(nn.Module):
    """A view of the first half of the columns, which holds the storage of all."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, : x.shape[1] // 2]


class Broken(Exception):
    """What a model raises."""


class Spoilt(nn.Module):
    """A layer that cannot."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise Broken("this layer is not finished")


class Watch:
    """Looks on as a model is called: the modes of each pass, and which outputs are alive when."""

    def __init__(self, model: nn.Sequential, x: torch.Tensor) -> None:
        self.passes: list[dict[str, Any]] = []
        self._noise: list[torch.Tensor] = []
        self._output: Any = None
        self._inner: Any = None
        self._given = x.untyped_storage()._cdata
        self._kept: list[tuple[StorageWeakRef, int]] = []  # what the layers have made, and its bytes
        model.register_forward_pre_hook(self._before)
        model.register_forward_hook(self._after)
        for layer in model:
            layer.register_forward_hook(self._within)

    def _before(self, model: nn.Module, args: Any) -> None:
        alive = self._output is not None and self._output() is not None
        modes = [module.training for module in model.modules()]
        self.passes.append({"grad": torch.is_grad_enabled(), "modes": modes, "alive": alive})

    def _within(self, module: nn.Module, args: Any, out: torch.Tensor) -> None:
        if isinstance(module, nn.Tanh):
            self._inner = weakref.ref(out)
        storage = out.untyped_storage()
        if storage._cdata not in (self._given, *(kept.cdata for kept, _ in self._kept)):
            self._kept.append((StorageWeakRef(storage), storage.nbytes()))

    def _after(self, model: nn.Module, args: Any, out: torch.Tensor) -> None:
        self._output = weakref.ref(out)
        self.passes[-1]["held"] = self.held_bytes
        if out.is_cuda:
            self._noise.append(torch.empty(NOISE, dtype=torch.uint8, device="cuda:0"))

    @property
    def graph_alive(self) -> bool:
        """Whether the graph of the last pass is still there: its layer that saves its own output."""
        return self._inner is not None and self._inner() is not None

    @property
    def held_bytes(self) -> int:
        """What is alive of the layers' outputs."""
        return sum(nbytes for storage, nbytes in self._kept if not storage.expired())


@dataclass(frozen=True)
class Seen:
    """One call of the student's function, and what was seen of it."""

    value: Any
    error: BaseException | None
    text: str
    passes: list[dict[str, Any]]
    before: list[bool]
    after: list[bool]
    left_mib: float  # on the GPU
    held_mib: float  # of the layers' outputs, wherever they are
    idle: bool
    graph_alive: bool
    changes: list[Change]  # of the model and the inputs


def call(
    student: Any, sizes: Sizes, device: str, grad: bool, ends: str = "sliced", *, spoil: bool = False, off: bool = False
) -> Seen:
    """Call it with a fresh model, whose ReLU raises if `spoil`; under no_grad if `off`."""
    cuda = device != "cpu"
    model, x = sizes.model(device, ends), sizes.inputs(device)
    ballast = [_history(device)] if cuda else []
    if spoil:
        model[2] = Spoilt()
    watch = Watch(model, x)
    before, allocated = [m.training for m in model.modules()], torch.cuda.memory_allocated(GPU) if cuda else 0
    # the mode is judged apart; a pass in training mode moves running statistics
    audit = Audit({"model": model, "inputs": x}, {"model": {"mode", "buffers"}})
    text, value, error = io.StringIO(), None, None
    try:
        with redirect_stdout(text), torch.set_grad_enabled(not off):
            value = student(model, x, grad)
    except Exception as raised:
        sys.stdout.write(text.getvalue())
        if not spoil:
            raise
        error = raised.with_traceback(None)
    idle = torch.cuda.default_stream(GPU).query() if cuda else True
    left = (torch.cuda.memory_allocated(GPU) - allocated) / MIB if cuda else 0.0
    after, changes = [m.training for m in model.modules()], audit.changes()
    ballast.clear()
    held, alive = watch.held_bytes / MIB, watch.graph_alive
    return Seen(value, error, text.getvalue(), watch.passes, before, after, left, held, idle, alive, changes)


def _history(device: str) -> torch.Tensor:
    """What was there before: a tensor that stays, and a higher peak."""
    stays = torch.empty(30 * MIB + 300, dtype=torch.uint8, device=device)
    torch.empty(200 * MIB, dtype=torch.uint8, device=device)
    torch.cuda.empty_cache()
    return stays


@dataclass(frozen=True)
class Truth:
    """A pass on a GPU in MiB: what it keeps and its peak, both above what was there; and other ways of measuring it."""

    kept: float
    peak: float
    first: float
    first_peak: float
    other_grad: float
    evaluating: float
    reserved: float
    before: float
    highest_ever: float
    workspace: float
    outputs: float


def measure(sizes: Sizes, device: str, grad: bool) -> Truth:
    model, x = sizes.model(device), sizes.inputs(device)
    ballast = [_history(device)]
    highest, start = torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device)
    reserved = torch.cuda.memory_reserved(device)

    def one(grad: bool = grad) -> tuple[float, float]:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        with torch.set_grad_enabled(grad):
            out = model(x)
        kept, peak = torch.cuda.memory_allocated(device) - before, torch.cuda.max_memory_allocated(device) - before
        del out
        return kept / MIB, peak / MIB

    first, first_peak = one()
    taken = torch.cuda.memory_reserved(device) - reserved
    before = torch.cuda.memory_allocated(device)
    kept, peak = one()
    other, _ = one(not grad)
    outputs = sum(layer_outputs(model, x)) / MIB
    evaluating, _ = (model.eval(), one())[1]
    ballast.clear()
    return Truth(
        kept=kept,
        peak=peak,
        first=first,
        first_peak=first_peak,
        other_grad=other,
        evaluating=evaluating,
        reserved=taken / MIB,
        before=before / MIB,
        highest_ever=highest / MIB,
        workspace=(before - start) / MIB,
        outputs=outputs,
    )


def layer_outputs(model: nn.Sequential, x: torch.Tensor) -> list[int]:
    """The bytes of every layer's output."""
    found = []
    with torch.no_grad():
        for layer in model:
            x = layer(x)
            found.append(x.nbytes)
    return found


@dataclass(frozen=True)
class Estimate:
    """The MiB that autograd keeps on the CPU and of the output, and what known mistakes come to."""

    kept: float
    rounded: float
    own: float  # of the layers' outputs: what is alive at the end of the pass
    suspects: tuple[Suspect, ...]


def estimate(sizes: Sizes, grad: bool, ends: str) -> Estimate:
    model, x = sizes.model("cpu", ends), sizes.inputs("cpu")
    saved: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.detach())
        return saved[-1]

    with torch.set_grad_enabled(grad):
        found = activation_bytes(model, x)
        watch = Watch(model, x)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = model(x).detach()
    own = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}
    given = x.untyped_storage().data_ptr()
    each = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in [*saved, out]}
    kept, state = found.total + found.output_bytes, sum(n for key, n in each.items() if key in own)
    with_inputs = sum(t.nbytes for t in [*saved, out] if t.untyped_storage().data_ptr() not in own)
    mine = [t for t in [*saved, out] if t.untyped_storage().data_ptr() not in own | {given}]
    several = sum(t.nbytes for t in mine)
    several_storages = sum(t.untyped_storage().nbytes() for t in mine)
    views = {t.untyped_storage().data_ptr(): t.nbytes for t in mine}
    of_views = views | {out.untyped_storage().data_ptr(): out.untyped_storage().nbytes()}
    by_address = sum({t.data_ptr(): t.untyped_storage().nbytes() for t in mine}.values())
    of_output = out.untyped_storage().nbytes()
    there = "but they were there before"
    nothing = (
        0.0,
        "on the CPU the estimate is 0",
        "torch.cuda counts nothing of a model on the CPU, also where there is a GPU: decide by inputs.device, and "
        "count what autograd saves with torch.autograd.graph.saved_tensors_hooks",
    )
    rows: tuple[tuple[float, str, str], ...] = (
        *([nothing] if grad else []),
        (
            kept + of_output,
            "the output is counted though it is the inputs"
            if ends == "inputs"
            else "the output is counted twice: autograd has saved it, too",
            "a model can return what it got: leave out of the output, too, what was there before"
            if ends == "inputs"
            else "a last layer such as tanh saves its own output: put the output's storage with those that are saved, "
            "and count each once, by its data_ptr()",
        ),
        (
            kept + found.input_bytes,
            "the inputs are counted as kept by the pass",
            f"autograd saves them, {there} and belong to the caller: leave their storage out",
        ),
        (
            kept + found.input_bytes + state,
            "parameters, buffers and inputs are counted as kept by the pass",
            f"autograd saves them for backward, {there}: leave their storages out",
        ),
        (
            kept + state,
            "parameters and buffers are counted as kept by the pass",
            f"autograd saves weights for backward, {there}: leave their storages out",
        ),
        *(
            (
                value,
                "shared storage is counted more than once",
                "one layer's output is the next one's input, and both save it: count each storage once, by its "
                "data_ptr()",
            )
            for value in (several, several_storages, with_inputs)
        ),
        (
            by_address,
            "two views of one storage are counted as two storages",
            "tensor.data_ptr() is where the view begins, and the halves of a tensor begin at different places: "
            "tensor.untyped_storage().data_ptr() is the same for both",
        ),
        *(
            (
                value,
                "the output is counted with its own bytes, not with its storage's",
                "a slice keeps all of its tensor alive: count output.untyped_storage().nbytes(), not output.nbytes",
            )
            for value in (found.total + out.nbytes, kept + out.nbytes)
        ),
        *(
            (
                sum(counted.values()),
                "a view is counted with its own bytes, not with its storage's",
                "a slice that is saved keeps all of its tensor alive: count tensor.untyped_storage().nbytes(), not "
                "tensor.nbytes",
            )
            for counted in (views, of_views)
        ),
        (
            found.total,
            "the output is not counted",
            "it is alive after the pass, whether or not autograd saves it: with grad=False it is all there is",
        ),
        (
            sum(layer_outputs(model, x)),
            "kept is the sum of the layers' outputs",
            "an output is not always saved, and dropout saves a mask besides: count what autograd saves, through "
            "torch.autograd.graph.saved_tensors_hooks",
        ),
    )
    rounded = sum(-(-n // 512) * 512 for key, n in each.items() if key not in own and key != given)
    suspects = tuple(Suspect(n / MIB, summary, likely, KEEPS) for n, summary, likely in rows)
    return Estimate(kept / MIB, rounded / MIB, watch.passes[-1]["held"] / MIB, suspects)

"""The check of offloading by saved-tensor hooks: what leaves the GPU, what must not, and the gradients afterwards."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..audit import ANYTHING, Kind
from ..base import Trial, check
from ..lesson08.common import flat_gradient
from ..measure import virtual_gpu
from ..wording import show
from .sections import HOST

KIB = 2**10
HIDDEN = 128 * 256 * 4  # bytes of the large activations; a weight has half, the others a quarter
NEAR = 1024


@dataclass(frozen=True)
class Case:
    """Where the model is, from how many bytes on a tensor is sent, and how backward runs."""

    device: str
    min_bytes: int
    passes: int = 1  # forward passes within the context, whose backward passes follow in the same order
    again: bool = False  # backward runs twice over the graph


class _Keep(torch.autograd.Function):
    """Hands its input on, and keeps a weight, two views of it, a small and a large tensor for backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, probe: Probe, *kept: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*kept)
        ctx.probe = probe
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.probe.back = [tensor.untyped_storage().data_ptr() for tensor in ctx.saved_tensors]
        return gradients[0], *[None] * 6


class Probe(nn.Module):
    """A layer that finds out which of five known tensors came back as another one, thus went away."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weights = [weight]  # in a list, so that it is not registered a second time
        self.small = torch.ones(32)
        self.gone: list[int] = []  # where the five were
        self.back: list[int] = []  # where those are that came back

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, large = self.weights[0], torch.ones(HIDDEN // 4, device=x.device)
        self.small = torch.ones(32, device=x.device)  # held here, so that its place stays taken
        kept = weight, weight.detach().t(), weight.detach()[16:], self.small, large
        self.gone = [tensor.untyped_storage().data_ptr() for tensor in kept]
        out: torch.Tensor = _Keep.apply(x, self, *kept)
        return out

    @property
    def sent(self) -> list[bool]:
        """Whether the weight, its views, the small and the large tensor are others than they were."""
        return [a != b for a, b in zip(self.gone, self.back, strict=True)]


@dataclass
class Seen:
    """What one use of the student's context came to."""

    manager: Any = None
    kept: int = 0  # bytes on the GPU after forward, more than before
    hooks: bool = False  # whether hooks were still on after the context
    out: torch.Tensor | None = None
    gradient: torch.Tensor | None = None


def network(device: str) -> nn.Sequential:
    first = nn.Linear(64, 256)
    layers = first, nn.GELU(), nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 16, bias=False), Probe(first.weight)
    return nn.Sequential(*layers).to(device)


def use(offload: Any, model: nn.Module, inputs: list[torch.Tensor], case: Case, seen: Seen) -> None:
    """Forward within the student's context, backward after it, as the exercise shows it."""
    gpu = case.device if case.device != "cpu" else None
    before = torch.cuda.memory_allocated(gpu)
    seen.manager = manager = offload(model, case.min_bytes)
    if not hasattr(type(manager), "__enter__"):
        return
    losses = []
    with manager:
        for x in inputs:
            seen.out = model(x)
            losses.append(seen.out.square().mean())
    seen.hooks = torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
    seen.kept = torch.cuda.memory_allocated(gpu) - before
    for loss in losses:
        if case.again:
            loss.backward(retain_graph=True)
        loss.backward()
    seen.gradient = flat_gradient(model.parameters())


def reference(model: nn.Module, min_bytes: int) -> Any:
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor: torch.Tensor) -> tuple[torch.device, torch.Tensor]:
        own = tensor.nbytes < min_bytes or tensor.untyped_storage().data_ptr() in weights
        return tensor.device, tensor.detach() if own else tensor.to("cpu")

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed[1].to(packed[0]))


@check(lesson=6, says="large activations wait on the host, weights and small tensors stay, the gradients are the same")
def offload_activations(student: Any, trial: Trial) -> None:
    """Check a function of (model, min_bytes) that returns a context manager: within it, what autograd keeps of at least
    `min_bytes` goes to the host, but for parameters, and backward gets it back."""
    if inspect.isclass(student):  # a subclass of saved_tensors_hooks is right too
        student = functools.partial(student)
    trial.function(student, ("model", "min_bytes"))
    cases = (
        Case("cuda:0", 1),
        Case("cuda:1", random.randrange(40 * KIB, 60 * KIB)),
        Case("cuda:0", HIDDEN),
        Case("cuda:0", HIDDEN + 1),
        Case("cuda:0", 40 * KIB, passes=2, again=True),
        Case("cpu", 40 * KIB),
    )
    for case in cases:
        with virtual_gpu(count=2):
            model = network(case.device)
            inputs = [torch.randn(128, 64, device=case.device) for _ in range(case.passes)]
            plain, best, seen = Seen(), Seen(), Seen()
            use(lambda *_: torch.enable_grad(), copy.deepcopy(model), inputs, case, plain)
            use(reference, copy.deepcopy(model), inputs, case, best)
            may_change: dict[str, Iterable[Kind]] = {
                "model": {"grad", "place"},
                "seen": ANYTHING,
            }  # its place is judged below
            trial.call(use, student, model, inputs, case, seen, may_change=may_change, explain=_explain)
            _judge_manager(trial, seen.manager)
            _judge_values(trial, model, case, seen, plain)
            probe = model[-1]
            if case.device != "cpu" and isinstance(probe, Probe):
                _judge_places(trial, probe, case, seen, plain, best)
    _judge_without_backward(student, trial)


def _judge_without_backward(student: Any, trial: Trial) -> None:
    """A forward pass whose backward never comes, as one that a validation forgets to switch off."""

    def forward(model: nn.Module, x: torch.Tensor) -> None:
        with student(model, HIDDEN + 1):
            model(x)

    with virtual_gpu():
        model, x = network("cuda"), torch.randn(128, 64, device="cuda")
        before = torch.cuda.memory_allocated()
        trial.call(forward, model, x, explain=_explain)
        gc.collect()
        over = torch.cuda.memory_allocated() - before
    trial.expect(
        over <= NEAR,
        "a forward pass without backward stays in memory",
        expected="nothing more on the GPU once its result is gone",
        got=f"{over / KIB:,.0f} KiB more (virtual), also after gc.collect()",
        likely="pack returned the tensor that it was given. A layer that keeps its own output, as Tanh does, then "
        "holds itself for ever: what stays goes back as tensor.detach()",
        read=HOST,
    )


def _judge_manager(trial: Trial, manager: Any) -> None:
    if hasattr(type(manager), "__enter__"):
        return
    likely = "return torch.autograd.graph.saved_tensors_hooks(pack, unpack): it is a context manager"
    if inspect.isgenerator(manager):
        likely = "a function with yield becomes a context manager by @contextlib.contextmanager"
    elif isinstance(manager, tuple) and all(map(callable, manager)):
        likely = "these are the hooks: return saved_tensors_hooks(pack, unpack) with them"
    elif manager is None:
        likely = "the function ends without a return"
    trial.fail(
        "no context manager came back",
        expected="an object for `with offload(model, min_bytes):`",
        got=show(manager),
        likely=likely,
        read=HOST,
    )


def _judge_values(trial: Trial, model: nn.Module, case: Case, seen: Seen, plain: Seen) -> None:
    assert seen.out is not None
    assert plain.out is not None
    assert plain.gradient is not None
    places = sorted({str(p.device) for p in model.parameters()})
    trial.expect(
        places == [case.device],
        "the model was moved",
        expected=f"parameters on {case.device}, as they were",
        got=f"parameters on {', '.join(places)}",
        likely="activations are what is kept for backward: the weights stay where they are",
        read=HOST,
    )
    trial.expect(
        torch.equal(seen.out, plain.out),
        "the model's output is another one",
        expected="the forward pass as without the context",
        got="other values",
        likely="only what is *kept* goes through the hooks; what is computed must not change",
        read=HOST,
    )
    trial.expect(
        not seen.hooks,
        "the hooks are still on after the context has ended",
        expected="tensors that are saved later stay on the GPU",
        got="hooks that every later operation would use",
        likely="they were entered by hand, or pushed, and nobody takes them back: return the context manager itself",
        read=HOST,
    )
    got, want = seen.gradient, plain.gradient
    if got is not None and torch.equal(got, want):
        return
    near = got is not None and bool((got - want).norm() <= 0.05 * want.norm())
    trial.fail(
        "the gradients are not those of a plain pass",
        expected=f"the same to the bit: norm {float(want.norm()):.6g}"
        + (", from two passes, each backward twice" if case.again else ""),
        got="no gradient" if got is None or not got.any() else f"norm {float(got.norm()):.6g}",
        likely="the copies are rounded: in 16 bits they are half the size, and other numbers"
        if near
        else "backward got other tensors than were kept: it may ask in any order, and for one tensor again, so a list "
        "that is emptied on the way will not do. Return from pack what unpack needs",
        read=HOST,
    )


def _judge_places(trial: Trial, probe: Probe, case: Case, seen: Seen, plain: Seen, best: Seen) -> None:
    rows = {
        "expected": f"{best.kept / KIB:,.0f} KiB kept on {case.device} after forward (virtual), of "
        f"{plain.kept / KIB:,.0f} without offloading; min_bytes = {case.min_bytes:,}",
        "got": f"{seen.kept / KIB:,.0f} KiB",
        "read": HOST,
    }
    weight, view, part, small, large = probe.sent
    if weight or view or part:
        went = "a weight" if weight else "the transposed view of a weight" if view else "a slice of a weight"
        trial.fail(
            "weights are sent to the host",
            likely="they are on the GPU anyway. A product keeps a transposed view of its weight, which is another "
            "tensor on the same storage: compare untyped_storage().data_ptr()",
            **rows | {"got": f"{went} that left and came back"},
        )
    if small and case.min_bytes > probe.small.nbytes:
        trial.fail(
            "small tensors are sent to the host",
            likely=f"tensors of fewer than {case.min_bytes:,} bytes stay: each copy costs a launch and a wait",
            **rows | {"got": f"a tensor of {probe.small.nbytes} bytes that left and came back"},
        )
    over = seen.kept - best.kept
    if over > NEAR and large:
        trial.fail(
            "the copies are on the host, and the originals still on the GPU",
            likely="what pack returns stays alive until backward, and a tensor of the GPU is in it, or in a list or "
            "dictionary of yours. Note its device, not the tensor",
            **rows,
        )
    if over > NEAR and case.min_bytes == 1:
        trial.fail(
            "nothing has left the GPU",
            likely="hooks act on what is saved while they are on, so they must be on during forward; and pack must "
            "return the copy",
            **rows,
        )
    if over > NEAR and case.min_bytes == HIDDEN:
        trial.fail(
            f"a tensor of exactly min_bytes stays on the GPU, {HIDDEN:,} bytes",
            likely="“at least” includes it: only tensors with nbytes < min_bytes stay",
            **rows,
        )
    trial.expect(
        over <= NEAR,
        "tensors of more than min_bytes stay on the GPU",
        likely="numel() counts elements; nbytes counts bytes, four for each float32",
        **rows,
    )
    trial.expect(
        over >= -NEAR,
        "more has left the GPU than should",
        likely="only tensors of at least min_bytes go",
        **rows,
    )


def _explain(error: str) -> str:
    return next((why for part, why in _ERRORS.items() if part in error), "")


_ERRORS = {
    "same device": "backward got a tensor on another device than the one it was kept on: pack must note tensor.device, "
    "which need not be “cuda”, and unpack bring it back there",
    "expected to be a Tensor": "unpack must return a tensor: from what pack returned, take the copy",
    "does not require grad": "the forward pass ran without a graph: no_grad keeps nothing, and computes no gradients",
    "pop from empty": "backward may ask for a tensor again, so nothing may be taken out of a list: return from pack "
    "what unpack needs",
    "KeyError": "backward may ask in any order, and again: return from pack what unpack needs",
    "invalid gradient at index": "backward got another tensor than was kept. An address (data_ptr) is used again as "
    "soon as its tensor is gone: return from pack what unpack needs",
    "positional argument": "pack is given the tensor, unpack what pack returned: one argument each",
    "is modified by an inplace": "a hook must not change the tensor it is given",
    "has been modified by": "a hook must not change the tensor it is given",
}

"""Checks exercise 06.2, "offload activations": which tensors leave the GPU, and the gradients afterwards."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace as Seen
from typing import Any

import torch
from torch import nn

from gpulab.exercise.base import OPTIMIZERS, Trial
from gpulab.exercise.contract import Clause, Contract, Facts, Near
from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.races import Race, races
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import brief

CAME, PLACE, GRADIENT = "what came back", "device of the parameters", "gradients"
STILL_ON, RAISED, STILL_ON_RAISED = "hooks after the context", "an exception within it", "hooks after an exception"
OTHERS, WEIGHTS, SMALL = (f"{kind} that came back as others" for kind in ("tensors", "weights", "small tensors"))
BUFFER, KEPT = "tensors of 128 bytes that went to the host", "KiB kept on the GPU after forward"
RACES: dict[str, Callable[[Race], bool]] = {
    "a stream of yours uses what the caller's may still be writing": lambda race: bool(race.stream) and not race.freed,
    "the caller's stream uses what one of yours may still be writing": lambda race: not (race.stream or race.freed),
    "memory is freed while a stream of yours may still use it": lambda race: race.freed,
}
CLAUSES = [
    Clause(quote, facts, summary, rule, "Send it to the host")
    for quote, facts, summary, rule in (
        ("A context manager for the forward pass", [CAME], "what was returned is not a context manager",
         "it must work in a with statement"),
        ("It ends with its block, even if that raises: the exception reaches the caller",
         [STILL_ON, RAISED, STILL_ON_RAISED], "the context does not end with its block",
         "however the block ends, its exception reaches the caller, and the hooks are off"),
        ("an nn.Module on some device", [PLACE], "the model was moved", "its parameters stay where they are"),
        ("gets it back on the device it came from, with the same values and dtype", [OTHERS, GRADIENT, *RACES],
         "the gradients are not those of a plain pass",
         "backward may ask for the tensors in any order, and for each of them again"),
        ("is not (a view of) a parameter of the model", [WEIGHTS], "weights are sent to the host",
         "they are on the GPU anyway, and so is everything that shares their storage"),
        ("tensors of fewer bytes stay where they are", [SMALL], "small tensors are sent to the host",
         "each copy costs a launch and a wait"),
        ("each tensor that autograd keeps for backward goes to the host", [BUFFER],
         "a tensor of at least min_bytes stays on the GPU", "of the model only parameters stay"),
        ("if it has at least `min_bytes`", [KEPT], "the wrong tensors have left the GPU",
         "each tensor of at least min_bytes goes to the host, and no part of it stays"),
        ("A forward pass without a backward leaves nothing on the GPU", ["KiB left without backward"],
         "a forward pass without a backward stays in memory", "what pack keeps must be freed with the graph"),
    )
]  # fmt: skip
KIB, THIRD, BACKWARD = 2**10, 1 / 3, ("backward", "backward twice")
HIDDEN = 128 * 256 * 4  # bytes of the large activations, and of a weight; the others have half of it
EDGES = {
    "device": ("cuda:0", "cuda:1", "cpu"),
    "min_bytes": (1, HIDDEN // 2 + 1, HIDDEN),  # one byte more than many have, and as many as some have
    "passes": ("one pass", "two passes", "two contexts"),  # forward; their backward passes follow in the same order
    "end": (*BACKWARD, "no backward", "an exception"),
    "frozen": (False, True),
}


class _Keep(torch.autograd.Function):
    """Hands its input on, keeps what it is given besides, and tells `probe` in backward what has become of that."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, probe: Probe, names: list[str], *kept: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*kept)
        ctx.probe, ctx.kept = probe, [(name, *look(tensor)) for name, tensor in zip(names, kept, strict=True)]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        saved = ctx.saved_tensors  # unpacked anew each time that it is asked for
        both = [(*was, *look(tensor)) for was, tensor in zip(ctx.kept, saved, strict=True)]
        ctx.probe.others = [f"{was}, now {now}" for _, was, _, now, _ in both if was != now]
        ctx.probe.sent = [name for name, _, place, _, now in both if place != now]
        thirds = saved[-1][0, 0].item()
        if not ctx.probe.others and thirds != THIRD:
            ctx.probe.others = [f"float64 of {THIRD:.12f}, now of {thirds:.12f}"]
        return gradients[0], *[None] * (2 + len(saved))


def look(tensor: torch.Tensor) -> tuple[str, int]:
    """Its dtype, shape and device, and where it is there."""
    kind = f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)} on {tensor.device}"
    return kind, tensor.untyped_storage().data_ptr()


class Probe(nn.Module):
    """A layer that finds out which of some known tensors came back as others or elsewhere, and so went away."""

    wide: torch.Tensor

    def __init__(self, *weights: torch.Tensor) -> None:
        super().__init__()
        self.weights = weights  # in a tuple, so that they are not registered a second time
        self.small = torch.ones(64, dtype=torch.bfloat16)
        self.register_buffer("wide", torch.ones(HIDDEN // 4))
        self.others, self.sent = list[str](), list[str]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, other = self.weights
        self.small = self.small.to(x.device)  # held here, as the buffer is, so that its place stays taken
        kept = {
            "a weight": weight,
            "a transposed view of it": weight.detach().t(),
            "a slice of it": weight.detach()[16:],
            "another weight": other,
            "64 numbers in bfloat16": self.small,
            "a small part of a buffer": self.wide[:32],
            "indices": torch.arange(HIDDEN // 8, device=x.device),
            "what is on the host already": torch.ones(HIDDEN // 4),
            "transposed thirds": torch.full((128, 64), THIRD, dtype=torch.float64, device=x.device).t(),
        }
        out: torch.Tensor = _Keep.apply(x, self, list(kept), *kept.values())
        return out


def network(scene: Scene) -> nn.Sequential:
    first, second = nn.Linear(128, 256), nn.Linear(256, 128)
    first.weight.requires_grad_(not scene.frozen)
    probe = Probe(first.weight, second.weight)
    layers = nn.Sequential(first, nn.GELU(), second), nn.Tanh(), nn.Linear(128, 16, bias=False), probe
    return nn.Sequential(*layers).to(scene.device)


def use(offload: Any, model: nn.Module, inputs: list[torch.Tensor], scene: Scene) -> Seen:
    """Forward within the student's context, backward after it, as the exercise shows it."""
    gpu = scene.device if scene.device != "cpu" else None
    before = torch.cuda.memory_allocated(gpu)
    batches = [[x] for x in inputs] if scene.passes == "two contexts" else [inputs]
    losses, seen = [], Seen(raised=False)
    stops = (FloatingPointError,) if scene.end == "an exception" else ()  # else it is the student's
    try:
        for batch in batches:
            manager = offload(model, scene.min_bytes)
            seen.came = "a context manager" if hasattr(type(manager), "__enter__") else brief(manager)
            if seen.came != "a context manager":
                return seen
            with manager:
                for x in batch:
                    losses.append(model(x).square().mean())
                if scene.end == "an exception":
                    raise FloatingPointError("the loss is nan")
            if where(model) != [scene.device]:  # it can go neither on nor backward
                return seen
    except stops:
        seen.raised = True
    seen.hooks = "off" if torch._C._autograd._top_saved_tensors_default_hooks(False) is None else "on"
    seen.kept = torch.cuda.memory_allocated(gpu) - before
    for loss in losses if scene.end in BACKWARD else ():
        loss.backward(retain_graph=scene.end == "backward twice")
        if scene.end == "backward twice":
            loss.backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    seen.gradient = torch.cat([gradient.flatten() for gradient in gradients]).cpu()
    return seen


def where(model: nn.Module) -> list[str]:
    return sorted({str(p.device) for p in model.parameters()})


def reference(model: nn.Module, min_bytes: int) -> Any:
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor: torch.Tensor) -> tuple[torch.device, torch.Tensor]:
        own = tensor.nbytes < min_bytes or tensor.untyped_storage().data_ptr() in weights
        return tensor.device, tensor.detach() if own else tensor.to("cpu")

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed[1].to(packed[0]))


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    facts = Facts(f"{scene.passes} on {scene.device}, min_bytes = {scene.min_bytes:,}, then {scene.end}")
    with virtual_gpu(count=2):
        model = network(scene)
        inputs = [torch.randn(128, 128, device=scene.device) for _ in range(1 if scene.passes == "one pass" else 2)]
        right = use(reference, copy.deepcopy(model), inputs, scene)
        found: list[Race] = []
        watched = scene.device != "cpu" and scene.passes == "two passes" and scene.end in BACKWARD

        def watch(offload: Any, model: nn.Module, inputs: list[torch.Tensor]) -> Seen:
            nonlocal found
            with races() if watched else nullcontext(found) as found:
                return use(offload, model, inputs, scene)

        gpu = scene.device if scene.device != "cpu" else None
        before = torch.cuda.memory_allocated(gpu)
        seen = call(model, inputs, through=watch, may_change={"model": {"grad", "place"}})  # its place is judged
        facts.add(CAME, seen.came, "a context manager")
        facts.add(PLACE, where(model), [scene.device])
        if not facts.hold():
            return facts
        if scene.end == "an exception":
            facts.add(RAISED, "comes out" if seen.raised else "is swallowed", "comes out")
        facts.add(STILL_ON_RAISED if scene.end == "an exception" else STILL_ON, seen.hooks, "off")
        for name, is_one in RACES.items() if watched else ():
            facts.add(name, any(map(is_one, found)), False)
        probe: Any = model[-1]
        if scene.end in BACKWARD:
            facts.add(OTHERS, probe.others, [])
            facts.add(GRADIENT, seen.gradient, Near(right.gradient, 0.0))
            if scene.device != "cpu" and facts.hold():
                small = [name for name in probe.sent if "bfloat16" in name or "buffer" in name]
                facts.add(WEIGHTS, [name for name in probe.sent if "weight" in name or "of it" in name], [])
                facts.add(*((SMALL, small, []) if scene.min_bytes > 128 else (BUFFER, len(small), 2)))
        elif seen.hooks == "off" and facts.hold():
            if torch.cuda.memory_allocated(gpu) >= before + KIB:
                gc.collect()  # perhaps a cycle that Python finds, in 0.2 s
            facts.add("KiB left without backward", (torch.cuda.memory_allocated(gpu) - before) // KIB, 0)
        if facts.hold():
            facts.add(KEPT, seen.kept / KIB, Near(right.kept / KIB, 0.01))
        return facts


def hides(scene: Scene) -> tuple[str, ...]:
    unseen = ("min_bytes", "frozen") if scene.device == "cpu" else ()
    return unseen if scene.end in BACKWARD else (*unseen, "passes", "frozen")


def accept(student: Any, trial: Trial) -> Callable[..., Any]:
    """A subclass of saved_tensors_hooks is right too."""
    function: Callable[..., Any] = functools.partial(student) if inspect.isclass(student) else student
    trial.function(function, ("model", "min_bytes"))
    return function


EXERCISE = Contract(
    __file__,
    says="large activations wait on the host, weights and small tensors stay, the gradients are the same",
    imports=[OPTIMIZERS],
    parameters=("model", "min_bytes"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=lambda scene: scene.device != "cpu" or scene.min_bytes == HIDDEN,  # there one size will do
    hides=hides,
    accept=accept,
)

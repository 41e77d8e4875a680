"""The check of offloading by saved-tensor hooks: what leaves the GPU, what must not, and the gradients afterwards."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..audit import ANYTHING, Kind
from ..base import OPTIMIZERS, Trial
from ..contract import Clause, Contract, Facts, Near
from ..lesson08.common import flat_gradient
from ..measure import virtual_gpu
from ..races import Race, races
from ..scenes import Scene
from ..wording import show
from .sections import HOST

KEPT = "KiB kept on the GPU after forward"
BUFFER = "a part of a buffer"
RAISED, STILL_ON = "an exception within the context", "hooks after an exception"
UNREADY = "a stream of yours uses what the caller's may still be writing"
UNFINISHED = "the caller's stream uses what one of yours may still be writing"
FREED = "memory is freed while a stream of yours may still use it"
CLAUSES = (
    Clause("A context manager for the forward pass", ["what came back"], "no context manager came back", read=HOST),
    Clause(
        "Backward, which runs after the context has ended",
        ["hooks after the context"],
        "the hooks are still on after the context has ended",
        "they were entered by hand, or pushed, and nobody takes them back: return the context manager itself",
        HOST,
    ),
    Clause(
        "the exception reaches the caller",
        [RAISED],
        "an exception within the context does not reach the caller",
        "what the block raises is the caller's: catch nothing around yield",
        HOST,
    ),
    Clause(
        "It ends with its block, also where that raises",
        [STILL_ON],
        "the hooks are still on after an exception",
        "return the context manager itself, or have yield in its with",
        HOST,
    ),
    Clause(
        "an nn.Module on some device", ["device of the parameters"], "the model was moved", "the weights stay", HOST
    ),
    Clause(
        "gets it back on the device it came from, with the same values and dtype",
        ["gradients", "tensors that came back as others", UNREADY, UNFINISHED, FREED],
        "the gradients are not those of a plain pass",
        "backward got other tensors than were kept: it may ask in any order, and for one tensor again. Return from "
        "pack what unpack needs",
        HOST,
    ),
    Clause(
        "is not (a view of) a parameter of the model",
        ["weights that left and came back"],
        "weights are sent to the host",
        "they are on the GPU anyway: compare untyped_storage().data_ptr()",
        HOST,
    ),
    Clause(
        "tensors of fewer bytes stay where they are",
        ["small tensors that left and came back"],
        "small tensors are sent to the host",
        "tensors of fewer than min_bytes stay: each copy costs a launch and a wait",
        HOST,
    ),
    Clause(
        "each tensor that autograd keeps for backward goes to the host",
        [BUFFER],
        "a buffer of the model stays on the GPU",
        "parameters stay, and nothing else of the model: a buffer is none",
        HOST,
    ),
    Clause(
        "if it has at least `min_bytes`",
        [KEPT],
        "not what should has left the GPU",
        "each tensor of at least min_bytes goes, once; nothing else does",
        HOST,
    ),
    Clause(
        "A forward pass whose backward never comes leaves nothing on the GPU",
        ["KiB left by a forward pass without backward"],
        "a forward pass without backward stays in memory",
        "what is kept refers to itself, or to a list of yours",
        HOST,
    ),
)
KIB, THIRD = 2**10, 1 / 3
HIDDEN = 128 * 256 * 4  # bytes of the large activations, and of a weight; the others have half of it
EDGES = {
    "device": ("cuda:0", "cuda:1", "cpu"),
    "min_bytes": (1, 50 * KIB, HIDDEN, HIDDEN + 1),
    "passes": (1, 2),  # forward passes within the context, whose backward passes follow in the same order
    "again": (False, True),  # backward runs twice over the graph
    "frozen": (False, True),
}
MAY_CHANGE: dict[str, Iterable[Kind]] = {"model": {"grad", "place"}, "seen": ANYTHING}  # its place is judged


class _Keep(torch.autograd.Function):
    """Hands its input on, and keeps what it is given besides for backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, probe: Probe, *kept: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*kept)
        ctx.probe = probe
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        saved = ctx.saved_tensors  # unpacked anew each time that it is asked for
        ctx.probe.back = [tensor.untyped_storage().data_ptr() for tensor in saved]
        ctx.probe.others = [
            f"{was}, now {now}" for was, now in zip(ctx.probe.kinds, map(kind, saved), strict=True) if was != now
        ]
        if not ctx.probe.others and (value := saved[4][0].item()) != THIRD:
            ctx.probe.others = [f"float64 of {THIRD:.12f}, now of {value:.12f}"]
        return gradients[0], *[None] * (1 + len(saved))


class Probe(nn.Module):
    """A layer that finds out which of seven known tensors came back as another one, thus went away: a weight, two views
    of it, a small tensor in 16 bits, a large one in 64, indices, and a small part of a buffer."""

    wide: torch.Tensor

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weights = [weight]  # in a list, so that it is not registered a second time
        self.small = torch.ones(64, dtype=torch.bfloat16)
        self.register_buffer("wide", torch.ones(HIDDEN // 4))
        self.kinds: list[str] = []  # dtypes and shapes of them
        self.others: list[str] = []  # those that have others now
        self.gone: list[int] = []  # where they were
        self.back: list[int] = []  # where those are that came back

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, large = self.weights[0], torch.full((HIDDEN // 8,), THIRD, dtype=torch.float64, device=x.device)
        indices = torch.arange(HIDDEN // 8, device=x.device)
        self.small = torch.ones(64, dtype=torch.bfloat16, device=x.device)  # held here, so that its place stays taken
        kept = weight, weight.detach().t(), weight.detach()[16:], self.small, large, indices, self.wide[:32]
        self.kinds = [kind(tensor) for tensor in kept]
        self.gone = [tensor.untyped_storage().data_ptr() for tensor in kept]
        out: torch.Tensor = _Keep.apply(x, self, *kept)
        return out

    @property
    def sent(self) -> list[bool]:
        """Whether each of them is elsewhere than it was."""
        return [a != b for a, b in zip(self.gone, self.back, strict=True)]


def kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


@dataclass
class Seen:
    """What one use of the student's context came to."""

    manager: Any = None
    kept: int = 0  # bytes on the GPU after forward, more than before
    hooks: bool = False  # whether hooks were still on after the context
    raised: bool = False  # whether an exception within it came out
    races: list[Race] = field(default_factory=list)
    out: torch.Tensor | None = None
    gradient: torch.Tensor | None = None


def network(scene: Scene) -> nn.Sequential:
    first = nn.Linear(128, 256)
    first.weight.requires_grad_(not scene.frozen)
    layers = first, nn.GELU(), nn.Linear(256, 128), nn.Tanh(), nn.Linear(128, 16, bias=False), Probe(first.weight)
    return nn.Sequential(*layers).to(scene.device)


def use(offload: Any, model: nn.Module, inputs: list[torch.Tensor], scene: Scene, seen: Seen) -> None:
    """Forward within the student's context, backward after it, as the exercise shows it."""
    gpu = scene.device if scene.device != "cpu" else None
    before = torch.cuda.memory_allocated(gpu)
    seen.manager = manager = offload(model, scene.min_bytes)
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
        if scene.again:
            loss.backward(retain_graph=True)
        loss.backward()
    seen.gradient = flat_gradient(model.parameters())


def in_streams(offload: Any, model: nn.Module, inputs: list[torch.Tensor], scene: Scene, seen: Seen) -> None:
    """As `use`, and looked at for streams that do not wait for each other."""
    with races() as seen.races:
        use(offload, model, inputs, scene, seen)


def reference(model: nn.Module, min_bytes: int) -> Any:
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor: torch.Tensor) -> tuple[torch.device, torch.Tensor]:
        own = tensor.nbytes < min_bytes or tensor.untyped_storage().data_ptr() in weights
        return tensor.device, tensor.detach() if own else tensor.to("cpu")

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed[1].to(packed[0]))


class Stop(Exception):
    """What the block of the check raises."""


def without_backward(offload: Any, model: nn.Module, x: torch.Tensor, scene: Scene, seen: Seen) -> None:
    """A forward pass whose backward never comes, as one that a validation forgets to switch off, or that fails."""
    try:
        with offload(model, scene.min_bytes):
            model(x)
            if scene.again:
                raise Stop
    except Stop:
        seen.raised = True
    seen.hooks = torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    facts = Facts(f"on {scene.device}, min_bytes = {scene.min_bytes:,}" + ", two forward passes" * (scene.passes == 2))
    with virtual_gpu(count=2):
        model = network(scene)
        inputs = [torch.randn(128, 128, device=scene.device) for _ in range(scene.passes)]
        plain, best, seen = Seen(), Seen(), Seen()
        use(lambda *_: torch.enable_grad(), copy.deepcopy(model), inputs, scene, plain)
        use(reference, copy.deepcopy(model), inputs, scene, best)
        streams = scene.device == "cuda:0" and scene.passes == 2  # of one scene at least
        call(model, inputs, scene, seen, through=in_streams if streams else use, may_change=MAY_CHANGE)
        manager = seen.manager
        enters = hasattr(type(manager), "__enter__")
        facts.add("what came back", "a context manager" if enters else kind_of(manager), "a context manager")
        if not enters:
            return facts
        if streams:
            facts.add(UNREADY, any(race.stream and not race.freed for race in seen.races), False)
            facts.add(UNFINISHED, any(not race.stream and not race.freed for race in seen.races), False)
            facts.add(FREED, any(race.freed for race in seen.races), False)
        facts.add("hooks after the context", "on" if seen.hooks else "off", "off")
        facts.add("device of the parameters", sorted({str(p.device) for p in model.parameters()}), [scene.device])
        facts.add("gradients", seen.gradient, Near(plain.gradient, 0.0))
        facts.seen["gradients are near"] = near(seen.gradient, plain.gradient)
        probe = model[-1]
        if isinstance(probe, Probe):
            facts.add("tensors that came back as others", probe.others, [])
        if scene.device == "cpu" or not isinstance(probe, Probe) or not facts.hold():
            return facts
        weight, view, part, small, large, _, narrow = probe.sent
        gone = [name for name, sent in (("one", weight), ("a transposed view", view), ("a slice", part)) if sent]
        facts.add("weights that left and came back", gone, [])
        if scene.min_bytes > probe.small.nbytes:
            facts.add("small tensors that left and came back", int(small) + int(narrow), 0)
        else:
            facts.add(BUFFER, "left and came back" if narrow else "stayed", "left and came back")
        if facts.hold():
            facts.add(KEPT, seen.kept / KIB, Near(best.kept / KIB, 0.01))
            facts.seen["a large tensor left and came back"] = large
    if scene.passes == 1 and facts.hold():
        with virtual_gpu(count=2):
            model, x = network(scene), torch.randn(128, 128, device=scene.device)
            before = torch.cuda.memory_allocated(scene.device)
            seen = Seen()
            call(model, x, scene, seen, through=without_backward, may_change={"seen": ANYTHING})
            if scene.again:
                facts.add(RAISED, "comes out" if seen.raised else "is swallowed", "comes out")
                facts.add(STILL_ON, "on" if seen.hooks else "off", "off")
            if torch.cuda.memory_allocated(scene.device) >= before + KIB:  # perhaps a cycle that Python finds, in 0.2 s
                gc.collect()
            left = torch.cuda.memory_allocated(scene.device) - before
        if not seen.hooks:
            facts.add("KiB left by a forward pass without backward", left // KIB, 0)
    return facts


def kind_of(manager: Any) -> str:
    if inspect.isgenerator(manager):
        return "a generator"
    return "two functions" if isinstance(manager, tuple) and all(map(callable, manager)) else show(manager)


def near(got: torch.Tensor | None, want: torch.Tensor | None) -> bool:
    return got is not None and want is not None and bool((got - want).norm() <= 0.05 * want.norm())


def possible(scene: Scene) -> bool:
    """On the CPU there is nothing to measure: one size will do."""
    return bool(scene.device != "cpu" or scene.min_bytes == 50 * KIB)


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
    possible=possible,
    accept=accept,
)

"""The check of one step in mixed precision: the gradients that it steps with, what is skipped, and in which order."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from ..audit import MOVED, Kind
from ..contract import Clause, Contract, Facts, Near
from ..measure import virtual_gpu
from ..scenes import Scene
from ..wording import show
from .sections import AUTOCAST, MISTAKES, ORDER, SCALER

PARAMETERS = ("model", "optimizer", "scaler", "scheduler", "loss_fn", "x", "y", "dtype", "max_norm")
SCALE, OVERFLOWS = 2.0**10, 2.0**30  # the latter in fp16
OVERFLOW = "on with a scale that overflows"
FIRST, LAST = (f"on with an inf in the {which} gradient" for which in ("first", "last"))
GROWTH_INTERVAL = 2
GROWTH, BACKOFF = 1.5, 0.75  # not the defaults: who compares with half the scale is found
CLAUSES = (
    Clause(
        "the model is on the device of x, in float32",
        ["dtype of the parameters", "device of the parameters"],
        "the model came back in another dtype, or on another device",
        "half() and to(…) change the caller's model for good; autocast rounds copies",
        MISTAKES,
    ),
    Clause(
        "for autocast around model and loss",
        ["autocast in the forward pass", "autocast at the loss"],
        "model and loss do not run under the autocast that was asked for",
        "torch.autocast(x.device.type, dtype=dtype) around both",
        AUTOCAST,
    ),
    Clause("backward is outside", ["autocast in backward"], "backward runs under autocast", read=AUTOCAST),
    Clause("One training step", ["forward passes and losses"], "the model runs more than once in a step", read=ORDER),
    Clause(
        "the largest norm that the gradient may have when the optimizer steps",
        ["gradient at the step"],
        "the optimizer steps with another gradient, or does not step when it should, or steps when it should not",
        read=ORDER,
    ),
    Clause(
        "gradients that the caller left do not count",
        ["gradient at the step, after gradients that were left"],
        "the optimizer steps with another gradient where the caller has left some",
        read=ORDER,
    ),
    Clause(
        "a torch.amp.GradScaler for that device",
        ["scale after the step"],
        "the scale has not adapted as it should",
        "scaler.update(), once, after the step: it grows after good steps and falls after an overflow",
        SCALER,
    ),
    Clause(
        "a learning-rate schedule that counts updates of the weights",
        ["advances of the schedule", "the schedule advances after the step"],
        "the schedule does not advance once after each update of the weights, and only then",
        read=ORDER,
    ),
    Clause(
        "model, optimizer",
        ["weights after the step"],
        "the weights are not where the optimizer's step leads",
        "the weights are updated by hand too, or the learning rate was changed",
        ORDER,
    ),
    Clause("Returns (loss, stepped)", ["what is returned"], "what is returned is no pair of a float and a bool"),
    Clause(
        "the loss, not scaled, as a float",
        ["the loss returned"],
        "the loss that is returned is another one",
        read=SCALER,
    ),
    Clause(
        "whether the optimizer stepped, a bool",
        ["stepped, as returned"],
        "whether the optimizer stepped is reported wrongly",
        read=SCALER,
    ),
)

EDGES = {
    "device": ("cuda:0", "cuda:1", "cpu"),
    "dtype": (torch.float16, torch.bfloat16),
    "scaler": ("on", OVERFLOW, FIRST, LAST, "off"),
    "max_norm": (1e6, 0.05),
    "calls": (1, 2),  # after two good steps the scale grows
    "left": (True, False),  # gradients of the caller
    "training": (True, False),
    "batch_norm": (True, False),
    "frozen": (False, True),  # the first layer's weight
    "groups": (1, 2),
}
MAY_CHANGE: dict[str, Iterable[Kind]] = {
    "model": MOVED,  # its place is judged
    "optimizer": {"state", "settings"},  # the schedule sets the learning rate
    "scaler": {"state"},
    "scheduler": {"state"},
}


def possible(scene: Scene) -> bool:
    """bf16 has fp32's range: no scale overflows in it. Old gradients are told best where nothing is clipped."""
    skips, fp16 = scene.scaler not in ("on", "off"), scene.dtype is torch.float16
    if skips and (scene.calls > 1 or (scene.scaler == OVERFLOW and not fp16)):
        return False
    return not (scene.left and scene.max_norm < 1)


@dataclass
class Log:
    """One call: what was called, in order; autocast at each forward pass and loss; the gradients at each step."""

    calls: list[str] = field(default_factory=list)
    forwards: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    backwards: list[str] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)


class Recorder(torch.optim.SGD):
    """SGD that keeps the whole gradient at each of its steps."""

    def __init__(self, groups: list[dict[str, Any]], log: Log, parameters: list[nn.Parameter]) -> None:
        super().__init__(groups)
        self.log, self.all = log, parameters

    def step(self, closure: Any = None) -> Any:
        self.log.gradients.append(flat(self.all))
        self.log.calls.append("stepped")
        return super().step(closure)


class Scaler(torch.amp.GradScaler):
    """A GradScaler that writes down in which order it is used."""

    def __init__(self, device: str, log: Log, **options: Any) -> None:
        super().__init__(device, **options)
        self.log = log

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        if self.log.calls[-1:] != ["step"]:  # step() unscales by itself where it was not done
            self.log.calls.append("unscale_")
        super().unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        self.log.calls.append("step")
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        self.log.calls.append("update")
        super().update(new_scale)


class Schedule(torch.optim.lr_scheduler.ConstantLR):
    """A constant learning rate that writes down when it is advanced."""

    def __init__(self, optimizer: torch.optim.Optimizer, log: Log) -> None:
        self.log = Log()  # the base class makes a first step of its own
        super().__init__(optimizer, factor=1.0)
        self.log = log

    def step(self, epoch: int | None = None) -> None:
        self.log.calls.append("scheduler")
        super().step()


def loss_fn(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Not the cross-entropy itself: who passes by the argument is found."""
    return 3.0 * F.cross_entropy(outputs, targets)


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    with virtual_gpu(count=2):
        kind = torch.device(scene.device).type
        model, log = network(scene), Log()
        parameters = list(model.parameters())
        parts = [parameters] if scene.groups == 1 else [parameters[::2], parameters[1::2]]
        optimizer = Recorder([{"params": part, "lr": 0.1 * (1 + i)} for i, part in enumerate(parts)], log, parameters)
        options = {
            "init_scale": OVERFLOWS if scene.scaler == OVERFLOW else SCALE,
            "growth_factor": GROWTH,
            "backoff_factor": BACKOFF,
            "growth_interval": GROWTH_INTERVAL,
            "enabled": scene.scaler != "off",
        }
        scaler = Scaler(kind, log, **options)
        model.register_forward_pre_hook(lambda *_: log.forwards.append(autocast(kind)))
        parameters[-1].register_hook(lambda _: log.backwards.append(autocast(kind)))

        def loss(*args: Any, **options: Any) -> torch.Tensor:
            log.losses.append(autocast(kind))
            return loss_fn(*args, **options)

        if scene.scaler in (FIRST, LAST):
            trained = [p for p in parameters if p.requires_grad]
            trained[0 if scene.scaler == FIRST else -1].register_hook(with_an_inf)
        job = model, optimizer, scaler, Schedule(optimizer, log), loss
        for number in range(scene.calls):
            facts = one_call(call, scene, job, log, number)
            if not facts.hold():
                break
        return facts


def one_call(call: Callable[..., Any], scene: Scene, job: tuple[Any, ...], log: Log, number: int) -> Facts:
    """What one step showed."""
    model, optimizer, scaler = job[:3]
    x, y = torch.randn(12, 4).to(scene.device), torch.randint(0, 3, (12,)).to(scene.device)
    true, value = reference(model, x, y, scene)
    for p in optimizer.all:
        p.grad = torch.full_like(p, 7.0) if scene.left and p.requires_grad else None
    for entries in (log.calls, log.forwards, log.losses, log.backwards, log.gradients):
        entries.clear()
    before, scale_before = weights(model), scaler.get_scale()
    returned = call(*job, x, y, scene.dtype, scene.max_norm, may_change=MAY_CHANGE)
    steps = scene.scaler in ("on", "off")
    facts = Facts(f"{name_of(scene.dtype)} on {scene.device}, the scaler {scene.scaler}, max_norm = {scene.max_norm:g}")
    facts.add("dtype of the parameters", sorted({name_of(p.dtype) for p in model.parameters()}), ["float32"])
    facts.add("device of the parameters", sorted({str(p.device) for p in model.parameters()}), [scene.device])
    if not facts.hold():
        return facts
    facts.add("autocast in the forward pass", sorted(set(log.forwards)), [name_of(scene.dtype)])
    facts.add("autocast at the loss", sorted(set(log.losses)), [name_of(scene.dtype)])
    as_precise = facts.hold()  # as the reference's loss
    facts.add("autocast in backward", sorted(set(log.backwards)), ["off"])
    facts.add("forward passes and losses", [len(log.forwards), len(log.losses)], [1, 1])
    gradient = Near(true * min(1.0, scene.max_norm / float(true.norm()))) if steps else "no step"
    left = ", after gradients that were left" if scene.left else ""
    facts.add(f"gradient at the step{left}", log.gradients[0] if log.gradients else "no step", gradient)
    stepped = bool(log.gradients)
    facts.add("advances of the schedule", log.calls.count("scheduler"), int(stepped))
    if log.calls.count("scheduler") == stepped == 1:
        facts.add(
            "the schedule advances after the step", log.calls.index("scheduler") > log.calls.index("stepped"), True
        )
    grown = BACKOFF if not steps else GROWTH if number + 1 == GROWTH_INTERVAL and scene.scaler == "on" else 1.0
    facts.add("scale after the step", scaler.get_scale(), scale_before * grown)
    rates = torch.cat([torch.full((p.numel(),), rate) for p, rate in rates_of(optimizer)])
    moved = before - rates * log.gradients[0] if stepped else before
    facts.add("weights after the step", weights(model), Near(moved, 1e-4))
    pair = returned if isinstance(returned, tuple | list) and len(returned) == 2 else (returned, None)
    # of a tensor no digits, which hang on the processor
    kinds = ["a tensor" if isinstance(one, torch.Tensor) else show(one, 20) for one in pair]
    is_float, is_bool = isinstance(pair[0], float), isinstance(pair[1], bool | np.bool_)
    kinds = ["float" if is_float else kinds[0], "bool" if is_bool else kinds[1]]
    facts.add("what is returned", kinds, ["float", "bool"])
    if is_float and as_precise:
        facts.add("the loss returned", float(pair[0]), Near(value, 0.01))
    if is_bool:
        facts.add("stepped, as returned", bool(pair[1]), stepped)
    facts.seen["calls of the scaler"] = [name for name in log.calls if name in ("unscale_", "step", "update")]
    return facts


def with_an_inf(gradient: torch.Tensor) -> torch.Tensor:
    """The gradient with an inf in one of its elements, drawn at random."""
    gradient = gradient.clone(memory_format=torch.contiguous_format)
    gradient.view(-1)[random.randrange(gradient.numel())] = math.inf
    return gradient


def network(scene: Scene) -> nn.Module:
    middle: nn.Module = nn.BatchNorm1d(6) if scene.batch_norm else nn.Tanh()
    model = nn.Sequential(nn.Linear(4, 6), middle, nn.Linear(6, 3)).to(scene.device).train(scene.training)
    if scene.frozen:
        model[0].weight.requires_grad_(False)
    return model


def reference(model: nn.Module, x: torch.Tensor, y: torch.Tensor, scene: Scene) -> tuple[torch.Tensor, float]:
    """The true gradient, not clipped, and the loss; fp16 with a scale at which nothing is lost."""
    scale, parameters = 2.0**10, [p for p in model.parameters() if p.requires_grad]
    with torch.autocast(torch.device(scene.device).type, dtype=scene.dtype):
        loss = loss_fn(model(x), y)
    found = dict(zip(parameters, torch.autograd.grad(loss * scale, parameters), strict=True))
    parts = [found.get(p, torch.zeros_like(p)).flatten().cpu() / scale for p in model.parameters()]
    return torch.cat(parts), loss.item()


def autocast(kind: str) -> str:
    return name_of(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else "off"


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def rates_of(optimizer: torch.optim.Optimizer) -> list[tuple[torch.Tensor, float]]:
    """Each parameter with its learning rate, in the model's order."""
    rates = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    return [(p, rates[p]) for p in optimizer.all]  # type: ignore[attr-defined]


def flat(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """All gradients as one vector on the CPU; zeros where there is none."""
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).detach().flatten().cpu() for p in parameters])


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().cpu() for p in model.parameters()])


EXERCISE = Contract(
    __file__,
    says="autocast, scale, unscale, clip, step, update in order, and a skipped step advances no schedule",
    parameters=PARAMETERS,
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=possible,
    alike=2e-3,  # in scenes on the CPU, where processors round 16-bit products differently
)

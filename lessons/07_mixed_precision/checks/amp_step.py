"""Checks exercise 07.2, "one step, in the right order": the gradients of the step, skipped steps, and the order."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from gpulab.exercise.audit import MOVED, Kind
from gpulab.exercise.contract import Clause, Contract, Facts, Near
from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import brief

AUTOCAST, MISTAKES = "Autocast decides for each operation", "Common mistakes"
SCALER, ORDER = "Gradients that vanish, and the scaler", "The order: unscale, clip, step, update"
OVERFLOW = "on with a scale that overflows"
FIRST, LAST = (f"on with an inf in the {which} gradient" for which in ("first", "last"))
SCALE, OVERFLOWS = 2.0**10, 2.0**30  # the latter in fp16
GROWTH, BACKOFF, INTERVAL = 1.5, 0.75, 2  # not the defaults: who compares with half the scale is found
CLAUSES = [
    Clause(quote, facts, summary, rule, read)
    for facts, quote, read, summary, rule in (
        (["dtype of the parameters", "device of the parameters"], "the model is on the device of x, in float32",
         MISTAKES, "the model came back in another dtype, or on another device", "leave it as the caller made it"),
        (["autocast in the forward pass", "autocast at the loss"], "for autocast around model and loss", AUTOCAST,
         "model and loss do not run under the autocast that was asked for", "of x's device and of this dtype"),
        (["autocast in backward"], "backward is outside", AUTOCAST, "backward runs under autocast", ""),
        (["forward passes and losses"], "One training step", ORDER, "the model does not run once in a step", ""),
        (["gradient at the step"], "the largest norm that the gradient may have when the optimizer steps", ORDER,
         "the optimizer steps with a wrong gradient, or does not step when it should, or steps when it should not", ""),
        (["gradient at the step, after gradients that were left"],
         "gradients that the caller left in .grad do not count", ORDER,
         "the optimizer steps with a wrong gradient if the caller has left some", ""),
        (["scale after the step"], "a torch.amp.GradScaler for that device", SCALER,
         "the scale has not adapted as it should", "it grows after good steps and falls after an overflow"),
        (["advances of the schedule", "the schedule advances after the step"],
         "a learning-rate schedule that counts updates of the weights", ORDER,
         "the schedule does not advance once after each update of the weights, and only then", ""),
        (["weights after the step"], "model, optimizer", ORDER, "the weights are not those after the optimizer's step",
         "only the optimizer's step, at its own learning rates, may change them"),
        (["what is returned"], "Returns (loss, stepped)", "", "what is returned is not a pair of a float and a bool",
         ""),
        (["the loss returned"], "the loss, not scaled, as a float", SCALER, "the loss that is returned is wrong",
         ""),
        (["stepped, as returned"], "whether the optimizer stepped, a bool", SCALER,
         "whether the optimizer stepped is reported wrongly", ""),
    )
]  # fmt: skip
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
Log = defaultdict[str, list[Any]]  # of one call: what was seen, by where


def possible(scene: Scene) -> bool:
    """bf16 has fp32's range: no scale overflows in it. Old gradients are told best where nothing is clipped."""
    too_small = scene.scaler == OVERFLOW and scene.dtype is not torch.float16
    return not too_small and not (scene.left and scene.max_norm < 1)


def loss_fn(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Not the cross-entropy itself: who passes by the argument is found."""
    return 3.0 * F.cross_entropy(outputs, targets)


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    with virtual_gpu(count=2):
        kind, log = torch.device(scene.device).type, Log(list)
        middle: nn.Module = nn.BatchNorm1d(6) if scene.batch_norm else nn.Tanh()
        model = nn.Sequential(nn.Linear(4, 6), middle, nn.Linear(6, 3)).to(scene.device).train(scene.training)
        model[0].weight.requires_grad_(not scene.frozen)
        parameters = list(model.parameters())
        parts = [parameters[number :: scene.groups] for number in range(scene.groups)]
        optimizer = torch.optim.SGD([{"params": part, "lr": 0.1 * (1 + i)} for i, part in enumerate(parts)])
        scaler = torch.amp.GradScaler(
            kind, OVERFLOWS if scene.scaler == OVERFLOW else SCALE, GROWTH, BACKOFF, INTERVAL, scene.scaler != "off"
        )

        def advances(epoch: int) -> float:
            log["calls"].append("scheduler")
            return 1.0

        def loss(*args: Any, **options: Any) -> torch.Tensor:
            log["losses"].append(autocast(kind))
            return loss_fn(*args, **options)

        def steps(*_: Any) -> None:
            log["calls"].append("step")
            log["gradients"].append(flat([p.grad for p in parameters], parameters))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, [advances, lambda _: 1.0][: scene.groups])
        optimizer.register_step_pre_hook(steps)
        model.register_forward_pre_hook(lambda *_: log["forwards"].append(autocast(kind)))
        parameters[-1].register_hook(lambda _: log["backwards"].append(autocast(kind)))
        if scene.scaler in (FIRST, LAST):
            trained = [p for p in parameters if p.requires_grad]
            trained[0 if scene.scaler == FIRST else -1].register_hook(with_an_inf)
        for number in range(scene.calls):
            facts = one_call(call, scene, (model, optimizer, scaler, schedule, loss), log, number)
            if not facts.hold():
                break
        return facts


def one_call(call: Callable[..., Any], scene: Scene, job: tuple[Any, ...], log: Log, number: int) -> Facts:
    """What one step showed."""
    model, optimizer, scaler, *_ = job
    x, y = torch.randn(12, 4).to(scene.device), torch.randint(0, 3, (12,)).to(scene.device)
    true, value = reference(model, x, y, scene)
    parameters = list(model.parameters())
    for p in parameters:
        p.grad = torch.full_like(p, 7.0) if scene.left and p.requires_grad else None
    log.clear()
    before, scale_before = flat(parameters, parameters), scaler.get_scale()
    returned = call(*job, x, y, scene.dtype, scene.max_norm, may_change=MAY_CHANGE)
    facts = Facts(f"{name_of(scene.dtype)} on {scene.device}, the scaler {scene.scaler}, max_norm = {scene.max_norm:g}")
    facts.add("dtype of the parameters", sorted({name_of(p.dtype) for p in model.parameters()}), ["float32"])
    facts.add("device of the parameters", sorted({str(p.device) for p in model.parameters()}), [scene.device])
    if not facts.hold():
        return facts
    facts.add("autocast in the forward pass", sorted(set(log["forwards"])), [name_of(scene.dtype)])
    facts.add("autocast at the loss", sorted(set(log["losses"])), [name_of(scene.dtype)])
    as_precise = facts.hold()  # as the reference's loss
    facts.add("autocast in backward", sorted(set(log["backwards"])), ["off"])
    facts.add("forward passes and losses", [len(log["forwards"]), len(log["losses"])], [1, 1])
    steps, left = scene.scaler in ("on", "off"), ", after gradients that were left" if scene.left else ""
    stepped, gradient = bool(log["gradients"]), Near(true * min(1.0, scene.max_norm / float(true.norm())))
    at_the_step = log["gradients"][0] if stepped else "no step"
    facts.add(f"gradient at the step{left}", at_the_step, gradient if steps else "no step")
    advances = log["calls"].count("scheduler")
    facts.add("advances of the schedule", advances, int(stepped))
    if advances == stepped == 1:
        facts.add("the schedule advances after the step", log["calls"].index("scheduler") > 0, True)
    grown = BACKOFF if not steps else GROWTH if number + 1 == INTERVAL and scene.scaler == "on" else 1.0
    facts.add("scale after the step", scaler.get_scale(), scale_before * grown)
    rates = {p: torch.full_like(p, group["lr"]) for group in optimizer.param_groups for p in group["params"]}
    moved = before - flat([rates[p] for p in parameters], parameters) * (log["gradients"][0] if stepped else 0)
    facts.add("weights after the step", flat(parameters, parameters), Near(moved, 1e-4))
    pair = returned if isinstance(returned, tuple | list) and len(returned) == 2 else (returned, None)
    is_float, is_bool = isinstance(pair[0], float), isinstance(pair[1], bool | np.bool_)
    # of a tensor no digits, which hang on the processor
    kinds = ["a tensor" if isinstance(one, torch.Tensor) else brief(one, 20) for one in pair]
    kinds = ["float" if is_float else kinds[0], "bool" if is_bool else kinds[1]]
    facts.add("what is returned", kinds, ["float", "bool"])
    if is_float and as_precise:
        facts.add("the loss returned", float(pair[0]), Near(value, 0.01))
    if is_bool:
        facts.add("stepped, as returned", bool(pair[1]), stepped)
    return facts


def with_an_inf(gradient: torch.Tensor) -> torch.Tensor:
    """The gradient with an inf in one of its elements, drawn at random."""
    gradient = gradient.clone(memory_format=torch.contiguous_format)
    gradient.view(-1)[random.randrange(gradient.numel())] = math.inf
    return gradient


def reference(model: nn.Module, x: torch.Tensor, y: torch.Tensor, scene: Scene) -> tuple[torch.Tensor, float]:
    """The true gradient, not clipped, and the loss; fp16 with a scale at which nothing is lost."""
    trained = [p for p in model.parameters() if p.requires_grad]
    with torch.autocast(torch.device(scene.device).type, dtype=scene.dtype):
        loss = loss_fn(model(x), y)
    found = dict(zip(trained, torch.autograd.grad(loss * SCALE, trained), strict=True))
    return flat([found.get(p) for p in model.parameters()], list(model.parameters())) / SCALE, loss.item()


def autocast(kind: str) -> str:
    return name_of(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else "off"


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def flat(tensors: Iterable[torch.Tensor | None], like: list[nn.Parameter]) -> torch.Tensor:
    """All as one vector on the CPU; zeros where there is none."""
    pairs = zip(tensors, like, strict=True)
    return torch.cat([(torch.zeros_like(p) if t is None else t).detach().flatten().cpu() for t, p in pairs])


EXERCISE = Contract(
    __file__,
    says="autocast, scale, unscale, clip, step, update in order, and a skipped step advances no schedule",
    parameters=("model", "optimizer", "scaler", "scheduler", "loss_fn", "x", "y", "dtype", "max_norm"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=possible,
    hides=lambda scene: () if scene.scaler in ("on", "off") else ("max_norm", "left", "groups"),  # no step shows them
    alike=2e-3,  # in scenes on the CPU, where processors round 16-bit products differently
)

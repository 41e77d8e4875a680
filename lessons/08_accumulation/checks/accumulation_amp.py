"""Checks accumulation under autocast with a gradient scaler, clipping and a schedule, once for each window."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from typing import Any

import torch

from gpulab.exercise.audit import MOVED, Kind
from gpulab.exercise.contract import Clause, Contract, Facts
from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.scenes import Scene

from . import common
from .common import FULL, Epoch

SCALE, GROWTH = 8.0, 1.5  # not the defaults
CLIPS = 10.0  # below the norm of every gradient
NAN, INF_IN = "NaN everywhere", "inf in one element of parameter "
ADVANCES, LAST_SCALE = "steps made at each advance of the schedule", "scale after the epoch"
CLAUSES = (
    Clause("one optimizer step for each window", [common.STEPS],
           "the optimizer does not step at the end of each window without an overflow, and only there",
           "the last window holds what is left; scaler.step skips what holds inf or NaN, and nothing else",
           common.LAST_WINDOW),
    *common.promises(
        "as in exercise 1, on the CPU", "Train one epoch in mixed precision",
        "the gradient of the mean loss over its samples", "gradients that the caller left in .grad do not count",
        "only one micro-batch's activations are alive at a time", "model, optimizer"),
    *(Clause(quote, facts, summary, rule, "With mixed precision and clipping") for quote, facts, summary, rule in (
        ("The forward pass and the loss run under autocast on the CPU in bfloat16",
         ["autocast in the forward pass", "autocast at the loss"],
         "model and loss do not run under the autocast that is asked for",
         'torch.autocast("cpu", dtype=torch.bfloat16) around both'),
        ("the largest norm that the gradient of a window may have when the optimizer steps", [common.NORMS],
         "the gradient at the step has another norm than the clipped one",
         "it is the norm of the window's true gradient, not scaled, or max_norm if that is smaller"),
        ("a learning-rate schedule that counts updates of the weights", [ADVANCES],
         "the schedule does not advance once after each update of the weights, and only then",
         "at its first advance one step has been made, at the second two; a skipped step does not count"),
        ("a torch.amp.GradScaler, enabled", [LAST_SCALE], "the scale has not adapted as it should",
         "scaler.update() once for each window, stepped or not: it grows after good ones and falls after an overflow"),
        ("Returns nothing", ["what is returned"], "something is returned",
         "return nothing: the result is the trained weights"))),
)  # fmt: skip
EDGES = {
    "epoch": ((6, 2), (3, 2), (5, 3), (2, 3)),  # micro-batches, and how many make a window
    "overflow": ("none", "first", "last"),  # which window has one
    "holds": (NAN, INF_IN + "1", INF_IN + "2"),  # 1 is in the first group, 2 not the last one
    "backoff": (0.75, 0.5),
    "max_norm": (1e6, CLIPS),
    "growth_interval": (1, 1000),
    "left": (True, False),  # gradients of the caller
}
MAY_CHANGE: dict[str, Iterable[Kind]] = {
    "model": MOVED,  # its place is judged
    "optimizer": {"state", "settings"},  # the schedule sets the learning rate
    "scaler": {"state"},
    "scheduler": {"state"},
}


def overflow(epoch: Epoch, holds: str, bad: int) -> None:
    """Let the gradients of micro-batch `bad` overflow."""

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        if epoch.now != bad:
            return gradient
        if holds == NAN:
            return torch.full_like(gradient, math.nan)
        one = torch.zeros(gradient.numel())
        one[random.randrange(len(one))] = math.inf
        return gradient + one.view_as(gradient)

    for p in epoch.parameters if holds == NAN else [epoch.parameters[int(holds[-1])]]:
        p.register_hook(spoil)


def last_scale(scaler: torch.amp.GradScaler, windows: int, bad: int | None) -> float:
    """What the scaler comes to after so many windows, of which one overflows."""
    p = torch.nn.Parameter(torch.zeros(()))
    for window in range(windows):
        p.grad = scaler.scale(torch.tensor(math.inf if window == bad else 0.0))
        scaler.step(torch.optim.SGD([p]))
        scaler.update()
    return scaler.get_scale()


def hides(scene: Scene) -> tuple[str, ...]:
    if scene.overflow == "none":
        return "holds", "backoff"
    return ("max_norm", "left") if scene.epoch == (2, 3) else ()  # no step is made


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    count, steps = scene.epoch
    windows = common.windows(count, steps)
    bad = {"first": 0, "last": len(windows) - 1}.get(scene.overflow)
    with virtual_gpu():
        epoch = Epoch(common.draw([FULL] * count, torch.float32), "cpu", left=scene.left)
        if bad is not None:
            overflow(epoch, scene.holds, random.choice(windows[bad]))
        scaler, twin = (
            torch.amp.GradScaler("cpu", SCALE, GROWTH, scene.backoff, scene.growth_interval) for _ in range(2)
        )
        advances, losses = list[int](), list[str]()

        def rate(number: int) -> float:
            advances.append(len(epoch.steps))
            return 1.0

        schedule = torch.optim.lr_scheduler.LambdaLR(epoch.optimizer, [rate, lambda number: 1.0])
        advances.clear()

        def loss_fn(*args: Any, **options: Any) -> torch.Tensor:
            losses.append(common.autocast())
            return common.loss_fn(*args, **options)

        job = epoch.model, epoch.optimizer, scaler, schedule, loss_fn, epoch.handed, steps, scene.max_norm
        got = call(*job, may_change=MAY_CHANGE, inside=epoch.saved)
        epoch.end()
    happens = "" if bad is None else f", an overflow in window {bad + 1}: {scene.holds}"
    facts = Facts(f"{count} micro-batches, steps = {steps}, max_norm = {scene.max_norm:g}{happens}")
    if not epoch.compare_place(facts):
        return facts
    facts.add("autocast in the forward pass", sorted(set(epoch.forwards)), ["bfloat16"])
    facts.add("autocast at the loss", sorted(set(losses)), ["bfloat16"])
    as_precise = facts.hold()
    facts.seen["the scaler is used"] = scaler._scale is not None
    stepped = epoch.compare_steps(facts, [window for i, window in enumerate(windows) if i != bad])
    if facts.seen[common.STEPS] == facts.wanted[common.STEPS]:
        facts.add(LAST_SCALE, scaler.get_scale(), last_scale(twin, len(windows), bad))
    else:
        facts.seen["scale after other steps"] = scaler.get_scale()
    if not stepped:
        return facts
    facts.add(ADVANCES, advances, [*range(1, len(stepped) + 1)])
    facts.add("what is returned", common.kind(got), "nothing")
    _, columns, allowed = epoch.reference(casts=True)
    if as_precise:
        epoch.compare_gradients(facts, stepped, columns, 0.03, CLIPS if scene.max_norm == CLIPS else math.inf)
    epoch.compare_memory(facts, allowed)
    if not facts.seen.get(common.NAN):
        epoch.compare_weights(facts)
    return facts


EXERCISE = Contract(
    __file__,
    says="unscale, clip, step, update once per window; forward under autocast; a skipped step does not advance the "
         "schedule",
    parameters=("model", "optimizer", "scaler", "scheduler", "loss_fn", "micro_batches", "steps", "max_norm"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=lambda scene: scene.epoch != (2, 3) or scene.overflow in ("none", "first"),
    hides=hides,
    errors=common.ERRORS,
    alike=0.02,  # processors round 16-bit products differently
)

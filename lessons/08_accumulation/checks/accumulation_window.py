"""Checks an accumulation loop: uneven windows, gradients left by the caller, the mean loss that it reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from gpulab.exercise.audit import MOVED, Kind
from gpulab.exercise.contract import Clause, Contract, Facts, Near
from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.scenes import Scene

from . import common
from .common import FULL, LAST_WINDOW

MEAN_OF_MEANS = "Mean of means"
KIND, LOSS = "what is returned", "the mean loss returned"
CLAUSES = (
    Clause(
        "one optimizer step for each window of `steps` micro-batches",
        [common.STEPS],
        "the optimizer does not step at the end of each window, and only there",
        "the last window of the epoch holds what is left, and ends with the last micro-batch",
        LAST_WINDOW,
    ),
    *common.promises(
        "it stays on its device, in its dtype",
        "an nn.Module in training mode",
        "the gradient of the mean loss over all samples of its window",
        "Gradients that the caller left in .grad do not count",
        "Only one micro-batch's activations are alive at a time",
        "a torch optimizer over its parameters",
    ),
    Clause("the epoch, a float", [KIND], "what is returned is not a float", read=MEAN_OF_MEANS),
    Clause(
        "Returns the mean loss over all samples of the epoch", [LOSS],
        "the loss that is returned is not the mean over all samples of the epoch",
        "each sample counts once, with the loss that its forward pass gave in training", MEAN_OF_MEANS,
    ),
)  # fmt: skip
EDGES = {
    "epoch": ((6, 3), (7, 3), (5, 3), (2, 1), (2, 8), (1, 4)),  # micro-batches, and how many make a window
    "last": (FULL, 1),  # its samples
    "dtype": (torch.float64, torch.float32),
    "device": ("cuda:1", "cpu"),  # cuda:0 is where an answer that never asks goes
    "left": (True, False),  # gradients of the caller
}
MAY_CHANGE: dict[str, Iterable[Kind]] = {"model": MOVED, "optimizer": {"state"}}  # its place is judged


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    count, steps = scene.epoch
    with virtual_gpu(count=2):
        batches = common.draw([FULL] * (count - 1) + [scene.last], scene.dtype)
        epoch = common.Epoch(batches, scene.device, left=scene.left)
        job = epoch.model, epoch.optimizer, common.loss_fn, epoch.handed, steps
        got = call(*job, may_change=MAY_CHANGE, inside=epoch.saved)
        epoch.end()
    dtype, last = str(scene.dtype).removeprefix("torch."), f"the last of {scene.last}" * (scene.last < FULL)
    facts = Facts(f"{count} micro-batches, {last and last + ', '}steps = {steps}, {dtype} on {scene.device}")
    if not epoch.compare_place(facts):
        return facts
    windows = epoch.compare_steps(facts, common.windows(count, steps))
    if not windows:
        return facts
    losses, columns, allowed = epoch.reference()
    epoch.compare_gradients(facts, windows, columns, 1e-4)
    right = facts.hold()
    epoch.compare_memory(facts, allowed)
    if not facts.seen[common.NAN]:
        epoch.compare_weights(facts)
    facts.add(KIND, "float" if isinstance(got, float) else common.kind(got), "float")
    if right and isinstance(got, float):
        samples = [len(x) for x, _ in batches]
        mean = sum(loss * n for loss, n in zip(losses, samples, strict=True)) / sum(samples)
        facts.add(LOSS, got, Near(mean, 1e-5 if scene.dtype == torch.float32 else 1e-9))
    return facts


EXERCISE = Contract(
    __file__,
    says="every window steps with the gradient of the mean over its own samples, one micro-batch at a time",
    parameters=("model", "optimizer", "loss_fn", "micro_batches", "steps"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    hides=lambda scene: ("last",) if scene.epoch[0] == 1 else (),
    errors=common.ERRORS,
)

"""The check of the mean loss over all ranks: real ranks with unequal numbers of samples, some with none."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ..audit import ANYTHING
from ..contract import Clause, Contract, Facts, Near, holds
from ..scenes import Scene
from ..wording import as_float, show
from .common import MACHINES, group, others_used, spread
from .sections import MISTAKES

MEAN, NOTHING = "the mean", "the mean of no samples"
SOME = "the mean is a number where a rank has no sample"
DIVERGED = "the mean where a rank has diverged"
OTHERS = "other ranks' GPUs on which something lay"
BFLOAT16 = "the mean of losses in bfloat16, to 1e-6"
CLAUSES = [
    Clause(sentence, facts, summary, likely, MISTAKES)
    for sentence, facts, summary, likely in (
        (
            "The process group stays open",
            ["the process group"],
            "the process group is closed",
            "it is the script's, which goes on to train with it",
        ),
        (
            "Nothing is put on another rank's GPU",
            [OTHERS],
            "a rank uses the GPU of another",
            "NCCL refuses two ranks on one GPU: what travels belongs on loss.device",
        ),
        (
            "loss is as it was: backward() comes next",
            ["loss afterwards", "the gradient of loss.backward() afterwards"],
            "backward() after the call does not give the gradient of this rank's loss",
            "an operation in place on loss itself, or on what shares its memory: detach() does",
        ),
        (
            "A rank without a sample adds nothing",
            [SOME],
            "where a rank has no sample the mean is no number",
            "its loss is NaN, and so is 0 · NaN; but it must call what the others call",
        ),
        (
            "if no rank has one, the mean is NaN",
            [NOTHING],
            "where no rank has a sample the mean is not NaN",
            "0/0 of two tensors is NaN, of two numbers of Python an exception; a 0 would look like a perfect step",
        ),
        (
            "its NaN stays",
            [DIVERGED],
            "where a rank has diverged the mean is a number",
            "0 samples are one case, a NaN of some samples is another: ask for count, not for NaN",
        ),
        (
            "The sums are exact to 1e-6, also in bfloat16",
            [BFLOAT16],
            "in bfloat16 the mean is another one",
            "a product or a sum in bfloat16 keeps 8 bits",
        ),
        (
            "The mean loss over the samples of all ranks",
            [MEAN],
            "the mean is not that over the samples of all ranks",
            "take two ranks, 100 samples of mean 1 and 20 of mean 7: it is 2",
        ),
        ("a float", ["kind of what is returned"], "what is returned is no float", "item() makes one of a tensor"),
        (
            "the same on every rank",
            ["the ranks' means are equal"],
            "the ranks return different means",
            "a reduce brings the result to one rank, an all-reduce to all",
        ),
    )
]
EDGES = {
    "ranks": (2, 3),
    "empty": ("", "some", "all", "diverged"),
    "dtype": (torch.float32, torch.bfloat16),
    "machines": MACHINES,
}


def possible(scene: Scene) -> bool:
    """Those in which a mistake breaks one sentence alone."""
    return scene.dtype is torch.float32 or not scene.empty


def on_rank(student: Callable[..., Any], machines: str, mean: float, count: int, dtype: torch.dtype) -> dict[str, Any]:
    """What the call does here; `mean` is of `count` samples, and the weight's gradient is 3."""
    spread(machines)
    with group() as device:
        weight = torch.zeros((), dtype=dtype, device=device, requires_grad=True)
        loss = 3 * weight + torch.tensor(mean, dtype=dtype, device=device)
        before = loss.item()
        got = student(loss, count)
        opened = dist.is_initialized()
        after = loss.item()
        if loss.requires_grad:
            loss.backward()
        return {
            "kind": type(got).__name__ if isinstance(got, float) else show(got, 60),
            "got": as_float(got)
            if isinstance(got, float | int) or (torch.is_tensor(got) and got.numel() == 1)
            else None,
            "open": opened,
            "others": others_used(),
            "loss": (before, after),
            "gradient": float("nan") if weight.grad is None else weight.grad.item(),
        }


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    counts = random.sample(range(2, 200), scene.ranks)
    if scene.dtype is torch.float32:
        counts[random.randrange(scene.ranks)] = 1
    diverged = scene.empty == "diverged"
    if scene.empty and not diverged:
        empty = range(scene.ranks) if scene.empty == "all" else [random.randrange(scene.ranks)]
        counts = [0 if rank in empty else count for rank, count in enumerate(counts)]
    means = random.sample([x / 8 for x in range(8, 64)], scene.ranks)  # bfloat16 holds them
    means = [mean if count else math.nan for mean, count in zip(means, counts, strict=True)]
    if diverged:
        means[random.randrange(scene.ranks)] = math.nan
    found = call(
        on_rank, *[(scene.machines, mean, count, scene.dtype) for mean, count in zip(means, counts, strict=True)]
    )

    wanted = sum(m * n for m, n in zip(means, counts, strict=True) if n) / sum(counts) if sum(counts) else math.nan
    facts = Facts(f"means {', '.join(map(str, means))} of {', '.join(map(str, counts))} samples")
    facts.add("the process group", ["open" if told["open"] else "closed" for told in found], ["open"] * len(found))
    facts.add(OTHERS, sum(len(told["others"]) for told in found), 0)
    before, after = ([told["loss"][i] for told in found] for i in (0, 1))
    facts.add("loss afterwards", [*map(str, after)], [*map(str, before)])
    facts.add("the gradient of loss.backward() afterwards", [told["gradient"] for told in found], [3.0] * len(found))
    facts.add("kind of what is returned", [told["kind"] for told in found], ["float"] * len(found))
    got = [told["got"] for told in found]
    number = isinstance(got[0], float) and math.isfinite(got[0])
    if scene.empty == "all":
        facts.add(NOTHING, got, [wanted] * len(found))
    elif diverged:
        facts.add(DIVERGED, number, False)
    elif scene.empty:
        facts.add(SOME, number, True)
    if number and scene.empty not in ("all", "diverged"):
        facts.add(MEAN, got[0], Near(wanted, 1e-6 if scene.dtype is torch.float32 else 0.03))
        if scene.dtype is torch.bfloat16 and holds(facts, MEAN):
            facts.add(BFLOAT16, got[0], Near(wanted, 1e-6))
    facts.add("the ranks' means are equal", len({str(value) for value in got}) == 1, True)
    return facts


EXERCISE = Contract(
    __file__,
    says="the mean is that over the samples of all ranks, on each of them, and the loss is untouched",
    parameters=("loss", "count"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=possible,
    ranks=3,
    may_change={"loss": ANYTHING},  # which is judged
)

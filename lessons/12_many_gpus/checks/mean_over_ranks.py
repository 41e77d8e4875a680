"""Checks exercise 12.2, "one loss for all ranks": real ranks with unequal numbers of samples, some with none."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from gpulab.exercise.audit import ANYTHING
from gpulab.exercise.contract import Clause, Contract, Facts, Near, holds
from gpulab.exercise.groups import MACHINES, floats_of, group, others_used, spread
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import brief

GROUP, OTHERS, KIND = "the process group", "other ranks' GPUs on which something lay", "kind of what is returned"
LOSS, GRADIENT = "loss afterwards", "the gradient of loss.backward() afterwards"
MEAN, BFLOAT16 = "the mean", "the mean of losses in bfloat16, to 1e-6"
SOME, NOTHING = "the mean is a number where a rank has no sample", "the mean of no samples"
DIVERGED, SAME = "the mean is a number where a rank has diverged", "the ranks' means are equal"
CLAUSES = [
    Clause(quote, facts, summary, rule, "Common mistakes")
    for facts, quote, summary, rule in (
        ([GROUP], "The process group stays open", "the process group is closed",
         "it belongs to the script, which continues training with it"),
        ([OTHERS], "Nothing is put on another rank's GPU", "a rank uses the GPU of another",
         "NCCL refuses two ranks on one GPU: put what you send on loss.device"),
        ([LOSS, GRADIENT], "loss is not changed: backward() comes next",
         "backward() after the call does not give the gradient of this rank's loss",
         "an in-place operation on loss, or on a tensor that shares its memory, changes it: detach() shares memory"),
        ([SOME], "A rank without a sample adds nothing", "if a rank has no sample the mean is NaN",
         "its loss is NaN, and so is 0 · NaN; yet it must call the same collectives as the others"),
        ([NOTHING], "if no rank has one, the mean is NaN", "if no rank has a sample the mean is not NaN",
         "0/0 is NaN for tensors, an exception for Python numbers; a 0 would look like a perfect step"),
        ([DIVERGED], "its NaN stays", "if a rank has diverged the mean is not NaN",
         "no samples and a NaN loss of some samples are different cases: test count, not NaN"),
        ([BFLOAT16], "The sums are exact to 1e-6, even in bfloat16", "in bfloat16 the mean is wrong",
         "a product or a sum in bfloat16 keeps only 8 bits"),
        ([MEAN], "The mean loss over the samples of all ranks", "the mean is not that over the samples of all ranks",
         "take two ranks, 100 samples of mean 1 and 20 of mean 7: it is 2"),
        ([KIND], "a float", "what is returned is not a float", "item() turns a tensor into a float"),
        ([SAME], "the same on every rank", "the ranks return different means",
         "a reduce leaves the result on one rank, an all-reduce on all"),
    )
]  # fmt: skip
EDGES = {
    "ranks": (2, 3),
    "empty": ("", "some", "all", "diverged"),
    "dtype": (torch.float32, torch.bfloat16),
    "machines": MACHINES,
}


def on_rank(student: Callable[..., Any], machines: str, mean: float, count: int, dtype: torch.dtype) -> dict[str, Any]:
    """What the call does here; `mean` is of `count` samples, and the weight's gradient is 3."""
    spread(machines)
    with group() as device:
        weight = torch.zeros((), dtype=dtype, device=device, requires_grad=True)
        loss = 3 * weight + torch.tensor(mean, dtype=dtype, device=device)
        before = str(loss.item())
        got = student(loss, count)
        opened, after = dist.is_initialized(), str(loss.item())
        if loss.requires_grad:
            loss.backward()
        return {
            GROUP: "open" if opened else "closed",
            OTHERS: len(others_used()),
            LOSS: (before, after),
            GRADIENT: math.nan if weight.grad is None else weight.grad.item(),
            KIND: "float" if isinstance(got, float) else brief(got, 60),
            MEAN: next(iter(floats_of(got) or []), None),
        }


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    ranks, full = scene.ranks, scene.dtype is torch.float32
    counts = random.sample(range(2, 200), ranks)
    if full:
        counts[random.randrange(ranks)] = 1
    if scene.empty in ("some", "all"):
        empty = range(ranks) if scene.empty == "all" else [random.randrange(ranks)]
        counts = [0 if rank in empty else count for rank, count in enumerate(counts)]
    unit = 2**12 + 1 if full else 2**12  # float32 holds the means, 16 bits do not; bfloat16 those that are eighths
    means = [unit * x / 2**15 for x in random.sample([*range(-63, -7), *range(8, 64)], ranks)]
    means = [mean if count else math.nan for mean, count in zip(means, counts, strict=True)]
    if scene.empty == "diverged":
        means[random.randrange(ranks)] = math.nan
    pairs = [*zip(means, counts, strict=True)]
    found = call(on_rank, *[(scene.machines, mean, count, scene.dtype) for mean, count in pairs])

    facts = Facts(f"means {', '.join(map(str, means))} of {', '.join(map(str, counts))} samples")
    all_of = {name: [told[name] for told in found] for name in found[0]}
    facts.add(GROUP, all_of[GROUP], ["open"] * ranks)
    facts.add(OTHERS, sum(all_of[OTHERS]), 0)
    facts.add(LOSS, [after for _, after in all_of[LOSS]], [before for before, _ in all_of[LOSS]])
    facts.add(GRADIENT, all_of[GRADIENT], [3.0] * ranks)
    facts.add(KIND, all_of[KIND], ["float"] * ranks)
    got = all_of[MEAN][0]
    number = got is not None and math.isfinite(got)
    if scene.empty == "all":
        facts.add(NOTHING, all_of[MEAN], [math.nan] * ranks)
    elif scene.empty == "diverged":
        facts.add(DIVERGED, number, False)
    elif scene.empty:
        facts.add(SOME, number, True)
    if number and scene.empty in ("", "some"):
        wanted = sum(mean * count for mean, count in pairs if count) / sum(counts)
        scale = sum(abs(mean) * count for mean, count in pairs if count) / sum(counts) / abs(wanted)
        facts.add(MEAN, got, Near(wanted, (1e-6 if full else 0.03) * scale))
        if not full and holds(facts, MEAN):
            facts.add(BFLOAT16, got, Near(wanted, 1e-6 * scale))
    facts.add(SAME, len({str(value) for value in all_of[MEAN]}) == 1, True)
    return facts


EXERCISE = Contract(
    __file__,
    says="the mean is that over the samples of all ranks, on each of them, and the loss is untouched",
    parameters=("loss", "count"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=lambda scene: scene.dtype is torch.float32 or not scene.empty,  # so that a mistake breaks one clause alone
    ranks=3,
    may_change={"loss": ANYTHING},  # which is judged
)

"""The check of a token-weighted loss: padding of different length, a micro-batch and a window without a label."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..base import Trial, check
from ..measure import SavedBytes
from ..wording import is_whole, show
from .common import Batch, Loop, explain, flat_gradient, judge, judge_place, one_at_a_time, replica, rows_seen
from .misconceptions import TOKEN, TOKENS

IGNORE = -100
CLASSES = 11


def language_model() -> nn.Module:
    return nn.Sequential(nn.Embedding(CLASSES, 8), nn.Linear(8, CLASSES)).double()


def draw(shapes: list[tuple[int, int]], lengths: list[list[int]]) -> list[Batch]:
    """Token ids and labels of these shapes; each sequence has labels up to its length, IGNORE after it. The first
    label of a micro-batch is class 0, and no other, so that who takes 0 for padding is found."""
    batches = []
    for (rows, columns), real in zip(shapes, lengths, strict=True):
        labels = torch.randint(1, CLASSES, (rows, columns))
        labels[0, 0] = 0
        for row, length in enumerate(real):
            labels[row, length:] = IGNORE
        batches.append((torch.randint(0, CLASSES, (rows, columns)), labels))
    return batches


def count(batches: list[Batch]) -> list[int]:
    """The labelled tokens of each micro-batch."""
    return [int((labels != IGNORE).sum()) for _, labels in batches]


def window(
    model: nn.Module,
    batches: list[Batch],
    *,
    divide: str = "tokens",
    labels: str = "ignored",
    logits: str = "given",
    zero: str = "window",
) -> Iterator[torch.Tensor]:
    """The one gradient of a window's loss, summed over tokens and divided.

    divide  tokens: by all labelled tokens · micro: mean of each micro-batch's mean · means: their sum
            · positions: by all positions, padding too · so_far: by the tokens up to here · rows: by sequences
            · batches: by micro-batches · sum: not at all · shape: the mean of each micro-batch weighted by its
            positions · above_0: by the labels above 0 · shifted: by the labels but the first of each sequence
    labels  ignored where they are -100 · padded: these taken for class 0 · shifted: each position's logits with the
            label of the next
    logits  given · softmax: turned into probabilities first
    zero    window: before it, by the caller · micro: before each micro-batch
    """
    model = replica(model)
    here, so_far = count(batches), list(accumulate(count(batches)))
    for i, (x, y) in enumerate(batches):
        if zero == "micro":
            model.zero_grad()
        out, target = model(x), y.clamp_min(0) if labels == "padded" else y
        if logits == "softmax":
            out = out.softmax(-1)
        if labels == "shifted":
            out, target = out[:, :-1], target[:, 1:]
        loss = F.cross_entropy(out.flatten(0, 1), target.flatten(), ignore_index=IGNORE, reduction="sum")
        share = {
            "tokens": sum(here),
            "micro": here[i] * len(batches),
            "means": here[i],
            "positions": sum(b.numel() for _, b in batches),
            "so_far": so_far[i],
            "rows": sum(len(a) for a, _ in batches),
            "batches": len(batches),
            "sum": 1,
            "shape": here[i] * sum(b.numel() for _, b in batches) / y.numel(),
            "shifted": sum(count([(a, b[:, 1:]) for a, b in batches])),
            "above_0": sum(int((b > 0).sum()) for _, b in batches),
        }[divide]
        (loss / max(share, 1)).backward()
    yield flat_gradient(model.parameters())


@dataclass(frozen=True)
class Case:
    """One window, with what it must come to: reckoned before any of the student's code runs."""

    model: nn.Module
    batches: list[Batch]
    loop: Loop
    want: list[torch.Tensor]
    tokens: int
    allowed: int


def prepare(shapes: list[tuple[int, int]], lengths: list[list[int]]) -> Case:
    model, batches = language_model(), draw(shapes, lengths)
    loop = partial(window, replica(model), batches)
    x, y = max(batches, key=lambda batch: batch[0].numel())
    with SavedBytes(model.parameters()) as single:
        F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
    return Case(model, batches, loop, list(loop()), sum(count(batches)), single.peak)


@check(
    lesson=8,
    says="every labelled token of the window counts once, padding never, and all-padding gives no NaN",
)
def token_weighting(student: Any, trial: Trial) -> None:
    """Check a function of (model, micro_batches), pairs of token ids and labels (rows, columns): it leaves in .grad
    the gradient of the mean loss over all labels of the window that are not -100, and returns their number."""
    trial.function(student, ("model", "micro_batches"))
    cases = [
        prepare([(2, 7), (2, 3), (1, 9)], [[7, 2], [1, 3], [4]]),
        prepare([(2, 5), (2, 4)], [[5, 3], [0, 0]]),
        prepare([(2, 4)], [[0, 0]]),
    ]
    for case in cases:
        seen, saved = rows_seen(case.model), SavedBytes(case.model.parameters())
        returned = trial.call(
            student,
            *(case.model, case.batches),
            may_change={"model": {"grad", "place"}},
            inside=saved,
            explain=_explain,
        )
        judge_place(trial, case.model, case.want[0].dtype)
        _judge_gradient(trial, case)
        one_at_a_time(trial, saved, seen, max(len(x) for x, _ in case.batches), case.allowed)
        _judge_count(trial, returned, case)


def _judge_gradient(trial: Trial, case: Case) -> None:
    got = flat_gradient(case.model.parameters())
    trial.expect(
        bool(torch.isfinite(got).all()),
        "the gradient is NaN",
        expected="finite numbers, also when a micro-batch holds nothing but padding",
        got=f"NaN or inf in {int((~torch.isfinite(got)).sum())} of {got.numel()} elements",
        likely="the mean over no tokens is 0/0. Sum the loss and divide by the tokens of the window, or skip what "
        "has none",
        read=TOKENS,
    )
    if not case.tokens:
        trial.expect(
            not bool(got.any()),
            "a window of nothing but padding leaves a gradient",
            expected="no gradient, or zeros: there is nothing to learn from",
            got=f"a gradient of norm {float(got.norm()):.3g}",
            read=TOKENS,
        )
        return
    trial.expect(
        any(p.grad is not None for p in case.model.parameters()),
        "there is no gradient in .grad",
        expected=f"a gradient of norm {float(case.want[0].norm()):.4g}",
        got="None for every parameter",
        likely="backward did not run, or the gradients were cleared after it",
        read=TOKENS,
    )
    inputs = f"{len(case.batches)} micro-batches with {case.tokens} labelled tokens"
    judge(trial, [got], case.want, case.loop, TOKEN, 1e-6, inputs)


def _judge_count(trial: Trial, got: Any, case: Case) -> None:
    positions = sum(labels.numel() for _, labels in case.batches)
    likely = ""
    if got is None:
        likely = "the function ends without a return"
    elif isinstance(got, torch.Tensor):
        likely = "a sum of a tensor is a tensor, which lives on its device: call .item()"
    elif is_whole(got) and got == positions:
        likely = "labels.numel() counts every position of the padded rectangle, padding too"
    elif is_whole(got) and got == max(case.tokens, 1):
        likely = "a number that is kept from 0 for the division is not the count: return the count itself"
    trial.expect(
        is_whole(got) and got == case.tokens,
        "the number of tokens is not what was returned",
        expected=f"{case.tokens}, as an int: labels that are not -100",
        got=show(got),
        likely=likely,
        read=TOKENS,
    )


def _explain(error: str) -> str:
    if error.startswith("ZeroDivisionError"):
        return "the window may hold no labelled token at all: leave no gradient then"
    if "Expected target size" in error:
        return (
            "F.cross_entropy wants the classes in dimension 1. Flatten logits of (B, T, classes) to (B·T, classes) and "
            "labels of (B, T) to (B·T,)"
        )
    if "Target -100 is out of bounds" in error:
        return "padding is labelled -100, which is the default of ignore_index: another value there makes it a class"
    return explain(error)

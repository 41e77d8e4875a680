"""The check of an accumulation loop: uneven windows, gradients left by the caller, the mean loss it reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ...virtual.gpu import without_gpu
from ..audit import TRAINED, Kind
from ..base import Trial, check
from ..measure import SavedBytes
from ..wording import show
from .common import (
    Backward,
    Batch,
    Loop,
    Passes,
    Recorder,
    explain,
    judge,
    judge_mode,
    judge_place,
    judge_weights,
    one_at_a_time,
    replica,
)
from .misconceptions import BATCH_NORM, FOUR_PIECES, MEAN_OF_MEANS, WINDOW

# Not the plain one: who calls F.cross_entropy instead of the argument gets other gradients.
loss_fn = partial(F.cross_entropy, label_smoothing=0.2)


def steep(outputs: torch.Tensor, targets: torch.Tensor, **options: Any) -> torch.Tensor:
    """The same a thousand times, so that who clips the gradient clips this one."""
    return 1000 * loss_fn(outputs, targets, **options)


def classifier(dtype: torch.dtype = torch.float64) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)


def clear(parameters: list[nn.Parameter]) -> None:
    for p in parameters:
        p.grad = None


def draw(sizes: list[int], dtype: torch.dtype = torch.float64) -> list[Batch]:
    """Micro-batches of these sizes. Their inputs lie around different points, as sorted data do."""
    return [(torch.randn(n, 6, dtype=dtype) + torch.randn(6, dtype=dtype), torch.randint(0, 3, (n,))) for n in sizes]


def epoch(
    backward: Backward,
    batches: list[Batch],
    steps: int,
    losses: list[tuple[float, int]] | None = None,
    *,
    weight: str = "samples",
    boundary: str = "end",
    zero: str = "window",
    loss: str = "given",
    given: Any = loss_fn,
) -> Iterator[torch.Tensor]:
    """The gradients that one epoch of accumulation steps with, one by one. `losses` takes each micro-batch's
    loss and size.

    weight    samples: mean over the window's samples · micro: mean of its means · steps: sum of means / steps
              · sum: sum of means · all: sum of means / number of micro-batches · again: .grad / micro-batches of
              the window, after each of them
    boundary  end · start: a step when i % steps == 0 · after: the same, but not for 0 · no_tail: full windows
              only · no_single: a last window of one micro-batch makes no step · merge: it goes into the window before
              · extra: full windows, and one more step after the loop · once: at the end · every: each micro-batch
              · inside: the same, cleared only after each window
    zero      window: before each · late: only after a step · micro: before each micro-batch · never
              · before: between backward and step · group: in the first group only
    loss      given · own: plain cross-entropy
    """
    parameters = backward.parameters()
    optimizer = Recorder(parameters)
    alone = len(batches) % steps == 1 and 1 < steps < len(batches)  # in the last window
    if zero == "window":
        optimizer.zero_grad()
    if zero == "group":
        clear(optimizer.param_groups[0]["params"])
    for i, (x, y) in enumerate(batches):
        if zero == "micro":
            optimizer.zero_grad()
        window = batches[i - i % steps : i - i % steps + steps] if boundary != "every" else batches[i : i + 1]
        if boundary == "merge" and alone and i >= len(batches) - 1 - steps:
            window = batches[-1 - steps :]
        share = {
            "samples": len(x) / sum(len(a) for a, _ in window),
            "micro": 1 / len(window),
            "steps": 1 / steps,
            "sum": 1.0,
            "all": 1 / len(batches),
            "again": 1.0,
        }[weight]

        def both(model: nn.Module, x: Any = x, y: Any = y, share: float = share) -> tuple[torch.Tensor, torch.Tensor]:
            mean = (given if loss == "given" else F.cross_entropy)(model(x), y)
            return mean, mean * share

        mean = backward.run(parameters, (i, share, loss), both)
        if losses is not None:
            losses.append((mean, len(x)))
        if weight == "again":
            for p in parameters:
                p.grad = None if p.grad is None else p.grad / len(window)
        last, full, first = i == len(batches) - 1, (i + 1) % steps == 0, i % steps == 0
        steps_now = {
            "end": full or last,
            "start": first,
            "after": first and i > 0,
            "no_tail": full,
            "no_single": full or (last and not alone),
            "merge": last or (full and not (alone and i == len(batches) - 2)),
            "extra": full,
            "every": True,
            "inside": True,
            "once": last,
        }[boundary]
        for _ in range(steps_now + (last and boundary == "extra")):
            if zero == "before":
                optimizer.zero_grad()
            optimizer.step()
            yield optimizer.gradients[-1]
            if zero in ("window", "late") and (full or boundary != "inside"):
                optimizer.zero_grad()
            if zero == "group":
                clear(optimizer.param_groups[0]["params"])


@dataclass(frozen=True)
class Case:
    """One epoch to run, with what it must come to: reckoned before any of the student's code runs."""

    model: nn.Module
    batches: list[Batch]
    steps: int
    loss_fn: Any
    loop: Loop
    want: list[torch.Tensor]
    losses: list[tuple[float, int]]
    afterwards: float  # the mean loss of the trained model
    start: torch.Tensor
    allowed: int


@without_gpu()
def prepare(sizes: list[int], steps: int, loss_fn: Any) -> Case:
    model, batches = classifier(), draw(sizes)
    for p in model.parameters():
        p.grad = torch.randn_like(p)  # left by the caller; must not count
    losses: list[tuple[float, int]] = []
    loop = partial(epoch, Backward(model), batches, steps, given=loss_fn)
    with SavedBytes(model.parameters()) as single:
        loss_fn(model(batches[0][0]), batches[0][1])
    start, want, trained = (
        nn.utils.parameters_to_vector(model.parameters()).detach(),
        list(loop(losses)),
        replica(model),
    )
    with torch.no_grad():
        nn.utils.vector_to_parameters(start - 0.1 * torch.stack(want).sum(0), trained.parameters())
        afterwards = _mean([(loss_fn(trained(x), y).item(), len(x)) for x, y in batches])
    return Case(model, batches, steps, loss_fn, loop, want, losses, afterwards, start, single.peak)


# Sizes of the micro-batches, how many make a window, and the loss.
SCENES = (
    ([4] * 9 + [1], 4, loss_fn),
    ([4] * 8, 4, loss_fn),
    ([3, 3, 2], 8, loss_fn),
    ([5, 5], 1, loss_fn),
    ([3, 2], 2, steep),
    ([4] * 4 + [2], 4, loss_fn),
)

MAY_CHANGE: dict[str, set[Kind]] = {
    "model": {*TRAINED, "mode", "place"},  # mode and place are judged below
    "optimizer": {"state", "settings"},  # as the weights tell
}


@check(
    lesson=8,
    says="every window steps with the gradient of the mean over its own samples, one micro-batch at a time",
)
def accumulation_window(student: Any, trial: Trial) -> None:
    """Check a function of (model, optimizer, loss_fn, micro_batches, steps): one epoch, one optimizer step for
    every `steps` micro-batches and for the rest, each with the gradient of the mean loss over the window's
    samples; it returns the mean loss over all samples of the epoch, as a float."""
    trial.function(student, ("model", "optimizer", "loss_fn", "micro_batches", "steps"))
    for case in [prepare(*scene) for scene in SCENES]:
        model, batches, steps = case.model, case.batches, case.steps
        passes, optimizer, saved = Passes(model), Recorder(model), SavedBytes(model.parameters())
        mean_loss = trial.call(
            student,
            *(model, optimizer, case.loss_fn, batches, steps),
            may_change=MAY_CHANGE,
            explain=explain,
            inside=saved,
        )
        last, inputs = (len(batches) - 1) % steps + 1, f"{len(batches)} micro-batches and steps = {steps}"
        judge_place(trial, model, case.start.dtype)
        judge_weights(trial, model, optimizer, case.start, within=1e-9)
        judge(trial, optimizer.gradients, case.want, case.loop, WINDOW, 1e-6, inputs, last=last, steps=steps)
        one_at_a_time(trial, saved, passes, max(len(x) for x, _ in batches), case.allowed)
        trial.expect(
            model.training,
            "the model came back in evaluation mode",
            expected="training mode, as it was",
            got="model.training is False",
            likely="eval() was called and train() was not: a loop that trains has no need of either",
            read=BATCH_NORM,
        )
        judge_mode(trial, passes)
        trial.expect(
            set(passes.autocast) <= {None},
            "the forward pass runs under autocast",
            expected="the model in its own dtype",
            got=f"autocast to {next((str(dtype) for dtype in passes.autocast if dtype), '')}",
            likely="autocast rounds the weights of a model in float32 to 16 bits, and the gradient is that of rounded "
            "ones. Nobody asks for it here: exercise 3 does",
            read=FOUR_PIECES,
        )
        _judge_mean_loss(trial, mean_loss, case)


def _judge_mean_loss(trial: Trial, got: Any, case: Case) -> None:
    losses, steps = case.losses, case.steps
    want = _mean(losses)
    rows = {"expected": f"a float: {want:.6f}", "got": show(got)}
    if isinstance(got, torch.Tensor):
        trial.fail(
            "the mean loss came back as a tensor",
            likely="call .item() on what you report: a tensor holds memory on its device"
            + (", and this one the graphs behind it too" if got.requires_grad else ""),
            read=MEAN_OF_MEANS,
            **rows,
        )
    trial.expect(
        got is not None,
        "the mean loss of the epoch is not returned",
        likely="the function ends without a return",
        read=MEAN_OF_MEANS,
        **rows,
    )
    trial.expect(
        isinstance(got, float),
        "what came back is not the mean loss of the epoch",
        likely="float() makes it one" if hasattr(type(got), "__float__") else "another thing, or several, are returned",
        read=MEAN_OF_MEANS,
        **rows,
    )
    plain, windows = [loss for loss, _ in losses], [losses[i : i + steps] for i in range(0, len(losses), steps)]
    known = {
        sum(plain) / len(plain): "this is the mean of the micro-batches' means, which counts a small one like the "
        "others: weight each loss by its samples",
        sum(map(_mean, windows)) / len(windows): "this is the mean of the windows' means, which counts a short "
        "window like the others: divide the sum over all samples by their number",
        sum(map(_mean, windows)): "this is the sum of the windows' means: what was divided for backward was added "
        "up for the report",
        sum(plain): "this is the sum of the losses, not divided",
        sum(loss * n for loss, n in losses) / len(plain): "the sum over the samples is divided by the number of "
        "micro-batches: divide by the number of samples",
        plain[-1]: "this is the loss of the last micro-batch alone",
        _mean(windows[-1]): "this is the mean of the last window alone",
        case.afterwards: "this is the loss of the trained model, which a second pass finds; the loss of the epoch is "
        "that of the forward passes that trained it",
    }
    trial.expect(
        abs(got - want) <= 1e-6 * max(1.0, abs(want)),
        "the reported loss is not the mean over all samples",
        likely=next(
            (why for value, why in known.items() if abs(got - value) < 1e-9),
            "divide the sum of loss × samples by the number of samples of the epoch",
        ),
        read=MEAN_OF_MEANS,
        **rows,
    )


def _mean(losses: list[tuple[float, int]]) -> float:
    return sum(loss * n for loss, n in losses) / sum(n for _, n in losses)

"""The check of accumulation under autocast with a gradient scaler, clipping and a schedule: what runs once a window."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ...virtual.gpu import without_gpu
from ..audit import MOVED, Kind
from ..base import Trial, check
from ..measure import SavedBytes
from ..wording import show
from .accumulation_window import classifier, draw, loss_fn
from .amp_calls import (
    MANY,
    NAN,
    SCALE,
    LoggingScaler,
    LoggingSchedule,
    Overflows,
    explain,
    explain_overflow,
    judge_autocast,
    judge_order,
    judge_scaler,
    judge_skipped,
    watched,
)
from .common import (
    Batch,
    Loop,
    Passes,
    Recorder,
    judge,
    judge_mode,
    judge_place,
    judge_weights,
    one_at_a_time,
    replica,
)
from .misconceptions import AMP, PRECISION


def epoch(
    model: nn.Module,
    batches: list[Batch],
    steps: int,
    max_norm: float,
    *,
    weight: str = "micro",
    boundary: str = "end",
    zero: str = "window",
    clip: str = "window",
    autocast: str = "forward",
    loss: str = "given",
) -> Iterator[torch.Tensor]:
    """The gradients that an epoch with autocast, scaler and clipping steps with, one by one.

    weight    micro: mean of the window's means · steps: sum of means / steps · sum: sum of means
              · all: sum of means / number of micro-batches · after: the mean, taken after clipping
    boundary  end · start: a step when i % steps == 0 · no_tail: full windows only · every: each micro-batch
              · inside: the same, cleared only after each window · once: at the end
    zero      window: before each · late: only after a step · micro: before each micro-batch · never
              · before: between backward and step
    clip      window · micro: after each micro-batch · scaled, scaled_micro: the same, still scaled
              · scaled_tail, none_tail: still scaled, or not at all, but in full windows · each: each parameter
              · group: the first group · value: each element · largest: the largest of them · none
    autocast  forward · epoch: one block for all, whose 16-bit copies of the weights never see a step
    loss      given · own: plain cross-entropy
    """
    model = replica(model)
    parameters = list(model.parameters())
    optimizer = Recorder(model, lr=0.0 if autocast == "epoch" else 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=10_000)
    shorten = nn.utils.clip_grad_norm_
    if zero == "window":
        optimizer.zero_grad()
    for i, (x, y) in enumerate(batches):
        if zero == "micro":
            optimizer.zero_grad()
        held = len(batches[i - i % steps : i - i % steps + steps]) if boundary != "every" else 1
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):  # the caller's block may hold a cache
            mean = (loss_fn if loss == "given" else F.cross_entropy)(model(x), y)
        divisor = {"micro": held, "steps": steps, "all": len(batches)}.get(weight, 1)
        scaler.scale(mean / divisor).backward()
        if clip in ("micro", "scaled_micro"):
            shorten(parameters, max_norm * (SCALE if clip == "micro" else 1))
        last, full = i == len(batches) - 1, (i + 1) % steps == 0
        ends = {"end": full or last, "start": i % steps == 0, "no_tail": full, "once": last}
        if not ends.get(boundary, True):
            continue
        if zero == "before":
            optimizer.zero_grad(set_to_none=False)
        if clip == "scaled" or (clip == "scaled_tail" and not full):
            shorten(parameters, max_norm)
        scaler.unscale_(optimizer)
        if clip == "window" or (clip in ("scaled_tail", "none_tail") and full):
            shorten(parameters, max_norm)
        elif clip == "largest":
            shorten(parameters, max_norm, norm_type=float("inf"))
        elif clip == "each":
            for p in parameters:
                shorten(p, max_norm)
        elif clip == "group":
            shorten(optimizer.param_groups[0]["params"], max_norm)
        elif clip == "value":
            nn.utils.clip_grad_value_(parameters, max_norm)
        if weight == "after":
            for p in parameters:
                if p.grad is not None:
                    p.grad /= held
        scaler.step(optimizer)
        scaler.update()
        yield optimizer.gradients[-1]
        if zero != "never" and (full or boundary != "inside"):
            optimizer.zero_grad()


@dataclass(frozen=True)
class Case:
    """One epoch to run, with what it must come to: reckoned before any of the student's code runs."""

    model: nn.Module
    batches: list[Batch]
    steps: int
    max_norm: float
    loop: Loop
    want: list[torch.Tensor]
    start: torch.Tensor
    allowed: int


@without_gpu()
def prepare(count: int, steps: int, max_norm: float) -> Case:
    model, batches = classifier(torch.float32), draw([8] * count, torch.float32)
    for p in model.parameters():
        p.grad = torch.randn_like(p)  # left by the caller; must not count
    loop = partial(epoch, replica(model), batches, steps, max_norm)
    start = nn.utils.parameters_to_vector(model.parameters()).detach()
    with SavedBytes(model.parameters()) as single, torch.autocast("cpu", torch.bfloat16):
        loss_fn(model(batches[0][0]), batches[0][1])
    return Case(model, batches, steps, max_norm, loop, list(loop()), start, single.peak)


MAY_CHANGE: dict[str, Iterable[Kind]] = {
    "model": MOVED,  # its place is judged below
    "optimizer": {"state", "settings"},  # the schedule sets the learning rate
    "scaler": {"state"},
    "scheduler": {"state"},
}


@check(lesson=8, says="unscale, clip, step, update once a window, under autocast; a skipped step advances no schedule")
def accumulation_amp(student: Any, trial: Trial) -> None:
    """Check a function of (model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm): one epoch
    of equal micro-batches under autocast, the mean over each window clipped to `max_norm`, the schedule advanced
    with each step that is not skipped."""
    parameters = ("model", "optimizer", "scaler", "scheduler", "loss_fn", "micro_batches", "steps", "max_norm")
    trial.function(student, parameters)
    # the first never clips and shows the averaging, the second always clips
    for case in [prepare(8, 3, 1e6), prepare(7, 3, 0.05)]:
        model, batches = case.model, case.batches
        log: list[str] = []
        losses: list[torch.dtype | None] = []
        passes, optimizer, saved = Passes(model), Recorder(model), SavedBytes(model.parameters())
        schedule, scaler = LoggingSchedule(optimizer, log), LoggingScaler(log, growth_interval=10_000)
        returned = trial.call(
            student,
            *(model, optimizer, scaler, schedule, watched(loss_fn, losses), batches, case.steps, case.max_norm),
            may_change=MAY_CHANGE,
            explain=partial(explain, log),
            inside=saved,
        )
        judge_place(trial, model, case.start.dtype)
        judge_autocast(trial, passes.autocast, losses)
        judge_scaler(trial, log, len(optimizer.gradients))
        if log.count("step") < len(batches):
            judge_order(trial, log, len(batches))
        clips = case.max_norm < 1
        found = [mistake for mistake in AMP if (mistake.aspect == "clip" or mistake.value == "after") == clips]
        values = {"last": (len(batches) - 1) % case.steps + 1, "steps": case.steps, "max_norm": case.max_norm}
        inputs = f"{len(batches)} micro-batches, steps = {case.steps} and max_norm = {case.max_norm:g}"
        judge_weights(trial, model, optimizer, case.start, within=1e-5)
        judge(trial, optimizer.gradients, case.want, case.loop, found, 0.02, inputs, **values)
        judge_order(trial, log, len(batches))
        one_at_a_time(trial, saved, passes, len(batches[0][0]), case.allowed)
        judge_mode(trial, passes)
        trial.expect(
            returned is None,
            "something is returned",
            expected="nothing: the epoch is what it does to the weights",
            got=show(returned),
            likely="a loss that was not detached holds on to its graph, and one of the last micro-batch is none of the "
            "epoch",
            read=PRECISION,
        )
    _overflow(student, trial, prepare(10, 2, 1e6), {2: NAN}, growth_interval=2)
    case = prepare(13, 2, 1e6)
    _overflow(student, trial, case, MANY, growth_interval=10_000, backoff=random.choice([0.625, 0.75, 0.875]))


def _overflow(
    student: Any, trial: Trial, case: Case, bad: dict[int, str], growth_interval: int, backoff: float = 0.5
) -> None:
    """An epoch of which these windows overflow. With one of them the scale grows before, and again after."""
    log: list[str] = []
    optimizer, seen = Recorder(case.model), Overflows(case.model, case.batches, case.steps, bad)
    optimizer.register_step_pre_hook(lambda *_: seen.stepped.append(seen.window))
    schedule, scaler = LoggingSchedule(optimizer, log), LoggingScaler(log, growth_interval, backoff)
    schedule.then = lambda: seen.advanced.append(seen.window)
    trial.call(
        student,
        *(case.model, optimizer, scaler, schedule, partial(seen.loss, loss_fn)),
        *(case.batches, case.steps, case.max_norm),
        may_change=MAY_CHANGE,
        explain=partial(explain_overflow, log),
    )
    inputs = f"an overflow in window{'s' * (len(bad) > 1)} {', '.join(str(window + 1) for window in bad)}"
    judge_skipped(trial, seen, scaler.get_scale(), seen.scale(growth_interval, backoff), inputs)
    judge_weights(trial, case.model, optimizer, case.start, within=1e-5)

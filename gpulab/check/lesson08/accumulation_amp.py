"""The check of accumulation under autocast with a gradient scaler, clipping and a schedule: what runs once a window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..base import Trial, check
from ..measure import SavedBytes
from .accumulation_window import classifier, draw, loss_fn
from .common import Batch, Loop, Recorder, explain, judge, judge_weights, one_at_a_time, replica, rows_seen
from .misconceptions import AMP, PRECISION

SCALE = 8.0  # small: with a large one, gradients that were never cleared are divided away by unscale_


class LoggingScaler(torch.amp.GradScaler):
    """A GradScaler for the CPU that writes down in which order it is used."""

    def __init__(self, log: list[str]) -> None:
        super().__init__("cpu", init_scale=SCALE, growth_interval=10_000)
        self.log = log

    def scale(self, outputs: Any) -> Any:
        self.log.append("scale")
        return super().scale(outputs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        if self.log[-1:] != ["step"]:  # step() unscales by itself where it has not been done
            self.log.append("unscale_")
        super().unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        self.log.append("step")
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        self.log.append("update")
        super().update(new_scale)


class LoggingSchedule(torch.optim.lr_scheduler.ConstantLR):
    """A constant learning rate that writes down when it is advanced."""

    def __init__(self, optimizer: torch.optim.Optimizer, log: list[str]) -> None:
        self.log: list[str] = []  # the base class makes a first step of its own
        super().__init__(optimizer, factor=1.0)
        self.log = log

    def step(self, epoch: int | None = None) -> None:
        self.log.append("scheduler")
        super().step()


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
    zero      window · micro: before each micro-batch · never · before: between backward and step
    clip      window · micro: after each micro-batch · scaled, scaled_micro: the same, still scaled
              · each: each parameter · value: each element · none
    autocast  forward · epoch: one block for all, whose 16-bit copies of the weights never see a step
    loss      given · own: plain cross-entropy
    """
    model = replica(model)
    parameters = list(model.parameters())
    optimizer = Recorder(model, lr=0.0 if autocast == "epoch" else 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=10_000)
    shorten = nn.utils.clip_grad_norm_
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
        if clip == "scaled":
            shorten(parameters, max_norm)
        scaler.unscale_(optimizer)
        if clip == "window":
            shorten(parameters, max_norm)
        elif clip == "each":
            for p in parameters:
                shorten(p, max_norm)
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


def prepare(count: int, steps: int, max_norm: float) -> Case:
    model, batches = classifier(torch.float32), draw([8] * count, torch.float32)
    loop = partial(epoch, replica(model), batches, steps, max_norm)
    start = nn.utils.parameters_to_vector(model.parameters()).detach()
    with SavedBytes(model.parameters()) as single, torch.autocast("cpu", torch.bfloat16):
        loss_fn(model(batches[0][0]), batches[0][1])
    return Case(model, batches, steps, max_norm, loop, list(loop()), start, single.peak)


@check(lesson=8, says="unscale, clip, step, update, schedule: once a window, in this order, under autocast")
def accumulation_amp(student: Any, trial: Trial) -> None:
    """Check a function of (model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm): one epoch
    of equal micro-batches under autocast, the mean over each window clipped to `max_norm`, the schedule advanced
    with each step."""
    parameters = ("model", "optimizer", "scaler", "scheduler", "loss_fn", "micro_batches", "steps", "max_norm")
    trial.function(student, parameters)
    # the first never clips and shows the averaging, the second always clips
    for case in [prepare(8, 3, 1e6), prepare(6, 3, 0.05)]:
        model, batches = case.model, case.batches
        log: list[str] = []
        autocast: list[bool] = []
        model.register_forward_pre_hook(lambda *_, seen=autocast: seen.append(torch.is_autocast_enabled("cpu")))
        seen, optimizer, saved = rows_seen(model), Recorder(model), SavedBytes(model.parameters())
        schedule, scaler = LoggingSchedule(optimizer, log), LoggingScaler(log)
        trial.call(
            student,
            *(model, optimizer, scaler, schedule, loss_fn, batches, case.steps, case.max_norm),
            unchanged={"micro_batches": batches},
            explain=partial(_explain, log),
            inside=saved,
        )
        trial.expect(
            all(autocast) and bool(autocast),
            "the forward pass does not run under autocast",
            expected='torch.autocast("cpu", dtype=torch.bfloat16) around model and loss',
            got=f"autocast on the CPU was off in {autocast.count(False)} of {len(autocast)} forward passes",
            likely="without it all is float32: a scaler does not switch it on, and a block for another device, as "
            'torch.autocast("cuda"), does nothing here',
            read=PRECISION,
        )
        _judge_scaler(trial, log, len(optimizer.gradients))
        if log.count("step") < len(batches):
            _judge_order(trial, log, len(batches))
        clips = case.max_norm < 1
        found = [mistake for mistake in AMP if (mistake.aspect == "clip" or mistake.value == "after") == clips]
        values = {"last": (len(batches) - 1) % case.steps + 1, "steps": case.steps, "max_norm": case.max_norm}
        inputs = f"{len(batches)} micro-batches, steps = {case.steps} and max_norm = {case.max_norm:g}"
        judge_weights(trial, model, optimizer, case.start, within=1e-5)
        judge(trial, optimizer.gradients, case.want, case.loop, found, 0.02, inputs, **values)
        _judge_order(trial, log, len(batches))
        one_at_a_time(trial, saved, seen, len(batches[0][0]), case.allowed)


def _judge_scaler(trial: Trial, log: list[str], made: int) -> None:
    through = log.count("step")
    if made and not log.count("scale") and not through:
        trial.fail(
            "the scaler that was passed in is not used",
            expected="scaler.scale(loss).backward(), scaler.step(optimizer), scaler.update()",
            got=f"{made} steps of the optimizer without it",
            likely="a new scaler, or none, stands in for the argument; a scaler that should do nothing is the caller's "
            "choice, by enabled=False",
            read=PRECISION,
        )
    trial.expect(
        made <= through,
        "optimizer.step() is called directly",
        expected="scaler.step(optimizer), which unscales where that was not done and skips on inf or NaN",
        got=f"{made - through} steps past the scaler",
        likely="the gradients are multiplied by the scale until someone divides them",
        read=PRECISION,
    )


def _judge_order(trial: Trial, log: list[str], micro: int) -> None:
    """Each of update and scheduler once after each step; the counts of all are those of the steps."""
    made = log.count("step")
    names = {"unscale_": "scaler.unscale_", "update": "scaler.update", "scheduler": "scheduler.step"}
    why = {
        "unscale_": "a second unscale_ in a window divides what is accumulated by the scale again",
        "update": "update may change the scale, and the pieces of a window must share one scale",
        "scheduler": "the schedule counts updates of the weights, not micro-batches",
    }
    for event, reason in why.items():
        trial.expect(
            log.count(event) != micro or made == micro,
            f"{names[event]} runs for every micro-batch",
            expected=f"{made} times: once for each step",
            got=f"{log.count(event)} times for {micro} micro-batches",
            likely=reason,
            read=PRECISION,
        )
    before = {
        "update": "update ends the scaler's step: before it, it forgets that unscale_ has run, and step unscales again",
        "scheduler": "the first step would run at the second learning rate: the schedule follows the step",
    }
    for event, reason in before.items():
        so_far = [log[:i].count(event) for i, name in enumerate(log) if name == "step"]
        trial.expect(
            all(n <= k for k, n in enumerate(so_far)),
            f"{names[event]} comes before the step",
            expected="scaler.step, then scaler.update, then scheduler.step",
            got=", ".join(log[:8]) + ", …",
            likely=reason,
            read=PRECISION,
        )
        count = log.count(event)
        trial.expect(
            count == made and all(n >= k for k, n in enumerate(so_far)),
            f"{names[event]} does not follow each step",
            expected=f"{made} times: once after each step",
            got=f"{count} times" if count != made else f"{count} times, and not one after each step",
            likely={
                "update": "without scaler.update() the scale never adapts",
                "scheduler": "it is missing or stands outside the loop: the schedule counts updates of the weights, "
                "not epochs",
            }[event],
            read=PRECISION,
        )


def _explain(log: list[str], error: str) -> str:
    """What an exception likely means, from its text and from what the scaler was asked before it."""
    if "called after step()" in error or "has already been called" in error:
        since = log[len(log) - log[::-1].index("update") :] if "update" in log else log
        if "step" not in since:
            return (
                "unscale_ divides the gradients in place, so it may run once between two updates: after the last "
                "micro-batch of the window, not after each"
            )
        if since[0] == "step":
            return "scaler.update stands before scaler.step: it ends the scaler's step, so it comes after it"
        if "unscale_()" in error and since[-1] == "step":
            return "scaler.unscale_ comes before scaler.step, and clipping between them"
        return "scaler.update() is missing after scaler.step(optimizer): the scaler takes it all for one step"
    if "_scale is None" in error:
        return "nothing was scaled: unscale_ and scaler.step need gradients from scaler.scale(loss).backward()"
    if "prior to update" in error:
        return "scaler.update runs where no step was: it ends a step, so it belongs once after each scaler.step"
    if "No inf checks were recorded" in error:
        return (
            "there is no gradient to step with: zero_grad stands between backward and step, or one more step follows "
            "a last window that was full"
        )
    return explain(error)

"""In which order the scaler and the schedule are called, and under which autocast: the calls of an epoch in mixed
precision, written down and judged. What they come to, the gradients, is judged in accumulation_amp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..base import Trial
from . import common
from .misconceptions import PRECISION

SCALE = 8.0  # small: with a large one, gradients that were never cleared are divided away by unscale_


class LoggingScaler(torch.amp.GradScaler):
    """A GradScaler for the CPU that writes down in which order it is used: of a step, whether it was skipped."""

    def __init__(self, log: list[str], growth_interval: int) -> None:
        super().__init__("cpu", init_scale=SCALE, growth_interval=growth_interval)
        self.log = log

    def scale(self, outputs: Any) -> Any:
        self.log.append("scale")
        return super().scale(outputs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        if self.log[-1:] != ["step"]:  # step() unscales by itself where it has not been done
            self.log.append("unscale_")
        super().unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        place, made = len(self.log), []
        self.log.append("step")  # before it is made: the optimizer's own hooks may advance the schedule
        watch = optimizer.register_step_pre_hook(lambda *_: made.append(True))
        try:
            result: float | None = super().step(optimizer, *args, **kwargs)
        finally:
            watch.remove()
        if not made:
            self.log[place] = "skip"
        return result

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


def autocast_dtype() -> torch.dtype | None:
    """The dtype of autocast on the CPU, None where it is off."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def watched(
    loss_fn: Callable[..., torch.Tensor], seen: list[torch.dtype | None], overflows: int | None = None
) -> Callable[..., torch.Tensor]:
    """`loss_fn`, which notes in `seen` what autocast was when it was called; the loss of call number `overflows`,
    counted from 0, has a gradient of inf and NaN."""

    def call(*args: Any, **options: Any) -> torch.Tensor:
        seen.append(autocast_dtype())
        loss = loss_fn(*args, **options)
        if len(seen) - 1 == overflows and loss.requires_grad:
            loss.register_hook(lambda gradient: gradient * float("inf"))
        return loss

    return call


def judge_autocast(trial: Trial, forwards: list[torch.dtype | None], losses: list[torch.dtype | None]) -> None:
    expected = 'torch.autocast("cpu", dtype=torch.bfloat16) around model and loss'
    trial.expect(
        bool(forwards) and None not in forwards,
        "the forward pass does not run under autocast",
        expected=expected,
        got=f"autocast on the CPU was off in {forwards.count(None)} of {len(forwards)} forward passes",
        likely="without it all is float32: a scaler does not switch it on, and a block for another device, as "
        'torch.autocast("cuda"), does nothing here',
        read=PRECISION,
    )
    trial.expect(
        None not in losses,
        "the loss is not under autocast",
        expected=expected,
        got=f"autocast was off in {losses.count(None)} of {len(losses)} calls of loss_fn",
        likely="the block ends after the model, so the loss of its 16-bit outputs is computed in 16 bits; inside the "
        "block autocast takes the loss in float32",
        read=PRECISION,
    )
    others = sorted({str(dtype) for dtype in forwards + losses} - {"torch.bfloat16"})
    trial.expect(
        not others,
        "autocast runs in another dtype than bfloat16",
        expected=expected,
        got=", ".join(others),
        likely="float16 is what a scaler is for, and a GPU's default; this exercise asks for bfloat16 on the CPU, "
        "where the scaler is there to be put in its place",
        read=PRECISION,
    )


def judge_scaler(trial: Trial, log: list[str], made: int) -> None:
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


def judge_order(trial: Trial, log: list[str], micro: int) -> None:
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


def judge_skipped(trial: Trial, log: list[str], made: int, inputs: str) -> None:
    """One window of an epoch overflowed: its step is skipped, and whatever counts updates does not count it."""
    steps, skipped, advanced = (log.count(event) for event in ("step", "skip", "scheduler"))
    happened = f"{steps} steps and {skipped} skipped, for {inputs}"
    likely = "its inf is in .grad still: clear the gradients at the start of each window, stepped or not"
    if not skipped:
        likely = (
            "inf never came to the scaler: it looks for it in .grad, lowers the scale and skips. A loss that is looked "
            "at on the way, or a nan_to_num, hides the overflow, and the scale stays too high"
        )
    trial.expect(
        (steps, skipped) == (made, 1),
        "an overflow in one micro-batch does not skip the step of its window, and only that",
        expected=f"{made} steps and 1 skipped",
        got=happened,
        likely=likely,
        read=PRECISION,
    )
    after = [log[i + 1 :] for i, event in enumerate(log) if event == "skip"]
    following = after[0][: next((i for i, event in enumerate(after[0]) if event == "scale"), None)]
    trial.expect(
        "scheduler" not in following,
        "scheduler.step runs after a skipped step too",
        expected=f"{made} times: once after each step that was made",
        got=f"{advanced} times, where {happened}",
        likely="the schedule counts updates of the weights, and a skipped step is none. scaler.step does not say "
        "whether it stepped: compare scaler.get_scale() before scaler.update() and after it",
        read=PRECISION,
    )
    trial.expect(
        advanced == made,
        "scheduler.step is left out after steps that were made",
        expected=f"{made} times: once after each step that was made",
        got=f"{advanced} times, where {happened}",
        likely="after a skipped step the scale is smaller than before; after a good one it is the same, or larger "
        "where it grew. Read it before scaler.update() and after it, and ask for >=",
        read=PRECISION,
    )


def explain(log: list[str], error: str) -> str:
    """What an exception likely means, from its text and from what the scaler was asked before it."""
    if "called after step()" in error or "has already been called" in error:
        since = log[len(log) - log[::-1].index("update") :] if "update" in log else log
        if not {"step", "skip"} & set(since):
            return (
                "unscale_ divides the gradients in place, so it may run once between two updates: after the last "
                "micro-batch of the window, not after each"
            )
        if since[0] in ("step", "skip"):
            return "scaler.update stands before scaler.step: it ends the scaler's step, so it comes after it"
        if "unscale_()" in error and since[-1] in ("step", "skip"):
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
    return common.explain(error)

"""In which order the scaler and the schedule are called, and under which autocast: the calls of an epoch in mixed
precision, written down and judged. What they come to, the gradients, is judged in accumulation_amp.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..base import Trial
from . import common
from .misconceptions import PRECISION

SCALE = 8.0  # small: with a large one, gradients that were never cleared are divided away by unscale_


class LoggingScaler(torch.amp.GradScaler):
    """A GradScaler for the CPU that writes down in which order it is used: of a step, whether it was skipped."""

    def __init__(self, log: list[str], growth_interval: int, backoff: float = 0.5) -> None:
        super().__init__("cpu", init_scale=SCALE, growth_interval=growth_interval, backoff_factor=backoff)
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
        self.then: Callable[[], None] = lambda: None
        super().__init__(optimizer, factor=1.0)
        self.log = log

    def step(self, epoch: int | None = None) -> None:
        self.log.append("scheduler")
        self.then()
        super().step()


def watched(loss_fn: Callable[..., torch.Tensor], seen: list[torch.dtype | None]) -> Callable[..., torch.Tensor]:
    """`loss_fn`, which notes in `seen` what autocast was when it was called."""

    def call(*args: Any, **options: Any) -> torch.Tensor:
        seen.append(common.autocast_dtype())
        return loss_fn(*args, **options)

    return call


# What the gradients of an overflow hold.
NAN, INF, ONE = "NaN", "inf", "inf in one element"


class Overflows:
    """An epoch in which windows overflow, in one micro-batch: `bad` says which, and what their gradients hold then.
    `stepped` and `advanced` are the windows in which the optimizer has stepped and the schedule has advanced."""

    def __init__(self, model: nn.Module, batches: Sequence[common.Batch], steps: int, bad: Mapping[int, str]) -> None:
        self.bad, self.windows = dict(bad), -(-len(batches) // steps)
        self.stepped: list[int] = []
        self.advanced: list[int] = []
        self._parameters, self._batches, self._steps = list(model.parameters()), batches, steps
        self._at = 0  # the micro-batch that went through the model last
        self._how = {random.choice(range(len(batches))[w * steps : (w + 1) * steps]): how for w, how in bad.items()}
        model.register_forward_pre_hook(self._enter)

    def _enter(self, model: nn.Module, args: tuple[Any, ...]) -> None:
        sample = args[0][0]
        self._at = next((i for i, (x, _) in enumerate(self._batches) if (x == sample).all(1).any()), self._at)

    @property
    def window(self) -> int:
        return self._at // self._steps

    def loss(self, loss_fn: Callable[..., torch.Tensor], *args: Any, **options: Any) -> torch.Tensor:
        loss, how = loss_fn(*args, **options), self._how.get(self._at)
        if how is None or not loss.requires_grad:
            return loss
        if how == NAN:
            loss.register_hook(lambda gradient: gradient * float("inf"))
            return loss
        middle = self._parameters[len(self._parameters) // 2]  # neither in the first group nor the last layer
        for p in self._parameters if how == INF else [middle]:
            zeros = (p - p.detach()).flatten()
            root = (zeros if how == INF else zeros[random.randrange(len(zeros))]).sqrt()
            loss = loss + root.sum()  # which adds nothing, and has an infinite slope
        return loss

    def scale(self, growth_interval: int, backoff: float) -> float:
        """What a scaler has come to when the epoch ends."""
        scale, good = SCALE, 0
        for window in range(self.windows):
            good = 0 if window in self.bad else good + 1
            scale *= backoff if window in self.bad else 2.0 if good == growth_interval else 1.0
            good %= growth_interval
        return scale


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


def judge_skipped(trial: Trial, seen: Overflows, scale: float, wanted: float, inputs: str) -> None:
    """Windows of an epoch overflowed: their steps are skipped, whatever counts updates does not count them, and the
    scale falls."""
    good = [window for window in range(seen.windows) if window not in seen.bad]
    inputs = f"for {inputs}, of {seen.windows}"
    likely = "its inf is in .grad still: clear the gradients at the start of each window, stepped or not"
    if set(seen.stepped) & set(seen.bad):
        likely = (
            "inf never came to the scaler: it looks for it in .grad, lowers the scale and skips. A loss that is looked "
            "at on the way, or a nan_to_num, hides the overflow, and the scale stays too high"
        )
    trial.expect(
        seen.stepped == good,
        "an overflow in one micro-batch does not skip the step of its window, and only that",
        expected=f"steps in the windows {_numbers(good)}, {inputs}",
        got=f"steps in the windows {_numbers(seen.stepped)}",
        likely=likely,
        read=PRECISION,
    )
    counted = [window for window in seen.bad if window in seen.advanced]
    rows = {
        "expected": f"{len(good)} times: once after each step that was made, {inputs}",
        "got": f"{len(seen.advanced)} times, after the windows {_numbers(seen.advanced)}",
        "read": PRECISION,
    }
    alone = _COUNTED.get(tuple(counted)) if len(seen.bad) > 1 else None
    if counted and alone:
        trial.fail(alone[0], likely=alone[1], **rows)
    trial.expect(
        not counted,
        "scheduler.step runs after a skipped step too",
        likely="the schedule counts updates of the weights, and a skipped step is none. scaler.step does not say "
        "whether it stepped: compare scaler.get_scale() before scaler.update() and after it",
        **rows,
    )
    trial.expect(
        seen.advanced == good,
        "scheduler.step is left out after steps that were made",
        likely="after a skipped step the scale is smaller than before; after a good one it is the same, or larger "
        "where it grew. Read it before scaler.update() and after it, and ask for >=",
        **rows,
    )
    trial.expect(
        scale == wanted,
        "the scale does not fall with an overflow",
        expected=f"a scale of {wanted:g} after the epoch, {inputs}",
        got=f"{scale:g}",
        likely="scaler.update() is left out where the step is. It ends each window, stepped or not: it lowers the "
        "scale, or else the next window overflows too",
        read=PRECISION,
    )


def _numbers(windows: Sequence[int]) -> str:
    return ", ".join(str(window + 1) for window in windows) or "none"


# An epoch with an overflow of each kind, and what it means where the schedule is advanced after these alone. One
# overflow in a window in the middle has been understood before.
MANY = {0: NAN, 2: INF, 4: ONE, 6: NAN}
_COUNTED = {
    (0,): (
        "scheduler.step runs after a skipped first step",
        "the first window has nothing to compare its scale with: read scaler.get_scale() before scaler.update() in "
        "each window. The first steps are those that are skipped, while the scale is too large",
    ),
    (6,): (
        "scheduler.step runs after a skipped step of the last, short window",
        "the lines that end a window stand twice, and those for the rest do not ask whether the step was skipped",
    ),
    (4,): (
        "scheduler.step runs after a step that was skipped for one element",
        "an overflow may be in one parameter alone, and there in one element: ask all gradients, or the scale, which "
        "falls then",
    ),
    (2, 4): (
        "scheduler.step runs after a step that was skipped for an inf",
        "an overflow is an inf, and isnan() is False for it: ask isfinite(), or the scale, which falls then",
    ),
    tuple(MANY): (
        "scheduler.step runs after skipped steps, with another backoff_factor than 0.5",
        "by how much the scale falls is the scaler's own choice: ask whether it is smaller than before",
    ),
}


def explain_overflow(log: list[str], error: str) -> str:
    """The same, in an epoch with an overflow: without one the function ran."""
    if "has already been called" in error:
        return (
            "scaler.update() is left out where the step is: it ends each window, stepped or not, lowers the scale, and "
            "forgets that unscale_ has run"
        )
    return explain(log, error)


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

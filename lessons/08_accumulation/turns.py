"""Judges the turns of lesson 08: a loop over windows, one under autocast, and the number of updates of a training."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.turns import AsGiven, NotYet, turn
from gpulab.exercise.wording import brief, is_number

Window = list[tuple[torch.Tensor, torch.Tensor]]
STEPS = 4

# Loops that readers write: where the gradient is cleared, what a loss is divided by, where the step is; and why.
_LOOPS: tuple[tuple[str, Callable[[Window], float], str, str, str], ...] = (
    ("window", lambda window: STEPS, "window", "the short last window moves the weights by less than it should",
     "its losses are divided by 4, but it has fewer micro-batches"),
    ("micro-batch", len, "window", "each window moves the weights by its last micro-batch alone",
     "zero_grad() in the inner loop deletes what the earlier micro-batches have added"),
    ("never", len, "window", "each window's gradient still contains those of earlier windows",
     "call zero_grad() once for each window: before its first backward, or after the step"),
    ("never", lambda window: STEPS, "window", "earlier windows' gradients stay in `.grad`, the last is divided by 4",
     "call zero_grad() once for each window, and divide by its number of micro-batches"),
    ("window", lambda window: 1, "window", "the gradient of a window is the sum of its micro-batches', not their mean",
     "the division is missing: each loss is already a mean, and the mean of them needs another division"),
    ("window", len, "micro-batch", "the optimizer steps after every micro-batch",
     "step() is in the inner loop, so nothing is accumulated"),
)  # fmt: skip


@turn("each window moves the weights as its samples in one batch would, including the short last one")
def window_loop(answer: Any) -> None:
    """A function (model, optimizer, windows) that steps once for each list of at most four equal micro-batches."""
    windows = [_window(STEPS), _window(STEPS), _window(STEPS - 2)]
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    start = _weights(model)
    ours = copy.deepcopy(model)
    answer(ours, torch.optim.SGD(ours.parameters(), lr=0.5), windows)
    got, right = _weights(ours), _trained(model, windows, "window", len, "window")
    if torch.allclose(got, right, rtol=0, atol=1e-9):
        return
    if torch.equal(got, start):
        raise NotYet("no weight has moved", expected="a step for each window", likely="optimizer.step() is gone")
    if torch.allclose(got, _trained(model, windows, "micro-batch", lambda window: STEPS, "window"), rtol=0, atol=1e-9):
        raise AsGiven("each window moves the weights by a quarter of its last micro-batch's gradient")
    for clears, divisor, steps, told, likely in _LOOPS:
        if torch.allclose(got, _trained(model, windows, clears, divisor, steps), rtol=0, atol=1e-9):
            raise NotYet(told, expected="the step that its samples in one batch would make", likely=likely)
    ratio = (got - start).norm() / (right - start).norm()
    raise NotYet(
        f"three windows, the last of two micro-batches, move the weights {ratio:.2f} times as far, or differently",
        expected="as their samples in one batch would",
        likely="once for each window: zero_grad() and step(); divide each loss by the window's number of micro-batches",
    )


def _window(size: int) -> Window:
    return [(torch.randn(7, 6, dtype=torch.double), torch.randint(3, (7,))) for _ in range(size)]


def _weights(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def _trained(
    model: nn.Module, windows: Sequence[Window], clears: str, divisor: Callable[[Window], float], steps: str
) -> torch.Tensor:
    """The weights after plain SGD over the windows, cleared once per `clears`, stepping once per `steps`."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for window in windows:
        if clears == "window":
            optimizer.zero_grad()
        for x, y in window:
            if clears == "micro-batch":
                optimizer.zero_grad()
            (F.cross_entropy(model(x), y) / divisor(window)).backward()
            if steps == "micro-batch":
                optimizer.step()
        if steps == "window":
            optimizer.step()
    return _weights(model)


# The calls after a scaled backward: those in the inner loop, those after it; what they do, and why.
_RIGHT: tuple[tuple[str, ...], tuple[str, ...]] = (), ("unscale", "clip", "step", "update")
_AS_GIVEN = ("unscale", "clip", "update"), ("step",)
_PLACES: tuple[tuple[tuple[str, ...], tuple[str, ...], str, str], ...] = (
    (_RIGHT[1], (), "the optimizer steps after every micro-batch", "step() has to stay after the inner loop"),
    ((), ("clip", "step", "update"), "the gradient is clipped while it is still multiplied by 65536",
     "unscale_() is missing, or comes after clip_grad_norm_()"),
    (("clip",), ("unscale", "step", "update"), "every micro-batch clips a gradient that is still multiplied by 65536",
     "call clip_grad_norm_() once, after unscale_()"),
    ((), ("unscale", "step", "update"), "the optimizer steps with a gradient that is not clipped",
     "clip_grad_norm_() is missing, or comes after step()"),
)  # fmt: skip


@turn("one step for each window, with its own clipped gradient; an overflow skips the step and halves the scale")
def window_amp(answer: Any) -> None:
    """A function (model, optimizer, scaler, window, max_norm): one update under autocast, clipped once."""
    with virtual_gpu():
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).cuda()
        window = [(torch.randn(7, 6, device="cuda"), torch.randint(3, (7,), device="cuda")) for _ in range(STEPS)]
        most = 0.25 * _norm(model, window)
        start, (got, scaler) = _weights(model), _updated(answer, model, window, most)
        if _alike(got, _placed(model, window, most, *_RIGHT), start):
            broken = [(x * math.inf if i == 1 else x, y) for i, (x, y) in enumerate(window)]
            got, scaler = _updated(answer, model, broken, most)
            scale = scaler.get_scale()
            if not torch.equal(got, start):
                raise NotYet("a window with an overflow moves the weights", expected="a step that is skipped",
                             likely="scaler.step(optimizer) skips it; optimizer.step() does not")  # fmt: skip
            if scale != 32768.0:
                raise NotYet(f"after an overflow the scale is {scale:,.0f}", expected="32,768, half of it",
                             likely="call scaler.update() once, after step()")  # fmt: skip
            return
        if scaler.unscaled > 1 and _alike(got, _placed(model, window, most, *_AS_GIVEN), start):
            raise AsGiven("each window moves the weights by a gradient that is divided by the scale again and again")
        if torch.equal(got, start):
            raise NotYet("no weight has moved", expected="one step", likely="scaler.step(optimizer) is gone")
        for inside, after, told, likely in _PLACES:
            if _alike(got, _placed(model, window, most, inside, after), start):
                raise NotYet(told, expected="one clipped step for the whole window", likely=likely)
        raise NotYet(
            "the weights do not move as one clipped step of the whole window would move them",
            expected="after the inner loop, once each: unscale_, clip_grad_norm_, step, update",
            likely="one of the four still stands in the inner loop",
        )


def _norm(model: nn.Module, window: Window) -> float:
    """The norm of the window's gradient."""
    losses = [F.cross_entropy(model(x), y) for x, y in window]
    parts = torch.autograd.grad(sum(losses[1:], losses[0]) / len(window), list(model.parameters()))
    return float(torch.cat([part.flatten() for part in parts]).norm().item())


class _Scaler(torch.amp.GradScaler):
    """Counts how often gradients are unscaled."""

    unscaled = 0

    def unscale_(self, optimizer: Any) -> None:
        self.unscaled += 1
        super().unscale_(optimizer)


def _updated(update: Callable[..., Any], model: nn.Module, window: Window, most: float) -> tuple[torch.Tensor, _Scaler]:
    """The weights of a copy of the model, and its scaler, after one update."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = _Scaler("cuda")
    update(model, optimizer, scaler, window, most)
    return _weights(model), scaler


def _placed(model: nn.Module, window: Window, most: float, inside: Sequence[str], after: Sequence[str]) -> torch.Tensor:
    """The weights after an update with these calls in the inner loop and after it."""

    def update(model: nn.Module, optimizer: Any, scaler: Any, window: Window, most: float) -> None:
        calls = {
            "unscale": lambda: scaler.unscale_(optimizer),
            "clip": lambda: nn.utils.clip_grad_norm_(model.parameters(), most),
            "step": lambda: scaler.step(optimizer),
            "update": scaler.update,
        }
        for x, y in window:
            with torch.autocast("cuda", torch.float16):
                loss = F.cross_entropy(model(x), y) / len(window)
            scaler.scale(loss).backward()
            for name in inside:
                calls[name]()
        for name in after:
            calls[name]()

    return _updated(update, model, window, most)[0]


def _alike(got: torch.Tensor, other: torch.Tensor, start: torch.Tensor) -> bool:
    """Whether two updates move the weights alike: to a hundredth of the way."""
    way = (other - start).norm().item()
    return bool((got - other).norm().item() <= 0.01 * way + 1e-9)


@turn("as many updates as the loop makes, including short last batches and windows: the right value of T_max")
def update_count(answer: Any) -> None:
    """A function (samples, micro_batch, steps, epochs) that counts the optimizer steps of a whole training."""
    for samples, micro, steps, epochs in (_short_window(), _short_batch_alone(), _even()):
        right = _counted(samples, micro, steps) * epochs
        got = answer(samples, micro, steps, epochs)
        if is_number(got) and got == right:
            continue
        likely = "the return is missing" if got is None else "a number was asked for"
        if is_number(got):
            likely = _miscounted(got, samples, micro, steps, epochs)
        asked = f"{samples} samples, micro-batches of {micro}, windows of {steps}, {epochs} epochs"
        raise NotYet(f"{brief(got)} for {asked}", expected=f"{right} updates", likely=likely)


def _miscounted(got: float, samples: int, micro: int, steps: int, epochs: int) -> str:
    """Why a reader may have counted so many."""
    batches, full = -(-samples // micro), samples // micro
    across, whole = (
        "no window continues into the next epoch: round up in each",
        "the number of steps is whole: round up in each epoch",
    )
    why = {  # of two that are equal the later one counts
        samples / (micro * steps) * epochs: whole,
        batches / steps * epochs: whole,
        batches * epochs: "these are the micro-batches; the optimizer steps once for each window of them",
        -(-batches // steps): "these are the updates of one epoch",
        (batches // steps + 1) * epochs: "if all windows are full there is no short one to add",
        math.ceil(batches * epochs / steps): across,
        math.ceil(samples * epochs / (micro * steps)): across,
        batches // steps * epochs: "// rounds down, and so drops the short last window of each epoch",
        -(-full // steps) * epochs: "the short last micro-batch was dropped; here it is a window of its own",
    }
    return why.get(got, "count the windows of one epoch, the short last one too, and multiply by the epochs")


def _drawn(low: int, high: int) -> int:
    return int(torch.randint(low, high, ()))


def _short_window() -> tuple[int, int, int, int]:
    """A training whose epochs end with a short batch in a short window: half a window at most, so that as many epochs
    would take fewer windows, were they not cut at the ends."""
    micro, steps, epochs = _drawn(8, 40), _drawn(5, 9), _drawn(4, 12)
    batches = steps * _drawn(3, 12) + _drawn(2, steps // 2 + 1)
    return micro * batches - _drawn(1, micro), micro, steps, epochs


def _short_batch_alone() -> tuple[int, int, int, int]:
    """The last window of an epoch has the short last batch and nothing else."""
    micro, steps, epochs = _drawn(8, 40), _drawn(3, 9), _drawn(3, 12)
    return micro * steps * _drawn(3, 12) + _drawn(1, micro), micro, steps, epochs


def _even() -> tuple[int, int, int, int]:
    """Nothing is short."""
    micro, steps, epochs = _drawn(8, 40), _drawn(3, 9), _drawn(3, 12)
    return micro * steps * _drawn(3, 12), micro, steps, epochs


def _counted(samples: int, micro: int, steps: int) -> int:
    """The windows of an epoch, by cutting one."""
    batches = range(0, samples, micro)
    return len(range(0, len(batches), steps))

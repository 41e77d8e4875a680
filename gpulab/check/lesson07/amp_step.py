"""The check of one step in mixed precision: the gradients that it steps with, what is skipped, and in which order."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..audit import MOVED, Kind
from ..base import Trial, check
from ..measure import virtual_gpu
from ..wording import show
from .sections import AUTOCAST, MISTAKES, ORDER, SCALER

PARAMETERS = ("model", "optimizer", "scaler", "scheduler", "loss_fn", "x", "y", "dtype", "max_norm")


def loss_fn(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Not the cross-entropy itself: who passes by the argument is found."""
    return 3.0 * F.cross_entropy(outputs, targets)


@dataclass
class Log:
    """What was called, in order; autocast at each forward pass and loss; the gradients at each step."""

    calls: list[str] = field(default_factory=list)
    forwards: list[torch.dtype | None] = field(default_factory=list)
    losses: list[torch.dtype | None] = field(default_factory=list)
    backwards: list[bool] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)


class Recorder(torch.optim.SGD):
    """SGD that keeps the whole gradient at each of its steps."""

    def __init__(self, model: nn.Module, log: Log) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self.log = log

    def step(self, closure: Any = None) -> Any:
        self.log.gradients.append(flat(self.param_groups[0]["params"]))
        return super().step(closure)


class Scaler(torch.amp.GradScaler):
    """A GradScaler that writes down in which order it is used."""

    def __init__(self, device: str, log: Log, **options: Any) -> None:
        super().__init__(device, **options)
        self.log = log

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        if self.log.calls[-1:] != ["step"]:  # step() unscales by itself where it was not done
            self.log.calls.append("unscale_")
        super().unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        self.log.calls.append("step")
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        self.log.calls.append("update")
        super().update(new_scale)


class Schedule(torch.optim.lr_scheduler.ConstantLR):
    """A constant learning rate that writes down when it is advanced."""

    def __init__(self, optimizer: torch.optim.Optimizer, log: Log) -> None:
        self.log = Log()  # the base class makes a first step of its own
        super().__init__(optimizer, factor=1.0)
        self.log = log

    def step(self, epoch: int | None = None) -> None:
        self.log.calls.append("scheduler")
        super().step()


@dataclass(frozen=True)
class Case:
    """One call: where, in which dtype, with what scale to begin with (None: the scaler is off)."""

    about: str
    device: str
    dtype: torch.dtype
    scale: float | None
    max_norm: float
    overflows: bool = False
    calls: int = 1


CASES = (
    Case("fp16 on a GPU, no clipping needed", "cuda", torch.float16, 2.0**10, 1e6),
    Case("fp16 on a GPU, max_norm = 0.05", "cuda", torch.float16, 2.0**10, 0.05),
    Case("fp16 on a GPU, the scaled gradients overflow", "cuda", torch.float16, 2.0**30, 1e6, overflows=True),
    Case("fp16 on a GPU, three steps, in which the scale grows", "cuda", torch.float16, 2.0**6, 1e6, calls=3),
    Case("bf16 on the CPU, the scaler switched off", "cpu", torch.bfloat16, None, 0.05),
)


@check(lesson=7, says="autocast, scale, unscale, clip, step, update in order, and a skipped step advances no schedule")
def amp_step(student: Any, trial: Trial) -> None:
    """Check a function of (model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm): one training step in
    mixed precision, which returns the loss as a float and whether the optimizer stepped."""
    trial.function(student, PARAMETERS)
    with virtual_gpu():
        for case in CASES:
            _try(student, trial, case)


MAY_CHANGE: dict[str, Iterable[Kind]] = {
    "model": MOVED,  # its place is judged below
    "optimizer": {"state", "settings"},  # the schedule sets the learning rate
    "scaler": {"state"},
    "scheduler": {"state"},
}


def _try(student: Any, trial: Trial, case: Case) -> None:
    first = nn.Linear(16, 24)
    model = nn.Sequential(first, nn.Tanh(), nn.Linear(24, 5)).to(case.device)
    log = Log()
    optimizer = Recorder(model, log)
    enabled = case.scale is not None
    options = {"init_scale": case.scale or 1.0, "growth_interval": 2, "enabled": enabled}
    scaler, schedule = Scaler(case.device, log, **options), Schedule(optimizer, log)
    model.register_forward_pre_hook(lambda *_: log.forwards.append(autocast_dtype(case.device)))

    def note_backward(gradient: torch.Tensor) -> None:
        log.backwards.append(torch.is_autocast_enabled(case.device))

    first.weight.register_hook(note_backward)
    for call in range(case.calls):
        x = torch.randn(12, 16).to(case.device)
        y = torch.randint(0, 5, (12,)).to(case.device)
        want, loss = reference(model, x, y, case)
        for p in model.parameters():  # left by the caller, and not to be counted
            p.grad = torch.full_like(p, 7.0)
        log.calls.clear()
        log.gradients.clear()
        before, scale = weights(model), scaler.get_scale()
        returned = trial.call(
            student,
            *(model, optimizer, scaler, schedule, watched(loss_fn, log, case.device), x, y, case.dtype, case.max_norm),
            may_change=MAY_CHANGE,
            explain=lambda error: explain(log, error),
        )
        _judge_model(trial, model, case)
        _judge_autocast(trial, log, case)
        _judge_calls(trial, log, case, before, model)
        stepped = _judge_gradient(trial, log, case, want, scale)
        _judge_end(trial, log, case, stepped)
        _judge_weights(trial, case, before, weights(model), log, stepped)
        _judge_returned(trial, returned, loss, scale, stepped, case, call)


def reference(model: nn.Module, x: torch.Tensor, y: torch.Tensor, case: Case) -> tuple[torch.Tensor, float]:
    """The true gradient, not clipped, and the loss; fp16 with a scale at which nothing is lost."""
    twin, scale = copy.deepcopy(model), 2.0**10
    twin._forward_pre_hooks.clear()
    for p in twin.parameters():
        p.grad = None
    with torch.autocast(case.device, dtype=case.dtype):
        loss = loss_fn(twin(x), y)
    (loss * scale).backward()
    return flat(twin.parameters()) / scale, loss.item()


def _judge_model(trial: Trial, model: nn.Module, case: Case) -> None:
    dtypes = sorted({str(p.dtype) for p in model.parameters()})
    trial.expect(
        dtypes == ["torch.float32"],
        "the model came back in another dtype",
        expected="parameters in torch.float32, as they were",
        got=" and ".join(dtypes),
        likely="half() or to(dtype) rounds the caller's weights for good; autocast rounds copies",
        read=MISTAKES,
    )
    places = sorted({p.device.type for p in model.parameters()})
    trial.expect(
        places == [case.device],
        "the model was moved to another device",
        expected=f"the model on {case.device}, where its caller put it",
        got=" and ".join(places),
        read=AUTOCAST,
    )


def _judge_autocast(trial: Trial, log: Log, case: Case) -> None:
    wanted = f'torch.autocast("{case.device}", dtype={case.dtype}) around model and loss'
    trial.expect(
        bool(log.forwards) and None not in log.forwards,
        "the forward pass does not run under autocast",
        expected=wanted,
        got=f"autocast on {case.device} was off ({case.about})" if log.forwards else "no forward pass of the model",
        likely="the block is missing, or for another device: ask x.device.type",
        read=AUTOCAST,
    )
    trial.expect(
        set(log.forwards) == {case.dtype},
        "autocast runs in another dtype than the one asked for",
        expected=wanted,
        got=", ".join(sorted({str(dtype) for dtype in log.forwards})),
        likely="without dtype= autocast takes float16 on a GPU and bfloat16 on the CPU: pass the argument on",
        read=MISTAKES,
    )
    trial.expect(
        bool(log.losses),
        "the loss function that was passed in is not used",
        expected="loss_fn(outputs, targets)",
        got="no call of it",
        read=ORDER,
    )
    trial.expect(
        set(log.losses) == {case.dtype},
        "the loss is not under autocast",
        expected=wanted,
        got="autocast was off when loss_fn was called",
        likely="the block ends after the model, so the loss of its 16-bit outputs is computed in 16 bits",
        read=AUTOCAST,
    )
    trial.expect(
        len(log.forwards) == len(log.losses) <= case.calls,
        "the model runs more than once in a step",
        expected="one forward pass and one loss",
        got=f"{len(log.forwards)} forward passes and {len(log.losses)} losses",
        read=ORDER,
    )
    trial.expect(
        not any(log.backwards),
        "backward runs under autocast",
        expected="backward() after the autocast block",
        got="autocast was on in the backward pass",
        likely="each backward takes its forward's dtype by itself; the block holds the forward pass and the loss",
        read=AUTOCAST,
    )


def _judge_calls(trial: Trial, log: Log, case: Case, before: torch.Tensor, model: nn.Module) -> None:
    through = log.calls.count("step")
    direct = len(log.gradients) - through
    trial.expect(
        direct <= 0,
        "optimizer.step() is called directly",
        expected="scaler.step(optimizer), which unscales where that was not done and skips on inf or NaN",
        got=f"{len(log.gradients)} steps of the optimizer, {through} of them by scaler.step",
        likely="it steps with whatever is in .grad: scaled numbers, or inf",
        read=ORDER,
    )
    trial.expect(
        through > 0,
        "scaler.step(optimizer) is never called",
        expected="scaler.step(optimizer), once",
        got="no step" if torch.equal(before, weights(model)) else "weights that were changed by hand",
        read=ORDER,
    )


def _judge_gradient(trial: Trial, log: Log, case: Case, true: torch.Tensor, scale: float) -> bool:
    """Judge what the optimizer stepped with; whether it should step."""
    if case.overflows:
        trial.expect(
            not log.gradients,
            "the optimizer steps although the gradients overflow",
            expected=f"a skipped step: {case.about}",
            got="a step of the optimizer",
            likely="scaler.step skips by itself if the gradients are scaled by the scaler that was passed in, and inf "
            "is not clipped or replaced before",
            read=SCALER,
        )
        return False
    norm = float(true.norm())
    want = true * min(1.0, case.max_norm / norm)
    trial.expect(
        bool(log.gradients),
        "a good step is skipped",
        expected=f"a step with a gradient of norm {float(want.norm()):.4g}: {case.about}",
        got="no step of the optimizer",
        likely="something made the gradient inf or NaN: scaled twice, perhaps",
        read=SCALER,
    )
    got = log.gradients[0]
    if close(got, want):
        return True
    rows = {
        "expected": f"a step with a gradient of norm {float(want.norm()):.4g}: {case.about}",
        "got": f"a gradient of norm {float(got.norm()):.4g}",
    }
    stale = torch.full_like(true, 7.0)
    for candidate, summary, likely, read in (
        (
            true * case.max_norm / norm / scale,
            "the gradients are clipped while they are still scaled",
            "the scaler multiplied them by its scale, so nearly every norm is above max_norm: unscale_ first",
            ORDER,
        ),
        (
            true,
            "the gradient is not clipped",
            "clip_grad_norm_ is missing, comes after the step, or comes before backward",
            ORDER,
        ),
        (
            true / scale,
            "the gradients are divided by the scale although the loss was not scaled",
            "backward runs on scaler.scale(loss), not on the loss",
            ORDER,
        ),
        (true * scale, "the optimizer steps with scaled gradients", "unscale them", ORDER),
        (true.clamp(-case.max_norm, case.max_norm), "single elements are clipped, not the norm", _VALUE, ORDER),
        (
            true + stale,
            "gradients that were there before are counted too",
            "clear them before backward: zero_grad is missing, or comes after the step only",
            ORDER,
        ),
        (
            true + stale / scale,
            "gradients that were there before are counted too",
            "clear them before backward: zero_grad is missing, or comes after the step only",
            ORDER,
        ),
        (torch.zeros_like(true), "the gradient is 0 at the step", "zero_grad stands between backward and step", ORDER),
    ):
        if close(got, candidate):
            trial.fail(summary, likely=likely, read=read, **rows)
    mixed = true + stale / scale
    if close(got, mixed * min(1.0, case.max_norm / float(mixed.norm()))):
        rows["likely"] = "clear them before backward, not after it"
        trial.fail("gradients that were there before are counted too", read=ORDER, **rows)
    ratio = float(got @ want / (want @ want))
    likely = f"its direction is right, and it is {ratio:.4g} times as long" if close(got / (ratio or 1), want) else ""
    trial.fail("the optimizer steps with another gradient", likely=likely, read=ORDER, **rows)


_VALUE = "clip_grad_value_ turns the gradient into another direction; clip_grad_norm_ keeps it and shortens it"


def _judge_end(trial: Trial, log: Log, case: Case, stepped: bool) -> None:
    calls = [name for name in log.calls if name != "unscale_"]
    trial.expect(
        calls.count("step") == 1,
        "scaler.step runs more than once",
        expected="one scaler.step in a training step",
        got=", ".join(log.calls),
        read=ORDER,
    )
    trial.expect(
        calls.count("update") == 1,
        "scaler.update() is missing" if "update" not in calls else "scaler.update() runs more than once",
        expected="step, then update, once in every training step",
        got=", ".join(log.calls),
        likely="without it the scale never adapts, and the next unscale_ raises" if "update" not in calls else "",
        read=ORDER,
    )
    trial.expect(
        calls.index("update") > calls.index("step"),
        "scaler.update() comes before the step",
        expected="step, then update",
        got=", ".join(log.calls),
        likely="update ends the scaler's step: it forgets that unscale_ has run and what was found",
        read=ORDER,
    )
    advanced = calls.count("scheduler")
    if not stepped:
        trial.expect(
            advanced == 0,
            "the schedule advances after a skipped step",
            expected=f"no scheduler.step(): {case.about}, so no weight changed",
            got=f"scheduler.step() {advanced} times",
            likely="the schedule counts updates of the weights: advance it only where the optimizer stepped",
            read=ORDER,
        )
        return
    trial.expect(
        advanced == 1,
        "the schedule does not advance with the step",
        expected=f"scheduler.step() once: {case.about}",
        got=f"{advanced} times",
        likely="after a step the scale may be the same or larger; only after an overflow it is smaller. That of a "
        "scaler that is switched off is always 1"
        if not advanced
        else "",
        read=ORDER,
    )
    trial.expect(
        calls.index("scheduler") > calls.index("step"),
        "the schedule advances before the step",
        expected="the optimizer's step, then the schedule",
        got=", ".join(log.calls),
        likely="the first step would run at the second learning rate",
        read=ORDER,
    )


def _judge_weights(
    trial: Trial, case: Case, before: torch.Tensor, after: torch.Tensor, log: Log, stepped: bool
) -> None:
    want = before - 0.1 * log.gradients[0] if stepped else before
    trial.expect(
        bool(torch.allclose(after, want, rtol=1e-4, atol=1e-6)),
        "the weights are not where the optimizer's step leads",
        expected="weights moved by optimizer.step() only",
        got=f"a relative difference of {float((after - want).norm() / want.norm()):.3g}",
        likely="the weights are updated by hand too, or the learning rate was changed",
        read=ORDER,
    )


def _judge_returned(
    trial: Trial, returned: Any, loss: float, scale: float, stepped: bool, case: Case, call: int
) -> None:
    pair = isinstance(returned, tuple | list) and len(returned) == 2
    trial.expect(
        pair,
        "what is returned is no pair",
        expected="(loss, stepped): a float and a bool",
        got=show(returned),
        likely="the function ends without a return" if returned is None else "",
    )
    value, flag = returned
    trial.expect(
        isinstance(value, float),
        "the loss is not returned as a float",
        expected=f"a float near {loss:.4g}",
        got=show(value),
        likely="a tensor: call .item(), or float()" if isinstance(value, torch.Tensor) else "",
    )
    scaled = case.scale is not None and math.isclose(value, loss * scale, rel_tol=0.05)
    trial.expect(
        math.isclose(value, loss, rel_tol=0.05),
        "the loss that is returned is scaled" if scaled else "the loss that is returned is another one",
        expected=f"about {loss:.4g}: {case.about}",
        got=f"{value:.6g}",
        likely="scaler.scale(loss) is for backward; log the loss itself" if scaled else "",
        read=SCALER,
    )
    flag = flag.item() if isinstance(flag, torch.Tensor) and flag.numel() == 1 else flag
    trial.expect(
        isinstance(flag, bool),
        "whether the optimizer stepped is not returned as a bool",
        expected="True or False",
        got=show(flag),
        likely="scaler.step returns what optimizer.step returns: None" if flag is None else "",
    )
    why = "the loss is finite although its scaled gradients overflow: compare the scale before and after update"
    if stepped:
        why = "the scale falls when a step was skipped, and may grow when it was not"
    trial.expect(
        flag is stepped,
        "a step that happened is reported as skipped" if stepped else "a skipped step is reported as one that happened",
        expected=f"{stepped}: {case.about}" + (f", call {call + 1}" if case.calls > 1 else ""),
        got=str(flag),
        likely=why,
        read=SCALER,
    )


def autocast_dtype(device: str) -> torch.dtype | None:
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def watched(function: Callable[..., torch.Tensor], log: Log, device: str) -> Callable[..., torch.Tensor]:
    def call(*args: Any, **options: Any) -> torch.Tensor:
        log.losses.append(autocast_dtype(device))
        return function(*args, **options)

    return call


def flat(parameters: Any) -> torch.Tensor:
    """All gradients as one vector on the CPU; zeros where there is none."""
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).detach().flatten().cpu() for p in parameters])


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().cpu() for p in model.parameters()])


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).norm() <= 0.02 * b.norm())


def explain(log: Log, error: str) -> str:
    """What an exception likely means, from its text and from what the scaler was asked before it."""
    if "unscale_() has already been called" in error:
        return "unscale_ divides in place, so it runs once between two updates"
    if "unscale_() is being called after step()" in error:
        return "unscale_ comes before scaler.step, and clipping between them"
    if "_scale is None" in error:
        return "nothing was scaled: unscale_ and step need gradients from scaler.scale(loss).backward()"
    if "No inf checks were recorded" in error:
        if "update" in log.calls and "step" not in log.calls:
            return "scaler.update comes before scaler.step: it ends the scaler's step"
        return "there is no gradient to step with: zero_grad stands between backward and step, or update before step"
    if "FP16 gradients" in error:
        return "the model was converted to half: the parameters stay float32, autocast casts copies"
    if "must have the same dtype" in error or "should be the same" in error:
        return "only one of data and model was converted: with autocast convert neither"
    if "on the same device" in error:
        return "everything comes on one device, x.device: nothing need be moved"
    if "does not require grad" in error:
        return "the loss has no graph: no_grad, detach or item came before backward"
    return ""

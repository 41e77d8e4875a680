"""The check of a loss scaler: a student's class and torch.amp.GradScaler on the same random traces, step by step."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..audit import ANYTHING
from ..base import Trial, check
from ..wording import show
from .sections import ORDER, SCALER

LR = 0.5
INF, NAN = math.inf, math.nan


@dataclass(frozen=True)
class Step:
    """One iteration: the true gradients of the parameters (None: no gradient), which are scaled before the student's
    code sees them; whether `unscale_` is called before `step`."""

    gradients: tuple[torch.Tensor | None, ...]
    unscale: bool

    @property
    def bad(self) -> bool:
        return any(g is not None and not bool(torch.isfinite(g).all()) for g in self.gradients)


@dataclass(frozen=True)
class Trace:
    """What a scaler is made with, and what it goes through."""

    init_scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int
    steps: tuple[Step, ...]
    about: str

    @property
    def options(self) -> tuple[float, float, float, int]:
        return self.init_scale, self.growth_factor, self.backoff_factor, self.growth_interval


@dataclass(frozen=True)
class Seen:
    """The scale after each update, and the parameters after each step."""

    scales: list[float]
    weights: list[torch.Tensor]
    gradients: list[torch.Tensor | None]  # of the first parameter after an explicit unscale_, else None
    replaced: list[int] = field(default_factory=list)  # the steps after whose unscale_ a gradient was another tensor


SHAPES = ((3,), (2, 2), (1,))


def good(unscale: bool = False) -> Step:
    return Step(tuple(torch.randn(shape) for shape in SHAPES), unscale)


def bad(value: float, place: int = -1, unscale: bool = False) -> Step:
    """A step with one element `value`, in the parameter at `place`."""
    gradients = [torch.randn(shape) for shape in SHAPES]
    gradients[place].view(-1)[-1] = value
    return Step(tuple(gradients), unscale)


def traces() -> list[Trace]:
    """Each the least that shows one thought, then some drawn at random."""
    scale = 2.0 ** random.randint(4, 12)
    unused = Step((torch.randn(3), None, torch.randn(1)), unscale=False)
    large, largest = (Step(tuple(torch.full(shape, size) for shape in SHAPES), False) for size in (1e20, 2e37))
    # what looks at too little or too much fails at its own steps, and so is told apart by the scales
    signs = (large, largest, bad(INF, 2), good(), bad(NAN, 1), good(), bad(-INF, 0), good(), good())
    fixed = [
        Trace(scale, 2.0, 0.5, 3, tuple(good() for _ in range(8)), "8 good steps, growth_interval 3"),
        Trace(8.0, 2.0, 0.5, 5, signs, "gradients of 1e20, of 2e37, an inf, a good step, NaN, good, -inf, good, good"),
        Trace(scale, 2.0, 0.5, 3, (good(), good(), bad(INF), good(), good(), good()), "2 good, an inf, 3 good steps"),
        Trace(scale, 2.0, 0.5, 9, (good(True), bad(INF, 1, True), good(True)), "unscale_ called before each step"),
        Trace(scale, 2.0, 0.5, 9, (unused,), "a parameter without gradient"),
        Trace(2.0, 2.0, 0.5, 9, tuple(bad(INF) for _ in range(4)), "four bad steps from a scale of 2"),
        Trace(scale, 4.0, 0.25, 2, (good(), good(), bad(INF), good()), "growth_factor 4, backoff_factor 0.25"),
    ]
    drawn = []
    for _ in range(6):
        kinds = random.choices(("good", "inf", "nan"), (8, 1, 1), k=12)
        steps = tuple(
            good(random.random() < 0.3)
            if kind == "good"
            else bad(INF if kind == "inf" else NAN, random.randrange(3), random.random() < 0.3)
            for kind in kinds
        )
        drawn.append(Trace(scale, 2.0, 0.5, random.randint(2, 4), steps, f"random: {' '.join(kinds)}"))
    return fixed + drawn


def parameters() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(shape)) for shape in SHAPES]


def optimizer_for(params: list[torch.nn.Parameter]) -> torch.optim.SGD:
    return torch.optim.SGD([{"params": params[:2]}, {"params": params[2:]}], lr=LR)


def run(make: Callable[..., Any], trace: Trace, seen: Seen) -> None:
    """Take a scaler through a trace, as a training loop would; `seen` fills up on the way."""
    scaler, params = make(*trace.options), parameters()
    optimizer = optimizer_for(params)
    for i, step in enumerate(trace.steps):
        optimizer.zero_grad()
        scale = scaler.scale(torch.ones(())).item()  # what the loss is multiplied by
        for p, g in zip(params, step.gradients, strict=True):
            p.grad = None if g is None else g * scale
        if step.unscale:
            held = [None if p.grad is None else p.grad.detach() for p in params]  # keeps their memory from being reused
            scaler.unscale_(optimizer)
            for p, old in zip(params, held, strict=True):
                if p.grad is not None and old is not None and p.grad.data_ptr() != old.data_ptr():
                    seen.replaced.append(i)
            first = params[0].grad
            seen.gradients.append(None if first is None else first.clone())
        else:
            seen.gradients.append(None)
        scaler.step(optimizer)
        seen.weights.append(torch.cat([p.detach().flatten() for p in params]).clone())
        scaler.update()
        seen.scales.append(float(scaler.get_scale()))


def reference(trace: Trace) -> Seen:
    seen = Seen([], [], [])
    run(lambda a, b, c, d: torch.amp.GradScaler("cpu", a, b, c, d), trace, seen)
    return seen


def scales_with(trace: Trace, mistake: str) -> list[float]:
    """The scale after each update of a scaler with this misconception."""
    scale, count, found = trace.init_scale, 0, []
    for step in trace.steps:
        values = [g for g in step.gradients if g is not None]
        if mistake in ("first parameter", "first group"):
            values = values[: 1 if mistake == "first parameter" else 2]
        flat = torch.cat([g.flatten() for g in values]) * scale
        is_bad = {
            "nan only": bool(flat.isnan().any()),
            "inf only": bool(flat.isinf().any()),
            "+inf only": bool((flat == INF).any() or flat.isnan().any()),
            "loss": False,
            "norm": not math.isfinite(float(flat.norm())),
            "sum": not all(math.isfinite(float((g * scale).sum())) for g in values),
        }.get(mistake, not bool(torch.isfinite(flat).all()))
        if is_bad:
            scale *= {"never backs off": 1.0, "fixed factors": 0.5}.get(mistake, trace.backoff_factor)
            if mistake == "floor":
                scale = max(scale, 1.0)
            if mistake != "counter survives":
                count = 0
        else:
            count += 1
            late = mistake == "one late"
            interval = 1 if mistake == "every step" else trace.growth_interval
            past = mistake == "grows once" and count > interval
            if count >= interval + late and mistake != "never grows" and not past:
                scale *= 2.0 if mistake == "fixed factors" else trace.growth_factor
                count = 0 if mistake not in ("counter goes on", "grows once") else count
        found.append(scale)
    return found


MISTAKES: dict[str, tuple[str, str]] = {
    "loss": (
        "a step with inf or NaN does not lower the scale",
        "the loss is finite while its gradients overflow: look at every gradient, not at the loss",
    ),
    "never backs off": (
        "an overflow is found, and the scale stays",
        "multiply the scale by backoff_factor in update(); otherwise the next step overflows too",
    ),
    "nan only": ("NaN is found, inf is not", "an overflow in fp16 is inf; torch.isfinite finds both"),
    "inf only": ("inf is found, NaN is not", "inf - inf and 0 * inf make NaN; torch.isfinite finds both"),
    "+inf only": ("-inf is not found", "g == inf misses the negative one; torch.isfinite finds all"),
    "first parameter": (
        "only the first parameter is looked at",
        "one inf anywhere spoils the step: look at all of them",
    ),
    "first group": (
        "only the first parameter group is looked at",
        "optimizer.param_groups is a list: loop over all groups and their parameters",
    ),
    "every step": (
        "the scale grows after every good step",
        "it grows after growth_interval good steps in a row; otherwise every second step would overflow",
    ),
    "counter survives": (
        "the count of good steps survives an overflow",
        "the interval is counted in good steps in a row: begin anew after an overflow",
    ),
    "never grows": (
        "the scale never grows",
        "after growth_interval good steps multiply it by growth_factor: gradients shrink as training goes on",
    ),
    "one late": ("the scale grows one step late", "after growth_interval good steps, not growth_interval + 1"),
    "counter goes on": (
        "after the first growth the scale grows at every step",
        "the count of good steps begins anew when the scale has grown",
    ),
    "grows once": (
        "the scale grows once, and then no more",
        "after growth the count begins anew: set it to 0, or it never comes to growth_interval again",
    ),
    "norm": (
        "large finite gradients are taken for an overflow",
        "the norm squares its elements and overflows itself: look at the elements, with torch.isfinite",
    ),
    "sum": (
        "large finite gradients are taken for an overflow",
        "a sum of finite numbers may be inf: look at the elements, with torch.isfinite",
    ),
    "floor": ("the scale stops at 1", "GradScaler has no floor: large gradients may need a scale below 1"),
    "fixed factors": (
        "growth_factor and backoff_factor are not used",
        "2 and 0.5 are defaults; the caller gave others",
    ),
}
METHODS = ("scale", "unscale_", "step", "update", "get_scale")


@check(lesson=7, says="on every trace it scales, skips, backs off and grows as torch.amp.GradScaler does")
def loss_scaler(student: Any, trial: Trial) -> None:
    """Check a class (init_scale, growth_factor, backoff_factor, growth_interval) with the methods scale(loss),
    unscale_(optimizer), step(optimizer), update() and get_scale()."""
    wanted = "a class with the methods " + ", ".join(METHODS)
    trial.expect(
        callable(student),
        "this is not a class",
        expected=wanted,
        got=show(student),
        likely="an object came: pass the class itself, without calling it",
    )
    made = trial.call(student, 1024.0, 2.0, 0.5, 5, explain=_explain, who="your class")
    missing = [name for name in METHODS if not callable(getattr(made, name, None))]
    trial.expect(
        not missing,
        "the class lacks a method" if made is not None else "there is no scaler",
        expected=wanted,
        got=f"no {', '.join(missing)}" if made is not None else "None, when it is called with its four numbers",
    )
    _judge_scale(student, trial)
    for trace in traces():
        want, got = reference(trace), Seen([], [], [])
        trial.call(run, student, trace, got, may_change={"seen": ANYTHING}, explain=_explain, who="your class")
        _judge(trial, trace, got, want)


def _judge_scale(student: Any, trial: Trial) -> None:
    """The loss keeps its graph, and is multiplied by the first scale."""
    scale = 2.0 ** random.randint(4, 10)
    x = torch.tensor(3.0, requires_grad=True)

    loss = x * 2

    def scaled() -> Any:
        return student(scale, 2.0, 0.5, 5).scale(loss)

    got = trial.call(scaled, besides={"loss": loss}, explain=_explain, who="your class")
    trial.expect(
        isinstance(got, torch.Tensor) and got.numel() == 1,
        "scale(loss) does not return the scaled loss",
        expected="a tensor: the loss times the scale",
        got=show(got),
        likely="scale() ends without a return" if got is None else "",
        read=SCALER,
    )
    trial.expect(
        got.requires_grad,
        "scale(loss) cuts the graph",
        expected="a tensor that backward can be called on",
        got="a tensor without a graph",
        likely="item(), detach() or torch.tensor() made a new number: multiply the loss itself",
        read=SCALER,
    )
    trial.expect(
        math.isclose(got.item(), 6.0 * scale, rel_tol=1e-6),
        "scale(loss) is another number than loss times scale",
        expected=f"{6.0 * scale:g} for a loss of 6 and a scale of {scale:g}",
        got=f"{got.item():g}",
        likely="divided in place of multiplied" if math.isclose(got.item(), 6.0 / scale, rel_tol=1e-6) else "",
        read=SCALER,
    )


def _judge(trial: Trial, trace: Trace, got: Seen, want: Seen) -> None:
    about = {"expected": f"scales {_list(want.scales)}: {trace.about}", "got": f"scales {_list(got.scales)}"}
    _judge_unscaled(trial, trace, got, want)
    first = next((i for i, (a, b) in enumerate(zip(got.scales, want.scales, strict=True)) if not _close(a, b)), None)
    moved = next((i for i, (a, b) in enumerate(zip(got.weights, want.weights, strict=True)) if not _equal(a, b)), None)
    if first is not None and (moved is None or first <= moved):
        for name, (summary, likely) in MISTAKES.items():
            if all(map(_close, got.scales, scales_with(trace, name))):
                trial.fail(summary, likely=likely, read=SCALER, **about)
    if moved is not None and (first is None or moved <= first):
        _judge_weights(trial, trace, got, want, moved)
    if first is None:
        return
    likely = ""
    if got.scales[first] < want.scales[first] and not trace.steps[first].bad:
        likely = "step and update both changed it, or a good step was taken for a bad one"
    trial.fail(f"the scale after step {first + 1} is not GradScaler's", likely=likely, read=SCALER, **about)


def _judge_unscaled(trial: Trial, trace: Trace, got: Seen, want: Seen) -> None:
    for i, (a, b) in enumerate(zip(got.gradients, want.gradients, strict=True)):
        if b is None or not bool(torch.isfinite(b).all()):
            continue
        trial.expect(
            a is not None and _equal(a, b),
            "unscale_ does not leave the true gradient in .grad",
            expected="the scaled gradient divided by the scale, in place",
            got=f"{float(a.norm() / b.norm()):.4g} times that in step {i + 1}" if a is not None else "no gradient",
            likely="clipping comes between unscale_ and step, so unscale_ must divide at once",
            read=ORDER,
        )
    trial.expect(
        not got.replaced,
        "unscale_ does not divide in place",
        expected="the same tensors in .grad, with other numbers in them",
        got=f"new tensors in step {got.replaced[0] + 1}" if got.replaced else "",
        likely="p.grad = p.grad / scale makes a new tensor, and what holds the old one keeps scaled numbers: "
        "p.grad.div_(...), or mul_",
        read=ORDER,
    )


def _judge_weights(trial: Trial, trace: Trace, got: Seen, want: Seen, at: int) -> None:
    before = want.weights[at - 1] if at else torch.ones_like(want.weights[0])
    rows = {"expected": f"{trace.about}; the weights as with GradScaler", "got": f"other weights after step {at + 1}"}
    step, a = trace.steps[at], got.weights[at]
    if step.bad:
        trial.expect(
            _equal(a, before),
            "the optimizer steps although a gradient is inf or NaN",
            likely="step() must skip optimizer.step() then: one NaN in a weight, and the run is lost",
            read=SCALER,
            **rows,
        )
    if _equal(a, before):
        likely = "optimizer.step() is never called, or a finite gradient was taken for an overflow"
        if any(s.bad for s in trace.steps[:at]):
            likely = "the flag that an overflow was found is not cleared by update()"
        trial.fail("a good step is skipped", likely=likely, read=SCALER, **rows)
    true = torch.cat(
        [(torch.zeros(s) if g is None else g).flatten() for s, g in zip(SHAPES, step.gradients, strict=True)]
    )
    moves = (before - a) / LR
    of_first_group = sum(math.prod(shape) for shape in SHAPES[:2])
    firsts, lasts = (slice(None, of_first_group), slice(of_first_group, None))
    if _near(moves[firsts], true[firsts]) and not _near(moves[lasts], true[lasts]):
        likely = "all groups: for group in optimizer.param_groups, and in it for p in group['params']"
        trial.fail("only the first parameter group is unscaled and stepped", likely=likely, read=SCALER, **rows)
    ratio = float(moves @ true / (true @ true))
    scale = want.scales[at - 1] if at else trace.init_scale
    for factor, summary, likely in (
        (scale, "the optimizer steps with scaled gradients", "divide them by the scale before optimizer.step()"),
        (1 / scale, "the gradients are divided twice", "step() must know that unscale_ has run, until update()"),
        (2.0, "the optimizer steps twice", "one optimizer.step() for each call of step()"),
    ):
        if math.isclose(ratio, factor, rel_tol=1e-3):
            trial.fail(summary, likely=likely, read=ORDER, **rows)
    trial.fail("the weights are not where GradScaler leads", read=SCALER, **rows)


def _close(a: float, b: float) -> bool:
    return a == b or math.isclose(a, b, rel_tol=1e-5)


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(torch.allclose(a, b, rtol=1e-4, atol=1e-7))


def _near(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(torch.allclose(a, b, rtol=1e-3, atol=1e-4))


def _list(scales: list[float]) -> str:
    return ", ".join(f"{scale:g}" for scale in scales)


def _explain(error: str) -> str:
    if "positional argument" in error or "unexpected keyword" in error:
        return "__init__ takes (init_scale, growth_factor, backoff_factor, growth_interval), in this order"
    if "'NoneType'" in error or "not NoneType" in error:
        return "a parameter that was not used has no gradient: its .grad is None, and is passed over"
    if "leaf Variable that requires grad" in error:
        return "gradients are changed under torch.no_grad(), and with p.grad, not p"
    return ""

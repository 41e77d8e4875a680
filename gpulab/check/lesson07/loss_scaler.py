"""The check of a loss scaler: a student's class and torch.amp.GradScaler through the same iterations."""

from __future__ import annotations

import inspect
import itertools
import math
import random
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from ..audit import Kind
from ..base import OPTIMIZERS, Trial
from ..contract import Clause, Contract, Facts, Near
from ..measure import virtual_gpu
from ..scenes import Scene
from ..wording import as_float, is_number, show
from .sections import ORDER, SCALER

METHODS = ("scale", "unscale_", "step", "update", "get_scale")
WANTED = "a class with the methods " + ", ".join(METHODS)
SHAPES = ((3,), (2, 2), (), (2,))  # of the parameters; the last is the one that may have no gradient
ITERATIONS = 7
LARGE = (2e38, 2e38, 2e38, 1e25, 1e25, 0.0, 0.0)  # scaled gradients that overflow when squared, or when added up
CLAUSES = (
    Clause(
        "LossScaler(init_scale, growth_factor, backoff_factor, growth_interval), then in every iteration:",
        ["methods that are missing"],
        "the class lacks a method",
        "what it is called with its four numbers for is an object with all five methods",
        SCALER,
    ),
    Clause(
        "returns the loss times the scale, with its graph",
        ["what scale(loss) returns", "first scale", "gradient through scale(loss)"],
        "scale(loss) is not the loss times the scale, with its graph",
        "multiply the loss itself; item(), detach() and torch.tensor() make a number without a graph",
        SCALER,
    ),
    Clause(
        "divides the gradients of all the optimizer's parameters by the scale",
        ["gradients after unscale_"],
        "unscale_ does not leave the true gradients in .grad",
        "clipping comes between unscale_ and step, so unscale_ must divide at once",
        ORDER,
    ),
    Clause(
        "by the scale, in place",
        ["gradients after unscale_, in the caller's tensors"],
        "unscale_ does not divide in place",
        "p.grad = p.grad / scale makes a new tensor, and what holds the old one keeps scaled numbers: p.grad.div_(...) "
        "or mul_",
        ORDER,
    ),
    Clause(
        "a parameter may have no gradient (.grad is None), and keeps none",
        ["gradients made where there were none"],
        "a parameter that had no gradient has one",
        "momentum and weight decay move what has a gradient, zeros too: pass over it",
        ORDER,
    ),
    Clause(
        "then optimizer.step(), unless an inf or NaN was found",
        ["steps of the optimizer after inf or NaN", "steps of the optimizer in good iterations"],
        "the optimizer does not step once in every good iteration, and in no other",
        "what unscale_ notes holds until update() ends the iteration",
        SCALER,
    ),
    Clause(
        "calls unscale_ unless that was done since the last update",
        ["gradients at the optimizer's steps", "weights at the end", "gradients gone after step()"],
        "the optimizer steps with other gradients than the true ones",
        "divided once: by unscale_ where the caller calls it, and then changed by nobody but the caller; else in step",
        ORDER,
    ),
    Clause(
        "after inf or NaN: multiplies the scale by backoff_factor",
        ["factors on the scale after inf or NaN"],
        "an inf or NaN does not multiply the scale by backoff_factor",
        read=SCALER,
    ),
    Clause(
        "After growth_interval good iterations in a row: by growth_factor, and counts anew",
        ["factors on the scale after good iterations"],
        "the scale does not grow after growth_interval good iterations in a row, and only then",
        "the count begins anew after growth and after an overflow; a good iteration that was taken for a bad one "
        "lowers the scale",
        SCALER,
    ),
    Clause(
        "get_scale() the scale, a float",
        ["get_scale()", "get_scale() before update()"],
        "get_scale() is not the scale, as a float",
        read=SCALER,
    ),
)
EDGES = {
    "bad": ("none", "first", "middle", "last two"),  # iterations with an inf or NaN
    "value": (math.inf, -math.inf, math.nan),
    "where": (0, 1, 2),  # the parameter that it is in; there are two groups
    "interval": (1, 3),
    "factors": ((2.0, 0.5), (3.0, 0.25)),
    "first": (2.0**45, 1.0),  # scale
    "unscale": ("never", "always", "in turn"),  # by the caller
    "missing": (True, False),  # gradients
    "device": ("cuda:1", "cpu"),
}
MAY_CHANGE: dict[str, Iterable[Kind]] = {"optimizer": {"parameters", "grad"}}


def possible(scene: Scene) -> bool:
    """Without inf or NaN there is no place of it."""
    return scene.bad != "none" or bool(scene.value == math.inf and scene.where == 0)


class Recorder(torch.optim.SGD):
    """SGD that keeps the whole gradient at each of its steps."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__([{"params": parameters[:2]}, {"params": parameters[2:]}], lr=0.5)
        self.all, self.gradients = parameters, list[torch.Tensor]()

    def step(self, closure: Any = None) -> Any:
        self.gradients.append(flat([p.grad for p in self.all]))
        return super().step(closure)


def run(make: Callable[..., Any], loss: torch.Tensor, job: SimpleNamespace) -> None:
    """Take a scaler through a job, as a training loop would; the job's lists fill up on the way."""
    scaler, optimizer = make(*job.options), job.optimizer
    job.missing = [name for name in METHODS if not callable(getattr(scaler, name, None))]
    if job.missing:
        return
    for gradients, times_scale, unscale in job.iterations:
        out = scaler.scale(loss)
        if not isinstance(out, torch.Tensor) or out.numel() != 1:
            job.returned = show(out, 40)
            return
        if not job.scales:
            job.slope = float(torch.autograd.grad(out.sum(), loss)[0]) if out.requires_grad else 0.0
        job.scales.append(float(out.detach()) / float(loss.detach()))
        for p, g in zip(optimizer.all, gradients, strict=True):
            p.grad = None if g is None else (g * job.scales[-1] if times_scale else g.clone())
        if unscale:
            held = [p.grad for p in optimizer.all]
            scaler.unscale_(optimizer)
            job.unscaled.append(flat([p.grad for p in optimizer.all]))
            job.held.append(flat(held))
            for p in optimizer.all:  # as clipping does, which makes inf finite where it is by value
                p.grad = None if p.grad is None else p.grad.mul_(0.5).clamp_(-3e38, 3e38)
        before, given = len(optimizer.gradients), [p for p in optimizer.all if p.grad is not None]
        scaler.step(optimizer)
        job.gone += [p.grad is None or not bool(p.grad.any()) for p in given]
        job.steps.append(len(optimizer.gradients) - before)
        job.made += [p.grad is not None for p, g in zip(optimizer.all, gradients, strict=True) if g is None]
        job.said_before.append(scaler.get_scale())
        scaler.update()
        job.said.append(scaler.get_scale())
    job.scales.append(float(scaler.scale(loss).detach()) / float(loss.detach()))


def new_job(scene: Scene, iterations: list[Any], device: str) -> SimpleNamespace:
    growth, backoff = scene.factors
    parameters = [torch.nn.Parameter(torch.ones(shape, device=device)) for shape in SHAPES]
    moved = [([None if g is None else g.to(device) for g in gradients], *how) for gradients, *how in iterations]
    names = "scales", "said", "said_before", "unscaled", "held", "steps", "made", "gone", "missing"
    lists: dict[str, Any] = {name: [] for name in names}
    return SimpleNamespace(
        **lists,
        iterations=moved,
        optimizer=Recorder(parameters),
        options=(scene.first, growth, backoff, scene.interval),
        returned="a tensor",
        slope=0.0,
    )


def draw(scene: Scene) -> tuple[list[Any], list[bool]]:
    """Of each iteration the gradients, whether they are still to be scaled, and whether the caller unscales them; and
    which have an inf or NaN."""
    at = {"first": [0], "middle": [random.choice((2, 4))], "last two": [5, 6]}.get(scene.bad, [])
    iterations = []
    for i in range(ITERATIONS):
        gradients: list[Any] = [torch.randn(shape) + 2.0 for shape in SHAPES]
        large = LARGE[i] if scene.bad == "none" else 0.0  # divided by less than 1 they overflow
        if large:
            gradients = [torch.full(shape, large) for shape in SHAPES]
        if i in at:
            flattened = gradients[scene.where].view(-1)
            flattened[random.randrange(len(flattened))] = scene.value
        if scene.missing and i % 2 == 0:
            gradients[-1] = None
        unscale = scene.unscale == "always" or (scene.unscale == "in turn" and i % 2 == 1)
        iterations.append((gradients, not large, unscale))
    return iterations, [i in at for i in range(ITERATIONS)]


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    with virtual_gpu(count=2):
        iterations, bad = draw(scene)
        job, like = (new_job(scene, iterations, device) for device in (scene.device, "cpu"))
        run(partial(torch.amp.GradScaler, "cpu"), new_loss("cpu"), like)
        options: dict[str, Any] = {"besides": {"optimizer": job.optimizer}, "who": "your class", "explain": explain}
        call(new_loss(scene.device), job, may_change=MAY_CHANGE, **options)
        where = f"{show(scene.value)} in the {scene.bad}" if any(bad) else "finite gradients of many sizes"
        interval = f"growth_interval {scene.interval}, a first scale of {scene.first:,.0f}"
        facts = Facts(f"{ITERATIONS} iterations, {where}, {interval}, unscale_ {scene.unscale} by the caller")
        compare(facts, job, like, bad)
        return facts


def compare(facts: Facts, job: SimpleNamespace, like: SimpleNamespace, bad: list[bool]) -> None:
    """The facts of `job`, the student's, with those wanted, GradScaler's; in each group those that make sense."""
    facts.add("methods that are missing", job.missing, [])
    if not facts.hold():
        return
    facts.add("what scale(loss) returns", job.returned, "a tensor")
    if not facts.hold():
        return
    facts.add("first scale", job.scales[0], Near(like.scales[0], 1e-5))
    facts.add("gradient through scale(loss)", job.slope, Near(like.slope, 1e-5))
    if not facts.hold():
        return
    good = [not b for b in bad]
    finite = [i for i, (*_, unscale) in enumerate(like.iterations) if unscale]  # those of which `unscaled` tells
    finite = [i for i, at in enumerate(finite) if good[at]]
    names = "gradients after unscale_", "gradients after unscale_, in the caller's tensors"
    if finite:
        wanted = torch.cat([like.unscaled[i] for i in finite])
        facts.add(names[0], torch.cat([job.unscaled[i] for i in finite]), Near(wanted, 1e-4))
        if facts.hold():
            facts.add(names[1], torch.cat([job.held[i] for i in finite]), Near(wanted, 1e-4))
    facts.add("gradients made where there were none", sum(job.made), 0)
    for name, of in (("after inf or NaN", bad), ("in good iterations", good)):
        if any(of):
            facts.add(f"steps of the optimizer {name}", pick(job.steps, of), pick(like.steps, of))
    facts.seen["the weights stay finite"] = all(bool(p.isfinite().all()) for p in job.optimizer.all)
    if job.steps == like.steps and like.optimizer.gradients:
        stepped, wanted = torch.cat(job.optimizer.gradients), torch.cat(like.optimizer.gradients)
        facts.add("gradients at the optimizer's steps", stepped, Near(wanted, 1e-4))
        if facts.hold():
            ends = [flat([p.detach() for p in one.optimizer.all]) for one in (job, like)]
            facts.add("weights at the end", ends[0], Near(ends[1], 1e-4))
        if facts.hold():
            facts.add("gradients gone after step()", sum(job.gone), 0)
    factors, right = ([b / a if a else math.nan for a, b in itertools.pairwise(s)] for s in (job.scales, like.scales))
    for name, of in (("after inf or NaN", bad), ("after good iterations", good)):
        if any(of):
            facts.add(f"factors on the scale {name}", pick(factors, of), Near(pick(right, of), 1e-5))
    said, before = (
        [as_float(s) if is_number(s) else show(s, 40) for s in each] for each in (job.said, job.said_before)
    )
    facts.add("get_scale()", said, Near(job.scales[1:], 1e-5))
    facts.add("get_scale() before update()", before, Near(job.scales[:-1], 1e-5))


def new_loss(device: str) -> torch.Tensor:
    """A loss of 6 that is no leaf, so that it can be changed in place."""
    return torch.tensor(3.0, device=device, requires_grad=True) * 2


def flat(tensors: Iterable[torch.Tensor | None]) -> torch.Tensor:
    """All as one vector of float64 on the CPU; zeros where there is none."""
    pairs = zip(tensors, SHAPES, strict=True)
    return torch.cat([(torch.zeros(s) if t is None else t).detach().double().flatten().cpu() for t, s in pairs])


def pick(values: list[Any], of: list[bool]) -> list[Any]:
    return [value for value, wanted in zip(values, of, strict=True) if wanted]


def accept(student: Any, trial: Trial) -> Callable[..., Any]:
    """What makes scalers: a class, or a function of the same four numbers."""
    trial.expect(
        callable(student) and (inspect.isclass(student) or not all(hasattr(student, name) for name in METHODS)),
        "this is not a class",
        expected=WANTED,
        got=show(student),
        likely="an object came: pass the class itself, without calling it",
    )
    return partial(run, student)


def explain(error: str) -> str:
    if "positional argument" in error or "unexpected keyword" in error:
        return "__init__ takes (init_scale, growth_factor, backoff_factor, growth_interval), in this order"
    if "'NoneType'" in error or "not NoneType" in error:
        return "a parameter that was not used has no gradient: its .grad is None, and is passed over"
    if "leaf Variable that requires grad" in error:
        return "gradients are changed under torch.no_grad(), and with p.grad, not p"
    return ""


EXERCISE = Contract(
    __file__,
    says="in every iteration it scales, skips, backs off and grows as torch.amp.GradScaler does",
    imports=[OPTIMIZERS],
    parameters=(),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=possible,
    accept=accept,
)

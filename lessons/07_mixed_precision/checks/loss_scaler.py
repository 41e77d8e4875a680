"""Checks exercise 07.3, "a loss scaler of your own": a student's class and PyTorch's in the same iterations."""

from __future__ import annotations

import inspect
import itertools
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from gpulab.exercise.base import OPTIMIZERS, Trial
from gpulab.exercise.contract import Clause, Contract, Facts, Near
from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import as_float, brief, is_number

SCALER, ORDER = "Gradients that vanish, and the scaler", "The order: unscale, clip, step, update"
SAID = "get_scale() before and after each update()"
METHODS = ("scale", "unscale_", "step", "update", "get_scale")
SHAPES = ((3,), (), (2, 2), (2,))  # of the parameters, in two groups of two
MISSING = 2  # the one that may have no gradient; one of its group comes after it
LARGE = (2e38, 2e38, 2e38, 1e25, 1e25, 0.0, 0.0)  # scaled gradients that overflow when squared, or when added up
CLAUSES = [
    Clause(quote, facts, summary, rule, read)
    for facts, quote, read, summary, rule in (
        (["methods that are missing"],
         "LossScaler(init_scale, growth_factor, backoff_factor, growth_interval), then in every iteration:", SCALER,
         "the class lacks a method", "called with its four numbers it must make an object with all five methods"),
        (["what scale(loss) returns", "first scale", "gradient through scale(loss)"],
         "returns the loss times the scale, with its graph", SCALER,
         "scale(loss) is not the loss times the scale, with its graph", ""),
        (["steps of the optimizer in each iteration"],
         "then optimizer.step(), unless an inf or NaN was found", SCALER,
         "the optimizer does not step once in every good iteration, and in no other",
         "what unscale_ records holds until update() ends the iteration"),
        (["factors on the scale"], "after inf or NaN: multiplies the scale by backoff_factor. After growth_interval "
                                   "good iterations in a row: by growth_factor, and restarts the count", SCALER,
         "the scale is wrong after an iteration", "only update() changes it"),
        (["gradients after unscale_", "gradients after unscale_, in the caller's tensors"],
         "divides the gradients of all the optimizer's parameters by the scale, in place", ORDER,
         "unscale_ does not leave the true gradients in .grad, or does not divide in place",
         "code that refers to the old tensor must see the true gradient too"),
        (["gradients made where there were none"],
         "a parameter may have no gradient (.grad is None), and then gets none", ORDER,
         "a parameter that had no gradient has one",
         "momentum and weight decay change every parameter with a gradient, even zeros"),
        (["gradients at the optimizer's steps", "weights at the end", "gradients gone after step()"],
         "calls unscale_ unless that was done since the last update", ORDER,
         "the optimizer does not step with the true gradients",
         "divide them once, and step with what the caller makes of them after unscale_"),
        ([SAID], "get_scale(): the scale, a float", SCALER,
         "get_scale() is not the scale, as a float", "it must not change from one update() to the next"),
    )
]  # fmt: skip
EDGES = {
    "bad": ("none", "first", "middle", "last two"),  # iterations with an inf or NaN
    "value": (math.inf, -math.inf, math.nan),
    "where": (0, 1, 3),  # the parameter that it is in
    "interval": (1, 3),
    "factors": ((2.0, 0.5), (3.0, 0.25)),
    "first": (2.0**45, 1.0),  # scale
    "unscale": ("never", "always", "in turn"),  # by the caller
    "missing": (True, False),  # gradients
    "device": ("cuda:1", "cpu"),
}
ERRORS = {
    **dict.fromkeys(("positional argument", "unexpected keyword"),
                    "__init__ takes (init_scale, growth_factor, backoff_factor, growth_interval), in this order"),
    "NoneType": "a parameter that was not used has no gradient: its .grad is None, so skip it",
    "leaf Variable that requires grad": "change gradients under torch.no_grad(), and change p.grad, not p",
}  # fmt: skip


def run(make: Any, loss: torch.Tensor, optimizer: Any, iterations: Sequence[Any], options: Sequence[Any]) -> Any:
    """What is seen of a scaler that is taken through these iterations, as in a training loop."""
    seen = defaultdict[str, list[Any]](list)
    scaler = make(*options)
    make(2.0, 7.0, 0.125, 2)  # another one that lives meanwhile
    seen["missing"] = [name for name in METHODS if not callable(getattr(scaler, name, None))]
    if seen["missing"]:
        return seen
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    hook = optimizer.register_step_pre_hook(lambda *_: seen["stepped"].append(flat([p.grad for p in parameters])))
    for gradients, times_scale, unscale in iterations:
        out = scaler.scale(loss)
        if not isinstance(out, torch.Tensor) or out.numel() != 1:
            seen["returned"] = [brief(out, 40)]
            break
        seen["slopes"].append(float(torch.autograd.grad(out.sum(), loss)[0]) if out.requires_grad else 0.0)
        seen["scales"].append(float(out.detach()) / float(loss.detach()))
        for p, g in zip(parameters, gradients, strict=True):
            p.grad = None if g is None else (g * seen["scales"][-1] if times_scale else g.clone()).to(p.device)
        if unscale:
            held = [p.grad for p in parameters]
            scaler.unscale_(optimizer)
            seen["unscaled"].append(flat([p.grad for p in parameters]))
            seen["held"].append(flat(held))
            for p in parameters:  # as clipping does, which makes inf finite where it is by value
                p.grad = None if p.grad is None else p.grad.mul_(0.5).clamp_(-3e38, 3e38)
        before, given = len(seen["stepped"]), [p for p in parameters if p.grad is not None]
        scaler.step(optimizer)
        seen["gone"] += [p.grad is None or not bool(p.grad.any()) for p in given]
        seen["steps"].append(len(seen["stepped"]) - before)
        seen["made"] += [p.grad is not None for p, g in zip(parameters, gradients, strict=True) if g is None]
        seen["said"].append(scaler.get_scale())
        scaler.update()
        seen["said"].append(scaler.get_scale())
    else:
        seen["scales"].append(float(scaler.scale(loss).detach()) / float(loss.detach()))
    seen["weights"] = [flat(parameters)]
    hook.remove()
    return seen


def draw(scene: Scene) -> tuple[list[Any], list[bool]]:
    """Of each iteration the gradients, whether they are still to be scaled, and whether the caller unscales them; and
    which have an inf or NaN."""
    at = {"first": [0], "middle": [2], "last two": [5, 6]}.get(scene.bad, [])
    iterations = []
    for i, size in enumerate(LARGE):
        large = size if scene.bad == "none" else 0.0  # divided by less than 1 they overflow
        gradients: list[Any] = [torch.full(shape, large) if large else torch.randn(shape) + 2.0 for shape in SHAPES]
        if i in at:
            flattened = gradients[scene.where].view(-1)
            flattened[random.randrange(len(flattened))] = scene.value
        if scene.missing and i % 2 == 0:
            gradients[MISSING] = None
        unscale = {"always": True, "in turn": i % 2 == 1}.get(scene.unscale, False)
        iterations.append((gradients, not large, unscale))
    return iterations, [i in at for i in range(len(LARGE))]


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    with virtual_gpu(count=2):
        iterations, bad = draw(scene)

        def given(device: str) -> tuple[Any, ...]:
            """A loss of 6 that is no leaf, so that it can be changed in place; and the rest."""
            loss = torch.tensor(3.0, device=device, requires_grad=True) * 2
            p = [torch.nn.Parameter(torch.ones(shape, device=device)) for shape in SHAPES]
            optimizer = torch.optim.SGD([{"params": p[:2]}, {"params": p[2:]}], lr=0.5)
            return loss, optimizer, iterations, (scene.first, *scene.factors, scene.interval)

        like = run(partial(torch.amp.GradScaler, "cpu"), *given("cpu"))
        seen = call(*given(scene.device), may_change={"optimizer": {"parameters", "grad"}}, who="your class")
        where = f"{brief(scene.value)} in the {scene.bad}" if any(bad) else "finite gradients of many sizes"
        interval = f"growth_interval {scene.interval}, a first scale of {scene.first:,.0f}"
        facts = Facts(f"{len(bad)} iterations, {where}, {interval}, unscale_ {scene.unscale} by the caller")
        compare(facts, seen, like)
        return facts


def compare(facts: Facts, seen: Any, like: Any) -> None:
    """The facts of what was `seen`, with those wanted, GradScaler's, up to where more makes no sense."""
    facts.add("methods that are missing", seen["missing"], [])
    if not seen["missing"]:
        facts.add("what scale(loss) returns", seen["returned"] or ["a tensor"], ["a tensor"])
    if not facts.hold():
        return
    facts.add("first scale", seen["scales"][0], Near(like["scales"][0], 1e-5))
    facts.add("gradient through scale(loss)", seen["slopes"][0], Near(like["slopes"][0], 1e-5))
    if not facts.hold():
        return
    facts.add("steps of the optimizer in each iteration", seen["steps"], like["steps"])
    factors, right = ([b / a if a else math.nan for a, b in itertools.pairwise(one["scales"])] for one in (seen, like))
    facts.add("factors on the scale", factors, Near(right, 1e-5))
    facts.add("gradients made where there were none", sum(seen["made"]), 0)
    facts.seen["the weights stay finite"] = bool(seen["weights"][0].isfinite().all())
    names = {"unscaled": "gradients after unscale_", "held": "gradients after unscale_, in the caller's tensors"}
    names |= {"stepped": "gradients at the optimizer's steps", "weights": "weights at the end"}
    for key, name in names.items():  # inf and NaN aside
        if like[key] and facts.hold():
            got, wanted = (torch.cat(one[key]).nan_to_num(0.0, 0.0, 0.0) for one in (seen, like))
            facts.add(name, got, Near(wanted, 1e-4))
    if facts.hold():
        facts.add("gradients gone after step()", sum(seen["gone"]), 0)
    said = [as_float(value) if is_number(value) else brief(value, 40) for value in seen["said"]]
    facts.add(SAID, said, Near([scale for both in itertools.pairwise(seen["scales"]) for scale in both], 1e-5))


def flat(tensors: Iterable[torch.Tensor | None]) -> torch.Tensor:
    """All as one vector of float64 on the CPU; zeros where there is none."""
    pairs = zip(tensors, SHAPES, strict=True)
    return torch.cat([(torch.zeros(s) if t is None else t).detach().double().flatten().cpu() for t, s in pairs])


def accept(student: Any, trial: Trial) -> Callable[..., Any]:
    """What makes scalers: a class, or a function of the same four numbers."""
    trial.expect(
        callable(student) and (inspect.isclass(student) or not all(hasattr(student, name) for name in METHODS)),
        "this is not a class",
        expected=f"a class with the methods {', '.join(METHODS)}",
        got=brief(student),
        likely="an object was passed: pass the class itself, without calling it",
    )
    return partial(run, student)


EXERCISE = Contract(
    __file__,
    says="in every iteration it scales, skips, backs off and grows as torch.amp.GradScaler does",
    imports=[OPTIMIZERS],
    parameters=(),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=lambda scene: scene.bad != "none" or (scene.value == math.inf and scene.where == 0),
    errors=ERRORS,
    accept=accept,
)

"""Judges the turns of lesson 11: what a graph freezes, a function in one graph, and when compiling pays."""

from __future__ import annotations

import math
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from gpulab.exercise.turns import AsGiven, NotYet, turn
from gpulab.exercise.wording import brief, is_number
from virtualgpu.gpu import VirtualGPU, without_gpu

BATCHES = 3
RETURNED = "the return is missing"


@turn("each batch has its own result, from one graph")
def replayed_batches(answer: Any) -> None:
    """A function (graph, x, y, batches) that replays a graph for each batch and gives the results in a list."""
    with warnings.catch_warnings(), VirtualGPU("T4"):
        warnings.simplefilter("ignore")
        x = torch.randn(4, 3, device="cuda")
        weight = torch.randn(3, 2, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x @ weight
        first, batches = x.clone(), [torch.randn(4, 3, device="cuda") for _ in range(BATCHES)]
        kept = [batch.clone() for batch in batches]
        got = answer(graph, x, y, batches)
        results = _tensors(got)
        want = [(batch @ weight).cpu() for batch in kept]
        of_first, shared = (first @ weight).cpu(), results is not None and len({t.data_ptr() for t in results}) == 1
        changed = not all(torch.equal(batch, before) for batch, before in zip(batches, kept, strict=True))
        found = None if results is None else [t.detach().cpu() for t in results]
    expected = f"a list of {BATCHES} results, y as it was after each replay"
    if found is None:
        likely = RETURNED if got is None else "return the results themselves"
        raise NotYet(f"{brief(got)} came back", expected=expected, likely=likely)
    if len(found) != BATCHES:
        likely = "one result for each batch, including the last"
        raise NotYet(f"{len(found)} results for {BATCHES} batches", expected=expected, likely=likely)
    if all(_near(a, of_first) for a in found):
        if shared:
            raise AsGiven(f"all {BATCHES} results are one tensor, computed from the first contents of x")
        likely = "x = batch gives the name x to another tensor; copy_ fills the memory that the graph reads"
        raise NotYet("every result is computed from x as it was at capture", expected=expected, likely=likely)
    if shared and all(_near(a, want[-1]) for a in found):
        likely = "each replay writes to the same memory of y: keep a clone"
        raise NotYet("every result is that of the last batch", expected=expected, likely=likely)
    if len(found) == len(want) and all(_near(a, b) for a, b in zip(found[1:], want, strict=False)):
        raise NotYet("each result is that of the batch before", expected=expected, likely="fill x before the replay")
    if changed:
        raise NotYet("the batches have changed", expected=expected, likely="x.copy_(batch), and not batch.copy_(x)")
    if not all(_near(a, b) for a, b in zip(found, want, strict=True)):
        raise NotYet("other results", expected=expected, likely="x.copy_(batch), then replay, then y.clone()")


def _tensors(got: Any) -> list[torch.Tensor] | None:
    if not isinstance(got, (list, tuple)) or not all(isinstance(one, torch.Tensor) for one in got):
        return None
    return list(got)


def _near(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-5)


@turn("the next replay steps with the new rate, for all groups")
def set_rate(answer: Any) -> None:
    """A function (optimizer, rate) that sets the learning rate of a captured step: those of all groups are tensors."""
    with warnings.catch_warnings(), VirtualGPU("T4"):
        warnings.simplefilter("ignore")
        weights = [torch.nn.Parameter(torch.zeros(3, device="cuda")) for _ in range(2)]
        rates = [torch.tensor(1.0, device="cuda") for _ in weights]
        groups = [{"params": [weight], "lr": rate} for weight, rate in zip(weights, rates, strict=True)]
        optimizer = torch.optim.SGD(groups, fused=True)

        def step() -> None:
            optimizer.zero_grad()
            sum(weight.sum() for weight in weights).backward()  # type: ignore[union-attr]
            optimizer.step()

        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        moves = []
        for rate in (0.25, 0.5):
            answer(optimizer, rate)
            before = [weight.detach().clone() for weight in weights]
            graph.replay()
            moves.append([float((old - new).mean()) for old, new in zip(before, weights, strict=True)])
        kept = all(group["lr"] is rate for group, rate in zip(optimizer.param_groups, rates, strict=True))
        number = not all(isinstance(group["lr"], torch.Tensor) for group in optimizer.param_groups)
    if all(_about(move, rate) for pair, rate in zip(moves, (0.25, 0.5), strict=True) for move in pair):
        return
    seen = f"with the rate set to 0.25, a replay moves the groups by {moves[0][0]:g} and {moves[0][1]:g}"
    expected = "0.25 and 0.25"
    if all(_about(move, 1.0) for pair in moves for move in pair):
        if number:
            raise AsGiven(f"{seen}: the graph still reads its tensor, but the group now has a number")
        if kept:
            raise NotYet(seen, expected=expected, likely="the tensors have not changed: fill_ each with the rate")
        likely = "the graph still reads the first tensor, not the new one: fill_ the first in place"
        raise NotYet(seen, expected=expected, likely=likely)
    if all(_about(move, rate) for pair, rate in zip(moves, (0.25, 0.125), strict=True) for move in pair):
        seen = f"with the rate set to 0.25 and then to 0.5, replays move by {moves[0][0]:g} and {moves[1][0]:g}"
        raise NotYet(seen, expected="0.25, then 0.5", likely="the rate is the new value, not a factor: fill_, not mul_")
    if all(_about(pair[0], rate) or _about(pair[1], rate) for pair, rate in zip(moves, (0.25, 0.5), strict=True)):
        likely = "each group of optimizer.param_groups has a learning rate of its own"
        raise NotYet(seen, expected=expected, likely=likely)
    raise NotYet(seen, expected=expected, likely='group["lr"].fill_(rate), for each group')


@turn("one graph, and the same results")
def one_graph(answer: Any) -> None:
    """A function (x, limit) that scales x down to the norm `limit` if it is longer, without a graph break."""
    short, long = torch.randn(6), torch.randn(6)
    short, long = short * (0.5 / short.norm()), long * (7.0 / long.norm())
    with without_gpu():
        for x, want in ((long, long * (2.0 / 7.0)), (short, short), (torch.zeros(6), torch.zeros(6))):
            _right_value(answer(x.clone(), 2.0), x, want)
        graphs, why = _graphs(answer, long)
    if graphs == 1 and not why:
        return
    if graphs == 0:
        raise NotYet(
            "nothing is compiled",
            expected="one graph",
            likely="torch.compiler.disable excludes the function; write it without an if",
        )
    pieces = f"{graphs} graphs" if graphs > 1 else "one graph and a graph break"
    takes_items = "item" in getattr(getattr(answer, "__code__", None), "co_names", ())
    if takes_items:
        likely = ".item() makes the host wait for the number; clamp, minimum and torch.where do not need it"
        raise NotYet(pieces, expected="one graph", likely=likely)
    if why.startswith("Data-dependent branching"):
        raise AsGiven(f"{pieces}: `if` needs a value from the tensor")
    raise NotYet(pieces, expected="one graph", likely=f"Dynamo says: {why or 'the graph breaks'}")


def _right_value(got: Any, x: torch.Tensor, want: torch.Tensor) -> None:
    expected = f"a tensor of norm {want.norm():.1f} for one of norm {x.norm():.1f} and the limit 2"
    if not isinstance(got, torch.Tensor):
        raise NotYet(f"{brief(got)} came back", expected=expected, likely=RETURNED)
    if got.shape == want.shape and torch.allclose(got, want, rtol=1e-4, atol=1e-5):
        return
    likely = "multiply x by limit / norm if that is below 1, else by 1"
    if not x.any():
        likely = "0 / 0: divide by the norm only where it is above the limit"
    elif torch.equal(got, x):
        likely = "nothing is shortened: a factor above 1 was kept, or one below 1 was left out"
    elif not torch.equal(want, x) and bool((got.abs() <= 2.0).all()) and got.norm() > 2.01:
        likely = "each element is clipped by itself: clip the norm, with one factor for all"
    elif got.norm() > 1.01 * x.norm():
        likely = "short vectors are made longer: the factor must not exceed 1"
    norm = f"norm {got.norm():.1f}" if got.shape == x.shape else f"shape {tuple(got.shape)}"
    raise NotYet(f"{norm} came back", expected=expected, likely=likely)


_NO_LIMIT = 10**6


def _graphs(answer: Callable[..., Any], x: torch.Tensor) -> tuple[int, str]:
    """How many graphs a call makes, and what Dynamo says of the first break: nothing where there is none."""
    seen: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append(graph)
        return graph.forward

    why = ""
    # Functions of some files reach Dynamo through one of its own, for which every answer counts.
    with torch._dynamo.config.patch(recompile_limit=_NO_LIMIT, accumulated_recompile_limit=_NO_LIMIT):
        try:
            whole: Any = torch.compile(_fresh(answer), backend="eager", fullgraph=True)
            whole(x.clone(), 2.0)
        except torch._dynamo.exc.TorchDynamoException as error:
            why = str(error).splitlines()[0]
        compiled: Any = torch.compile(_fresh(answer), backend=backend)
        compiled(x.clone(), 2.0)
    return len(seen), why


def _fresh(function: Any) -> Any:
    """The same function with code of its own: what was compiled before counts for the code."""
    if not isinstance(function, types.FunctionType):
        return function
    copy = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


@turn("compile time divided by time saved, and never if nothing is saved")
def break_even(answer: Any) -> None:
    """A function (compile_s, before_ms, after_ms): how many steps until compiling pays, math.inf for never."""
    before = 10.0 + int(torch.randint(1, 90, ())) / 2
    compile_s, after = float(torch.randint(20, 90, ())), before * 0.75
    steps = 1000 * compile_s / (before - after)
    gains, loses = (compile_s, before, after), (compile_s, before, 1.25 * before)
    found, lost = answer(*gains), answer(*loses)
    for case, number in ((gains, found), (loses, lost)):
        if not is_number(number):
            asked = _asked(case)
            raise NotYet(f"{brief(number)} for {asked}", expected="a number of steps, or math.inf", likely=RETURNED)
    right = f"{steps:,.0f} for {_asked(gains)}"
    if _about(found, steps / 1000) and lost < 0:
        raise AsGiven("a thousandth of the steps, and a negative number if the step got slower")
    if _about(found, steps / 1000):
        raise NotYet(f"{found:.2f}", expected=right, likely="seconds over milliseconds: 1000 is missing")
    if _about(found, 1000 * compile_s / after):
        raise NotYet(
            f"{found:,.0f}", expected=right, likely="use the time that a step saves, not the time that it takes"
        )
    if not (_about(found, steps) or abs(found - steps) <= 1):
        likely = "1000 · compile_s / (before_ms − after_ms)"
        raise NotYet(f"{brief(found)}", expected=right, likely=likely)
    same = (compile_s, before, before)
    for case, number in ((loses, lost), (same, _of_equal(answer, *same[:2]))):
        if number != math.inf:
            likely = "nothing is saved, so no number of steps pays"
            raise NotYet(f"{brief(number)} for {_asked(case)}", expected="math.inf", likely=likely)


def _of_equal(answer: Any, compile_s: float, before: float) -> Any:
    """What it says where nothing is saved; a division by zero is told as what it is."""
    try:
        return answer(compile_s, before, before)
    except ZeroDivisionError:
        asked = _asked((compile_s, before, before))
        likely = "the two times are equal: the code divides by the time saved, which is 0"
        raise NotYet(f"ZeroDivisionError for {asked}", expected="math.inf", likely=likely) from None


def _asked(case: tuple[float, float, float]) -> str:
    return f"{case[0]:g} s of compiling, {case[1]:g} ms → {case[2]:g} ms"


def _about(one: float, other: float) -> bool:
    return abs(one - other) <= 0.01 * abs(other)

"""Checks exercise 11.1, "find the recompilation": functions with known numbers of graphs from Dynamo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from itertools import groupby
from typing import Any
from unittest import mock

import torch
from torch import nn

from gpulab.exercise.contract import Clause, Contract, Facts
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import is_whole
from virtualgpu.gpu import without_gpu

BREAKS, AGAIN = "torch.compile: one graph, or several", "Recompilations"
KIND, ERROR, SETTINGS = "what came back", "the exception", "the settings afterwards"
LENGTH, CALLED = "numbers in the list", "what the function was called with"
FROM_NOTHING = "graphs of what was compiled before, as the first time"
AS_IN_PYTORCH = {  # 2.11 to 2.15; what decides how often is compiled
    "recompile_limit": 8,
    "accumulated_recompile_limit": 256,
    "automatic_dynamic_shapes": True,
    "assume_static_by_default": True,
}
MANY = 66  # more than most would set a limit to: each takes some 15 ms
Function = Callable[..., Any]


class Failed(RuntimeError, ValueError, TypeError):
    """What a function of the check raises."""


def with_breaks() -> Function:
    """Each note is a break, and runs in every call."""

    @torch._dynamo.disable  # type: ignore[untyped-decorator]
    def note(x: torch.Tensor) -> None:
        function.called.append(float(x[0]))  # type: ignore[attr-defined]

    def function(x: torch.Tensor) -> torch.Tensor:
        x = x.relu()
        note(x)
        x = x + 1
        note(x)
        return x * 2

    function.called = []  # type: ignore[attr-defined]
    return function


def fails_if(x: torch.Tensor, fails: bool) -> torch.Tensor:
    if fails:
        raise Failed("a function that fails")
    return x.relu()


# By what they are: a function, the arguments of its calls, and the graphs that each makes.
Case = tuple[Callable[[], Function], Callable[[], list[Any]], list[int]]
FUNCTIONS: dict[str, Case] = {
    "of one graph": (lambda: lambda x: x.relu() + 1, lambda: [(torch.ones(3),)] * 3, [1, 0, 0]),
    "of a module": (lambda: nn.Linear(3, 2), lambda: [(torch.ones(4, 3),)] * 2, [1, 0]),
    "with two breaks": (with_breaks, lambda: [(torch.full((3,), i),) for i in (1.0, 2.0)], [3, 0]),
    "without an operation": (lambda: lambda x: x, lambda: [(torch.ones(3),)] * 2, [0, 0]),
    "of three lengths": (lambda: lambda x: x.softmax(0),
                         lambda: [(torch.ones(n),) for n in (5, 7, 9, 5)], [1, 1, 0, 0]),
    "of dtypes, in turn": (lambda: lambda x: x * 2,
                           lambda: [(torch.ones(3, dtype=d),) for d in (torch.half, torch.double) * 2], [1, 1, 0, 0]),
    "of many words": (lambda: lambda x, word: x + len(word),
                      lambda: [(torch.ones(3), str(min(i, MANY))) for i in range(1, MANY + 20)], [1] * MANY + [0] * 19),
    "of no call": (lambda: lambda x: x + 1, list, []),
    "that raises": (lambda: fails_if, lambda: [(torch.ones(3), False), (torch.ones(3), True)], []),
}  # fmt: skip
CLAUSES = [
    Clause(quote, facts, summary, rule, read)
    for facts, quote, summary, rule, read in (
        ([KIND], "a list of whole numbers", "what was returned is not a list of whole numbers", "", AGAIN),
        ([ERROR], "An exception of `function` reaches the caller", "an exception is swallowed", "", AGAIN),
        ([LENGTH, CALLED], "called once with each", "not each call is made and counted once", "one number for each",
         AGAIN),
        ([f"graphs {name}" for name in FUNCTIONS if name not in ("of many words", "that raises")],
         "How many graphs each call", "the counts are wrong", "count what the backend saw during this call", BREAKS),
        ([FROM_NOTHING], "count as if it had not", "earlier compilations count", "torch.compiler.reset()",
         ""),
        (["graphs of many words"], "even beyond Dynamo's own limit", "compilations beyond a limit are missing",
         "config.patch(recompile_limit=…), and far above what a function may need", AGAIN),
        ([SETTINGS], "its settings are as before", "a setting is left changed", "with config.patch(…)", AGAIN),
    )
]  # fmt: skip


@cache
def compile_once() -> None:
    """What the compiler imports when it is first used is there before the student's time runs."""
    compiled: Any = torch.compile(with_breaks(), backend="eager")
    for length in (2, 3):
        compiled(torch.ones(length))


@contextmanager
def own_settings() -> Iterator[Callable[[], list[str]]]:
    """Dynamo's settings as PyTorch has them where they count; all are put back. Names those that the call changed.

    A library may have set them (timm does when it is imported: 1,000,000), or the reader. Those of the calling thread:
    in newer versions of PyTorch each has its own.
    """
    config = torch._dynamo.config
    with config.patch(AS_IN_PYTORCH):
        given = config.get_config_copy()

        def changed() -> list[str]:
            return [name for name, value in config.get_config_copy().items() if value != given[name]]

        try:
            yield changed
        finally:
            for name in changed():
                setattr(config, name, given[name])


def guards_unmeasured() -> AbstractContextManager[Any]:
    """Dynamo does not time the guards of what it has compiled, for its log: it empties the processor's caches for that,
    and takes as long as for the rest of a small compilation."""
    guards: Any = torch._dynamo.guards
    there = hasattr(guards, "profile_guard_manager")
    return mock.patch.object(guards, "profile_guard_manager", return_value=0.0) if there else nullcontext()


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    make, draw, wanted = FUNCTIONS[scene.function]
    function, calls, counters = make(), draw(), torch._dynamo.utils.counters["stats"]
    if not isinstance(function, nn.Module):  # code of its own: what was compiled once is kept with the code
        function.__code__ = function.__code__.replace()
    again_later = scene.function in ("of one graph", "of three lengths")  # only lengths are compiled otherwise then
    facts = Facts(f"calls of a function {scene.function}{', then again' if again_later else ''}")
    failed, left = [], list[str]()

    def through(student: Function, function: Any, calls: Any) -> Any:
        with own_settings() as changed:
            try:
                return student(function, calls)
            except Failed:
                failed.append("Failed")
            finally:
                left.extend(changed())

    with without_gpu(), guards_unmeasured():
        compile_once()
        torch.compiler.reset()  # a module's forward is compiled once for all modules
        graphs = counters["unique_graphs"]
        got = call(function, list(calls), through=through)
        graphs = counters["unique_graphs"] - graphs
        if again_later:
            with torch._dynamo.config.patch(AS_IN_PYTORCH | {"recompile_limit": 100}):
                compiled: Any = torch.compile(function, backend="eager")
                for args in calls:
                    compiled(*args)
            again = call(function, list(calls), through=through)
    facts.add(SETTINGS, "others" if left else "as before", "as before")
    if scene.function == "that raises":
        facts.add(ERROR, failed, ["Failed"])
        return facts
    good = isinstance(got, list) and all(map(is_whole, got))
    facts.add(KIND, "a list of whole numbers" if good else type(got).__name__, "a list of whole numbers")
    if good:
        facts.add(LENGTH, len(got), len(wanted))
        if hasattr(function, "called"):
            facts.add(CALLED, function.called, [float(x[0]) + i for (x,) in calls for i in (0, 1)])
        facts.seen["graphs in all"] = graphs  # whatever came back
    if facts.hold():
        facts.add(f"graphs {scene.function}", in_short(got), in_short(wanted))
        if again_later:
            facts.add(FROM_NOTHING, again, got)
    return facts


def in_short(counts: list[int]) -> list[str]:
    """What comes more than three times in a row is told once."""
    runs = [(count, len([*same])) for count, same in groupby(map(int, counts))]
    return [f"{count} in {times} calls" if times > 3 else ", ".join([str(count)] * times) for count, times in runs]


EXERCISE = Contract(
    __file__,
    says="the graphs of each call: breaks, new lengths, and those after the eighth",
    parameters=("function", "calls"),
    clauses=CLAUSES,
    edges={"function": tuple(FUNCTIONS)},
    play=play,
)

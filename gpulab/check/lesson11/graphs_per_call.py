"""The check of a count of compilations: functions of which it is known what Dynamo makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch import nn

from ...virtual.gpu import without_gpu
from ..contract import Clause, Contract, Facts
from ..scenes import Scene
from ..wording import is_whole
from .sections import AGAIN, BREAKS

KIND, ERROR, SETTINGS = "what came back", "the exception", "the settings afterwards"
LENGTH, CALLED = "numbers in the list", "what the function was called with"
AS_IN_PYTORCH = {  # 2.11 to 2.15; what decides how often is compiled
    "recompile_limit": 8,
    "accumulated_recompile_limit": 256,
    "automatic_dynamic_shapes": True,
    "assume_static_by_default": True,
}
FROM_NOTHING = "graphs of what was compiled before, as the first time"


def one_graph() -> tuple[Callable[..., Any], list[Any], list[int]]:
    return lambda x: x.relu() + 1, [(torch.ones(3),)] * 3, [1, 0, 0]


def a_module() -> tuple[Callable[..., Any], list[Any], list[int]]:
    return nn.Linear(3, 2), [(torch.ones(4, 3),)] * 2, [1, 0]


def a_break() -> tuple[Callable[..., Any], list[Any], list[int]]:
    called: list[float] = []

    @torch._dynamo.disable  # type: ignore[untyped-decorator]  # a break, and run in every call
    def note(x: torch.Tensor) -> None:
        called.append(float(x[0]))

    def function(x: torch.Tensor) -> torch.Tensor:
        x = x.relu()
        note(x)
        return x + 1

    function.called = called  # type: ignore[attr-defined]
    return function, [(torch.full((3,), i),) for i in (1.0, 2.0)], [2, 0]


def lengths() -> tuple[Callable[..., Any], list[Any], list[int]]:
    return lambda x: x.softmax(0), [(torch.ones(n),) for n in (5, 7, 9, 5)], [1, 1, 0, 0]


def dtypes() -> tuple[Callable[..., Any], list[Any], list[int]]:
    two = torch.ones(3), torch.ones(3, dtype=torch.double)
    return lambda x: x * 2, [(two[i],) for i in (0, 1, 0, 1)], [1, 1, 0, 0]


def ten_ranks() -> tuple[Callable[..., Any], list[Any], list[int]]:
    return lambda x: x * 2, [(torch.ones([2] * rank),) for rank in range(1, 11)], [1] * 10


def no_call() -> tuple[Callable[..., Any], list[Any], list[int]]:
    return lambda x: x + 1, [], []


class Failed(Exception):
    """What a function of the check raises."""


def it_raises() -> tuple[Callable[..., Any], list[Any], list[int]]:
    def function(x: torch.Tensor, fails: bool) -> torch.Tensor:
        if fails:
            raise Failed("a function that fails")
        return x.relu()

    return function, [(torch.ones(3), False), (torch.ones(3), True)], []


FUNCTIONS = {
    "of a function that is one graph": one_graph,
    "of a module": a_module,
    "of a function with a break": a_break,
    "of three lengths": lengths,
    "of two dtypes, in turn": dtypes,
    "of ten ranks": ten_ranks,
    "of no call": no_call,
    "that raises": it_raises,
}
CLAUSES = [
    Clause("a list of whole numbers", [KIND], "what came back is no list of whole numbers", "", AGAIN),
    Clause("An exception of `function` reaches the caller", [ERROR], "an exception is swallowed", "", AGAIN),
    Clause(
        "called once with each",
        [LENGTH, CALLED],
        "not each call is made and counted once",
        "one number for each",
        AGAIN,
    ),
    Clause(
        "How many graphs each call",
        [f"graphs {name}" for name in FUNCTIONS if name not in ("of ten ranks", "that raises")],
        "the counts are others",
        "what the backend saw during this call",
        BREAKS,
    ),
    Clause("the count begins as if it had not", [FROM_NOTHING], "earlier compilations count", "torch.compiler.reset()"),
    Clause(
        "also more than Dynamo's own limit",
        ["graphs of ten ranks"],
        "the ninth compilation is missing",
        "config.patch(recompile_limit=…)",
        AGAIN,
    ),
    Clause("its settings are as before", [SETTINGS], "a setting is left changed", "with config.patch(…)", AGAIN),
]
EDGES = {"function": tuple(FUNCTIONS)}
# Asked twice; only lengths are compiled differently afterwards.
AGAIN_LATER = ("of a function that is one graph", "of three lengths")


@cache
def compile_once() -> None:
    """What the compiler imports when it is first used is there before the student's time runs."""
    compiled: Any = torch.compile(a_break()[0], backend="eager")
    for length in (2, 3):
        compiled(torch.ones(length))


@contextmanager
def own_settings() -> Iterator[Callable[[], bool]]:
    """Dynamo's settings as PyTorch has them where they count; all are put back. Tells whether the call changed any.

    A library may have set them (timm does when it is imported: 1,000,000), or the reader. Those of the calling thread:
    in newer versions of PyTorch each has its own.
    """
    config = torch._dynamo.config
    with config.patch(AS_IN_PYTORCH):
        given = config.get_config_copy()

        def changed() -> list[str]:
            return [name for name, value in config.get_config_copy().items() if value != given[name]]

        try:
            yield lambda: bool(changed())
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
    function, calls, wanted = FUNCTIONS[scene.function]()
    function, again_later = fresh(function), scene.function in AGAIN_LATER
    facts = Facts(f"calls {scene.function}{', then again' if again_later else ''}")
    failed, left = [], []

    def through(student: Callable[..., Any], function: Any, calls: Any) -> Any:
        with own_settings() as changed:
            try:
                return student(function, calls)
            except Failed:
                failed.append("Failed")
            finally:
                left.append("others" if changed() else "as before")

    def asked() -> Any:
        return call(function, list(calls), through=through)

    with without_gpu(), guards_unmeasured():
        compile_once()
        torch.compiler.reset()  # a module's forward is compiled once for all modules
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        got = asked()
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"] - graphs
        if again_later:
            with torch._dynamo.config.patch(AS_IN_PYTORCH | {"recompile_limit": 100}):
                compiled: Any = torch.compile(function, backend="eager")
                for args in calls:
                    compiled(*args)
            again = asked()
    facts.add(SETTINGS, "others" if "others" in left else "as before", "as before")
    if scene.function == "that raises":
        facts.add(ERROR, failed, ["Failed"] * len(left))
        return facts
    good = isinstance(got, list) and all(map(is_whole, got))
    facts.add(KIND, "a list of whole numbers" if good else type(got).__name__, "a list of whole numbers")
    if good:
        facts.add(LENGTH, len(got), len(wanted))
        if hasattr(function, "called"):
            facts.add(CALLED, function.called, [float(args[0][0]) for args in calls])
        facts.seen["graphs in all"] = graphs  # whatever came back
    if facts.hold():
        facts.add(f"graphs {scene.function}", [int(count) for count in got], wanted)
        if again_later:
            facts.add(FROM_NOTHING, again, got)
    return facts


def fresh(function: Any) -> Any:
    """The same with code of its own: what was compiled once is kept with the code."""
    if not isinstance(function, nn.Module):
        function.__code__ = function.__code__.replace()
    return function


EXERCISE = Contract(
    __file__,
    says="each call with its graphs: breaks, new lengths, and what comes after the eighth",
    parameters=("function", "calls"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
)

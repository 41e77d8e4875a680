"""Checks exercise 12.4, "a ring of your own": an all-reduce made of sends and receives, on real ranks over Gloo."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed import ProcessGroup

from gpulab.exercise.audit import ANYTHING
from gpulab.exercise.contract import Clause, Contract, Facts
from gpulab.exercise.groups import group
from gpulab.exercise.scenes import Scene

EQUAL, UNEQUAL, FEWER = "the sum", "the sum of unequal pieces", "the sum of fewer elements than ranks"
CALLED, EXACT, SENT = "collectives called", "the sum in int64", "elements that a rank sends beyond 2(N − 1) pieces"
CLAUSES = [
    Clause(quote, facts, summary, rule, "What travels: an all-reduce by hand")
    for facts, quote, summary, rule in (
        ([CALLED], "Nothing is called but sends and receives", "a collective is called",
         "the exercise is to build one"),
        ([EQUAL], "afterwards x itself holds the sum, on each of them",
         "x is not the sum over the ranks on each of them",
         "print the pieces after every hop, for two ranks and four elements"),
        ([UNEQUAL, FEWER], "It may have any number of elements, even fewer than there are ranks",
         "if the number of ranks does not divide the number of elements, x is not the sum",
         "pieces of numel // N leave a remainder; with few elements some pieces are empty, but there are still N"),
        ([EXACT], "its dtype can hold the sums exactly", "in int64 x is not the sum",
         "a float32 buffer keeps only 24 bits: torch.empty_like"),
        ([SENT], "no rank of N sends more than 2(N − 1) pieces of an Nth of the elements, rounded up",
         "a rank sends more than a ring does", "in each hop a rank sends one piece, never the whole"),
    )
]  # fmt: skip
EDGES = {
    "ranks": (2, 3, 4),
    "dtype": (torch.float32, torch.float64, torch.int64),
    "pieces": ("equal", "others"),
}
COLLECTIVE = re.compile("monitored|all|gather|reduce|scatter|broadcast|barrier")


@contextmanager
def told() -> Iterator[dict[str, list[Any]]]:
    """What goes through process groups: the numbers of elements that are sent, and the names of collectives."""
    seen: dict[str, list[Any]] = {"sent": [], "collectives": []}

    def watched(name: str, own: Any) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **options: Any) -> Any:
            if name == "send":
                seen["sent"].append(sum(tensor.numel() for tensor in args[0]))
            else:
                seen["collectives"].append(name)
            return own.__get__(self)(*args, **options)

        return method

    methods = {name: own for name, own in vars(ProcessGroup).items() if name == "send" or COLLECTIVE.match(name)}
    for name, own in methods.items():
        setattr(ProcessGroup, name, watched(name, own))
    try:
        yield seen
    finally:
        for name, own in methods.items():
            setattr(ProcessGroup, name, own)


def on_rank(student: Callable[..., Any], *given: torch.Tensor) -> list[dict[str, Any]]:
    """What each call does here, one after the other."""
    found = []
    with group("gloo"):
        for x in given:
            with told() as seen:
                student(x)
            found.append({"x": x, **seen})
    return found


def shapes(ranks: int, pieces: str) -> list[tuple[str, tuple[int, ...]]]:
    """Those of the calls, each with the fact that it decides."""
    if pieces == "equal":
        return [(EQUAL, (2, 3 * ranks)), (EQUAL, (5 * ranks,))]
    unequal = [(UNEQUAL, (4 * ranks + rest,)) for rest in (1, ranks - 1)]
    return [*unequal, (FEWER, (ranks - 1, 1)), (FEWER, ()), (FEWER, (0,))]


def draw(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """In int64 odd numbers, and such as no floating-point number holds."""
    whole = dtype is torch.int64
    return 2 * torch.randint(2**58, 2**59, shape) + 1 if whole else torch.randn(shape, dtype=dtype)


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    ranks, dtype = scene.ranks, scene.dtype
    calls = [(name, [draw(shape, dtype) for _ in range(ranks)]) for name, shape in shapes(ranks, scene.pieces)]
    found = call(on_rank, *zip(*(given for _, given in calls), strict=True))

    facts = Facts(f"{ranks} ranks, {str(dtype).removeprefix('torch.')}")
    seen = [[of_rank[number] for of_rank in found] for number in range(len(calls))]
    facts.add(CALLED, ", ".join(sorted({c for of_ranks in seen for one in of_ranks for c in one["collectives"]})), "")
    beyond = 0
    for (name, given), of_ranks in zip(calls, seen, strict=True):
        size, wanted, got = given[0].numel(), torch.stack(given).sum(0), [one["x"] for one in of_ranks]
        beyond = max(beyond, *(sum(one["sent"]) - 2 * (ranks - 1) * -(-size // ranks) for one in of_ranks))
        if not facts.hold():
            continue
        near = [close(x, wanted) for x in got]
        facts.about = f"{size} elements on {ranks} ranks, {str(dtype).removeprefix('torch.')}"
        even = size // ranks * ranks  # what is wrong there is not due to the rest, or to the empty pieces
        untouched = all(map(torch.equal, got, given))
        if not (all(all(there[:even]) for there in near) if even else untouched or all(map(all, near))):
            name = EQUAL
        facts.add(name, [rank for rank, there in enumerate(near) if all(there)], [*range(ranks)])
        if facts.hold() and dtype is torch.int64 and name == EQUAL:
            facts.add(EXACT, [rank for rank, x in enumerate(got) if torch.equal(x, wanted)], [*range(ranks)])
            facts.seen["off by thousands"] = any((x - wanted).abs().max() > 2**20 for x in got)
        facts.seen["elements that are sums"] = [sum(there) for there in near]
        facts.seen["equal bit for bit"] = all(torch.equal(x, got[0]) for x in got)
        facts.seen["sends of each rank"] = [len(one["sent"]) for one in of_ranks]
    facts.add(SENT, beyond, 0)
    return facts


def close(x: torch.Tensor, wanted: torch.Tensor) -> list[bool]:
    """Which elements are right but for their last bits."""
    far = 1e-5 * max(wanted.double().abs().flatten().tolist(), default=0.0)
    right: list[bool] = ((x.double() - wanted.double()).abs() <= far).flatten().tolist()
    return right


EXERCISE = Contract(
    __file__,
    says="every rank has the sum, and sent no more than a ring does",
    parameters=("x",),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    ranks=4,
    may_change={"x": ANYTHING},
)

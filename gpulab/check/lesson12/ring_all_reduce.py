"""The check of an all-reduce out of sends and receives: real ranks over Gloo, lengths that they do not divide."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed import ProcessGroup

from ..audit import ANYTHING
from ..contract import Clause, Contract, Facts
from ..scenes import Scene
from .common import group
from .sections import RING

LENGTHS = {"equal": "the sum", "unequal": "the sum of unequal pieces", "fewer": "the sum of fewer elements than ranks"}
INT64 = "the sum in int64"
SENT = "elements that a rank sends beyond 2(N − 1) pieces"
PROMISED = (
    (
        "Nothing is called but sends and receives",
        ["collectives called"],
        "a collective is called",
        "the exercise is to build one",
    ),
    (
        "x itself holds the sum, on each of them",
        [LENGTHS["equal"]],
        "x is not the sum over the ranks on each of them",
        "print the pieces after every hop, for two ranks and four elements",
    ),
    (
        "It may have any number of elements, also fewer than there are ranks",
        [LENGTHS["unequal"], LENGTHS["fewer"]],
        "where the ranks do not divide the elements, x is not the sum",
        "pieces of numel // N leave a remainder; with few elements some pieces are empty, and N pieces all the same",
    ),
    (
        "in any dtype that adds up exactly what it holds",
        [INT64],
        "in int64 x is not the sum",
        "a buffer in float32 keeps 24 bits: torch.empty_like",
    ),
    (
        "no rank of N sends more than 2(N − 1) pieces of an Nth of the elements, rounded up",
        [SENT],
        "a rank sends more than a ring does",
        "in each hop a rank sends one piece, never the whole",
    ),
)
CLAUSES = [Clause(*promised, RING) for promised in PROMISED]
EDGES = {
    "ranks": (2, 3, 4),
    "length": tuple(LENGTHS),
    "dtype": (torch.float32, torch.int64),
}
COLLECTIVE = re.compile("monitored|all|gather|reduce|scatter|broadcast|barrier")


def possible(scene: Scene) -> bool:
    """Those in which a mistake breaks one sentence alone."""
    return scene.dtype is torch.float32 or scene.length == "equal"


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


def on_rank(student: Callable[..., Any], x: torch.Tensor) -> dict[str, Any]:
    with group("gloo"):
        with told() as seen:
            student(x)
        return {"x": x.tolist(), **seen}


def close(x: torch.Tensor, wanted: Any) -> list[bool]:
    """Which elements are right but for their last bits."""
    far = 1e-5 * max(wanted.double().abs().flatten().tolist(), default=0.0)
    right: list[bool] = ((x.double() - wanted.double()).abs() <= far).flatten().tolist()
    return right


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    each = 2 * random.randint(2, 5)
    length = {"equal": each * scene.ranks, "unequal": each * scene.ranks - 2}.get(scene.length)
    if length is None:  # a tensor of shape (), one of no elements, and one of two
        length = {2: 1, 3: 0, 4: 2}[scene.ranks]
    shape = random.choice([(length,), (2, length // 2)]) if length != 1 else ()
    if scene.dtype is torch.int64:  # odd, and such as no floating-point number holds
        given, dtype = [2 * torch.randint(2**58, 2**59, shape) + 1 for _ in range(scene.ranks)], torch.int64
    else:
        dtype = random.choice((torch.float32, torch.float64))
        given = [torch.randn(shape, dtype=dtype) for _ in range(scene.ranks)]
    found = call(on_rank, *[(x,) for x in given])

    facts = Facts(f"{length} elements on {scene.ranks} ranks")
    facts.add("collectives called", ", ".join(sorted({c for one in found for c in one["collectives"]})), "")
    got = [torch.tensor(one["x"], dtype=dtype) for one in found]
    wanted, near = sum(given), [close(x, sum(given)) for x in got]
    even, name = scene.ranks * (length // scene.ranks), LENGTHS["equal"]
    if scene.dtype is torch.int64 and all(map(all, near)):
        name, near = INT64, [(x == wanted).flatten().tolist() for x in got]
    elif even and all(all(there[:even]) for there in near):
        name = LENGTHS[scene.length]
    elif not even and (all(map(all, near)) or all(map(torch.equal, got, given))):
        name = LENGTHS["fewer"]
    facts.add(name, [rank for rank, there in enumerate(near) if all(there)], [*range(scene.ranks)])
    most = 2 * (scene.ranks - 1) * -(-length // scene.ranks)
    facts.add(SENT, max(0, *(sum(one["sent"]) - most for one in found)), 0)
    facts.seen["sends of each rank"] = [len(one["sent"]) for one in found]
    facts.seen["elements that are sums"] = [sum(there) for there in near]
    facts.seen["equal bit for bit"] = all(torch.equal(x, got[0]) for x in got)
    return facts


EXERCISE = Contract(
    __file__,
    says="every rank has the sum, and sent no more than a ring does",
    parameters=("x",),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=possible,
    ranks=4,
    may_change={"x": ANYTHING},
)

"""Checks exercise 02.3, "a batch of anything": every tensor moves, containers keep their types, the rest stays."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import nn

from gpulab.exercise.audit import ANYTHING, Audit
from gpulab.exercise.contract import Clause, Contract, Facts
from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.scenes import Scene

TENSOR, TOGETHER, MAKE = "What .to does to a tensor", "Together on one device", "Made there, or moved there"
CHANGED, TYPE, ITEMS = "changed for the caller", "containers of another type", "containers with other items"
ELSEWHERE, DTYPE, CUT = "tensors elsewhere", "tensors of another dtype or shape", "tensors cut off from the graph"
VALUES, COPIED, LATE = "tensors of other values", "copies of what was there", "copies still to come"
OWN, OBJECTS = "containers that are the caller's", "objects of the caller's that came back as others"
NUMPYS, BYTES = "values of NumPy that came back as others", "bytes that came back as others"
PLAIN = "texts, numbers and None that came back as others"
CLAUSES = [
    Clause(quote, facts, summary, rule, read)
    for facts, quote, summary, rule, read in (
        ([CHANGED], "It is the caller's, and is not changed", "the caller's batch was changed",
         "its containers, tensors and objects must be the same afterwards", TENSOR),
        ([TYPE], "Containers come back as new ones of the same type", "a container changed its type",
         "dict, list, tuple and each namedtuple are different types", TENSOR),
        ([ITEMS], "with the same keys and the same order", "a container has other items than before",
         "None, strings and numbers are items too", TENSOR),
        ([ELSEWHERE], "every tensor in it on `device`", "a tensor stayed behind",
         "at any depth, also one without dimensions or elements; “cuda” is the current GPU", TOGETHER),
        ([DTYPE], "A tensor keeps its dtype", "a tensor came back as something else",
         "only the device changes: dtype and shape stay", TENSOR),
        ([CUT], "its place in the graph", "a tensor's place in the graph has changed",
         "backward() must reach the caller's tensor if that requires a gradient, and not otherwise", TENSOR),
        ([VALUES], "The same batch", "a tensor's values have changed", "it must have the caller's values", MAKE),
        ([PLAIN, NUMPYS, BYTES, OBJECTS], "comes back as it is, the same object",
         "something that is not a tensor did not come back as it was",
         "tensors move, and only dict, list, tuple and namedtuple are rebuilt", TENSOR),
        ([OWN], "Containers come back as new ones", "a container came back as the same object",
         "a later change to the new one must not change the caller's; an empty one is a container too", TENSOR),
        ([COPIED], "So does a tensor that is already on the device",
         "a tensor that was already on the device was copied",
         "if there is nothing to move, return the tensor itself", TENSOR),
        ([LATE], "All values have arrived when the function returns",
         "a copy has not finished when the function returns",
         "the next read of the result has to find the values", TENSOR),
    )
]  # fmt: skip
EDGES = {
    "batch": ("a dict", "deep lists", "a tensor", "a namedtuple", "None"),
    "way": (("cpu", "cuda:1"), ("cpu", "cuda"), ("cuda:1", "cuda:0"), ("cuda:1", "cpu")),
    "start": ("all elsewhere", "half of it there", "all there"),
    "given": (str, torch.device),
    "current": (0, 1),
}
EARLIER = 1000.0  # seconds of work before the way back: who does not wait for a copy is done long before it
Pair = namedtuple("Pair", ["images", "labels"])
Nothing = namedtuple("Nothing", [])


@dataclass(eq=False)
class Record:
    """An object of the caller's. It is no container, though one can iterate over it, and ask for fields and items."""

    tensor: torch.Tensor
    _fields = ("tensor",)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([self.tensor])

    def items(self) -> list[tuple[str, torch.Tensor]]:
        return [("tensor", self.tensor)]


def draw(kind: str, places: Iterator[torch.device]) -> Any:
    """A batch as collate functions give them, each tensor on the next place; the dict has one of everything."""

    def some(*shape: int, **options: Any) -> torch.Tensor:
        return torch.rand(shape, device=next(places), **options)

    def tokens(count: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.randint(0, 2, (count,), device=next(places)).to(dtype)

    if kind == "None":
        return None
    if kind == "a tensor":
        return some(3, 2).t()
    if kind == "a namedtuple":
        return Pair(some(2), None)
    if kind == "deep lists":
        deep: Any = [some(2), some(3)]
        for level in range(12):
            deep = ([deep, level], (deep, some(1)), {"deeper": deep}, Pair(some(1), deep))[level % 4]
        return [deep, some(1)]
    kinds = (torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int32, torch.uint8, torch.bool)
    return {
        "x": some(2, 3),
        "tokens": [tokens(4), tokens(2)],
        "boxes": (some(2, 4), {"crowd": False, "area": some(2)}),
        "pair": Pair(some(2, 1, 4, 4), tokens(2)),
        "strided": [some(6)[::2], some(6)[::2]],
        "weight": some(),
        "nothing": some(0, 4),
        "learned": [some(2, requires_grad=True), some(2, dtype=torch.float64, requires_grad=True)],
        "computed": some(2, requires_grad=True) * 2,
        "parameter": nn.Parameter(some(2)),
        "kinds": [tokens(3, dtype) for dtype in kinds],
        "mask": None,
        "rest": ["seven", None, 3, 0.1, True, b"seven", np.arange(1, 4), np.float32(0.1), Record(some(2))],
        "empty": [[], {}, (), Nothing()],
        7: some(1),
        ("a", 1): some(1),
    }


def walk(old: Any, new: Any, name: str = "batch") -> Iterator[tuple[str, Any, Any]]:
    """Everything in the old batch, by its place, and what stands there in the new one."""
    yield name, old, new
    if is_box(old) and type(new) is type(old) and keys(new) == keys(old):
        for key in keys(old):
            yield from walk(old[key], new[key], f"{name}[{key!r}]")


def is_box(x: Any) -> bool:
    return isinstance(x, dict | list | tuple)


def keys(box: Any) -> list[Any]:
    return [*box] if isinstance(box, dict) else [*range(len(box))]


def is_now(old: Any, new: Any) -> str:
    return "is None" if new is None else f"is {'another' if type(new) is type(old) else 'a'} {type(new).__name__}"


def first(texts: list[Any]) -> list[Any]:
    """The first three, and how many more there are."""
    return texts if len(texts) < 5 else [*texts[:3], f"and {len(texts) - 3} more"]


def fault(old: Any, new: Any, place: torch.device) -> tuple[str, str]:
    """What is wrong with `new` in the place of `old`: the fact, and what to say of it; two empty ones if nothing is."""
    if is_box(old):
        if type(new) is not type(old):
            return TYPE, is_now(old, new)
        if keys(new) != keys(old):
            return ITEMS, "has them in another order" if {*keys(new)} == {*keys(old)} else f"has {first(keys(new))}"
        return (OWN, "") if new is old and not isinstance(old, tuple) else ("", "")  # nobody can change a tuple
    if not isinstance(old, torch.Tensor):
        kinds = {Record: OBJECTS, bytes: BYTES, np.ndarray: NUMPYS, np.float32: NUMPYS}
        return ("", "") if new is old else (kinds.get(type(old), PLAIN), is_now(old, new))
    if not isinstance(new, torch.Tensor):
        return DTYPE, is_now(old, new)
    if (new.dtype, new.shape) != (old.dtype, old.shape):
        return DTYPE, f"{new.dtype} {tuple(new.shape)}"
    if new.device != place:
        return ELSEWHERE, f"on {new.device}"
    if old.device == place and new is not old:
        return COPIED, ""
    if not torch.equal(new.cpu(), old.cpu()):
        return VALUES, ""
    if new.requires_grad != old.requires_grad:
        return CUT, f"requires_grad={new.requires_grad}"
    if new.requires_grad and torch.autograd.grad(new.sum(), old, retain_graph=True, allow_unused=True)[0] is None:
        return CUT, "is a new leaf"
    return "", ""


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    start, to = scene.way
    facts = Facts(
        f"{scene.batch}, {scene.start}, from {start} to {scene.given(to)!r}, GPU {scene.current} being current"
    )
    with virtual_gpu(count=2) as gpu:
        here, place = torch.device(start), torch.device(f"cuda:{scene.current}" if to == "cuda" else to)
        places = {"all elsewhere": [here], "half of it there": [place, here], "all there": [place]}[scene.start]
        batch = draw(scene.batch, cycle(places))
        audit = Audit({"batch": batch}, {})
        if here.type == "cuda":
            gpu.device(here.index).timer.kernel(0, EARLIER, "earlier work")
        with gpu.timeline() as timeline:
            got = call(batch, scene.given(to), may_change={"batch": ANYTHING}, inside=torch.cuda.device(scene.current))
            under_way = [span for span in timeline.spans if span.start + span.seconds > gpu.clock.host]
        facts.add(CHANGED, first([change.words for change in audit.changes()]), [])
        if facts.hold():
            found: dict[str, list[str]] = {fact: [] for clause in CLAUSES[1:-1] for fact in clause.facts}
            for name, old, new in walk(batch, got):
                if (wrong := fault(old, new, place))[0]:
                    found[wrong[0]].append(f"{name} {wrong[1]}".strip())
            for fact, names in found.items():
                facts.add(fact, first(names), [])
            facts.add(LATE, sum(span.where == "to host" or span.stream > 0 for span in under_way), 0)
        return facts


def hides(scene: Scene) -> tuple[str, ...]:
    """Where nothing moves, it does not matter which GPU is current, unless that is where all is; and who compares the
    first tensor's device with “cuda” finds no difference between half of it and all."""
    if scene.batch == "None":
        return "way", "start", "given"
    if scene.way[1] == "cuda":
        return ("start",) if scene.start == "half of it there" else ()
    return ("current",) if scene.start == "all there" else ()


EXERCISE = Contract(
    __file__,
    says="every tensor at every depth moves, containers keep their types, and the rest is left alone",
    parameters=("batch", "device"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=lambda scene: scene.start != "half of it there" or scene.batch in ("a dict", "deep lists"),
    hides=hides,
    errors={
        "has no attribute 'to'": "not everything in a batch has a .to: only tensors are sure to have it",
        "has no attribute 'items'": "the batch is not always a dict: it may be a tensor, a list, a tuple or None",
        "is not iterable": "not everything in a batch is a container: return a number, or None, as it is",
        "'torch.device' object": "the device may be a torch.device or a string",
        "'str' object has no": "the device may be a string or a torch.device",
        "RecursionError": "a string of one letter contains itself: strings are not containers here",
    },
)

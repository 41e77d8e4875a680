"""Raise the errors of PyTorch's reducer for unused or twice-used parameters, in its own words.

It runs PyTorch's own reducer on CPU tensors of one element in place of the parameters, and repeats what happened.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch._C._distributed_c10d as _C

from ..scope.in_force import backing
from .imagined import Imagined

if TYPE_CHECKING:
    from .reducer import Reducer


def raise_reducer_error(reducer: Reducer, about: str, index: int = -1) -> NoReturn:
    """Raise PyTorch's RuntimeError: `about` an "unfinished" reduction, a gradient that came "twice" or a graph that
    has "changed", the last two of parameter `index`."""
    with backing, torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of parameters that it finds used
        count = len(reducer.parameters)
        numbers = [torch.zeros(1, device="cpu", requires_grad=True) for _ in range(count + (about == "twice"))]
        ask, _group = _asked(reducer, numbers, reducer.finds_unused and about != "twice")
        if reducer.static:
            ask._set_static_graph()
            _run(ask, numbers, [i for i in range(count) if reducer._hooks_of_first_pass[i]])
            ask._delay_all_reduce()
        if about == "twice":
            _run(ask, numbers, [index], [index])
        elif about == "changed":
            _run(ask, numbers, [index])
        else:
            _run(ask, numbers, sorted(reducer._marked))
            ask._check_reducer_finalized()
    raise AssertionError(f"PyTorch's reducer finds nothing wrong: {about}, parameter {index}")


def _asked(reducer: Reducer, numbers: list[torch.Tensor], finds_unused: bool) -> tuple[Any, Any]:
    """Return PyTorch's own reducer of `numbers`, among imagined ranks, and their group, which must outlive it."""
    ours = reducer.group
    rank, size = ours.rank(), ours.size()
    nobody = _C.FakeProcessGroup._create_internal(rank, size)
    group = type(ours)(ours.world, ours.ranks, rank, Imagined(size, rank), nobody)
    limits = [1 << 20]
    reducer_of_numbers = _C.Reducer(
        numbers, [list(range(len(numbers)))], limits, group, [False] * len(numbers), 1 << 20,
        finds_unused, False, reducer.names, 1 << 20,
    )  # fmt: skip
    return reducer_of_numbers, group


def _run(ask: Any, numbers: list[torch.Tensor], *used: list[int]) -> None:
    """Run a forward pass with all numbers, and a backward pass for each of these lists of them."""
    ask.prepare_for_forward()
    ask.prepare_for_backward([torch.cat(numbers).sum()])
    for indices in used:
        torch.cat([numbers[index] for index in indices]).sum().backward()

"""Detect whether only autograd's engine holds a tensor, as operations below autograd need to know.

It counts references, and compares them with those in a small graph that is run once; on any doubt the answer is no.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .in_force import backing

T = TypeVar("T")
aten = torch.ops.aten


class _Probe(TorchDispatchMode):
    """Records the references to the first operand of the operations in `_WRITTEN`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[Any, tuple[int, int, int]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(self, func, args, kwargs or {})


def _run(probe: _Probe, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func in _WRITTEN:
        into = args[0]
        probe.found[func] = sys.getrefcount(into), *_counts(into)
    out = func(*args, **kwargs)
    if isinstance(out, torch.Tensor):
        out.untyped_storage()
    return out


def _counts(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


# An addition of gradients, and gradients that are written into zeros.
_WRITTEN: dict[Any, Callable[[torch.Tensor], torch.Tensor]] = {
    aten.add.Tensor: lambda x: x * x + x.sin(),
    aten.scatter.src: lambda x: x.sort()[0],
    aten.scatter_add.default: lambda x: x.gather(0, torch.tensor([1, 0], device="cpu")),
    aten.index_add.default: lambda x: x.index_select(0, torch.tensor([1, 0], device="cpu")),
    aten.index_put.default: lambda x: x[torch.tensor([1, 0], device="cpu")],
}


@cache
def _alone() -> dict[Any, tuple[int, int, int]]:
    """Return the reference counts of a tensor that only the engine or its formula holds, by operation."""
    found = {}
    for func, forward in _WRITTEN.items():
        x = torch.zeros(2, requires_grad=True, device="cpu")
        y = forward(x)
        probe = _Probe()
        with probe:
            y.sum().backward()
        found[func] = probe.found[func]
    return found


@cache
def prepare(include: Callable[[bool], None]) -> None:
    """Run the small graph, once in a process, outside of operations; `include` switches the kernels above autograd."""
    include(True)
    try:
        with torch.enable_grad():
            _alone()
    finally:
        include(False)


def owns(func: Any, tensor: torch.Tensor, references: int) -> bool:
    """Return True if nothing but the engine holds `tensor`, which `func` writes to or copies.

    `references` is the caller's `sys.getrefcount` of it.
    """
    alone = _alone()[func]
    uses, storage_uses = _counts(tensor)
    return references <= alone[0] and uses <= alone[1] and storage_uses <= alone[2]


def is_dense(tensor: torch.Tensor) -> bool:
    """Return True if the elements fill one piece of memory in some order (is_non_overlapping_and_dense)."""
    if tensor.is_contiguous():
        return True
    nearest = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != nearest:
                return False
            nearest *= size
    return True


def with_autograd(run: Callable[[], T]) -> T:
    """Call `run` with autograd in another thread, as it is off in this one while an operation is handled."""
    found: list[T] = []
    failed: list[BaseException] = []

    def there() -> None:
        try:
            with backing, torch.enable_grad():
                found.append(run())
        except BaseException as error:
            failed.append(error)

    thread = UnwatchedThread(target=there)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


class UnwatchedThread(threading.Thread):
    """A thread that no virtual GPU watches."""

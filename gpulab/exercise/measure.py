"""Measures a call of a check: bytes saved for backward, memory left on the GPU; and makes its virtual GPU.

It knows tensors and containers of them, and nothing of lessons or of how a student's code is run.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any, Self

import torch

from virtualgpu.gpu import VirtualGPU


def virtual_gpu(name: str = "T4", *, count: int = 1, compute: bool = True, settings: str = "") -> VirtualGPU:
    """Return a virtual GPU whose memory and times are the same on every machine, whatever the environment says.

    Whether cuBLAS keeps its workspaces depends on PyTorch's version; here it does not. The host is a fast one, so that
    the order of the work counts and not the time of launches.
    """
    gpu = VirtualGPU(name, count=count, compute=compute, settings=settings, host="reference")
    gpu.keeps_workspaces = False
    return gpu


def equal_tensors(old: Any, new: Any) -> bool:
    """Return True if two tensors, or lists of them, have equal values (NaN equals NaN), shapes, dtypes and devices."""
    if isinstance(old, torch.Tensor):
        if not isinstance(new, torch.Tensor) or old.shape != new.shape:
            return False
        if (old.dtype, old.device) != (new.dtype, new.device):
            return False
        return bool(((old == new) | ((old != old) & (new != new))).all())
    if isinstance(old, list):
        return isinstance(new, list | tuple) and len(old) == len(new) and all(map(equal_tensors, old, new))
    return bool(old is new or old == new)


def allocated() -> dict[int, int]:
    """Return the allocated bytes of each GPU; empty without one."""
    if not (torch.cuda.is_initialized() and torch.cuda.is_available()):
        return {}
    return {index: torch.cuda.memory_allocated(index) for index in range(torch.cuda.device_count())}


def left_behind(held: Mapping[int, int], returned: Any) -> dict[int, int]:
    """Return the bytes that each GPU holds beyond `held` (from `allocated`) and the tensors in `returned`."""
    storages = [(tensor.device.index, tensor.untyped_storage()) for tensor in _tensors_in(returned) if tensor.is_cuda]
    own = {(index, storage._cdata): -(-storage.nbytes() // 512) * 512 for index, storage in storages}
    more = {
        index: now - held.get(index, 0) - sum(nbytes for (gpu, _), nbytes in own.items() if gpu == index)
        for index, now in allocated().items()
    }
    return {index: nbytes for index, nbytes in more.items() if nbytes > 0}


def _tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in _tensors_in(item)] if isinstance(value, list | tuple) else []


class SavedBytes:
    """A context manager that counts the bytes that autograd saves for backward: each piece of memory once, without
    `parameters`, also after they moved. `live` is the current number, `peak` the largest."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._parameters = list(parameters)
        self._users: dict[tuple[int, int], int] = {}
        self.live = self.peak = 0

    def __enter__(self) -> Self:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda held: held[0])
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: torch.Tensor) -> _Held:
        held = _Held([tensor.detach()])  # the tensor itself would keep its own graph alive
        storage = tensor.untyped_storage()
        # a view counts as its own elements: the layout of the caller's data is not the loop's doing
        place = tensor.data_ptr(), min(tensor.nbytes, storage.nbytes())
        # read each time: model.to(device) gives the same parameters new memory
        if storage.data_ptr() not in {p.untyped_storage().data_ptr() for p in self._parameters}:
            self._users[place] = self._users.get(place, 0) + 1
            if self._users[place] == 1:
                self.live += place[1]
                self.peak = max(self.peak, self.live)
            weakref.finalize(held, self._release, place)
        return held

    def _release(self, place: tuple[int, int]) -> None:
        self._users[place] -= 1
        if not self._users[place]:
            del self._users[place]
            self.live -= place[1]


class _Held(list[torch.Tensor]):
    """One saved tensor in a list that supports weak references; freed with its node of the graph."""

    __hash__ = object.__hash__  # type: ignore[assignment]

"""What a check measures about a call, and where: bytes kept for backward, changed arguments, a GPU of its own.

It knows tensors and containers of them, and nothing of lessons or of how a student's code is run.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any, Self

import torch

from virtualgpu.gpu import VirtualGPU


def virtual_gpu(name: str = "T4", *, count: int = 1, compute: bool = True, settings: str = "") -> VirtualGPU:
    """A virtual GPU that keeps the same books everywhere, whatever the environment's settings are.

    Whether cuBLAS keeps its workspaces depends on PyTorch's version; here it does not keep them. Its host is a fast
    one: what is judged is the order of the work, not how long its launches take.
    """
    gpu = VirtualGPU(name, count=count, compute=compute, settings=settings, host="reference")
    gpu.keeps_workspaces = False
    return gpu


def same(old: Any, new: Any) -> bool:
    """Whether two tensors, or lists of such, are equal, value for value (NaN equal to NaN), in dtype and device too."""
    if isinstance(old, torch.Tensor):
        if not isinstance(new, torch.Tensor) or (old.shape, old.dtype, old.device) != (
            new.shape,
            new.dtype,
            new.device,
        ):
            return False
        return bool(((old == new) | ((old != old) & (new != new))).all())
    if isinstance(old, list):
        return isinstance(new, list | tuple) and len(old) == len(new) and all(map(same, old, new))
    return bool(old is new or old == new)


def allocated() -> dict[int, int]:
    """The live bytes of each GPU; empty where there is none."""
    if not (torch.cuda.is_initialized() and torch.cuda.is_available()):
        return {}
    return {index: torch.cuda.memory_allocated(index) for index in range(torch.cuda.device_count())}


def left_behind(held: Mapping[int, int], returned: Any) -> dict[int, int]:
    """The bytes by which each GPU holds more than `held`, as `allocated` told, but for the tensors in `returned`."""
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
    """Counts the bytes that autograd keeps for backward while it is entered: each stretch of memory once, and
    not those of `parameters`, wherever they are by then. `peak` is the most that was alive at a time."""

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
        held = _Held([tensor.detach()])  # itself, it would keep alive the graph that keeps it
        storage = tensor.untyped_storage()
        # a view counts as what it shows: how the caller's data lie in memory is not the loop's doing
        place = tensor.data_ptr(), min(tensor.nbytes, storage.nbytes())
        # asked each time: model.to(device) gives the same parameters other memory
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
    """One saved tensor in a box whose end can be watched: it goes when its part of the graph goes."""

    __hash__ = object.__hash__  # type: ignore[assignment]

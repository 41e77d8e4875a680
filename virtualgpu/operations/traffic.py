"""Memory traffic of an operation, and its time from device memory or L2 cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from ..scope.device import Device

_NEVER = (-math.inf, -math.inf, 0)
_SMALL = 1 << 14  # bytes: 0.05 µs on a T4
Tensor = torch.Tensor
Args = tuple[Any, ...]
_nbytes: Any = torch._C.TensorBase.nbytes.__get__  # type: ignore[attr-defined]
_storage: Any = torch._C.TensorBase.untyped_storage


class Cost(NamedTuple):
    """Cost of one operation: seconds beyond a kernel's least time, floating-point operations, kernels, joules.

    `after`: one more kernel, of an operation that this one calls: its name, seconds and bytes, not in the others.
    """

    seconds: float
    flops: float = 0.0
    kernels: int = 1
    joules: float = 0.0
    after: tuple[str, float, int] | None = None


Rule = Callable[["Device", Any, Args, Any], Cost]


def traffic(*items: Any) -> int:
    """Return the bytes of all tensors in `items`, and in the lists among them."""
    total = 0
    for item in items:
        if isinstance(item, Tensor):
            total += _size(item)
        elif item.__class__ is list or item.__class__ is tuple:
            total += traffic(*item)
    return total


def _size(tensor: Tensor) -> int:
    try:
        found: int = _nbytes(tensor)
        return found
    except (RuntimeError, NotImplementedError):  # a sparse tensor: its values
        return int(tensor._values().nbytes if tensor.layout is torch.sparse_coo else tensor.values().nbytes)


def reading(device: Device, *items: Any) -> float:
    """Return the seconds to read every tensor in `items`, one after the other."""
    seconds = 0.0
    for item in items:
        if isinstance(item, Tensor):
            nbytes = _size(item)
            if nbytes < _SMALL:  # `_touch`, written out for what most tensors are
                device.moved += nbytes
                seconds += nbytes / device.timer.clock.rates.memory_rate
            else:
                seconds += _touch(device, item, nbytes, False)
        elif item.__class__ is list or item.__class__ is tuple:
            seconds += reading(device, *item)
    return seconds


def writing(device: Device, *items: Any) -> float:
    """Return the seconds to write every tensor in `items`."""
    seconds = 0.0
    for item in items:
        if isinstance(item, Tensor):
            nbytes = _size(item)
            if nbytes < _SMALL:  # as above
                device.moved += nbytes
                seconds += nbytes / device.timer.clock.rates.memory_rate
            else:
                seconds += _touch(device, item, nbytes, True)
        elif item.__class__ is list or item.__class__ is tuple:
            seconds += writing(device, *item)
    return seconds


def _touch(device: Device, tensor: Tensor, nbytes: int, writes: bool) -> float:
    """Return the seconds to read or write a tensor of so many bytes once.

    A cache keeps what was touched last. So a tensor is still in L2 where it and all that has been touched since are
    smaller than that. What is written stays there until it has to go, and its way to memory is saved where it is
    written again before. Small tensors take no time to speak of wherever they are, and are not followed.
    """
    rates = device.timer.clock.rates
    try:
        address = _storage(tensor)._gpulab.block.address
    except (RuntimeError, NotImplementedError, AttributeError):
        device.moved += nbytes
        return nbytes / rates.memory_rate
    at, cached = device.touched, device.cached
    touched, written, size = cached.get(address, _NEVER)
    if size < nbytes:
        touched = written = -math.inf
    if at - (written if writes else touched) + nbytes <= rates.l2_holds:
        seconds = nbytes / rates.l2_rate
    else:
        device.moved += nbytes
        seconds = nbytes / rates.memory_rate
        if at - touched + nbytes > rates.l2_holds:
            device.touched = at = at + nbytes
    cached[address] = at, at if writes else written, nbytes
    return seconds


def writes(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """Cost of an operation that writes its results and reads little."""
    seconds = writing(device, out)
    return Cost(seconds, kernels=1 if seconds else 0)

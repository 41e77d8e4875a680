"""Time of copies and sums: between layouts, into a part of what is filled first, over columns, of two dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..clock import limits
from .traffic import Args, Cost, Rule, Tensor, reading, traffic, writing

if TYPE_CHECKING:
    from ..scope.device import Device

aten = torch.ops.aten
_LARGE = 1 << 20  # bytes: of less, no multiprocessor has enough for this to matter


def copying(device: Device, into: Tensor, source: Tensor) -> float:
    """Return the seconds of a copy on one GPU. Between layouts what comes from memory is loaded one by one."""
    before = device.moved
    seconds = reading(device, source) + writing(device, into)
    if traffic(into) <= _LARGE or _alike(into, source):
        return seconds
    return max(seconds, limits.one_by_one(device.timer.clock.rates, device.moved - before))


def _copy(device: Device, func: Any, args: Args, out: Any) -> Cost:
    seconds = copying(device, out, args[0])
    return Cost(seconds, kernels=1 if seconds else 0)


def _alike(one: Tensor, other: Tensor) -> bool:
    """Return True if numbers that belong together lie in the same place of both."""
    if one.shape != other.shape or one.layout is not torch.strided or other.layout is not torch.strided:
        return True  # of one that is expanded or sparse nothing is known
    sides = zip(one.stride(), other.stride(), one.shape, strict=True)
    return all(mine == theirs or size == 1 for mine, theirs, size in sides)


def _elementwise(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """Of two dtypes, each number is cast on its own."""
    seconds = reading(device, *args) + writing(device, out)
    other = args[1]
    if isinstance(other, Tensor) and other.dim() and args[0].dtype is not other.dtype and traffic(out) > _LARGE:
        seconds = max(seconds, limits.casts(device.timer.clock.rates, out.numel()))
    return Cost(seconds, kernels=1 if seconds else 0)


def summed(device: Device, tensor: Tensor, out: Tensor, dims: Any) -> float:
    """Return the seconds of sums over `dims`, None for all.

    Over columns numbers are loaded one by one, and the blocks' counters are set to zero before.
    """
    seconds = reading(device, tensor) + writing(device, out)
    nbytes = traffic(tensor)
    if nbytes > _LARGE and _over_columns(tensor, dims):
        rates = device.timer.clock.rates
        seconds = max(seconds, limits.one_by_one(rates, nbytes)) + rates.kernel_s
    return seconds


def _sum(device: Device, func: Any, args: Args, out: Any) -> Cost:
    seconds = summed(device, args[0], out, args[1] if len(args) > 1 else None)
    return Cost(seconds, kernels=1 if seconds else 0)


def _filled_first(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """The whole result is filled, and what is given is copied into a part of it: two kernels."""
    given = args[0]
    seconds = writing(device, out) + reading(device, given)
    part = traffic(given)
    device.moved += part
    seconds += device.timer.clock.rates.memory_seconds(part)
    return Cost(seconds, kernels=2 if seconds else 0)


def _over_columns(tensor: Tensor, dims: Any) -> bool:
    """Return True if neighbours in memory belong to different sums."""
    if not dims or tensor.layout is not torch.strided:
        return False
    reduced = {dim % tensor.dim() for dim in ([dims] if isinstance(dims, int) else dims)}
    strides = [(stride, dim in reduced) for dim, stride in enumerate(tensor.stride()) if tensor.shape[dim] != 1]
    return bool(strides) and not min(strides)[1]


RULES: dict[Any, Rule] = {
    **dict.fromkeys(
        (
            aten.add.Tensor, aten.add_.Tensor, aten.sub.Tensor, aten.sub_.Tensor, aten.mul.Tensor, aten.mul_.Tensor,
            aten.div.Tensor, aten.div_.Tensor,
        ),
        _elementwise,
    ),
    **dict.fromkeys((aten.clone.default, aten._to_copy.default), _copy),
    **dict.fromkeys((aten.sum.dim_IntList, aten.mean.dim), _sum),
    **dict.fromkeys(
        (aten.select_backward.default, aten.slice_backward.default, aten.constant_pad_nd.default), _filled_first
    ),
}  # fmt: skip

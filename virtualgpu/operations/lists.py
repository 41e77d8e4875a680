"""Time of operations on lists of tensors: `_foreach_…` and `_fused_…`, which optimizers call, and FSDP's copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .traffic import Args, Cost, Tensor, reading, traffic, writing

if TYPE_CHECKING:
    from ..scope.device import Device

# MultiTensorApply.cuh: a launch has at most so many blocks, of so many numbers each.
_BLOCKS, _NUMBERS = 320, 65536


def cost(device: Device, args: Args, written: list[Any]) -> Cost:
    """What is written in place is read and written; a tensor that is in two lists is read once.

    A launch's blocks are alike and few: where multiprocessors do not divide them, some wait for the others.
    """
    seconds = reading(device, _once(args)) + writing(device, written)
    if not seconds:
        return Cost(0.0, kernels=0)
    first = next((item for item in args if item.__class__ is list or item.__class__ is tuple), ())
    blocks = min(sum(-(-tensor.numel() // _NUMBERS) for tensor in first if isinstance(tensor, Tensor)), _BLOCKS)
    sms = device.timer.clock.rates.sms
    return Cost(seconds * (-(-blocks // sms) * sms / blocks if blocks > sms else 1.0))


def gathered_from(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """FSDP's `all_gather_copy_in`: its shards are copied into this rank's part of what is to be gathered."""
    part = traffic(args[0])
    device.moved += part
    return Cost(reading(device, args[0]) + device.timer.clock.rates.memory_seconds(part))


def copied_into(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """FSDP's `split_with_sizes_copy` after a gather, `chunk_cat` before a scatter; the last argument is written."""
    return Cost(reading(device, *args[:-1]) + writing(device, args[-1]))


def _once(args: Args) -> list[Any]:
    """What a block reads: of tensors at one place of the lists each once."""
    lists = [item for item in args if item.__class__ is list or item.__class__ is tuple]
    places = max((len(item) for item in lists), default=0)
    found = [item for item in args if isinstance(item, Tensor)]
    for place in range(places):
        there = [item[place] for item in lists if place < len(item) and isinstance(item[place], Tensor)]
        found += {id(tensor): tensor for tensor in there}.values()
    return found

"""Tensors of different devices in one operation: what CUDA takes, and the error where it does not.

It decides by the operation's kind; copies between devices never come here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .labels import FLOATING, storage_of
from .kernels import map_tensors
from .state import backing

if TYPE_CHECKING:
    from .device import Device
    from .gpu import VirtualGPU

# Their index tensors may be on the host; the rest may not.
_INDEXING = {"aten::index.Tensor", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"}


def settle(
    gpu: VirtualGPU, device: Device, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, with those brought over that CUDA brings over by itself; else RuntimeError."""
    name = func.name()
    if name in _INDEXING and _on(args[0], device) and all(_allowed(a, device) for a in args[2:]):
        if gpu.compute:
            return args, kwargs
        with backing:
            return map_tensors(lambda t: t.to("meta"), args), kwargs
    raise RuntimeError(message(func, args, kwargs))


def _on(item: Any, device: Device) -> bool:
    if not isinstance(item, torch.Tensor):
        return True
    label = getattr(storage_of(item), "_gpulab", None)
    return label is FLOATING or (label is not None and label.device is device)


def _allowed(item: Any, device: Device) -> bool:
    return not isinstance(item, torch.Tensor) or item.dim() == 0 or _on(item, device)


def message(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The text of CUDA's error."""
    names = [argument.name for argument in func._schema.arguments]
    found: list[tuple[str, torch.device]] = []
    for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, torch.Tensor):
                found.append((name, _where(item)))
    first = found[0][1]
    other = next((where for _, where in found if where != first), first)
    return f"Expected all tensors to be on the same device, but found at least two devices, {first} and {other}!"


def _where(tensor: torch.Tensor) -> torch.device:
    label = getattr(storage_of(tensor), "_gpulab", None)
    if label is None or label is FLOATING or not label.device.active:
        return torch.device("cpu")
    where: torch.device = label.device.name
    return where

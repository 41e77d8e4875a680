"""Resolve device arguments to GPU indices: numbers, names, generators, or the current GPU."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any

import torch

from . import in_force

if TYPE_CHECKING:
    from ..gpu import VirtualGPU
    from .device import Device

stream_numbers = itertools.count(1)
generators: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # of GPUs, by their C++ object


def current() -> VirtualGPU:
    """Return the virtual GPU in force; raises RuntimeError without one."""
    gpu = in_force.current
    if gpu is None:
        raise RuntimeError("no virtual GPU is in force")
    return gpu


def device_at(index: int | None) -> Device:
    """Return the GPU with this index, the current one for None."""
    return current().device(index)


def indexed(device: Any) -> torch.device:
    """Return a device with its index: `cuda` is the current one."""
    if isinstance(device, int) and not isinstance(device, bool):
        if device < 0:
            raise RuntimeError("Device index must not be negative")
        return current().device(device).name
    device = torch.device(device)
    return current().device(device.index).name if device.type == "cuda" else device


def device_number(device: Any) -> int:
    """Return the index of a device argument of `torch.cuda`: None, 1, "cuda:1" or a torch.device; it need not exist."""
    if device is None:
        return device_at(None).index
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return device_number(device.index)


def device_index(device: Any) -> int:
    """Return the index of an existing GPU; raises torch.AcceleratorError for another."""
    return device_at(device_number(device)).index


def generator_device(generator: Any) -> torch.device:
    """Return a generator's device. Operations receive a new Python object for it; its C++ object identifies it."""
    found = generators.get(generator._cdata)
    where: torch.device = generator.device if found is None else found.device
    return torch.device("cuda", device_index(where)) if where.type == "cuda" else where

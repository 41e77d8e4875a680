"""Map tensors in arguments and results of an operation, and place results on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..scope.labels import FLOATING, NAME, STAYS, parts_of, storage_of

if TYPE_CHECKING:
    from ..gpu import VirtualGPU
    from ..scope.device import Device

Tensor = torch.Tensor

_storage: Any = torch._C.TensorBase.untyped_storage


def map_tensors(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Apply `change` to the tensors in `tree`."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: map_tensors(change, value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_tensors(change, item) for item in tree)
    return tree


def tensors_in(tree: Any) -> list[Tensor]:
    """Yield the tensors in lists and tuples, in order; a tensor itself."""
    if isinstance(tree, Tensor):
        return [tree]
    return [t for item in tree for t in tensors_in(item)] if isinstance(tree, (list, tuple)) else []


def look(items: Any, device: Device | None, host: Any, floating: Any) -> tuple[Device | None, Any, Any]:
    """Return the GPU of the labelled tensors among `items`, a tensor on another device, and the floating storages.

    The tensor on another device, host or GPU, is one with dimensions where there is one.
    """
    for item in items:
        if isinstance(item, Tensor):
            try:
                label = _storage(item)._gpulab
            except (RuntimeError, NotImplementedError):
                device, host, floating = look(parts_of(item), device, host, floating)
                continue
            if label is None:
                if host is None or not host.dim():
                    host = item
            elif label is FLOATING:
                floating = [item, *(floating or ())]
            elif label.device is not device:
                if not label.device.active:
                    if host is None or not host.dim():
                        host = item
                elif device is None:
                    device = label.device
                elif host is None or not host.dim():
                    host = item
        elif type(item) in (list, tuple) and item and not isinstance(item[0], (int, float)):
            device, host, floating = look(item, device, host, floating)
        elif isinstance(item, torch.UntypedStorage):
            label = getattr(item, NAME, None)
            if label is not None and label is not FLOATING and label.device.active:
                device = label.device
    return device, host, floating


def place(device: Device, out: Any) -> None:
    """Put every new storage of a result on the GPU."""
    if isinstance(out, Tensor):
        storage = storage_of(out)
        if storage is None:
            for part in parts_of(out):
                place(device, part)
        else:
            label = storage._gpulab
            new = label is None or label is FLOATING or not label.device.active
            if new and not getattr(storage, STAYS, False):
                device.put(storage)
    elif isinstance(out, (list, tuple)):
        for item in out:
            place(device, item)


def float_(gpu: VirtualGPU, out: Any) -> Any:
    """Mark `out`, made by C++ without a device: it joins the first GPU that it meets."""
    if isinstance(out, (list, tuple)):
        return type(out)(float_(gpu, item) for item in out)
    storage = storage_of(out) if isinstance(out, Tensor) else None
    if storage is None or storage._gpulab is not None:
        return out
    storage._gpulab = FLOATING
    capture = capture_of(gpu.devices[gpu.chosen.number])  # not `gpu.device`, which a forked process must not ask
    return out if capture is None else capture.float_(out)


def join(device: Device, floating: list[Tensor]) -> None:
    """Put tensors that C++ made for an operation without a device on the operation's GPU."""
    for tensor in floating:
        storage = _storage(tensor)
        if storage._gpulab is FLOATING:
            device.put(storage)
            if (capture := capture_of(device)) is not None:
                capture.join(storage)


def capture_of(device: Device) -> Any:
    """Return the CUDA graph that captures the current stream."""
    return device.capture if device.capture is not None and device.capture.covers(device.stream) else None


def resized(storage: Any) -> Device | None:
    """Reallocate a storage whose size has changed; return its GPU."""
    label = None if storage is None else storage._gpulab
    if label is not None and label is not FLOATING and label.device.active and label.nbytes != storage.nbytes():
        label.device.put(storage)
        device: Device = label.device
        return device
    return None

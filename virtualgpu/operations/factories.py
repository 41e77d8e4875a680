"""Tensor factories (`zeros`, `empty_like`, `rand`, …) that create their result on a virtual GPU."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ..scope.in_force import backing
from ..scope.labels import device_of, storage_of
from . import copies, cost, host_shapes, random, shape_cache
from .results import capture_of, float_, look, map_tensors, place

if TYPE_CHECKING:
    from ..gpu import VirtualGPU
    from ..scope.device import Device

Tensor = torch.Tensor

_storage: Any = torch._C.TensorBase.untyped_storage


def run_factory(gpu: VirtualGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation with a device argument."""
    wanted = kwargs.get("device")
    pinned = kwargs.get("pin_memory")
    if wanted is None:
        if pinned:
            return _pinned(func, args, kwargs)
        return _run_like(gpu, func, args, kwargs)
    if wanted.type == "cuda":
        device = gpu.device(wanted.index)
        if pinned:
            raise RuntimeError("Only dense CPU tensors can be pinned")
        return create(gpu, device, func, args, kwargs)
    if wanted.type == "cpu" and "generator" in kwargs:
        random.check_host_generator(kwargs)
    if pinned:
        return _pinned(func, args, kwargs)
    if wanted.type == gpu.backing.type and pinned is None:
        # C++ passed a tensor's own options, which name the backing device.
        like, _, _ = look(args, None, None, None)
        if like is not None:
            return create(gpu, like, func, args, kwargs)
        if host_shapes.any_host_shape(args):
            return host_shapes.run_on_shapes(func, args, kwargs)
        out = func._op(*args, **kwargs)
        if not any(isinstance(a, Tensor) for a in args):
            out = float_(gpu, out)
        return out
    if wanted.type != "cpu":
        return func._op(*args, **kwargs)
    return host_shapes.create(gpu, func, args, kwargs)


def _run_like(gpu: VirtualGPU, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a factory without a device: on the GPU if its argument is there."""
    device, _, _ = look(args, None, None, None)
    if device is None:
        random.check_host_generator(kwargs)
        if any(isinstance(a, Tensor) and a.is_meta for a in args):
            return func._op(*args, **kwargs)
        return host_shapes.create(gpu, func, args, kwargs)
    return create(gpu, device, func, args, kwargs)


def _pinned(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out = func._op(*args, **{**kwargs, "pin_memory": False})
    copies.pin(_storage(out), copied=False)
    return out


def create(gpu: VirtualGPU, device: Device, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation with `device=`; its memory is allocated before its values are written."""
    gpu.clock.enter()
    if device.fault is not None:
        device.raise_fault()
    generator = kwargs.get("generator")
    if generator is not None:
        random.check_generator(generator, device)
    arguments = _with(kwargs, device=device.backing, generator=generator)
    seeded = torch.Tag.nondeterministic_seeded in func.tags
    with backing:
        label = None
        if not gpu.compute or not (any(isinstance(a, Tensor) for a in args) or (_small(args) and not seeded)):
            given = map_tensors(lambda t: t.to("meta") if t.dim() else t, args)
            named = _with(kwargs, device=torch.device("meta"), generator=None)
            shapes = shape_cache.run_cached(gpu.remembered, func, given, named)
            if not gpu.compute:
                place(device, shapes)
                _charge_new(gpu, device, func, args, kwargs, shapes)
                return shapes
            if shapes.layout is torch.strided:
                label = device.allocate(_storage(shapes).nbytes())
        out = random.draw_numbers(device, func, args, arguments) if seeded else func._op(*args, **arguments)
    if label is not None and storage_of(out) is not None:
        storage = _storage(out)
        if storage._gpulab is None and storage.nbytes() == label.nbytes:
            storage._gpulab = label
    place(device, out)
    out = _note(device, func, args, arguments, out)
    _charge_new(gpu, device, func, args, kwargs, out)
    return out


def _small(args: tuple[Any, ...]) -> bool:
    """Return True if the size is certain to fit on this machine: then memory is allocated afterwards."""
    size = args[0] if args else None
    return size.__class__ is list and math.prod(size) <= _ROOM


_ROOM = 1 << 16  # elements


def _note(device: Device, func: Any, args: tuple[Any, ...], arguments: Any, out: Any) -> Any:
    """Record it in the CUDA graph that is being captured, if any; a pure allocation computes nothing."""
    capture = capture_of(device)
    if capture is None:
        return out

    def again(device: Device, args: Any, kwargs: Any) -> Any:
        seeded = torch.Tag.nondeterministic_seeded in func.tags
        return random.draw_numbers(device, func, args, kwargs) if seeded else func._op(*args, **kwargs)

    if func.name().startswith(_EMPTY):
        return capture.note(None, (), {}, out)
    from_elsewhere = func is torch.ops.aten._to_copy.default and device_of(args[0]) is not device
    return capture.note(again, args, arguments, out, live=from_elsewhere)


_EMPTY = ("aten::empty", "aten::new_empty")


def _charge_new(gpu: VirtualGPU, device: Device, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Charge a factory: a copy from elsewhere, or a fill kernel."""
    if func is torch.ops.aten._to_copy.default and device_of(args[0]) is not device:
        copies.charge(out, args[0], non_blocking=bool(kwargs.get("non_blocking")))
    else:
        cost.charge(device, func, args, out)
    gpu.clock.leave()


def _with(kwargs: dict[str, Any], *, device: Any, generator: Any) -> dict[str, Any]:
    out = {**kwargs, "device": device}
    out.pop("pin_memory", None)
    if "generator" in out or generator is not None:
        out["generator"] = generator
    return out

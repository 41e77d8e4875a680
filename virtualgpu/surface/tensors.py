"""Attributes of `torch.Tensor` about device and values, answered for a virtual GPU.

Stand-ins for attributes of `torch.Tensor`. For tensors that are on no virtual GPU, and within an operation, PyTorch's
own answer holds. How a tensor gets to another device is `moving`, how a new one is made from data `creation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..operations import copies, host_shapes, known_values, shapes_only, unknown
from ..scope.in_force import backing, thread
from ..scope.labels import FLOATING, device_of, storage_of, wrapped_tensor
from ..scope.numbering import device_at
from ..scope.patches import Patches
from ..scope.refusals import NoValues
from . import creation, moving

if TYPE_CHECKING:
    from ..scope.device import Device

Tensor = torch.Tensor
_Base = torch._C.TensorBase
_device_of_base = _Base.device.__get__
_storage: Any = _Base.untyped_storage


def install(patches: Patches) -> None:
    """Replace the attributes for as long as a virtual GPU is in force."""
    for name, value in {
        "device": property(_device),
        "is_cuda": property(_is_cuda),
        "is_cpu": property(_is_cpu),
        "is_meta": property(_is_meta),
        "get_device": _get_device,
        "to": moving.to,
        "cuda": moving.cuda,
        "cpu": moving.cpu,
        "pin_memory": moving.pin_memory,
        "is_pinned": moving.is_pinned,
        "new_tensor": creation.new_tensor,
        "new": creation.new,
        "type": creation.typed,
        "type_as": moving.type_as,
        "numpy": _numpy,
        "__array__": _array,
        "__dlpack__": _dlpack,
        "__cuda_array_interface__": property(_cuda_array_interface),
        "item": _item,
        "tolist": _tolist,
        "data_ptr": _data_ptr,
        "record_stream": _record_stream,
        "apply_": _host_only("apply_"),
        "map_": _host_only("map_"),
        "__bool__": _bool,
        "__setitem__": _setitem,
        "__repr__": _repr,
    }.items():
        text = getattr(getattr(Tensor, name), "__doc__", None)
        if isinstance(value, property):
            value = property(value.fget, doc=text)
        else:
            value.__doc__ = text
        patches.set(Tensor, name, value)
    patches.set(torch, "get_device", _get_device)
    for module in (torch, torch.utils.dlpack):
        patches.set(module, "to_dlpack", _to_dlpack)


_PLAIN = (Tensor, torch.nn.Parameter)


def where(tensor: Tensor) -> Device | None:
    """Return the virtual GPU of a tensor, as code outside an operation sees it."""
    if thread.inside:
        return None
    try:
        inner = None if type(tensor) in _PLAIN else wrapped_tensor(tensor)
        if inner is not None:
            return where(inner)
        label = _storage(tensor)._gpulab
    except (RuntimeError, NotImplementedError, ValueError):
        # It has no storage, or is a lazy module's parameter, which refuses to show it.
        with torch._C.DisableTorchFunctionSubclass():
            return device_of(tensor)
    return label.device if label is not None and label is not FLOATING and label.device.active else None


# -- its device ------------------------------------------------------------------------------------------------------


def _device(self: Tensor) -> torch.device:
    device = where(self)
    return _device_of_base(self) if device is None else device.name


def _is_cuda(self: Tensor) -> bool:
    return where(self) is not None or _Base.is_cuda.__get__(self)  # type: ignore[attr-defined]


def _is_cpu(self: Tensor) -> bool:
    return where(self) is None and _Base.is_cpu.__get__(self)  # type: ignore[attr-defined]


def _is_meta(self: Tensor) -> bool:
    return where(self) is None and _Base.is_meta.__get__(self)  # type: ignore[attr-defined]


def _get_device(self: Tensor) -> int:
    device = where(self)
    return _Base.get_device(self) if device is None else device.index


def _data_ptr(self: Tensor) -> int:
    device = where(self)
    if device is None:
        return _Base.data_ptr(self)
    label = _storage(self)._gpulab
    if label.block is None or not self.numel():
        return 0
    address: int = label.block.address + self.storage_offset() * self.element_size()
    return address


def _record_stream(self: Tensor, stream: Any) -> None:
    if where(self) is None:
        _Base.record_stream(self, stream)
    else:
        _storage(self)._gpulab.used_by(device_at(stream.device_index).timer, stream.stream_id)


# -- its values ------------------------------------------------------------------------------------------------------


def _refuse_host(self: Tensor) -> None:
    device = where(self)
    if device is not None:
        raise TypeError(
            f"can't convert {device.name} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            "memory first."
        )
    _refuse_shape(self, "a look at its memory (numpy)")


def _refuse_shape(self: Tensor, asked: str) -> None:
    """Raise NoValues for a host tensor without values; note the host's access otherwise."""
    if not thread.inside and host_shapes.label_of(self) is not None:
        raise host_shapes.refusal((self,), asked)
    copies.used_on_host(storage_of(self))


def _numpy(self: Tensor, *, force: bool = False) -> Any:
    if force and where(self) is not None:
        return moving.cpu(self.detach()).resolve_conj().resolve_neg().numpy()
    _refuse_host(self)
    return _Base.numpy(self, force=force)


_own_array: Any = Tensor.__array__
_own_dlpack = Tensor.__dlpack__
_own_cuda_array_interface: Any = vars(Tensor)["__cuda_array_interface__"]


def _array(self: Tensor, dtype: Any = None) -> Any:
    _refuse_host(self)
    return _own_array(self, dtype=dtype)


_array.__qualname__ = "Tensor.__array__"  # NumPy looks for this name where it has asked for too much


def _dlpack(self: Tensor, *args: Any, **kwargs: Any) -> Any:
    if where(self) is not None:
        raise BufferError(NO_EXPORT)
    _refuse_shape(self, "DLPack")
    return _own_dlpack(self, *args, **kwargs)


def _to_dlpack(tensor: Tensor) -> Any:
    """`torch.utils.dlpack.to_dlpack`."""
    if where(tensor) is not None:
        raise BufferError(NO_EXPORT)
    _refuse_shape(tensor, "DLPack")
    return torch._C._to_dlpack(tensor)


NO_EXPORT = "a tensor on a virtual GPU cannot be exported to other libraries: what holds it is not a GPU"


def _cuda_array_interface(self: Tensor) -> Any:
    if where(self) is not None:
        raise AttributeError(NO_EXPORT)
    return _own_cuda_array_interface.__get__(self)


def _tolist(self: Tensor) -> Any:
    _refuse_shape(self, "tolist")
    if not self.dim():
        return _item(self)
    return _Base.tolist(self if where(self) is None else moving.cpu(self.detach()))


def _bool(self: Tensor) -> bool:
    device = where(self)
    if device is not None and not device.compute and self.numel() == 1 and _unknown(self):
        if known_values.assumed(self) is not None or self.dtype is not torch.bool:
            return bool(_Base.item(self))
        raise NoValues(
            "a branch on a tensor's value: with compute=False the virtual GPU knows only shapes, not values. "
            "Use compute=True, or decide on something that does not come from a tensor."
        )
    return _Base.__bool__(self)


def _setitem(self: Tensor, index: Any, value: Any) -> None:
    """With a mask of the host's and a number: here both lie on the host, so that torch would fill by the mask, which
    must lie where the tensor does; on CUDA it puts by index, and copies the mask over, as an H200 showed."""
    device = where(self) if isinstance(value, (bool, int, float, complex)) else None
    if device is not None:
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(part, Tensor) and part.dtype in _MASKS and where(part) is None for part in parts):
            value = torch.full((), value, dtype=self.dtype, device=device.name)
    _Base.__setitem__(self, index, value)


_MASKS = (torch.bool, torch.uint8)


def _unknown(self: Tensor) -> bool:
    """Return True if this tensor of a GPU without values has no known values."""
    return known_values.value(self) is None and getattr(_storage(self), shapes_only.KNOWN, None) is None


def _item(self: Tensor) -> Any:
    found = _Base.item(self)
    device = where(self)
    if device is None or device.compute or not _unknown(self):
        return found
    return unknown.unknown(found)


def _host_only(name: str) -> Any:
    own = getattr(_Base, name)

    def run(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if where(self) is not None:
            raise TypeError(f"{name} is only implemented on CPU tensors")
        _refuse_shape(self, name)
        out: Tensor = own(self, *args, **kwargs)
        return out

    return run


_own_repr: Any = Tensor.__repr__


def _repr(self: Tensor, *, tensor_contents: Any = None) -> str:
    device = where(self)
    if device is None and host_shapes.label_of(self) is not None:
        with backing:
            return str(_own_repr(self.to("meta"))).replace("device='meta', ", "")
    if device is None or device.compute:
        if device is None:
            copies.used_on_host(storage_of(self))
        elif not self.dim():
            copies.read_back(device)  # PyTorch prints with modes off, so nobody sees it read the number
        return str(_own_repr(self, tensor_contents=tensor_contents))
    with backing:
        if self.is_nested:
            return f"nested_tensor(..., device='{device.name}', size={self._nested_tensor_size().tolist()})"
        return str(_own_repr(self)).replace("device='meta'", f"device='{device.name}'")


__all__ = ["install", "where"]

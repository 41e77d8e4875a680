"""Methods and attributes of `torch.UntypedStorage`, answered for a virtual GPU.

`TypedStorage` and saving and loading are made of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..operations import copies, host_shapes
from ..operations.results import resized
from ..scope.in_force import backing, thread
from ..scope.labels import FLOATING, NAME, PINNED, HostShape, Label
from ..scope.numbering import current, indexed
from ..scope.patches import Patches
from ..scope.refusals import NoValues
from .creation import goes_to_gpu

if TYPE_CHECKING:
    from ..scope.device import Device

_Storage: Any = torch.UntypedStorage
_REPLACED = (
    "get_device data_ptr clone cpu cuda to resize_ copy_ is_shared share_memory_ __getitem__ __repr__ _write_file"
)
_own = {name: getattr(_Storage, name) for name in _REPLACED.split()}
_own_device = _Storage.device
_own_new: Any = torch._C.StorageBase.__new__


def install(patches: Patches) -> None:
    """Replace the attributes for as long as a virtual GPU is in force."""
    patches.set(_Storage, NAME, None)
    patches.set(_Storage, PINNED, False)
    for name, value in {
        "__new__": staticmethod(_new),
        "device": property(_device),
        "get_device": _get_device,
        "data_ptr": _data_ptr,
        "clone": _clone,
        "cpu": _cpu,
        "cuda": _cuda,
        "to": _to,
        "resize_": _resize,
        "copy_": _copy,
        "is_pinned": _is_pinned,
        "pin_memory": _pin,
        "is_shared": _is_shared,
        "share_memory_": _share_memory,
        "__getitem__": _getitem,
        "_write_file": _write_file,
        "__repr__": _repr,
    }.items():
        patches.set(_Storage, name, value)


def label_of(storage: Any) -> Label | None:
    label = getattr(storage, NAME, None)
    if thread.inside or label is None or label is FLOATING or not label.device.active:
        return None
    found: Label = label
    return found


def shape_of_host(storage: Any) -> HostShape | None:
    """The label of a host storage without values."""
    label = getattr(storage, NAME, None)
    return label if type(label) is HostShape and not thread.inside else None


def _refuse_shape(storage: Any, asked: str) -> None:
    label = shape_of_host(storage)
    if label is not None:
        raise NoValues(f"{asked} {label}: with compute=False it has none")
    if label_of(storage) is None:
        copies.used_on_host(storage)


def _new(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
    if device is None:  # contexts do not reach it
        return _own_new(cls, *args, **kwargs)
    if thread.inside or not goes_to_gpu(device):
        return _own_new(cls, *args, device=device, **kwargs)
    on = current().device(indexed(device).index)
    with backing:
        out = _own_new(cls, *args, device=on.backing, **kwargs)
    on.put(out)
    return out


def _device(self: Any) -> torch.device:
    label = label_of(self)
    if label is not None:
        return label.device.name
    found: torch.device = _own_device.__get__(self) if hasattr(_own_device, "__get__") else _own_device
    return found


def _get_device(self: Any) -> int | None:
    label = label_of(self)
    found: int | None = _own["get_device"](self) if label is None else label.device.index
    return found


def _data_ptr(self: Any) -> int:
    label = label_of(self)
    if label is None:
        return int(_own["data_ptr"](self))
    return 0 if label.block is None else label.block.address


def _getitem(self: Any, index: Any) -> Any:
    label = label_of(self)
    if label is not None and not label.device.compute:
        raise NoValues("the bytes of a storage: with compute=False the virtual GPU has none")
    _refuse_shape(self, "the bytes of")
    return _own["__getitem__"](self, index)


def _write_file(self: Any, *args: Any) -> None:
    """Pickling writes a GPU's storage itself, without a copy on the host."""
    label = label_of(self)
    with_values = shape_of_host(self) is None if label is None else label.device.compute
    if label is None:
        copies.used_on_host(self)
    _own["_write_file"](self if with_values else zeros(self), *args)


def zeros(storage: Any) -> Any:
    """Return zero bytes, as many as a storage without values has, for files."""
    current().warn_unknown()
    with backing:
        out = _Storage(storage.nbytes())
        return (
            out.fill_(0) if storage.nbytes() < host_shapes.LEAST else out
        )  # the system allocates only pages that are touched


def _repr(self: Any) -> str:
    label = label_of(self)
    if label is None or label.device.compute:
        return str(_own["__repr__"](self))
    return f"...\n[{torch.typename(self)}(device={label.device.name}) of size {len(self)}]"


def _clone(self: Any) -> Any:
    label = label_of(self)
    if label is None and shape_of_host(self) is not None:
        with backing:
            return host_shapes.shape_of(
                torch.empty(self.nbytes(), dtype=torch.uint8, device="meta"), "a copy of its storage"
            ).untyped_storage()
    if label is None:
        return _own["clone"](self)
    return _on(self, label.device)


def _on(source: Any, device: Device) -> Any:
    """A copy of a storage, host's or GPU's, on a GPU."""
    gpu = current()
    with backing:
        out = _Storage(source.nbytes(), device=device.backing)
        if gpu.compute:
            _own["copy_"](out, source)
    device.put(out)
    if label_of(source) is None:
        pinned = bool(getattr(source, PINNED, False))
        device.timer.copy(device.stream, source.nbytes(), "to GPU", pinned=pinned, wait=True)
    return out


def _cpu(self: Any) -> Any:
    label = label_of(self)
    if label is None:
        return _own["cpu"](self)
    label.device.raise_fault()
    label.device.timer.copy(label.device.stream, self.nbytes(), "to host", pinned=False, wait=True)
    gpu = current()
    with backing:
        out = _Storage(self.nbytes())
        if gpu.compute:
            _own["copy_"](out, self)
        else:
            gpu.warn_unknown()
            out.fill_(0)
    return out


def _cuda(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
    target = indexed("cuda" if device is None else device)
    label = label_of(self)
    if label is not None and label.device.name == target:
        return self
    return _on(self, current().device(target.index))


def _to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
    if thread.inside:
        return _own["to"](self, device=device, non_blocking=non_blocking)
    target = torch.device(device)
    if target.type == "cuda":
        return _cuda(self, target)
    return _cpu(self) if target.type == "cpu" else _own["to"](self, device=device)


def _resize(self: Any, size: int) -> Any:
    label = label_of(self)
    with backing:
        out = _own["resize_"](self, size)
    if label is not None:
        resized(self)
    return out


def _copy(self: Any, source: Any, non_blocking: bool | None = None) -> Any:
    _refuse_shape(source, "a copy of the bytes of")
    if label_of(self) is None and label_of(source) is None:
        return _own["copy_"](self, source, non_blocking)
    if not current().compute:
        return self
    with backing:
        return _own["copy_"](self, source)


def _is_shared(self: Any) -> bool:
    """CUDA's memory always counts as shared between processes."""
    return label_of(self) is not None or bool(_own["is_shared"](self))


def _share_memory(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self if shape_of_host(self) is not None else _own["share_memory_"](self, *args, **kwargs)


def _is_pinned(self: Any, device: Any = "cuda") -> bool:
    return bool(getattr(self, PINNED, False))


def _pin(self: Any, device: Any = "cuda") -> Any:
    if label_of(self) is not None:
        raise TypeError(f"cannot pin '{torch.typename(self)}' only CPU memory can be pinned")
    _refuse_shape(self, "the bytes of")
    with backing:
        out = _Storage(self.nbytes())
        out.copy_(self)
    copies.pin(out, copied=True)
    return out

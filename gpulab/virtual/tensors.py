"""What Python asks a tensor or a storage about where it is, answered for the virtual GPU.

Stand-ins for attributes of `torch.Tensor` and `torch.UntypedStorage`. For tensors that are on no virtual GPU, and within
an operation, PyTorch's own answer holds.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from . import kernels, state
from .labels import FLOATING, NAME, PINNED, Label, device_of, storage_of
from .patches import Patches
from .state import backing, thread

if TYPE_CHECKING:
    from .device import Device
    from .gpu import VirtualGPU

Tensor = torch.Tensor
_Base = torch._C.TensorBase
_device_of_base = _Base.device.__get__  # type: ignore[attr-defined]
_storage = _Base.untyped_storage
_HOST = torch.device("cpu")


def install(gpu: VirtualGPU, patches: Patches) -> None:
    """Replace the attributes for as long as `gpu` is in force."""
    patches.set(torch.UntypedStorage, NAME, None)
    patches.set(torch.UntypedStorage, PINNED, False)
    for name, value in {
        "device": property(_device),
        "is_cuda": property(_is_cuda),
        "is_cpu": property(_is_cpu),
        "is_meta": property(_is_meta),
        "get_device": _get_device,
        "to": _to,
        "cuda": _cuda,
        "cpu": _cpu,
        "numpy": _numpy,
        "__array__": _array,
        "__dlpack__": _dlpack,
        "tolist": _tolist,
        "pin_memory": _pin_memory,
        "is_pinned": _is_pinned,
        "data_ptr": _data_ptr,
        "new_tensor": _new_tensor,
        "type": _type,
        "record_stream": _record_stream,
        "__bool__": _bool,
        "__repr__": _repr,
    }.items():
        patches.set(Tensor, name, value)
    for name, value in {
        "device": property(_storage_device),
        "get_device": _storage_get_device,
        "data_ptr": _storage_data_ptr,
        "clone": _storage_clone,
        "cpu": _storage_cpu,
        "cuda": _storage_cuda,
        "to": _storage_to,
        "resize_": _storage_resize,
        "copy_": _storage_copy,
        "is_pinned": _storage_is_pinned,
        "pin_memory": _storage_pin,
    }.items():
        patches.set(torch.UntypedStorage, name, value)


def _gpu() -> VirtualGPU:
    gpu = state.current
    if gpu is None:
        raise RuntimeError("no virtual GPU is in force")
    return gpu


def where(tensor: Tensor) -> Device | None:
    """The virtual GPU of a tensor, as code outside an operation sees it."""
    if thread.inside:
        return None
    try:
        label = _storage(tensor)._gpulab
    except (RuntimeError, NotImplementedError):
        return device_of(tensor)
    return label.device if label is not None and label is not FLOATING and label.device.active else None


# -- where is it? ----------------------------------------------------------------------------------------------------


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


def _type(self: Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    device = where(self)
    if dtype is None:
        name = _Base.type(self)
        return name if device is None else f"torch.cuda.{name.rpartition('.')[2]}"
    if isinstance(dtype, type):
        dtype = f"{dtype.__module__}.{dtype.__name__}"
    if isinstance(dtype, str) and dtype.startswith("torch.") and dtype.endswith("Tensor"):
        family, _, kind = dtype.rpartition(".")
        to = torch.tensor([], dtype=None).new_empty(0).type(f"torch.{kind}").dtype if not thread.inside else None
        return self.to("cuda" if "cuda" in family else "cpu", to)
    return _Base.type(self, dtype, non_blocking, **kwargs)


def _record_stream(self: Tensor, stream: Any) -> None:
    if where(self) is None:
        _Base.record_stream(self, stream)


# -- from one device to another --------------------------------------------------------------------------------------


class _Move(torch.autograd.Function):
    """A copy to another device whose gradient comes back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, target: torch.device, dtype: Any, form: Any, non_blocking: bool) -> Tensor:
        ctx.source = tensor.device, tensor.dtype
        return move(tensor, target, dtype, form, non_blocking)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        device, dtype = ctx.source
        return grad.to(device, dtype), None, None, None, None


def move(tensor: Tensor, target: torch.device, dtype: Any, form: Any, non_blocking: bool) -> Tensor:
    """A copy of `tensor` on another device, host or GPU."""
    gpu = _gpu()
    dtype = dtype or tensor.dtype
    source = where(tensor)
    if target.type == "cuda":
        device = gpu.device(target.index)
        return torch.ops.aten._to_copy.default(
            tensor.detach(), dtype=dtype, device=device.name, non_blocking=non_blocking, memory_format=form
        )
    if source is None or target.type != "cpu":
        return _Base.to(tensor, target, dtype, non_blocking, True, memory_format=form)
    source.synchronize()
    with backing:
        if gpu.compute:
            return tensor.detach().to(dtype, copy=True, memory_format=form)
        return _nothing(gpu, tensor, dtype)


def _nothing(gpu: VirtualGPU, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A host tensor in place of one without values."""
    gpu.warn_unknown()
    out = torch.empty(tensor.shape, dtype=dtype, device="cpu")
    if out.nbytes <= 1 << 26:  # a larger one stays as it is, and takes no memory of the host
        out.fill_(math.nan) if out.is_floating_point() else out.zero_()
    return out


def _to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if thread.inside:
        return _Base.to(self, *args, **kwargs)
    if args and isinstance(args[0], Tensor):
        other, *rest = args
        return _to(self, other.device, other.dtype, *rest, **kwargs)
    if "other" in kwargs:
        other = kwargs.pop("other")
        return _to(self, other.device, other.dtype, *args, **kwargs)
    device, dtype, non_blocking, copy, form = parse_to(*args, **kwargs)
    if device is None:
        return _Base.to(self, *args, **kwargs)
    here = where(self)
    target = _indexed(device)
    if target.type == "meta" or (here is None and target.type != "cuda"):
        return _Base.to(self, *args, **kwargs)
    if here is not None and target == here.name:
        return _Base.to(self, dtype or self.dtype, non_blocking, copy, memory_format=form)
    if self.requires_grad and torch.is_grad_enabled():
        out: Tensor = _Move.apply(self, target, dtype, form, non_blocking)
        return out
    return move(self, target, dtype, form, non_blocking)


def parse_to(
    device: Any = None,
    dtype: Any = None,
    non_blocking: bool = False,
    copy: bool = False,
    *,
    memory_format: Any = None,
) -> tuple[Any, Any, bool, bool, Any]:
    """The arguments of `Tensor.to`: (device, dtype, non_blocking, copy, memory_format)."""
    if isinstance(device, torch.dtype):
        # to(dtype, non_blocking, copy)
        return None, device, bool(dtype), bool(non_blocking), memory_format or torch.preserve_format
    return device, dtype, non_blocking, copy, memory_format or torch.preserve_format


def _indexed(device: Any) -> torch.device:
    """A device with its number: `cuda` is the current one."""
    if isinstance(device, int) and not isinstance(device, bool):
        return _gpu().device(device).name
    device = torch.device(device)
    return _gpu().device(device.index).name if device.type == "cuda" else device


def _cuda(self: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Tensor:
    target = torch.device("cuda") if device is None else device
    if not isinstance(target, int) and torch.device(target).type != "cuda":
        raise RuntimeError(f"Invalid device, must be cuda device but got {torch.device(target).type}")
    return _to(self, target, non_blocking=non_blocking, memory_format=memory_format)


def _cpu(self: Tensor, memory_format: Any = None) -> Tensor:
    return _to(self, _HOST, memory_format=memory_format)


# -- its values ------------------------------------------------------------------------------------------------------


def _refuse_host(self: Tensor) -> None:
    device = where(self)
    if device is not None:
        raise TypeError(
            f"can't convert {device.name} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            "memory first."
        )


def _numpy(self: Tensor, *, force: bool = False) -> Any:
    if force and where(self) is not None:
        return _cpu(self.detach()).resolve_conj().resolve_neg().numpy()
    _refuse_host(self)
    return _Base.numpy(self, force=force)


_own_array = Tensor.__array__
_own_dlpack = Tensor.__dlpack__


def _array(self: Tensor, *args: Any, **kwargs: Any) -> Any:
    _refuse_host(self)
    return _own_array(self, *args, **kwargs)


def _dlpack(self: Tensor, *args: Any, **kwargs: Any) -> Any:
    if where(self) is not None:
        raise BufferError("a tensor on a virtual GPU cannot be exported by DLPack: what holds it is not a GPU")
    return _own_dlpack(self, *args, **kwargs)


def _tolist(self: Tensor) -> Any:
    return _Base.tolist(self if where(self) is None else _cpu(self.detach()))


def _bool(self: Tensor) -> bool:
    device = where(self)
    if device is not None and not device.compute and self.numel() == 1:
        raise kernels.NoValues(
            "a branch on a tensor's value: with compute=False the virtual GPU knows shapes, not values. "
            "Use compute=True, or decide on something that does not come from a tensor."
        )
    return _Base.__bool__(self)


_own_repr = Tensor.__repr__


def _repr(self: Tensor, *, tensor_contents: Any = None) -> str:
    device = where(self)
    if device is None or device.compute:
        return _own_repr(self, tensor_contents=tensor_contents)
    with backing:
        return _own_repr(self).replace("device='meta'", f"device='{device.name}'")


def _new_tensor(self: Tensor, data: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> Tensor:
    if thread.inside or (where(self) is None and not _is_gpu(device)):
        return _Base.new_tensor(self, data, dtype=dtype, device=device, **kwargs)
    return tensor(data, dtype=dtype or self.dtype, device=device or self.device, **kwargs)


# -- pinned memory of the host ---------------------------------------------------------------------------------------


def _pin_memory(self: Tensor, device: Any = None) -> Tensor:
    if where(self) is not None:
        raise RuntimeError(f"cannot pin '{_type(self)}' only dense CPU tensors can be pinned")
    if _is_pinned(self):
        return self
    with backing:
        out = self.detach().clone()
    setattr(_storage(out), PINNED, True)
    return out


def _is_pinned(self: Tensor, device: Any = None) -> bool:
    storage = storage_of(self)
    return storage is not None and bool(getattr(storage, PINNED, False))


def _storage_is_pinned(self: Any, device: Any = "cuda") -> bool:
    return bool(getattr(self, PINNED, False))


def _storage_pin(self: Any, device: Any = "cuda") -> Any:
    with backing:
        out = torch.UntypedStorage(self.nbytes())
        out.copy_(self)
    setattr(out, PINNED, True)
    return out


# -- storages --------------------------------------------------------------------------------------------------------

_Storage = torch.UntypedStorage
_StorageBase = torch._C.StorageBase
_own = {
    name: getattr(_Storage, name)
    for name in ("get_device", "data_ptr", "clone", "cpu", "cuda", "to", "resize_", "copy_")
}
_own_device = _Storage.device


def _label(storage: Any) -> Label | None:
    label = getattr(storage, NAME, None)
    if thread.inside or label is None or label is FLOATING or not label.device.active:
        return None
    found: Label = label
    return found


def _storage_device(self: Any) -> torch.device:
    label = _label(self)
    if label is not None:
        return label.device.name
    found: torch.device = _own_device.__get__(self) if hasattr(_own_device, "__get__") else _own_device
    return found


def _storage_is_cuda(self: Any) -> bool:
    return _label(self) is not None or _storage_device(self).type == "cuda"


def _storage_get_device(self: Any) -> int:
    label = _label(self)
    return -1 if label is None else label.device.index


def _storage_data_ptr(self: Any) -> int:
    label = _label(self)
    if label is None:
        return int(_own["data_ptr"](self))
    return 0 if label.block is None else label.block.address


def _storage_clone(self: Any) -> Any:
    label = _label(self)
    if label is None:
        return _own["clone"](self)
    return _storage_on(self, label.device)


def _storage_on(source: Any, device: Device) -> Any:
    """A copy of a storage, host's or GPU's, on a GPU."""
    gpu = _gpu()
    with backing:
        out = torch.UntypedStorage(source.nbytes(), device=device.backing)
        if gpu.compute:
            _own["copy_"](out, source)
    device.put(out)
    return out


def _storage_cpu(self: Any) -> Any:
    label = _label(self)
    if label is None:
        return _own["cpu"](self)
    label.device.synchronize()
    gpu = _gpu()
    with backing:
        out = torch.UntypedStorage(self.nbytes())
        if gpu.compute:
            _own["copy_"](out, self)
        else:
            gpu.warn_unknown()
            out.fill_(0)
    return out


def _storage_cuda(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
    target = _indexed("cuda" if device is None else device)
    label = _label(self)
    if label is not None and label.device.name == target:
        return self
    return _storage_on(self, _gpu().device(target.index))


def _storage_to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
    if thread.inside:
        return _own["to"](self, device=device, non_blocking=non_blocking)
    target = torch.device(device)
    if target.type == "cuda":
        return _storage_cuda(self, target)
    return _storage_cpu(self) if target.type == "cpu" else _own["to"](self, device=device)


def _storage_resize(self: Any, size: int) -> Any:
    from .dispatch import resized

    label = _label(self)
    with backing:
        out = _own["resize_"](self, size)
    if label is not None:
        resized(self)
    return out


def _storage_copy(self: Any, source: Any, non_blocking: bool = False) -> Any:
    if _label(self) is None and _label(source) is None:
        return _own["copy_"](self, source, non_blocking)
    if not _gpu().compute:
        return self
    with backing:
        return _own["copy_"](self, source)


# -- new tensors from data -------------------------------------------------------------------------------------------

_own_tensor = torch.tensor
_own_as_tensor = torch.as_tensor
_own_asarray = torch.asarray


def _is_gpu(device: Any) -> bool:
    if device is None or isinstance(device, bool):
        return False
    return isinstance(device, int) or torch.device(device).type == "cuda"


def _default_is_gpu(device: Any) -> bool:
    """Whether a new tensor goes to the GPU: named, or by `with torch.device("cuda")`."""
    return _is_gpu(torch.get_default_device() if device is None else device)


def tensor(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **kwargs: Any) -> Tensor:
    """`torch.tensor`."""
    if thread.inside or not _default_is_gpu(device):
        return _own_tensor(data, dtype=dtype, device=device, requires_grad=requires_grad, **kwargs)
    made = _own_tensor(data, dtype=dtype, device="cpu")
    return made.to(torch.get_default_device() if device is None else device).requires_grad_(requires_grad)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """`torch.as_tensor`."""
    if isinstance(data, Tensor) and not thread.inside:
        return data if device is None and dtype is None else data.to(device or data.device, dtype or data.dtype)
    if thread.inside or not _default_is_gpu(device):
        return _own_as_tensor(data, dtype=dtype, device=device)
    return _own_as_tensor(data, dtype=dtype, device="cpu").to(torch.get_default_device() if device is None else device)


def asarray(
    obj: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None, requires_grad: bool = False
) -> Tensor:
    """`torch.asarray`."""
    on_gpu = isinstance(obj, Tensor) and where(obj) is not None
    if thread.inside or not (on_gpu or _default_is_gpu(device)):
        return _own_asarray(obj, dtype=dtype, device=device, copy=copy, requires_grad=requires_grad)
    if not isinstance(obj, Tensor):
        obj = _own_asarray(obj, dtype=dtype, device="cpu")
    target = device if device is not None else (obj.device if on_gpu else torch.get_default_device())
    return obj.to(target, dtype or obj.dtype, copy=bool(copy)).requires_grad_(requires_grad)


__all__ = ["as_tensor", "asarray", "install", "move", "parse_to", "tensor", "where"]

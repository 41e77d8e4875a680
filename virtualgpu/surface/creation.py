"""Tensors from Python data: `torch.tensor` and its kin, sparse tensors, tensor types.

PyTorch's C++ makes these with a guard that asks the driver, before any operation is seen.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.jit._builtins import _register_builtin
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext, _device_constructors

from ..operations import host_shapes
from ..operations.results import place, tensors_in
from ..scope.in_force import backing, thread
from ..scope.labels import HostShape
from ..scope.numbering import current, indexed
from ..scope.patches import Patches
from ..scope.refusals import NotMirrored, NoValues
from .moving import pin_memory, to

Tensor = torch.Tensor
_Base = torch._C.TensorBase
_KINDS = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool,
}  # fmt: skip
_NAMES = {dtype: kind for kind, dtype in _KINDS.items()}
_SPARSE = [f"sparse_{kind}_tensor" for kind in ("coo", "csr", "csc", "bsr", "bsc", "compressed")]
_own_range = torch.range
_own_tensor, _own_as_tensor, _own_asarray = torch.tensor, torch.as_tensor, torch.asarray


def install(patches: Patches) -> None:
    """Replace the functions for as long as a virtual GPU is in force."""
    _device_constructors()  # PyTorch remembers the functions themselves: they must be its own
    for function in (tensor, as_tensor, asarray):
        function.__doc__ = getattr(torch, function.__name__).__doc__
        patches.set(torch, function.__name__, function)
    for function in (tensor, as_tensor):  # to TorchScript they are still PyTorch's own
        _register_builtin(function, f"aten::{function.__name__}")
    patches.set(torch, "range", range_)
    for name in _SPARSE:
        patches.set(torch, name, _sparse(getattr(torch, name)))
    for kind, dtype in _KINDS.items():
        name = f"{kind}Tensor"
        patches.set(torch.cuda, name, _tensor_type(name, "torch.cuda", dtype, None))
        patches.set(torch, name, _tensor_type(name, "torch", dtype, getattr(torch, name)))
    for name in ("nested_tensor", "as_nested_tensor"):
        patches.set(torch.nested, name, _nested(getattr(torch.nested, name)))


# -- target device ---------------------------------------------------------------------------------------------------


def default_device() -> torch.device | None:
    """Return the device set by `with torch.device(…)` or `torch.set_default_device` in this thread."""
    if not torch._C._len_torch_function_stack():
        return None
    contexts = [mode for mode in _get_current_function_mode_stack() if isinstance(mode, DeviceContext)]
    return contexts[-1].device if contexts else None


def goes_to_gpu(device: Any) -> bool:
    """Return True if a new tensor goes to the GPU, by argument or by default."""
    if device is None:
        device = default_device()
    if device is None or isinstance(device, bool):
        return False
    return isinstance(device, int) or (isinstance(device, (str, torch.device)) and torch.device(device).type == "cuda")


def _target(device: Any) -> Any:
    return indexed(default_device() if device is None else device)


# -- from data -------------------------------------------------------------------------------------------------------


def tensor(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **kwargs: Any) -> Tensor:
    """`torch.tensor`."""
    if thread.inside or not goes_to_gpu(device):
        if device is None and isinstance(data, Tensor):
            device = data.device if data.device.type == "cuda" else None
        if device is None or not goes_to_gpu(device):
            pinned = kwargs.pop("pin_memory", False) and not thread.inside
            made = _from_data(data, dtype=dtype, device=device, **kwargs)
            made = pin_memory(made) if pinned else made
            return made.requires_grad_() if requires_grad else made  # within torch.func nothing may be asked for
    target = _target(device)
    if isinstance(data, Tensor):
        warnings.warn(
            "To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() or "
            "sourceTensor.detach().clone().requires_grad_(True), rather than torch.tensor(sourceTensor).",
            stacklevel=2,
        )
        return to(data.detach(), target, dtype or data.dtype, copy=True).requires_grad_(requires_grad)
    made = to(_from_data(data, dtype=dtype, device="cpu", **kwargs), target)
    return made.requires_grad_() if requires_grad else made


def _from_data(data: Any, **kwargs: Any) -> Tensor:
    """A host tensor; what is read from tensors among the data is unknown in shapes-only mode."""
    _readable(data, "torch.tensor")
    try:
        return _own_tensor(data, **kwargs)
    except RuntimeError as error:
        if thread.inside or "meta tensors" not in str(error):
            raise
        raise NoValues("torch.tensor of GPU tensors' values: with compute=False there are none") from None


def _readable(data: Any, asked: str) -> None:
    """NoValues where PyTorch's C++ would read a host tensor without values among the items of a list."""
    if (
        HostShape.made
        and not thread.inside
        and isinstance(data, (list, tuple))
        and host_shapes.any_host_shape(tensors_in(data))
    ):
        raise host_shapes.refusal(data, asked)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """`torch.as_tensor`."""
    if thread.inside:
        return _own_as_tensor(data, dtype=dtype, device=device)
    _readable(data, "torch.as_tensor")
    device = default_device() if device is None else device
    if isinstance(data, Tensor):
        return to(data, data.device if device is None else device, dtype or data.dtype)
    if not goes_to_gpu(device):
        return _own_as_tensor(data, dtype=dtype, device=device)
    return to(_own_as_tensor(data, dtype=dtype, device="cpu"), _target(device))


def asarray(
    obj: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None, requires_grad: bool = False
) -> Tensor:
    """`torch.asarray`."""
    _readable(obj, "torch.asarray")
    device = default_device() if device is None else device
    on_gpu = isinstance(obj, Tensor) and obj.device.type == "cuda"
    if thread.inside or not (on_gpu or goes_to_gpu(device)):
        return _own_asarray(obj, dtype=dtype, device=device, copy=copy, requires_grad=requires_grad)
    if not isinstance(obj, Tensor):
        obj = _own_asarray(obj, dtype=dtype, device="cpu")
    target = obj.device if device is None else indexed(device)
    if copy is False and (target != obj.device or (dtype or obj.dtype) != obj.dtype):
        raise ValueError(f"can't alias tensor from device '{obj.device}' to '{device or target}'.")
    out = to(obj, target, dtype or obj.dtype, copy=bool(copy))
    return out.requires_grad_() if requires_grad else out.detach()


def new_tensor(self: Tensor, data: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> Tensor:
    """`Tensor.new_tensor`: of the tensor's dtype, and where the tensor is."""
    device = self.device if device is None else device
    _readable(data, "new_tensor")
    if thread.inside or not goes_to_gpu(device):
        return _Base.new_tensor(self, data, dtype=dtype, device=device, **kwargs)
    return tensor(data, dtype=dtype or self.dtype, device=device, **kwargs)


def new(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`Tensor.new`, PyTorch's old way to make a tensor like another."""
    if thread.inside or self.device.type != "cuda":
        return _Base.new(self, *args, **kwargs)
    return _legacy(self.dtype, self.device, *args, **kwargs)


def _legacy(dtype: torch.dtype, where: Any, *args: Any, device: Any = None) -> Tensor:
    """Return the tensor of `torch.cuda.FloatTensor(…)`, from sizes, a sequence, or nothing."""
    where = where if device is None else device
    if len(args) == 3 and all(isinstance(part, Tensor) for part in args[:2]):
        # the constructor of a sparse type
        return torch.sparse_coo_tensor(*args, dtype=dtype, device=where, check_invariants=False)
    if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
        return tensor(args[0], dtype=dtype, device=where)
    return torch.empty(*args, dtype=dtype, device=where) if args else torch.empty(0, dtype=dtype, device=where)


# -- sparse ----------------------------------------------------------------------------------------------------------


def _sparse(own: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def make(*args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        device = default_device() if device is None else device
        if thread.inside:
            return own(*args, device=device, **kwargs)
        for part in args:
            _readable(part, own.__name__)
        if device is None:  # the values decide
            there = [item.device for item in [*args, *kwargs.values()] if isinstance(item, Tensor)]
            device = there[-1] if there else None
        if not goes_to_gpu(device):
            return own(*args, device=device, **kwargs)
        gpu, target = current(), indexed(device)

        def move(item: Any) -> Tensor:
            return to(item if isinstance(item, Tensor) else _own_as_tensor(item, device="cpu"), target)

        parts = 3 if "coo" not in own.__name__ else 0 if len(args) < 2 or isinstance(args[0], int) else 2
        if not gpu.compute and len(args) == parts and "size" not in kwargs:
            kwargs["size"] = _size(own, args, kwargs)
        args = (*map(move, args[:parts]), *args[parts:])
        named = {n: move(item) if n.endswith(("indices", "values")) else item for n, item in kwargs.items()}
        with backing:
            out = own(*args, device=gpu.backing, **named)
        place(gpu.device(target.index), out)
        return out

    make.__name__ = make.__qualname__ = own.__name__
    return make


def _size(own: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Infer the size from the indices as PyTorch does, where they are on the host."""
    if any(isinstance(item, Tensor) and item.device.type == "cuda" for item in [*args, *kwargs.values()]):
        raise NoValues("the size of a sparse tensor depends on its indices' values: say size=")
    return own(*args, device="cpu", **kwargs).shape


def range_(start: Any = 0, end: Any = None, step: Any = 1, **kwargs: Any) -> Tensor:
    """`torch.range`, PyTorch's old `arange`, which has its end."""
    device = kwargs.get("device")
    if thread.inside or device is None or not goes_to_gpu(device):  # contexts do not reach it
        return _own_range(start, *([] if end is None else [end, step]), **kwargs)
    if end is None:
        start, end = 0, start
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    made: Tensor = torch.ops.aten.range.step(start, end, step, dtype=dtype, device=indexed(device))
    return made.requires_grad_(bool(kwargs.get("requires_grad")))


def _nested(own: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def make(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        there = [item.device for item in data if isinstance(item, Tensor)]
        if not thread.inside and goes_to_gpu(device or (there[0] if there else None)):
            raise NotMirrored("nested tensors are not mirrored by the virtual GPU")
        return own(data, *args, device=device, **kwargs)

    make.__name__ = make.__qualname__ = own.__name__
    return make


# -- tensor types ----------------------------------------------------------------------------------------------------


def typed(self: Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    """`Tensor.type`: its type's name, or the tensor as another type."""
    if dtype is None:
        kind = _NAMES.get(self.dtype)
        if self.device.type != "cuda" or kind is None:
            return _Base.type(self)
        return f"torch.cuda.{'' if self.layout is torch.strided else 'sparse.'}{kind}Tensor"
    if thread.inside:
        return _Base.type(self, dtype, non_blocking, **kwargs)
    if isinstance(dtype, torch.dtype):
        return to(self, dtype, non_blocking)
    name = dtype if isinstance(dtype, str) else f"{dtype.__module__}.{dtype.__name__}"
    family, _, kind = name.rpartition(".")
    found = _KINDS.get(kind.removesuffix("Tensor"))
    if found is None or family not in ("torch", "torch.cuda"):
        return _Base.type(self, dtype, non_blocking, **kwargs)
    return to(self, "cuda" if family == "torch.cuda" and self.device.type != "cuda" else
              self.device if family == "torch.cuda" else "cpu", found, non_blocking)  # fmt: skip


class _TensorType(type):
    """The type of `torch.FloatTensor`, `torch.cuda.FloatTensor` and the like: of one dtype, on the host or on a GPU."""

    dtype: torch.dtype
    own: Any  # PyTorch's, for those of the host

    def __instancecheck__(cls, item: Any) -> bool:
        on_gpu = isinstance(item, Tensor) and item.device.type == "cuda"
        if cls.own is not None:
            return not on_gpu and isinstance(item, cls.own)
        return on_gpu and item.dtype is cls.dtype

    def __call__(cls, *args: Any, **kwargs: Any) -> Tensor:
        if cls.own is not None:
            _readable(args, cls.own.__name__)
            made: Tensor = cls.own(*args, **kwargs)
            return made
        return _legacy(cls.dtype, torch.device("cuda"), *args, **kwargs)


@cache
def _tensor_type(name: str, module: str, dtype: torch.dtype, own: Any) -> _TensorType:
    """Return the cached class: making one takes long."""
    return _TensorType(name, (), {"__module__": module, "dtype": dtype, "own": own})


__all__ = ["as_tensor", "asarray", "default_device", "goes_to_gpu", "install", "new", "new_tensor", "tensor", "typed"]

"""Move tensors between devices (`Tensor.to` and its kin), and pin host memory.

A copy to or from a virtual GPU is one operation with a gradient, as on CUDA.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]
from torch.overrides import handle_torch_function, has_torch_function_unary

from ..operations import copies, host_shapes, known_values
from ..scope.in_force import backing, thread
from ..scope.labels import PINNED, parts_of, storage_of
from ..scope.numbering import current, indexed
from ..scope.refusals import NotMirrored

if TYPE_CHECKING:
    from ..gpu import VirtualGPU

Tensor = torch.Tensor
_Base = torch._C.TensorBase
_torch: Any = torch  # PyTorch's own annotations lack some functions
_handle: Any = handle_torch_function
_HOST = torch.device("cpu")


def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`Tensor.to`."""
    if thread.inside:
        return _Base.to(self, *args, **kwargs)
    if self.is_nested:
        return _nested(self, *args, **kwargs)
    if has_torch_function_unary(self):
        if isinstance(self, UninitializedTensorMixin):  # it lets through the functions that it was made with, no others
            if not current().compute:
                raise NotMirrored(
                    "a lazy layer is not mirrored in shapes-only mode before its first input; make it on the GPU "
                    "(device='cuda'), or show it an input on the host first"
                )
            with torch._C.DisableTorchFunctionSubclass():
                moved: Tensor = to(self, *args, **kwargs).as_subclass(type(self))
                return moved
        result: Tensor = _handle(Tensor.to, (self,), self, *args, **kwargs)
        return result
    if args and isinstance(args[0], Tensor):
        other, *rest = args
        return to(self, other.device, other.dtype, *rest, **kwargs)
    try:
        device, dtype, non_blocking, copy, form = parse_to(*args, **kwargs)
    except TypeError:
        return _Base.to(self, *args, **kwargs)  # raises PyTorch's error
    if type(device) not in (int, str, torch.device) or not (dtype is None or isinstance(dtype, torch.dtype)):
        return _Base.to(self, *args, **kwargs)
    target = indexed(device)
    here = self.device
    if here == target:
        if not copy and (dtype is None or dtype is self.dtype) and form is torch.preserve_format:
            return self
        return _Base.to(self, dtype or self.dtype, non_blocking, copy, memory_format=form)
    if here.type != "cuda" and target.type != "cuda":
        return _Base.to(self, *args, **kwargs)
    if self.requires_grad and torch.is_grad_enabled():
        out: Tensor = ToCopy.apply(self, target, dtype, form, non_blocking)
        return out
    return move(self, target, dtype, form, non_blocking)


def _nested(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`Tensor.to` of a nested tensor, which stays where it is."""
    if args and isinstance(args[0], Tensor):
        args = args[0].device, args[0].dtype, *args[1:]
    device, dtype, non_blocking, copy, _ = parse_to(*args, **kwargs)
    here = tensor.device
    target = here if device is None else indexed(device)
    if target != here and "cuda" in (target.type, here.type):
        raise NotMirrored("nested tensors are not mirrored by the virtual GPU")
    if here.type == "cuda":
        same = not copy and dtype in (None, tensor.dtype)
        return tensor if same else _Base.to(tensor, dtype or tensor.dtype, non_blocking, copy)
    with backing:
        return _Base.to(tensor, *args, **kwargs)


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


class ToCopy(torch.autograd.Function):
    """A copy to another device whose gradient comes back."""

    @staticmethod
    def forward(tensor: Tensor, target: torch.device, dtype: Any, form: Any, non_blocking: bool) -> Tensor:
        return move(tensor, target, dtype, form, non_blocking)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.source = inputs[0].device, inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        device, dtype = ctx.source
        return grad.to(device, dtype), None, None, None, None


def move(tensor: Tensor, target: torch.device, dtype: Any, form: Any, non_blocking: bool) -> Tensor:
    """A copy of `tensor` on another device, host or GPU; without a gradient."""
    gpu = current()
    dtype = dtype or tensor.dtype
    tensor = tensor.detach()
    if tensor.is_meta:
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")
    if tensor.layout is not torch.strided:
        return _move_parts(gpu, tensor, target, dtype, non_blocking)
    if target.type == "cuda":
        return torch.ops.aten._to_copy.default(
            tensor, dtype=dtype, device=target, non_blocking=non_blocking, memory_format=form
        )
    gpu.clock.enter()
    gpu.device(tensor.device.index).raise_fault()
    with backing:
        if gpu.compute or target.type == "meta":
            out = tensor.to(target, dtype, copy=True, memory_format=form)
        else:
            out = _nothing(gpu, tensor, dtype)
    if target.type != "meta":
        if non_blocking:  # PyTorch then takes pinned memory for it, and does not wait
            copies.pin(storage_of(out), copied=False)
        copies.charge(out, tensor, non_blocking=non_blocking)
        capture: Any = gpu.device(tensor.device.index).capture
        if capture is not None and non_blocking:
            capture.copied(out, tensor)
    gpu.clock.leave()
    return out


def _nothing(gpu: VirtualGPU, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A host tensor in place of one without values."""
    values = known_values.value(tensor)
    if values is not None:
        return values.to(dtype, copy=True)
    gpu.warn_unknown()
    if tensor.nbytes > 1 << 26:
        return host_shapes.shape_of(tensor.to(dtype), "a copy from the GPU")
    out = torch.empty(tensor.shape, dtype=dtype, device="cpu")
    assumed = known_values.assumed(tensor)
    if assumed is not None or out.numel() == 1:
        return out.fill_(known_values.ORDINARY if assumed is None else assumed)
    return out.fill_(math.nan) if out.is_floating_point() else out.zero_()


def _move_parts(gpu: VirtualGPU, tensor: Tensor, target: torch.device, dtype: Any, non_blocking: bool) -> Tensor:
    """A sparse tensor: its indices and its values move, one by one."""
    *indices, values = parts_of(tensor)
    moved = [part.to(target, non_blocking=non_blocking) for part in indices]
    moved.append(values.to(target, dtype, non_blocking=non_blocking))
    with backing:
        options: dict[str, Any] = {"dtype": dtype, "device": moved[0].device, "check_invariants": False}
        if tensor.layout is torch.sparse_coo:
            out: Tensor = _torch.sparse_coo_tensor(*moved, tensor.shape, is_coalesced=tensor.is_coalesced(), **options)
        else:
            out = _torch.sparse_compressed_tensor(*moved, tensor.shape, layout=tensor.layout, **options)
    return out


def cuda(self: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Tensor:
    """`Tensor.cuda`."""
    target = torch.device("cuda") if device is None else device
    if not isinstance(target, int) and torch.device(target).type != "cuda":
        raise RuntimeError("Invalid device, must be cuda device")
    return to(self, target, non_blocking=non_blocking, memory_format=memory_format)


def cpu(self: Tensor, memory_format: Any = None) -> Tensor:
    """`Tensor.cpu`."""
    return to(self, _HOST, memory_format=memory_format)


def type_as(self: Tensor, other: Tensor) -> Tensor:
    """`Tensor.type_as`."""
    return to(self, other.device, other.dtype)


# -- pinned memory of the host ---------------------------------------------------------------------------------------


def pin_memory(self: Tensor, device: Any = None) -> Tensor:
    """`Tensor.pin_memory`."""
    if self.device.type != "cpu" or self.layout is not torch.strided:
        raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
    if is_pinned(self):
        return self
    clock = current().clock
    clock.enter()
    with backing:
        if host_shapes.label_of(self) is None:
            out = self.clone()
        else:
            out = host_shapes.shape_of(self.to("meta"), "pin_memory")
    clock.leave()
    copies.pin(storage_of(out), copied=True)
    return out


def is_pinned(self: Tensor, device: Any = None) -> bool:
    """`Tensor.is_pinned`."""
    storage = storage_of(self)
    return storage is not None and bool(getattr(storage, PINNED, False))


__all__ = [
    "ToCopy",
    "cpu",
    "cuda",
    "is_pinned",
    "move",
    "parse_to",
    "pin_memory",
    "to",
    "type_as",
]

"""Operations that run other kernels on CUDA than on the CPU, so that autograd saves other tensors.

They stand above autograd, on the dispatch key of `autocast`: each calls the operation that CUDA's kernel has in
PyTorch, and `handlers` computes that one. So autograd's own code decides what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from ..scope import in_force
from ..scope.labels import device_of
from . import attention, autocast, cells, fused, recurrent

Tensor = torch.Tensor
aten = torch.ops.aten


def here(tensor: Tensor) -> bool:
    return in_force.current is not None and in_force.current.mirror and device_of(tensor) is not None


def _dropout(tensor: Tensor, p: float, train: bool) -> Tensor:
    """CUDA keeps a mask of one byte per element (is_fused_kernel_acceptable in Dropout.cpp)."""
    with autocast.below(tensor):
        if train and 0 < p < 1 and tensor.numel() and here(tensor):
            return aten.native_dropout(tensor, p, True)[0]
        return aten.dropout(tensor, p, train)


def _rms_norm(tensor: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """CUDA has one kernel for it, which keeps a float32 number per row (rms_norm in layer_norm.cpp)."""
    if not here(tensor):
        with autocast.below(tensor):
            return aten.rms_norm(tensor, shape, weight, eps)
    if autocast.casting():
        tensor, weight = autocast.to_float((tensor, weight))
    with autocast.below(tensor):
        if weight is not None and weight.dtype != tensor.dtype:
            return aten.rms_norm(tensor, shape, weight, eps)
        return _RMSNorm.apply(tensor, list(shape), weight, eps)


class _RMSNorm(torch.autograd.Function):
    """PyTorch has this operation's gradient for CUDA only; elsewhere it takes it apart."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, shape: list[int], weight: Tensor | None, eps: float | None) -> Tensor:
        out, rstd = fused.norm(tensor, shape, weight, eps)
        ctx.shape = shape
        ctx.save_for_backward(tensor, weight, rstd)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        tensor, weight, rstd = ctx.saved_tensors
        of_tensor, of_weight = fused.norm_backward(grad, tensor, ctx.shape, rstd, weight)
        return of_tensor, None, of_weight, None


def _linear(tensor: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Add the bias to the product in place where rows are not contiguous (PyTorch 2.15, Linear.cpp, linear).

    PyTorch itself adds it so, but not while a dispatch mode is active.
    """
    if autocast.casting():
        tensor, weight, bias = autocast.lower((tensor, weight, bias))
    with autocast.below(tensor):
        if bias is None or tensor.dim() in (0, 2) or not _adds_in_place(tensor, bias):
            return aten.linear(tensor, weight, bias)
        return aten.matmul(tensor, weight.t()).add_(bias)


def _adds_in_place(tensor: Tensor, bias: Tensor) -> bool:
    if (tensor.is_contiguous() and (bias.dim() == 1 or bias.squeeze().dim() == 1)) or not here(tensor):
        return False
    others = torch._C._len_torch_dispatch_stack() > 1 or torch._C._functorch.peek_interpreter_stack() is not None
    return not others and forward_ad._current_level < 0 and type(bias) in (Tensor, torch.nn.Parameter)


def _softmax(name: str) -> Callable[..., Tensor]:
    whole, part = getattr(aten, name).int, getattr(aten, f"_{name}").default

    def run(tensor: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        """CUDA's kernel reads float16 where float32 is asked for: nothing is cast before (softmax in SoftMax.cpp)."""
        half = tensor.dtype is torch.float16 and here(tensor)
        if dtype is None and autocast.casting() and autocast.eligible(tensor):
            dtype = torch.float32
        with autocast.below(tensor):
            return part(tensor, dim, True) if half and dtype is torch.float32 else whole(tensor, dim, dtype)

    return run


def _quantile(op: Any) -> Callable[..., Tensor]:
    def run(tensor: Tensor, q: float, *args: Any, **kwargs: Any) -> Tensor:
        """In C++ the number becomes a tensor that nothing sees, on the device behind the GPU."""
        with autocast.below(tensor):
            return op(tensor, torch.full((), q, dtype=tensor.dtype, device=tensor.device), *args, **kwargs)

    return run


def _one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """CUDA does not look whether the classes are in range; it waits only where it must count them (Onehot.cpp)."""
    with autocast.below(tensor):
        if not tensor.numel() or not here(tensor) or tensor.dtype is not torch.int64:
            return aten.one_hot(tensor, num_classes)
        classes = num_classes if num_classes > 0 else int(tensor.max()) + 1
        out = torch.zeros(*tensor.shape, classes, dtype=torch.int64, device=tensor.device)
        return out.scatter_(-1, tensor.unsqueeze(-1), 1)


MIRRORS: dict[str, Callable[..., Any]] = {
    "dropout": _dropout,
    "linear": _linear,
    "log_softmax.int": _softmax("log_softmax"),
    "one_hot": _one_hot,
    "nanquantile.scalar": _quantile(aten.nanquantile.default),
    "quantile.scalar": _quantile(aten.quantile.default),
    "rms_norm": _rms_norm,
    "scaled_dot_product_attention": attention.attend,
    "softmax.int": _softmax("softmax"),
    **recurrent.MIRRORS,
    **cells.MIRRORS,
}

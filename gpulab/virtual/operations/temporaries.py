"""What CUDA's kernels allocate beside their results: workspaces, clones, partial sums, intermediate results.

Each rule gives the bytes for one call, whose arguments it is given by place. They are freed when the call returns, so
that they count for the peak only. Operations that are not listed take nothing of importance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from . import attention, products
from .reductions import THREADS_PER_SM, Kernel, buffers

if TYPE_CHECKING:
    from ..scope.device import Device

Tensor = torch.Tensor
aten = torch.ops.aten
Rule = Callable[["Device", Any, Any], list[int]]


def _reduce(device: Device, tensor: Tensor, dims: Any, kernel: Kernel) -> list[int]:
    rank = tensor.dim()
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        dims = range(rank)
    elif isinstance(dims, int):
        dims = [dims]
    capability = device.spec.capability
    return buffers(
        tensor.shape,
        tensor.stride(),
        [d % rank for d in dims] if rank else [],
        tensor.element_size(),
        kernel,
        sms=device.spec.sms,
        threads_per_sm=THREADS_PER_SM[capability],
    )


def _sum(tensor: Tensor) -> Kernel:
    return Kernel(8 if tensor.dtype in (torch.float64, torch.int64) or tensor.dtype in _INTEGERS else 4)


_HALVES = (torch.float16, torch.bfloat16)
_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.bool)
_WIDEST, _MOMENTS = Kernel(0), Kernel(16, 2, 2)


def _whole(kernel: Callable[[Tensor], Kernel]) -> Rule:
    return lambda device, args, out: _reduce(device, args[0], None, kernel(args[0]))


def _dims(place: int, kernel: Callable[[Tensor], Kernel]) -> Rule:
    return lambda device, args, out: _reduce(
        device, args[0], args[place] if len(args) > place else None, kernel(args[0])
    )


def _loss(device: Device, args: Any, out: Any) -> list[int]:
    """Element by element first, then the mean or sum of it."""
    reduction = args[2] if len(args) > 2 else 1
    if not reduction:
        return []
    big = args[0]
    flat = buffers(
        [big.numel()], [1], [0], big.element_size(), _sum(big), sms=device.spec.sms,
        threads_per_sm=THREADS_PER_SM[device.spec.capability],
    )  # fmt: skip
    return [big.numel() * big.element_size(), *flat]


def _convolution(device: Device, args: Any, out: Any) -> list[Any]:
    return _turned(device, args[0], args[1], args[8], (args[0], args[1], out if out.dtype in _HALVES else None))


def _turned(device: Device, x: Tensor, weight: Tensor, groups: int, parts: Any) -> list[Any]:
    """cuDNN's tensor cores work on channels last: what lies otherwise is copied into its workspace.

    So its plans say for ordinary convolutions; how it splits its sums, and what it plans for others, is not mirrored.
    """
    if not device.plans_convolutions or x.dim() < 4 or (groups > 1 and groups == weight.shape[0]):
        return []
    if not (x.dtype in _HALVES or (device.spec.capability >= (8, 0) and torch._C._get_cudnn_allow_tf32())):
        return []
    form = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    if x.is_contiguous(memory_format=form) and not x.is_contiguous():
        return []
    point = all(size == 1 for size in weight.shape[2:])
    if point and device.spec.capability < (8, 0):
        return []
    return [
        [sum(part.nbytes for part in parts if part is not None and not (point and part.shape == weight.shape)) + 16]
    ]


def _convolution_backward(device: Device, args: Any, out: Any) -> list[Any]:
    """Both gradients' workspaces, and the bias: its gradient is a sum."""
    grad, x, weight, *_, groups, wanted = args
    phases: list[Any] = []
    for index, parts in enumerate(((grad, weight, x), (x, grad, weight))):
        if wanted[index]:
            phases += _turned(device, x, weight, groups, parts)
    if wanted[2]:
        phases.append(_reduce(device, grad, [d for d in range(grad.dim()) if d != 1], _sum(grad)))
    return phases


def _of_biases(device: Device, args: Any, out: Any) -> list[Any]:
    """Of a recurrent cell: the gradients of biases are sums of the gates'."""
    gates, biased = [t for t in out if t is not None and t.dim() == 2], args[-1]
    return [_reduce(device, gates[0], [0], _sum(gates[0]))] if biased and gates else []


def _product(device: Device, args: Any, out: Any) -> list[int]:
    """Gradient times output, before its sum is taken away."""
    return [args[1].nbytes]


def _safe_softmax(device: Device, args: Any, out: Any) -> list[int]:
    """Where the scores are minus infinity, which rows are so throughout, and the zero that is written there."""
    return [out.numel(), out.numel() // max(1, out.shape[args[1]]), out.element_size()]


def take(device: Device, func: Any, args: tuple[Any, ...], out: Any) -> None:
    """What an operation that is listed takes and gives back; raises torch.OutOfMemoryError where that does not fit.

    A convolution goes on without: PyTorch then tries cuDNN's next plan (Conv_v8.cpp), which may need none.
    """
    try:
        device.touch(OF[func](device, args, out))
    except torch.OutOfMemoryError:
        if func not in _GOES_ON:
            raise


_GOES_ON = (aten.convolution.default, aten.convolution_backward.default)
_PRODUCTS: dict[Any, Rule] = {
    **dict.fromkeys((aten.mm.default, aten.mm.out), products.mm),
    **dict.fromkeys((aten.addmm.default, aten.addmm_.default, aten.addmm.out), products.addmm),
    **dict.fromkeys((aten._addmm_activation.default, aten._addmm_activation.out), products.addmm_activation),
    **dict.fromkeys((aten.bmm.default, aten.bmm.out), products.bmm),
    **dict.fromkeys((aten.baddbmm.default, aten.baddbmm_.default, aten.baddbmm.out), products.baddbmm),
    **dict.fromkeys((aten.addbmm.default, aten.addbmm_.default, aten.addbmm.out), products.addbmm),
    **dict.fromkeys((aten.mv.default, aten.mv.out), products.mv),
    **dict.fromkeys((aten.addmv.default, aten.addmv_.default, aten.addmv.out), products.addmv),
    **dict.fromkeys((aten.dot.default, aten.vdot.default), products.dot),
}
OF: dict[Any, Rule] = {
    **_PRODUCTS,
    aten.sum.default: _whole(_sum),
    aten.sum.dim_IntList: _dims(1, _sum),
    aten.mean.default: _whole(_sum),
    aten.mean.dim: _dims(1, _sum),
    aten.linalg_vector_norm.default: _dims(2, _sum),
    aten.amax.default: _dims(1, lambda _: _WIDEST),
    aten.amin.default: _dims(1, lambda _: _WIDEST),
    aten.max.default: _whole(lambda _: _WIDEST),
    aten.min.default: _whole(lambda _: _WIDEST),
    aten.all.default: _whole(lambda _: Kernel(1)),
    aten.any.default: _whole(lambda _: Kernel(1)),
    aten.var.correction: _dims(1, lambda _: _MOMENTS),
    aten.std.correction: _dims(1, lambda _: _MOMENTS),
    aten.var_mean.correction: _dims(1, lambda _: _MOMENTS),
    aten.mse_loss.default: _loss,
    aten.smooth_l1_loss.default: _loss,
    aten.huber_loss.default: _loss,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    **dict.fromkeys(
        (aten._thnn_fused_lstm_cell_backward_impl.default, aten._thnn_fused_gru_cell_backward.default), _of_biases
    ),
    aten._softmax_backward_data.default: _product,
    aten._safe_softmax.default: _safe_softmax,
    aten._scaled_dot_product_cudnn_attention_backward.default: attention.cudnn_backward_temporaries,
    aten._scaled_dot_product_flash_attention_backward.default: attention.flash_backward_temporaries,
    aten._scaled_dot_product_flash_attention.default: attention.flash_forward_temporaries,
    aten._scaled_dot_product_efficient_attention.default: attention.efficient_forward_temporaries,
    aten._scaled_dot_product_efficient_attention_backward.default: attention.efficient_backward_temporaries,
}

"""Kernels of `nn.SyncBatchNorm`, which only CUDA has: local statistics, gathered ones, normalization.

Results, their dtypes and layouts are those of Normalization.cu and .cuh in ATen/native/cuda; as there, 16 bits are
computed in float32, and statistics of them stay so. PyTorch's own Python (nn/modules/_functions.py) calls them, with
the collectives between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..scope.in_force import backing
from .kernel_dtypes import NAMES
from .sixteen_bit import HALVES

if TYPE_CHECKING:
    from ..gpu import VirtualGPU
    from ..scope.device import Device

Tensor = torch.Tensor
aten = torch.ops.aten
_LONGEST = (1 << 31) - 1  # elements that 32 bits count (canUse32BitIndexMath)
_KINDS = (*HALVES, torch.float32, torch.float64)


def by_rows(*tensors: Tensor) -> bool:
    """Return True if the kernels for channels last take these (batch_norm_use_channels_last_kernels)."""
    return all(
        x.numel() < _LONGEST
        and (
            x.is_contiguous(memory_format=torch.channels_last)
            or x.is_contiguous(memory_format=torch.channels_last_3d)
            or (x.is_contiguous() and x.stride(1) == 1)
        )
        for x in tensors
    )


def scales_in_general(x: Tensor) -> bool:
    """Return True if neither the kernel for channels first nor that for rows scales `x` (batch_norm_choose_impl)."""
    of_its_own = x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last)
    return x.numel() >= _LONGEST or not of_its_own


def _accumulates(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in HALVES else dtype


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(_accumulates(tensor.dtype))


def _across(numbers: Tensor, x: Tensor) -> Tensor:
    """Reshape per-channel numbers to broadcast over `x`."""
    return _wide(numbers).view(-1, *[1] * (x.dim() - 2))


def _all_but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


# -- forward ---------------------------------------------------------------------------------------------------------


def statistics(gpu: VirtualGPU, device: Device, func: Any, args: Any, kwargs: Any) -> Any:
    """Return mean and 1 / standard deviation of each channel of this rank's input (shape C)."""
    x, eps = args
    _floating("batch_norm_stats_cuda", x.dtype)
    with backing:
        if not gpu.compute:
            return tuple(x.new_empty(x.shape[1], dtype=_accumulates(x.dtype)) for _ in range(2))
        var, mean = torch.var_mean(_wide(x), _all_but_channels(x), correction=0)
        invstd = (var + eps).rsqrt()
        return mean, invstd if eps else invstd.masked_fill_(var == 0, 0.0)


def gathered(gpu: VirtualGPU, device: Device, func: Any, args: Any, kwargs: Any) -> Any:
    """Combine the ranks' statistics (ranks by C) by their counts; update running statistics."""
    x, means, invstds, running_mean, running_var, momentum, eps, counts = args
    dtype = x.dtype if running_mean is None else running_mean.dtype
    _floating("batch_norm_update_stats_cuda", dtype)
    _expect("mean", means, _accumulates(dtype))
    for name, tensor in (("running_mean", running_var), ("counts", counts)):  # the kernel calls both of them so
        _expect(name, tensor, dtype)
    with backing:
        if not gpu.compute:
            return means.new_empty(means.shape[1]), means.new_empty(means.shape[1])
        each = _wide(counts).view(-1, 1)
        number = each.sum(dtype=torch.float64)
        mean = (means * each).sum(0) / number.clamp(min=1)
        squares = ((invstds.reciprocal().square() - eps + (means - mean).square()) * each).sum(0)
        for running, found in ((running_mean, mean), (running_var, squares / (number - 1))):
            if running is not None:
                running.copy_((1 - momentum) * _wide(running) + momentum * found)
        return mean, (squares / number + eps).rsqrt()


def scaled(gpu: VirtualGPU, device: Device, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the input normalised by these statistics, times weight plus bias, in the input's layout."""
    x, weight, bias, mean, invstd, _ = args
    _floating("batch_norm_elementwise_cuda", x.dtype)
    if not scales_in_general(x):
        rows = not x.is_contiguous() or x.stride(1) == 1
        for name, parameter in (("weight", weight), ("bias", bias)):
            _expect(name, parameter, _of_parameters(x, weight, bias), rows)
    with backing:
        out = torch.empty_like(x)
        if not gpu.compute:
            return out
        normal = (_wide(x) - _across(mean, x)) * _across(invstd, x)
        normal = normal if weight is None else normal * _across(weight, x)
        return out.copy_(normal if bias is None else normal + _across(bias, x))


# -- backward --------------------------------------------------------------------------------------------------------


def sums(gpu: VirtualGPU, device: Device, func: Any, args: Any, kwargs: Any) -> Any:
    """Return per channel the sums of the gradient, and of it times the centred input; two parameter gradients."""
    grad, x, mean, invstd, weight, for_input, for_weight, for_bias = args
    _floating("batch_norm_backward_reduce", grad.dtype)
    rows = by_rows(grad, x)
    if rows or for_weight:
        _expect("grad_weight", weight, _of_parameters(x, weight), rows)
    with backing:
        if gpu.compute:
            wide = _wide(grad)
            sum_dy = wide.sum(_all_but_channels(x))
            sum_dy_xmu = (wide * (_wide(x) - _across(mean, x))).sum(_all_but_channels(x))
        else:
            sum_dy, sum_dy_xmu = torch.empty_like(mean), torch.empty_like(mean)
        made: list[Tensor | None] = [sum_dy.to(mean.dtype), sum_dy_xmu.to(mean.dtype)]
        if weight is None:  # the kernel for rows has nothing to give, but something to return
            made += [mean.new_empty(0), mean.new_empty(0)] if rows else [None, None]
        else:
            made += [(sum_dy_xmu * invstd).to(weight.dtype), sum_dy.to(weight.dtype, copy=True)]
        wanted = (True,) * 4 if rows else (for_input, for_input, for_weight, for_bias)
        return tuple(tensor if asked else None for tensor, asked in zip(made, wanted, strict=True))


def of_input(gpu: VirtualGPU, device: Device, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the input's gradient, from the sums of all ranks and their counts."""
    grad, x, mean, invstd, weight, sum_dy, sum_dy_xmu, counts = args
    _floating("batch_norm_backward_elemt", grad.dtype)
    rows = by_rows(grad, x)
    _expect("weight", weight, _of_parameters(x, weight) if rows else _accumulates(grad.dtype), rows)
    with backing:
        # Other than for rows, the kernel's result has its channels first, also where the input's are last.
        out = torch.empty_like(x) if rows else torch.empty_like(x, memory_format=torch.contiguous_format)
        if not gpu.compute:
            return out
        number = counts.sum()
        share = _across(invstd.square() * sum_dy_xmu / number, x)
        gradient = _wide(grad) - _across(sum_dy / number, x) - (_wide(x) - _across(mean, x)) * share
        return out.copy_(gradient * _across(invstd if weight is None else invstd * weight, x))


# -- checks of the kernels -------------------------------------------------------------------------------------------


def _floating(kernel: str, dtype: torch.dtype) -> None:
    if dtype not in _KINDS:
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{NAMES.get(dtype, dtype)}'")


def _of_parameters(x: Tensor, *parameters: Tensor | None) -> torch.dtype:
    """The dtype that all have to have: the input's if the first has it, otherwise what it is computed in."""
    first = next((p.dtype for p in parameters if p is not None), x.dtype)
    return x.dtype if first is x.dtype else _accumulates(x.dtype)


def _expect(name: str, tensor: Tensor | None, dtype: torch.dtype, rows: bool = False) -> None:
    """Raise the error in the words of the kernels for rows, or of the others."""
    if tensor is None or tensor.dtype is dtype:
        return
    if rows:
        raise RuntimeError(f"expected scalar type {NAMES[dtype]} but found {NAMES[tensor.dtype]}")
    raise RuntimeError(f"Expected {name} to have type {NAMES[dtype]} but got {NAMES[tensor.dtype]}")


HANDLERS = {
    aten.batch_norm_stats.default: statistics,
    aten.batch_norm_gather_stats_with_counts.default: gathered,
    aten.batch_norm_elemt.default: scaled,
    aten.batch_norm_backward_reduce.default: sums,
    aten.batch_norm_backward_elemt.default: of_input,
}

"""Dtypes that CUDA kernels of single operations refuse, by the kernels' names in PyTorch's messages.

The CPU's kernels have other names, and forms for other dtypes; shape functions let nearly every dtype pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor
aten = torch.ops.aten
Check = Callable[[Any, Any], None]  # of an operation and its arguments

NAMES = {
    torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double",
    torch.int64: "Long", torch.int32: "Int", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte",
    torch.bool: "Bool", torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
    torch.float8_e4m3fn: "Float8_e4m3fn", torch.float8_e5m2: "Float8_e5m2",
}  # fmt: skip
_EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)


def name_of(tensor: Tensor) -> str:
    """The name of a tensor's dtype in PyTorch's messages."""
    return NAMES.get(tensor.dtype, str(tensor.dtype))


def floating(kernel: str, tensor: Tensor) -> None:
    """Raise CUDA's error where a kernel has no form for whole numbers, nor for 8-bit floats."""
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex) or tensor.dtype in _EIGHT_BITS:
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{name_of(tensor)}'")


def _only_floating(kernel: str) -> Check:
    return lambda func, args: floating(kernel, args[0])


def _no_eight_bits(kernel: str) -> Check:
    """Arithmetic takes no 8-bit floats: they are cast before it."""

    def check(func: Any, args: Any) -> None:
        for tensor in args[:2]:
            if isinstance(tensor, Tensor) and tensor.dtype in _EIGHT_BITS:
                raise NotImplementedError(f"\"{kernel}\" not implemented for '{name_of(tensor)}'")

    return check


def _bitwise(kernel: str) -> Check:
    def check(func: Any, args: Any) -> None:
        if args[0].dtype.is_floating_point or args[0].dtype.is_complex:
            raise NotImplementedError(f"\"{kernel}\" not implemented for '{name_of(args[0])}'")

    return check


def _nearest(func: Any, args: Any) -> None:
    if args[0].dtype is not torch.uint8:
        floating("upsample_nearest2d_out_frame", args[0])


def _target_of_classes(func: Any, args: Any) -> None:
    if args[1].dtype not in (torch.int64, torch.uint8):
        raise RuntimeError(f"expected target dtype to be Long or Byte, but got {name_of(args[1])}")


def _probabilities(func: Any, args: Any) -> None:
    if args[0].dtype != args[1].dtype:
        raise RuntimeError(f"Found dtype {name_of(args[1])} but expected {name_of(args[0])}")
    floating("binary_cross_entropy_out_cuda", args[0])


def _deviation(func: Any, args: Any) -> None:
    if not args[0].dtype.is_floating_point and not args[0].dtype.is_complex:
        raise NotImplementedError("std and var only support floating point and complex dtypes")


def _drawn(func: Any, args: Any) -> None:
    if not args[0].dtype.is_floating_point:
        raise RuntimeError(f"multinomial only supports floating-point dtypes for input, got: {name_of(args[0])}")


def _each(check_of: Callable[[str], Check], kernels: dict[Any, str]) -> dict[Any, Check]:
    """Return the check of each operation, by its kernel's name."""
    return {func: check_of(kernel) for func, kernel in kernels.items()}


CHECKS: dict[Any, Check] = {
    **_each(
        _only_floating,
        {
            aten._softmax.default: "host_softmax",
            aten._log_softmax.default: "host_softmax",
            aten.gelu.default: "GeluCUDAKernelImpl",
            aten.silu.default: "silu_cuda",
            aten.silu_.default: "silu_cuda",
            aten.mish.default: "mish_cuda",
            aten.elu.default: "elu_cuda",
            aten.celu.default: "elu_cuda",
            aten.leaky_relu.default: "leaky_relu_cuda",
            aten.hardswish.default: "hardswish_cuda",
            aten.hardsigmoid.default: "hardsigmoid_cuda",
            aten.hardshrink.default: "hardshrink_cuda",
            aten.softshrink.default: "softshrink_cuda",
            aten.softplus.default: "softplus_cuda",
            aten.glu.default: "glu_cuda",
            aten.log_sigmoid_forward.default: "log_sigmoid_forward_cuda",
            aten.mse_loss.default: "mse_cuda",
            aten.huber_loss.default: "huber_cuda",
            aten.smooth_l1_loss.default: "smooth_l1_cuda",
            aten.lerp.Scalar: "lerp_cuda",
            aten.avg_pool2d.default: "avg_pool2d_out_cuda_frame",
            aten.max_pool2d_with_indices.default: "max_pool2d_with_indices_out_cuda_frame",
            aten.upsample_bilinear2d.default: "upsample_bilinear2d_out_frame",
            aten.native_batch_norm.default: "batch_norm_stats_cuda",
            aten.uniform_.default: "check_uniform_bounds",
            aten.bernoulli.default: "bernoulli_tensor_cuda_p_",
        },
    ),
    aten.mul.Tensor: _no_eight_bits("mul_cuda"),
    aten.upsample_nearest2d.default: _nearest,
    aten.nll_loss_forward.default: _target_of_classes,
    aten.binary_cross_entropy.default: _probabilities,
    aten.multinomial.default: _drawn,
    aten.var.correction: _deviation,
    aten.std.correction: _deviation,
    aten.var_mean.correction: _deviation,
}

# Elementwise operations, which the CPU refuses by itself, and shape functions let pass: for shapes-only mode.
WITHOUT_VALUES: dict[Any, Check] = {
    **_each(
        _no_eight_bits,
        {
            aten.add.Tensor: "ufunc_add_CUDA",
            aten.add_.Tensor: "ufunc_add_CUDA",
            aten.sub.Tensor: "ufunc_add_CUDA",
            aten.mul_.Tensor: "mul_cuda",
            aten.div.Tensor: "div_true_cuda",
            aten.relu.default: "clamp_scalar_cuda",
            aten.sigmoid.default: "sigmoid_cuda",
            aten.sum.default: "sum_cuda",
            aten.sum.dim_IntList: "sum_cuda",
        },
    ),
    aten.bitwise_and.Tensor: _bitwise("bitwise_and_cuda"),
    aten.bitwise_or.Tensor: _bitwise("bitwise_or_cuda"),
    aten.bitwise_xor.Tensor: _bitwise("bitwise_xor_cuda"),
    aten.bitwise_not.default: _bitwise("bitwise_not_cuda"),
}

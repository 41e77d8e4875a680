"""Checks that CUDA makes and the CPU does not, run before an operation to raise CUDA's errors.

`BEFORE` and `INSTEAD` are for composite operations, which look at devices in C++, where a virtual GPU is not seen: they
stand above autograd, on the dispatch key of `autocast`. `guard` is for dtypes that only the CPU's kernels take.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..scope import in_force
from ..scope.refusals import NotMirrored
from . import autocast, device_checks, kernel_dtypes
from .device_checks import where
from .kernel_dtypes import floating, name_of

Tensor = torch.Tensor
aten = torch.ops.aten
Run = Callable[..., Any]


def first(name: str, run: Run) -> Run:
    """`run`, the implementation of an operation above autograd, with its check before it, if there is one."""
    check = BEFORE.get(name)
    if check is None:
        return run

    def checked(*args: Any, **kwargs: Any) -> Any:
        if in_force.current is not None and not in_force.thread.inside:
            check(*args, **kwargs)
        return run(*args, **kwargs)

    return checked


def guard(handlers: dict[Any, Run], plain: Run, drawn: Run) -> None:
    """Put the checks of dtypes before the handlers of these operations; `plain` is the handler of those without one,
    `drawn` where they draw random numbers."""
    for func, check in _DTYPES.items():
        own = drawn if torch.Tag.nondeterministic_seeded in func.tags else plain
        handlers[func] = _guarded(check, handlers.get(func, own))
    for func in _SCALED:
        handlers[func] = _new_enough(handlers.get(func, plain))


def _guarded(check: Callable[[Any, Any], None], handler: Run) -> Run:
    def run(gpu: Any, device: Any, func: Any, args: Any, kwargs: Any) -> Any:
        check(func, args)
        return handler(gpu, device, func, args, kwargs)

    return run


def _new_enough(handler: Run) -> Run:
    """Products of 8-bit numbers need a GPU of compute capability 8.9."""

    def run(gpu: Any, device: Any, func: Any, args: Any, kwargs: Any) -> Any:
        if gpu.spec.capability < (8, 9):
            raise RuntimeError(
                "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm"
                " MI300+"
            )
        return handler(gpu, device, func, args, kwargs)

    return run


# -- composite operations --------------------------------------------------------------------------------------------


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: Any, **kwargs: Any
) -> None:
    device_checks.attention(query, key, value, dtypes=not autocast.casting())
    if attn_mask is not None and where(query) != device_checks.HOST:
        method = "wrapper_CUDA___scaled_dot_product_efficient_attention"
        device_checks.check_same_device(method, [("query", query), ("attn_bias", attn_mask)])


def _recurrent(tensor: Tensor, hx: Any, params: Sequence[Tensor], *args: Any) -> None:
    """check_attributes in RNN.cpp; packed sequences come as (data, batch sizes, …), an overload of its own."""
    at = where(tensor)
    hidden = [hx] if isinstance(hx, Tensor) else hx
    for kind, tensors in (("hidden", hidden), ("parameter", params)):
        for other in tensors:
            if where(other) != at:
                raise RuntimeError(
                    f"Input and {kind} tensors are not at the same device, found input tensor at {at} and {kind}"
                    f" tensor at {where(other)}"
                )


def _rms_norm(tensor: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> None:
    if weight is not None and device_checks.HOST in (where(tensor), where(weight)):
        device_checks.check_same_device("wrapper_CUDA___fused_rms_norm", [("input", tensor), ("weight", weight)])


def _meshgrid(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> None:
    if len({where(tensor) for tensor in tensors}) > 1:
        raise RuntimeError("meshgrid expects all tensors to have the same device")


def _multi_dot(tensors: Sequence[Tensor]) -> None:
    for number, tensor in enumerate(tensors):
        if where(tensor) != where(tensors[0]):
            raise RuntimeError(
                f"multi_dot(): all tensors must be on the same device but tensor 0 is on {where(tensors[0])} and"
                f" tensor {number} on {where(tensor)}"
            )


def _take_along_dim(tensor: Tensor, indices: Tensor, *args: Any, **kwargs: Any) -> None:
    if where(tensor) != where(indices):
        raise RuntimeError(
            f"Expected tensor to have {where(tensor)} Device, but got tensor with {where(indices)} Device (while"
            " checking arguments for torch.take_along_dim():)"
        )


def _quantile(tensor: Tensor, q: Tensor, *args: Any, **kwargs: Any) -> None:
    if where(tensor) != where(q):
        raise RuntimeError("quantile() q tensor must be on the same device as the input tensor")


def _tensor_split(tensor: Tensor, sections: Tensor, *args: Any, **kwargs: Any) -> None:
    if where(sections) != device_checks.HOST:
        raise RuntimeError(
            f"tensor_split expected tensor_indices_or_sections to be on cpu, but it's on {where(sections)}"
        )


def _inner(tensor: Tensor, other: Tensor) -> None:
    kinds = where(tensor).type, where(other).type
    if kinds[0] != kinds[1] and tensor.dim() and other.dim():
        raise RuntimeError(
            f"Expected tensor to have {kinds[0]} DeviceType, but got tensor with {kinds[1]} DeviceType (while checking"
            " arguments for inner())"
        )


def _pack_padded_sequence(tensor: Tensor, lengths: Tensor, batch_first: bool) -> None:
    if where(lengths) != device_checks.HOST:
        raise RuntimeError(
            f"'lengths' argument should be a 1D CPU int64 tensor, but got {lengths.dim()}D {where(lengths)}"
            f" {name_of(lengths)} tensor"
        )


def _fft(tensor: Tensor, *args: Any, **kwargs: Any) -> None:
    """cuFFT transforms 16 bits, and no CPU does."""
    if where(tensor) != device_checks.HOST and tensor.dtype in (torch.float16, torch.complex32):
        raise NotMirrored(f"torch.fft of {str(tensor.dtype)[6:]} is not mirrored by the virtual GPU: float32 runs")


_TRANSFORMS = [
    f"{inverse}{kind}fft{more}" for inverse in ("", "i") for kind in ("", "r", "h") for more in ("", "2", "n")
]
BEFORE: dict[str, Callable[..., None]] = {
    **{f"fft_{name}": _fft for name in _TRANSFORMS},
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input"), _recurrent),
    "rms_norm": _rms_norm,
    "meshgrid": _meshgrid,
    "meshgrid.indexing": _meshgrid,
    "linalg_multi_dot": _multi_dot,
    "chain_matmul": _multi_dot,
    "take_along_dim": _take_along_dim,
    "quantile": _quantile,
    "inner": _inner,
    "_pack_padded_sequence": _pack_padded_sequence,
    "tensor_split.tensor_indices_or_sections": _tensor_split,
}


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    """The lengths are read on the host, and put on the GPU for the mean (ctc_loss in LossCTC.cpp)."""
    lengths = input_lengths, target_lengths
    with autocast.below(log_probs):
        if where(log_probs) == device_checks.HOST or any(where(tensor) != device_checks.HOST for tensor in lengths):
            out: Tensor = aten.ctc_loss.Tensor(log_probs, targets, *lengths, blank, reduction, zero_infinity)
            return out
        read = [tensor.tolist() for tensor in lengths]
        losses: Tensor = aten.ctc_loss.IntList(log_probs, targets, *read, blank, 0, zero_infinity)
        if reduction == 1:
            losses = losses / torch.tensor(read[1], dtype=losses.dtype, device=log_probs.device).clamp_min(1)
            return losses.mean()
        return losses.sum() if reduction == 2 else losses


INSTEAD: dict[str, Run] = {"ctc_loss.Tensor": _ctc_loss}

# -- dtypes ----------------------------------------------------------------------------------------------------------


def _mm(func: Any, args: Any) -> None:
    one, other = args[:2]
    if one.dtype != other.dtype:
        raise RuntimeError(
            "expected mat1 and mat2 to have the same dtype, but got:"
            f" {device_checks.scalar_type(one.dtype)} != {device_checks.scalar_type(other.dtype)}"
        )
    floating("addmm_cuda", one)


def _addmm(func: Any, args: Any) -> None:
    added, one, other = args[:3]
    for name, tensor in (("mat1", one), ("self", added)):
        if tensor.dtype != other.dtype:
            raise RuntimeError(
                f"{name} and mat2 must have the same dtype, but got {name_of(tensor)} and {name_of(other)}"
            )
    floating("addmm_cuda", one)


def _batched(func: Any, args: Any) -> None:
    *added, one, other = args[: 3 if func is aten.baddbmm.default else 2]
    if added and added[0].dtype != one.dtype:
        kinds = [device_checks.scalar_type(tensor.dtype) for tensor in (*added, one, other)]
        raise RuntimeError("Input dtypes must be the same, got: input {}, batch1: {}, batch2: {}".format(*kinds))
    if one.dtype != other.dtype:
        raise RuntimeError(f"expected scalar type {name_of(one)} but found {name_of(other)}")
    floating("baddbmm_cuda", one)


def _mv(func: Any, args: Any) -> None:
    matrix, vector = args[:2]
    if matrix.dtype != vector.dtype:
        raise RuntimeError(
            f"addmv input tensors must have the same dtype, but got {name_of(vector)}, {name_of(matrix)}, and"
            f" {name_of(vector)}"
        )
    floating("addmv_impl_cuda", matrix)


def _dot(func: Any, args: Any) -> None:
    floating("dot", args[0])


def _convolution(func: Any, args: Any) -> None:
    """check_input_same_type_as_parameters: dtypes."""
    tensor, weight, bias = args[:3]
    if weight.dtype != tensor.dtype:
        types = device_checks.legacy_type(tensor), device_checks.legacy_type(weight)
        raise RuntimeError(f"Input type ({types[0]}) and weight type ({types[1]}) should be the same")
    if bias is not None and bias.dtype != tensor.dtype:
        types = device_checks.scalar_type(tensor.dtype), device_checks.scalar_type(bias.dtype)
        raise RuntimeError(f"Input type ({types[0]}) and bias type ({types[1]}) should be the same")
    if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
        raise RuntimeError(f"getCudnnDataTypeFromScalarType() not supported for {name_of(tensor)}")


def _norm(place: int) -> Callable[[Any, Any], None]:
    """Layer and group norm take weights of the input's dtype only; the first of them stands at `place`."""

    def check(func: Any, args: Any) -> None:
        for weight in args[place : place + 2]:
            if weight is not None and weight.dtype != args[0].dtype:
                raise RuntimeError(f"expected scalar type {name_of(args[0])} but found {name_of(weight)}")

    return check


def _no_halves(kernel: str) -> Callable[[Any, Any], None]:
    """cuSOLVER factorises no matrices of 16 bits."""

    def check(func: Any, args: Any) -> None:
        if args[0].dtype in (torch.float16, torch.bfloat16):
            raise NotImplementedError(f"\"{kernel}\" not implemented for '{name_of(args[0])}'")

    return check


_DTYPES: dict[Any, Callable[[Any, Any], None]] = {
    aten.mm.default: _mm,
    aten.addmm.default: _addmm,
    aten.bmm.default: _batched,
    aten.baddbmm.default: _batched,
    aten.mv.default: _mv,
    aten.dot.default: _dot,
    aten.convolution.default: _convolution,
    aten.native_layer_norm.default: _norm(2),
    aten.native_group_norm.default: _norm(1),
    aten.linalg_cholesky_ex.default: _no_halves("cholesky_cusolver"),
    aten._cholesky_solve_helper.default: _no_halves("cholesky_cuda_potrs"),
    aten.cholesky_solve.default: _no_halves("cholesky_cuda_potrs"),
    aten.cholesky_inverse.default: _no_halves("cholesky_cuda_potri"),
    **dict.fromkeys(
        (
            aten.linalg_lu_factor_ex.default,
            aten.linalg_lu.default,
            aten._linalg_solve_ex.default,
            aten._linalg_det.default,
        ),
        _no_halves("lu_factor_cusolver"),
    ),
    aten.linalg_lu_solve.default: _no_halves("lu_solve_cusolver"),
    aten._linalg_svd.default: _no_halves("svd_cuda_gesvdj"),
    aten._linalg_eigh.default: _no_halves("linalg_eigh_cuda"),
    aten.linalg_eig.default: _no_halves("linalg_eig_cuda"),
    aten.linalg_eigvals.default: _no_halves("linalg_eig_cuda"),
    aten.geqrf.default: _no_halves("geqrf_cuda"),
    aten.linalg_qr.default: _no_halves("geqrf_cuda"),
    aten.linalg_householder_product.default: _no_halves("orgqr_cuda"),
    aten.linalg_ldl_factor_ex.default: _no_halves("ldl_factor_cusolver"),
    aten.linalg_solve_triangular.default: _no_halves("triangular_solve_cuda"),
    aten.triangular_solve.default: _no_halves("triangular_solve_cuda"),
    **kernel_dtypes.CHECKS,
}
_SCALED = (aten._scaled_mm.default,)

# -- torch.use_deterministic_algorithms ------------------------------------------------------------------------------

# The kernels that add atomically, as PyTorch names them (alertNotDeterministic); those of CPUs alert by themselves.
NOT_DETERMINISTIC: dict[Any, str] = {
    aten._adaptive_avg_pool2d_backward.default: "adaptive_avg_pool2d_backward_cuda",
    aten._adaptive_avg_pool3d_backward.default: "adaptive_avg_pool3d_backward_cuda",
    aten.avg_pool3d_backward.default: "avg_pool3d_backward_cuda",
    aten.adaptive_max_pool2d_backward.default: "adaptive_max_pool2d_backward_cuda",
    aten.adaptive_max_pool3d_backward.default: "adaptive_max_pool3d_backward_cuda",
    aten.max_pool3d_with_indices_backward.default: "max_pool3d_with_indices_backward_cuda",
    aten.fractional_max_pool2d_backward.default: "fractional_max_pool2d_backward_cuda",
    aten.fractional_max_pool3d_backward.default: "fractional_max_pool3d_backward_cuda",
    aten.max_unpool2d.default: "max_unpooling2d_forward_out",
    aten.max_unpool3d.default: "max_unpooling3d_forward_out",
    aten.upsample_linear1d_backward.default: "upsample_linear1d_backward_out_cuda",
    aten.upsample_bilinear2d_backward.default: "upsample_bilinear2d_backward_out_cuda",
    aten.upsample_bicubic2d_backward.default: "upsample_bicubic2d_backward_out_cuda",
    aten.upsample_trilinear3d_backward.default: "upsample_trilinear3d_backward_out_cuda",
    aten.reflection_pad1d_backward.default: "reflection_pad1d_backward_out_cuda",
    aten.reflection_pad3d_backward.default: "reflection_pad3d_backward_out_cuda",
    aten.replication_pad1d_backward.default: "replication_pad1d_backward_cuda",
    aten.replication_pad2d_backward.default: "replication_pad2d_backward_cuda",
    aten.replication_pad3d_backward.default: "replication_pad3d_backward_cuda",
    aten.nll_loss2d_forward.default: "nll_loss2d_forward_out_cuda_template",
    aten._ctc_loss_backward.default: "ctc_loss_backward_gpu",
    aten._ctc_loss_backward.Tensor: "ctc_loss_backward_gpu",
    aten.grid_sampler_2d_backward.default: "grid_sampler_2d_backward_cuda",
    aten.grid_sampler_3d_backward.default: "grid_sampler_3d_backward_cuda",
    aten.median.dim: "median CUDA with indices output",
    aten.nanmedian.dim: "median CUDA with indices output",
    aten.histc.default: "_histc_cuda with floating point input",
    aten.bincount.default: "_bincount_cuda",
}
_WHERE: dict[Any, Callable[[Any, Any], bool]] = {
    aten.histc.default: lambda args, kwargs: args[0].is_floating_point(),
    aten.bincount.default: lambda args, kwargs: len(args) > 1 or kwargs.get("weights") is not None,
}


def alert(func: Any, args: Any, kwargs: Any) -> None:
    """Raise or warn, as the program has asked, where a kernel that is not deterministic runs on a GPU."""
    if where(args[0]) == device_checks.HOST or not _WHERE.get(func, lambda *_: True)(args, kwargs):
        return
    only = torch.is_deterministic_algorithms_warn_only_enabled()
    lacks = (
        f"{NOT_DETERMINISTIC[func]} does not have a deterministic implementation, but you set "
        f"'torch.use_deterministic_algorithms(True{', warn_only=True' * only})'. "
    )
    file = (
        "file an issue at https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic support"
    )
    if only:
        warnings.warn(f"{lacks}You can {file} for this operation.", stacklevel=2)
        return
    raise RuntimeError(
        f"{lacks}You can turn off determinism just for this operation, or you can use the 'warn_only=True' option, if "
        f"that's acceptable for your application. You can also {file}"
    )

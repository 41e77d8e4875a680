"""Operations whose CUDA results differ from the CPU's in layout, statistics, buffers or asserts.

They compute values; `dispatch` places the results.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..scope.in_force import backing
from ..scope.labels import STAYS, storage_of
from . import assertions, attention, cells, cuda_refusals, error_words, random, recurrent, shapes_only, sync_batch_norm
from .results import map_tensors
from .shapes_only import KNOWN
from .sixteen_bit import HALVES, in_float

if TYPE_CHECKING:
    from ..gpu import VirtualGPU
    from ..scope.device import Device

Tensor = torch.Tensor
aten = torch.ops.aten
Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def recover(gpu: VirtualGPU, device: Device, func: Any, args: Args, kwargs: Kwargs, error: Exception) -> Any:
    """Do what a GPU does where the CPU has raised: fail a device-side assert, or compute in 16 bits."""
    text = str(error)
    condition = assertions.failed(func, error, args, kwargs)
    if condition is not None:
        fail(device, condition)
        with backing:
            return _on_meta(func, args, kwargs, device)
    if "not implemented for 'Half'" in text or "not implemented for 'BFloat16'" in text:
        return in_float(func, args, kwargs)
    try:
        raise error_words.of_cpu(error) from None
    finally:
        del error  # breaks a cycle with this frame, which would keep its tensors alive


def fail(device: Device, condition: str) -> None:
    """Record a failed device-side assert: CUDA prints it, and later synchronizations raise it."""
    assertion = f"Assertion `{condition}` failed."
    print(f"virtual cuda:{device.index}: block: [0,0,0], thread: [0,0,0] {assertion}", file=sys.stderr)
    device.fail(assertion)


def _on_meta(func: Any, args: Args, kwargs: Kwargs, device: Device) -> Any:
    """Return zeros of the result's shape: the output of a failed kernel is undefined."""
    mutated = [a for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if mutated:
        return args[0]
    args = tuple([*_whole(item)] if isinstance(item, list) else item for item in args)
    shapes = func._op(*map_tensors(lambda t: t.to("meta"), args), **map_tensors(lambda t: t.to("meta"), kwargs))
    return map_tensors(lambda t: torch.zeros(t.shape, dtype=t.dtype), shapes)


def _whole(indices: list[Any]) -> Iterator[Any]:
    """Replace masks in `indices` by positions, whose number is unknown from shapes alone."""
    for index in indices:
        if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
            yield from index.nonzero(as_tuple=True)
        else:
            yield index


# -- operations with kernels of their own ----------------------------------------------------------------------------


def _matmul(gpu: VirtualGPU, device: Device, func: Any, args: Args, kwargs: Kwargs) -> Any:
    if gpu.compute:
        same = all(t.dtype is args[0].dtype for t in args[:3] if isinstance(t, Tensor))
        return (
            in_float(func, args, kwargs) if same and args[0].dtype in HALVES else plain(gpu, device, func, args, kwargs)
        )
    return plain(gpu, device, func, args, kwargs)


def _convolution(gpu: VirtualGPU, device: Device, func: Any, args: Args, kwargs: Kwargs) -> Any:
    out = _matmul(gpu, device, func, args, kwargs)
    return out if gpu.compute else _as_cudnn_lays_it_out(out, *args[:2])


def _convolution_backward(gpu: VirtualGPU, device: Device, func: Any, args: Args, kwargs: Kwargs) -> Any:
    out = _matmul(gpu, device, func, args, kwargs)
    return out if gpu.compute else (*(_as_cudnn_lays_it_out(t, *args[1:3]) for t in out[:2]), out[2])


def _as_cudnn_lays_it_out(out: Any, tensor: Tensor, weight: Tensor) -> Any:
    """Channels last where input or weights are (cudnn_conv_suggest_memory_format), and else in order; shapes alone
    forget that, or (PyTorch 2.11) go by the gradient."""
    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    if out is None or form is None:
        return out
    if not any(_is_laid_out(t, form) for t in (tensor, weight)):
        form = torch.contiguous_format
    if out.is_contiguous(memory_format=form):
        return out
    with backing:
        return torch.empty_like(out, memory_format=form)


def _is_laid_out(tensor: Tensor, form: torch.memory_format) -> bool:
    return tensor.is_contiguous(memory_format=form) and not tensor.is_contiguous()


def plain(gpu: VirtualGPU, device: Device, func: Any, args: Args, kwargs: Kwargs) -> Any:
    if not gpu.compute:
        return shapes_only.run_on_meta(gpu, device, func, args, kwargs)
    try:
        return func._op(*args, **kwargs)
    except (RuntimeError, IndexError) as error:
        return recover(gpu, device, func, args, kwargs, error)


def _unscale(gpu: VirtualGPU, device: Device, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """GradScaler's check: without values, gradients are taken to be finite."""
    if gpu.compute:
        return func._op(*args)
    setattr(storage_of(args[1]), KNOWN, 0.0)
    return None


HANDLERS: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: random.native_dropout,
    aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
}
# Some of their arguments are on the host by contract: the lengths of sequences, with dropout the seed and its offset.
HOSTED = {
    aten._pack_padded_sequence.default,
    aten._scaled_dot_product_flash_attention_backward.default,
    aten._scaled_dot_product_efficient_attention_backward.default,
    aten._scaled_dot_product_cudnn_attention_backward.default,
}
for _op in (
    aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten.mv.default, aten.addmv.default,
    aten.dot.default, aten._addmm_activation.default,
):  # fmt: skip
    HANDLERS[_op] = _matmul
HANDLERS |= {aten.convolution.default: _convolution, aten.convolution_backward.default: _convolution_backward}


def _in_float_with_float_statistics(count: int) -> Callable[..., Any]:
    """Run a norm of 16-bit input: the last `count` results are statistics, which CUDA keeps in float32."""

    def run(gpu: VirtualGPU, device: Device, func: Any, args: Args, kwargs: Kwargs) -> Any:
        if args[0].dtype not in HALVES:
            return plain(gpu, device, func, args, kwargs)
        with backing:
            if not gpu.compute:
                out = shapes_only.run_on_meta(gpu, device, func, args, kwargs)
                return *out[:-count], *(t.float() for t in out[-count:])
            held = [a for a in args if isinstance(a, Tensor)]
            wide = map_tensors(lambda t: t.float() if t.dtype in HALVES else t, args)
            out = func._op(*wide, **kwargs)
            for before, after in zip(args, wide, strict=True):  # running statistics are written in place
                if isinstance(before, Tensor) and before is not held[0] and func is aten.native_batch_norm.default:
                    before.copy_(after)
            return *(t.to(args[0].dtype) for t in out[:-count]), *out[-count:]

    return run


def _backward_in_float(weight: int) -> Callable[..., Any]:
    """Run the backward of such a norm: each gradient has its tensor's dtype; the weight is argument `weight`."""

    def run(gpu: VirtualGPU, device: Device, func: Any, args: Args, kwargs: Kwargs) -> Any:
        if not gpu.compute or args[0].dtype not in HALVES:
            return plain(gpu, device, func, args, kwargs)
        with backing:
            wide = func._op(*map_tensors(lambda t: t.float() if t.dtype in HALVES else t, args), **kwargs)
            dtypes = [args[0].dtype, *[args[0].dtype if args[weight] is None else args[weight].dtype] * 2]
            return tuple(t.to(d) if isinstance(t, Tensor) else t for t, d in zip(wide, dtypes, strict=True))

    return run


def _batch_norm(gpu: VirtualGPU, device: Device, func: Any, args: Args, kwargs: Kwargs) -> Any:
    out = _in_float_with_float_statistics(2)(gpu, device, func, args, kwargs)
    if not gpu.compute and not args[5] and args[0].dtype not in HALVES:  # cuDNN keeps the batch's in training only
        return out[0], out[1].new_empty(0), out[2].new_empty(0)
    return out


def _log_sigmoid(gpu: VirtualGPU, device: Device, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Return no buffer: CUDA keeps none."""
    out = plain(gpu, device, func, args, kwargs)[0]
    with backing:
        return out, out.new_empty(0)


def _log_sigmoid_backward(gpu: VirtualGPU, device: Device, func: Any, args: Args, kwargs: Kwargs) -> Any:
    with backing:
        return args[0] * torch.sigmoid(-args[1])


def _softmax(gpu: VirtualGPU, device: Device, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Compute from float16 to float32 in one kernel, which the CPU lacks."""
    tensor, dim, to_float = args
    if not gpu.compute or not to_float:
        return plain(gpu, device, func, args, kwargs)
    with backing:
        return func._op(tensor.float(), dim, False)


def _softmax_backward(gpu: VirtualGPU, device: Device, func: Any, args: Args, kwargs: Kwargs) -> Any:
    grad, _, _, dtype = args
    if not gpu.compute or grad.dtype is dtype:
        return plain(gpu, device, func, args, kwargs)
    with backing:
        return func._op(*args[:3], grad.dtype).to(dtype)


def _reduced_loss(gpu: VirtualGPU, device: Device, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Allocate the output at full size and resize it to a scalar: its storage stays as large as the elements."""
    place = 3 if func is aten.binary_cross_entropy.default else 2  # behind a weight
    if gpu.compute or (len(args) > place and not args[place]):
        return plain(gpu, device, func, args, kwargs)
    with backing:
        return torch.empty(
            torch.broadcast_shapes(args[0].shape, args[1].shape), dtype=args[0].dtype, device="meta"
        ).view(-1)[0]


def _pack_padded(gpu: VirtualGPU, device: Device, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Return packed step sizes on the host; the lengths have values in shapes-only mode, too."""
    padded, lengths, _ = args
    with backing:
        if gpu.compute:
            data, sizes = func._op(*args)
        else:
            steps = range(int(lengths.max()))
            sizes = torch.stack([(lengths > step).sum() for step in steps])
            data = padded.new_empty((int(lengths.sum()), *padded.shape[2:]))
    setattr(storage_of(sizes), STAYS, True)
    return data, sizes


def _like(place: int) -> Callable[..., Any]:
    """Return a gradient with the shape of one argument, where PyTorch has no meta function."""

    def run(gpu: VirtualGPU, device: Device, func: Any, args: Args, kwargs: Kwargs) -> Any:
        if gpu.compute:
            return plain(gpu, device, func, args, kwargs)
        with backing:
            return torch.empty_like(args[place])

    return run


def _heads(gpu: VirtualGPU, device: Device, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Return query, key and value of each head, in one piece of memory."""
    if gpu.compute:
        return plain(gpu, device, func, args, kwargs)
    qkv, bias, heads = args
    with backing:
        return bias.new_empty(3, qkv.shape[0], heads, qkv.shape[1], bias.shape[0] // 3 // heads).unbind()


HANDLERS |= {
    aten._pack_padded_sequence.default: _pack_padded,
    aten._transform_bias_rescale_qkv.default: _heads,
    aten._masked_softmax.default: _like(0),
    aten._ctc_loss_backward.default: _like(1),
    aten._ctc_loss_backward.Tensor: _like(1),
    aten.multi_margin_loss_backward.default: _like(1),
    aten.native_layer_norm.default: _in_float_with_float_statistics(2),
    aten.native_batch_norm.default: _batch_norm,
    aten.log_sigmoid_forward.default: _log_sigmoid,
    aten.log_sigmoid_backward.default: _log_sigmoid_backward,
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _softmax,
    aten._softmax_backward_data.default: _softmax_backward,
    aten._log_softmax_backward_data.default: _softmax_backward,
    aten.mse_loss.default: _reduced_loss,
    aten.smooth_l1_loss.default: _reduced_loss,
    aten.binary_cross_entropy.default: _reduced_loss,
    aten.native_layer_norm_backward.default: _backward_in_float(5),
    aten.native_batch_norm_backward.default: _backward_in_float(2),
    aten._scaled_dot_product_flash_attention.default: attention.flash_forward,
    aten._scaled_dot_product_flash_attention_backward.default: attention.flash_backward,
    aten._scaled_dot_product_efficient_attention.default: attention.efficient_forward,
    aten._scaled_dot_product_efficient_attention_backward.default: attention.efficient_backward,
    aten._scaled_dot_product_cudnn_attention.default: attention.cudnn_forward,
    aten._scaled_dot_product_cudnn_attention_backward.default: attention.cudnn_backward,
    aten._thnn_fused_lstm_cell.default: cells.lstm_forward,
    aten._thnn_fused_lstm_cell_backward_impl.default: cells.lstm_backward,
    aten._thnn_fused_gru_cell.default: cells.gru_forward,
    aten._thnn_fused_gru_cell_backward.default: cells.gru_backward,
    aten._cudnn_rnn.default: recurrent.forward,
    aten._cudnn_rnn_backward.default: recurrent.backward,
    aten._cudnn_rnn_flatten_weight.default: recurrent.flatten,
    **sync_batch_norm.HANDLERS,
}
cuda_refusals.guard(HANDLERS, plain, random.drawn)

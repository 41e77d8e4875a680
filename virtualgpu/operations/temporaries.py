"""Temporary memory of CUDA kernels: workspaces, clones, partial sums, intermediate results.

Each rule gives the bytes for one call, whose arguments it is given by place. They are freed when the call returns, so
that they count for the peak only. Operations that are not listed take nothing of importance.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from . import attention, products, recurrent
from .reductions import THREADS_PER_SM, Kernel, buffers
from .sync_batch_norm import by_rows, scales_in_general

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
    """Elementwise values first, then their mean or sum."""
    reduction = args[2] if len(args) > 2 else 1
    return [args[0].nbytes, *_flat(device, args[0])] if reduction else []


def _binary_cross_entropy(device: Device, args: Any, out: Any) -> list[int]:
    """As `_loss`, but the result keeps the memory of the elements, and the mean or sum is separate."""
    reduction = args[3] if len(args) > 3 else 1
    return [args[0].element_size(), *_flat(device, args[0])] if reduction else []


def _binary_cross_entropy_with_logits(device: Device, args: Any, out: Any) -> list[int]:
    """Log-sigmoids, then the elements, which are the result without a reduction (Loss.cpp)."""
    reduction = args[4] if len(args) > 4 else 1
    return [args[0].nbytes] * (2 if reduction else 1) + (_flat(device, args[0]) if reduction else [])


def _flat(device: Device, big: Tensor) -> list[int]:
    """Return the scratch memory of a sum over this many contiguous elements."""
    return buffers(
        [big.numel()], [1], [0], big.element_size(), _sum(big), sms=device.spec.sms,
        threads_per_sm=THREADS_PER_SM[device.spec.capability],
    )  # fmt: skip


def _copies(*tensors: Tensor, form: torch.memory_format = torch.contiguous_format) -> list[int]:
    """Bytes of non-contiguous tensors, which kernels copy first."""
    return [t.numel() * t.element_size() for t in tensors if not t.is_contiguous(memory_format=form)]


def _in_order(*places: int) -> Rule:
    """Copies of the arguments at these positions that are not contiguous."""
    return lambda device, args, out: _copies(*(args[place] for place in places if args[place] is not None))


def _in_their_order(*places: int) -> Rule:
    """As `_in_order` for images, which may have channels last, as the first argument suggests."""
    return lambda device, args, out: _copies(*(args[p] for p in places), form=_form(args[places[-1]]))


def _form(*tensors: Tensor) -> torch.memory_format:
    """Return channels last if one of them is so (cudnn_conv_suggest_memory_format)."""
    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensors[0].dim())
    if form is not None and any(t.is_contiguous(memory_format=form) and not t.is_contiguous() for t in tensors):
        return form
    return torch.contiguous_format


def by_cudnn(x: Tensor, weight: Tensor | None) -> bool:
    """Return True if cuDNN runs a batch norm (PyTorch 2.15, Normalization.cpp, _select_batch_norm_backend)."""
    float32 = weight is not None and weight.dtype is torch.float32
    kinds = torch.float16, torch.float32
    return torch.backends.cudnn.enabled and float32 and x.dtype in kinds and x.dim() > 2


def _batch_norm(device: Device, args: Any, out: Any) -> list[int]:
    x, weight, training = args[0], args[1], args[5]
    if by_cudnn(x, weight):
        return _copies(x, form=_form(x))
    return _across_rows(x, 4) if training and _channels_are_near(x) else []


def _batch_norm_backward(device: Device, args: Any, out: Any) -> list[int]:
    grad, x, weight = args[:3]
    if by_cudnn(x, weight):
        return _copies(grad, x, form=_form(x))
    return [4 * x.shape[1]] * 2 + _across_rows(x, 2) if _channels_are_near(x) else []


def _channels_are_near(x: Tensor) -> bool:
    """PyTorch's own kernel for channels last; images of one pixel count as such (batch_norm_choose_impl)."""
    if x.is_contiguous():
        return x.stride(1) == 1
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)


def _across_rows(x: Tensor, numbers: int) -> list[int]:
    """If blocks share a channel: `numbers` for each block and channel, and their semaphores (Normalization.cuh)."""
    channels = x.shape[1]
    rows = x.numel() // max(1, channels)
    if not rows:
        return []
    high = min(_last_power(-(-rows // 16)), _BLOCK // min(_last_power(channels), 32))
    wide = min(_last_power(channels), _BLOCK // high)
    blocks = min(-(-rows // (high * 16)), 128)
    size = 8 if x.dtype is torch.float64 else 4
    return [size * numbers * channels * blocks, 4 * -(-channels // wide)] if blocks >= 8 else []


def _scaled(device: Device, args: Any, out: Any) -> list[int]:
    """Without a kernel for the layout, a 1 and a 0 replace a missing weight and bias."""
    x, weight, bias, mean = args[:4]
    return [mean.element_size() for p in (weight, bias) if p is None] if scales_in_general(x) else []


def _last_power(number: int) -> int:
    return 1 << (max(number, 1).bit_length() - 1)


_BLOCK = 512  # threads


def _group_norm(device: Device, args: Any, out: Any) -> list[int]:
    """Statistics of 16 bits are computed in 32; scale and shift for each channel of each image."""
    images, channels, pixels, groups = args[3:7]
    statistics = [4 * images * groups] * 2 if out[1].dtype in _HALVES else []
    return statistics + ([4 * images * channels] * 2 if pixels > 1 and args[1] is not None else [])


def _group_norm_backward(device: Device, args: Any, out: Any) -> list[int]:
    """Sums for each channel, a factor for each, and two for each group (group_norm_kernel.cu)."""
    images, channels, pixels, groups = args[5:9]
    if pixels == 1:
        return []
    each, of_group = 4 * images * channels, 4 * images * groups
    factors = [of_group, of_group, *([each] if args[4] is not None else [])]
    return [each, each, *(factors if args[9][0] else [])]


def _convolution(device: Device, args: Any, out: Any) -> list[Any]:
    x, weight = args[:2]
    beyond_ampere = out.dtype in _HALVES or device.spec.capability == (9, 0)
    parts = x, weight, out if beyond_ampere else None
    workspace = _turned(device, x, weight, args[8], _plain_stride(*args[3:7]), parts, "forward")
    return _copies(x, weight, form=_form(x, weight)) + workspace


def _plain_stride(stride: list[int], padding: list[int], dilation: list[int], transposed: bool) -> int:
    """The largest stride of a convolution without gaps in its window, and 0 of any other or a transposed one."""
    return 0 if transposed or max(dilation) > 1 else max(stride)


def _turned(device: Device, x: Tensor, weight: Tensor, groups: int, stride: int, parts: Any, kind: str) -> list[Any]:
    """cuDNN's tensor cores work on channels last: what lies otherwise is copied into its workspace.

    So its plans say for ordinary convolutions; how it splits its sums, and what it plans for others, is not mirrored.
    `stride` is `_plain_stride`'s, `kind` is "forward", or which gradient: "input" or "weight".
    """
    if not device.plans_convolutions or x.dim() < 4 or (groups > 1 and groups == weight.shape[0]):
        return []
    hopper = device.spec.capability == (9, 0)
    if not (x.dtype in _HALVES or (device.spec.capability >= (8, 0) and torch._C._get_cudnn_allow_tf32())):
        return _on_lanes(x, weight, stride, parts) if hopper and kind == "weight" and groups == 1 else []
    form = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    if x.is_contiguous(memory_format=form) and not x.is_contiguous():
        return []
    point = all(size == 1 for size in weight.shape[2:])
    if point and device.spec.capability < (8, 0):
        return []
    copies = sum(part.nbytes for part in parts if part is not None and not (point and part.shape == weight.shape)) + 16
    if hopper and x.shape[1] == 3 and x.dtype in _HALVES and groups == 1 and stride:
        return _of_colours(weight, copies, x, kind)
    if point and hopper and stride == 1 and lie_well(x):
        # As products; the weight's gradient is one for each image, which are then added up.
        return [[min(copies, 4 * weight.numel() * x.shape[0])]] if kind == "weight" else []
    return [[copies]]


def _of_colours(weight: Tensor, copies: int, x: Tensor, kind: str) -> list[Any]:
    """An H200 fills three channels up to four where the window is 7 × 7, as ResNet's is; else its forward needs no
    copy, and the weight's gradient has eight."""
    large = weight.shape[2] >= 7
    if kind == "forward" and not large:
        return []
    channels = 4 if large else 8
    return [[copies + (channels - 3) * (x.nbytes + weight.nbytes) // 3]]


def lie_well(x: Tensor) -> bool:
    """Return True if an H200 needs no copy of these images for a 1 × 1 convolution with stride 1: a matrix product
    whose rows are the images' planes."""
    pixels = math.prod(x.shape[2:])
    return pixels == 1 or pixels * x.element_size() % 8 == 0


def _on_lanes(x: Tensor, weight: Tensor, stride: int, parts: Any) -> list[Any]:
    """The weight's gradient in float32 on an H200 (cuDNN 9.19): by Winograd's way with tiles of 4 × 4, or with channels
    last where weights are many. With few channels and 3 × 3 numbers also by Fourier's, which is not mirrored."""
    if not stride or x.dtype is not torch.float32 or x.dim() != 4 or not x.is_contiguous():
        return []
    to, into, *window = weight.shape
    if window == [3, 3] and stride == 1:
        if min(to, into) < 128:
            return []
        tiles = x.shape[0] * -(-x.shape[2] // 4) * -(-x.shape[3] // 4)
        return [[36 * 4 * (tiles * (to + into) + to * into)]]
    if weight.numel() < _MANY:
        return []
    point = window == [1, 1]
    return [[sum(part.nbytes for part in parts if not (point and part.shape == weight.shape)) + 16]]


_MANY = 1 << 18  # numbers of a weight


def _convolution_backward(device: Device, args: Any, out: Any) -> list[Any]:
    """Both gradients' copies and workspaces, and the bias: its gradient is a sum.

    A gradient whose channels lie otherwise than the input's is turned once, any other that has gaps for each of both.
    """
    grad, x, weight, _, *way, _, groups, wanted = args
    form = _form(x, weight)
    turned = _form(grad) != _form(x)
    stride = _plain_stride(*way)
    phases: list[Any] = [grad.numel() * grad.element_size()] if turned else []
    for index, parts in enumerate(((grad, weight, x), (x, grad, weight))):
        if wanted[index]:
            strayed = [part for part in parts[:2] if part is not grad or not turned]
            kind = ("input", "weight")[index]
            phases.append([*_copies(*strayed, form=form), *_turned(device, x, weight, groups, stride, parts, kind)])
    if wanted[2]:
        phases.append(_reduce(device, grad, [d for d in range(grad.dim()) if d != 1], _sum(grad)))
    return phases


def _embedding(device: Device, args: Any, out: Any) -> list[int]:
    """Indices flattened, which copies them if no view is possible."""
    indices = args[1]
    steps = [(stride, size) for stride, size in zip(indices.stride(), indices.shape, strict=True) if size != 1]
    follow = all(step == inner * size for (step, _), (inner, size) in itertools.pairwise(steps))
    return [] if follow else [indices.nbytes]


def _embedding_backward(device: Device, args: Any, out: Any) -> list[int]:
    """Many indices are sorted, and the rows of each summed in parts of ten, without knowing how many differ.

    embedding_backward_cuda_kernel in EmbeddingBackwardKernel.cu; what CUB takes to sort and to scan is not mirrored.
    """
    grad, indices, rows, _, scaled = args
    taken = [t.numel() * t.element_size() for t in (indices, grad) if not t.is_contiguous()]
    number, itemsize, width = indices.numel(), indices.element_size(), grad.shape[-1]
    if number <= 3072 and not scaled:
        return taken
    each = number * itemsize
    taken += [each, each, each, -each, *([each] if scaled else []), each, 8, each, -each]
    segments = min(number, rows)
    parts = number // 10 + segments
    taken += [segments * itemsize] * 2 + [8, parts * itemsize]
    lanes = -(-width // 32) * 32
    blocks = -(-segments * lanes // min(lanes, 1024))
    few = blocks < device.spec.sms * 4 and parts > 4 * blocks
    if few and not torch.are_deterministic_algorithms_enabled():  # atomically, into the gradient or one of float32
        return [*taken, parts * itemsize, *([rows * width * 4] if grad.dtype in _HALVES else [])]
    return [*taken, parts * width * max(4, grad.element_size())]


def _of_biases(device: Device, args: Any, out: Any) -> list[Any]:
    """Of a recurrent cell: the gradients of biases are sums of the gates'."""
    gates, biased = [t for t in out if t is not None and t.dim() == 2], args[-1]
    return [_reduce(device, gates[0], [0], _sum(gates[0]))] if biased and gates else []


def _product(device: Device, args: Any, out: Any) -> list[int]:
    """Gradient times output, before its sum is taken away."""
    return [args[1].nbytes]


def _safe_softmax(device: Device, args: Any, out: Any) -> list[int]:
    """The mask of scores of minus infinity, the rows with only such scores, and the zero that is written there."""
    return [out.numel(), out.numel() // max(1, out.shape[args[1]]), out.element_size()]


def take(device: Device, func: Any, args: tuple[Any, ...], out: Any) -> None:
    """Allocate and free the temporaries of a listed operation; raises torch.OutOfMemoryError where they do not fit.

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
    aten.binary_cross_entropy.default: _binary_cross_entropy,
    aten.binary_cross_entropy_with_logits.default: _binary_cross_entropy_with_logits,
    aten.logsumexp.default: lambda device, args, out: [args[0].nbytes, out.nbytes],  # less its maximum; that maximum
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.native_layer_norm.default: _in_order(0),
    aten.native_layer_norm_backward.default: _in_order(0, 1),
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten._softmax.default: _in_order(0),
    aten._log_softmax.default: _in_order(0),
    aten._log_softmax_backward_data.default: _in_order(0, 1),
    aten.cumsum.default: _in_order(0),
    aten.pow.Scalar: lambda device, args, out: [] if args[0] == 1 else [8],
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.batch_norm_stats.default: lambda device, args, out: _across_rows(args[0], 4) if by_rows(args[0]) else [],
    aten.batch_norm_elemt.default: _scaled,
    aten.batch_norm_backward_reduce.default: (
        lambda device, args, out: _across_rows(args[1], 2) if by_rows(*args[:2]) else []
    ),
    **dict.fromkeys((aten.max_pool2d_with_indices.default, aten.avg_pool2d.default), _in_their_order(0)),
    **dict.fromkeys(
        (aten.max_pool2d_with_indices_backward.default, aten.avg_pool2d_backward.default), _in_their_order(0, 1)
    ),
    **dict.fromkeys(
        (
            aten.upsample_nearest2d.default,
            aten.upsample_bilinear2d.default,
            aten.upsample_nearest2d_backward.default,
            aten.upsample_bilinear2d_backward.default,
        ),
        _in_their_order(0),
    ),
    aten.embedding.default: _embedding,
    aten.embedding_dense_backward.default: _embedding_backward,
    **dict.fromkeys(
        (aten._thnn_fused_lstm_cell_backward_impl.default, aten._thnn_fused_gru_cell_backward.default), _of_biases
    ),
    aten._cudnn_rnn.default: recurrent.forward_temporaries,
    aten._cudnn_rnn_backward.default: recurrent.backward_temporaries,
    aten._softmax_backward_data.default: _product,
    aten._safe_softmax.default: _safe_softmax,
    aten._scaled_dot_product_cudnn_attention_backward.default: attention.cudnn_backward_temporaries,
    aten._scaled_dot_product_flash_attention_backward.default: attention.flash_backward_temporaries,
    aten._scaled_dot_product_flash_attention.default: attention.flash_forward_temporaries,
    aten._scaled_dot_product_efficient_attention.default: attention.efficient_forward_temporaries,
    aten._scaled_dot_product_efficient_attention_backward.default: attention.efficient_backward_temporaries,
}
IDS = frozenset(map(id, OF))  # the hash of an overload is computed in Python

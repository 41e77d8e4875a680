"""Decompose the fused attention layers of evaluation mode into the kernels that CUDA launches.

`nn.TransformerEncoderLayer` and `nn.MultiheadAttention` call it where no gradient is wanted. What CUDA's code calls in
turn is called here, so that each part takes its memory and its time (transformer.cpp, attention.cpp and
cuda/attention.cu in ATen/native/transformers, masked_softmax_cuda in SoftMax.cu).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from ..scope.labels import device_of
from .attention import attend
from .attention_choice import choose
from .cuda_kernels import MIRRORS

Tensor = torch.Tensor
aten = torch.ops.aten
linear: Callable[..., Tensor] = MIRRORS["linear"]


def encoder_layer(
    src: Tensor, width: int, heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor,
    use_gelu: bool, norm_first: bool, *rest: Any,
) -> Tensor:  # fmt: skip
    """`torch._transformer_encoder_layer_fwd`; `rest` has the norms' arguments, the other products', and the mask."""
    *others, mask, mask_type = rest
    if not src.numel():
        return src.clone()

    def attended(x: Tensor) -> Tensor:
        given = qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type
        return multi_head_attention(x, x, x, width, heads, *given)[0]

    return through(src, attended, use_gelu, norm_first, *others)


def through(
    src: Tensor, attended: Callable[[Tensor], Tensor], use_gelu: bool, norm_first: bool, eps: float, scale_1: Tensor,
    shift_1: Tensor, scale_2: Tensor, shift_2: Tensor, weight_1: Tensor, bias_1: Tensor, weight_2: Tensor,
    bias_2: Tensor,
) -> Tensor:  # fmt: skip
    """Run a layer: attention, norms and products."""
    norm = partial(F.layer_norm, normalized_shape=src.shape[-1:], eps=eps)
    x = norm(src, weight=scale_1, bias=shift_1) if norm_first else src
    x = attended(x)
    x.add_(src)
    if not norm_first:
        x = norm(x, weight=scale_1, bias=shift_1)
    beside = x
    if norm_first:
        x = norm(x, weight=scale_2, bias=shift_2)
    rows = torch._addmm_activation(bias_1, x.view(-1, x.shape[-1]), weight_1.t(), use_gelu=use_gelu)
    rows = torch.addmm(bias_2, rows, weight_2.t())
    x = rows.view(x.shape)
    del rows
    x.add_(beside)
    return x if norm_first else norm(x, weight=scale_2, bias=shift_2)


def multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, width: int, heads: int, qkv_weight: Tensor, qkv_bias: Tensor,
    proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None, need_weights: bool = True,
    average: bool = True, mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """`torch._native_multi_head_attention`: by a fused kernel where there is neither a mask nor a wish for weights."""
    of_itself = query is key and key is value
    if of_itself and mask is None and not need_weights and _by_kernel(query, heads):
        qkv = linear(query, qkv_weight, qkv_bias)
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))
        out = attend(q, k, v)
        return linear(out.transpose(1, 2).reshape(out.shape[0], -1, width), proj_weight, proj_bias), None
    qkv = _projected(query, key, value, qkv_weight)
    if not qkv.numel():
        return torch.empty_like(query), None
    q, k, v = torch._transform_bias_rescale_qkv(qkv, qkv_bias, heads)
    del qkv
    weights = scores(q, k)
    weights = _softmax(weights, mask, mask_type)
    out = weighted(q, weights, v)
    if not need_weights:
        del weights
    out = _gathered(out, proj_weight, proj_bias)
    if not need_weights:
        return out, None
    return out, weights.sum(1).div_(heads) if average else weights


def _by_kernel(query: Tensor, heads: int) -> bool:
    device = device_of(query)
    assert device is not None
    q = query.view(query.shape[0], -1, heads, query.shape[-1] // heads).transpose(1, 2)
    return choose(device.spec.capability, q, q, q, None, 0.0, False, False) != "math"


def _projected(query: Tensor, key: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    if query is key and key is value:
        return torch.matmul(query, weight.t())
    width = query.shape[-1]
    given = [(query, width), (key, 2 * width)] if key is value else [(query, width), (key, width), (value, width)]
    parts = weight.split([rows for _, rows in given])
    return torch.cat([torch.matmul(x, part.t()) for (x, _), part in zip(given, parts, strict=True)], 2)


def scores(q: Tensor, k: Tensor) -> Tensor:
    """Return the products of each query and key."""
    return torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2)).unflatten(0, q.shape[:2])


def _softmax(weights: Tensor, mask: Tensor | None, mask_type: int | None) -> Tensor:
    if mask is None:
        return aten._softmax.out(weights, weights.dim() - 1, False, out=weights)
    return torch._masked_softmax(weights, mask.to(torch.bool), weights.dim() - 1, mask_type)


def masked_softmax(weights: Tensor, mask: Tensor, dim: int | None = None, mask_type: int | None = None) -> Any:
    """`torch._masked_softmax`: long rows are masked first; NotImplemented where one kernel does it."""
    last = weights.dim() - 1
    length = weights.shape[last if dim is None else dim]
    of_keys = mask_type == 1 and mask.dim() == 2 and weights.dim() == 4
    if mask_type == 0 and mask.dim() == 2:
        mask = mask.expand(weights.shape)
    short = length <= 1024 and length * weights.element_size() <= 4096
    if short and mask.is_contiguous() and dim in (None, last):
        return NotImplemented
    unused = torch.empty_like(weights)
    if of_keys:
        mask = mask.view(mask.shape[0], 1, 1, -1).expand(weights.shape)
    out = torch.softmax(weights.masked_fill(mask, -math.inf), last if dim is None else dim)
    del unused  # the fused kernel's output, allocated until then
    return out


def weighted(q: Tensor, weights: Tensor, v: Tensor) -> Tensor:
    """Return the weighted sums of values, written over the queries."""
    aten.bmm.out(weights.flatten(0, 1), v.flatten(0, 1), out=q.flatten(0, 1))
    return q


def _gathered(out: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    rows = out.transpose(1, 2).contiguous().flatten(2)
    return linear(rows.flatten(0, 1), weight, bias).unflatten(0, rows.shape[:2])


PARTS: dict[Any, Callable[..., Any]] = {
    aten._transformer_encoder_layer_fwd.default: encoder_layer,
    aten._native_multi_head_attention.default: multi_head_attention,
    aten._masked_softmax.default: masked_softmax,
}
"""Operations that are decomposed; a function that returns NotImplemented leaves it to the operation itself."""

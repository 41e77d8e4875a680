"""Select the kernel of scaled_dot_product_attention: cuDNN, flash, memory-efficient or math.

Follows PyTorch 2.15, ATen/native/transformers, sdp_utils.cpp and sdp_utils_cpp.h, check by check.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

Tensor = torch.Tensor
_HALVES = (torch.float16, torch.bfloat16)


def choose(
    capability: tuple[int, int], q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, causal: bool, gqa: bool
) -> str:
    """ "cudnn", "flash", "efficient" or "math"; RuntimeError where all that could are switched off."""
    backends = torch.backends.cuda
    ready = _ready(q, k, v, mask)
    grad = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    cudnn = (
        ready
        and backends.cudnn_sdp_enabled()
        and _heads_fit(q, k, v, gqa, alike=False)
        and _cudnn_takes(capability, q, k, v, mask, p, grad)
    )
    if cudnn and capability[0] in (9, 10):
        return "cudnn"  # elsewhere it comes last
    if ready and _heads_fit(q, k, v, gqa):
        if backends.flash_sdp_enabled() and mask is None and _flash_takes(capability, q, k, v, p, causal, grad):
            return "flash"
        if backends.mem_efficient_sdp_enabled() and _efficient_takes(capability, q, k, v):
            return "efficient"
    if not backends.math_sdp_enabled():
        if cudnn:
            return "cudnn"
        raise RuntimeError("No available kernel. Aborting execution.")
    return "math"


def choose_of_rows(capability: tuple[int, int], rows: Tensor, heads: int, lengths: Sequence[int]) -> str:
    """Select the kernel for self-attention of a nested tensor, whose sequences are concatenated in `rows`."""
    backends = torch.backends.cuda
    q = rows.unflatten(1, (heads, -1)).transpose(0, 1)[None]
    if min(lengths):
        if (
            backends.flash_sdp_enabled()
            and q.shape[-1] % 8 == 0
            and _flash_takes(capability, q, q, q, 0.0, False, False)
        ):
            return "flash"
        if backends.mem_efficient_sdp_enabled() and _efficient_takes(capability, q, q, q):
            return "efficient"
    if not backends.math_sdp_enabled():
        raise RuntimeError("No available kernel. Aborting execution.")
    return "math"


def _ready(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> bool:
    """Check the requirements of every fused kernel. A bias laid out by heads, as a permuted learned one, is refused."""
    fits = all(t.dim() == 4 and t.shape[-2] for t in (q, k, v)) and q.dtype == k.dtype == v.dtype
    return fits and q.shape[0] == k.shape[0] == v.shape[0] and (mask is None or mask.stride(-1) == 1)


def _heads_fit(q: Tensor, k: Tensor, v: Tensor, gqa: bool, *, alike: bool = True) -> bool:
    """Return True if the numbers of heads fit: equal, or keys and values shared by all or by groups (`enable_gqa`)."""
    heads, keys, values = (t.shape[1] for t in (q, k, v))
    if gqa:
        return (keys == values or not alike) and all(n > 0 and heads % n == 0 for n in (keys, values))
    return heads == keys == values or (keys == values == 1 and heads > 0)


def _in_rows(*tensors: Tensor) -> bool:
    return all(t.stride(-1) == 1 for t in tensors)


def _cudnn_takes(
    capability: tuple[int, int], q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, grad: bool
) -> bool:
    width, of_value = q.shape[-1], v.shape[-1]
    newer = capability[0] in (9, 10)
    most = 256 if newer else 128
    if capability < (8, 0) or q.dtype not in _HALVES or max(width, of_value) > most or width % 8 or of_value % 8:
        return False
    wide = max(width, of_value) > 128
    if newer and grad and wide and (width, of_value) not in ((192, 128), (256, 256)):
        return False
    if torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled():
        return False
    if p * 16 != int(p * 16) or k.shape[2] == 1 or (p and q.shape[2] == 1) or max(q.shape[:2]) > 65535:
        return False
    return (_in_rows(q, k, v) or width == 1) and (mask is None or _spreads(mask, q, k))


def _spreads(mask: Tensor, q: Tensor, k: Tensor) -> bool:
    """Two or four dimensions, each as long as the scores' or one; it may not want a gradient."""
    if mask.requires_grad or mask.dim() not in (2, 4):
        return False
    scores = (*q.shape[:3], k.shape[2])
    return all(size in (1, whole) for size, whole in zip(mask.shape, scores[-mask.dim() :], strict=True))


def _flash_takes(
    capability: tuple[int, int], q: Tensor, k: Tensor, v: Tensor, p: float, causal: bool, grad: bool
) -> bool:
    width = q.shape[-1]
    if capability < (8, 0) or q.dtype not in _HALVES or not width == k.shape[-1] == v.shape[-1] <= 256:
        return False
    if (
        grad
        and ((8, 6) <= capability <= (8, 9) or capability >= (12, 0))
        and (192 < width <= 224 or (p and width > 192))
    ):
        return False
    return (not causal or q.shape[-2] == k.shape[-2]) and (_in_rows(q, k, v) or width == 1)


def _efficient_takes(capability: tuple[int, int], q: Tensor, k: Tensor, v: Tensor) -> bool:
    half = q.dtype in _HALVES
    if q.dtype not in ((torch.float32, torch.float16) if capability < (8, 0) else (torch.float32, *_HALVES)):
        return False
    align = 8 if half else 4 if capability >= (8, 0) else 1
    if capability >= (8, 0) and any(t.numel() and t.storage_offset() * t.element_size() % 16 for t in (q, k, v)):
        return False
    widths = q.shape[-1], v.shape[-1]
    return q.shape[-1] == k.shape[-1] and all(w and w % align == 0 for w in widths) and _in_rows(q, k, v)

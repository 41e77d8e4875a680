"""scaled_dot_product_attention by CUDA's kernels: their saved tensors, temporaries and values.

Above autograd, it calls the kernel's own operation, so that PyTorch's autograd saves the same tensors as on a GPU;
below, it computes the operation in float32.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from .. import release
from ..scope import in_force
from ..scope.in_force import backing
from ..scope.labels import STAYS, device_of
from . import autocast
from .attention_choice import choose
from .results import map_tensors, place

if TYPE_CHECKING:
    from ..gpu import VirtualGPU
    from ..scope.device import Device

Tensor = torch.Tensor
aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`."""
    device = device_of(query) if in_force.current is not None and in_force.current.mirror else None
    if device is None:
        with autocast.below(query):
            return aten.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
    if autocast.casting():
        query, key, value, attn_mask = autocast.lower((query, key, value, attn_mask))
    if query.dim() == key.dim() == value.dim() == 3:
        # a batch of one
        mask = attn_mask if attn_mask is None or attn_mask.dim() < 3 else attn_mask.unsqueeze(0)
        q, k, v = (t.unsqueeze(0) for t in (query, key, value))
        return attend(q, k, v, mask, dropout_p, is_causal, scale=scale).squeeze(0)
    kind = choose(device.spec.capability, query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    if kind == "math":
        with torch.autocast("cuda", enabled=False):
            if is_causal and attn_mask is None:
                square = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
                return _masked(query, key, value, square.tril(), dropout_p, scale, enable_gqa)
            if attn_mask is not None and not is_causal:
                return _masked(query, key, value, attn_mask, dropout_p, scale, enable_gqa)
            return aten._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )[0]
    with autocast.below(query):
        return _FUSED[kind](query, key, value, attn_mask, dropout_p, is_causal, scale)


def _flash(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, causal: bool, scale: float | None) -> Tensor:
    width = q.shape[-1]
    scale = width**-0.5 if scale is None else scale
    q, k, v = (_padded(t, 8) for t in (q, k, v))
    return aten._scaled_dot_product_flash_attention(q, k, v, p, causal, False, scale=scale)[0][..., :width]


def _efficient(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, causal: bool, scale: float | None
) -> Tensor:
    if mask is not None:
        mask = _as_bias(mask, q)
        if mask.shape[-1] % 8:
            mask = _padded(mask, 8)[..., : mask.shape[-1]]
        mask = mask.expand(*q.shape[:-1], k.shape[-2])
    grad = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v, *([] if mask is None else [mask])))
    return aten._scaled_dot_product_efficient_attention(q, k, v, mask, grad, p, causal, scale=scale)[0]


def _cudnn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, causal: bool, scale: float | None) -> Tensor:
    mask = None if mask is None else _as_bias(mask, q)
    grad = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    return aten._scaled_dot_product_cudnn_attention(q, k, v, mask, grad, p, causal, False, scale=scale)[0]


_FUSED = {"flash": _flash, "efficient": _efficient, "cudnn": _cudnn}


def _masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, p: float, scale: float | None, gqa: bool) -> Tensor:
    """Operation by operation (_scaled_dot_product_attention_math in attention.cpp), the mask added in place.

    PyTorch itself adds it so, but not while a dispatch mode is active.
    """
    dtype = q.dtype
    if dtype in _HALVES and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed():
        q, k, v = (t.float() for t in (q, k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    root = math.sqrt(abs(scale))
    scaled = q * math.copysign(root, scale)
    keys, values = (_shared(q, k), _shared(q, v)) if gqa else (k, v)
    mask = _as_bias(mask, q)
    weights = torch.matmul(scaled, keys.transpose(-2, -1) * root).add_(mask)
    weights = aten._safe_softmax(weights, -1)
    if p:
        weights = aten.dropout(weights, p, True)
    both = weights.to(dtype), torch.matmul(weights, values).to(dtype)  # PyTorch gives back both
    return both[1]


def _padded(tensor: Tensor, multiple: int) -> Tensor:
    missing = -tensor.shape[-1] % multiple
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor


def _as_bias(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        return mask
    zero, low = (torch.scalar_tensor(x, dtype=like.dtype, device=like.device) for x in (0.0, -math.inf))
    return torch.where(mask, zero, low)


# -- values ----------------------------------------------------------------------------------------------------------


def _scores(q: Tensor, k: Tensor, bias: Tensor | None, causal: bool, scale: float) -> Tensor:
    scores = (q * scale) @ k.transpose(-1, -2)
    if bias is not None:
        scores.add_(bias)
    if causal:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores.masked_fill_(~keep, -math.inf)
    return scores


def _shared(q: Tensor, t: Tensor) -> Tensor:
    return t if t.shape[1] == q.shape[1] else t.repeat_interleave(q.shape[1] // t.shape[1], 1)


def _mask_of(shape: torch.Size, p: float, seed: int) -> Tensor:
    generator = torch.Generator("cpu")
    generator.manual_seed(seed)
    return torch.empty(shape).bernoulli_(1 - p, generator=generator).div_(1 - p)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, p: float, causal: bool, scale: float, seed: int
) -> tuple[Tensor, Tensor]:
    q, k, v = q.float(), _shared(q, k.float()), _shared(q, v.float())
    bias = None if bias is None else bias.float()
    scores = _scores(q, k, bias, causal, scale)
    total = scores.logsumexp(-1)
    weights = scores.sub_(total.unsqueeze(-1)).exp_().nan_to_num_(0.0)
    if p:
        weights.mul_(_mask_of(weights.shape, p, seed))
    return weights @ v, total


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, p: float, causal: bool,
    scale: float, seed: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of query, key, value and bias, in float32."""
    heads, shared = q.shape[1], k.shape[1]
    q, k, v, grad = q.float(), _shared(q, k.float()), _shared(q, v.float()), grad.float()
    scores = _scores(q, k, None if bias is None else bias.float(), causal, scale)
    weights = scores.softmax(-1).nan_to_num_(0.0)
    kept = _mask_of(weights.shape, p, seed) if p else None
    of_value = (weights if kept is None else weights * kept).transpose(-1, -2) @ grad
    of_weights = grad @ v.transpose(-1, -2)
    if kept is not None:
        of_weights.mul_(kept)
    of_scores = of_weights.sub_((grad * out.float()).sum(-1, keepdim=True)).mul_(weights)
    of_query = of_scores @ k * scale
    of_key = of_scores.transpose(-1, -2) @ q * scale
    if heads != shared:
        of_key, of_value = (t.unflatten(1, (shared, heads // shared)).sum(2) for t in (of_key, of_value))
    return of_query, of_key, of_value, of_scores


def _scale(q: Tensor, given: float | None) -> float:
    return q.shape[-1] ** -0.5 if given is None else given


def _seed(device: Device, p: float) -> int:
    if not p:
        return 0
    return int(torch.randint(0, 2**62, (), generator=device.generator).item())


def _laid_out(values: Tensor, like: Tensor) -> Tensor:
    """`values` with the dtype and strides of `like`, which is on `meta`."""
    out = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
    return out.copy_(values)


def _shapes(func: Any, args: Any, kwargs: Any) -> Any:
    return func._op(*map_tensors(lambda t: t.to("meta"), args), **kwargs)


def flash_forward(gpu: VirtualGPU, device: Device, func: Any, args: Any, kwargs: Any) -> Any:
    older = gpu.release < release.SEEDS_ON_GPU
    if not gpu.compute:
        with backing:
            return tuple(_older(t) if older else t for t in func._op(*args, **kwargs))
    q, k, v, p, causal = [*args, 0.0, False][:5] if len(args) < 5 else args[:5]
    with backing:
        shapes = _shapes(func, args, kwargs)
        seed = _seed(device, p)
        out, total = _forward(q, k, v, None, p, causal, _scale(q, kwargs.get("scale")), seed)
        rest = [t if isinstance(t, Tensor) else None for t in shapes]
        made = [_laid_out(out, shapes[0]), _laid_out(total, shapes[1])]
        for shape, plain in zip(rest[2:], shapes[2:], strict=True):
            if shape is None:
                made.append(plain)
            elif shape.dtype == torch.uint64 and older:
                made.append(torch.tensor(seed))
            elif shape.dtype == torch.uint64:
                made.append(torch.full(shape.shape, seed, dtype=torch.int64).view(torch.uint64))
            else:
                made.append(torch.empty(shape.shape, dtype=shape.dtype))
        return tuple(made)


def _older(result: Any) -> Any:
    """Before 2.14 the state of the random numbers was a seed and an offset, each 8 bytes."""
    seed = isinstance(result, Tensor) and result.dtype is torch.uint64
    return torch.empty((), dtype=torch.int64, device="meta") if seed else result


def flash_backward(gpu: VirtualGPU, device: Device, func: Any, args: Any, kwargs: Any) -> Any:
    if not gpu.compute:
        with backing:
            return func._op(*args, **kwargs)
    grad, q, k, v, out, _, _, _, _, _, p, causal, seed = args[:13]
    with backing:
        shapes = _shapes(func, args, kwargs)
        number = int(seed.view(torch.int64).flatten()[0]) if p else 0
        grads = _backward(grad, q, k, v, None, out, p, causal, _scale(q, kwargs.get("scale")), number)
        return tuple(_laid_out(g, s) for g, s in zip(grads, shapes, strict=False))


def efficient_forward(gpu: VirtualGPU, device: Device, func: Any, args: Any, kwargs: Any) -> Any:
    q, k, v, bias, _, p, causal = (*args, *(0.0, False)[len(args) - 5 :])[:7]
    with backing:
        shapes = func._op(*args, **kwargs) if not gpu.compute else _shapes(func, args, kwargs)
        # The seed is known to the host where it is needed; without dropout two empty scalars stand for it.
        on_host = bool(p) or gpu.release < release.SEEDS_ON_GPU
        if not gpu.compute:
            seeds = [torch.empty((), dtype=torch.int64, device="meta") for _ in range(2)]
            seeds = _seeds(0, on_host) if on_host else seeds
            place(device, seeds)  # before the results
            return shapes[0], shapes[1], *seeds
        seed = _seed(device, p)
        seeds = _seeds(seed, on_host)
        place(device, seeds)
        out, total = _forward(q, k, v, bias, p, causal, _scale(q, kwargs.get("scale")), seed)
        made = torch.zeros(shapes[1].shape, dtype=shapes[1].dtype)
        if made.numel():
            made[..., : total.shape[-1]].copy_(total)
        return _laid_out(out, shapes[0]), made, *seeds


def _seeds(seed: int, on_host: bool) -> list[Tensor]:
    """The seed and its offset: on the host where there is dropout, else two empty scalars on the GPU; before 2.14 on
    the host too."""
    made = [torch.tensor(seed), torch.tensor(0)]
    if on_host:
        for tensor in made:
            setattr(tensor.untyped_storage(), STAYS, True)
    return made


def efficient_backward(gpu: VirtualGPU, device: Device, func: Any, args: Any, kwargs: Any) -> Any:
    if not gpu.compute:
        with backing:
            return func._op(*args, **kwargs)
    grad, q, k, v, bias, out, _, seed, _, p, wanted = args[:11]
    causal = args[11] if len(args) > 11 else kwargs.get("is_causal", False)
    with backing:
        shapes = _shapes(func, args, {n: x for n, x in kwargs.items() if n != "is_causal"} | {})
        grads = _backward(grad, q, k, v, bias, out, p, causal, _scale(q, kwargs.get("scale")), int(seed) if p else 0)
        return tuple(
            _laid_out(g, s) if want and isinstance(s, Tensor) else None
            for g, s, want in zip(grads, shapes, wanted, strict=True)
        )


def cudnn_forward(gpu: VirtualGPU, device: Device, func: Any, args: Any, kwargs: Any) -> Any:
    q, k, v, bias, grad, p, causal = (*args, *(0.0, False)[len(args) - 5 :])[:7]
    with backing:
        shapes = _shapes(func, args, kwargs)
        made = list(shapes)
        rows = torch.empty(*q.shape[:-1], 1 if grad else 0, dtype=torch.float32, device=device.backing)
        if gpu.compute:
            seed = _seed(device, p)
            out, total = _forward(q, k, v, bias, p, causal, _scale(q, kwargs.get("scale")), seed)
            made[0] = _laid_out(out, shapes[0])
            if grad:
                rows.copy_(total.unsqueeze(-1))
            made[6], made[7] = torch.tensor(seed), torch.tensor(0)
        else:
            made[6], made[7] = (torch.empty((), dtype=torch.int64, device="meta") for _ in range(2))
        made[1] = rows
        made[8] = None
        return tuple(made)


def cudnn_backward(gpu: VirtualGPU, device: Device, func: Any, args: Any, kwargs: Any) -> Any:
    grad, q, k, v, out, _, seed, _, bias, _, _, _, _, p, causal = args[:15]
    with backing:
        if not gpu.compute:
            return tuple(torch.empty_like(t) for t in (q, k, v))
        number = int(seed) if p else 0
        grads = _backward(grad, q, k, v, bias, out, p, causal, _scale(q, kwargs.get("scale")), number)
        return tuple(_laid_out(g, t) for g, t in zip(grads, (q, k, v), strict=False))


def cudnn_backward_temporaries(device: Device, args: Any, out: Any) -> list[int]:
    """The query's gradient in float32, and the row sums."""
    return [args[1].numel() * 4 + args[5].nbytes]


def flash_forward_temporaries(device: Device, args: Any, out: Any) -> list[int]:
    """With dropout: the seed and its offset. Without it, what parts of the keys give, where these are shared out."""
    if len(args) > 3 and args[3]:
        return [16]
    q, k = args[:2]
    batch, heads, length, width = q.shape
    parts = _parts_of_keys(device.spec.sms, batch * heads, length, k.shape[2], width)
    rows = 4 * parts * batch * heads * length
    return [rows, rows * _rounded(width, 32 if width <= 128 else 64)] if parts > 1 else []


def _parts_of_keys(sms: int, heads: int, queries: int, keys: int, width: int) -> int:
    """Into how many parts keys are shared out, so that few heads fill a GPU (num_splits_heuristic in flash_api.cpp)."""
    at_once, blocks = 2 * sms, heads * -(-queries // 64)
    of_keys = -(-keys // (256 if width <= 64 else 128 if width <= 128 else 64))
    if blocks >= 0.8 * at_once:
        return 1
    each = {parts: -(-of_keys // parts) for parts in range(1, min(128, at_once, of_keys) + 1)}
    waves = {parts: blocks * parts / at_once for parts, n in each.items() if parts == 1 or n != each[parts - 1]}
    filled = {parts: turns / math.ceil(turns) for parts, turns in waves.items()}
    return next((parts for parts, share in filled.items() if share >= 0.85 * max(filled.values())), 1)


def flash_backward_temporaries(device: Device, args: Any, out: Any) -> list[int]:
    """Gradient and output made contiguous, the row sums, float32 sums of the query's gradient."""
    grad, q, k, _, result = args[:5]
    batch, heads, length, width = q.shape
    length, width = _rounded(length, 128), _rounded(width, 32 if width <= 128 else 64)
    laid = [t.nbytes for t in (grad, result) if not t.transpose(1, 2).is_contiguous()]
    return [*laid, batch * heads * length * 4, batch * heads * length * width * 4, *_of_every_head(q, k, k)]


def efficient_forward_temporaries(device: Device, args: Any, out: Any) -> list[int]:
    """Wide heads in 16 bits: the output in float32."""
    result = out[0]
    return [result.numel() * 4] if result.dtype in _HALVES and result.shape[-1] > 128 else []


def efficient_backward_temporaries(device: Device, args: Any, out: Any) -> list[int]:
    """The gradient made contiguous, the row sums of gradient times output, float32 sums of the query's gradient.

    These are kept in tiles with a lock each (kernel_backward.h). Wide heads in 16 bits have such sums of key and value
    as well; their size is what was recorded.
    """
    grad, q, k, v = args[:4]
    batch, heads, length, width = q.shape
    float32 = q.dtype is torch.float32
    tall = 64 if width <= 64 or (float32 and device.spec.capability < (8, 0)) else 128
    sums = (_rounded(length, tall) // tall) * (_rounded(width, 64) // 64) * (tall * 64 * 4 + 16)
    if not float32 and width > 128:
        sums += _rounded(k.shape[2], 64) * _rounded(width, 128) * 6
    rows = batch * heads * length * 4
    turned = [rows, -rows] if length > 1 and heads > 1 else []
    products = [grad.nbytes, rows, *turned, -grad.nbytes] if float32 else [rows]
    laid = [] if grad.transpose(1, 2).is_contiguous() else [grad.nbytes]
    return [*laid, *_of_every_head(q, k, v), *products, batch * heads * sums]


def _rounded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _of_every_head(q: Tensor, k: Tensor, v: Tensor) -> list[int]:
    """Return the gradients of shared keys and values per query head, before they are summed."""
    heads, shared = q.shape[1], k.shape[1]
    return [t.nbytes // shared * heads for t in (k, v)] if shared != heads else []

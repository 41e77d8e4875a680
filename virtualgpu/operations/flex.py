"""`flex_attention` as a fused kernel: saves output and row sums, never the matrix of scores.

The values are those of PyTorch's own definition (`math_attention`), computed on the host's memory behind the GPU. The
time is a flash kernel's, for the blocks that the mask leaves.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from ..clock import work
from ..scope import in_force
from ..scope.in_force import backing
from ..scope.labels import NAME, Label, device_of, storage_of
from . import arithmetic, autocast, cost, fused, known_values
from .traffic import reading, writing

if TYPE_CHECKING:
    from ..scope.device import Device

Tensor = torch.Tensor
_HUGE = 1 << 20  # a block of this length means that there is no mask


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
    options: dict[str, Any],
    *buffers: Any,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Replace PyTorch's higher-order operation: return the output, and per row the sum and maximum of the scores.

    Both are base-2 logarithms, as the kernel's.
    """
    gpu = in_force.current
    device = device_of(query) if gpu is not None and gpu.mirror else None
    if device is None:
        with autocast.below(query):
            found: tuple[Tensor, Tensor, Tensor] = _defined(query, key, value, score_mod, block_mask[-1], scale)
            return found
    if autocast.casting():
        query, key, value = autocast.lower((query, key, value))
    learned = list(_learned(score_mod, set()))
    share = _share(block_mask)
    out, lse, greatest = _Flex.apply(
        query, key, value, score_mod, block_mask[-1], scale, share, bool(options.get("OUTPUT_MAX")), *learned
    )
    return out, lse, greatest


class _Flex(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, score_mod: Any, mask_mod: Any, scale: float, share: float,
        wants_greatest: bool, *learned: Tensor,
    ) -> Any:  # fmt: skip
        device = device_of(query)
        assert device is not None
        device.raise_fault()
        device.timer.clock.enter()
        given = (query, key, value, score_mod, mask_mod, scale)
        made: Any = fused.placed(device, _values, given, *_forward(device, *given))
        lse, greatest, out = made
        _charge(device, "flex_attention", work.FLASH, 1.0, share, query, key, value, out, lse)
        device.timer.clock.leave()
        ctx.given = score_mod, mask_mod, scale, share
        ctx.save_for_backward(query, key, value, out, lse, *learned)
        ctx.set_materialize_grads(False)
        if not wants_greatest:
            return out, lse, None
        ctx.mark_non_differentiable(greatest)
        return out, lse, greatest

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_out: Tensor | None, of_lse: Tensor | None, _: Any) -> Any:
        query, key, value, out, lse, *learned = ctx.saved_tensors
        score_mod, mask_mod, scale, share = ctx.given
        if of_out is None:
            of_out = torch.zeros_like(out)
        device = device_of(query)
        assert device is not None
        device.timer.clock.enter()
        rows = device.allocate(lse.nbytes)  # of gradient times output
        cost.fused(device, "flex_attention_rows", of_out, out, lse)
        given = (query, key, value, score_mod, mask_mod, scale, of_out, of_lse, learned)
        made = fused.placed(device, _gradients, given, *_backward(device, *given))
        del rows
        of_query, of_value, of_key, *rest = made
        _charge(device, "flex_attention_backward", work.FLASH_BACKWARD, 2.5, share, query, key, value, of_out, made)
        device.timer.clock.leave()
        return of_query, of_key, of_value, *[None] * 5, *rest


def _forward(device: Device, q: Tensor, k: Tensor, v: Tensor, *how: Any) -> list[Tensor]:
    """Return row sums, maximum scores and output, in the order in which they are allocated."""
    if device.compute:
        return _values(q, k, v, *how)
    with backing:
        rows = [torch.empty(q.shape[:-1], dtype=torch.float32, device="meta") for _ in range(2)]
        return [*rows, _like(q, (*q.shape[:-1], v.shape[-1]))]


def _backward(device: Device, q: Tensor, k: Tensor, v: Tensor, *how: Any) -> list[Tensor]:
    """Return the gradients of query, value, key and of learned parameters of the score function."""
    if device.compute:
        return _gradients(q, k, v, *how)
    with backing:
        return [*(_like(t, t.shape) for t in (q, v, k)), *(torch.empty_like(t) for t in how[-1])]


def _defined(q: Tensor, k: Tensor, v: Tensor, score_mod: Any, mask_mod: Any, scale: float) -> Any:
    """Compute PyTorch's definition of it."""
    from torch._higher_order_ops.flex_attention import math_attention

    return math_attention(q, k, v, score_mod, (mask_mod,), scale, {})


def _values(q: Tensor, k: Tensor, v: Tensor, score_mod: Any, mask_mod: Any, scale: float) -> list[Tensor]:
    with backing, torch.no_grad(), autocast.below():
        out, lse, greatest = _defined(q, k, v, score_mod, mask_mod, scale)
        return [lse.float(), greatest.float(), _like(q, out.shape).copy_(out)]


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, score_mod: Any, mask_mod: Any, scale: float, of_out: Tensor, of_lse: Tensor | None,
    learned: list[Tensor],
) -> list[Tensor]:  # fmt: skip
    with backing, torch.enable_grad(), autocast.below():
        q_, k_, v_ = given = [t.detach().requires_grad_() for t in (q, k, v)]
        out, lse, _ = _defined(q_, k_, v_, score_mod, mask_mod, scale)
        results, grads = [out], [of_out]
        if of_lse is not None:
            results.append(lse)
            grads.append(of_lse.to(lse.dtype))
        of_q, of_k, of_v, *rest = torch.autograd.grad(results, [*given, *learned], grads, allow_unused=True)
        with torch.no_grad():
            found = [_like(t, t.shape).copy_(g) for t, g in ((q, of_q), (v, of_v), (k, of_k))]
            return [*found, *(torch.zeros_like(t) if g is None else g for t, g in zip(learned, rest, strict=True))]


def _like(tensor: Tensor, shape: Any) -> Tensor:
    """Return an empty tensor with the dimension order of `tensor` in memory, the last one innermost."""
    rank = len(shape)
    order = [rank - 1, *sorted(range(rank - 1), key=lambda d: (tensor.stride(d), -d))]
    strides, nearest = [0] * rank, 1
    for d in order:
        strides[d] = nearest
        nearest *= shape[d]
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)


# -- time ------------------------------------------------------------------------------------------------------------


def _charge(
    device: Device, name: str, reached: float, times: float, share: float, q: Tensor, k: Tensor, v: Tensor, *made: Any
) -> None:
    """Charge two products forward or five backward, for the blocks that are not empty."""
    flops = 2.0 * q.shape[:-1].numel() * k.shape[-2] * (q.shape[-1] + v.shape[-1]) * times * share
    dtype = arithmetic.precision(q.dtype)
    moved = reading(device, q, k, v) + writing(device, made)
    found = work.attention(device.timer.clock.rates, flops, dtype, reached, moved)
    cost.kernel(device, name, arithmetic.costs(device, found, dtype))


def _share(block_mask: tuple[Any, ...]) -> float:
    """Return the share of blocks that are computed; 1 where the mask is unknown."""
    *_, of_query, of_key, mask_mod = block_mask
    if min(of_query, of_key) >= _HUGE:
        return 1.0
    long_q, long_k, partial, _, full = block_mask[:5]
    across, down = -(-long_k // of_key), -(-long_q // of_query)
    counts = [_known(t) for t in (partial, full) if t is not None]
    if all(count is not None for count in counts):
        blocks = partial.shape[:-1].numel() * across * down
        return min(1.0, sum(float(count.sum()) for count in counts if count is not None) / blocks)
    return _at_corners(mask_mod, partial.shape[:-1], (long_q, of_query), (long_k, of_key))


def _known(tensor: Tensor) -> Tensor | None:
    device = device_of(tensor)
    if device is not None and not device.compute:
        return known_values.value(tensor)
    with backing:
        return tensor.detach().clone()


def _at_corners(mask_mod: Any, outer: torch.Size, queries: tuple[int, int], keys: tuple[int, int]) -> float:
    """Without values, count the blocks in which the mask is true at a corner."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    def corners(length: int, block: int) -> Tensor:
        firsts = range(0, length, block)
        return torch.tensor([x for first in firsts for x in (first, min(first + block, length) - 1)], device="cpu")

    with backing, torch.no_grad(), autocast.below(), TransformGetItemToIndex():
        places = [torch.arange(n, device="cpu") for n in outer]
        mask = _vmap_for_bhqkv(mask_mod, prefix=())(*places, corners(*queries), corners(*keys))
        if mask.device.type != "cpu":  # it depends on values
            return 1.0
        rows, columns = mask.shape[-2:]
        blocks = mask.reshape(*mask.shape[:-2], rows // 2, 2, columns // 2, 2)
        return float(blocks.any(-1).any(-2).float().mean())


# -- learned parameters of the score function ------------------------------------------------------------------------


def _learned(item: Any, seen: set[int]) -> Iterator[Tensor]:
    """Return the tensors that require a gradient among a function's references."""
    if id(item) in seen:
        return
    seen.add(id(item))
    if isinstance(item, Tensor):
        if item.requires_grad:
            yield item
        return
    for part in _parts(item):
        yield from _learned(part, seen)


def _parts(item: Any) -> Iterator[Any]:
    if isinstance(item, torch.nn.Module):
        yield from item.parameters()
    elif isinstance(item, functools.partial):
        yield from (item.func, *item.args, *item.keywords.values())
    elif isinstance(item, types.MethodType):
        yield from (item.__func__, item.__self__)
    elif isinstance(item, (list, tuple)):
        yield from item
    elif isinstance(item, dict):
        yield from item.values()
    elif isinstance(item, types.FunctionType) and not (item.__module__ or "").startswith("torch."):
        for cell in item.__closure__ or ():
            if cell != types.CellType():
                yield cell.cell_contents
        kinds = (Tensor, torch.nn.Module, types.FunctionType)
        named = (item.__globals__.get(name) for name in item.__code__.co_names)
        yield from itertools.chain((x for x in named if isinstance(x, kinds)), item.__defaults__ or ())


def no_mask(query: Tensor, own: Callable[[], Any]) -> Any:
    """Return a full mask: a constant of the compiled program, without memory and time."""
    device = device_of(query)
    if device is None:
        return own()
    with backing:
        made = own()
    for tensor in vars(made).values():
        if isinstance(tensor, Tensor):
            setattr(storage_of(tensor), NAME, Label(device, None, tensor.nbytes))
    return made

"""Nested tensors in `nn.TransformerEncoder`: the sequences of a batch packed without padding.

In evaluation it takes the padding away where its mask says that it stands at each sequence's end. The tensor is
PyTorch's own, over memory that is labelled; on shapes alone over memory of the host that is never touched. What its
layers do is done to all rows at once, as PyTorch does it (NestedTensorMath.cpp, NestedTensorTransformerFunctions.cpp
in ATen/native/nested and their CUDA parts, sdp_utils.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from ..clock import work
from ..scope import in_force
from ..scope.in_force import backing
from ..scope.labels import NAME, device_of, storage_of
from ..scope.refusals import NotMirrored, warn_once
from . import arithmetic, attention, copies, cost, known_values, layers
from .attention_choice import choose_of_rows
from .traffic import reading, writing

if TYPE_CHECKING:
    from ..gpu import VirtualGPU
    from ..scope.device import Device

Tensor = torch.Tensor
aten = torch.ops.aten

seen = False  # True once one has been made on a virtual GPU: no search before


def any_nested(items: Any) -> bool:
    """Return True if lists and tuples contain a nested tensor of a virtual GPU."""
    for item in items:
        if isinstance(item, Tensor):
            if item.is_nested and device_of(item) is not None:
                return True
        elif isinstance(item, (list, tuple)) and any_nested(item):
            return True
    return False


def _gpu() -> VirtualGPU:
    gpu = in_force.current
    assert gpu is not None
    return gpu


def _device(tensor: Tensor) -> Device:
    device = device_of(tensor)
    assert device is not None
    return device


# -- the tensor ------------------------------------------------------------------------------------------------------


def wrapped(rows: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return a nested tensor over the memory of `rows`, in which sequences of `lengths` are concatenated."""
    global seen
    seen = True
    width = rows.shape[1]
    with backing:
        starts = torch.tensor([0, *lengths]).cumsum(0)[:-1]
        sizes = torch.tensor([[length, width] for length in lengths])
        values = rows.view(-1)
        if rows.is_meta:
            storage = torch.UntypedStorage(values.nbytes, device="cpu")
            setattr(storage, NAME, getattr(storage_of(rows), NAME))
            values = torch.empty(0, dtype=rows.dtype).set_(storage, 0, values.shape, values.stride())
        strides = torch.tensor([width, 1]).expand_as(sizes).contiguous()
        return torch._nested_view_from_buffer(values, sizes, strides, starts * width)


def unwrapped(nested: Tensor) -> tuple[Tensor, list[int]]:
    """Return all rows of a nested tensor, in its memory, and the lengths of its sequences."""
    with backing:
        sizes = nested._nested_tensor_size()
        if nested.dim() != 3 or not nested.is_contiguous() or len(set(sizes[:, 1].tolist())) != 1:
            raise NotMirrored(
                "nested tensors are mirrored only as sequences of rows of equal length, one after another"
            )
        values = nested.values().view(-1, int(sizes[0, 1]))
        if _gpu().compute:
            return values, sizes[:, 0].tolist()
        rows = torch.empty(values.shape, dtype=values.dtype, device="meta")
        setattr(storage_of(rows), NAME, getattr(storage_of(nested), NAME))
        return rows, sizes[:, 0].tolist()


def _pieces(rows: Tensor, lengths: Sequence[int]) -> Sequence[Tensor]:
    return rows.split(list(lengths))


# -- from a padded one and back --------------------------------------------------------------------------------------


def left_aligned(padded: Tensor, mask: Tensor) -> bool:
    """`torch._nested_tensor_from_mask_left_aligned`: True if each row of the mask is true up to some index, then false.

    The host waits for the answer. In shapes-only mode, an unknown mask is assumed to have gaps.
    """
    sizes, ends, _ = _counted(mask)
    answer = (sizes == ends).all()
    copies.read_back(_device(mask))
    del answer
    known = _values(mask)
    if known is None:
        warn_once(
            _gpu().warned,
            "with compute=False the virtual GPU does not know a padding mask that depends on values: it is taken for "
            "one with gaps, so that nn.TransformerEncoder keeps the padding, and with it memory that a GPU may save",
        )
        return False
    with backing:
        places = torch.arange(known.shape[1])
        return bool((known == (places < known.sum(1, keepdim=True))).all())


def _counted(mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the number of true elements of each row, its first false index, and the kernel's temporaries."""
    behind = torch.zeros(mask.shape[0], 1, dtype=mask.dtype, device=mask.device)
    whole = torch.cat([mask, behind], 1)
    ends = whole.to(torch.int32).argmin(1)
    del whole
    return mask.to(torch.int64).cumsum(1).select(1, -1), ends, behind


def _values(mask: Tensor) -> Tensor | None:
    """Return the mask with its values, on the host; None where they are unknown."""
    if _gpu().compute:
        with backing:
            return mask.detach()
    return known_values.value(mask)


def from_mask(padded: Tensor, mask: Tensor, check: bool = True) -> Tensor:
    """`torch._nested_tensor_from_mask`: select the rows for which the mask is true."""
    if check and not left_aligned(padded, mask):
        raise RuntimeError("Mask must be left-aligned without gaps")
    batch, length, width = padded.shape
    sizes, ends, behind = _counted(mask)
    widths = torch.full_like(sizes.view(-1, 1), width)
    table = torch.cat([sizes.view(-1, 1), widths], 1)
    del sizes
    copies.read_back(_device(mask))
    del table
    known = _values(mask)
    if known is None:
        warn_once(
            _gpu().warned,
            "with compute=False the virtual GPU does not know a padding mask that depends on values: no sequence of "
            "the nested tensor is taken to have padding, which takes memory that a GPU may save",
        )
        lengths = [length] * batch
    else:
        with backing:
            lengths = known.sum(1).tolist()
    made = wrapped(_packed(padded, lengths), lengths)
    del ends, behind, widths  # held until then
    return made


_BY_KERNEL = (torch.float32, torch.float16)  # dtypes of CUDA's kernels from and to padded tensors


def _packed(padded: Tensor, lengths: list[int]) -> Tensor:
    """Return the first rows of each sequence. `padded` may also have (batch, heads, length, width)."""
    device, of_heads = _device(padded), padded.dim() == 4
    whole = padded.transpose(1, 2).flatten(2) if of_heads and padded.dtype not in _BY_KERNEL else padded
    width = padded.shape[1] * padded.shape[3] if of_heads else padded.shape[2]
    if padded.dtype in _BY_KERNEL:
        rows = padded.new_empty(sum(lengths), width)
        numbers = _numbers(device, 3 * len(lengths) + 1 + padded.dim(), non_blocking=True)
        cost.fused(device, "nested_from_padded", rows, numbers, rows)
    else:
        rows = _selected(whole, lengths)
    if _gpu().compute:
        with backing:
            whole = padded.transpose(1, 2).flatten(2) if of_heads else padded
            rows.copy_(torch.cat([one[:length] for one, length in zip(whole, lengths, strict=True)]))
    return rows


def _numbers(device: Device, count: int, *, non_blocking: bool) -> Tensor:
    """Copy sizes and offsets to the GPU as int32."""
    numbers = torch.zeros(count, dtype=torch.int64)
    return numbers.to(device.name, torch.int32, non_blocking=non_blocking)


def _selected(padded: Tensor, lengths: list[int]) -> Tensor:
    """Select by a mask of all elements (nested_from_padded_generic); CUB's temporary memory is not mirrored."""
    _, longest, width = padded.shape
    masks = [
        F.pad(padded.new_full((length, width), True, dtype=torch.bool), (0, 0, 0, longest - length))
        for length in lengths
    ]
    mask = torch.stack(masks)
    copies.read_back(_device(padded))
    indices = padded.new_empty(3, sum(lengths) * width, dtype=torch.int64)
    rows = padded.new_empty(sum(lengths), width)
    cost.fused(_device(padded), "masked_select", mask, indices, indices, rows, rows)
    return rows


def to_padded(nested: Tensor, padding: float, size: Sequence[int] | None = None) -> Tensor:
    """`Tensor.to_padded_tensor`."""
    rows, lengths = unwrapped(nested)
    device, width, longest = _device(nested), rows.shape[1], max(lengths)
    if not rows.numel():
        raise RuntimeError("to_padded_tensor: at least one constituent tensor should have non-zero numel")
    shape = [len(lengths), longest, width] if size is None else list(size)
    if rows.dtype in (*_BY_KERNEL, torch.float64):
        out = rows.new_empty(shape)
        numbers = _numbers(device, (2 if size is None else 3) * len(lengths) + 1, non_blocking=False)
        cost.fused(device, "nested_to_padded", rows, numbers, out)
        if _gpu().compute:
            with backing:
                out.copy_(nested.to_padded_tensor(padding, shape))
        return out
    ends = [F.pad(one, (0, 0, 0, longest - len(one)), value=padding) for one in _pieces(rows, lengths)]
    out = torch.stack(ends)
    return F.pad(out, [0, shape[2] - width, 0, shape[1] - longest, 0, shape[0] - len(ends)], value=padding)


# -- the layers ------------------------------------------------------------------------------------------------------


def encoder_layer(
    src: Tensor, width: int, heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor,
    use_gelu: bool, norm_first: bool, *rest: Any,
) -> Tensor:  # fmt: skip
    """`torch._transformer_encoder_layer_fwd`."""
    *others, mask, _ = rest
    _without_mask(mask)
    rows, lengths = unwrapped(src)
    if rows.numel():
        given = lengths, heads, qkv_weight, qkv_bias, proj_weight, proj_bias
        rows = layers.through(rows, lambda x: _attended(x, *given), use_gelu, norm_first, *others)
    return wrapped(rows, lengths)


def _without_mask(mask: Tensor | None) -> None:
    if mask is not None:
        raise RuntimeError("NestedTensor with mask is not supported yet")


def multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, width: int, heads: int, qkv_weight: Tensor, qkv_bias: Tensor,
    proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None, need_weights: bool = True, *rest: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """`torch._native_multi_head_attention`."""
    _without_mask(mask)
    if need_weights or not (query is key and key is value):
        raise NotMirrored("attention of nested tensors is mirrored for one tensor, without the attention's weights")
    rows, lengths = unwrapped(query)
    return wrapped(_attended(rows, lengths, heads, qkv_weight, qkv_bias, proj_weight, proj_bias), lengths), None


def _attended(
    rows: Tensor, lengths: list[int], heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor,
    proj_bias: Tensor,
) -> Tensor:  # fmt: skip
    device = _device(rows)
    kind = choose_of_rows(device.spec.capability, rows, heads, lengths)
    if kind != "math" and min(lengths) > 1:
        qkv = layers.linear(rows, qkv_weight, qkv_bias)
        out = _by_kernel(device, kind, qkv, lengths, heads)
        return layers.linear(out, proj_weight, proj_bias)
    qkv = torch.matmul(rows, qkv_weight.t())
    q, k, v = _padded_heads(device, qkv, qkv_bias, lengths, heads)
    del qkv
    weights = layers.scores(q, k)
    weights = torch._masked_softmax(weights, _padding(device, lengths, q.shape[2]), 3, 1)
    out = layers.weighted(q, weights, v)
    del weights
    return torch.addmm(proj_bias, _packed(out, lengths), proj_weight.t())


def _by_kernel(device: Device, kind: str, qkv: Tensor, lengths: list[int], heads: int) -> Tensor:
    """Flash or memory-efficient attention of sequences of different lengths."""
    total, width = qkv.shape[0], qkv.shape[1] // 3
    held = [_starts(device, lengths), _starts(device, lengths)]
    out = qkv.new_empty(total, width)
    if kind == "flash":  # the logarithms of its sums; with the seed and its offset, which nothing needs
        sizes = [(heads, total, torch.float32), (2, 1, torch.uint64), (1, 1, torch.uint64)]
        held += [qkv.new_empty(rows, columns, dtype=dtype) for rows, columns, dtype in sizes]
    else:
        held += [torch.zeros((), dtype=torch.int64, device=qkv.device) for _ in range(2)]
        if qkv.itemsize == 2 and width // heads > 128:
            device.touch([4 * out.numel()])
    if _gpu().compute:
        with backing:
            out.copy_(torch.cat([_attention(piece, heads) for piece in _pieces(qkv, lengths)]))
    flops = 4.0 * width * sum(length**2 for length in lengths)
    share = work.FLASH if kind == "flash" else work.EFFICIENT
    dtype = arithmetic.precision(qkv.dtype)
    found = work.attention(device.timer.clock.rates, flops, dtype, share, reading(device, qkv) + writing(device, out))
    cost.kernel(device, f"_scaled_dot_product_{kind}_attention", arithmetic.costs(device, found, dtype))
    return out


def _starts(device: Device, lengths: list[int]) -> Tensor:
    return torch.zeros(len(lengths) + 1, dtype=torch.int32).to(device.name, non_blocking=True)


def _attention(qkv: Tensor, heads: int) -> Tensor:
    """Attend within one sequence, with values."""
    q, k, v = (part.unflatten(1, (heads, -1)).transpose(0, 1)[None] for part in qkv.chunk(3, 1))
    out, _ = attention._forward(q, k, v, None, 0.0, False, q.shape[-1] ** -0.5, 0)
    return out[0].transpose(0, 1).flatten(1).to(qkv.dtype)


def _padded_heads(device: Device, qkv: Tensor, bias: Tensor, lengths: list[int], heads: int) -> Sequence[Tensor]:
    """Return query, key and value of each head, padded to a multiple of 8 (transform_bias_rescale_qkv_cuda)."""
    longest, width = -(-max(lengths) // 8) * 8, qkv.shape[1] // 3
    parts = qkv.new_empty(3, len(lengths), heads, longest, width // heads)
    numbers = torch.zeros(2 * len(lengths) + 1, dtype=torch.int32).to(device.name, non_blocking=True)
    cost.fused(device, "transform_bias_rescale_qkv", qkv, numbers, parts)
    if _gpu().compute:
        with backing:
            whole = parts.new_zeros(len(lengths), longest, 3 * width)
            for one, piece in zip(whole, _pieces(qkv, lengths), strict=True):
                one[: len(piece)] = piece + bias
            parts.copy_(whole.view(len(lengths), longest, 3, heads, -1).permute(2, 0, 3, 1, 4))
            parts[0] *= parts.shape[-1] ** -0.5
    return parts.unbind()


def _padding(device: Device, lengths: list[int], longest: int) -> Tensor:
    """Return the mask that is True at padding."""
    places, ends = torch.arange(longest), torch.tensor(lengths)
    return (places >= ends[:, None]).to(device.name, non_blocking=True)


# -- other operations ------------------------------------------------------------------------------------------------


def _linear(nested: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rows, lengths = unwrapped(nested)
    return wrapped(layers.linear(rows, weight, bias), lengths)


def _norm(nested: Tensor, shape: Sequence[int], *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    rows, lengths = unwrapped(nested)
    out, mean, rstd = torch.native_layer_norm(rows, list(shape), *given)
    return wrapped(out, lengths), mean, rstd


def _dropout(nested: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Run dropout in evaluation, which still allocates a mask and a copy."""
    rows, lengths = unwrapped(nested)
    if train is False or not p:
        mask = torch.ones_like(rows, dtype=torch.bool)
        out = rows.clone()
    else:
        out, mask = torch.native_dropout(rows, p, train)
    return wrapped(out, lengths), wrapped(mask, lengths)


def _added(one: Tensor, other: Tensor, alpha: float = 1) -> Tensor:
    rows, lengths = unwrapped(one)
    return wrapped(torch.add(rows, unwrapped(other)[0], alpha=alpha), lengths)


def _alone(func: Any) -> Callable[..., Tensor]:
    """Run an elementwise operation."""

    def run(nested: Tensor, **given: Any) -> Tensor:
        rows, lengths = unwrapped(nested)
        return wrapped(func(rows, **given), lengths)

    return run


PARTS: dict[Any, Callable[..., Any]] = {
    aten._transformer_encoder_layer_fwd.default: encoder_layer,
    aten._native_multi_head_attention.default: multi_head_attention,
    aten.to_padded_tensor.default: to_padded,
    aten.values.default: lambda nested: unwrapped(nested)[0].view(-1),
    aten.unbind.int: lambda nested, dim: list(_pieces(*unwrapped(nested))),
    aten.linear.default: _linear,
    aten.native_layer_norm.default: _norm,
    aten.native_dropout.default: _dropout,
    aten.add.Tensor: _added,
    aten.relu.default: _alone(torch.relu),
    aten.gelu.default: lambda nested, approximate: _alone(F.gelu)(nested, approximate=approximate),
    aten.clone.default: lambda nested, form: _alone(torch.clone)(nested),
}
"""Mirrored operations on nested tensors, with all arguments by position."""
MAKES: dict[Any, Callable[..., Any]] = {
    aten._nested_tensor_from_mask.default: from_mask,
    aten._nested_tensor_from_mask_left_aligned.default: left_aligned,
}
"""Operations that make nested tensors from others."""
ASKS = {
    aten._nested_tensor_size.default,
    aten._nested_tensor_strides.default,
    aten._nested_tensor_storage_offsets.default,
    aten.is_same_size.default,
    aten.detach.default,
}
"""Operations that query nested tensors."""


def only_results(gpu: VirtualGPU, func: Any) -> None:
    """Warn that an operation's temporary memory is not counted; raise NotMirrored where there are no values."""
    if not gpu.compute:
        raise NotMirrored(
            f"{func} of a nested tensor is not mirrored in shapes-only mode. With compute=True it runs; "
            "nn.TransformerEncoder(…, enable_nested_tensor=False) makes none."
        )
    warn_once(
        gpu.warned,
        f"{func} of a nested tensor: its result is counted on the virtual GPU, what its kernels take beside it is not",
    )

"""Operations on sparse tensors in shapes-only mode: PyTorch's shape functions forget how many elements are stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..scope.refusals import NotMirrored
from .results import tensors_in

Tensor = torch.Tensor
aten = torch.ops.aten


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on `meta` tensors; NotMirrored where a sparse result would have lost its elements."""
    given = [tensor for tensor in tensors_in((args, tuple(kwargs.values()))) if tensor.layout is torch.sparse_coo]
    known = _KNOWN.get(func)
    if known is not None and given:
        return known(*args, **kwargs)
    out = func._op(*args, **kwargs)
    if any(tensor._nnz() for tensor in given):
        for result in tensors_in(out):
            if result.layout is torch.sparse_coo and not result._nnz():
                raise _refusal(func)
    return out


def _refusal(func: Any) -> NotMirrored:
    return NotMirrored(
        f"{func} of a sparse tensor is not mirrored in shapes-only mode: how many elements it has is not known. "
        "With compute=True it runs."
    )


def _like(tensor: Tensor, indices: Tensor, values: Tensor, *, is_coalesced: bool) -> Tensor:
    return torch.sparse_coo_tensor(
        indices, values, tensor.shape, check_invariants=False, is_coalesced=is_coalesced, device="meta"
    )


def _clone(tensor: Tensor, memory_format: Any = None) -> Tensor:
    parts = tensor._indices().clone(), tensor._values().clone()
    return _like(tensor, *parts, is_coalesced=tensor.is_coalesced())


def _coalesce(tensor: Tensor) -> Tensor:
    """No index is taken to be there twice."""
    return _like(tensor, tensor._indices().clone(), tensor._values().clone(), is_coalesced=True)


def _sparse_mask(tensor: Tensor, mask: Tensor) -> Tensor:
    values = torch.empty(mask._values().shape, dtype=tensor.dtype, device="meta")
    return _like(mask, mask._indices().clone(), values, is_coalesced=mask.is_coalesced())


def _add(one: Tensor, other: Tensor, alpha: float = 1) -> Any:
    """Of two sparse ones the elements of both, one after the other."""
    if not one.layout == other.layout == torch.sparse_coo:
        return aten.add.Tensor(one, other, alpha=alpha)
    indices = torch.cat((one._indices(), other._indices()), 1)
    return _like(one, indices, torch.cat((one._values(), other._values())), is_coalesced=False)


def _add_(one: Tensor, other: Tensor, alpha: float = 1) -> Tensor:
    """A sparse one into a dense one."""
    if one.layout is torch.sparse_coo:
        raise _refusal(aten.add_.Tensor)
    return one


_KNOWN: dict[Any, Callable[..., Any]] = {
    aten.clone.default: _clone,
    aten._coalesce.default: _coalesce,
    aten.add.Tensor: _add,
    aten.add_.Tensor: _add_,
    aten.sparse_mask.default: _sparse_mask,
}

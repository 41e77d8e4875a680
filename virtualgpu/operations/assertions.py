"""Device-side asserts: bad indices that the CPU rejects at once, and a GPU reports at a later call."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensor = torch.Tensor

_BOUNDS = '"index out of bounds"'
_PLACED = f"-sizes[i] <= index && index < sizes[i] && {_BOUNDS}"
_FILLED = f"idx_dim >= 0 && idx_dim < index_size && {_BOUNDS}"
_SCATTERED = 'idx_dim >= 0 && idx_dim < index_size && "scatter gather kernel index out of bounds"'
_SELECTED = "srcIndex < srcSelectDimSize"
_GATHERED = 'ind >=0 && ind < ind_dim_size && "vectorized gather kernel index out of bounds"'
_ADDED = "dstIndex < dstAddDimSize"
_TAKEN = 'idx < numel && idx >= -numel && "cuda_take_put_kernel() index out of bounds"'

_FEW = 16  # up to so many indices `index_select` has a kernel of its own; with more it is a `gather`
_ALIGNED = 16  # bytes that a gather moves at a time where every row allows it


def _rows(source: Tensor, dim: int) -> bool:
    """Return True if a gather along `dim` takes whole rows that are contiguous and aligned to 16 bytes."""
    row = math.prod(source.shape[dim + 1 :]) * source.element_size()
    start = source.storage_offset() * source.element_size()
    first = math.prod(source.shape[:dim]) == 1 and source.is_contiguous()
    return bool(first and row > 0 and row % _ALIGNED == 0 and start % _ALIGNED == 0)


def _taken(source: Tensor, dim: int, index: Tensor) -> str:
    """`index_select`, and so an embedding."""
    if index.numel() <= _FEW:
        return _SELECTED
    return _GATHERED if _rows(source, dim) else _SCATTERED


def _gather(source: Tensor, dim: int, index: Tensor) -> str:
    dim %= max(source.dim(), 1)
    whole = index.dim() == 2 and dim == 0 and index.stride(1) == 0 and index.shape[1] == source.shape[1]
    return _GATHERED if whole and len(index) > 1 and _rows(source, dim) else _SCATTERED


def _index(source: Tensor, indices: Sequence[Tensor | None]) -> str:
    given = [index for index in indices if index is not None]
    one = len(given) == 1 and given[0].numel() > 1 and given[0].is_contiguous()
    return _GATHERED if one and _rows(source, list(indices).index(given[0])) else _PLACED


Reads = Sequence[tuple[Tensor, int, int]]  # tensors, each with the least and the greatest value that passes


def _of_rows(weight: Tensor, indices: Tensor, *_: Any) -> Reads:
    return [(indices, 0, weight.shape[0] - 1)]


def _along(source: Tensor, dim: int, index: Tensor, *_: Any) -> Reads:
    return [(index, 0, _size(source, dim) - 1)]


def _along_from_the_end_too(source: Tensor, dim: int, index: Tensor, *_: Any) -> Reads:
    return [(index, -_size(source, dim), _size(source, dim) - 1)]


def _size(source: Tensor, dim: int) -> int:
    return source.shape[dim] if source.dim() else 1


def _places(source: Tensor, indices: Sequence[Tensor | None], *_: Any) -> Reads:
    found: list[tuple[Tensor, int, int]] = []
    dim = 0
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):  # its shape is checked, not its values
            dim += index.dim()
            continue
        if index is not None:
            found.append((index, -source.shape[dim], source.shape[dim] - 1))
        dim += 1
    return found


def _elements(source: Tensor, index: Tensor, *_: Any) -> Reads:
    return [(index, -source.numel(), source.numel() - 1)]


def _classes(scores: Tensor, target: Tensor, *_: Any) -> Reads:
    return [(target, 0, scores.shape[1 if scores.dim() > 1 else 0] - 1)]


def _probabilities(given: Tensor, *_: Any) -> Reads:
    return [(given, 0, 1)]


# The conditions as ATen/native/cuda states them, and what they are asked of; names without overload and the underscore
# of the in-place form. A function chooses by the arguments, as the launch does: PyTorch 2.8 and later.
_ASSERTIONS: dict[str, tuple[str | Callable[..., str], Callable[..., Reads]]] = {
    "nll_loss_forward": ("t >= 0 && t < n_classes", _classes),
    "nll_loss2d_forward": ("t >= 0 && t < n_classes", _classes),
    "multi_margin_loss": ('target_k >= 0 && target_k < dim && "target index is out of bounds"', _classes),
    "binary_cross_entropy": ("input_val >= zero && input_val <= one", _probabilities),
    "embedding": (lambda weight, indices, *_, **__: _taken(weight, 0, indices), _of_rows),
    "_embedding_bag": ("input[emb] < numRows", _of_rows),
    "_embedding_bag_forward_only": ("input[emb] < numRows", _of_rows),
    "index_select": (lambda source, dim, index: _taken(source, dim % max(source.dim(), 1), index), _along),
    "gather": (lambda source, dim, index, *_, **__: _gather(source, dim, index), _along),
    "scatter": (_SCATTERED, _along),
    "scatter_add": (_SCATTERED, _along),
    "scatter_reduce": (_SCATTERED, _along),
    "index": (_index, _places),
    "_unsafe_index": (_index, _places),
    "index_put": (_PLACED, _places),
    "_unsafe_index_put": (_PLACED, _places),
    "_index_put_impl": (_PLACED, _places),
    "index_fill": (f"idx >= -self_dim_size && idx < self_dim_size && {_BOUNDS}", _along_from_the_end_too),
    "index_copy": ('idx >= 0 && idx < self_dim_size && "index_copy_(): index out of bounds"', _along),
    "index_add": (_ADDED, _along),
    "index_reduce": (_ADDED, _along),
    "take": (_TAKEN, _elements),
    "put": (_TAKEN, _elements),
}
_REFUSALS = re.compile("out of (range|(DATA )?bounds)|not in the valid range|should be between 0 and 1")


def asserts(func: Any) -> bool:
    """Return True if the kernel of `func` asserts conditions on values."""
    return _name(func) in _ASSERTIONS


def reads(func: Any, args: Sequence[Any]) -> Reads:
    """Return the conditions of the kernel of `func` on its arguments, given in the schema's order."""
    return _ASSERTIONS[_name(func)][1](*args)


def ignored(func: Any, args: Sequence[Any]) -> int | None:
    """Return the value that passes although it is out of range (a loss's `ignore_index`), None if there is none."""
    return args[4] if _name(func).startswith("nll_loss") else None


def condition(func: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> str:
    """Return the assertion of the kernel of `func` for values out of range."""
    found = _ASSERTIONS[_name(func)][0]
    if func._schema.overload_name.startswith("value") and found == _SCATTERED:
        return _FILLED
    return found if isinstance(found, str) else found(*args, **(kwargs or {}))


def failed(func: Any, error: Exception, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> str | None:
    """Return the condition that fails in the kernel of `func` where the CPU has raised `error`; None if none does."""
    if not asserts(func) or not _REFUSALS.search(str(error)):
        return None
    return condition(func, args, kwargs)


def _name(func: Any) -> str:
    name: str = func._schema.name
    return name.removeprefix("aten::").rstrip("_")

"""What CUDA's kernels assert: faults that the CPU refuses at the call, and a GPU finds when the call has returned."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

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
    """Whether a gather along `dim` takes whole rows that are contiguous and begin at multiples of 16 bytes."""
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


# The conditions as ATen/native/cuda states them; names without overload and the underscore of the in-place form. A
# function chooses by the arguments, as the launch does: PyTorch 2.8 and later.
_CONDITIONS: dict[str, str | Callable[..., str]] = {
    "nll_loss_forward": "t >= 0 && t < n_classes",
    "nll_loss2d_forward": "t >= 0 && t < n_classes",
    "multi_margin_loss": 'target_k >= 0 && target_k < dim && "target index is out of bounds"',
    "binary_cross_entropy": "input_val >= zero && input_val <= one",
    "embedding": lambda weight, indices, *_, **__: _taken(weight, 0, indices),
    "_embedding_bag": "input[emb] < numRows",
    "_embedding_bag_forward_only": "input[emb] < numRows",
    "index_select": lambda source, dim, index: _taken(source, dim % max(source.dim(), 1), index),
    "gather": lambda source, dim, index, **_: _gather(source, dim, index),
    "scatter": _SCATTERED,
    "scatter_add": _SCATTERED,
    "scatter_reduce": _SCATTERED,
    "index": _index,
    "_unsafe_index": _index,
    "index_put": _PLACED,
    "_unsafe_index_put": _PLACED,
    "_index_put_impl": _PLACED,
    "index_fill": f"idx >= -self_dim_size && idx < self_dim_size && {_BOUNDS}",
    "index_copy": 'idx >= 0 && idx < self_dim_size && "index_copy_(): index out of bounds"',
    "index_add": _ADDED,
    "index_reduce": _ADDED,
    "take": _TAKEN,
    "put": _TAKEN,
}
_REFUSALS = re.compile("out of (range|(DATA )?bounds)|not in the valid range|should be between 0 and 1")


def failed(func: Any, error: Exception, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> str | None:
    """The condition that fails in the kernel of `func` where the CPU has raised `error`; None where none does."""
    condition = _CONDITIONS.get(func._schema.name.removeprefix("aten::").rstrip("_"))
    if condition is None or not _REFUSALS.search(str(error)):
        return None
    if func._schema.overload_name.startswith("value") and condition == _SCATTERED:
        return _FILLED
    return condition if isinstance(condition, str) else condition(*args, **(kwargs or {}))

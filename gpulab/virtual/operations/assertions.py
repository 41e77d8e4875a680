"""What CUDA's kernels assert: faults that the CPU refuses at the call, and a GPU finds when the call has returned."""

from __future__ import annotations

import re
from typing import Any

_BOUNDS = '"index out of bounds"'
_PLACED = f"-sizes[i] <= index && index < sizes[i] && {_BOUNDS}"
_SCATTERED = f"idx_dim >= 0 && idx_dim < index_size && {_BOUNDS}"
_ADDED = "dstIndex < dstAddDimSize"
_TAKEN = 'idx < numel && idx >= -numel && "cuda_take_put_kernel() index out of bounds"'

# The conditions as ATen/native/cuda states them; names without overload and the underscore of the in-place form.
_CONDITIONS = {
    "nll_loss_forward": "t >= 0 && t < n_classes",
    "nll_loss2d_forward": "t >= 0 && t < n_classes",
    "multi_margin_loss": 'target_k >= 0 && target_k < dim && "target index is out of bounds"',
    "binary_cross_entropy": "input_val >= zero && input_val <= one",
    "embedding": "srcIndex < srcSelectDimSize",
    "_embedding_bag": "input[emb] < numRows",
    "_embedding_bag_forward_only": "input[emb] < numRows",
    "index_select": "srcIndex < srcSelectDimSize",
    "gather": _SCATTERED,
    "scatter": _SCATTERED,
    "scatter_add": _SCATTERED,
    "scatter_reduce": _SCATTERED,
    "index": _PLACED,
    "_unsafe_index": _PLACED,
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
_REFUSALS = re.compile("out of (range|bounds)|not in the valid range|should be between 0 and 1")


def failed(func: Any, error: Exception) -> str | None:
    """The condition that fails in the kernel of `func` where the CPU has raised `error`; None where none does."""
    condition = _CONDITIONS.get(func._schema.name.removeprefix("aten::").rstrip("_"))
    return condition if condition is not None and _REFUSALS.search(str(error)) else None

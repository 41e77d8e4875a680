"""Finds the storages of tensors, each once, however many views or tied weights there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Return the bytes of each storage. The keys are unique as long as the tensors live."""
    found = {}
    for tensor in tensors:
        for part in _parts(tensor):
            storage = part.untyped_storage()
            found[storage._cdata] = storage.nbytes()
    return found


def _parts(tensor: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors with the data: this one, or the parts of a sparse tensor or a wrapper subclass."""
    import torch

    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _parts(getattr(tensor, name))
    elif tensor.layout == torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    else:
        yield tensor

"""Operations that autograd keeps other tensors for on a GPU than on a CPU: dropout, attention, RMS norm, LSTM.

They stand above autograd, on the dispatch key of `autocast`. What they compute is PyTorch's; what they keep is what
CUDA's kernels keep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import autocast, state
from .labels import device_of

Tensor = torch.Tensor
aten = torch.ops.aten


def _dropout(tensor: Tensor, p: float, train: bool) -> Tensor:
    """CUDA keeps a mask of one byte per element (is_fused_kernel_acceptable in Dropout.cpp)."""
    with autocast.below():
        if train and 0 < p < 1 and tensor.numel() and state.current is not None and device_of(tensor) is not None:
            return aten.native_dropout(tensor, p, True)[0]
        return aten.dropout(tensor, p, train)


MIRRORS: dict[str, Callable[..., Any]] = {"dropout": _dropout}

"""Sharded tensors (DTensor): what PyTorch asks of shapes alone, about devices that it believes in, is not the GPU's.

A DTensor wraps a rank's part, which is an ordinary tensor of the virtual GPU. To know the shape of a result PyTorch
runs the operation on fake tensors first; those are nowhere.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from ..scope.in_force import backing
from ..scope.labels import wraps
from ..scope.numbering import current
from ..scope.patches import Patches


def propagation(module: ModuleType, patches: Patches) -> None:
    """In `torch.distributed.tensor._sharding_prop`."""
    owner = module.ShardingPropagator
    for name in ("_propagate_tensor_meta_non_cached", "_propagate_tensor_meta"):
        own = vars(owner).get(name)
        if own is not None:
            patches.set(owner, name, _unseen(own))


def _unseen(own: Any) -> Any:
    @functools.wraps(own)
    def propagate(*args: Any, **kwargs: Any) -> Any:
        with backing:
            return own(*args, **kwargs)

    return propagate


def install(patches: Patches) -> None:
    """A tensor that only wraps one of the virtual GPU is, to C++, where what is behind that one is."""
    own = torch._C.TensorBase._make_wrapper_subclass

    def make(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is not None and torch.device(device).type == "cuda" and wraps(cls):
            device = current().backing
        return own(cls, *args, device=device, **kwargs)

    patches.set(torch.Tensor, "_make_wrapper_subclass", staticmethod(make))


CHANGES = {"torch.distributed.tensor._sharding_prop": propagation}

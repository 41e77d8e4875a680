"""Sharded tensors (DTensor): what PyTorch asks of shapes alone, about devices that it believes in, is not the GPU's.

A DTensor wraps a rank's part, which is an ordinary tensor of the virtual GPU. To know the shape of a result PyTorch
runs the operation on fake tensors first; those are nowhere.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from ..scope.in_force import backing
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


CHANGES = {"torch.distributed.tensor._sharding_prop": propagation}

"""Sharded tensors (DTensor): keep shape propagation on fake tensors off the virtual GPU.

A DTensor wraps a rank's part, which is an ordinary tensor of the virtual GPU. To know the shape of a result PyTorch
runs the operation on fake tensors first; those are nowhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from ..scope.in_force import backing
from ..scope.labels import is_wrapper_type
from ..scope.numbering import current
from ..scope.patches import Patches
from ..scope.refusals import NotMirrored, warn_once


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

    def make(cls: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda" and is_wrapper_type(cls):
            kwargs["device"] = current().backing
        return own(cls, *args, **kwargs)

    patches.set(torch.Tensor, "_make_wrapper_subclass", staticmethod(make))


def schemas(module: ModuleType, patches: Patches) -> None:
    """In `torch.distributed.tensor._op_schema`: fake tensors of a GPU would ask the driver."""

    def rebuild(arg: Any) -> torch.Tensor:
        meta = arg.tensor_meta
        return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device="cpu")

    own = module.OpSchema.gen_fake_kwargs

    def gen_fake_kwargs(self: Any) -> dict[str, Any]:
        return {name: torch.device("cpu") if isinstance(v, torch.device) else v for name, v in own(self).items()}

    patches.set(module, "_rebuild_tensor_from_dtensor_meta", rebuild)
    patches.set(module.OpSchema, "gen_fake_kwargs", gen_fake_kwargs)


def randomness(module: ModuleType, patches: Patches) -> None:
    """In `torch.distributed.tensor._random`: a scope's ranks agree on their random numbers anew.

    They send each other a seed and an offset, 16 bytes; here each rank draws for its part by itself.
    """
    tracker = module.OffsetBasedRNGTracker

    def state(self: Any) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8, device=self._device)

    @contextlib.contextmanager
    def region(self: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        yield

    patches.set(module, "_rng_tracker", None)
    patches.set(tracker, "_get_device_state", state)
    patches.set(tracker, "_set_device_state", lambda self, state: None)
    patches.set(tracker, "_distribute_region", region)


def plans(module: ModuleType, patches: Patches) -> None:
    """In `torch.distributed.checkpoint.default_planner`: the parts of imagined ranks are in no file."""
    own = module._validate_global_plan

    def validate(global_plan: Any, metadata: Any) -> Any:
        world = current().world
        if world is None or world.size == 1:
            return own(global_plan, metadata)
        warn_once(
            current().warned,
            f"{world.size} ranks are imagined: a checkpoint's folder holds the part of rank {world.rank} alone",
        )
        return own(global_plan[:1], metadata)

    make = module.DefaultSavePlanner.create_global_plan

    def create_global_plan(self: Any, all_plans: list[Any]) -> Any:
        world = current().world
        if world is not None:  # replicated parts are written by one rank: this one, which is real
            empty = [dataclasses.replace(plan, items=[]) for plan in all_plans]
            all_plans = [*empty[: world.rank], all_plans[world.rank], *empty[world.rank + 1 :]]
        return make(self, all_plans)

    patches.set(module, "_validate_global_plan", validate)
    patches.set(module.DefaultSavePlanner, "create_global_plan", create_global_plan)


def objects(module: ModuleType, patches: Patches) -> None:
    """In `torch.distributed.optim.zero_redundancy_optimizer`: an imagined rank has no objects of its own."""
    own = module._broadcast_object

    def broadcast(obj: Any, src_rank: int, *args: Any, **kwargs: Any) -> Any:
        unknown(src_rank, "an object")
        if not current().compute:
            args, kwargs = args[:1], {**kwargs, "device": torch.device("cpu")}  # objects are values
        return own(obj, src_rank, *args, **kwargs)

    patches.set(module, "_broadcast_object", broadcast)


def unknown(rank: int, what: str) -> None:
    """NotMirrored where a rank is imagined, and sends what this one does not have."""
    world = current().world
    if world is not None and rank != world.rank:
        raise NotMirrored(
            f"{what} from rank {rank}, which is imagined, is not known: only ranks that are processes have it"
        )


CHANGES = {
    "torch.distributed.tensor._sharding_prop": propagation,
    "torch.distributed.tensor._op_schema": schemas,
    "torch.distributed.tensor._random": randomness,
    "torch.distributed.checkpoint.default_planner": plans,
    "torch.distributed.optim.zero_redundancy_optimizer": objects,
}

"""`torch.distributed` on virtual GPUs: the backend "nccl" makes a `ranks.group`.

Each real rank is a process with GPUs of its own, and Gloo carries the values; imagined ranks send nothing.
Processes that `torch.multiprocessing.spawn` starts get the same virtual GPUs.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..scope.labels import device_of
from ..scope.numbering import current
from ..scope.patches import Patches
from ..scope.refusals import NotMirrored, warn_once
from . import parallel

if TYPE_CHECKING:
    from ..gpu import VirtualGPU

_SPAWNING = "torch.multiprocessing.spawn"  # as an attribute, that name is the function in it
_own_wrap: Any = importlib.import_module(_SPAWNING)._wrap  # as it is before any scope
_NAME = "gpulab"  # of the backend, where PyTorch keeps its backends
_COLLECTIVES = [
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather", "scatter", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "send", "recv", "isend", "irecv",
]  # fmt: skip


def install(gpu: VirtualGPU, patches: Patches) -> None:
    """Replace the functions that create process groups and processes, while `gpu` is in force."""
    import torch.distributed as dist

    child = functools.partial(_in_child, same_gpus_factory(gpu))
    patches.set(importlib.import_module(_SPAWNING), "_wrap", child)
    if not dist.is_available():
        return
    from torch.distributed import distributed_c10d as c10d

    if _NAME not in c10d.Backend.backend_list:
        dist.Backend.register_backend(_NAME, _make_group, extended_api=True, devices=["cpu", "cuda"])
    asked: set[str] = set()  # names of the groups that real GPUs would join through NCCL alone
    patches.set(c10d, "_new_process_group_helper", _making(gpu, c10d, c10d._new_process_group_helper, asked))
    stores: Any = importlib.import_module("torch.distributed.rendezvous")
    patches.set(stores, "_create_c10d_store", _meeting(stores._create_c10d_store))
    if gpu.world is not None:
        patches.set(c10d, "rendezvous", _meeting_nobody(gpu.world))
        patches.set(sys, "excepthook", sys.excepthook)  # a group puts the rank before every line of an error
        for name, value in gpu.world.environment.items():
            patches.item(os.environ, name, value)
    if not gpu.compute:
        patches.set(c10d, "_get_object_coll_device", lambda group=None: "cpu")  # objects are values
    for owner in (dist, c10d):
        patches.set(owner, "is_nccl_available", lambda: True)
        patches.set(owner, "split_group", _splitting(c10d, c10d.split_group))
    for name in _COLLECTIVES:
        collective = _refusing_host_tensors(getattr(dist, name), c10d, asked)
        for owner in (dist, c10d) if name in ("isend", "irecv") else (dist,):  # P2POp knows them as what they are
            patches.set(owner, name, collective)
    parallel.install(gpu, patches)


def _making(gpu: VirtualGPU, c10d: Any, own: Callable[..., Any], asked: set[str]) -> Callable[..., Any]:
    """Wrap the function that creates all process groups."""
    signature = _signature(own)

    @functools.wraps(own)
    def make(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        config = str(c10d.BackendConfig(c10d.Backend(call.arguments["backend"])))
        if "nccl" not in config and gpu.world is None:
            return own(*args, **kwargs)
        name = str(call.arguments["backend"])
        # Options and a device to connect at once are NCCL's own.
        call.arguments.update(backend=_NAME)
        for unknown in ("backend_options", "pg_options", "device_id"):
            call.arguments.pop(unknown, None)
        group, store = own(*call.args, **call.kwargs)
        if group in c10d._world.pg_map:
            c10d._world.pg_map[group] = (name, c10d._world.pg_map[group][1])
            c10d._world.pg_backend_config[group] = group.asked = config
            if "cpu" not in config:
                asked.add(group.group_name)
        return group, store

    return make


def _splitting(c10d: Any, own: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `split_group`: a virtual group is split into virtual groups."""
    signature = _signature(own)

    @functools.wraps(own)
    def split_group(*args: Any, **kwargs: Any) -> Any:
        from ..ranks.group import VirtualGroup

        call = signature.bind(*args, **kwargs).arguments
        parent = call.get("parent_pg") or c10d._get_default_group()
        if not isinstance(parent, VirtualGroup):
            return own(*args, **kwargs)
        splits = call.get("split_ranks")
        if not splits:
            raise ValueError("split_ranks cannot be None or empty")
        for ranks in splits:
            if not ranks:
                raise ValueError("the split group cannot be empty")
            if len(set(ranks)) < len(ranks):
                raise ValueError("the split group cannot have duplicate ranks")
            if not all(0 <= rank < parent.size() for rank in ranks):
                raise ValueError(f"split_ranks has {ranks}; the parent group's ranks are 0 to {parent.size() - 1}")
        mine = next((ranks for ranks in splits if parent.rank() in ranks), None)
        if mine is None:
            return c10d.GroupMember.NON_GROUP_MEMBER
        if mine != sorted(mine):
            raise NotMirrored(f"split_group with ranks in a different order, {mine}, is not mirrored")
        if call.get("backend") is not None:
            raise NotMirrored("split_group with backend= is not mirrored: the group uses its parent's")
        return c10d.new_group(
            [parent.ranks[rank] for rank in mine],
            timeout=call.get("timeout"),
            backend=c10d._world.pg_map[parent][0],
            use_local_synchronization=True,
            group_desc=call.get("group_desc"),
        )

    return split_group


def _make_group(options: Any, _: Any) -> Any:
    """A process group on the virtual GPUs in force, as PyTorch's registry of backends asks for one."""
    import torch.distributed as dist

    from ..ranks import functional, group, imagined, over_gloo, rank_waits, world

    functional.install()
    gpu = current()
    size, rank = options.group_size, options.group_rank
    if gpu.world is not None:
        if gpu.compute and gpu.world.size > 1:
            others = f"rank {gpu.world.rank} of {gpu.world.size} runs here; the others are imagined, and send what it"
            warn_once(gpu.warned, f"{others} sends: sums are multiples of its own values")
        ranks = world.members(options.global_ranks_in_group, gpu.world.size)
        return group.VirtualGroup(gpu.world, ranks, rank, imagined.Imagined(size, rank), _fake(rank, size))
    if dist.is_initialized():
        there = world.real_world(
            gpu.spec.name, dist.get_world_size(), dist.get_rank(), link=gpu.link, adapters=gpu.adapters
        )
    else:
        there = world.real_world(gpu.spec.name, size, rank, link=gpu.link, adapters=gpu.adapters)
        rank_waits.here.meet(options.store, rank)
    ranks = world.members(options.global_ranks_in_group, there.size)
    wait = rank_waits.Wait(f"the making of a process group of {size} ranks", ranks)
    gloo = rank_waits.Apart(lambda: dist.ProcessGroupGloo(options.store, rank, size, timeout=options.timeout)).take(
        wait
    )
    return group.VirtualGroup(there, ranks, rank, over_gloo.OverGloo(gloo, size, rank), gloo)


def end(gpu: VirtualGPU) -> None:
    """Destroy the process groups of a scope's imagined ranks at its end."""
    if gpu.world is None:
        return
    import torch.distributed as dist

    from ..ranks.group import VirtualGroup

    if dist.is_available() and dist.is_initialized():
        group = dist.group.WORLD
        if isinstance(group, VirtualGroup) and group.world is gpu.world:
            dist.destroy_process_group()


def _fake(rank: int, size: int) -> Any:
    """Return a backend that answers PyTorch's capability queries; nothing is sent through it."""
    from torch._C._distributed_c10d import FakeProcessGroup

    return FakeProcessGroup._create_internal(rank, size)


def _meeting(own: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the creation of the ranks' TCP store, in which rank 0 and the others wait for each other."""

    @functools.wraps(own)
    def make(*args: Any, **kwargs: Any) -> Any:
        from ..ranks.rank_waits import Apart, Wait

        return Apart(lambda: own(*args, **kwargs)).take(Wait("init_process_group"))

    return make


def _meeting_nobody(world: Any) -> Callable[..., Any]:
    """Replace the rendezvous for imagined ranks, which need not be waited for."""

    def rendezvous(url: str, rank: int = -1, world_size: int = -1, **kwargs: Any) -> Any:
        import torch.distributed as dist

        for name, given, right in (("world_size", world_size, world.size), ("rank", rank, world.rank)):
            if given not in (-1, right):
                raise ValueError(
                    f"{name} is {given}, but the imagined ranks' is {right}: VirtualGPU(..., ranks=, rank=)"
                )
        yield vars(dist)["HashStore"](), world.rank, world.size

    return rendezvous


_signatures = weakref.WeakKeyDictionary[Callable[..., Any], inspect.Signature]()


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the cached signature: computing it would take a fifth of a virtual GPU's start."""
    if function not in _signatures:
        _signatures[function] = inspect.signature(function)
    return _signatures[function]


def _refusing_host_tensors(own: Callable[..., Any], c10d: Any, asked: set[str]) -> Callable[..., Any]:
    """Wrap a collective to refuse host tensors where NCCL would."""
    signature = _signature(own)

    @functools.wraps(own)
    def collective(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs).arguments
        group = call.get("group") or c10d.GroupMember.WORLD
        if getattr(group, "group_name", None) in asked:
            for value in call.values():
                for item in value if isinstance(value, (list, tuple)) else [value]:
                    if isinstance(item, torch.Tensor) and device_of(item) is None:
                        raise RuntimeError(f"No backend type associated with device type {item.device.type}")
        return own(*args, **kwargs)

    return collective


# -- processes that this one starts ----------------------------------------------------------------------------------


def same_gpus_factory(gpu: VirtualGPU) -> Callable[[], VirtualGPU]:
    """Return a function that starts the same virtual GPUs in another process."""
    recipe: dict[str, Any] = {"count": gpu.count, "compute": gpu.compute, "mirror": gpu.mirror}
    recipe |= {"host": gpu.rates.host, "link": gpu.link, "adapters": gpu.adapters}
    return functools.partial(type(gpu), gpu.spec.name, **recipe)


def is_child(target: Any) -> bool:
    """Return True if a process's function starts virtual GPUs itself."""
    return getattr(target, "func", None) is _in_child


def _in_child(make: Callable[[], VirtualGPU], *args: Any) -> None:
    """Run the first function of a spawned process."""
    with make():
        _own_wrap(*args)

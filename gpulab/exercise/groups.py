"""Sets up a rank for a student's function: torchrun's variables, a virtual GPU, a process group."""

from __future__ import annotations

import itertools
import operator
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import distributed_c10d as c10d
from torch.utils.data import Dataset

from .measure import virtual_gpu
from .rank_worker import CALL, agents_store
from .wording import as_float, is_number

_kept: list[dist.ProcessGroup] = []  # until the process ends


class Samples(Dataset[Any]):
    """A map-style dataset: `len` and integer indices, and unlike a list no slices."""

    def __init__(self, samples: Sequence[Any]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        return self._samples[operator.index(index)]


MACHINES = ("one", "one for each rank")


def spread(machines: str) -> None:
    """Set torchrun's variables for one machine, or for one machine for each rank."""
    if machines != "one":
        os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"] = "0", "1"


def others_used() -> list[int]:
    """Return the GPUs of other ranks of this machine on which this rank has allocated memory."""
    own = int(os.environ["LOCAL_RANK"])
    return [gpu for gpu in range(torch.cuda.device_count()) if gpu != own and torch.cuda.max_memory_allocated(gpu)]


def floats_of(got: Any) -> list[float] | None:
    """Return a number or one-element tensor, or a list or tuple of them, as floats; None for anything else."""
    values = got if isinstance(got, list | tuple) else [got]
    plain = all(is_number(x) or (torch.is_tensor(x) and x.numel() == 1) for x in values)
    return [as_float(x) for x in values] if plain else None


@contextmanager
def machine(backend: str = "nccl") -> Iterator[None]:
    """The environment of a script that torchrun has started: for NCCL this machine's virtual GPUs, no process group.

    Each call has a prefix of its own in the launcher's store, which would else return values of earlier calls. All
    ranks destroy their groups together and before the call ends: an early one would reset connections that others still
    read from. After an exception connections stay open, so that the other ranks wait, and the check reports that.
    """
    group: Any = dist.ProcessGroup
    own_rendezvous, own_shutdown = vars(c10d)["rendezvous"], vars(group)["shutdown"]
    store, where = PrefixStore(os.environ[CALL], agents_store()), _address()
    store.set_timeout(timedelta(minutes=5))
    number, ranks = itertools.count(), int(os.environ["WORLD_SIZE"])

    def rendezvous(url: str, rank: int = -1, world_size: int = -1, **options: Any) -> Iterator[Any]:
        if url != "env://" or _address() != where:
            return own_rendezvous(url, rank, world_size, **options)  # type: ignore[no-any-return]
        given = int(os.environ["RANK"]) if rank == -1 else rank
        return iter([(PrefixStore("group", store), given, ranks if world_size == -1 else world_size)])

    def shutdown(group: dist.ProcessGroup) -> None:
        if sys.exc_info()[0] is not None:  # a `finally`
            _kept.append(group)
            return
        meeting = f"meeting {next(number)}"
        if store.add(f"{meeting}, so many", 1) == ranks:
            store.set(meeting, "all are there")
        store.wait([meeting])
        own_shutdown.__get__(group)()
        # Its destructor joins Gloo's threads while it holds the GIL, for which one of them may wait.
        _kept.append(group)

    vars(c10d)["rendezvous"], group.shutdown = rendezvous, shutdown
    try:
        with virtual_gpu(count=int(os.environ["LOCAL_WORLD_SIZE"])) if backend == "nccl" else nullcontext():
            yield
            if dist.is_initialized():
                dist.destroy_process_group()
    finally:
        vars(c10d)["rendezvous"], group.shutdown = own_rendezvous, own_shutdown


def _address() -> tuple[str, str]:
    return os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]


@contextmanager
def group(backend: str = "nccl") -> Iterator[torch.device]:
    """The state of a training script after its setup: the process group of all ranks, for NCCL on this rank's GPU."""
    with machine(backend):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if backend == "nccl" else torch.device("cpu")
        if backend == "nccl":
            torch.cuda.set_device(device)
        dist.init_process_group(backend)
        yield device


def in_group(student: Callable[..., Any], *args: Any) -> Any:
    with group():
        return student(*args)

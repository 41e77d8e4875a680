"""What the checks of lesson 12 do on a rank before they call the student's function."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from ..measure import virtual_gpu

_kept: list[dist.ProcessGroup] = []  # until the process ends


@contextmanager
def machine(backend: str = "nccl") -> Iterator[None]:
    """For NCCL the virtual GPUs of this rank's machine. All ranks close their process groups together, and leave with
    none open: who leaves early resets a connection that others still read from. Where an exception leaves it, the
    connections stay, so that the others wait, and that is told."""
    own, number, process_group = dist.ProcessGroup.shutdown, itertools.count(), vars(dist)["ProcessGroup"]
    ranks, port = int(os.environ["WORLD_SIZE"]), int(os.environ["MASTER_PORT"])
    store = TCPStore("127.0.0.1", port, is_master=False)

    def shutdown(group: dist.ProcessGroup) -> None:
        if sys.exc_info()[0] is not None:  # a `finally`
            _kept.append(group)
            return
        meeting = f"gpulab's meeting {next(number)}"
        if store.add(f"{meeting}, so many", 1) == ranks:
            store.set(meeting, "all are there")
        store.wait([meeting])
        own(group)

    process_group.shutdown = shutdown
    try:
        with virtual_gpu(count=int(os.environ["LOCAL_WORLD_SIZE"])) if backend == "nccl" else nullcontext():
            yield
            if dist.is_initialized():
                dist.destroy_process_group()
    finally:
        process_group.shutdown = own


@contextmanager
def group(backend: str = "nccl") -> Iterator[torch.device]:
    """The process group of all ranks of the call, and for NCCL this rank's own virtual GPU, as a training script has
    them when its setup is done."""
    with machine(backend):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if backend == "nccl" else torch.device("cpu")
        if backend == "nccl":
            torch.cuda.set_device(device)
        dist.init_process_group(backend)
        yield device


def in_group(student: Callable[..., Any], *args: Any) -> Any:
    """The call, with this rank's GPU and the group."""
    with group():
        return student(*args)

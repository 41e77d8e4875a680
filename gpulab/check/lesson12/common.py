"""What the checks of lesson 12 do on a rank before they call the student's function."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from ..measure import virtual_gpu
from ..on_rank import CALL


@contextmanager
def group(backend: str = "nccl") -> Iterator[torch.device]:
    """The process group of all ranks of the call, and for NCCL this rank's own virtual GPU, as a training script has
    them when its setup is done. Where an exception leaves it, the ranks end soon."""
    with virtual_gpu(count=int(os.environ["LOCAL_WORLD_SIZE"])) if backend == "nccl" else nullcontext():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if backend == "nccl" else torch.device("cpu")
        if backend == "nccl":
            torch.cuda.set_device(device)
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = PrefixStore(os.environ[CALL], TCPStore(address, port, is_master=False))
        rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group(backend, store=store, rank=rank, world_size=count)
        yield device
        if dist.is_initialized():
            dist.barrier()  # who leaves early resets a connection that others still read from
            dist.destroy_process_group()


def in_group(student: Callable[..., Any], *args: Any) -> Any:
    """The call, with this rank's GPU and the group."""
    with group():
        return student(*args)

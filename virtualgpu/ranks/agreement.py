"""Metadata that DistributedDataParallel exchanges between ranks, with its time and memory.

PyTorch sends it as GPU tensors. Here GPU tensors account for the time, and CPU tensors, which have values in
shapes-only mode too, carry the numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..operations import copies
from ..scope.labels import PINNED, device_of, storage_of
from ..scope.refusals import NotMirrored

if TYPE_CHECKING:
    from ..scope.device import Device

Tensor = torch.Tensor


def on_host(numbers: list[int], dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(numbers, dtype=dtype, device="cpu")


def broadcast_numbers(numbers: list[int], group: Any, device: torch.device) -> list[int]:
    """Return rank 0's `numbers`, as many as these: copied to the GPU, broadcast, copied back (sync_bucket_indices)."""
    host = on_host(numbers, torch.int32)
    there = torch.empty(len(numbers), dtype=torch.int32, device=device)
    there.copy_(host, non_blocking=True)
    group.broadcast([there]).wait()
    charge_copy_to_host(there, host)
    group.broadcast([host]).wait()
    return [int(number) for number in host.tolist()]


def charge_copy_to_host(tensor: Tensor, host: Tensor) -> None:
    """Charge a copy to the host, which knows the numbers already."""
    device = device_of(tensor)
    assert device is not None
    clock = device.timer.clock
    clock.enter()
    copies.charge(host, tensor, non_blocking=False)
    clock.leave()


class UsedMap:
    """Flags of the parameters that some rank has used: on the host, and as a tensor on the GPU that is reduced."""

    def __init__(self, count: int, device: torch.device) -> None:
        self.flags = [0] * count
        self.reduced = False
        self.there = torch.empty(count, dtype=torch.int32, device=device)
        self._work: Any = None
        self._numbers: tuple[Tensor, Any] | None = None

    def reduce(self, group: Any) -> None:
        """Begin the all-reduce, after an asynchronous copy from pinned memory."""
        host = on_host(self.flags, torch.int32)
        setattr(storage_of(host), PINNED, True)
        self.there.copy_(host, non_blocking=True)
        self._work = group.allreduce([self.there])
        self._numbers = host, group.allreduce([host])

    def wait(self) -> None:
        self._work.wait()
        if self._numbers is not None:
            self._numbers[1].wait()

    def fetch(self) -> None:
        """Copy the reduced flags to the host."""
        self.wait()
        assert self._numbers is not None
        host = self._numbers[0]
        charge_copy_to_host(self.there, host)
        self.flags, self.reduced = [int(number) for number in host.tolist()], True

    def clear(self) -> None:
        self.flags = [0] * len(self.flags)
        self.reduced = False


def on_one_gpu(parameters: list[Tensor]) -> Device:
    """Return the GPU of all parameters; raises NotMirrored where they are on several."""
    devices = {device_of(parameter) for parameter in parameters}
    device = devices.pop()
    if devices or device is None:
        raise NotMirrored("DistributedDataParallel of a module on several GPUs is not mirrored")
    return device


def verify_parameters(group: Any, parameters: list[Tensor]) -> None:
    """Raise RuntimeError where a rank's parameters differ from rank 0's in number or shape.

    The number is gathered, and read from the GPU for each rank; sizes and strides come from rank 0
    (PyTorch 2.15, torch/csrc/distributed/c10d/reducer.cpp, verify_params_across_processes).
    """
    where = parameters[0].device
    device = on_one_gpu(parameters)
    rank, size, count = group.rank(), group.size(), len(parameters)
    mine = torch.tensor([count], device=where)
    group.allgather([[torch.empty_like(mine) for _ in range(size)]], [mine]).wait()
    counts = [on_host([count]) for _ in range(size)]
    group.allgather([counts], [on_host([count])]).wait()
    for other, found in enumerate(counts):
        copies.read_back(device)
        if int(found[0]) != count:
            raise RuntimeError(
                f"DDP expects same model across all ranks, but Rank {rank} has {count} params, while rank {other} "
                f"has inconsistent {int(found[0])} params."
            )
    shapes = [number for p in parameters for number in (*p.shape, *p.stride())]
    host = on_host(shapes)
    there = host.to(where)
    group.broadcast([there]).wait()
    charge_copy_to_host(there, host)
    group.broadcast([host]).wait()
    numbers = iter(host.tolist())
    for place, p in enumerate(parameters):
        sizes = f"params[{place}] in this process with sizes {list(p.shape)} appears not to match"
        if any(number != next(numbers) for number in p.shape):
            raise RuntimeError(f"[{rank}]: {sizes} sizes of the same param in process 0.")
        if any(number != next(numbers) for number in p.stride()):
            raise RuntimeError(f"{sizes} strides of the same param in process 0.")

"""The memory of every GPU at this moment: as data, printed, or in the log. One moment only; a run is `timeline`'s."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from virtualgpu.readings import counters
from virtualgpu.readings.counters import DeviceLike
from virtualgpu.readings.source import Numbers, numbers
from virtualgpu.units import MIB, in_mib

_NO_GPU = "no GPU here, so no GPU memory to report; tensors are in the host's memory"


@dataclass(frozen=True)
class GPUMemory:
    """PyTorch's counts on one GPU, in bytes.

    `allocated_bytes`: in live tensors. `reserved_bytes`: held by PyTorch's allocator, those included. `peak_bytes`: the
    most allocated since the peak was last reset. `total_bytes`: the GPU's memory. Other processes and the CUDA context
    are in none of the first three; nvidia-smi counts them too.
    """

    device: str
    numbers: Numbers
    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int
    total_bytes: int

    def __str__(self) -> str:
        parts = (
            f"allocated {in_mib(self.allocated_bytes)}",
            f"reserved {in_mib(self.reserved_bytes)}",
            f"peak {in_mib(self.peak_bytes)}",
        )
        return f"{self.device}: {', '.join(parts)} of {self.total_bytes / MIB:,.0f} MiB, {self.numbers}"


def gpu_memory(device: DeviceLike = "all") -> tuple[GPUMemory, ...]:
    """The counts of every GPU, or of the one that `device` names; empty where there is none.

    `device` is "all", None (the current GPU), a number, a text such as "cuda:1" or a torch.device; ValueError and
    TypeError for anything else, and for an index beyond the last GPU.
    """
    return tuple(
        GPUMemory(
            device=gpu.name,
            numbers=numbers(),
            allocated_bytes=stats.get("allocated_bytes.all.current", 0),
            reserved_bytes=stats.get("reserved_bytes.all.current", 0),
            peak_bytes=stats.get("allocated_bytes.all.peak", 0),
            total_bytes=counters.total_memory(gpu),
        )
        for gpu in counters.find_gpus(counters.parse_device(device))
        for stats in [gpu.counts.memory_stats(gpu.number)]
    )


def print_gpu_memory(label: str = "", device: DeviceLike = "all") -> None:
    """Print allocated, reserved and peak memory in MiB, one line for each GPU; a sentence where there is none."""
    for line in _lines(label, gpu_memory(device)):
        print(line)


def log_memory(
    label: str = "", device: DeviceLike = "all", *, logger: logging.Logger | None = None
) -> tuple[GPUMemory, ...]:
    """Write the same lines to the log at level INFO, and return the counts.

    `logger` is the logger "gpulab.memory" if none is given; INFO shows after `logging.basicConfig(level=logging.INFO)`.
    """
    logger = logger or logging.getLogger("gpulab.memory")
    found = gpu_memory(device)
    for line in _lines(label, found):
        logger.info("%s", line)
    return found


def _lines(label: str, found: tuple[GPUMemory, ...]) -> list[str]:
    start = f"{label}: " if label else ""
    return [f"{start}{line}" for line in (found or (_NO_GPU,))]

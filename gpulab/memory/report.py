"""Reports the current memory of every GPU: as data, printed, or logged."""

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

    `allocated_bytes`: of live tensors. `reserved_bytes`: of PyTorch's allocator, including those. `peak_bytes`: the
    most allocated since the last reset of the peak. `total_bytes`: the GPU's memory. Other processes and the CUDA
    context, which nvidia-smi counts too, are in none of the first three.
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
    """Return the counts of every GPU, or of `device`; empty if there is none.

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
    """Print allocated, reserved and peak memory in MiB, a line for each GPU; without one, a sentence."""
    for line in _lines(label, gpu_memory(device)):
        print(line)


def log_memory(
    label: str = "", device: DeviceLike = "all", *, logger: logging.Logger | None = None
) -> tuple[GPUMemory, ...]:
    """Log the lines of `print_gpu_memory` at level INFO, and return the counts.

    `logger` is by default "gpulab.memory"; INFO shows after `logging.basicConfig(level=logging.INFO)`.
    """
    logger = logger or logging.getLogger("gpulab.memory")
    found = gpu_memory(device)
    for line in _lines(label, found):
        logger.info("%s", line)
    return found


def _lines(label: str, found: tuple[GPUMemory, ...]) -> list[str]:
    start = f"{label}: " if label else ""
    return [f"{start}{line}" for line in (found or (_NO_GPU,))]

"""Watch the memory of real GPUs, through torch.cuda's counters.

The driver is not called before the script has called it: a process that has must not fork.
"""

from __future__ import annotations

from typing import Any

import torch

from .report import Gpu, Memory


class RealGpus:
    """Watches the process's GPUs until `end`; keeps peaks that the script resets."""

    def __init__(self) -> None:
        self._peaks: dict[int, tuple[int, int]] = {}
        self._own: Any = getattr(torch._C, "_cuda_resetPeakMemoryStats", None)
        if self._own is not None:
            torch._C._cuda_resetPeakMemoryStats = self._reset

    def end(self) -> None:
        """Stop watching."""
        if self._own is not None:
            torch._C._cuda_resetPeakMemoryStats = self._own

    def used(self) -> bool:
        """Return True if memory was allocated on one of them."""
        return any(gpu.memory.peak_allocated for gpu in self.gpus())

    def name(self) -> str:
        """Return the product name of the GPU with the highest peak."""
        most = max(self.gpus(), key=lambda gpu: gpu.memory.peak_allocated, default=None)
        return "the real GPU" if most is None else torch.cuda.get_device_name(most.index)

    def gpus(self) -> tuple[Gpu, ...]:
        """Return all GPUs that this process sees; none before CUDA is initialized."""
        if not torch.cuda.is_initialized():
            return ()
        return tuple(Gpu(index, self._memory(index)) for index in range(torch.cuda.device_count()))

    def _reset(self, device: int) -> None:
        self._see(device)
        self._own(device)

    def _see(self, index: int) -> tuple[int, int]:
        """Return the peaks of allocated and reserved bytes since the start."""
        before = self._peaks.get(index, (0, 0))
        now = torch.cuda.max_memory_allocated(index), torch.cuda.max_memory_reserved(index)
        found = self._peaks[index] = max(before[0], now[0]), max(before[1], now[1])
        return found

    def _memory(self, index: int) -> Memory:
        allocated, reserved = self._see(index)
        stats = torch.cuda.memory_stats(index)
        return Memory(
            total=torch.cuda.get_device_properties(index).total_memory,
            peak_allocated=allocated,
            peak_reserved=reserved,
            peak_used=None,
            end_allocated=torch.cuda.memory_allocated(index),
            end_reserved=torch.cuda.memory_reserved(index),
            retries=stats.get("num_alloc_retries", 0),
            failures=stats.get("num_ooms", 0),
        )

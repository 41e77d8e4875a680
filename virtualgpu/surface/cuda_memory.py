"""`torch.cuda` memory functions: statistics, limits, allocation history.

The numbers are the allocator's; summaries, snapshots and their viewer are PyTorch's.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ..memory import history
from ..memory.settings import Settings
from ..scope.device import Device
from ..scope.numbering import device_index, device_number
from ..scope.patches import Patches
from ..scope.refusals import NotMirrored

if TYPE_CHECKING:
    from ..gpu import VirtualGPU

# The four that are asked for in every training loop: PyTorch's way there, through all of the statistics, takes 100
# times as long as an operation.
COUNTS = {
    "memory_allocated": ("allocated_bytes", False),
    "max_memory_allocated": ("allocated_bytes", True),
    "memory_reserved": ("reserved_bytes", False),
    "max_memory_reserved": ("reserved_bytes", True),
}


def install(memory: Memory, patches: Patches) -> None:
    """Replace the functions of Python; those of `torch._C` are `cuda.install`'s business."""
    replaced: dict[str, Callable[..., Any]] = {name: memory.count(*what) for name, what in COUNTS.items()}
    replaced |= {
        "memory_stats": memory.stats,
        "list_gpu_processes": memory.processes,
        "device_memory_used": memory.used,
    }
    for name, function in replaced.items():
        for module in (torch.cuda, torch.cuda.memory):
            if hasattr(module, name):
                patches.set(module, name, function)
    patches.set(torch._C, "_accelerator_setAllocatorSettings", memory.set_settings)


class Memory:
    """The answers for all GPUs of a scope."""

    def __init__(self, gpu: VirtualGPU) -> None:
        self.gpu = gpu
        self._fractions: dict[int, float] = {}

    @contextmanager
    def _drained(self, index: int | None) -> Iterator[Device]:
        """The GPU, with what has died given back, under its lock."""
        try:
            device = self.gpu.device(index)
        except torch.AcceleratorError:
            raise _no_such(index) from None
        with device.lock:
            device.drain()
            yield device

    def count(self, name: str, peak: bool) -> Callable[..., Any]:
        """A function of a device that gives one count."""
        gpu = self.gpu

        def read(device: Any = None) -> int:
            index = device if type(device) is int else device_number(device)
            try:
                found = gpu.device(index)
            except torch.AcceleratorError:
                raise _no_such(index) from None
            with found.lock:
                if found.pending:
                    found.drain()
                statistics = found.allocator.statistics
                return statistics.peak(name) if peak else statistics.current(name)

        return read

    def stats(self, device: Any = None) -> dict[str, Any]:
        """`torch.cuda.memory_stats`."""
        with self._drained(device_number(device)) as found:
            return OrderedDict(found.allocator.memory_stats())

    def info(self, index: Any = None) -> tuple[int, int]:
        number = device_number(index)
        self.gpu.device(number)  # the driver is asked, not the allocator: its error
        with self._drained(number) as device:
            return device.allocator.memory_info()

    def used(self, device: Any = None) -> int:
        """Bytes that the driver counts as used."""
        free, total = self.info(device)
        return total - free

    def processes(self, device: Any = None) -> str:
        """This process is the only one on a virtual GPU."""
        used = self.used(device) / (1 << 20)
        return f"GPU:{device_index(device)}\nprocess {os.getpid():>10d} uses {used:>12.3f} MB GPU memory"

    def set_settings(self, text: str) -> None:
        """The settings of the allocator are given to the scope; only those in force may be set again."""
        if Settings.parse(text) != self.gpu.settings:
            raise NotMirrored(
                f"the allocator's settings ({text!r}) cannot change while the virtual GPU is in force: "
                "VirtualGPU(settings=…) or PYTORCH_ALLOC_CONF takes them"
            )

    def _cuda_memoryStats(self, index: int) -> dict[str, Any]:
        with self._drained(index) as device:
            return _nested(device.allocator.memory_stats())

    def _cuda_resetPeakMemoryStats(self, index: int) -> None:
        with self._drained(index) as device:
            device.allocator.statistics.reset_peak()

    def _cuda_resetAccumulatedMemoryStats(self, index: int) -> None:
        with self._drained(index) as device:
            device.allocator.statistics.reset_accumulated()

    def _cuda_emptyCache(self) -> None:
        for each in self.gpu.devices:
            each.empty_cache()

    def _cuda_setMemoryFraction(self, fraction: float, index: int) -> None:
        with self._drained(index) as device:
            device.allocator.set_memory_fraction(fraction)
            self._fractions[device.index] = float(fraction)

    def _cuda_getMemoryFraction(self, index: int) -> float:
        with self._drained(index) as device:
            return self._fractions.get(device.index, self.gpu.settings.per_process_memory_fraction)

    def _cuda_getAllocatorBackend(self) -> str:
        return "native"

    def _cuda_hostMemoryStats(self) -> dict[str, Any]:
        """Pinned memory is the host's own here: no cache of it is kept."""
        sizes = dict.fromkeys(("current", "peak", "allocated", "freed"), 0)
        times = dict.fromkeys(("total", "max", "min", "count", "avg"), 0)
        names = ["allocations", "allocated_bytes", "active_requests", "active_bytes"]
        return {"num_host_alloc": 0, "num_host_free": 0} | {name: dict(sizes) for name in names} | {
            name: dict(times) for name in ("host_alloc_time", "host_free_time")
        }  # fmt: skip

    def _cuda_resetPeakHostMemoryStats(self) -> None:
        """They are all 0."""

    def _cuda_resetAccumulatedHostMemoryStats(self) -> None:
        """They are all 0."""

    def _cuda_cudaCachingAllocator_raw_alloc(self, size: int, stream: Any) -> int:
        device = self.gpu.device(None)
        label = device.allocate(size)
        address = 0 if label.block is None else label.block.address
        device.raw[address] = label
        return address

    def _cuda_cudaCachingAllocator_raw_delete(self, address: int) -> None:
        for device in self.gpu.devices:
            device.raw.pop(address, None)

    def _cuda_cudaCachingAllocator_enable(self, on: bool) -> None:
        if not on:
            raise NotMirrored("memory without the caching allocator is not mirrored by the virtual GPU")

    def _cuda_cudaCachingAllocator_is_enabled(self) -> bool:
        return True

    # -- its history -------------------------------------------------------------------------------------------------

    def _cuda_record_memory_history(self, enabled: Any, *args: Any, **kwargs: Any) -> None:
        history.record(self.gpu, enabled, args, kwargs)

    def _cuda_record_memory_history_legacy(self, enabled: bool, record_context: bool, most: int, *args: Any) -> None:
        how = ("all" if record_context else None, "python", most)
        history.record(self.gpu, "all" if enabled else None, how, {})

    def _cuda_attach_out_of_memory_observer(self, observer: Any) -> None:
        raise NotMirrored("observers of out-of-memory errors are not mirrored by the virtual GPU")

    def _cuda_isHistoryEnabled(self) -> bool:
        return any(device.history is not None for device in self.gpu.devices)

    def _cuda_memorySnapshot(self, pool: Any = None, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """`pool` is (0, 0) for all, else a private pool's id; newer versions add whether traces are wanted."""
        id = (0, 0) if pool is None else (pool[0], pool[1])
        return history.snapshot(self.gpu, None if id == (0, 0) else id)


def _nested(flat: dict[str, int]) -> dict[str, Any]:
    """The statistics as PyTorch's C++ gives them: "a.b.c" as a dictionary of dictionaries."""
    out: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        inner = out
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return out


def _no_such(index: int | None) -> RuntimeError:
    """PyTorch writes the number as if it were a character."""
    return RuntimeError(f"Invalid device argument {chr((index or 0) & 0x7F)}: did you call init?")

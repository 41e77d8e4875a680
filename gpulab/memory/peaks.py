"""Measures the peak of GPU memory of one call, and limits the memory that PyTorch may reserve: `peak` and `limit`."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from virtualgpu.readings import counters
from virtualgpu.readings.counters import DeviceLike
from virtualgpu.readings.source import Numbers, in_force, numbers_of
from virtualgpu.units import MIB
from virtualgpu.units import mib as in_words

from ..calls import check_function, check_result
from .tracker import GPUMemoryTracker


@dataclass(frozen=True, repr=False)
class Peak:
    """GPU memory of one call, in bytes, as PyTorch's allocator counts it.

    `bytes` is the most that all live tensors held at one moment, `before` what they held at the start. `reserved` is
    the most that the allocator held, with the blocks that it keeps for later. `numbers` is "measured" or "virtual".
    """

    bytes: int
    before: int
    reserved: int
    numbers: Numbers

    @property
    def above(self) -> int:
        """What the call needed beyond what was there: `bytes` less `before`."""
        return self.bytes - self.before

    def __str__(self) -> str:
        return f"peak {in_words(self.bytes)} allocated, {in_words(self.above)} above the start ({self.numbers})"

    __repr__ = __str__


def peak(function: Callable[[], object], *, device: DeviceLike = None) -> Peak:
    """Call `function()` once; return the peak of allocated memory during the call.

        gpulab.memory.peak(lambda: model(x).sum().backward())
        # peak 512.0 MiB allocated, 312.0 MiB above the start (virtual)

    The source is PyTorch's `torch.cuda.max_memory_allocated()`, on a virtual GPU with `compute=False` too. Garbage is
    collected before, and PyTorch's peaks are reset; open GPUMemoryTrackers keep theirs. What `function` returns is
    dropped, so that it occupies nothing afterwards. A first call may need more than later ones: gradients, the
    optimizer's state and workspaces stay. `device` is None (the current GPU), a number, a text such as "cuda:1" or a
    torch.device. `reserved` counts from the last reset of PyTorch's peaks that `function` makes itself.

    Exceptions of `function` pass through, OutOfMemoryError among them. Raises RuntimeError without a GPU, TypeError if
    `function` cannot be called without arguments, or returns a generator or coroutine, whose body has not run.
    """
    check_function(function, "function", "memory.peak")
    gpu = counters.one_gpu(device, "memory.peak")
    gc.collect()
    with GPUMemoryTracker(gpu.name) as tracker:
        check_result(function(), "function", "measure")
    (found,) = tracker.devices
    return Peak(
        bytes=found.peak_bytes,
        before=found.entry_bytes,
        reserved=gpu.counts.max_memory_reserved(gpu.number),
        numbers=numbers_of(gpu.scope),
    )


@contextlib.contextmanager
def limit(mib: float, *, device: DeviceLike = None) -> Iterator[None]:
    """Let PyTorch reserve at most `mib` MiB (2**20 bytes) of one GPU within a `with` block, all in all.

        with gpulab.memory.limit(128):
            train()        # torch.OutOfMemoryError: … 128.00 MiB allowed; …

    All that PyTorch has reserved counts: tensors from before the block, and the workspaces of cuBLAS (on an H200 some
    66 MiB once a product was made, which 128 MiB then include). Unused cached memory is given back first. Blocks may
    nest, and the innermost counts. What was in force before is put back at the end, also after an exception. `device`
    is None (the current GPU), a number, a text such as "cuda:1" or a torch.device.

    The source is `torch.cuda.set_per_process_memory_fraction`, here the fraction of `mib` in the GPU's memory, to the
    byte. Its error names the whole GPU and what is free there, as without a limit; only "… MiB allowed" is the limit.
    The CUDA context (some 500 MiB on a real GPU) is not PyTorch's and does not count, nor do other processes. PyTorch
    reserves in whole segments of 2 or 20 MiB and more, so that less than `mib` may be of use.

    Raises ValueError if `mib` is not above 0 or is more than the GPU has, RuntimeError if more is reserved at the
    start by live tensors, and RuntimeError without a CUDA GPU, real or virtual.
    """
    if isinstance(mib, bool) or not isinstance(mib, (int, float)):
        raise TypeError(f"mib must be a number of MiB such as 128, not {mib!r} ({type(mib).__name__})")
    gpu = counters.one_gpu(device, "memory.limit", only="cuda")
    total = counters.total_memory(gpu)
    if not 0 < mib * MIB <= total:
        raise ValueError(f"mib is {mib!r}; it must be above 0 and at most {total / MIB:,.0f}, the MiB of {gpu.name}")
    import torch

    gc.collect()
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved(gpu.number)
    if reserved > mib * MIB:
        raise RuntimeError(
            f"memory.limit({mib:g}) allows {mib:,.1f} MiB, and PyTorch has {reserved / MIB:,.1f} MiB reserved for live "
            f"tensors on {gpu.name}: delete some, or allow more"
        )
    half = 0.5 / total  # PyTorch rounds fraction * total down to bytes, and a byte less is a whole segment less
    before = torch.cuda.get_per_process_memory_fraction(gpu.number)
    if gpu.scope is None:
        before = min(1.0, before + half)  # it is told as bytes / total
    torch.cuda.set_per_process_memory_fraction(min(1.0, mib * MIB / total + half), gpu.number)
    try:
        yield
    finally:
        if in_force() is gpu.scope:
            torch.cuda.set_per_process_memory_fraction(before, gpu.number)

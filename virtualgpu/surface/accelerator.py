"""`torch.accelerator` on a virtual GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..scope.patches import Patches
from . import streams

if TYPE_CHECKING:
    from ..gpu import VirtualGPU


def install(gpu: VirtualGPU, patches: Patches) -> None:
    """Replace the functions for as long as `gpu` is in force."""

    def stats(index: int) -> dict[str, Any]:
        found: dict[str, Any] = torch._C._cuda_memoryStats(index)
        found.pop("num_oom_rejections", None)  # CUDA's own
        return found

    def exchange(index: int) -> int:
        return int(torch._C._cuda_exchangeDevice(index))

    def capability(index: int) -> dict[str, Any]:
        raise RuntimeError("Backend doesn't support getting device capabilities.")  # as on CUDA

    def empty_cache() -> None:
        torch._C._cuda_emptyCache()

    for name, value in {
        "getAccelerator": lambda: torch.device("cuda"),
        "getDeviceIndex": lambda: gpu.device(None).index,
        "setDeviceIndex": lambda index: torch._C._cuda_setDevice(index),
        "exchangeDevice": exchange,
        "maybeExchangeDevice": exchange,
        "getStream": lambda index: torch.cuda.current_stream(index),
        "setStream": lambda stream: torch.cuda.set_stream(stream),
        "synchronizeDevice": lambda index: gpu.device(index).synchronize(),
        "isAllocatorInitialized": lambda: True,
        "emptyCache": empty_cache,
        "emptyHostCache": gpu.pinned.empty,
        "getDeviceStats": stats,
        "resetPeakStats": lambda index: torch._C._cuda_resetPeakMemoryStats(index),
        "resetAccumulatedStats": lambda index: torch._C._cuda_resetAccumulatedMemoryStats(index),
        "getMemoryInfo": lambda index: torch.cuda.mem_get_info(index),
        "getDeviceCapability": capability,
        "getDefaultGenerator": lambda index: torch.cuda.default_generators[index],
    }.items():
        patches.set(torch._C, f"_accelerator_{name}", value)
    patches.set(torch._C, "_get_accelerator", lambda check=None: torch.device("cuda"))
    patches.set(torch, "Stream", streams.Stream)
    patches.set(torch, "Event", streams.Event)

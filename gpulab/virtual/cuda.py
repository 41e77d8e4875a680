"""What `torch.cuda` asks of CUDA, answered for the virtual GPU.

Mostly the functions of `torch._C` under `torch.cuda`, so that all that PyTorch makes of them in Python (summaries,
statistics, snapshots, device guards) is PyTorch's own.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from . import history, reductions, state, streams
from .device import Device
from .patches import Patches

if TYPE_CHECKING:
    from .gpu import VirtualGPU




class Properties(SimpleNamespace):
    """`torch.cuda.get_device_properties`: what is known of the GPU, and no more."""

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count}, virtual)"
        )


def install(gpu: VirtualGPU, patches: Patches) -> None:
    """Replace the functions for as long as `gpu` is in force."""
    surface = _Surface(gpu)
    for name in [name for name in dir(_Surface) if name.startswith("_cuda_")]:
        patches.set(torch._C, name, getattr(surface, name))
    for name, value in {
        "_initialized": True,
        "_lazy_init": surface.lazy_init,
        "_is_in_bad_fork": surface._cuda_isInBadFork,
        "_is_compiled": lambda: True,
        "is_available": lambda: True,
        "device_count": surface._cuda_getDeviceCount,
        "_exchange_device": surface._cuda_exchangeDevice,
        "_maybe_exchange_device": surface._cuda_maybeExchangeDevice,
        "_get_device_properties": surface.properties,
        "get_arch_list": lambda: [f"sm_{gpu.spec.capability[0]}{gpu.spec.capability[1]}"],
        "current_stream": surface.current_stream,
        "default_stream": surface.default_stream,
        "set_stream": surface.set_stream,
        "is_current_stream_capturing": lambda: False,
        "default_generators": tuple(surface.generators),
        "Stream": streams.Stream,
        "Event": streams.CudaEvent,
        "_cudart": surface.cudart,
        "graph": _refuse("CUDA graphs"),
        "CUDAGraph": _refuse("CUDA graphs"),
        "make_graphed_callables": _refuse("CUDA graphs"),
        "is_bf16_supported": surface.is_bf16_supported,
        "utilization": _refuse("the driver's readings"),
    }.items():
        patches.set(torch.cuda, name, value)
    patches.set(torch.cuda.streams, "Stream", streams.Stream)
    patches.set(torch.cuda.streams, "Event", streams.CudaEvent)
    patches.set(torch.cuda.graphs, "is_current_stream_capturing", lambda: False)
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        patches.set(torch.cuda.nvtx, name, lambda *args, **kwargs: None)


def _refuse(what: str) -> Any:
    from .kernels import NotMirrored

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotMirrored(f"{what} are not mirrored by the virtual GPU")

    return refuse


class _Surface:
    def __init__(self, gpu: VirtualGPU) -> None:
        self.gpu = gpu
        self.generators = []
        for device in gpu.devices:
            generator = streams.Generator("cpu")
            generator.gpulab_device = device.name
            generator.set_state(device.generator.get_state())
            device.generator = generator
            self.generators.append(generator)
        self.cudart = SimpleNamespace(
            cudaMemGetInfo=self.memory_info,
            cudaError=SimpleNamespace(success=0),
            cudaGetErrorString=lambda code: f"CUDA error {code}",
            cudaProfilerStart=lambda: 0,
            cudaProfilerStop=lambda: 0,
        )

    def _device(self, index: int | None = None) -> Device:
        return self.gpu.device(index)

    # -- devices -----------------------------------------------------------------------------------------------------

    def lazy_init(self) -> None:
        if self._cuda_isInBadFork():
            self.gpu.device(None)  # raises
        self.gpu.enter_thread()

    def _cuda_init(self) -> None:
        self.lazy_init()

    def _cuda_isInBadFork(self) -> bool:
        return os.getpid() != self.gpu.process

    def _cuda_getDeviceCount(self) -> int:
        return self.gpu.count

    def _cuda_getDevice(self) -> int:
        return self._device().index

    def _cuda_setDevice(self, index: int) -> None:
        state.thread.device = self._device(index).index

    def _cuda_exchangeDevice(self, index: int) -> int:
        if index < 0:
            return -1
        before = state.thread.device
        self._cuda_setDevice(index)
        return before

    def _cuda_maybeExchangeDevice(self, index: int) -> int:
        return self._cuda_exchangeDevice(index)

    def _cuda_hasPrimaryContext(self, index: int) -> bool:
        return True

    def _cuda_canDeviceAccessPeer(self, index: int, peer: int) -> bool:
        return self.gpu.spec.gpu_link is not None

    def _cuda_getCompiledVersion(self) -> int:
        major, _, minor = (torch.version.cuda or "13.0").partition(".")
        return int(major) * 1000 + int(minor) * 10

    def _cuda_getArchFlags(self) -> str:
        return f"sm_{self.gpu.spec.capability[0]}{self.gpu.spec.capability[1]}"

    def _cuda_synchronize(self) -> None:
        self._device().synchronize()

    def _cuda_ipc_collect(self) -> None:
        """Nothing is shared between processes."""

    def _cuda_clearCublasWorkspaces(self) -> None:
        for device in self.gpu.devices:
            device.workspaces.clear()

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """As PyTorch answers: emulation counts unless it is told otherwise."""
        return including_emulation or self.gpu.spec.capability >= (8, 0)

    def properties(self, index: int) -> Properties:
        spec = self._device(index).spec
        return Properties(
            name=spec.product,
            major=spec.capability[0],
            minor=spec.capability[1],
            total_memory=spec.memory_bytes,
            multi_processor_count=spec.sms,
            max_threads_per_multi_processor=reductions.THREADS_PER_SM[spec.capability],
            regs_per_multiprocessor=65536,
            warp_size=32,
            is_integrated=0,
            is_multi_gpu_board=0,
        )

    # -- memory ------------------------------------------------------------------------------------------------------

    def memory_info(self, index: Any = None) -> tuple[int, int]:
        device = self._device(streams.device_index(index))
        with device.lock:
            device.drain()
            return device.allocator.memory_info()

    def _cuda_memoryStats(self, index: int) -> dict[str, Any]:
        device = self._device(index)
        with device.lock:
            device.drain()
            return _nested(device.allocator.memory_stats())

    def _cuda_resetPeakMemoryStats(self, index: int) -> None:
        device = self._device(index)
        with device.lock:
            device.drain()
            device.allocator.statistics.reset_peak()

    def _cuda_resetAccumulatedMemoryStats(self, index: int) -> None:
        device = self._device(index)
        with device.lock:
            device.drain()
            device.allocator.statistics.reset_accumulated()

    def _cuda_emptyCache(self) -> None:
        for device in self.gpu.devices:
            with device.lock:
                device.synchronize()
                device.drain()
                device.allocator.empty_cache()

    def _cuda_setMemoryFraction(self, fraction: float, index: int) -> None:
        self._device(index).allocator.set_memory_fraction(fraction)

    def _cuda_getMemoryFraction(self, index: int) -> float:
        return float(self._device(index).allocator.memory_fraction)

    def _cuda_getAllocatorBackend(self) -> str:
        return "native"

    def _cuda_hostMemoryStats(self) -> dict[str, Any]:
        return {}

    def _cuda_cudaCachingAllocator_raw_alloc(self, size: int, stream: Any) -> int:
        device = self._device()
        label = device.allocate(size)
        address = 0 if label.block is None else label.block.address
        device.raw[address] = label
        return address

    def _cuda_cudaCachingAllocator_raw_delete(self, address: int) -> None:
        for device in self.gpu.devices:
            device.raw.pop(address, None)

    # -- its history -------------------------------------------------------------------------------------------------

    def _cuda_record_memory_history(self, enabled: Any, *args: Any, **kwargs: Any) -> None:
        history.record(self.gpu, enabled, args, kwargs)

    def _cuda_isHistoryEnabled(self) -> bool:
        return any(device.history is not None for device in self.gpu.devices)

    def _cuda_memorySnapshot(self, mempool: Any = None, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return history.snapshot(self.gpu)

    # -- streams -----------------------------------------------------------------------------------------------------

    def current_stream(self, device: Any = None) -> streams.Stream:
        index = streams.device_index(device)
        return streams.Stream(stream_id=self._device(index).stream, device_index=index, device_type=1)

    def default_stream(self, device: Any = None) -> streams.Stream:
        return streams.Stream(stream_id=0, device_index=streams.device_index(device), device_type=1)

    def set_stream(self, stream: Any) -> None:
        if stream is not None:
            state.thread.device = stream.device_index
            self._device(stream.device_index).stream = stream.stream_id

    def _cuda_setStream(self, stream_id: int, device_index: int, device_type: int) -> None:
        state.thread.device = device_index
        self._device(device_index).stream = stream_id


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

"""`torch.cuda` on a virtual GPU: devices, streams, settings. Memory is in `cuda_memory`.

It replaces mostly functions of `torch._C` under `torch.cuda`, so that PyTorch's Python code above them stays its own.
Functions without an answer are refused by name; nothing reaches the driver.
"""

from __future__ import annotations

import enum
import functools
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from ..gpus import properties
from ..gpus.properties import Properties
from ..operations import watched_threads
from ..scope.device import Device
from ..scope.numbering import device_index
from ..scope.patches import Patches
from ..scope.refusals import NotMirrored
from . import cuda_memory, streams
from .nvtx import Ranges

if TYPE_CHECKING:
    from ..gpu import VirtualGPU

_READINGS = "the driver's readings (utilisation, temperature, power, clocks)"
_POOLS = "pools of memory and other allocators"
_HANDLES = "handles of CUDA's libraries"
REFUSED = {
    "torch.cuda": {
        _READINGS: "utilization memory_usage temperature power_draw clock_rate",
        _POOLS: "CUDAPluggableAllocator change_current_allocator caching_allocator_disabled",
        _HANDLES: "current_blas_handle current_solver_handle",
        "streams of other libraries": "ExternalStream get_stream_from_external",
        "green contexts": "GreenContext",
        "kernels compiled at run time": "_compile_kernel",
    },
    "torch._C": {
        "CUDA graphs": "_cuda_getCheckpointState _cuda_setCheckpointPoolState _acceleratorGraph",
        _POOLS: "_cuda_beginAllocateCurrentStreamToPool _cuda_getAllocator _cuda_changeCurrentAllocator "
        "_cuda_customAllocator _cuda_checkPoolLiveAllocations _cuda_cudaHostAllocator",
        _HANDLES: "_cuda_getCurrentBlasHandle _cuda_getCurrentSolverHandle",
        "streams of other libraries": "_cuda_getStreamFromExternal",
        "kernels compiled at run time": "_cuda_jiterator_compile_and_launch_kernel",
    },
}
"""Functions that raise NotMirrored, by what they would need."""


class CudaError(enum.IntEnum):
    """`torch.cuda.cudart().cudaError`."""

    success = 0


def install(gpu: VirtualGPU, patches: Patches) -> None:
    """Replace the functions for as long as `gpu` is in force."""
    for module, name, refuse in _refusals():
        patches.set(module, name, refuse)
    surface = _Surface(gpu)
    memory = cuda_memory.Memory(gpu)
    for part in (surface, memory):
        for name in [name for name in dir(part) if name.startswith("_cuda_")]:
            patches.set(torch._C, name, getattr(part, name))
    cuda_memory.install(memory, patches)
    for name, value in {
        "_initialized": True,
        "_lazy_init": surface.lazy_init,
        "_is_in_bad_fork": surface._cuda_isInBadFork,
        "_is_compiled": lambda: True,
        "is_available": lambda: True,
        "device_count": surface._cuda_getDeviceCount,
        "_cached_device_count": gpu.count,
        "_exchange_device": surface._cuda_exchangeDevice,
        "_maybe_exchange_device": surface._cuda_maybeExchangeDevice,
        "_get_device_properties": surface.properties,
        "_get_nvml_device_index": device_index,
        "get_arch_list": lambda: [surface._cuda_getArchFlags()],
        "default_generators": tuple(device.generator for device in gpu.devices),
        "Stream": streams.Stream,
        "Event": streams.CudaEvent,
        "_cudart": surface.cudart(memory),
        "is_bf16_supported": surface.is_bf16_supported,
        "_sleep": surface._cuda_sleep,
    }.items():
        patches.set(torch.cuda, name, value)
    if not hasattr(torch._C, "_activate_gpu_trace"):  # as where PyTorch is built without CUDA
        patches.set(torch._C, "_activate_gpu_trace", lambda: None)
    patches.set(torch.cuda.streams, "Stream", streams.Stream)
    patches.set(torch.cuda.streams, "Event", streams.CudaEvent)
    patches.set(torch.backends.cuda, "cufft_plan_cache", _NoPlans())
    patches.set(torch.backends.cuda, "is_built", lambda: True)
    patches.set(torch, "set_default_tensor_type", _default_tensor_type(torch.set_default_tensor_type))
    ranges = Ranges(gpu.clock)
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        patches.set(torch.cuda.nvtx, name, getattr(ranges, name))


@functools.cache
def _refusals() -> list[tuple[Any, str, Any]]:
    """Return the functions that raise NotMirrored: owner, name, replacement; the same for every GPU."""
    found = []
    for where, kinds in REFUSED.items():
        for what, name in ((what, name) for what, names in kinds.items() for name in names.split()):
            module = torch.cuda if where == "torch.cuda" else torch._C
            refuse = _refuse(what, name)
            if isinstance(getattr(module, name, None), type):  # annotations and isinstance need a class
                refuse = type(name, (), {"__new__": refuse, "__module__": where})
            found.append((module, name, refuse))
            if name in torch.cuda.memory.__all__:
                found.append((torch.cuda.memory, name, refuse))
    return found


def _refuse(what: str, name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotMirrored(f"{what} are not mirrored by the virtual GPU ({name} was called)")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__wrapped__ = refuse  # type: ignore[attr-defined]  # dynamo unwraps what it finds here when it is imported
    return refuse


def _default_tensor_type(own: Callable[[Any], None]) -> Callable[[Any], None]:
    def set_default_tensor_type(kind: Any) -> None:
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
        if name.startswith("torch.cuda."):
            raise NotMirrored(
                f"{name} as the default type is not mirrored by the virtual GPU; torch.set_default_device('cuda') and "
                "torch.set_default_dtype do the same"
            )
        own(name)

    return set_default_tensor_type


class _NoPlans:
    """`torch.backends.cuda.cufft_plan_cache` of a GPU on which no FFT has run."""

    size, max_size = 0, 4096

    def __getitem__(self, device: Any) -> _NoPlans:
        device_index(device)
        return self

    def clear(self) -> None:
        """Do nothing: the cache is empty."""


class _Surface:
    def __init__(self, gpu: VirtualGPU) -> None:
        self.gpu = gpu
        for device in gpu.devices:
            if type(device.generator) is not streams.Generator:
                generator = streams.Generator(device.name)
                generator.set_state(device.generator.get_state())
                device.generator = generator

    def cudart(self, memory: cuda_memory.Memory) -> Any:
        def success(*args: Any) -> CudaError:
            return CudaError.success

        names = ["cudaProfilerStart", "cudaProfilerStop", "cudaHostRegister", "cudaHostUnregister"]
        return SimpleNamespace(
            cudaMemGetInfo=memory.info,
            cudaError=CudaError,
            cudaGetErrorString=lambda code: "no error" if code == 0 else f"CUDA error {int(code)}",
            **dict.fromkeys(names, success),
        )

    def _device(self, index: int | None = None) -> Device:
        return self.gpu.device(index)

    # -- devices -----------------------------------------------------------------------------------------------------

    def lazy_init(self) -> None:
        if self._cuda_isInBadFork():
            self.gpu.device(None)  # raises
        watched_threads.enter()

    def _cuda_init(self) -> None:
        self.lazy_init()

    def _cuda_isInBadFork(self) -> bool:
        return os.getpid() != self.gpu.process

    def _cuda_getDeviceCount(self) -> int:
        return self.gpu.count

    def _cuda_getDevice(self) -> int:
        return self._device().index

    def _cuda_setDevice(self, index: int) -> None:
        self.gpu.chosen.number = self._device(index).index

    def _cuda_exchangeDevice(self, index: int) -> int:
        if index < 0:
            return -1
        before = self._device().index
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

    def _cuda_sleep(self, cycles: int) -> None:
        """Launch a kernel that idles for so many cycles of the GPU's clock."""
        device = self._device()
        spec = device.spec
        hertz = (spec.tflops["fp32"] or 1.0) * 1e12 / (2 * spec.fp32_lanes)
        device.timer.kernel(device.stream, cycles / hertz, "_sleep")

    def _cuda_ipc_collect(self) -> None:
        """Nothing is shared between processes."""

    def _cuda_clearCublasWorkspaces(self) -> None:
        for device in self.gpu.devices:
            device.workspaces.clear()

    def _cuda_set_sync_debug_mode(self, mode: int) -> None:
        self.gpu.sync_debug_mode = mode

    def _cuda_get_sync_debug_mode(self) -> int:
        return self.gpu.sync_debug_mode

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """Answer as PyTorch does: emulation counts by default."""
        return including_emulation or self.gpu.spec.capability >= (8, 0)

    def properties(self, index: int) -> Properties:
        return properties.device_properties(self._device(index).spec)

    # -- streams -----------------------------------------------------------------------------------------------------

    def _cuda_getCurrentStream(self, index: int) -> tuple[int, int, int]:
        if index >= self.gpu.count:
            raise RuntimeError(f"Device index value {index} is out of index range [0, {self.gpu.count})")
        device = self._device(index)
        return device.stream, device.index, streams.CUDA

    def _cuda_getCurrentRawStream(self, index: int) -> int:
        return self._device(index).stream

    def _cuda_getDefaultStream(self, index: int) -> tuple[int, int, int]:
        return 0, self._device(index).index, streams.CUDA

    def _cuda_setStream(self, stream_id: int, device_index: int, device_type: int) -> None:
        device = self._device(device_index)
        self.gpu.chosen.number, device.stream = device.index, stream_id

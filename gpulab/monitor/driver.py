"""Reads the current state of real GPUs from NVIDIA's driver; each query may fail without affecting the others.

`gpulab.machine.diagnosis.driver` reads their constant properties.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from virtualgpu.nvml import as_text, attempt

from .reading import Reading, Readings, Slice

T = TypeVar("T")

# The meaning of NVML's errors, by the end of the name of pynvml's class
_SHUT = {
    "ModuleNotFoundError": "the package nvidia-ml-py is missing: pip install nvidia-ml-py",
    "LibraryNotFound": "no NVIDIA driver is installed here",
    "DriverNotLoaded": "NVIDIA's library is here, but its driver is not loaded",
    "LibRmVersionMismatch": "NVIDIA's driver was updated while the old one runs: restart the machine",
    "NoPermission": "NVIDIA's driver does not let this user read it",
}
_UNTOLD = {
    "NotSupported": "this GPU or its driver does not report it",
    "FunctionNotFound": "the driver is too old",
    "NoPermission": "not for this user",
    "GpuIsLost": "the GPU has fallen off the bus: restart the machine",
}


def open_error(error: Exception) -> str:
    """Return a sentence on why NVML does not open."""
    name = type(error).__name__
    known = _SHUT.get(name.removeprefix("NVMLError_"))
    detail = _first_line(error)
    return f"{known or 'NVIDIA’s driver does not answer'} ({name}: {detail}); gpulab.doctor() says more"


def readings(nvml: Any) -> Readings:
    count, error = attempt(lambda: nvml.nvmlDeviceGetCount())
    if error is not None:
        return Readings((), open_error(error))
    if not count:
        return Readings((), "NVIDIA's driver runs, but sees no GPU; gpulab.doctor() says more")
    return Readings(_reading(nvml, index) for index in range(count))


def _reading(nvml: Any, index: int) -> Reading:
    handle, error = attempt(lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    if error is not None:
        return Reading(index, "measured", unread=(f"the GPU: {_why(error)}",))
    unread: list[str] = []

    def query(what: str, call: Callable[[Any], T]) -> T | None:
        value, error = attempt(lambda: call(handle))
        if error is not None:
            unread.append(f"{what}: {_why(error)}")
        return value

    mode = attempt(lambda: nvml.nvmlDeviceGetMigMode(handle))[0]  # most GPUs have no MIG
    mig = bool(mode and mode[0])
    memory = query("memory", lambda gpu: _memory(nvml, gpu))
    rates = None
    if mig:
        unread.append("utilization: not available for a GPU split into MIG slices")
    else:
        rates = query("utilization", lambda gpu: nvml.nvmlDeviceGetUtilizationRates(gpu))
    milliwatts = query("power", lambda gpu: nvml.nvmlDeviceGetPowerUsage(gpu))
    limit = query("power limit", lambda gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu))
    millijoules = query("energy", lambda gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu))
    return Reading(
        index,
        "measured",
        name=as_text(query("name", lambda gpu: nvml.nvmlDeviceGetName(gpu))),
        uuid=as_text(query("UUID", lambda gpu: nvml.nvmlDeviceGetUUID(gpu))),
        used_bytes=memory.used if memory else None,
        total_bytes=memory.total if memory else None,
        utilization=rates.gpu if rates else None,
        memory_utilization=rates.memory if rates else None,
        temperature_c=query("temperature", lambda gpu: _temperature(nvml, gpu)),
        power_w=None if milliwatts is None else milliwatts / 1000,
        power_limit_w=None if limit is None else limit / 1000,
        sm_clock_mhz=query("clock", lambda gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
        energy_j=None if millijoules is None else millijoules / 1000,
        mig=mig,
        slices=_slices(nvml, handle) if mig else (),
        unread=tuple(unread),
    )


def _slices(nvml: Any, gpu: Any) -> tuple[Slice, ...]:
    """Return the existing slices: not every numbered place has one."""
    places = attempt(lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(gpu))[0] or 0
    found = []
    for place in range(places):
        part = attempt(lambda place=place: nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place))[0]  # type: ignore[misc]
        if part is None:
            continue
        memory = attempt(lambda part=part: _memory(nvml, part))[0]  # type: ignore[misc]
        found.append(
            Slice(
                place,
                as_text(attempt(lambda part=part: nvml.nvmlDeviceGetName(part))[0]),  # type: ignore[misc]
                as_text(attempt(lambda part=part: nvml.nvmlDeviceGetUUID(part))[0]),  # type: ignore[misc]
                used_bytes=memory.used if memory else None,
                total_bytes=memory.total if memory else None,
            )
        )
    return tuple(found)


def _memory(nvml: Any, handle: Any) -> Any:
    # The first version counts the driver's reserve as used; nvidia-smi shows the second, of drivers from 510 on.
    second, error = attempt(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2))
    return second if error is None else nvml.nvmlDeviceGetMemoryInfo(handle)


def _temperature(nvml: Any, handle: Any) -> float:
    # CUDA 14 removes the older call, and drivers before 570 do not have the newer one.
    degrees, _ = attempt(lambda: float(nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU)))
    return float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)) if degrees is None else degrees


def _why(error: Exception) -> str:
    known = _UNTOLD.get(type(error).__name__.removeprefix("NVMLError_"))
    return f"{known} ({_first_line(error)})" if known else _first_line(error)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

"""Reads the NVIDIA driver through NVML, and judges its version, its GPUs, their memory and the programs on them.

Each query may fail (an old driver, a MIG slice, Windows, a container) without affecting the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from virtualgpu.nvml import as_text, attempt, nvml_opened
from virtualgpu.units import gib

from .finding import Finding, first_line
from .pytorch import SELECTOR, Torch, version_pair

T = TypeVar("T")

# The oldest driver for all CUDA releases of a major version (NVIDIA's "CUDA Compatibility").
_OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}


@dataclass(frozen=True)
class Process:
    """A program that computes on a GPU; `used` in bytes, None if unknown."""

    pid: int
    name: str | None = None
    used: int | None = None


@dataclass(frozen=True)
class Gpu:
    """One physical GPU; sizes in bytes. Fields that could not be read are None; `unread` says why."""

    index: int
    name: str | None = None
    total: int | None = None
    free: int | None = None
    capability: tuple[int, int] | None = None
    mig: bool = False
    others: tuple[Process, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class Driver:
    """One reading of the driver. With an `error` (class and text) NVML did not start, and all else is unknown."""

    error: str | None = None
    version: str | None = None
    cuda: tuple[int, int] | None = None
    gpus: tuple[Gpu, ...] = ()
    on_bus: int = 0  # NVIDIA display controllers on the PCI bus (Linux)


def read_driver(nvml: Any = None, system: Path = Path("/sys")) -> Driver:
    """Read the driver. `nvml` replaces the module pynvml in tests, `system` replaces /sys."""
    on_bus = _on_bus(system)
    with nvml_opened(nvml) as (nvml, error):
        if error:
            return Driver(error=f"{type(error).__name__}: {first_line(error)}", on_bus=on_bus)
        cuda = attempt(nvml.nvmlSystemGetCudaDriverVersion_v2)[0]
        return Driver(
            version=as_text(attempt(nvml.nvmlSystemGetDriverVersion)[0]),
            cuda=(cuda // 1000, cuda % 1000 // 10) if cuda else None,
            gpus=tuple(_read_gpu(nvml, index) for index in range(attempt(nvml.nvmlDeviceGetCount)[0] or 0)),
            on_bus=on_bus,
        )


def _read_gpu(nvml: Any, index: int) -> Gpu:
    handle, error = attempt(lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    if error:
        return Gpu(index, unread=(f"the GPU: {first_line(error)}",))
    unread: list[str] = []

    def query(what: str, call: Callable[[Any], T]) -> T | None:
        value, error = attempt(lambda: call(handle))
        if error:
            unread.append(f"{what}: {first_line(error)}")
        return value

    name = query("name", nvml.nvmlDeviceGetName)
    memory = query("memory", nvml.nvmlDeviceGetMemoryInfo)
    capability = query("compute capability", nvml.nvmlDeviceGetCudaComputeCapability)
    running = query("programs", nvml.nvmlDeviceGetComputeRunningProcesses)
    mig = attempt(lambda: nvml.nvmlDeviceGetMigMode(handle))[0]  # most GPUs have no MIG
    return Gpu(
        index,
        as_text(name),
        memory.total if memory else None,
        memory.free if memory else None,
        (capability[0], capability[1]) if capability else None,
        bool(mig and mig[0]),
        tuple(
            Process(p.pid, _process_name(nvml, p.pid), p.usedGpuMemory) for p in running or () if p.pid != os.getpid()
        ),
        tuple(unread),
    )


def _process_name(nvml: Any, pid: int) -> str | None:
    name = as_text(attempt(lambda: nvml.nvmlSystemGetProcessName(pid))[0])
    return Path(name).name if name else None


def _on_bus(system: Path) -> int:
    """Return the number of NVIDIA (0x10de) display controllers (class 0x03) on the PCI bus; 0 without /sys."""
    count = 0
    for device in system.glob("bus/pci/devices/*"):
        vendor = attempt((device / "vendor").read_text)[0] or ""
        kind = attempt((device / "class").read_text)[0] or ""
        count += vendor.strip() == "0x10de" and kind.startswith("0x03")
    return count


def judge_driver(driver: Driver, torch: Torch) -> Finding:
    """Judge whether there is a driver, and whether this build of torch runs on it."""
    if driver.error:
        return _no_driver(driver, torch)
    reach = f"CUDA {_dotted(driver.cuda)}" if driver.cuda else "an unknown CUDA version"
    what = f"{driver.version or 'of unknown version'}, for programs up to {reach}"
    if not driver.gpus and not torch.devices:
        return Finding("NVIDIA driver", "ok", f"{what}; it sees no GPU")
    running = any(device.trouble is None for device in torch.devices)
    if torch.version is None or torch.hip or running:
        detail = f"; this torch (CUDA {torch.cuda}) runs on it" if running and torch.cuda else ""
        return Finding("NVIDIA driver", "ok", what + detail)
    if torch.cuda is None:
        return _cpu_only(what, driver, torch)
    wanted = version_pair(torch.cuda)
    if driver.cuda and driver.cuda[0] < wanted[0]:
        return _too_old(what, driver.cuda, wanted, torch)
    if torch.trouble:
        return _hidden_or_ill(what, driver, torch)
    return Finding("NVIDIA driver", "ok", what)


def _no_driver(driver: Driver, torch: Torch) -> Finding:
    name, error = "NVIDIA driver", driver.error or ""
    if torch.devices:
        return Finding(
            name,
            "note",
            f"torch finds its GPU, but the driver's readings are not available ({error})",
            "Lessons that show utilisation and power leave those readings out; pip install nvidia-ml-py "
            "if the module is missing.",
        )
    if "Mismatch" in error:
        return Finding(name, "problem", f"was updated while the old one runs ({error})", "Restart the machine.")
    if driver.on_bus:
        return Finding(
            name,
            "problem",
            f"this machine has an NVIDIA GPU, but its driver does not answer ({error})",
            "Install NVIDIA's driver, 580 or newer for CUDA 13, and restart; in a container, start it with "
            "the GPU (docker run --gpus all). Without it, the lessons run on the virtual GPU.",
        )
    if "NotLoaded" in error:
        return Finding(
            name,
            "note",
            f"its library is installed, but the driver is not loaded ({error})",
            "On a machine with an NVIDIA GPU, restart it, or load the kernel module nvidia; without a GPU "
            "nothing is wrong.",
        )
    return Finding(name, "ok", f"none here ({error}); the lessons do not need one")


def _cpu_only(what: str, driver: Driver, torch: Torch) -> Finding:
    reach = driver.cuda[0] if driver.cuda else None
    fitting = [cuda for cuda, _ in torch.builds if reach is None or version_pair(cuda)[0] <= reach]
    build = f"CUDA {fitting[-1]}" if fitting else f"CUDA {reach or ''}".strip()
    return Finding(
        "NVIDIA driver",
        "problem",
        f"{what}; but torch {torch.version} has no CUDA: it is a CPU-only build and cannot use the GPU",
        f"Install the build of torch for {build} instead ({SELECTOR}; pip needs --force-reinstall). "
        "Until then, the lessons run without the GPU.",
    )


def _too_old(what: str, has: tuple[int, int], wanted: tuple[int, int], torch: Torch) -> Finding:
    oldest = _OLDEST_DRIVER.get(wanted[0])
    update = f"{oldest} or newer" if oldest else f"one for CUDA {wanted[0]}"
    fitting = [cuda for cuda, _ in torch.builds if version_pair(cuda)[0] <= has[0]]
    other = f"CUDA {fitting[-1]}" if fitting else f"CUDA {has[0]}"
    return Finding(
        "NVIDIA driver",
        "problem",
        f"{what}: too old for this torch, which is built for CUDA {_dotted(wanted)}",
        f"Install NVIDIA's driver, {update}, or a build of torch for {other} ({SELECTOR}).",
    )


def _hidden_or_ill(what: str, driver: Driver, torch: Torch) -> Finding:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if any(gpu.mig for gpu in driver.gpus):
        do = (
            "MIG is on: a process sees one slice, and only if one exists. nvidia-smi -L lists the slices; "
            "set CUDA_VISIBLE_DEVICES to the name of one (MIG-…) before Python starts."
        )
    elif visible is not None:
        do = f"CUDA_VISIBLE_DEVICES is {visible!r}, which may hide the GPU: unset it before Python starts."
    else:
        do = "Restart the machine (sleep can leave a driver in this state); if the error stays, reinstall the driver."
    return Finding("NVIDIA driver", "problem", f"{what}; torch cannot start CUDA: {torch.trouble}", do)


def judge_gpus(driver: Driver) -> list[Finding]:
    return [_judge_gpu(gpu) for gpu in driver.gpus]


def _judge_gpu(gpu: Gpu) -> Finding:
    parts = [gpu.name or "of unknown name"]
    if gpu.total is not None and gpu.free is not None:
        parts.append(f"{gib(gpu.free)} of {gib(gpu.total)} free")
    if gpu.capability:
        parts.append(f"compute capability {_dotted(gpu.capability)}")
    if gpu.mig:
        parts.append("MIG is on: a process gets one slice of it")
    parts += [f"not readable: {why}" for why in gpu.unread]
    if not gpu.others:
        return Finding(f"GPU {gpu.index}", "ok", "; ".join(parts))
    users = ", ".join(
        f"{p.name or 'a program'} (pid {p.pid}): {'memory not told' if p.used is None else gib(p.used)}"
        for p in gpu.others
    )
    return Finding(
        f"GPU {gpu.index}",
        "note",
        f"{'; '.join(parts)}; in use by {users}",
        "Their memory is not yours, and their work slows your timings: shut down notebooks that you have "
        "finished with, or choose another GPU with CUDA_VISIBLE_DEVICES.",
    )


def judge_none(driver: Driver, torch: Torch) -> Finding | None:
    """Return a line for a machine without a GPU."""
    if driver.gpus or driver.on_bus or torch.devices or torch.mps_available:
        return None
    return Finding("GPU", "ok", "none that torch knows; every lesson runs without one")


def _dotted(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"

"""Reads and judges PyTorch: its version, its build, and whether each GPU runs a kernel.

Reading initialises CUDA on every device; `subprocess_probe` does so in a subprocess.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import platform
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from virtualgpu.units import gib

from .finding import Finding, first_line

if TYPE_CHECKING:
    import torch

OLDEST = (2, 11)  # the oldest torch the course is tested with
SELECTOR = "the selector on pytorch.org gives the command"
_LITTLE_BYTES = 2**30  # free GPU memory that a lesson needs


@dataclass(frozen=True)
class Device:
    """A CUDA device of torch; sizes in bytes. `trouble` is the error of a kernel on it, None if it runs."""

    index: int
    name: str
    capability: tuple[int, int]
    total: int
    free: int | None = None
    trouble: str | None = None


@dataclass(frozen=True)
class Torch:
    """One reading of torch. Without `version` and `broken` it is not installed; without `cuda` and `hip` CPU-only."""

    version: str | None = None
    broken: str | None = None
    cuda: str | None = None
    hip: str | None = None
    trouble: str | None = None  # why CUDA does not start
    devices: tuple[Device, ...] = ()
    arch_list: tuple[str, ...] = ()  # architectures of the build: sm_90, compute_90, …
    builds: tuple[tuple[str, tuple[int, ...]], ...] = ()  # published CUDA builds of this torch and their sm
    mps_built: bool = False
    mps_available: bool = False


def kernel_trouble(device: torch.device | str) -> str | None:
    """Return the error of a kernel on `device`, None if it runs. Initialises the device."""
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error below says more
            answer = (torch.ones(2, device=device) + 1).sum().item()
    except Exception as error:
        return first_line(error)
    return None if answer == 4 else f"it computes 2 + 2 as {answer}"


def read_torch() -> Torch:
    """Import torch in this process, and initialise CUDA on every device."""
    if importlib.util.find_spec("torch") is None:
        return Torch()
    try:
        import torch
    except Exception as error:
        return Torch(broken=f"{type(error).__name__}: {first_line(error)}")
    machine = "aarch64" if platform.machine().lower() in ("aarch64", "arm64") else "x86_64"
    builds: dict[str, dict[str, set[int]]] = getattr(torch.cuda, "PYTORCH_RELEASES_CODE_CC", {})
    reading = Torch(
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        builds=tuple((cuda, tuple(sorted(codes[machine]))) for cuda, codes in builds.items() if machine in codes),
        mps_built=torch.backends.mps.is_built(),
        mps_available=torch.backends.mps.is_available(),
    )
    if reading.cuda is None and reading.hip is None:
        return reading
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Without a device, the query of the first raises the reason.
            devices = tuple(_read_device(index) for index in range(max(1, torch.cuda.device_count())))
    except Exception as error:
        return dataclasses.replace(reading, trouble=first_line(error))
    return dataclasses.replace(reading, devices=devices, arch_list=tuple(torch.cuda.get_arch_list()))


def _read_device(index: int) -> Device:
    import torch

    properties = torch.cuda.get_device_properties(index)
    try:
        free = torch.cuda.mem_get_info(index)[0]
    except Exception:  # no memory even for the context: the kernel below says so
        free = None
    return Device(
        index,
        properties.name,
        (properties.major, properties.minor),
        properties.total_memory,
        free,
        kernel_trouble(torch.device("cuda", index)),
    )


def version_pair(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version: (2, 15) for 2.15.0+cu132; (0, 0) if it has none."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def has_code(capability: tuple[int, int], arch_list: tuple[str, ...]) -> bool:
    """Return True if code for one of `arch_list` runs on a GPU of this compute capability.

    NVIDIA's rule: binary code (sm) runs on its major version from its minor version upwards, PTX (compute) on all newer
    GPUs; the suffix a restricts it to that version, f to its family.
    """
    for arch in arch_list:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
        if found is None:
            continue
        kind, code, bound = found[1], (int(found[2]), int(found[3])), found[4]
        newer = code[0] == capability[0] and code <= capability
        if kind == "compute" and not bound:
            newer = code <= capability
        if code == capability or (newer and bound != "a"):
            return True
    return False


def judge_install(torch: Torch) -> Finding:
    name = "PyTorch"
    if torch.broken:
        return Finding(
            name,
            "problem",
            f"is installed, but does not start: {torch.broken}",
            "Install it again: pip install --force-reinstall torch. "
            "A file named torch.py beside your notebook has the same effect: rename it.",
        )
    if torch.version is None:
        return Finding(
            name,
            "problem",
            "is not installed in this Python",
            "Run make lab in the course folder, or pip install torch; "
            "a notebook may also use a different Python: see Kernel, Change Kernel.",
        )
    build = "a CPU-only build"
    if torch.cuda or torch.hip:
        build = f"built for CUDA {torch.cuda}" if torch.cuda else f"built for ROCm {torch.hip}"
    if version_pair(torch.version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return Finding(
            name,
            "problem",
            f"{torch.version}, {build}: the course needs {oldest} or newer",
            f'Run pip install --upgrade "torch>={oldest}", then restart the kernel.',
        )
    return Finding(name, "ok", f"{torch.version}, {build}")


def judge_devices(torch: Torch) -> list[Finding]:
    return [_judge_device(device, torch) for device in torch.devices]


def _judge_device(device: Device, torch: Torch) -> Finding:
    name = f"cuda:{device.index}"
    capability = ".".join(map(str, device.capability))
    free = "free memory unknown" if device.free is None else f"{gib(device.free)} free"
    what = f"{device.name}, {gib(device.total)} ({free}), compute capability {capability}"
    covered = torch.hip is not None or has_code(device.capability, torch.arch_list)
    code = "has" if covered else "lists no"
    if device.trouble is None:
        what += f"; this torch {code} code for it and runs on it"
        if device.free is not None and device.free < _LITTLE_BYTES:
            return Finding(name, "problem", what, "Its memory is nearly full: " + _ROOM)
        return Finding(name, "ok", what)
    what += f"; this torch {code} code for it and cannot run on it: {device.trouble}"
    if not covered:
        return Finding(name, "problem", what, _other_build(device.capability, torch))
    if "out of memory" in device.trouble:
        return Finding(name, "problem", what, "Its memory is full: " + _ROOM)
    return Finding(
        name,
        "problem",
        what,
        "Restart the kernel, then the machine; if the error stays, CUDA_VISIBLE_DEVICES chooses another GPU, "
        "and gpulab.setup('T4') runs the lessons without one.",
    )


_ROOM = (
    "shut down other notebooks' kernels and the programs listed for this GPU, "
    "or choose another one with CUDA_VISIBLE_DEVICES before Python starts."
)


def _other_build(capability: tuple[int, int], torch: Torch) -> str:
    fitting = [cuda for cuda, codes in torch.builds if has_code(capability, tuple(f"sm_{c}" for c in codes))]
    if fitting:
        which = f"Install the build of torch for CUDA {fitting[0]}, which has ({SELECTOR})"
    else:
        which = f"Install a build of torch that has ({SELECTOR})"
    return f"{which}, or run the lessons without this GPU: gpulab.setup('T4')."


def judge_apple(torch: Torch) -> Finding | None:
    if torch.mps_available:
        return Finding(
            "Apple's GPU",
            "ok",
            "works. gpulab.setup('real') uses it; the lessons default to the virtual GPU, "
            "so that you get their numbers",
        )
    if torch.mps_built:
        return Finding(
            "Apple's GPU",
            "note",
            "this torch is built for it but does not find it",
            "On a Mac with Apple silicon, update macOS and use a Python for arm64; on another Mac nothing is wrong.",
        )
    return None

"""The helper package of the course "Learn to use a GPU well, on any machine"; its parts load on first use.

`import gpulab` does not import torch, matplotlib or ipywidgets: the parts that need them do.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from virtualgpu import own_code

from .lessons import CODE

__version__ = "0.1.0"

if TYPE_CHECKING:
    from virtualgpu.gpu import VirtualGPU, without_gpu
    from virtualgpu.pictures import style
    from virtualgpu.planning import plan

    from . import capstone, check, crash, data, devices, distributed, memory, monitor, sim, timing, transfers, turn
    from .exercise.base import CheckFailed, NotAttempted
    from .machine.diagnosis import doctor
    from .machine.setup import Machine, setup
    from .memory import GPUMemoryTracker
    from .notebook.annotated import annotated
    from .notebook.certificate import certificate
    from .notebook.predict import predict
    from .notebook.progress import progress
    from .notebook.quiz import quiz
    from .sim.presenting import present

own_code.add(str(Path(__file__).parent), *map(str, CODE))

# The modules of the names that are no submodule of this package; a colon at the end means the module itself.
_HOMES = {
    "CheckFailed": "exercise.base",
    "GPUMemoryTracker": "memory",
    "Machine": "machine.setup",
    "NotAttempted": "exercise.base",
    "VirtualGPU": "virtualgpu.gpu",
    "annotated": "notebook.annotated",
    "certificate": "notebook.certificate",
    "doctor": "machine.diagnosis",
    "plan": "virtualgpu.planning",
    "predict": "notebook.predict",
    "present": "sim.presenting",
    "progress": "notebook.progress",
    "quiz": "notebook.quiz",
    "setup": "machine.setup",
    "style": "virtualgpu.pictures.style:",
    "without_gpu": "virtualgpu.gpu",
}

__all__ = [
    "CheckFailed",
    "GPUMemoryTracker",
    "Machine",
    "NotAttempted",
    "VirtualGPU",
    "__version__",
    "annotated",
    "capstone",
    "certificate",
    "check",
    "crash",
    "data",
    "devices",
    "distributed",
    "doctor",
    "memory",
    "monitor",
    "plan",
    "predict",
    "present",
    "progress",
    "quiz",
    "setup",
    "sim",
    "style",
    "timing",
    "transfers",
    "turn",
    "without_gpu",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        names = ", ".join(export for export in __all__ if export != "__version__")
        raise AttributeError(f"module 'gpulab' has no attribute {name!r}; it has: {names}")
    home, itself, _ = _HOMES.get(name, f"{name}:").partition(":")
    module = import_module(home if home.startswith("virtualgpu") else f"{__name__}.{home}")
    value = module if itself else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

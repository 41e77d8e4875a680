"""gpulab: the helper package behind the course "learn to use a GPU well, on any machine".

Importing it is cheap: torch, matplotlib and ipywidgets are loaded only by the parts that use them.
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
    from .check.base import CheckFailed, NotAttempted
    from .diagnosis import doctor
    from .furniture.annotated import annotated
    from .furniture.certificate import certificate
    from .furniture.predict import predict
    from .furniture.progress import progress
    from .furniture.quiz import quiz
    from .machine import Machine, setup
    from .memory import GPUMemoryTracker

own_code.add(str(Path(__file__).parent), *map(str, CODE))

# name -> the module that holds it, of this package or of virtualgpu; a name that is its own module is given as None
_EXPORTS: dict[str, str | None] = {
    "CheckFailed": "check.base",
    "GPUMemoryTracker": "memory",
    "Machine": "machine",
    "NotAttempted": "check.base",
    "VirtualGPU": "virtualgpu.gpu",
    "annotated": "furniture.annotated",
    "capstone": None,
    "certificate": "furniture.certificate",
    "check": None,
    "crash": None,
    "data": None,
    "devices": None,
    "distributed": None,
    "doctor": "diagnosis",
    "memory": None,
    "monitor": None,
    "plan": "virtualgpu.planning",
    "predict": "furniture.predict",
    "progress": "furniture.progress",
    "quiz": "furniture.quiz",
    "setup": "machine",
    "sim": None,
    "style": "virtualgpu.pictures",
    "timing": None,
    "transfers": None,
    "turn": None,
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
    if name not in _EXPORTS:
        raise AttributeError(f"module 'gpulab' has no attribute {name!r}; it has: {', '.join(sorted(_EXPORTS))}")
    home = _EXPORTS[name]
    module = import_module(home if home and home.startswith("virtualgpu") else f"{__name__}.{home or name}")
    value = module if home is None else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

"""A virtual GPU for PyTorch on machines without one: memory exact to the byte, time from a performance model.

    with virtualgpu.VirtualGPU("T4"):      the scope in which PyTorch finds a T4
    virtualgpu.plan(build, batch=32)       what one training step takes
    python -m virtualgpu run train.py      any script, unmodified, and a report at its end

Its rooms, lowest first; each imports only from those before it and from itself, and none anything of the course:

    gpus        data sheets of GPU models
    memory      PyTorch's caching allocator                        } without torch
    clock       the performance model: virtual time, rates, NCCL   }
    scope       the GPU in force, its devices, labels on storages
    operations  ATen operations below and above autograd
    ranks       process groups: processes with a virtual GPU each
    surface     PyTorch's Python interface to CUDA, replaced
    gpu         `VirtualGPU`, the scope that joins them
    planning    `plan`
    running     `python -m virtualgpu run`
    validate    recordings of real GPUs, compared with the virtual one

Importing this package loads neither torch nor Jupyter, and patches nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .gpu import VirtualGPU, without_gpu
    from .planning import plan

_HOME = {"VirtualGPU": "gpu", "plan": "planning", "without_gpu": "gpu"}
__all__ = ["VirtualGPU", "plan", "without_gpu"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'virtualgpu' has no attribute {name!r}; it has: {', '.join(__all__)}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)

"""Triton kernels, CUDA C++ extensions and `torch.export`, which a virtual GPU cannot run: refused by name.

They are refused by name where they are launched or compiled; an operator of a library may go on without its kernel of
Triton (`operations/foreign.py`). Triton's interpreter (TRITON_INTERPRET=1) runs its kernels
on the host's memory, and that works.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch

from ..operations import foreign
from ..scope.patches import Patches
from ..scope.refusals import NotMirrored


def triton(module: ModuleType, patches: Patches) -> None:
    """`triton.runtime.jit`."""
    patches.set(module.KernelInterface, "__getitem__", _subscripted(module.KernelInterface.__getitem__))
    patches.set(module.JITFunction, "run", _refusing(module.JITFunction.run))


def _subscripted(own: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel[grid]`, also of a kernel with an autotuner around it, which asks the driver before it launches."""

    @functools.wraps(own)
    def __getitem__(self: Any, grid: Any) -> Any:
        launch = own(self, grid)
        return launch if _interpreted(self) else functools.partial(_launch, self, launch)

    return __getitem__


def _launch(kernel: Any, launch: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return None if _reaches_gpu(kernel, (*args, *kwargs.values())) else launch(*args, **kwargs)


def _refusing(own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return None if _reaches_gpu(self, (*args, *kwargs.values())) else own(self, *args, **kwargs)

    return run


def _inner(kernel: Any) -> Any:
    """The function that was written, without what stands around it."""
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel


def _interpreted(kernel: Any) -> bool:
    while hasattr(kernel, "fn"):
        if type(kernel).__name__ == "InterpretedFunction":
            return True
        kernel = kernel.fn
    return False


def _reaches_gpu(kernel: Any, arguments: Iterable[Any]) -> bool:
    """Return True if a kernel gets a tensor on a virtual GPU: it is refused, or an operator goes on without it."""
    for item in arguments:
        tensor = item if isinstance(item, torch.Tensor) else getattr(item, "base", None)  # of a descriptor
        if isinstance(tensor, torch.Tensor) and foreign.on_gpu(tensor):
            foreign.reach(f"{getattr(_inner(kernel), '__name__', '?')}, a kernel of @triton.jit", _INTERPRETER)
            return True
    return False


_INTERPRETER = "Its interpreter works: TRITON_INTERPRET=1, set before triton is imported"


def extensions(module: ModuleType, patches: Patches) -> None:
    """`torch.utils.cpp_extension`: the run-time compilation of `load` and `load_inline`."""
    own = module._jit_compile
    signature = inspect.signature(own)

    @functools.wraps(own)
    def _jit_compile(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs).arguments
        sources = call.get("sources", ())
        sources = [sources] if isinstance(sources, str) else sources
        if call.get("with_cuda") or any(str(source).endswith((".cu", ".cuh")) for source in sources):
            raise NotMirrored(
                f"{call['name']}, an extension with CUDA sources, is not mirrored by the virtual GPU, which runs "
                "PyTorch's operations only"
            )
        return own(*args, **kwargs)

    patches.set(module, "_jit_compile", _jit_compile)


def exporting(module: ModuleType, patches: Patches) -> None:
    """`torch.export`: its tracer makes gradients on a device of the driver's, whose lack ends the process."""

    def refused(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        def export(*args: Any, **kwargs: Any) -> Any:
            raise NotMirrored(
                f"torch.export.{name} is not mirrored by the virtual GPU. Within virtualgpu.without_gpu() it exports a "
                "model that is on the CPU"
            )

        return export

    for name in ("export", "draft_export"):
        patches.set(module, name, refused(name, getattr(module, name)))


CHANGES = {"triton.runtime.jit": triton, "torch.utils.cpp_extension": extensions, "torch.export": exporting}

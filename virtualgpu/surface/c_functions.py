"""Intercept C functions that a program calls through ctypes with a virtual GPU's address.

Such a call would crash the process; `foreign.reach` decides what happens in its place. (Accesses without a call, by
`from_address` or from another language, are not seen.)
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

from ..operations import foreign
from ..scope import in_force
from ..scope.patches import Patches

if TYPE_CHECKING:
    from ..gpu import VirtualGPU

_Function: Any = ctypes._CFuncPtr  # type: ignore[attr-defined]  # of which each library and each prototype has a class
_INSTEAD = (
    "Use PyTorch's own operation or optimizer; or make it an operator of torch.library, which runs on shapes alone, and"
    " with values where it has a kernel for the CPU as well"
)


def install(patches: Patches) -> None:
    """Check the arguments of C functions, also of libraries that are loaded later, while a GPU is in force."""

    def guard(kind: Any) -> None:
        if "__call__" not in vars(kind):
            patches.set(kind, "__call__", _guarded(kind.__call__))

    for kind in _Function.__subclasses__():
        guard(kind)
    own_init, own_prototype = ctypes.CDLL.__init__, ctypes.CFUNCTYPE

    @functools.wraps(own_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        own_init(self, *args, **kwargs)
        guard(self._FuncPtr)

    @functools.wraps(own_prototype)
    def CFUNCTYPE(*args: Any, **kwargs: Any) -> Any:
        kind = own_prototype(*args, **kwargs)
        guard(kind)
        return kind

    patches.set(ctypes.CDLL, "__init__", __init__)
    patches.set(ctypes, "CFUNCTYPE", CFUNCTYPE)


def _guarded(own: Any) -> Any:
    def __call__(self: Any, *args: Any) -> Any:
        if not reaches_gpu(args):
            return own(self, *args)
        foreign.reach(f"{getattr(self, '__name__', 'one of unknown name')}, a C function", _INSTEAD)
        return None if self.restype is None else self.restype().value

    return __call__


def reaches_gpu(args: Any) -> bool:
    """Return True if an argument of a C function is an address on a virtual GPU."""
    gpu = in_force.current
    return gpu is not None and any(_on_gpu(gpu, address) for item in args for address in _addresses(item))


def _on_gpu(gpu: VirtualGPU, address: int) -> bool:
    return any(device.allocator.memory.addresses.covers(address) for device in gpu.devices)


def _addresses(item: Any) -> Iterator[int]:
    """Yield the numbers that an argument passes to C, or that lie behind its pointer."""
    item = getattr(item, "_as_parameter_", item)
    if isinstance(item, int):
        yield item
    elif isinstance(item, ctypes.Array):
        for each in item:
            yield from _addresses(each)
    elif isinstance(item, ctypes._SimpleCData):
        yield from _addresses(item.value)
    elif hasattr(item, "_obj"):  # byref
        yield from _addresses(item._obj)


# -- bitsandbytes ----------------------------------------------------------------------------------------------------
# Its C library depends on PyTorch's build, and on a GPU being present at its import.


def _kernels(module: ModuleType, patches: Patches) -> None:
    """`bitsandbytes.cextension`: functions that its library lacks are skipped like those that it has."""

    def guarded(own: Any) -> Any:
        def __getattr__(self: Any, name: str) -> Any:
            found = own(self, name)
            if not isinstance(found, FunctionType):
                return found

            @functools.wraps(found)
            def call(*args: Any) -> Any:
                if not reaches_gpu(args):
                    return found(*args)
                foreign.reach(f"{name}, a C function", _INSTEAD)
                return 0

            return call

        return __getattr__

    for name in ("BNBNativeLibrary", "ErrorHandlerMockBNBNativeLibrary"):
        kind = vars(module).get(name)
        if kind is not None:  # they have come with 0.46
            patches.set(kind, "__getattr__", guarded(vars(kind)["__getattr__"]))


def _managed(module: ModuleType, patches: Patches) -> None:
    """`bitsandbytes.functional`: its direct uses of CUDA, `cudaMallocManaged` and a cuBLAS handle.

    Managed memory is the host's and the GPU's, and none of PyTorch's allocator: here a tensor of the host.
    """

    def get_paged(*shape: int, dtype: torch.dtype = torch.float32, device: Any = module.FIRST_CUDA_DEVICE) -> Any:
        out: Any = torch.zeros(shape, dtype=dtype, device="cpu")
        out.is_paged, out.page_deviceid = True, device.index
        return out

    def fill(tensor: torch.Tensor, value: float, device: Any = None, prefetch: bool = True) -> None:
        tensor.fill_(value)
        torch.cuda.synchronize()

    patches.set(module, "name2qmap", {})  # a table that is kept on the first GPU that there was
    patches.set(module, "get_paged", get_paged)
    patches.set(module, "fill", fill)
    patches.set(module, "prefetch_tensor", lambda tensor, to_cpu=False: None)
    patches.set(module.CUBLAS_Context, "get_context", lambda self, device: None)


def _registered(module: ModuleType, patches: Patches) -> None:
    """`bitsandbytes`: imported without a GPU, it has not registered its kernels for CUDA (operators since 0.46)."""
    if hasattr(module, "default_ops"):
        importlib.import_module("bitsandbytes.backends.cuda.ops")


def _chosen(module: ModuleType, patches: Patches) -> None:
    """`bitsandbytes.backends.cuda.ops`: its caches of the GPU's properties and of the best kernel."""
    for remembers in [value for value in vars(module).values() if isinstance(value, functools._lru_cache_wrapper)]:
        remembers.cache_clear()
        patches.undo(remembers.cache_clear)


CHANGES = {
    "bitsandbytes.cextension": _kernels,
    "bitsandbytes.functional": _managed,
    "bitsandbytes.backends.cuda.ops": _chosen,
    "bitsandbytes": _registered,
}

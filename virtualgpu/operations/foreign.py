"""Operators that libraries register with `torch.library`: run their CUDA or device-generic kernel.

A kernel in Python runs as it is written, and its parts are seen. What it calls on a GPU's own memory, C functions and
Triton's kernels (`reach`), is left out: the rest still says what memory is taken. Without values nothing is missing
then. With values they come from the operator's kernel for the CPU, which is to give the same; where there is none, the
operator is refused by its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._library import custom_ops

from ..scope.in_force import backing, thread
from ..scope.labels import device_of, storage_of
from ..scope.refusals import NotMirrored, NoValues
from . import cost, host_shapes, shapes_only
from .results import look, place, tensors_in

if TYPE_CHECKING:
    from ..gpu import VirtualGPU
    from ..scope.device import Device

Tensor = torch.Tensor
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
_CPU, _CUDA = map(torch._C.DispatchKeySet, (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA))
_registered = torch.library._impls  # registrations in Python, as "namespace/operator/key"
_has = torch._C._dispatch_has_kernel_for_dispatch_key
# PyTorch's own, of which `dispatch` knows how a GPU runs them.
_PYTORCH = {"aten", "prim", "prims", "c10d", "_c10d_functional", "fsdp", "symm_mem", "_native", "_dtensor"}
_HOST_ONLY = {
    "quantized",
    "_quantized",
    "mkldnn",
    "onednn",
}  # PyTorch's own: what has no kernel for CUDA has none
_ANY = ("CompositeExplicitAutogradNonFunctional", "CompositeExplicitAutograd", "CompositeImplicitAutograd")

SHAPES_ONLY = "shapes alone it runs: VirtualGPU(..., compute=False), in a script `python -m gpulab run --shapes-only`"


def is_foreign(func: Any) -> bool:
    """Return True if a library has defined this operator, or PyTorch through `torch.library`."""
    name = func._schema.name
    namespace = name.partition("::")[0]
    return namespace not in _PYTORCH or (namespace != "prims" and name in custom_ops.OPDEFS)


def run_operator(
    mode: contextlib.AbstractContextManager[Any], native: Any, gpu: VirtualGPU, func: Any, args: Args, kwargs: Kwargs
) -> Any:
    """Run a library's operator; `native` runs it where its kernel is in C++."""
    given = (*args, *kwargs.values())
    device = look(given, None, None, None)[0]
    if device is None:
        named = next((item for item in given if isinstance(item, torch.device) and item.type == "cuda"), None)
        device = None if named is None else gpu.device(named.index)
    if device is None:
        if _written_in(func, "CPU") != "Python" or (_has_fake(func) and host_shapes.any_host_shape(given)):
            return native(gpu, func, args, kwargs)
        with mode:
            return func.redispatch(_CPU, *args, **kwargs)
    where = _written_in(func, "CUDA")
    if where == "Python":
        return _on_gpu(mode, gpu, device, func, args, kwargs)
    host = _written_in(func, "CPU")
    known = host == "C++" and func._schema.name.partition("::")[0] not in _HOST_ONLY
    if where is None and not known and (gpu.compute or not _has_fake(func)):
        return func.redispatch(_CUDA, *args, **kwargs)  # raises PyTorch's error: no such kernel
    if host is None and gpu.compute:
        raise NotMirrored(
            f"{func} is not mirrored by the virtual GPU with values: its kernel for CUDA is in C++, and it has no"
            " kernel for the CPU that could give them. "
            + (f"With {SHAPES_ONLY}" if _has_fake(func) else "Use PyTorch's own operations in its place")
        )
    with backing if host == "Python" else contextlib.nullcontext():
        return native(gpu, func, args, kwargs)


def _written_in(func: Any, key: str) -> str | None:
    """Return the language of the kernel for a dispatch key, "Python" or "C++"; None where there is none."""
    name = func.name()
    for each in (key, *_ANY):
        if _has(name, each):
            return "Python" if f"{name.replace('::', '/')}/{each}" in _registered else "C++"
    return None


def _has_fake(func: Any) -> bool:
    """Return True if it can infer output shapes: `register_fake`, or a kernel for meta tensors."""
    definition = custom_ops.OPDEFS.get(func._schema.name)
    return _has(func.name(), "Meta") if definition is None else definition._abstract_fn is not None


# -- kernels in Python -----------------------------------------------------------------------------------------------


class Kernel:
    """The kernel that this thread runs for an operator, and the calls that it skipped; the `last` one gives values."""

    def __init__(self, func: Any, last: bool) -> None:
        self.func, self.last = func, last
        self.left_out: str | None = None


@contextlib.contextmanager
def _running(func: Any, *, last: bool = False) -> Iterator[Kernel]:
    outer, thread.kernel = thread.kernel, Kernel(func, last)
    try:
        yield thread.kernel
    finally:
        thread.kernel = outer


def reach(what: str, instead: str) -> None:
    """Handle a call `what` that would access real GPU memory.

    Within an operator's kernel it is skipped. Elsewhere NotMirrored names it, and suggests `instead`.
    """
    kernel: Kernel | None = thread.kernel
    if kernel is None:
        raise NotMirrored(
            f"{what}, is not mirrored by the virtual GPU, which runs PyTorch's operations only. {instead}"
        )
    if kernel.last:
        raise _refusal(kernel.func, what)
    kernel.left_out = kernel.left_out or what


def on_gpu(tensor: Tensor) -> bool:
    """Return True if this tensor counts as a GPU's when it is passed to a kernel for GPU cores."""
    return device_of(tensor) is not None or (thread.kernel is not None and thread.kernel.last)


def _refusal(func: Any, what: str) -> NotMirrored:
    return NotMirrored(
        f"{func} is not mirrored by the virtual GPU with values: its kernel for CUDA calls {what}, and it has no kernel"
        f" for the CPU that could give them. With {SHAPES_ONLY}"
    )


def _on_gpu(mode: Any, gpu: VirtualGPU, device: Device, func: Any, args: Args, kwargs: Kwargs) -> Any:
    written = _written(func, args, kwargs)
    with gpu.clock.stopped(), backing:
        before = [tensor.clone() for tensor in written] if gpu.compute else []  # a kernel may write before it calls C
    with _running(func) as kernel:
        try:
            with mode:
                out = func.redispatch(_CUDA, *args, **kwargs)
        except NoValues:
            if not _has_fake(func):
                raise
            out = shapes_only.run_on_meta(gpu, device, func, args, kwargs)
            place(device, out)
            kernel.left_out = "what depends on values"
    if kernel.left_out is None:
        return out
    if gpu.compute:
        if _written_in(func, "CPU") is None:
            raise _refusal(func, kernel.left_out)
        if device.capture is not None and device.capture.covers(device.stream):
            raise NotMirrored(
                f"{func} is not mirrored in a CUDA graph by the virtual GPU with values: its kernel for CUDA calls"
                f" {kernel.left_out}, which a replay would leave out. Without a graph it runs; with {SHAPES_ONLY}"
            )
        with gpu.clock.stopped(), backing, _running(func, last=True):
            for tensor, kept in zip(written, before, strict=True):
                tensor.copy_(kept)
            found = func.redispatch(_CPU, *args, **kwargs)
        out = _in_place_of(device, out, found)
    else:
        for tensor in written:
            if device_of(tensor) is None:
                host_shapes.forget(tensor, func)
    cost.charge(device, func, args, out)
    return out


def _written(func: Any, args: Args, kwargs: Kwargs) -> list[Tensor]:
    """Return the tensors that an operator writes to."""
    named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    writes = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return tensors_in([named.get(name) for name in writes])


def _in_place_of(device: Device, made: Any, found: Any) -> Any:
    """Return `found` on the memory that was allocated for `made`."""
    for one, other in zip(tensors_in(made), tensors_in(found), strict=False):
        taken, storage = storage_of(one), storage_of(other)
        if None not in (taken, storage) and storage._gpulab is None and storage.nbytes() == taken.nbytes():
            storage._gpulab = taken._gpulab
    place(device, found)
    return found

"""Install every replacement in PyTorch that a virtual GPU needs, from one list."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from ..operations import autocast, error_words, watched_threads
from ..scope import ownership
from ..scope.numbering import indexed
from ..scope.patches import Patches
from . import (
    accelerator,
    c_functions,
    compiling,
    creation,
    cuda,
    device_numbers,
    distributed,
    flex,
    graphs,
    host_clock,
    host_shapes,
    import_patches,
    kernels,
    moving,
    profiling,
    saving,
    scatter_gather,
    sharded,
    sharing,
    storages,
    streams,
    tensors,
)

if TYPE_CHECKING:
    from ..gpu import VirtualGPU


def install(gpu: VirtualGPU, patches: Patches) -> None:
    """Replace it all; `patches.restore()` puts it all back."""
    cuda.install(gpu, patches)
    graphs.install(gpu, patches)
    accelerator.install(gpu, patches)
    scatter_gather.install(patches)
    storages.install(patches)
    tensors.install(patches)
    creation.install(patches)
    device_numbers.install(patches)
    profiling.install(gpu, patches)
    compiling.install(gpu, patches)
    distributed.install(gpu, patches)
    sharded.install(patches)
    sharing.install(gpu, patches)
    host_clock.install(gpu, patches)
    c_functions.install(patches)
    import_patches.install(gpu, patches, sharded.CHANGES | kernels.CHANGES | flex.CHANGES | c_functions.CHANGES)
    patches.set(torch, "Generator", streams.Generator)
    for module in (torch, torch.random):
        patches.set(module, "set_rng_state", streams.set_rng_state(module.set_rng_state))
    patches.set(torch._C._nn, "_parse_to", _parse_to)
    patches.set(torch._C, "_group_tensors_by_device_and_dtype", _group)
    patches.set(torch._C, "_is_any_autocast_enabled", _any_autocast)  # the key that mirrors stand on counts as one
    patches.set(torch.autograd, "_make_grads", _gradients_there(torch.autograd._make_grads))
    patches.set(torch.autograd, "_engine_run_backward", _with_words_of_cuda(torch.autograd.graph._engine_run_backward))
    patches.set(torch, "clear_autocast_cache", _clearing(torch.clear_autocast_cache))
    patches.set(threading.Thread, "_bootstrap_inner", _in_threads(vars(threading.Thread)["_bootstrap_inner"]))
    saving.install(patches, gpu.compute)
    if not gpu.compute:
        host_shapes.install(patches)


def _parse_to(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool, Any]:
    """Parse the arguments of `nn.Module.to`."""
    if args and isinstance(args[0], torch.Tensor):
        other, *rest = args
        args = (other.device, other.dtype, *rest)
    if "tensor" in kwargs:
        other = kwargs.pop("tensor")
        args = (other.device, other.dtype, *args)
    device, dtype, non_blocking, copy, _ = moving.parse_to(*args, **kwargs)
    if copy:
        raise RuntimeError(".to() does not accept copy argument")
    if device is not None:
        device = indexed(device)
    return device, dtype, non_blocking, kwargs.get("memory_format")


def _any_autocast() -> bool:
    return any(map(torch.is_autocast_enabled, ("cpu", "cuda")))


def _gradients_there(own: Any) -> Any:
    """Gradients that `backward` is given are on their outputs' devices, or are numbers and are brought there.

    The check is that of validate_grad in autograd's engine, which sees what is behind the GPU.
    """

    def make(outputs: Any, grads: Any, is_grads_batched: bool) -> Any:
        grads = list(grads)
        for index, (output, grad) in enumerate(zip(outputs, grads, strict=False)):
            if not isinstance(output, torch.Tensor) or not isinstance(grad, torch.Tensor):
                continue
            if any(map(torch._C._functorch.is_functorch_wrapped_tensor, (output, grad))):
                continue  # a wrapper of torch.func does not know where what it wraps is
            if grad.device != output.device:
                if grad.dim():
                    raise RuntimeError(
                        f"invalid gradient at index {index} - expected device {output.device} but got {grad.device}"
                    )
                grads[index] = grad.to(output.device)
        return own(outputs, grads, is_grads_batched)

    return make


def _with_words_of_cuda(own: Any) -> Any:
    """Name a saved tensor that was overwritten as CUDA's; the engine sees what is behind the GPU."""

    def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return own(outputs, *args, **kwargs)
        except RuntimeError as error:
            if "modified by an inplace operation" in str(error) and any(output.is_cuda for output in outputs):
                error.args = (error_words.of_saved(str(error)), *error.args[1:])
            raise

    return run


def _group(lists: list[list[Any]], with_indices: bool = False) -> dict[Any, Any]:
    """Group the tensors of optimizers by device and dtype; PyTorch's C++ would see the backing device."""
    groups: dict[Any, Any] = {}
    for index, first in enumerate(lists[0]):
        key = (first.device, first.dtype)
        if key not in groups:
            groups[key] = ([[] for _ in lists], [])
        parts, indices = groups[key]
        for part, whole in zip(parts, lists, strict=True):
            if whole:
                part.append(whole[index])
        if with_indices:
            indices.append(index)
    return groups


def _clearing(own: Any) -> Any:
    def clear_autocast_cache() -> None:
        autocast.clear_cache()
        own()

    return clear_autocast_cache


def _in_threads(own: Any) -> Any:
    """Threads started from now on watch their operations too."""

    def _bootstrap_inner(self: threading.Thread) -> None:
        if isinstance(self, ownership.UnwatchedThread):
            own(self)
            return
        watched_threads.enter()
        try:
            own(self)
        finally:
            watched_threads.leave()

    return _bootstrap_inner

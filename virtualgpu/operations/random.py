"""Random numbers: draw from the GPU's own generator, and reject generators of other devices."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from ..scope.in_force import backing
from ..scope.numbering import generator_device
from . import shapes_only
from .results import place

if TYPE_CHECKING:
    from ..gpu import VirtualGPU
    from ..scope.device import Device

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def check_generator(generator: Any, device: Device) -> None:
    """Accept the generator of another GPU, reject the host's."""
    where = generator_device(generator)
    if where.type != "cuda":
        raise RuntimeError(f"Expected a 'cuda' device type for generator but found '{where.type}'")


def check_host_generator(kwargs: Kwargs) -> None:
    """Reject a GPU's generator in a random operation on the host."""
    generator = kwargs.get("generator")
    if generator is not None and generator_device(generator).type == "cuda":
        raise RuntimeError("Expected a 'cpu' device type for generator but found 'cuda'")


def drawn(gpu: VirtualGPU, device: Device, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run an operation with random numbers from the GPU's own generator."""
    if kwargs.get("generator") is not None:
        check_generator(kwargs["generator"], device)
    if not gpu.compute:
        kwargs = {**kwargs, "generator": None} if "generator" in kwargs else kwargs
        return shapes_only.run_on_meta(gpu, device, func, args, kwargs)
    return draw_numbers(device, func, args, kwargs)


def draw_numbers(device: Device, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run a random operation on the GPU's own generator; the host's stays as it is."""
    generator = kwargs.get("generator") or device.generator
    if takes_generator(func):
        return func._op(*args, **{**kwargs, "generator": generator})
    host = torch.default_generator
    with backing:
        kept = host.get_state()
        host.set_state(generator.get_state())
        try:
            return func._op(*args, **kwargs)
        finally:
            generator.set_state(host.get_state())
            host.set_state(kept)


@cache
def takes_generator(func: Any) -> bool:
    return any(argument.name == "generator" for argument in func._schema.arguments)


def native_dropout(gpu: VirtualGPU, device: Device, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Allocate the mask before the output (dropout_cuda in Dropout.cu)."""
    tensor, p, train = args
    if train is False or p in (0, 1):
        return func._op(*args) if gpu.compute else shapes_only.run_on_meta(gpu, device, func, args, kwargs)
    if not gpu.compute:
        out, mask = shapes_only.run_on_meta(gpu, device, func, args, kwargs)
    else:
        mask = torch.empty(tensor.shape, dtype=torch.bool).bernoulli_(1 - p, generator=device.generator)
    place(device, mask)
    return (tensor * mask * (1 / (1 - p)) if gpu.compute else out), mask

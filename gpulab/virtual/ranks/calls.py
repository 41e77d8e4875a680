"""A collective as a process group is asked for it, and what of its tensors NCCL would take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ..operations.results import place
from ..scope.labels import device_of

if TYPE_CHECKING:
    from ..scope.device import Device

Tensor = torch.Tensor


class Carrier(Protocol):
    """Who brings the values, and what the ranks agree on."""

    def carry(self, call: Call) -> Callable[[], None]:
        """Begin; what is returned ends it, after which the outputs have their values (with values there are any)."""

    def latest(self, call: Call, ready: float) -> Callable[[], float]:
        """Begin to tell the ranks of `call` when each is ready; what is returned knows the latest."""


@dataclass
class Call:
    """A collective: `kind` and `nbytes` as `clock.collectives` takes them, `ranks` the global ones that take part.

    `outputs` and `inputs` are what goes to and comes from each rank of the group in turn, or one tensor where all have
    the same. `root`: the rank within the group that has or gets all; `peer` that of a message.
    """

    kind: str
    outputs: list[Tensor]
    inputs: list[Tensor]
    nbytes: int
    ranks: tuple[int, ...]
    op: tuple[str, float] = ("SUM", 1.0)  # a reduction's name, and what PREMUL_SUM multiplies by before
    root: int = 0
    peer: int = 0
    tag: int = 0


def reduction(op: Any) -> tuple[str, float]:
    kind, factor = op.__getstate__() if hasattr(op, "__getstate__") else (op, None)
    return kind.name, 1.0 if factor is None else float(factor)


def is_asynchronous(opts: Any) -> bool:
    return bool(getattr(opts, "asyncOp", True))


def plain(tensor: Tensor) -> Tensor:
    """The tensor as numbers that can be sent: complex ones are pairs."""
    if tensor.layout is not torch.strided:
        raise ValueError("Tensors must be CUDA and dense")
    tensor = tensor.detach()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def device_among(tensors: Sequence[Tensor]) -> Device | None:
    """The virtual GPU of the tensors; None for those of the host."""
    for tensor in tensors:
        found = device_of(tensor)
        if found is not None:
            return found
    return None


def check(tensors: list[Tensor], device: Device) -> None:
    """RuntimeError where NCCL refuses; what C++ has made meanwhile is put on the GPU."""
    for tensor in tensors:
        if device_of(tensor) is not device:
            place(device, tensor)
        where = device_of(tensor)
        if where is None:
            raise RuntimeError("Tensors must be CUDA and dense")
        if where is not device:
            raise RuntimeError(f"Expected list of tensors on the same device, found {where.name} beside {device.name}")
        if not tensor.is_contiguous() and not tensor.is_contiguous(memory_format=torch.channels_last):
            raise RuntimeError("Tensors must be contiguous")


def equal_parts(tensor: Tensor, count: int, name: str) -> list[Tensor]:
    """A tensor as what belongs to each rank in turn."""
    tensor = plain(tensor)
    if tensor.numel() % count:
        raise ValueError(f"{name} has {tensor.numel()} elements, which are no equal shares for {count} ranks")
    return list(tensor.view(-1).chunk(count)) if tensor.numel() else [tensor.view(-1)] * count


def split(tensor: Tensor, sizes: Any, count: int, name: str) -> list[Tensor]:
    """A tensor as what goes to each rank: rows by `sizes`, equal shares without."""
    if not sizes:
        if tensor.dim() and tensor.shape[0] % count:
            raise RuntimeError(f"Tensor's dim 0 does not divide equally across group size: {tensor.shape[0]}, {count}")
        return equal_parts(tensor, count, name)
    if sum(sizes) != tensor.shape[0]:
        raise RuntimeError(f"Split sizes doesn't match total dim 0 size: {sum(sizes)} of {tensor.shape[0]} ({name})")
    return [part.reshape(-1) for part in tensor.split(list(sizes))]

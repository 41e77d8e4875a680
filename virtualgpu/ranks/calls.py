"""A collective as the process group receives it, with NCCL's checks of its tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import torch

from ..operations.results import place
from ..scope.labels import device_of
from .rank_waits import Wait

if TYPE_CHECKING:
    from ..scope.device import Device

Tensor = torch.Tensor
_T = TypeVar("_T", covariant=True)
_NAMED = 8  # at most so many ranks of a group are listed in a text


@dataclass(frozen=True)
class Awaited(Generic[_T]):
    """Data from other ranks: `take` waits for it, `there` returns True once it has come."""

    take: Callable[[], _T]
    there: Callable[[], bool] = lambda: True


class Carrier(Protocol):
    """Transports values between the ranks, and agrees on their times."""

    def begin(self, call: Call, ready: float | None) -> tuple[Awaited[None], Awaited[float]]:
        """Send the inputs of `call`, and the time at which this rank's GPU is `ready`, if it is a GPU's.

        Returns two awaitables: after the first is taken, the outputs have their values, if any; the second gives the
        time at which all ranks are ready.
        """


@dataclass
class Call:
    """A collective: `kind` and `nbytes` as in `clock.collectives`, `ranks` the participants' global ranks.

    `outputs` and `inputs` are the tensors for and from each rank of the group in turn, or one tensor where all have the
    same. `root`: the rank within the group that has or gets all; `peer` that of a message. `number` counts the
    group's collectives of the GPU from 1; it is 0 for others.
    """

    kind: str
    outputs: list[Tensor]
    inputs: list[Tensor]
    nbytes: int
    ranks: tuple[int, ...]
    op: tuple[str, float] = ("SUM", 1.0)  # a reduction's name, and the factor of PREMUL_SUM
    root: int = 0
    peer: int = 0
    tag: int = 0
    number: int = 0

    @property
    def in_place(self) -> bool:
        return self.kind in ("all_reduce", "broadcast", "reduce")

    @property
    def lane(self) -> str:
        """The queue on the GPU in which calls run in turn: collectives, sends, or receives."""
        return self.kind if self.kind in ("send", "recv") else ""

    @property
    def queue(self) -> tuple[str, int]:
        """The queue in which ranks agree in turn: the messages of a pair do not wait for other ranks."""
        return (self.lane, self.peer if self.lane else 0)

    @cached_property
    def wait(self) -> Wait:
        """The description of the wait for it, the same on all ranks that take part."""
        if self.lane:
            return Wait(
                f"a message of {self.nbytes:,} bytes from rank {self.ranks[0]} to rank {self.ranks[1]}", self.ranks
            )
        size = "" if self.kind == "barrier" else f" of {self.nbytes:,} bytes"
        group = f"{len(self.ranks)} ranks" if len(self.ranks) > _NAMED else f"ranks {', '.join(map(str, self.ranks))}"
        which = f"collective {self.number} of {group}" if self.number else f"on the host, {group}"
        return Wait(f"{self.kind}{size} ({which})", self.ranks)


def reduction(op: Any) -> tuple[str, float]:
    kind, factor = op.__getstate__() if hasattr(op, "__getstate__") else (op, None)
    return kind.name, 1.0 if factor is None else float(factor)


def is_asynchronous(opts: Any) -> bool:
    return bool(getattr(opts, "asyncOp", True))


def as_real(tensor: Tensor) -> Tensor:
    """Return the tensor as real numbers: complex ones become pairs."""
    if tensor.layout is not torch.strided:
        raise ValueError("Tensors must be CUDA and dense")
    tensor = tensor.detach()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def device_among(tensors: Sequence[Tensor]) -> Device | None:
    """Return the virtual GPU of the tensors; None for tensors of the host."""
    for tensor in tensors:
        found = device_of(tensor)
        if found is not None:
            return found
    return None


def check_tensors(call: Call, device: Device) -> None:
    """Raise ValueError where NCCL would (PyTorch 2.15, ProcessGroupNCCL.cpp); label tensors that C++ has made."""
    for tensor in (*call.inputs, *call.outputs):
        if device_of(tensor) is not device:
            place(device, tensor)
        where = device_of(tensor)
        if where is None:
            raise ValueError("Tensors must be CUDA and dense")
        if where is not device:
            raise ValueError(f"Expected list of tensors on the same device, found {where.name} beside {device.name}")
        if not tensor.is_contiguous() and not tensor.is_contiguous(memory_format=torch.channels_last):
            if call.kind not in ("send", "recv"):
                raise ValueError("Tensors must be contiguous")
            warnings.warn(
                "Detected non-contiguous tensor in P2P operations. It is user responsibility to guarantee that source "
                "and destination tensors have the same contiguity format.",
                stacklevel=5,
            )


def flatten_tensors(call: Call) -> None:
    """Replace the tensors of `call` by flat views of their memory, which is what NCCL transfers."""
    call.inputs = [_memory(tensor) for tensor in call.inputs]
    call.outputs = call.inputs if call.in_place else [_memory(tensor) for tensor in call.outputs]


def _memory(tensor: Tensor) -> Tensor:
    return tensor.as_strided((tensor.numel(),), (1,))


def equal_parts(tensor: Tensor, count: int, name: str) -> list[Tensor]:
    """Split a tensor into equal parts, one for each rank in turn."""
    tensor = as_real(tensor)
    if tensor.numel() % count:
        raise ValueError(f"{name} has {tensor.numel()} elements, which {count} ranks cannot share equally")
    return list(tensor.view(-1).chunk(count)) if tensor.numel() else [tensor.view(-1)] * count


def split(tensor: Tensor, sizes: Any, count: int, name: str) -> list[Tensor]:
    """Split a tensor into the part of each rank: rows by `sizes`, equal shares without."""
    if not sizes:
        if tensor.dim() and tensor.shape[0] % count:
            raise RuntimeError(f"Tensor's dim 0 does not divide equally across group size: {tensor.shape[0]}, {count}")
        return equal_parts(tensor, count, name)
    if sum(sizes) != tensor.shape[0]:
        raise RuntimeError(f"Split sizes doesn't match total dim 0 size: {sum(sizes)} of {tensor.shape[0]} ({name})")
    return [part.reshape(-1) for part in tensor.split(list(sizes))]

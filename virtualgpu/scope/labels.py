"""Labels on storages: the virtual GPU that each is on, and the memory block that it holds.

A tensor is where its storage is, so views, parameters and what autograd keeps need nothing of their own. The label
lives on the Python object of the storage, which PyTorch keeps as long as the storage itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ..clock.clock import DeviceClock
    from ..memory.blocks import Block
    from .device import Device

NAME = "_gpulab"  # the attribute; the class has it too, as None, while a virtual GPU exists
PINNED = "_gpulab_pinned"
STAYS = "_gpulab_stays"  # on a result that a GPU's operation leaves on the host

_storage_of = torch._C.TensorBase.untyped_storage


class Label:
    """The storage's GPU and its block there, None for 0 bytes; and the streams that use it beside its own."""

    __slots__ = ("block", "device", "nbytes", "users")

    def __init__(self, device: Device, block: Block | None, nbytes: int) -> None:
        self.device = device
        self.block = block
        self.nbytes = nbytes
        self.users: set[tuple[DeviceClock, int]] | None = None

    def used_by(self, timer: DeviceClock, stream: int) -> None:
        """`Tensor.record_stream`: when it is freed, what this stream has been given by then may still use it."""
        if self.block is not None and (timer is not self.device.timer or stream != self.block.stream):
            self.users = (self.users or set()) | {(timer, stream)}

    def __del__(self) -> None:
        # It may run at any moment, also inside the allocator: the block is only queued here.
        if self.users and self.block is not None:
            until = max(timer.streams.get(stream, 0.0) for timer, stream in self.users)
            self.device.pending.append((until, self.block))
        else:
            self.device.pending.append(self.block)


class Floating:
    """The label of what C++ made for tensors not yet known, with no Python call behind it.

    A composite operation asks for `zeros(…, self.options())`, and its options name the CPU although `self` may be on a
    virtual GPU. Such a tensor joins the GPU of the first labelled tensor that it meets.
    """

    __slots__ = ()
    device = None


FLOATING = Floating()


class _Nowhere:
    """In place of the GPU on labels of the host: one that is not in force."""

    active = False


class HostShape:
    """The label of a host tensor without values, where the GPU has none either (`operations/host_shapes.py`)."""

    __slots__ = ("device", "dtype", "made_by", "nbytes", "shape", "where")
    made = False  # whether there has been one, so that nobody need look where there was none

    def __init__(self, made_by: Any, tensor: torch.Tensor, where: str) -> None:
        HostShape.made = True
        self.device = NOWHERE
        self.made_by, self.where = made_by, where
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype
        self.nbytes = 0  # on no GPU

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        line = f" at {self.where}" if self.where else ""
        return f"a host tensor {self.shape} of {kind}, made by {self.made_by}{line}"


NOWHERE: Any = _Nowhere()


def storage_of(tensor: torch.Tensor) -> Any:
    """The storage, None for a tensor without one (sparse, or a subclass that only wraps others)."""
    try:
        return _storage_of(tensor)
    except (RuntimeError, NotImplementedError):
        return None


def inside(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor in one that only wraps it, such as a rank's part in a DTensor; None in any other."""
    kind = type(tensor)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return None
    try:
        name = _WRAPS[kind]
    except KeyError:
        name = _WRAPS[kind] = _wrapped(tensor)
    if name is None:
        return None
    found: torch.Tensor = getattr(tensor, name)
    return found


def wraps(kind: type) -> bool:
    """Whether tensors of this type only wrap others, of which their operations are made, as torch.distributed's are."""
    return kind.__module__.startswith("torch.distributed.") and hasattr(kind, "__tensor_flatten__")


def _wrapped(tensor: torch.Tensor) -> str | None:
    if not wraps(type(tensor)):
        return None
    names = tensor.__tensor_flatten__()[0]  # type: ignore[attr-defined]
    return next(name for name in names if isinstance(getattr(tensor, name), torch.Tensor))


_WRAPS: dict[type, str | None] = {}


def device_of(tensor: torch.Tensor) -> Device | None:
    """The virtual GPU that a tensor is on, None for the host."""
    inner = inside(tensor)
    if inner is not None:
        return device_of(inner)
    storage = storage_of(tensor)
    if storage is None:
        return _of_parts(tensor)
    label = getattr(storage, NAME, None)
    return label.device if label is not None and (label is FLOATING or label.device.active) else None


def _of_parts(tensor: torch.Tensor) -> Device | None:
    parts = parts_of(tensor)
    return device_of(parts[0]) if parts else None


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that hold a sparse tensor's data."""
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []

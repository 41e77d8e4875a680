"""Labels on storages: the virtual GPU that each is on, and the memory block that it holds.

A tensor is on the device of its storage, so views, parameters and autograd's saved tensors need no label of their own.
The label is an attribute of the storage's Python object, which PyTorch keeps as long as the storage; when it dies, it
gives its block back.
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
    """The storage's GPU, its block there (None for 0 bytes), and other streams that use it (`record_stream`)."""

    __slots__ = ("block", "device", "nbytes", "users")

    def __init__(self, device: Device, block: Block | None, nbytes: int) -> None:
        self.device = device
        self.block = block
        self.nbytes = nbytes
        self.users: set[tuple[DeviceClock, int]] | None = None

    def used_by(self, timer: DeviceClock, stream: int) -> None:
        """`Tensor.record_stream`: once freed, the block is held until this stream's work queued by then is done."""
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
    """The label of a tensor that C++ made without a Python call, whose device is not known yet.

    A composite operation asks for `zeros(…, self.options())`, and its options name the CPU although `self` may be on a
    virtual GPU. Such a tensor joins the GPU of the first labelled tensor that it meets.
    """

    __slots__ = ()
    device = None


FLOATING = Floating()


class _Nowhere:
    """Stands for the GPU in labels of the host: never active."""

    active = False


class HostShape:
    """The label of a host tensor without values, where the GPU has none either (`operations/host_shapes.py`)."""

    __slots__ = ("device", "dtype", "made_by", "nbytes", "shape", "where")
    made = False  # True once there has been one: no need to search before

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
    """Return the storage, None for a tensor without one (sparse, or a wrapper subclass)."""
    try:
        return _storage_of(tensor)
    except (RuntimeError, NotImplementedError):
        return None


def wrapped_tensor(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor within a wrapper subclass, such as a rank's part of a DTensor; None for any other tensor."""
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


def is_wrapper_type(kind: type) -> bool:
    """Return True for wrapper subclasses, whose operations run on the tensors within, such as torch.distributed's."""
    return kind.__module__.startswith("torch.distributed.") and hasattr(kind, "__tensor_flatten__")


def _wrapped(tensor: torch.Tensor) -> str | None:
    if not is_wrapper_type(type(tensor)):
        return None
    names = tensor.__tensor_flatten__()[0]  # type: ignore[attr-defined]
    return next(name for name in names if isinstance(getattr(tensor, name), torch.Tensor))


_WRAPS: dict[type, str | None] = {}


def device_of(tensor: torch.Tensor) -> Device | None:
    """Return the virtual GPU that a tensor is on, None for the host."""
    inner = wrapped_tensor(tensor)
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
    """Return the tensors that hold a sparse tensor's data."""
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []

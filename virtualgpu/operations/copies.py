"""Cost of copies (host to device, between devices, on one device), and implicit synchronizations of the host."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ..scope import gpu_trace, in_force
from ..scope.labels import NAME, PINNED, device_of, storage_of
from . import host_shapes, layouts
from .traffic import traffic

if TYPE_CHECKING:
    from ..scope.device import Device


def charge(into: torch.Tensor, source: torch.Tensor, *, non_blocking: bool) -> None:
    """Charge a copy of `source` to `into` that has been made, in the current streams."""
    to, origin = device_of(into), device_of(source)
    nbytes = traffic(into)
    if not nbytes or (to is None and origin is None):
        return
    if to is origin and to is not None:
        before = to.moved
        seconds = layouts.copying(to, into, source) + to.timer.clock.rates.kernel_s
        to.timer.kernel(to.stream, seconds, "copy_", nbytes=to.moved - before)
    elif to is None or origin is None:
        _over_the_link(to, origin, into, source, non_blocking)
    else:
        rates = origin.timer.clock.rates
        origin.timer.hold(origin.stream, to.timer.streams.get(to.stream, 0.0))
        gpu_trace.stream_waits(origin.stream, to.stream)
        end = origin.timer.kernel(origin.stream, nbytes / (rates.peer_gbps * 1e9), f"copy to cuda:{to.index}")
        to.timer.hold(to.stream, end)
        gpu_trace.stream_waits(to.stream, origin.stream)


def _alike(into: torch.Tensor, source: torch.Tensor) -> bool:
    """Return True if one contiguous block can be copied to the other element by element."""
    if into.shape != source.shape or into.layout is not source.layout:
        return False
    if into.layout is not torch.strided:
        return True
    sides = list(zip(into.stride(), source.stride(), into.shape, strict=True))
    dense = 1 + sum((size - 1) * stride for _, stride, size in sides) == source.numel()
    return dense and all(one == other for one, other, size in sides if size > 1)


def _over_the_link(
    to: Device | None, origin: Device | None, into: torch.Tensor, source: torch.Tensor, non_blocking: bool
) -> None:
    """Charge a copy between host and GPU, with the conversions before or after it.

    Where one block cannot become the other as it is, there are copies in between; another dtype is made on the host,
    with `non_blocking` on the GPU (copy_requires_temporaries and its use in aten/src/ATen/native/cuda/Copy.cu).
    """
    device = to or origin
    assert device is not None
    if device.compute and host_shapes.label_of(source) is not None:  # of another GPU, without values
        raise host_shapes.refusal((source,), "a copy to the GPU")
    same = into.dtype is source.dtype
    sent, source_as_it_is, into_as_it_is = source.dtype, True, True
    if not (same and (_alike(into, source) or not into.dim())):
        whole = source.is_contiguous() and source.shape == into.shape
        if (origin is not None) == non_blocking:
            sent, source_as_it_is, into_as_it_is = into.dtype, same and whole, into.is_contiguous()
        else:
            source_as_it_is, into_as_it_is = whole, same and into.is_contiguous()
    nbytes = into.numel() * sent.itemsize
    if not source_as_it_is:
        _in_between(origin, device, source, nbytes)
    host, as_it_is = (source, source_as_it_is) if to is not None else (into, into_as_it_is)
    way, address = ("to GPU", _address(into) if into_as_it_is else 0) if to is not None else ("to host", 0)
    pinned = as_it_is and _pinned(host)
    end = _cross(device, nbytes, way, pinned, not non_blocking, address)
    gpu = in_force.current
    if pinned and non_blocking and gpu is not None and gpu.under_way is not None:
        gpu.under_way.began(storage_of(host), way, end)
    if not into_as_it_is:
        _in_between(to, device, into, nbytes)


def _in_between(on: Device | None, device: Device, tensor: torch.Tensor, nbytes: int) -> None:
    """Charge a conversion on one side of the link, between `tensor` and the `nbytes` in their transfer layout."""
    clock = device.timer.clock
    if on is None:
        clock.spend(nbytes / (clock.rates.host_copy_gbps * 1e9))
    else:
        on.touch([nbytes])
        moved = nbytes + traffic(tensor)
        on.timer.kernel(on.stream, clock.rates.memory_seconds(moved) + clock.rates.kernel_s, "copy_", nbytes=moved)


def _address(tensor: torch.Tensor) -> int:
    """Return the address of a tensor on a virtual GPU."""
    label = getattr(storage_of(tensor), NAME, None)
    block = None if label is None else label.block
    return 0 if block is None else int(block.address + tensor.storage_offset() * tensor.element_size())


def _cross(device: Device, nbytes: int, way: str, pinned: bool, wait: bool, address: int = 0) -> float:
    if wait or not pinned:
        device.check_capture()
    end = device.timer.copy(device.stream, nbytes, way, pinned=pinned, wait=wait, address=address)
    if wait:  # PyTorch does not report the driver's staging of a pageable non_blocking copy
        gpu_trace.host_waits_for_stream(device.stream)
        waited_unasked()
    return end


class UnderWay(Protocol):
    """Receives asynchronous copies of pinned memory, and the host's accesses to its memory."""

    def began(self, storage: Any, way: str, end: float) -> None:
        """Note a copy; `way` is "to GPU" or "to host", `end` its end on the clock."""

    def waits(self) -> bool:
        """Return True if any is in flight, so that accesses matter."""

    def used(self, storage: Any, *, writes: bool) -> None:
        """Note that the host reads a storage, or writes to it."""


def used_on_host(storage: Any) -> None:
    """Note that Python reads a host storage, or lets others read it."""
    gpu = in_force.current
    if gpu is not None and gpu.under_way is not None and not in_force.thread.inside and gpu.under_way.waits():
        gpu.under_way.used(storage, writes=False)


def send_indices(device: Device, indices: Any) -> None:
    """Charge the copy of host indices to the GPU, for which the host waits (TensorAdvancedIndexing.cpp)."""
    for index in indices:
        if index is not None and device_of(index) is None:
            nbytes = index.nbytes
            if index.dtype in (torch.bool, torch.uint8):  # the host looks up where it is true
                nbytes = 8 * index.dim() * int(index.count_nonzero())
            if nbytes:
                _cross(device, nbytes, "to GPU", _pinned(index), True)


def read_back(device: Device) -> None:
    """Charge a wait of the host for a number: `.item()`, a branch on a tensor, a data-dependent shape."""
    device.check_capture()
    device.timer.copy(device.stream, 8, "to host", pinned=True, wait=True)
    gpu_trace.host_waits_for_stream(device.stream)
    waited_unasked()


def waited_unasked() -> None:
    """Warn or raise for an implicit wait, as `torch.cuda.set_sync_debug_mode` asks."""
    gpu = in_force.current
    if gpu is not None and gpu.sync_debug_mode:
        if gpu.sync_debug_mode == 2:
            raise RuntimeError("called a synchronizing CUDA operation")
        warnings.warn("called a synchronizing CUDA operation", stacklevel=4)


class PinnedCache:
    """Unused page-locked memory by size, which PyTorch keeps, since page-locking is slow."""

    def __init__(self) -> None:
        self._free: dict[int, list[int]] = {}

    def take(self, nbytes: int) -> tuple[PinnedBlock, bool]:
        """Return memory of at least `nbytes` rounded up to a power of two, and True if it had to be page-locked."""
        free = self._free.setdefault(1 << (nbytes - 1).bit_length(), [])
        try:
            size, fresh = free.pop(), False
        except IndexError:
            size, fresh = 1 << (nbytes - 1).bit_length(), True
        return PinnedBlock(free, size), fresh

    def empty(self) -> None:
        """Return all of it to the system."""
        self._free.clear()


class PinnedBlock:
    """Attribute of the storage that holds it; returns the memory to the cache when the storage dies."""

    __slots__ = ("_free", "_size")

    def __init__(self, free: list[int], size: int) -> None:
        self._free, self._size = free, size

    def __del__(self) -> None:
        self._free.append(self._size)


def pin(storage: Any, *, copied: bool) -> None:
    """Make a storage of the host pinned, with the host's time for it; a DataLoader's pin thread works beside it."""
    gpu, nbytes = in_force.current, storage.nbytes()
    if gpu is None or not nbytes:
        setattr(storage, PINNED, True)
        return
    for observer in gpu.on_pin:
        observer(nbytes)
    block, fresh = gpu.pinned.take(nbytes)
    setattr(storage, PINNED, block)
    if "_pin_memory_loop" not in threading.current_thread().name:
        rates = gpu.rates
        if fresh:
            gpu.clock.spend(rates.malloc_us * 1e-6 + nbytes / (rates.pin_gbps * 1e9))
        elif copied:
            gpu.clock.spend(nbytes / (rates.host_copy_gbps * 1e9))


def _pinned(tensor: Any) -> bool:
    storage = storage_of(tensor)
    return storage is not None and bool(getattr(storage, PINNED, False))

"""Futures of collectives: the value exists at once, and streams wait for its virtual completion time.

A callback runs in a stream of its own that waits for the collective, so that its work, such as decompression, overlaps
the backward pass (PyTorch 2.15, ATen/core/ivalue_inl.h, `then`). Waiting for a future makes the current stream wait.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import torch

from ..scope.numbering import stream_numbers

if TYPE_CHECKING:
    from ..scope.device import Device

_POOL = 32  # streams of PyTorch's pool on each GPU, taken in turn (PyTorch 2.15, c10/cuda/CUDAStream.cpp)
_streams: dict[int, Any] = {}


class VirtualFuture(torch.futures.Future[Any]):
    """A future that has its value; `hold` makes the current stream of `device` wait for it."""

    def __init__(self, device: Device | None, hold: Callable[[], None]) -> None:
        super().__init__()
        self._device, self.hold = device, hold

    def wait(self) -> Any:
        self.hold()
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> VirtualFuture:
        device = self._device
        if device is None:
            after = VirtualFuture(None, self.hold)
            _fill(after, callback, self)
            return after
        before, side = device.stream, _next_stream(device)
        device.stream = side
        try:
            self.hold()
            after = VirtualFuture(device, _nothing)
            _fill(after, callback, self)
            end = device.timer.mark(side)
        finally:
            device.stream = before
        after.hold = _holder(device, end)
        if in_backward():  # PyTorch's C++ takes the value without calling `wait`
            at_backward_end(after.hold)
        return after

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.then(callback)


class Outputs(list[Any]):
    """The results of a collective, as the value of its future.

    PyTorch's C++ extracts the tensors by pickling (`_extract_tensors`) after it has waited for the future.
    """

    def __init__(self, tensors: list[torch.Tensor], hold: Callable[[], None]) -> None:
        super().__init__(tensors)
        self._hold = hold

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._hold()
        return list, (list(self),)


def future_of(device: Device | None, tensors: list[torch.Tensor], hold: Callable[[], None]) -> VirtualFuture:
    """Return the future of a collective in flight with the results `tensors`."""
    future = VirtualFuture(device, hold)
    future.set_result(Outputs(tensors, hold))
    return future


def in_backward() -> bool:
    """Return True if this thread is running a backward pass."""
    return torch._C._current_graph_task_id() != -1


def at_backward_end(call: Callable[[], None]) -> None:
    """Queue `call` for the end of the running backward pass, after earlier ones."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def _fill(future: VirtualFuture, callback: Callable[[Any], Any], given: VirtualFuture) -> None:
    """Set a callback's result as the future's value, or its error."""
    try:
        future.set_result(callback(given))
    except Exception as error:
        future.set_exception(error)


def _next_stream(device: Device) -> int:
    """Return the next stream of PyTorch's pool."""
    pool = _streams.get(device.index)
    if pool is None:
        pool = _streams[device.index] = cycle(list(islice(stream_numbers, _POOL)))
    return int(next(pool))


def _holder(device: Device, end: float) -> Callable[[], None]:
    def hold() -> None:
        device.timer.hold(device.stream, end)

    return hold


def _nothing() -> None:
    """Wait for nothing."""

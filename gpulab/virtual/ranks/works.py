"""What a collective gives back: its values, and the time at which the GPU has them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch._C._distributed_c10d as _C

from ..scope.in_force import backing
from . import futures

if TYPE_CHECKING:
    from ..scope.device import Device
    from .calls import Call
    from .group import VirtualGroup

Tensor = torch.Tensor


class VirtualWork(_C.Work):
    """What a collective gives back: `wait` lets the current stream wait for it, as with NCCL, not the host."""

    def __init__(self, group: VirtualGroup, pending: Pending | None, outputs: list[Tensor]) -> None:
        super().__init__()
        self._group, self._pending, self._outputs = group, pending, outputs

    def wait(self, timeout: timedelta | None = None) -> bool:
        if self._pending is not None:
            self._pending.hold()
        return True

    def _hold(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._pending is None or self._pending.done()

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> list[Tensor]:
        return self._outputs

    def get_future(self) -> Any:
        """A future that has its value; who waits for it, waits with the current stream."""
        pending = self._pending
        if pending is None:
            return futures.arriving(None, self._outputs, self._hold)
        pending.carried()
        return futures.arriving(pending.device, self._outputs, pending.hold)


class Pending:
    """A collective on its way: what ends it, and when it will be done, which is known once all ranks have come."""

    def __init__(self, group: VirtualGroup, call: Call, device: Device | None, finish: Any, latest: Any) -> None:
        self.group, self.call, self.device = group, call, device
        self._finish: Callable[[], None] | None = finish
        self._latest: Callable[[], float] = latest
        self.end = 0.0
        self.stream: int | None = None
        self.timed = device is None

    def carried(self) -> None:
        """Its values are there."""
        finish, self._finish = self._finish, None
        if finish is not None:
            with backing:
                finish()

    def settle(self) -> None:
        """Its end is known, and that of all before it."""
        while not self.timed:
            self.group.settle_next()

    def start(self) -> None:
        """Give it its place in time; the group calls this in the order in which the collectives came."""
        self.timed = True
        device = self.device
        assert device is not None
        with backing:
            ready = self._latest()
        seconds, name = self.group.duration(self.call)
        stream = self.group.stream(device) if self.stream is None else self.stream
        self.end = device.timer.collective(stream, ready, seconds, name, self.call.nbytes)

    def hold(self) -> None:
        """The current stream waits for it."""
        self.carried()
        if self.device is not None:
            self.settle()
            self.device.timer.hold(self.device.stream, self.end)

    def done(self) -> bool:
        return self.device is None or (self.timed and self.end <= self.device.timer.clock.host)


class Several(VirtualWork):
    """Some collectives that PyTorch asked for with one call."""

    def __init__(self, group: VirtualGroup, works: list[VirtualWork]) -> None:
        super().__init__(group, None, [out for work in works for out in work._outputs])
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        waited = [work.wait() for work in self._works]
        return all(waited)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def get_future(self) -> Any:
        for work in self._works:
            if work._pending is not None:
                work._pending.carried()
        return super().get_future()

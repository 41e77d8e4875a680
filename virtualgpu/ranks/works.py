"""`Work` objects of collectives: their values, and the time at which the GPU has them."""

from __future__ import annotations

from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any

import torch
import torch._C._distributed_c10d as _C

from ..scope.in_force import backing
from . import futures

if TYPE_CHECKING:
    from ..clock.clock import Clock
    from ..scope.device import Device
    from .calls import Awaited, Call
    from .group import VirtualGroup

Tensor = torch.Tensor


class VirtualWork(_C.Work):
    """The `Work` of a collective: `wait` makes the current stream wait for it, as with NCCL, not the host."""

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
        """Return a future that has its value; waiting for it makes the current stream wait."""
        pending = self._pending
        if pending is None:
            return futures.future_of(None, self._outputs, self._hold)
        pending.carried()
        return futures.future_of(pending.device, self._outputs, pending.hold)


class Pending:
    """A collective in flight. Its end is known once all ranks have entered it.

    This rank's stream `arrived` at it at that time on the clock, and its kernel runs from then on.
    """

    def __init__(
        self,
        group: VirtualGroup,
        call: Call,
        device: Device | None,
        arrived: float,
        values: Awaited[None],
        latest: Awaited[float],
    ) -> None:
        self.group, self.call, self.device, self.arrived = group, call, device, arrived
        self._values: Awaited[None] | None = values
        self._latest = latest
        self.end = 0.0
        self.stream: int | None = None
        self.timed = device is None

    @property
    def known(self) -> bool:
        """True if its end can be computed without waiting for another rank."""
        return self.timed or self._latest.there()

    @property
    def come(self) -> bool:
        """True if `over` would not wait; False for messages."""
        return not self.call.lane and self.known and (self._values is None or self._values.there())

    def carried(self) -> None:
        """Wait for its values."""
        values = self._values
        if values is not None:
            with backing, torch.no_grad():
                values.take()
            self._values = None
        self._let_go()

    def settle(self) -> None:
        """Determine its end, and that of all before it."""
        while not self.timed:
            self.group.settle_next(self.call)

    def start(self) -> None:
        """Schedule it; the group calls this in the order of the collectives."""
        self.timed = True
        assert self.device is not None
        with backing:
            ready = self._latest.take()
        self.end = self.group.place(self.call, self.device, self.stream, self.arrived, ready)
        self._let_go()

    def _let_go(self) -> None:
        """Release its tensors once it has its values and its end."""
        if self.device is not None and self.timed and self._values is None:
            self.device.timer.unsettled.pop(self, None)

    def over(self) -> None:
        """Wait on the host for its values, and determine its end."""
        self.carried()
        self.settle()

    def hold(self) -> None:
        """Make the current stream wait for it."""
        self.over()
        if self.device is not None:
            self.device.timer.hold(self.device.stream, self.end)

    def done(self) -> bool:
        """Return True if the GPU has completed it by now; for host tensors, if its values are there."""
        if self.device is None:
            if self._values is not None and not self._values.there():
                return False
        else:
            self.group.settle_known(self.call)
            if not self.device.timer.clock.reached(self.end if self.timed else inf):
                return False
        self.carried()
        return True


class Barrier(VirtualWork):
    """A barrier, for which the host waits; a GPU's ends when the current stream has reached it."""

    def __init__(self, group: VirtualGroup, pending: Pending, clock: Clock, latest: Awaited[float]) -> None:
        super().__init__(group, pending, [])
        self._clock, self._latest = clock, latest

    def wait(self, timeout: timedelta | None = None) -> bool:
        super().wait()
        pending = self._pending
        with backing:
            until = self._latest.take() if pending is None or pending.device is None else pending.end
        self._clock.wait(until, "barrier")
        return True


class Several(VirtualWork):
    """Several collectives of one call."""

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

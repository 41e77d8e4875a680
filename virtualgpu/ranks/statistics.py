"""DistributedDataParallel's runtime statistics: events in the first ten iterations, which the host waits for.

At the start of an iteration the host waits for the events of the last one: after each of the first ten, later after one
in a hundred (PyTorch 2.15, torch/csrc/distributed/c10d/logger.cpp, reducer.hpp and reducer_cuda.cpp).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..scope.device import Device

_FIRST, _RATE = 10, 100
_DIFFERENCES = {
    "forward_compute_time": ("forward_start", "backward_compute_start"),
    "backward_compute_time": ("backward_compute_start", "backward_compute_end"),
    "backward_comm_time": ("backward_comm_start", "backward_comm_end"),
    "backward_compute_comm_overlap_time": ("backward_comm_start", "backward_compute_end"),
}


class Statistics:
    """Events on `device`'s current stream; None where the parameters are on the host."""

    def __init__(self, device: Device | None) -> None:
        self.device = device
        self.rate = _RATE
        self.iterations = 0
        self.nanoseconds: dict[str, int] = {}  # by the names of `_get_ddp_logging_data`
        self._events: dict[str, float] = {}
        self._recorded = 0

    @property
    def collects(self) -> bool:
        count = self.iterations
        return count > 0 and (count <= _FIRST or count % self.rate == 0)

    def record(self, event: str) -> None:
        if self.device is not None and self.collects:
            self._events[event] = self.device.timer.mark(self.device.stream)

    def collect(self) -> None:
        """Wait on the host for the events of the last iteration, if it is sampled."""
        device = self.device
        if device is None or not self.collects:
            return
        self._recorded += 1
        clock = device.timer.clock
        for name, (start, end) in _DIFFERENCES.items():
            if start not in self._events or end not in self._events:
                continue
            for event in (start, end):
                clock.call()
                clock.wait(self._events[event], "DistributedDataParallel's runtime statistics")
            clock.call()
            passed = round(1e9 * (self._events[end] - self._events[start]))
            if passed >= 0:
                mean = self.nanoseconds.get(f"avg_{name}", 0)
                self.nanoseconds[name] = passed
                self.nanoseconds[f"avg_{name}"] = (passed + mean * (self._recorded - 1)) // self._recorded

"""The readings of the virtual GPUs, taken from their books: nothing is launched, waited for, or given back.

An onlooker in another thread changes no number: `torch.cuda.mem_get_info` and `time.perf_counter` would.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from .reading import Reading, Readings

_UNREAD = "memory utilization, temperature, power, clock, energy: not modelled"
_FIRST = "utilization: of the time between two readings, and this is the first"


@dataclass(frozen=True)
class _Mark:
    """A moment: seconds on the clock, seconds in which each GPU's kernels have run by then, and how busy each was."""

    at: float
    ran: tuple[float, ...]
    busy: tuple[float | None, ...]


class VirtualReader:
    """Reads the GPUs in force again and again; their utilization is that of the time since the reading before."""

    def __init__(self) -> None:
        self._clock: weakref.ref[Any] | None = None
        self._mark: _Mark | None = None

    def read(self, gpu: Any) -> tuple[float, Readings]:
        """Seconds on the clock of `gpu` (a VirtualGPU in force), and one reading for each of its GPUs.

        The first reading of a clock has no utilization: no time has been looked at yet.
        """
        if self._clock is None or self._clock() is not gpu.clock:
            self._clock, self._mark = weakref.ref(gpu.clock), None
        mark = self._mark = _look(gpu, self._mark)
        return mark.at, Readings(_reading(device, i, mark.busy[i]) for i, device in enumerate(gpu.devices))


def _look(gpu: Any, before: _Mark | None) -> _Mark:
    at, ran = gpu.clock.seen(), tuple(_ran(gpu.clock, index) for index in range(len(gpu.devices)))
    if before is None:
        return _Mark(at, ran, (None,) * len(ran))
    # A copy that has been queued since may put off the end: what has run stays run.
    ran = tuple(map(max, ran, before.ran))
    passed = at - before.at
    if passed <= 0:  # this machine is at work on one operation: nothing new is known
        return before
    return _Mark(
        at, ran, tuple(min(100.0, 100 * (now - then) / passed) for now, then in zip(ran, before.ran, strict=True))
    )


def _ran(clock: Any, index: int) -> float:
    """Seconds that kernels have run by now: those given to the GPU, less what is still to come."""
    return float(clock.busy(index) - max(0.0, clock.now(index) - clock.host))


def _reading(device: Any, index: int, busy: float | None) -> Reading:
    with device.lock:
        free, total = device.allocator.memory_info()
    return Reading(
        index,
        "virtual",
        name=device.spec.product,
        device=f"cuda:{index}",
        used_bytes=total - free,
        total_bytes=total,
        utilization=busy,
        unread=(_UNREAD,) if busy is not None else (_FIRST, _UNREAD),
    )

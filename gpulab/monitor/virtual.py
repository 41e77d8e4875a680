"""Reads virtual GPUs from their model without side effects on it: no launch, no wait, no free.

So a reader in another thread changes no number, as `torch.cuda.mem_get_info` and `time.perf_counter` would.
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
    """A moment: seconds on the clock, and for each GPU the seconds of its kernels so far and its utilization."""

    at: float
    ran: tuple[float, ...]
    busy: tuple[float | None, ...]


class VirtualReader:
    """Reads the GPUs in force repeatedly; their utilization is that since the previous reading."""

    def __init__(self) -> None:
        self._clock: weakref.ref[Any] | None = None
        self._mark: _Mark | None = None

    def read(self, gpu: Any) -> tuple[float, Readings]:
        """Return the seconds on the clock of `gpu` (a VirtualGPU in force), and a reading of each of its GPUs.

        The first reading of a clock has no utilization.
        """
        if self._clock is None or self._clock() is not gpu.clock:
            self._clock, self._mark = weakref.ref(gpu.clock), None
        mark = self._mark = _look(gpu, self._mark)
        return mark.at, Readings(_reading(device, i, mark.busy[i]) for i, device in enumerate(gpu.devices))


def _look(gpu: Any, before: _Mark | None) -> _Mark:
    at, ran = gpu.clock.seen(), tuple(_ran(gpu.clock, index) for index in range(len(gpu.devices)))
    if before is None:
        return _Mark(at, ran, (None,) * len(ran))
    # A copy queued since may delay the end, but time that has run does not decrease.
    ran = tuple(map(max, ran, before.ran))
    passed = at - before.at
    if passed <= 0:  # this machine still computes one operation
        return before
    return _Mark(
        at, ran, tuple(min(100.0, 100 * (now - then) / passed) for now, then in zip(ran, before.ran, strict=True))
    )


def _ran(clock: Any, index: int) -> float:
    """Return the seconds that kernels have run so far: all queued ones less the pending ones."""
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

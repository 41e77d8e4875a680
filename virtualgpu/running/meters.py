"""Read time and memory of a GPU at a mark: from the virtual clock, or by CUDA events."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from ..clock.timeline import communication
from .report import Between, GpuTime

if TYPE_CHECKING:
    from ..gpu import VirtualGPU
    from .memory_watch import MemoryWatch


class Meter(Protocol):
    """Reads a GPU at a mark. The times of `reading` may be anything that `seconds` can convert to seconds.

    `counts_host`: True if the host's own work, such as loading data, is in these times.
    """

    counts_host: bool

    def reading(self, device: Any) -> tuple[Any, int]:
        """Return the time on the GPU's clock and the allocated bytes."""

    def mark(self, device: Any) -> Any:
        """Return the time at which all work that is queued now would be done, as of an event."""

    def seconds(self, marks: list[Any]) -> list[float] | None:
        """Return the times of readings, in seconds since some moment; None where they cannot be read any more."""

    def between(self, device: Any, marks: list[Any]) -> Between | None:
        """Return the communication of a step, None where there is none or it is not known."""
        return None

    def busy(self, marks: list[Any]) -> float | None:
        """Return the share of time from first to last mark in which kernels ran, None where it is not known."""
        return None

    def python(self, marks: list[Any]) -> float | None:
        """Return the seconds of the host's own work beside PyTorch's calls, None where it is not known."""
        return None

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """Return a block that takes none of the time that is read, for the watcher's own work."""
        return contextlib.nullcontext()


class VirtualMeter(Meter):
    """Reads a scope's clock, and its watches.

    A mark is (time at which all work is done, seconds with a kernel running, seconds of the host's own work).
    """

    def __init__(self, gpu: VirtualGPU, watches: list[MemoryWatch]) -> None:
        self.clock = gpu.clock
        self.counts_host = gpu.counts_host
        self.source = gpu.rates.source
        self.watches = watches

    def reading(self, device: Any) -> tuple[Any, int]:
        """Return the mark and the allocated bytes."""
        watch = self.watches[device.index or 0]
        with watch.device.lock:
            watch.device.drain()
        index = device.index or 0
        return (self.clock.now(index), self.clock.busy(index), self.clock.own), watch.allocated

    def mark(self, device: Any) -> Any:
        """Return the mark of an event."""
        return max(self.clock.now(device.index or 0), self.clock.host), 0.0, 0.0

    def seconds(self, marks: list[Any]) -> list[float] | None:
        """Return the time at which all work was done, at each mark."""
        return [done for done, *_ in marks]

    def time(self, index: int) -> GpuTime:
        """Return the totals of GPU `index` up to now."""
        clock = self.clock
        elapsed = max(clock.now(index), clock.host) - self.watches[index].began
        kernels = clock.kernels(index)
        launch = clock.launching(index) / kernels if kernels else 0.0
        flops = clock.flops(index), clock.flop_seconds(index)
        computing = clock.computing(index)
        return GpuTime(elapsed, computing, clock.waited, launch, kernels, *flops, self.source)

    def between(self, device: Any, marks: list[Any]) -> Between | None:
        """Return the collectives of the last steps, as many as the record holds."""
        spans = self.clock.record
        if not spans:
            return None
        began = spans[0].start
        ends = [done for done, *_ in marks if done >= began]
        if len(ends) < 2:
            return None
        found = communication([s for s in spans if s.start < ends[-1]], device.index or 0, ends[0])
        if not found.collectives:
            return None
        steps = len(ends) - 1
        parts = found.seconds, found.exposed, found.collectives, found.nbytes, found.waited
        return Between(steps, *(part / steps for part in parts))

    def busy(self, marks: list[Any]) -> float | None:
        """Return the share of the GPU's time between first and last mark that its kernels took."""
        (began, busy, _), (ended, busy_then, _) = marks[0], marks[-1]
        return (busy_then - busy) / (ended - began) if ended > began else None

    def python(self, marks: list[Any]) -> float | None:
        """Return the seconds that the clock has counted as the host's own, if it counts them."""
        return marks[-1][2] - marks[0][2] if self.counts_host else None

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """Stop the clock."""
        return self.clock.stopped()


class RealMeter(Meter):
    """Reads torch.cuda; a mark is an event on the current stream. The rest only a profiler could tell, and the clock
    cannot be stopped."""

    counts_host = True

    def reading(self, device: Any) -> tuple[Any, int]:
        """Record an event; return it and the allocated bytes."""
        import torch

        return self.mark(device), torch.cuda.memory_allocated(device)

    def mark(self, device: Any) -> Any:
        """Record an event."""
        import torch

        with torch.cuda.device(device):
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        return event

    def seconds(self, marks: list[Any]) -> list[float] | None:
        """Return the events' times after waiting for the last of them; None on a GPU that has failed."""
        try:
            marks[-1].synchronize()
            return [marks[0].elapsed_time(mark) / 1e3 for mark in marks]
        except RuntimeError:  # a kernel's error, which the script has seen already
            return None

"""Times a block of code by events of a GPU, or by the host's clock without a GPU.

`clock_of` returns the clock, `clock.pair()` a start and an end. Nothing waits for the GPU until a time is read.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from virtualgpu.readings import counters
from virtualgpu.readings.counters import DeviceLike, Gpu
from virtualgpu.readings.source import Numbers
from virtualgpu.scope import in_force

if TYPE_CHECKING:
    import torch


class HostPair:
    """A start and an end on the host's clock."""

    how = "host clock"
    device = "cpu"

    def start(self) -> None:
        self._modelled = _modelled()
        self._start = time.perf_counter()

    def end(self) -> None:
        self._end = time.perf_counter()
        self.calls = _modelled() != self._modelled  # True if a virtual GPU was used in between

    def idle(self) -> None:
        """Record that the whole GPU is idle."""

    def ms(self) -> float:
        return (self._end - self._start) * 1e3

    def idle_after_ms(self) -> float:
        """Milliseconds from the end to `idle`."""
        return 0.0

    @property
    def numbers(self) -> Numbers:
        """The origin of `ms`."""
        return "virtual" if self.calls else "measured"


class EventPair:
    """A start and an end on a GPU's own clock: two events on the stream that is current at the start.

    A virtual GPU's clock stands still while the host computes. So a block that does not use the virtual GPU gets the
    host's time, as a real GPU's clock would show.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._host = HostPair()
        self._start, self._end, self._idle = (_event(gpu.type) for _ in range(3))

    def start(self) -> None:
        self._stream: Any = self._gpu.counts.current_stream(self._gpu.number)
        self._start.record(self._stream)
        self._host.start()

    def end(self) -> None:
        self._host.end()
        self._end.record(self._stream)

    def idle(self) -> None:
        """Record that the whole GPU is idle; call it after synchronising."""
        self._idle.record(self._stream)

    def idle_after_ms(self) -> float:
        """Milliseconds from the end to `idle`: remaining work of other streams, and the host's time to synchronise."""
        if self._of_host:
            return 0.0
        self._idle.synchronize()
        return float(self._end.elapsed_time(self._idle))

    def ms(self) -> float:
        """Milliseconds from start to end; waits for the end."""
        if self._of_host:
            return self._host.ms()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end))

    @property
    def how(self) -> str:
        if self._of_host:
            return self._host.how
        return "CUDA events" if self._gpu.type == "cuda" else f"{self._gpu.type} events"

    @property
    def device(self) -> str:
        return self._host.device if self._of_host else self._gpu.name

    @property
    def numbers(self) -> Numbers:
        """The origin of `ms`."""
        return "virtual" if self._gpu.scope is not None and not self._of_host else "measured"

    @property
    def _of_host(self) -> bool:
        return self._gpu.scope is not None and not self._host.calls


Pair = HostPair | EventPair


class Clock:
    """Makes pairs for one GPU, or for the host where `gpu` is None."""

    def __init__(self, gpu: Gpu | None) -> None:
        self._gpu = gpu

    def synchronize(self) -> None:
        """Wait for the GPU; the CPU is done when a call returns."""
        if self._gpu is not None:
            self._gpu.counts.synchronize(self._gpu.number)

    def pair(self) -> Pair:
        return HostPair() if self._gpu is None else EventPair(self._gpu)


def clock_of(device: DeviceLike, who: str) -> Clock:
    """Return the clock of the GPU `device`, of the current one for None; the host's without a GPU and for "cpu".

    Raises TypeError if it is no device, ValueError if it does not exist; `who` names the caller in the message.
    """
    found = counters.parse_device(device)
    if found == "all":
        raise ValueError(f'{who} reads the clock of one GPU, so device must not be "all"; time each GPU by itself')
    gpus = counters.find_gpus(found)
    if gpus:
        return Clock(gpus[0])
    if found is not None and found.type != "cpu":
        raise ValueError(
            f"device is {str(found)!r}, but there is no such GPU here; leave it out to use the default device, or "
            "gpulab.setup() gives you a virtual GPU"
        )
    return Clock(None)


def _modelled() -> float | None:
    """Return the host's time on a virtual GPU's clock, which advances with each call to the GPU and only then."""
    gpu = in_force.current
    return None if gpu is None else gpu.clock.host


def _event(type_: str) -> torch.Event:
    import torch

    if type_ == "cuda":
        return torch.cuda.Event(enable_timing=True)
    return torch.Event(device=type_, enable_timing=True)

"""Times a block of code by the GPU's clock and by the host's, with `Timer`.

It waits for the GPU only when a time is read, so that it does not change the timed code.
"""

from __future__ import annotations

import time

from virtualgpu.readings import counters
from virtualgpu.readings.counters import DeviceLike
from virtualgpu.readings.source import Numbers, in_force
from virtualgpu.units import duration_ms

from .clocks import Pair, clock_of


class Timer:
    """Times a `with` block twice: until the GPU has done the block's work, and until the host has queued it.

        with timing.Timer() as t:
            y = model(x)
        t.ms         # on the GPU: from where the block's work could start to its end
        t.host_ms    # on the host: how long queueing it took; the GPU may go on long after
        print(t)     # 4.120 ms on cuda:0, 0.210 ms on the host (measured, CUDA events)

    `host_ms` is the misleading time of a host's clock without `torch.cuda.synchronize()`: that of the launch. If it is
    the larger one, the GPU waits for the host. (On a virtual GPU it includes this machine's own time and varies; `ms`
    is exactly reproducible.)

    `device` is None (the GPU that is current at entry), a number, a text such as "cuda:1" or a torch.device. With
    "cpu", and without a GPU, both times are the host's. Both events are on the stream that is current at entry: work of
    other streams counts only as far as that one waits for it. Work queued before the block delays its start and is not
    counted.

    Reading `ms` waits for the end event; entering and leaving do not wait, so that Timers may nest and be inside a
    training step. Reading before the end of the block raises RuntimeError. An exception ends the block, passes through,
    and leaves the times up to there. A Timer can be used again; entering an open one raises RuntimeError. If a virtual
    GPU begins or ends within the block, there is no time to read.
    """

    def __init__(self, device: DeviceLike = None, *, label: str = "") -> None:
        if not isinstance(label, str):
            raise TypeError(f"label must be a text, not {label!r} ({type(label).__name__})")
        try:
            self._device = counters.parse_device(device)
        except ValueError as error:
            hint = f" A label is given by name: Timer(label={device!r})." if isinstance(device, str) else ""
            raise ValueError(f"{error}.{hint}") from None
        if self._device == "all":
            raise ValueError('Timer reads the clock of one GPU, so device must not be "all"; open one for each GPU')
        self.label = label
        self._pair: Pair | None = None
        self._open = False

    def __enter__(self) -> Timer:
        if self._open:
            raise RuntimeError(f"{self._title()} is already open: use another Timer for a second block")
        pair = clock_of(self._device, "Timer").pair()
        self._scope = in_force()
        self._ms: float | None = None
        pair.start()
        self._pair, self._open, self._ended = pair, True, False
        self._began = time.perf_counter()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        ended = time.perf_counter()
        if not self._open or self._pair is None:
            raise RuntimeError(f"{self._title()} is not open")
        self._open = False
        self._host_ms = (ended - self._began) * 1e3
        if in_force() is not self._scope:
            return
        try:
            self._pair.end()
            self._ended = True
        except RuntimeError:
            if error is None:  # else the GPU failed in the block, whose exception says more
                raise

    @property
    def ms(self) -> float:
        """Milliseconds on the GPU; waits until it has done the block's work."""
        pair = self._closed()
        if self._ms is None:
            self._ms = pair.ms()
        return self._ms

    @property
    def host_ms(self) -> float:
        """Milliseconds on the host from entry to the end of the block, without waiting for the GPU."""
        self._closed()
        return self._host_ms

    @property
    def how(self) -> str:
        """The clock that `ms` is read from: "CUDA events" or "host clock"."""
        return self._closed().how

    @property
    def numbers(self) -> Numbers:
        """The origin of the times: "measured" or "virtual"."""
        return self._closed().numbers

    def _closed(self) -> Pair:
        if self._pair is None:
            raise RuntimeError(f"{self._title()} has timed nothing yet: use it as `with timing.Timer() as t:`")
        if self._open:
            raise RuntimeError(f"{self._title()} is still open: read its times after the `with` block")
        if not self._ended:
            raise RuntimeError(
                f"{self._title()} has no time: a virtual GPU was started or ended within its block, or the GPU failed"
            )
        return self._pair

    def _title(self) -> str:
        return f"Timer {self.label!r}" if self.label else "this Timer"

    def __repr__(self) -> str:
        start = f"{self.label}: " if self.label else ""
        if self._pair is None or self._open or not self._ended:
            return f"{start}{'still open' if self._open else 'nothing timed'}"
        if self._pair.device == "cpu":
            return f"{start}{duration_ms(self.ms)} on the host ({self.numbers}, {self.how})"
        return (
            f"{start}{duration_ms(self.ms)} on {self._pair.device}, {duration_ms(self.host_ms)} on the host "
            f"({self.numbers}, {self.how})"
        )

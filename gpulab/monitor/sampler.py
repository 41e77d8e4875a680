"""One thread that reads the GPUs again and again, until it is told to end or its time is up.

It knows neither notebooks nor pictures: `show_to` tells it who wants to look after each sample.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from .reader import Reader
from .reading import Readings
from .summary import Sample

JOIN_SECONDS = 5.0  # a driver that hangs must not hang the program with it


class Sampler:
    """Samples every `every` real seconds, for at most `seconds`; the first when it starts, the last when it ends.

    What its onlookers raise is kept in `trouble`, and the sampling goes on.
    """

    def __init__(self, every: float, seconds: float | None = None, *, nvml: Any = None) -> None:
        self.every = every
        self.seconds = seconds
        self.trouble: Exception | None = None
        self._look: Callable[[], None] = _nothing
        self._ended: Callable[[], None] = _nothing
        self._reader = Reader(nvml)
        self._samples: list[Sample] = []
        self._clock: object | None = None
        self._at = 0.0
        self._end = threading.Event()
        self._dropped = False
        self._thread: threading.Thread | None = None

    @property
    def samples(self) -> Sequence[Sample]:
        return tuple(self._samples)

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def show_to(self, look: Callable[[], None], ended: Callable[[], None]) -> None:
        """Call `look` after each sample, and `ended` once after the last; both in the sampling thread."""
        self._look, self._ended = look, ended

    def start(self) -> None:
        """Take the first sample, then go on in a thread."""
        self._take()
        self._thread = threading.Thread(target=self._run, name="gpulab.monitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End with a last sample, and wait for the thread; as often as you like, from any thread."""
        self._end.set()
        thread = self._thread
        if thread is None:
            self._reader.close()
        elif thread is not threading.current_thread():
            thread.join(JOIN_SECONDS)

    def drop(self) -> None:
        """End soon and without a last sample; waits for nothing, so that a garbage collector may call it."""
        self._dropped = True
        self._end.set()

    def _run(self) -> None:
        began = time.monotonic()
        try:
            while not self._end.wait(self._pause(began)):
                if self.seconds is not None and time.monotonic() - began >= self.seconds:
                    break
                self._take()
                self._tell(self._look)
            if not self._dropped:
                self._take()
                self._tell(self._ended)
        finally:
            self._reader.close()
            self._clock = None
            self._look = self._ended = _nothing

    def _pause(self, began: float) -> float:
        if self.seconds is None:
            return self.every
        return max(0.0, min(self.every, began + self.seconds - time.monotonic()))

    def _take(self) -> None:
        try:
            clock, at, readings = self._reader.read()
        except Exception as error:  # what no one foresaw must cost one sample and not the others
            readings = Readings((), f"this reading failed ({type(error).__name__}: {error})")
            self._samples.append(Sample(self._samples[-1].at_s if self._samples else 0.0, readings))
            return
        before = self._samples[-1].at_s if self._samples else 0.0
        # The time between two clocks is not known.
        passed = max(0.0, at - self._at) if self._samples and clock is self._clock else 0.0
        self._clock, self._at = clock, at
        self._samples.append(Sample(before + passed, readings))

    def _tell(self, onlooker: Callable[[], None]) -> None:
        try:
            onlooker()
        except Exception as error:
            self.trouble = error


def _nothing() -> None:
    """Nobody looks."""

"""Samples the GPUs in a thread, until it is stopped or its time is up; observers are called after each sample."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from .reader import Reader
from .reading import Readings
from .summary import Sample

JOIN_SECONDS = 5.0  # a hanging driver must not hang the program


class Sampler:
    """Samples every `every` real seconds, for at most `seconds`; first at the start, last at the end.

    An exception of an observer is kept in `trouble`, and the sampling goes on.
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
        """End with a last sample, and wait for the thread; may be called repeatedly, from any thread."""
        self._end.set()
        thread = self._thread
        if thread is None:
            self._reader.close()
        elif thread is not threading.current_thread():
            thread.join(JOIN_SECONDS)

    def drop(self) -> None:
        """End without a last sample and without waiting, so that a finalizer may call it."""
        self._dropped = True
        self._end.set()

    def _run(self) -> None:
        began = time.monotonic()
        try:
            while not self._end.wait(self._pause(began)):
                if self.seconds is not None and time.monotonic() - began >= self.seconds:
                    break
                self._take()
                self._call(self._look)
            if not self._dropped:
                self._take()
                self._call(self._ended)
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
        except Exception as error:  # an unexpected error must cost one sample only
            readings = Readings((), f"this reading failed ({type(error).__name__}: {error})")
            self._samples.append(Sample(self._samples[-1].at_s if self._samples else 0.0, readings))
            return
        before = self._samples[-1].at_s if self._samples else 0.0
        # The time between two clocks is unknown.
        passed = max(0.0, at - self._at) if self._samples and clock is self._clock else 0.0
        self._clock, self._at = clock, at
        self._samples.append(Sample(before + passed, readings))

    def _call(self, observer: Callable[[], None]) -> None:
        try:
            observer()
        except Exception as error:
            self.trouble = error


def _nothing() -> None:
    """The default observer."""

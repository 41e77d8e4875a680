"""Shares PyTorch's single peak counter of each GPU among all open trackers.

A tracker must reset the counter to get its own peak. So the peak is first stored in all open trackers of that GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from virtualgpu.readings import counters
from virtualgpu.readings.counters import Gpu
from virtualgpu.readings.source import Numbers, in_force

lock = threading.RLock()  # re-entrant: the garbage collector may end a tracker while one is being read


class Window:
    """One tracker's measurement on one GPU, from entry to exit; made, updated and closed under the lock."""

    __slots__ = ("entry", "gpu", "key", "now", "peak")

    def __init__(self, gpu: Gpu) -> None:
        self.gpu: Gpu | None = gpu
        # An open window keeps the scope alive, so that its id is unique.
        self.key = (0 if gpu.scope is None else id(gpu.scope), gpu.type, gpu.number)
        others = open_windows.get(self.key)
        if others:
            _raise_peaks(others, counters.peak_allocated(gpu))
        gpu.counts.reset_peak_memory_stats(gpu.number)
        self.entry = self.now = self.peak = counters.allocated(gpu)
        open_windows.setdefault(self.key, []).append(self)

    @property
    def name(self) -> str:
        return f"{self.key[1]}:{self.key[2]}"

    @property
    def numbers(self) -> Numbers:
        return "virtual" if self.key[0] else "measured"

    def update(self) -> None:
        """Update the counts of this window, and the peaks of all that share the counter."""
        gpu = self.gpu
        if gpu is not None and in_force() is gpu.scope:
            self.now, peak = counters.allocated_and_peak(gpu)
            if peak > self.peak:
                self.peak = peak
            others = open_windows[self.key]
            if len(others) > 1:
                _raise_peaks(others, peak)

    def close(self) -> None:
        """End the measurement; the last values stay."""
        if self.gpu is not None:
            self.gpu = None
            others = open_windows[self.key]
            others.remove(self)
            if not others:
                del open_windows[self.key]

    def synchronize(self, *, failed: bool) -> None:
        """Synchronise with the GPU; after a failure its own errors are not raised."""
        gpu = self.gpu
        if gpu is None or in_force() is not gpu.scope:
            return
        try:
            gpu.counts.synchronize(gpu.number)
        except RuntimeError:
            # After an error the GPU may refuse every call; the first error says more.
            if not failed:
                raise


def _raise_peaks(windows: Iterable[Window], peak: int) -> None:
    for window in tuple(windows):
        if peak > window.peak:
            window.peak = peak


open_windows: dict[tuple[int, str, int], list[Window]] = {}

"""The one peak counter that PyTorch keeps for each GPU, shared among all who watch it.

A tracker must reset the counter to see its own peak. So everyone who is watching that GPU is told the peak first: it
survives in them, whatever nests or overlaps.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from . import counters
from .counters import Gpu
from .source import in_force, numbers_of

lock = threading.RLock()  # re-entrant: the garbage collector may end a tracker while one is being read


class Window:
    """One tracker's share of one GPU, from entry to exit; made, updated and closed under the lock."""

    __slots__ = ("entry", "gpu", "key", "name", "now", "numbers", "peak")

    def __init__(self, gpu: Gpu) -> None:
        self.gpu: Gpu | None = gpu
        self.name = gpu.name
        self.numbers = numbers_of(gpu.scope)
        # While this is open it keeps the scope alive, so that its id stands for it alone.
        self.key = (id(gpu.scope), gpu.type, gpu.number)
        others = open_windows.get(self.key)
        if others:
            _tell(others, counters.peak(gpu))
        gpu.counts.reset_peak_memory_stats(gpu.number)
        self.entry = self.now = self.peak = counters.allocated(gpu)
        open_windows.setdefault(self.key, []).append(self)

    def update(self) -> None:
        """Take the counts as they are now, for this window and for all that share the counter."""
        gpu = self.gpu
        if gpu is not None and in_force() is gpu.scope:
            self.now, peak = counters.allocated_and_peak(gpu)
            _tell(open_windows.get(self.key, ()), peak)

    def close(self) -> None:
        """Watch no longer; the last values stay."""
        self.gpu = None
        others = open_windows.get(self.key)
        if others is not None and self in others:
            others.remove(self)
            if not others:
                del open_windows[self.key]

    def synchronize(self, *, failed: bool) -> None:
        """Wait for the GPU; after a failure its own errors are not raised."""
        gpu = self.gpu
        if gpu is None or in_force() is not gpu.scope:
            return
        try:
            gpu.counts.synchronize(gpu.number)
        except RuntimeError:
            # After an error the GPU may refuse every call; the error that is on its way says more.
            if not failed:
                raise


def _tell(windows: Iterable[Window], peak: int) -> None:
    for window in tuple(windows):
        if peak > window.peak:
            window.peak = peak


open_windows: dict[tuple[int, str, int], list[Window]] = {}

"""Limit the search for a batch size by this machine's memory, which `build` may fill with data.

A batch is not tried if, extrapolated from smaller ones, it would take more than half of the free memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .largest_batch import Stop

_PART = 0.5
_LEAST = 128 << 20  # bytes: smaller growth has other reasons


class HostMemory:
    """Host memory that batches have taken, extrapolated to larger ones."""

    def __init__(self) -> None:
        self._highest = peak_rss()
        self._a_sample = 0.0  # bytes

    def note(self, batch: int) -> None:
        """Charge the growth of the process's memory to `batch`, which has been run."""
        now = peak_rss()
        if now - self._highest >= _LEAST:
            self._a_sample = max(self._a_sample, (now - self._highest) / batch)
        self._highest = now

    def check(self, batch: int) -> None:
        """Raise Stop where `batch` would take too much."""
        import psutil

        free = psutil.virtual_memory().available
        if self._a_sample * batch > _PART * free:
            raise Stop(
                f"batch {batch:,} would take about {self._a_sample * batch / 2**30:,.1f} GiB of this machine's memory; "
                "make the data on the GPU"
            )


def peak_rss() -> int:
    """Return the peak resident memory of this process, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux, whose getrusage includes the parent process's peak
        return int(status.read_text(encoding="utf-8").partition("VmHWM:")[2].split()[0]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        import psutil

        memory: Any = psutil.Process().memory_info()
        return int(memory.peak_wset)
    import sys

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

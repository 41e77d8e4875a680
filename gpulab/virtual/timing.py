"""What reads the host's time while a virtual GPU is in force: `time.perf_counter`, and what was bound to it earlier.

In a scope the host's time is this machine's own, less what it spends doing a GPU's work, plus the modelled time of
launches and waits. `time.time` and `time.monotonic` stay what they are: dates and time limits depend on them.
"""

from __future__ import annotations

import time
import timeit
from typing import TYPE_CHECKING

from .patches import Patches

if TYPE_CHECKING:
    from .gpu import VirtualGPU


def install(gpu: VirtualGPU, patches: Patches) -> None:
    """Replace the functions for as long as `gpu` is in force."""
    clock = gpu.clock

    def perf_counter_ns() -> int:
        """`time.perf_counter_ns`."""
        return round(clock.perf_counter() * 1e9)

    patches.set(time, "perf_counter", clock.perf_counter)
    patches.set(time, "perf_counter_ns", perf_counter_ns)
    patches.set(timeit, "default_timer", clock.perf_counter)

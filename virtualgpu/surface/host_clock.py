"""`time.perf_counter` and its aliases while a virtual GPU is in force.

In a scope the host's time is this machine's own, less what it spends doing a GPU's work, plus the modelled time of
launches and waits. `time.time` and `time.monotonic` stay what they are: dates and time limits depend on them.
"""

from __future__ import annotations

import functools
import sys
import time
import timeit
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..clock.clock import Clock, real
from ..scope.patches import Patches

if TYPE_CHECKING:
    from ..gpu import VirtualGPU


_own_sleep = time.sleep


def install(gpu: VirtualGPU, patches: Patches) -> None:
    """Replace the functions for as long as `gpu` is in force."""
    clock = gpu.clock
    before = timeit.default_timer

    def perf_counter_ns() -> int:
        """`time.perf_counter_ns`."""
        return round(clock.perf_counter() * 1e9)

    def sleep(seconds: float, /) -> None:
        """`time.sleep`."""
        _own_sleep(seconds)
        clock.slept(seconds)

    patches.set(time, "sleep", sleep)
    patches.set(time, "perf_counter", clock.perf_counter)
    patches.set(time, "perf_counter_ns", perf_counter_ns)
    patches.set(timeit, "default_timer", clock.perf_counter)
    patches.set(timeit.Timer, "__init__", _counting(timeit.Timer.__init__, clock))
    benchmark = sys.modules.get("torch.utils.benchmark.utils.timer")
    if benchmark is not None and benchmark.timer is before:  # up to torch 2.14, imported where it saw no GPU
        patches.set(benchmark.Timer, "__init__", _waiting(benchmark.Timer.__init__))


def _counting(own: Callable[..., None], clock: Clock) -> Callable[..., None]:
    """`timeit.Timer`, and so `timeit.timeit`: their default is a function that they were made with."""

    @functools.wraps(own)
    def __init__(
        self: Any, stmt: Any = "pass", setup: Any = "pass", timer: Any = real, globals: dict[str, Any] | None = None
    ) -> None:
        own(self, stmt, setup, clock.perf_counter if timer is real else timer, globals)

    return __init__


def _waiting(own: Callable[..., None]) -> Callable[..., None]:
    """PyTorch's `benchmark.Timer` with the timer that it takes by default where there is a GPU."""

    def timer() -> float:
        torch.cuda.synchronize()
        return timeit.default_timer()

    @functools.wraps(own)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) < 4:
            kwargs.setdefault("timer", timer)
        own(self, *args, **kwargs)

    return __init__

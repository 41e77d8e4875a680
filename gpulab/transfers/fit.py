"""Fits a line through the times of copies: latency + bytes / bandwidth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from virtualgpu.clock.rates import relative_fit


@dataclass(frozen=True)
class Fit:
    """The line `latency_us` + bytes / `bandwidth_gbps` (microseconds; 10⁹ bytes per second) for the time of a copy.

    `worst` is the largest relative deviation of a time from it (0.1 is 10 %).
    """

    latency_us: float
    bandwidth_gbps: float
    worst: float

    @property
    def half_rate_bytes(self) -> float:
        """The size whose copy reaches half the bandwidth; larger ones reach more."""
        return self.latency_us * self.bandwidth_gbps * 1e3

    def ms(self, nbytes: float) -> float:
        return self.latency_us * 1e-3 + nbytes / self.bandwidth_gbps * 1e-6


def fit(sizes_bytes: Sequence[float], times_ms: Sequence[float]) -> Fit | None:
    """Fit by least squares of the *relative* deviations, so that a copy of 1 kB counts as much as one of 1 GB.

    Returns None for fewer than two different sizes, or times that do not grow with the size. A negative latency is set
    to 0. Raises ValueError if the numbers of sizes and times differ.
    """
    if len(sizes_bytes) != len(times_ms):
        raise ValueError(f"there are {len(sizes_bytes)} sizes and {len(times_ms)} times; each size needs its time")
    for name, values in (("sizes_bytes", sizes_bytes), ("times_ms", times_ms)):
        if not all(math.isfinite(value) and value > 0 for value in values):
            raise ValueError(f"{name} must be numbers above 0, not {list(values)!r}")
    if len(set(sizes_bytes)) < 2:
        return None
    latency, slope = relative_fit(list(zip(sizes_bytes, times_ms, strict=True)))  # in ms, and ms per byte
    u = [1 / time for time in times_ms]
    v = [size / time for size, time in zip(sizes_bytes, times_ms, strict=True)]
    if latency < 0:
        latency, slope = 0.0, math.fsum(v) / math.fsum(x * x for x in v)
    if slope <= 0:
        return None
    worst = max(abs(latency * x + slope * y - 1) for x, y in zip(u, v, strict=True))
    return Fit(latency * 1e3, 1e-6 / slope, worst)

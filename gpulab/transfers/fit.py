"""The line through the times of copies: latency + bytes / bandwidth. Numbers in, a `Fit` out; nothing is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from virtualgpu.clock.rates import relative_fit


@dataclass(frozen=True)
class Fit:
    """The time of a copy is `latency_us` + bytes / `bandwidth_gbps` (microseconds; 10⁹ bytes per second).

    `worst` is the greatest deviation of a time from this line, as a part of that time (0.1 is 10 %).
    """

    latency_us: float
    bandwidth_gbps: float
    worst: float

    @property
    def half_rate_bytes(self) -> float:
        """The size whose copy takes twice what its bytes take: half the bandwidth. Larger ones come nearer to it."""
        return self.latency_us * self.bandwidth_gbps * 1e3

    def ms(self, nbytes: float) -> float:
        """The time the line gives for a copy, in milliseconds."""
        return self.latency_us * 1e-3 + nbytes / self.bandwidth_gbps * 1e-6


def fit(sizes_bytes: Sequence[float], times_ms: Sequence[float]) -> Fit | None:
    """Least squares of the *relative* deviations, so that a copy of 1 kB counts as much as one of 1 GB.

    None where no line can be drawn: fewer than two different sizes, or times that do not grow with the size. A line
    that would begin below 0 begins at 0. Raises ValueError for sizes and times that do not belong together.
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

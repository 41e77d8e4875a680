"""Reads utilization, memory, power and temperature of the GPUs: once with `read()`, repeatedly with `watch()`.

Readings of a real GPU come from the driver through NVML (measured), those of a virtual GPU from its model (virtual).
"""

from .reader import read
from .reading import Reading, Readings, Slice
from .summary import GPUSummary, Sample, Summary
from .watch import Watch, watch

__all__ = ["GPUSummary", "Reading", "Readings", "Sample", "Slice", "Summary", "Watch", "read", "watch"]

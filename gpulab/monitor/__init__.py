"""What the GPUs are doing now: `read()` takes one reading, `watch()` takes many beside a running cell.

On a real GPU the driver answers, through NVML: measured. On the virtual GPU its own numbers: virtual.
"""

from .reader import read
from .reading import Reading, Readings, Slice
from .summary import GPUSummary, Sample, Summary
from .watch import Watch, watch

__all__ = ["GPUSummary", "Reading", "Readings", "Sample", "Slice", "Summary", "Watch", "read", "watch"]

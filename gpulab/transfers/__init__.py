"""Measures copies between CPU and GPU by size, and fits latency and bandwidth to their times.

    found = transfers.measure()      # 1 kB … 1 GB from the CPU to the GPU, pinned and pageable
    found                            # the table
    found.plot()
    found.pinned.bandwidth_gbps, found.pinned.latency_us

The numbers say whether they are measured or virtual.
"""

from .fit import Fit, fit
from .measuring import SIZES, measure
from .results import Copy, Pinning, Series, Transfers

__all__ = ["SIZES", "Copy", "Fit", "Pinning", "Series", "Transfers", "fit", "measure"]

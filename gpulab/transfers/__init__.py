"""What a copy between CPU and GPU takes, by size: measured, with the latency and the bandwidth that explain it.

    found = transfers.measure()      # 1 kB … 1 GB from the CPU to the GPU, pinned and pageable
    found                            # the table
    found.plot()
    found.pinned.bandwidth_gbps, found.pinned.latency_us

It talks to torch.cuda and says whether the numbers are measured or virtual.
"""

from .fit import Fit, fit
from .measuring import SIZES, measure
from .results import Copy, Pinning, Series, Transfers

__all__ = ["SIZES", "Copy", "Fit", "Pinning", "Series", "Transfers", "fit", "measure"]

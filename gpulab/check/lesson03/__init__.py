"""The checks of lesson 03: a timer, a transfer benchmark, waits that nobody asked for, and a prefetcher.

Each runs the student's function on a virtual GPU of its own, whose clock knows what happened when; so the answer is the
same on every machine, with a real GPU, a virtual one in force, or none.
"""

from .hidden_syncs import hidden_syncs
from .honest_timer import honest_timer
from .prefetcher import prefetcher
from .transfer_benchmark import transfer_benchmark

__all__ = ["hidden_syncs", "honest_timer", "prefetcher", "transfer_benchmark"]

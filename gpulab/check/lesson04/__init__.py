"""The checks of lesson 04: a profiler of the forward pass, a memory tracker, the buckets of a model, and golf.

All run on virtual GPUs of their own, and count in bytes: what a known mistake would have given is reckoned beside the
right number, and named.
"""

from .memory_buckets import memory_buckets
from .memory_profiler import memory_profiler
from .memory_tracker import memory_tracker
from .oom_golf import oom_golf

__all__ = ["memory_buckets", "memory_profiler", "memory_tracker", "oom_golf"]

"""The checks of lesson 05: a batch search that leaves nothing behind, a leaking loop, an out-of-memory message.

Each runs the student's function on a virtual GPU of its own, made small by a memory limit, and judges in bytes.
"""

from .batch_search import batch_search
from .memory_leak import memory_leak
from .oom_message import oom_message

__all__ = ["batch_search", "memory_leak", "oom_message"]

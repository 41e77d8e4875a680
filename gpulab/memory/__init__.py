"""GPU memory: what a stretch of code takes, what a run looks like over time, what autograd keeps.

Everything is read from torch.cuda or torch.accelerator, and says whether it is measured or virtual.
"""

from .curve import Mark, MemoryCurve
from .timeline import Timeline, timeline
from .tracker import DeviceMemory, GPUMemoryTracker

__all__ = ["DeviceMemory", "GPUMemoryTracker", "Mark", "MemoryCurve", "Timeline", "timeline"]

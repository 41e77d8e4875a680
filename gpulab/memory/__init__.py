"""GPU memory: what a stretch of code takes, what a run looks like over time, what autograd keeps.

Everything is read from torch.cuda or torch.accelerator, and says whether it is measured or virtual.
"""

from virtualgpu.readings.curve import Mark, MemoryCurve

from .activations import ActivationBytes, activation_bytes
from .report import GPUMemory, gpu_memory, log_memory, print_gpu_memory
from .timeline import Timeline, timeline
from .tracker import DeviceMemory, GPUMemoryTracker

__all__ = [
    "ActivationBytes",
    "DeviceMemory",
    "GPUMemory",
    "GPUMemoryTracker",
    "Mark",
    "MemoryCurve",
    "Timeline",
    "activation_bytes",
    "gpu_memory",
    "log_memory",
    "print_gpu_memory",
    "timeline",
]

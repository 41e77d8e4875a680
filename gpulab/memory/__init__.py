"""Measures GPU memory: peaks of a block of code, the curve of a run, and the bytes that autograd saves.

All numbers are read from torch.cuda or torch.accelerator, and say whether they are measured or virtual.
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

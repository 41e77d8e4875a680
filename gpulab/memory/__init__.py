"""Measures GPU memory: peaks, the curve of a run, and the bytes that autograd saves; limits what may be reserved.

    memory.peak(lambda: step(x))             # of one call: the most allocated, and above its start
    with memory.limit(128): ...              # PyTorch may reserve 128 MiB
    with memory.timeline() as t: ...         # the curve of a block of code
    memory.activation_bytes(model, x)        # what a forward pass keeps for backward

All numbers are read from torch.cuda or torch.accelerator, and say whether they are measured or virtual.
"""

from virtualgpu.readings.curve import Mark, MemoryCurve

from .activations import ActivationBytes, activation_bytes
from .peaks import Peak, limit, peak
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
    "Peak",
    "Timeline",
    "activation_bytes",
    "gpu_memory",
    "limit",
    "log_memory",
    "peak",
    "print_gpu_memory",
    "timeline",
]

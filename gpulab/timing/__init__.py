"""Times code on a GPU by its own clock, after a warm-up, repeatedly and with the spread; throughput, MFU, traces.

    timing.measure(lambda: model(x))            # median and spread of a call
    with timing.Timer() as t: ...               # one stretch of code: t.ms on the GPU, t.host_ms on the host
    timing.throughput(len(x), took, "images")   # per second
    timing.mfu(timing.flops(step), took, "fp16")
    timing.operations(lambda: step(x))          # a table: what took how long on the GPU, and what bounds it
    timing.syncs(lambda: step(x))               # where the host waits for the GPU
    timing.timeline(lambda: step(x))            # a picture: the host, and below it each stream, in ms
    with timing.trace("step.json"): ...         # a Chrome trace
    timing.merge_traces(files, "step.json")     # the ranks' traces as one

The times come from PyTorch's events or its profiler, or from a virtual GPU's clock, and say whether they are
measured or virtual.
"""

from .lanes import Timeline, timeline
from .measuring import Timing, measure
from .merging import merge_traces
from .operation_table import Operation, Operations, operations
from .rates import Throughput, throughput
from .stopwatch import Timer
from .tracing import trace
from .utilisation import MFU, TooFast, flops, mfu
from .waits import Sync, Syncs, syncs

__all__ = [
    "MFU",
    "Operation",
    "Operations",
    "Sync",
    "Syncs",
    "Throughput",
    "Timeline",
    "Timer",
    "Timing",
    "TooFast",
    "flops",
    "measure",
    "merge_traces",
    "mfu",
    "operations",
    "syncs",
    "throughput",
    "timeline",
    "trace",
]

"""Lists the places of the capstone's script that can have a fault, with the tool that shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A place of the script: the kind of its faults, the instrument that shows them, and the lesson."""

    name: str
    kind: str  # "memory", "speed" or "correctness"
    instrument: str
    lesson: int


PLACES = {
    place.name: place
    for place in (
        Place("attention", "memory", "gpulab.memory.timeline() over a Block, at two lengths", 6),
        Place("activation", "memory", "torch.autograd.graph.saved_tensors_hooks: what a Block keeps, by type", 7),
        Place("log", "memory", "memory_allocated() after each step, then a snapshot", 5),
        Place("history", "memory", "memory_allocated() at each batch of train()", 5),
        Place("graph", "memory", "memory_allocated() at each batch of evaluate()", 5),
        Place("search", "memory", "memory_allocated() at the start of each attempt", 5),
        Place("recomputation", "speed", "FLOPs of backward beside those of the forward pass, and the peak without", 6),
        Place("vocabulary", "speed", "torch.profiler: TFLOP/s of the largest product", 11),
        Place("precision", "speed", "torch.profiler: TFLOP/s of the Linear layers", 7),
        Place("optimizer", "speed", "torch.profiler: kernels of one optimizer.step()", 6),
        Place("waits", "speed", 'torch.cuda.set_sync_debug_mode("warn") in train()', 3),
        Place("forward", "speed", 'torch.cuda.set_sync_debug_mode("warn") in a forward pass', 3),
        Place("copies", "speed", "a trace: what the host does while a batch is copied", 3),
        Place("cache", "speed", 'memory_stats()["num_device_free"] over train()', 5),
        Place("clock", "speed", "the same speed by CUDA events", 3),
        Place("clipping", "correctness", "the norm of the gradients that the optimizer is given", 7),
        Place("overflow", "correctness", "scale, weights and schedule after a batch that overflows", 7),
        Place("window", "correctness", "the gradient of each update beside that of its batches at once", 8),
        Place("mean", "correctness", "the loss of two uneven batches beside that of all words at once", 8),
        Place("modes", "correctness", "model.training in train() and in evaluate()", 5),
        Place("parameters", "correctness", "which parameters an update changes", 2),
        Place("dealing", "correctness", "which samples an epoch gives", 9),
        Place("resuming", "correctness", "the state of all parts before save() and after load()", 14),
    )
}

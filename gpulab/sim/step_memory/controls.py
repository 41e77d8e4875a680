"""Memory over one training step, by what it holds: with checkpointing, and what that costs."""

from __future__ import annotations

from ..base.simulator import Choice, Flag, Play, Simulator, Slider, State
from .model import FRAMES, PRECISION_WORDS, Step, limits, simulate
from .picture import draw


class StepMemory(Simulator[Step]):
    """When a step's memory peaks, and how recomputing activations trades it for time."""

    controls = (
        Play("moment", "Moment", 0, FRAMES, 120),
        Slider("layers", "Layers", 1, 48, 24),
        Slider("segments", "Segments", 1, 48, 4),
        Flag("again", "Compute the last segment again too", False),
        Slider("interior", "A layer keeps", 1, 1000, 544, unit="MiB", log=True),
        Slider("boundary", "Of it, its input", 1, 200, 32, unit="MiB", log=True),
        Slider("parameters", "Parameters, a layer", 0, 200, 12, unit="M", log=True),
        Slider("cost", "Forward, a layer", 1, 100, 10, unit="ms", log=True),
        Choice("precision", "Precision", PRECISION_WORDS, "fp32"),
        Slider("micro_batches", "Micro-batches", 1, 8, 1),
    )
    primary = ("moment", "segments", "layers")
    states = (
        State(
            "Four segments",
            {"segments": 4, "again": False},
            "The GPU has 6 GiB: which number of segments fits for the least compute? Click the bars.",
        ),
        State(
            "Keep everything",
            {"segments": 1, "again": False},
            "Without checkpointing every layer keeps its inside. How many layers fit into 8 GiB? Drag “Layers”.",
        ),
        State(
            "One segment too many",
            {"segments": 13, "again": False},
            "24 layers do not divide by 13. Go on to more segments: from which number is the peak below 6 GiB?",
        ),
    )
    model = staticmethod(simulate)
    draw = staticmethod(draw)
    limits = staticmethod(limits)
    leaves_out = (
        "All layers are alike; backward takes twice forward, as products do. Loss and optimizer (Adam, the default)"
        " take as long as a layer. Left out: the allocator, workspaces, what a layer needs only while it runs, what"
        " 16-bit training keeps in float32."
    )

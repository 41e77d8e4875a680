"""Gradient accumulation over one epoch: the controls. The numbers come from `model`, `picture` draws them."""

from __future__ import annotations

from ..base.simulator import Choice, Flag, Simulator, Slider
from .model import LARGEST_DATA_SET, Epoch, limits, simulate
from .picture import draw


class Accumulation(Simulator[Epoch]):
    """A large batch in small pieces: where the pieces add up to the true gradient, and where they do not."""

    controls = (
        Slider("samples", "Data set", 16, LARGEST_DATA_SET, 100, unit="samples"),
        Slider("batch", "Micro-batch", 1, 64, 8, unit="samples"),
        Slider("steps", "Micro-batches per step", 1, 32, 4),
        Choice(
            "divide",
            "Loss of a micro-batch",
            {
                "steps": "mean ÷ micro-batches per step",
                "window": "mean ÷ those in this window",
                "items": "sum ÷ what the window holds",
            },
            "steps",
        ),
        Choice("last", "Incomplete last window", {"step": "step with it", "drop": "no step"}, "step"),
        Flag("tokens", "Samples differ in length (means over tokens)", False),
    )
    model = staticmethod(simulate)
    draw = staticmethod(draw)
    limits = staticmethod(limits)
    leaves_out = (
        "The gradients are a toy, four numbers a sample. Left out: BatchNorm, which sees only a micro-batch; rounding;"
        " time; the allocator and the CUDA context."
    )

"""Gradient accumulation over one epoch: the controls. The numbers come from `model`, `picture` draws them."""

from __future__ import annotations

from ..base.simulator import Choice, Flag, Simulator, Slider, State
from .model import LARGEST_DATA_SET, MOST_STEPS, Epoch, limits, simulate
from .picture import draw


class Accumulation(Simulator[Epoch]):
    """A large batch in small pieces: where the pieces add up to the true gradient, and where they do not."""

    controls = (
        Slider("samples", "Data set", 16, LARGEST_DATA_SET, 100, unit="samples", log=True),
        Slider("batch", "Micro-batch", 1, 64, 8, unit="samples", log=True),
        Slider("steps", "Micro-batches per step", 1, MOST_STEPS, 4, log=True),
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
    primary = ("batch", "steps", "divide")
    states = (
        State(
            "A short last window",
            {"divide": "steps", "tokens": False},
            "The last window has one micro-batch, divided by 4 too. Drag the blue dot: when is nothing missing?",
        ),
        State(
            "Unequal lengths",
            {"divide": "window", "tokens": True},
            "Each mean counts the same, however many tokens it covers. Drag Micro-batch: do larger ones mend it?",
        ),
        State(
            "Divide by tokens",
            {"divide": "items", "tokens": True},
            "Sums, divided by the tokens of the window. Drag any slider: does an update stop being exact?",
        ),
    )
    model = staticmethod(simulate)
    draw = staticmethod(draw)
    limits = staticmethod(limits)
    leaves_out = (
        "The gradients are a toy, four numbers a sample. Left out: BatchNorm, which sees only a micro-batch; rounding;"
        " time; the allocator and the CUDA context."
    )

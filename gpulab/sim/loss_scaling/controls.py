"""Loss scaling: the sizes of the gradients against what fp16 can hold, and the scale over the steps of a run.

The controls; the numbers come from `model`, `picture` draws them.
"""

from __future__ import annotations

from ..base.simulator import Simulator, Slider
from .model import STEPS, Run, simulate
from .picture import draw


class LossScaling(Simulator[Run]):
    """How a scale lifts the gradients into fp16's range, and how the scaler finds one that fits."""

    controls = (
        Slider("scale_power", "First scale, power of 2", 0, 24, 16),
        Slider("step", "Look at step", 1, STEPS, 1),
        Slider("largest_power", "Largest, power of 2", -20.0, 10.0, 0.5, step=0.5),
        Slider("spread", "Spread", 1.0, 10.0, 5.0, unit="powers of two", step=0.5),
        Slider("bad_batches", "Bad batches", 0, 200, 0, unit="in 10,000"),
        Slider("growth_interval", "Growth interval", 1, 3000, 2000, unit="steps"),
    )
    model = staticmethod(simulate)
    draw = staticmethod(draw)
    leaves_out = (
        "The gradients are a toy: the same in every step, their sizes on a bell curve. Real ones shrink as training"
        " goes on, differ from layer to layer, and are fp16 only where autocast computes in fp16."
    )

"""Loss scaling: the sizes of the gradients against what fp16 can hold, and the scale over the steps of a run."""

from __future__ import annotations

from ..base.simulator import Simulator, Slider, State
from .model import STEPS, Run, simulate
from .picture import draw


def _state(name: str, scale_power: int, step: int, bad_batches: int, note: str) -> State:
    toy = {"largest_power": 0.5, "spread": 5.0, "growth_interval": 2000}
    return State(name, toy | {"scale_power": scale_power, "step": step, "bad_batches": bad_batches}, note)


class LossScaling(Simulator[Run]):
    """How a scale lifts the gradients into fp16's range, and how the scaler finds one that fits."""

    controls = (
        Slider("scale_power", "First scale, power of 2", 0, 24, 16),
        Slider("step", "Look at step", 1, STEPS, 1),
        Slider("largest_power", "Largest, power of 2", -20.0, 10.0, 0.5, step=0.5),
        Slider("spread", "Spread", 1.0, 10.0, 5.0, unit="powers of two", step=0.5),
        Slider("bad_batches", "Bad batches", 0, 200, 0, unit="in 10,000"),
        Slider("growth_interval", "Growth interval", 1, 3000, 2000, unit="steps", log=True),
    )
    primary = ("scale_power", "step", "bad_batches")
    states = (
        _state("Begin high", 16, 1, 0, "Drag the step on: what does the scaler do, and how often?"),
        _state("Begin at 1", 0, STEPS, 0, "More settings: with which growth interval does the scale fit in time?"),
        _state("Bad batches", 16, 1900, 200, "200 in 10,000 batches are NaN. Drag the step back: when is half lost?"),
    )
    model = staticmethod(simulate)
    draw = staticmethod(draw)
    leaves_out = (
        "The gradients are a toy: the same in every step, their sizes on a bell curve. Real ones shrink as training"
        " goes on, differ from layer to layer, and are fp16 only where autocast computes in fp16."
    )

"""A long run on machines that can be taken away: how long it takes and what it costs, by how often it saves itself."""

from __future__ import annotations

from ..base.simulator import Simulator, Slider, State
from .picture import draw
from .result import LONGEST_INTERVAL, Run, simulate


class Spot(Simulator[Run]):
    """A run on machines that can be taken away: how often to save, what interruptions cost, what spot saves."""

    controls = (
        Slider("work", "Work", 10, 500, 100, unit="h"),
        Slider("checkpoint", "Writing a checkpoint", 1, 1800, 120, unit="s", log=True),
        Slider("interval", "Checkpoint every", 1, LONGEST_INTERVAL, 240, unit="min", log=True),
        Slider("between", "Interrupted every", 1, 100, 8, unit="h", log=True),
        Slider("restart", "Restart", 0, 120, 10, unit="min"),
        Slider("price", "On demand", 0.5, 100.0, 12.0, unit="$/h", step=0.5),
        Slider("discount", "Spot is cheaper by", 0, 95, 65, unit="%"),
    )
    primary = ("interval", "checkpoint", "between")
    states = (
        State(
            "Too rarely",
            {"interval": 240},
            "Orange is lost work. Drag Interrupted every: from how many hours on is 4 h about the best?",
        ),
        State(
            "Too often",
            {"interval": 5},
            "Blue is writing. Drag Writing a checkpoint: up to how many seconds is 5 min about the best?",
        ),
        State(
            "The best",
            {"interval": 44},
            "Writing and losing take about the same. Drag the line to half and to twice: what does it cost?",
        ),
    )
    model = staticmethod(simulate)
    draw = staticmethod(draw)
    leaves_out = (
        "Interruptions come at a constant rate and without notice; a checkpoint halts training. A restart is paid for."
        " Left out: the notice, half a minute or two, that can save work; waiting for a machine to be free; prices that"
        " move; storage."
    )

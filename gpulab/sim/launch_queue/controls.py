"""The launch queue: the host runs ahead of the GPU or does not keep it busy, and what a timer makes of that."""

from __future__ import annotations

from ..base.simulator import Choice, Play, Simulator, Slider, State
from .model import GPUS, MODE_NAMES
from .picture import draw
from .result import FRAMES, Queue, limits, simulate

ITEMS = {0: "never", 1: "every step", 2: "every second step", 3: "every third step", 6: "after the last step"}


class LaunchQueue(Simulator[Queue]):
    """The host launches, the GPU works off: who waits for whom, and what a timer sees of it."""

    controls = (
        Choice("gpu", "A kernel: x + y on", {"": "any GPU: set the time", **{gpu: gpu for gpu in GPUS}}, ""),
        Slider("kernel", "Kernel time", 1, 200, 20, unit="µs", log=True),
        Slider("launch", "Launch cost", 1, 50, 5, unit="µs", log=True),
        Slider("kernels", "Kernels per step", 1, 200, 24, log=True),
        Choice("item", "loss.item()", ITEMS, 0),
        Choice("mode", "Launched by", MODE_NAMES, "eager"),
        Slider("streams", "Streams", 1, 4, 1),
        Choice("fills", "One kernel fills", {"all": "the whole GPU", "quarter": "a quarter of the GPU"}, "all"),
        Play("moment", "Moment", 0, FRAMES, 25, unit="%"),
    )
    primary = ("kernel", "launch", "moment")
    states = (
        State(
            "A timer that lies",
            {"kernel": 20, "launch": 5, "kernels": 24, "item": 0, "mode": "eager"},
            "Drag Kernel time down: from where on is a timer without synchronize right?",
        ),
        State(
            "Launch-bound",
            {"kernel": 4, "launch": 15, "kernels": 24, "item": 0, "mode": "eager"},
            "Click CUDA graph below: what share of the time does the GPU compute then, and what limits it?",
        ),
        State(
            ".item() every step",
            {"kernel": 4, "launch": 3, "kernels": 8, "item": 1, "mode": "eager"},
            "Who waits in the gaps? Read the loss less often, under More settings: what is gained?",
        ),
    )
    model = staticmethod(simulate)
    draw = staticmethod(draw)
    limits = staticmethod(limits)
    leaves_out = (
        "All kernels take the same time; compile is a toy: of four in a row three become one. Left out: compiling and"
        " capturing, a graph’s gaps between kernels, Python’s other work, dependencies between streams within a step."
    )

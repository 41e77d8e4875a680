"""What a GPU is made of, with a kernel running on it: SMs and their lanes, warps that take turns, blocks in waves.

The controls; the numbers come from `model`, `picture` draws them.
"""

from __future__ import annotations

from virtualgpu.gpus.specs import SHOWN

from ..base.simulator import Choice, Play, Simulator, Slider
from .model import MOST_LANES, MOST_ROOM, MOST_SMS, MOST_WAVES, TOY, WARP, Kernel, limits, simulate
from .picture import draw


class Architecture(Simulator[Kernel]):
    """What a GPU is made of, and when its lanes have something to do."""

    controls = (
        Choice(
            "gpu",
            "GPU",
            {
                TOY: "a toy: SMs and lanes below",
                **{name: f"{name}: {s.sms} SMs × {s.fp32_lanes // s.sms} lanes" for name, s in SHOWN.items()},
            },
            TOY,
        ),
        Slider("sms", "SMs", 1, MOST_SMS, 4),
        Slider("lanes", "Lanes in each SM", WARP, MOST_LANES, WARP, step=WARP),
        Slider("threads", "Threads per block", 1, 1024, 64),
        Slider("room", "Room for warps in an SM", 1, MOST_ROOM[0], 8),
        Slider("wait", "A warp waits", 0, 500, 7, unit="clocks"),
        Slider("elements", "Tensor elements", 1, MOST_WAVES * MOST_ROOM[0] * WARP * MOST_SMS, 2100),
        Play("frame", "Time", 0, 240, 13),
    )
    model = staticmethod(simulate)
    draw = staticmethod(draw)
    limits = staticmethod(limits)
    leaves_out = (
        "A toy kernel: four instructions a thread, each with one wait (some 4 clocks for arithmetic, hundreds for"
        " memory). Left out: bandwidth, loads side by side, blocks that end one by one; that an SM is four parts of"
        " 16 or 32 lanes."
    )

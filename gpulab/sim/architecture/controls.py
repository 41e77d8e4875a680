"""What a GPU is made of, with a kernel on it: SMs and their lanes, warps that take turns, blocks in waves."""

from __future__ import annotations

from virtualgpu.gpus.specs import SHOWN

from ..base.simulator import Choice, Play, Simulator, Slider, State
from .model import FRAMES, MOST_LANES, MOST_ROOM, MOST_SMS, MOST_WAVES, TOY, WARP, Kernel, limits
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
        Slider("wait", "A warp waits", 0, 500, 7, unit="clocks", log=True),
        Slider("elements", "Tensor elements", 1, MOST_WAVES * MOST_ROOM[0] * WARP * MOST_SMS, 2100, log=True),
        Play("frame", "Time", 0, FRAMES - 1, 80),
        Slider("look", "SM seen close up", 1, MOST_SMS, 1),
    )
    primary = ("elements", "wait", "frame")
    states = (
        State(
            "A last wave",
            {"elements": 2100, "wait": 7, "room": 8, "frame": 80},
            "One block is left for a third wave. Drag Tensor elements: what is the largest number that two waves hold?",
        ),
        State(
            "All at work",
            {"elements": 2048, "wait": 7, "room": 8, "frame": 13},
            "While seven warps wait, the eighth is on the lanes. Drag “A warp waits”: when are eight too few?",
        ),
        State(
            "Too few warps",
            {"elements": 2048, "wait": 31, "room": 8, "frame": 35},
            "Eight warps do not hide 31 clocks. Set Room for warps to 32 in More settings: what is missing then?",
        ),
    )
    model = Kernel
    draw = staticmethod(draw)
    limits = staticmethod(limits)
    leaves_out = (
        "A toy kernel: four instructions a thread, each with one wait (some 4 clocks for arithmetic, hundreds for"
        " memory). Left out: bandwidth, loads side by side, blocks that end one by one; that an SM is four parts of"
        " 16 or 32 lanes, and has tensor cores and an L1 cache; the L2 cache and the memory, which all SMs share."
    )

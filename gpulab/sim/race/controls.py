"""A race of a CPU and a GPU over the same tasks: lanes at work, the time of each, and who wins at how many tasks.

The controls; the numbers come from `model`, `picture` draws them.
"""

from __future__ import annotations

from virtualgpu.gpus.specs import SHOWN

from ..base.simulator import Choice, Play, Simulator, Slider
from .model import (
    MOST_LANES,
    TOY,
    WARP,
    Contest,
    limits,
    simulate,
)
from .picture import draw


class Race(Simulator[Contest]):
    """When many slow lanes beat a few fast ones, and what it costs to ask them."""

    controls = (
        Choice(
            "gpu",
            "GPU",
            {TOY: "a toy: lanes below", **{name: f"{name}: {s.fp32_lanes:,} lanes" for name, s in SHOWN.items()}},
            TOY,
        ),
        Slider("tasks", "Tasks", 1, 100_000, 128),
        Slider("cores", "CPU cores", 1, 64, 8),
        Choice(
            "simd",
            "Lanes used in a core",
            {
                1: "1: one task at a time",
                8: "8: a vector of 256 bits",
                16: "16: of 512 bits",
                32: "32: two of 512 bits",
            },
            1,
        ),
        Slider("lanes", "GPU lanes", WARP, MOST_LANES, 256, step=WARP),
        Slider("ratio", "CPU clock / GPU clock", 1.0, 6.0, 3.0, step=0.1),
        Slider("kilobytes", "Data of a task", 0, 64, 1, unit="kB"),
        Slider("serial", "Serial share", 0, 50, 0, unit="%"),
        Slider("launch", "Launch", 0, 100, 10, unit="µs"),
        Play("time", "Time", 0, 100, 30, unit="%"),
    )
    model = staticmethod(simulate)
    draw = staticmethod(draw)
    limits = staticmethod(limits)
    leaves_out = (
        "A toy: equal tasks of pure arithmetic, each at the full rate of its lane. Left out: starting threads on the"
        " CPU, a warp’s own waits (see architecture), branches within a warp or vector, copies beside computing."
    )

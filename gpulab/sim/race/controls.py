"""A race of a CPU and a GPU over the same tasks: the time of each, and who wins at how many tasks."""

from __future__ import annotations

from virtualgpu.gpus.specs import SHOWN

from ..base.simulator import Choice, Play, Simulator, Slider, State
from .model import MOST_LANES, MOST_TASKS, TOY, WARP, Contest, limits
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
        Slider("tasks", "Tasks", 1, MOST_TASKS, 128, log=True),
        Slider("cores", "CPU cores", 1, 64, 8),
        Choice(
            "simd",
            "Lanes used in a core",
            {1: "1: one task at a time", 8: "8: a vector of 8", 16: "16: a vector of 16", 32: "32: two vectors of 16"},
            1,
        ),
        Slider("lanes", "GPU lanes", WARP, MOST_LANES, 256, step=WARP, log=True),
        Slider("ratio", "CPU clock / GPU clock", 1.0, 6.0, 3.0, step=0.1),
        Slider("kilobytes", "Data of a task", 0, 64, 1, unit="kB"),
        Slider("serial", "Serial share", 0, 50, 0, unit="%"),
        Slider("launch", "Launch", 0, 100, 10, unit="µs"),
        Play("time", "Time", 0, 100, 30, unit="%"),
    )
    primary = ("tasks", "simd", "time")
    states = (
        State(
            "One lane each",
            {"gpu": TOY, "tasks": 128, "simd": 1, "kilobytes": 1},
            "Each core uses 1 of its 32 lanes. Let it use more: from how many on does the CPU win?",
        ),
        State(
            "All CPU lanes",
            {"gpu": TOY, "tasks": 128, "simd": 32, "kilobytes": 1},
            "What if the data are on the GPU already? Set Data of a task to 0, under More settings: who wins then?",
        ),
        State(
            "A large GPU",
            {"gpu": "A100-80", "tasks": 100_000, "simd": 32, "kilobytes": 0},
            "6,912 lanes, and no data to copy. Give each task 1 kB, under More settings: who wins then, and why?",
        ),
    )
    model = Contest
    draw = staticmethod(draw)
    limits = staticmethod(limits)
    leaves_out = (
        "A toy: equal tasks of pure arithmetic, each at the full rate of its lane. A curve dips where its last round is"
        " not full. Left out: starting threads on the CPU, a warp’s own waits (see architecture), branches within a"
        " warp or vector, copies beside computing."
    )

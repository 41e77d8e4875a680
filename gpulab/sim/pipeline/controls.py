"""The input pipeline: loading, copying and computing on one timeline, and what each choice buys.

`model` runs the loop on the virtual GPU's clock, `result` finds out what came of it, `picture` draws it.
"""

from __future__ import annotations

from ..base.simulator import Choice, Flag, Play, Simulator, Slider, State
from .model import BATCHES, MOST_PREFETCH, MOST_WORKERS
from .picture import draw
from .result import FRAMES, Feed, simulate

GPUS = ("T4", "RTX4090", "L4", "A100-80", "H100", "H200", "B200")


class Pipeline(Simulator[Feed]):
    """From the disk to the GPU: who waits for whom, and which choice helps."""

    controls = (
        Choice("gpu", "GPU and its link", {gpu: gpu for gpu in GPUS}, "T4"),
        Slider("load", "Loading a batch", 1, 200, 60, unit="ms", log=True),
        Slider("spread", "Spread of loading", 0, 100, 30, unit="%"),
        Slider("workers", "num_workers", 0, MOST_WORKERS, 0),
        Slider("prefetch", "prefetch_factor", 1, MOST_PREFETCH, 2),
        Flag("persistent", "persistent_workers", False),
        Slider("batch", "Batch", 1, 512, 64, unit="MiB", log=True),
        Flag("pinned", "pin_memory", False),
        Flag("non_blocking", "non_blocking copies", False),
        Flag("side", "Copies in a side stream", False),
        Slider("compute", "Computing a step", 1, 200, 25, unit="ms", log=True),
        Play("moment", "Moment", 0, FRAMES, 45, unit="%"),
    )
    primary = ("load", "compute", "workers")
    states = (
        State(
            "No workers",
            {"workers": 0, "pinned": False, "non_blocking": False, "side": False, "moment": 45},
            "One process loads, copies and launches in turn. Reach 30 ms a step with two changes: which two?",
        ),
        State(
            "Three workers",
            {"workers": 3, "pinned": False, "non_blocking": False, "side": False, "moment": 35},
            "Batches are ready, and the GPU still waits. Drag Loading: up to what time are three workers enough?",
        ),
        State(
            "Copies beside it",
            {"workers": 3, "pinned": True, "non_blocking": True, "side": True, "moment": 46},
            "Copies pass beside computing. Drag Computing a step down: when does the GPU wait for loading again?",
        ),
    )
    model = staticmethod(simulate)
    draw = staticmethod(draw)
    leaves_out = (
        f"Epochs of {BATCHES} batches. Workers never compete for cores, disk or memory, so more of them never hurt."
        " Left out: launches, passing batches between processes, ending workers."
    )

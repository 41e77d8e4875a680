"""A training step on N GPUs: DDP's ring all-reduce beside backward, and DataParallel, which overlaps nothing.

The times are those of `model`; `result` adds them up, `picture` draws them.
"""

from __future__ import annotations

from ..base.simulator import Choice, Flag, Play, Simulator, Slider
from .model import LINKS, MOST_GPUS
from .picture import draw
from .result import FRAMES, Step, simulate


class AllReduce(Simulator[Step]):
    """N GPUs average their gradients: how much of it hides behind backward, and what a slow link costs."""

    controls = (
        Slider("gpus", "GPUs", 1, MOST_GPUS, 8),
        Slider("parameters", "Parameters", 1, 1000, 124, unit="million"),
        Slider("compute", "Forward + backward", 10, 1000, 100, unit="ms"),
        Choice(
            "bucket",
            "Gradient bucket",
            {
                1: "1 MiB",
                5: "5 MiB",
                25: "25 MiB, DDP's default",
                100: "100 MiB",
                400: "400 MiB",
                "all": "one for all gradients",
            },
            25,
        ),
        Slider("outputs", "Outputs per GPU", 0, 1000, 100, unit="MiB"),
        Choice(
            "link",
            "Link",
            {
                name: link.words if link.staged_gbps is None else f"{link.words}: {link.one_way_gbps:g} GB/s"
                for name, link in LINKS.items()
            },
            "pcie4",
        ),
        Flag("peer", "Peer-to-peer: a GPU reaches another directly", True),
        Play("moment", "Time in the step", 0, FRAMES, 60, unit="%"),
    )
    model = staticmethod(simulate)
    draw = staticmethod(draw)
    leaves_out = (
        "A model: links reach three quarters of their rate, and gradients come evenly. Host memory between GPUs halves"
        " that. Left out: the multiprocessors that NCCL takes from backward, other algorithms than the ring, buckets of"
        " whole layers, several GPUs on one network card, DataParallel's threads and memory."
    )

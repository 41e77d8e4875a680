"""The controls of a training step on N GPUs: DDP's ring all-reduce beside backward, and DataParallel's copies."""

from __future__ import annotations

from ..base.simulator import Choice, Flag, Play, Simulator, Slider, State
from .model import BUCKETS, LINKS, MOST_GPUS
from .picture import draw
from .result import FRAMES, Step, simulate


class AllReduce(Simulator[Step]):
    """N GPUs average their gradients: how much of it hides behind backward, and what a slow link costs."""

    controls = (
        Slider("gpus", "GPUs", 1, MOST_GPUS, 8),
        Slider("parameters", "Parameters", 1, 1000, 124, unit="million", log=True),
        Slider("compute", "Forward + backward", 10, 1000, 100, unit="ms", log=True),
        Choice("bucket", "Gradient bucket", BUCKETS | {25: "25 MiB, DDP's default"}, 25),
        Slider("outputs", "Outputs per GPU", 0, 1000, 100, unit="MiB", log=True),
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
        Play("moment", "Moment", 0, FRAMES, 62, unit="%"),
    )
    primary = ("gpus", "parameters", "moment")
    states = (
        State(
            "Behind backward",
            {"gpus": 8, "bucket": 25, "link": "pcie4", "moment": 62},
            "Each bucket goes round once it is full. Drag the line: which one has nothing left to hide behind?",
        ),
        State(
            "One bucket",
            {"gpus": 8, "bucket": "all", "link": "pcie4", "moment": 85},
            "All GPUs wait for the one bucket. Click smaller buckets: with which do they wait the least?",
        ),
        State(
            "A slow link",
            {"gpus": 8, "bucket": 25, "link": "ethernet10", "moment": 62},
            "The GPUs wait for the network. Try links in More settings: which is the slowest that makes 8 worth 7?",
        ),
    )
    model = staticmethod(simulate)
    draw = staticmethod(draw)
    leaves_out = (
        "A model: links reach three quarters of their rate, and gradients come evenly. Host memory between GPUs halves"
        " that. Left out: the multiprocessors that NCCL takes from backward, other algorithms than the ring, DDP's"
        " first bucket (1 MiB), buckets of whole layers, several GPUs on one network card, DataParallel's threads and"
        " memory."
    )

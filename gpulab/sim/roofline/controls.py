"""The roofline: what a GPU can reach by how much arithmetic an operation does for each byte, and five operations."""

from __future__ import annotations

from virtualgpu.gpus.specs import SPECS

from ..base.controls import Sizes
from ..base.simulator import Choice, Flag, Simulator, State
from .model import DTYPES, OPERATIONS, Roofs, simulate
from .picture import draw

STOPS = tuple(sorted({2**i for i in range(15)} | {2**i + 1 for i in range(6, 14)} | {640, 641}))


class Roofline(Simulator[Roofs]):
    """Which of memory and arithmetic an operation waits for, and what a GPU then makes of it."""

    controls = (
        Choice("gpu", "GPU", {name: name for name in SPECS}, "T4"),
        Choice("dtype", "Precision", DTYPES, "fp16"),
        Choice("op", "Operation", OPERATIONS, "matmul"),
        Sizes("rows", "Rows: tokens, pixels", 1, 16384, 4096, stops=STOPS),
        Sizes("columns", "Columns: outputs, width", 64, 16384, 4096, stops=STOPS[STOPS.index(64) :]),
        Sizes("depth", "Depth: inputs", 16, 16384, 4096, stops=STOPS[STOPS.index(16) :]),
        Flag("channels_last", "Convolution: channels last", False),
    )
    primary = ("gpu", "dtype", "rows")
    states = (
        State(
            "A batch",
            {"op": "matmul", "rows": 4096},
            "4,096 rows share each weight that is read. Drag the square left: at how many rows is it memory-bound?",
        ),
        State(
            "One row",
            {"op": "matmul", "rows": 1},
            "One token of a chat model. Drag the square right: from how many rows on is it compute-bound?",
        ),
        State(
            "Elementwise",
            {"op": "gelu", "rows": 4096},
            "A GELU reads a number, does five operations, writes it. Drag the circle: does any size help?",
        ),
    )
    model = staticmethod(simulate)
    draw = staticmethod(draw)
    leaves_out = (
        "The virtual clock’s model, forward passes only. Left out: alignment (sizes that are no multiples of 8 also"
        " cost tensor cores time), caches, clocks that fall with heat, launches. GELU’s and layer norm’s operations"
        " are counted by hand; they set the point, not the time."
    )

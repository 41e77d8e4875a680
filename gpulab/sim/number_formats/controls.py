"""The controls of one number in six formats: its bits, what is stored of it, what becomes of small updates to it."""

from __future__ import annotations

from ..base.floats import FORMATS
from ..base.simulator import Choice, Flag, Simulator, Slider, State
from .model import Number, share, simulate
from .picture import draw

SHARES = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001, 1e-5, 1e-6, 1e-7, 1e-8)


class NumberFormats(Simulator[Number]):
    """What 32, 19, 16 and 8 bits keep of a number, and of small updates to it."""

    controls = (
        Slider("value", "Number", 0.1, 10.0, 1.0, step=0.01),
        Slider("exponent", "times 10 to the power", -46, 38, 0),
        Choice("format", "Format", {name: kind.name for name, kind in FORMATS.items()}, "bf16"),
        Choice("update", "Each update takes away", {part: share(part) for part in SHARES}, 0.001),
        Flag("negative", "Negative", False),
    )
    primary = ("value", "exponent", "update")
    states = (
        State(
            "An update vanishes",
            {"value": 1.0, "exponent": 0, "format": "bf16"},
            "bf16 loses updates of 0.1%. From which size on does one count? Let each update take away more.",
        ),
        State(
            "Too large",
            {"value": 7.0, "exponent": 4, "format": "fp16"},
            "bf16 holds 70,000, but not exactly. Click its row: how far apart are its numbers there?",
        ),
        State(
            "Too small",
            {"value": 1.0, "exponent": -8, "format": "fp16"},
            "A gradient of 10⁻⁸ is 0 in fp16. Drag the diamond: what is the smallest value that survives?",
        ),
    )
    model = staticmethod(simulate)
    draw = staticmethod(draw)
    leaves_out = (
        "Rounding is torch 2.15's; torch of 2025 and before makes NaN where fp8 e4m3 now stops at 448. Left out: NaN,"
        " the scale that comes with an fp8 tensor, how a product sums, GPUs that flush the smallest numbers to 0."
    )

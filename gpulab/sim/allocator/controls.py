"""The caching allocator at work: segments and their blocks, step by step through a script of allocations."""

from __future__ import annotations

from ..base.simulator import Choice, Flag, Play, Script, Simulator, Slider, State
from .model import MOST_COMMANDS, read
from .picture import draw
from .result import EXAMPLES, Memory, limits, simulate


def _state(name: str, script: str, note: str, *, expandable: bool = False) -> State:
    last = len(read(script))
    return State(name, {"script": script, "step": last, "memory": 100, "max_split": 0, "expandable": expandable}, note)


class Allocator(Simulator[Memory]):
    """What PyTorch's caching allocator keeps, what it gives back, and how it runs out of memory with memory free."""

    controls = (
        Script(
            "script",
            "Script",
            "fragmentation",
            read,
            examples=EXAMPLES,
            buttons={command: command for command in ("m=1.5MiB", "n=24MiB", "empty_cache")},
        ),
        Play("step", "Step", 0, MOST_COMMANDS, MOST_COMMANDS, frames_per_second=2),
        Slider("memory", "GPU memory", 32, 512, 100, unit="MiB", step=4),
        Choice("max_split", "max_split_size_mb", {0: "off", 20: "20", 32: "32", 64: "64", 128: "128"}, 0),
        Flag("expandable", "expandable_segments", False),
    )
    primary = ("step", "memory", "expandable")
    states = (
        _state(
            "Free, out of reach",
            EXAMPLES["fragmentation"],
            "76 MiB are free, and 60 do not fit. Click blocks to free them: which must go before + 60 MiB fits?",
        ),
        _state(
            "empty_cache?",
            EXAMPLES["fragmentation"].replace("d=", "empty_cache; d="),
            "Click b to free it, then empty_cache: does it give anything back? And when c is gone as well?",
        ),
        _state(
            "Expandable",
            EXAMPLES["fragmentation"],
            "The same program with one setting. Lower the GPU memory: below how many MiB does d fail, and why?",
            expandable=True,
        ),
    )
    model = staticmethod(simulate)
    draw = staticmethod(draw)
    limits = staticmethod(limits)
    leaves_out = (
        "A toy GPU, the allocator is PyTorch’s by its rules. Left out: the CUDA context, several streams, other"
        " processes, and the time: a segment from the driver takes some 100 µs, a block from the cache one or two."
    )

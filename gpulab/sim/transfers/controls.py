"""The controls of three tensors between host and GPU: where they lie, and what each copy costs."""

from __future__ import annotations

from typing import Any

from virtualgpu.gpus.specs import Spec

from ..base.simulator import Choice, Flag, Script, Simulator, Slider, State
from .model import BYTES, GPUS, SLOTS, read
from .picture import draw
from .result import Crossings, simulate


def _link(gpu: Spec) -> str:
    return gpu.host_link.name if gpu.host_link else ""


_MOVES = [f"{name} to {where}" for name in BYTES for where in ("GPU", "CPU")]
_BUTTONS = (*_MOVES, *(f"del {name}" for name in BYTES), "weights + bias")


def _state(name: str, script: str, note: str, **values: Any) -> State:
    return State(name, {"script": script, "assign": "new", "pinned": False, "non_blocking": False} | values, note)


class Transfers(Simulator[Crossings]):
    """What .to does with a tensor: a second one, over a slow bus, and the first stays while a name refers to it."""

    controls = (
        Script(
            "script",
            "Commands",
            "input_data to GPU; weights to GPU",
            read,
            buttons={command: command for command in _BUTTONS},
        ),
        Choice(
            "assign",
            "Result goes to",
            {"new": "a new name: y = x.to()", "same": "the same name: x = x.to()", "module": "its module: layer.to()"},
            "new",
        ),
        Choice(
            "gpu", "GPU", {name: f"{name}: {gpu.memory_gb} GB, {_link(gpu)}" for name, gpu in GPUS.items()}, "A100-80"
        ),
        Choice("slot", "Slot", {slot: link.name for slot, link in SLOTS.items()}, 4),
        Slider("room", "Free on the GPU", 0, 64, 64, unit="MiB"),
        Flag("pinned", "Pinned host memory", False),
        Flag("non_blocking", "non_blocking=True", False),
    )
    primary = ("assign", "pinned", "non_blocking")
    states = (
        _state(
            "Copies, both stay",
            "input_data to GPU; weights to GPU",
            "Let the result go to the same name: what is left in the host’s memory then, and why?",
        ),
        _state(
            "One stays behind",
            "input_data to GPU; weights to GPU; weights + bias",
            "Carry bias over to the GPU, then add once more. How long do 2 KB take, and why not less?",
        ),
        _state(
            "Nobody waits",
            "weights to GPU; bias to GPU; input_data to GPU",
            "Untick one of the two: who waits then, and for how long?",
            pinned=True,
            non_blocking=True,
        ),
    )
    model = staticmethod(simulate)
    draw = staticmethod(draw)
    leaves_out = (
        "A call that fetches a segment from the driver takes longer; 1 MB is 10⁶ bytes, 1 MiB is 2²⁰. A model fills the"
        " GPU up to what is free. Left out: other users of the bus, the rounding of pinned memory to powers of two, and"
        " the time of what the CPU computes."
    )

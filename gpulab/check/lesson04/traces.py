"""Random traces for trackers: what is allocated and freed, and which trackers are entered and left, on two GPUs.

A trace is data, so that it can be played to one kind of tracker after another, and printed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from ..wording import is_number
from .common import MIB, near

Step = tuple[str, Any, Any]
Trace = list[Step]
DEVICES = (None, 0, 1, "all")


def draw(length: int) -> Trace:
    """So many random steps, and what closes the trackers that are still open then.

    Nothing is above 1 MiB: such blocks are always split, so that what is allocated does not depend on the cache, which
    a tracker may empty.
    """
    steps: Trace = []
    open_: list[str] = []
    tensors = 0
    for _ in range(length):
        kinds = (
            ["take", "spike", "spike", "enter", "enter"]
            + ["leave"] * bool(open_)
            + ["free"] * bool(tensors)
            + ["current"]
        )
        kind = random.choice(kinds)
        if kind in ("take", "spike"):
            tensors += kind == "take"
            steps.append((kind, random.choice((0, 1)), random.randrange(1, 64) / 64))
        elif kind == "free":
            tensors -= 1
            steps.append((kind, random.randrange(1000), None))
        elif kind == "current":
            steps.append((kind, random.choice((0, 1)), None))
        elif kind == "enter" and (free := [name for name in "ABCD" if name not in open_]):
            open_.append(free[0] if random.random() < 0.7 else random.choice(free))
            steps.append((kind, open_[-1], None))
        elif kind == "leave":
            steps.append((kind, open_.pop(), random.random() < 0.4))
    steps += [("leave", name, False) for name in reversed(open_)]
    return steps


def play(trace: Trace, make: Callable[..., Any], read: Callable[[Any], Any]) -> list[tuple[str, Any]]:
    """Go through the trace with four trackers, A to D, of the current GPU, 0, 1 and all; what each said when left."""
    trackers = {name: make(device=device) for name, device in zip("ABCD", DEVICES, strict=True)}
    tensors: list[torch.Tensor] = []
    seen: list[tuple[str, Any]] = []
    for kind, what, more in trace:
        if kind == "take":
            tensors.append(_take(what, more))
        elif kind == "spike":
            _take(what, more)
        elif kind == "free":
            tensors.pop(what % len(tensors))
        elif kind == "current":
            torch.cuda.set_device(what)
        elif kind == "enter":
            trackers[what].__enter__()
        else:
            error = ValueError("on the way out") if more else None
            trackers[what].__exit__(type(error) if error else None, error, None)
            seen.append((what, read(trackers[what])))
    return seen


def _take(gpu: int, mib: float) -> torch.Tensor:
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device=f"cuda:{gpu}")


def read_own(tracker: Any) -> dict[str, Any]:
    """What gpulab's own tracker says, under the names of the exercise."""
    number = {device: int(device.device.partition(":")[2]) for device in tracker.devices}
    return {
        "peak_memory_mb": tracker.peak_memory_mb,
        "peak_above_entry_mb": tracker.peak_above_entry_bytes / MIB,
        "memory_delta_mb": tracker.memory_delta_mb,
        "peak_by_gpu": {number[d]: d.peak_bytes / MIB for d in tracker.devices},
        "delta_by_gpu": {number[d]: d.delta_bytes / MIB for d in tracker.devices},
    }


def agree(got: Any, want: Any) -> bool:
    if isinstance(want, dict):
        return isinstance(got, dict) and set(got) == set(want) and all(agree(got[gpu], want[gpu]) for gpu in want)
    return is_number(got) and near(got, want)


def text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{gpu}: {text(mib)}" for gpu, mib in value.items()) + "}"
    return f"{value:.5g} MiB" if is_number(value) else repr(value)


def describe(trace: Trace) -> str:
    """The trace on one line."""
    words: dict[str, Callable[[Any, Any], str]] = {
        "take": lambda gpu, mib: f"+{mib:.4g}@{gpu}",
        "spike": lambda gpu, mib: f"^{mib:.4g}@{gpu}",
        "free": lambda which, _: "free one",
        "current": lambda gpu, _: f"set_device({gpu})",
        "enter": lambda name, _: f"enter {name}(device={DEVICES['ABCD'.index(name)]!r})",
        "leave": lambda name, error: f"leave {name}" + " by an exception" * bool(error),
    }
    return ", ".join(words[kind](what, more) for kind, what, more in trace)

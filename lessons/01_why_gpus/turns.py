"""Judges the turn of lesson 01: the limit of an operation on a given GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from gpulab.exercise.turns import AsGiven, NotYet, turn
from gpulab.exercise.wording import brief

WORDS = ("arithmetic", "memory", "launch")
PEAK, BANDWIDTH, LAUNCH = 65e12, 320e9, 5e-6  # a T4: FLOP/s in fp16, bytes/s (recorded); s (assumed)
SIZES = {
    "relu of 64 Mi numbers": ((2**26,),),
    "relu of 1,000 numbers": ((1000,),),
    "4096 × 4096 product": ((4096, 4096), (4096, 4096)),
    "1 row × 4096 × 4096": ((1, 4096), (4096, 4096)),
    "softmax of 4096 × 4096": ((4096, 4096),),
    "3 × 3 convolution": ((64, 256, 56, 56), (256, 256, 3, 3)),
}


def _run(name: str, *given: torch.Tensor) -> torch.Tensor:
    if "product" in name or "row" in name:
        return given[0] @ given[1]
    if "convolution" in name:
        return F.conv2d(given[0], given[1], padding=1)
    return given[0].softmax(-1) if "softmax" in name else given[0].relu()


def _times(name: str) -> dict[str, float]:
    """Seconds that each of the three takes by itself, from shapes and the data sheet."""
    given = [torch.empty(shape, device="meta", dtype=torch.float16) for shape in SIZES[name]]
    with FlopCounterMode(display=False) as counter:
        out = _run(name, *given)
    flops = counter.get_total_flops() or 5 * out.numel()  # it counts no elementwise work; 5 is more than relu does
    return {
        "arithmetic": flops / PEAK,
        "memory": sum(t.nbytes for t in (*given, out)) / BANDWIDTH,
        "launch": LAUNCH,
    }


_LIKELY = {
    "arithmetic": "its FLOPs at the peak rate take longer than its bytes: each number is used hundreds of times",
    "memory": "each number that it moves is used a few times only, and 5 µs are short beside that",
    "launch": "it moves a few kilobytes: the host needs longer to launch it than the GPU to do it",
}


@turn("two wait for arithmetic, three for memory, and one for its launch")
def what_waits(answer: Any) -> None:
    """A function that returns {operation: "arithmetic", "memory" or "launch"}, for fp16 on a T4."""
    got = answer()
    if not isinstance(got, dict) or set(got) != set(SIZES):
        raise NotYet(
            brief(got), expected="the dict of the six operations", likely="a key was changed, or the return is missing"
        )
    if all(word is None for word in got.values()):
        raise AsGiven("all six are None")
    for name, word in got.items():
        times = _times(name)
        longest = max(times, key=lambda what: times[what])
        if word != longest:
            took = ", ".join(f"{what} {1e6 * seconds:,.1f} µs" for what, seconds in times.items())
            likely = _LIKELY[longest] if word in WORDS else f"the three words are {', '.join(WORDS)}"
            raise NotYet(f"{brief(word)} for {name}", expected=f"{longest} ({took}; computed)", likely=likely)

"""Judges the turns of lesson 01: fewer bytes for a ReLU, masks of a branch, the limit of an operation on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from gpulab.exercise.turns import AsGiven, NotYet, turn
from gpulab.exercise.wording import brief

THREADS, WARP = 1024, 32


@turn("the same numbers in 16 bits: half of the bytes, so half of the time")
def half_the_time(prepare: Any) -> None:
    """A function of a float32 tensor that returns its numbers in half of the bytes."""
    x = torch.randn(2**12)
    got = prepare(x.clone())
    if not isinstance(got, torch.Tensor):
        raise NotYet(brief(got), expected="a tensor", likely="the return is missing")
    if got.shape != x.shape:
        raise NotYet(
            f"shape {tuple(got.shape)}", expected=f"{tuple(x.shape)}: as many results", likely="numbers were left out"
        )
    if got.dtype == x.dtype and torch.equal(got, x):
        raise AsGiven("`prepare` returns `x` as it is")
    if got.itemsize != 2:
        raise NotYet(
            f"{got.itemsize} bytes a number ({got.dtype})",
            expected="2 bytes",
            likely="the time is bytes over bandwidth, and half of 4 is 2",
        )
    if not torch.allclose(got.float(), x, rtol=2**-7, atol=1e-6):
        raise NotYet(
            f"other numbers ({got.dtype})", expected="those of `x`, rounded to 16 bits", likely="an integer type"
        )


@turn("half of the threads each time: nothing is lost if each warp agrees, and the time doubles if every warp splits")
def two_masks(masks: Any) -> None:
    """A function of the threads' numbers that returns a cheap and an expensive mask, half of the threads in each."""
    got = masks(torch.arange(THREADS))
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        raise NotYet(brief(got), expected="two masks", likely="the return or one of the two masks is missing")
    for name, mask in zip(("cheap", "expensive"), got, strict=True):
        if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool or mask.shape != (THREADS,):
            raise NotYet(
                f"{brief(mask)} for `{name}`",
                expected=f"{THREADS} booleans",
                likely="a comparison gives them: `<`, `==`",
            )
    if not any(mask.any() for mask in got):
        raise AsGiven("no thread takes the branch")
    for name, mask, split in zip(("cheap", "expensive"), got, (0, THREADS // WARP), strict=True):
        taken, warps = int(mask.sum()), mask.view(-1, WARP)
        if taken != THREADS // 2:
            raise NotYet(
                f"{taken} threads of `{name}` take the branch", expected=f"{THREADS // 2}", likely="half of the threads"
            )
        both = int((warps.any(dim=1) & ~warps.all(dim=1)).sum())
        if both != split:
            raise NotYet(
                f"{both} of {THREADS // WARP} warps of `{name}` run both sides",
                expected=f"{split}",
                likely="a warp is 32 consecutive threads: 0 to 31, 32 to 63, and so on",
            )


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
    "arithmetic": "its FLOPs at the peak rate take longer than moving its bytes: each number is used hundreds of times",
    "memory": "it uses each number that it moves only a few times, and the launch's 5 µs are short beside that",
    "launch": "it moves a few kilobytes: the host needs longer to launch it than the GPU to run it",
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

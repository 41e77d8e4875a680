"""Judges the turn of lesson 06: the cheapest remedy with which a job fits, by the arithmetic of the lecture."""

from __future__ import annotations

from typing import Any

from gpulab.exercise.turns import AsGiven, NotYet, turn
from gpulab.exercise.wording import brief

WEIGHTS, TEXT, INPUTS = 216, 198, 12  # MiB: of the eight blocks; kept for each text, and of that the blocks' inputs
BLOCKS, LARGEST = 8, 9  # MiB of the largest parameter
REMEDIES = ("fused AdamW", "autocast", "checkpoint", "Adafactor")
JOBS = {
    "batch 1 in 950 MiB": (1, 950),
    "batch 8 in 1,900 MiB": (8, 1900),
    "batch 8 in 1,200 MiB": (8, 1200),
    "batch 1 in 600 MiB": (1, 600),
}


def _moments(batch: int, remedy: str) -> tuple[float, float, float]:
    """MiB that are always there, that come on top at the end of forward, and those of the optimizer's step."""
    kept, state, temporaries = float(TEXT * batch), 2.0 * WEIGHTS, float(WEIGHTS)
    if remedy == "autocast":
        kept = kept / 2 + WEIGHTS / 2
    if remedy == "checkpoint":
        kept = (INPUTS + TEXT / BLOCKS) * batch
    if remedy == "fused AdamW":
        temporaries = 0
    if remedy == "Adafactor":
        state, temporaries = 0, 2 * LARGEST
    return WEIGHTS + state, kept, WEIGHTS + temporaries


def _peak(batch: int, remedy: str) -> float:
    always, forward, step = _moments(batch, remedy)
    return always + max(forward, step)


@turn("each job fits, by the remedy that costs least")
def must_fit(answer: Any) -> None:
    """A function that returns {job: "fused AdamW", "autocast", "checkpoint" or "Adafactor"}."""
    got = answer()
    if not isinstance(got, dict) or set(got) != set(JOBS):
        raise NotYet(
            brief(got), expected="the dict of the four jobs", likely="a key was changed, or the return is missing"
        )
    if all(remedy is None for remedy in got.values()):
        raise AsGiven("all four are None")
    for job, (batch, budget) in JOBS.items():
        remedy, first = got[job], next(one for one in REMEDIES if _peak(batch, one) <= budget)
        if remedy == first:
            continue
        always, forward, step = _moments(batch, first)
        raise NotYet(
            f"{brief(remedy)} for {job}",
            expected=f"{first}: {always:,.0f} + max({forward:,.0f}, {step:,.0f}) MiB (computed)",
            likely=_likely(batch, budget, remedy),
        )


def _likely(batch: int, budget: int, remedy: Any) -> str:
    if remedy not in REMEDIES:
        return f"the four words are {', '.join(REMEDIES)}"
    peak, (_, forward, step) = _peak(batch, remedy), _moments(batch, remedy)
    if peak <= budget:
        return "it fits too, and costs more than one that stands before it"
    moment = "the optimizer's step" if step > forward else "the end of the forward pass"
    return f"with it the peak is {peak:,.0f} MiB, at {moment}: a remedy for another moment buys nothing"

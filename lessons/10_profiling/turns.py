"""Judges the turns of lesson 10: a schedule for a slow run, a rule that names a bottleneck, and which rank is late."""

from __future__ import annotations

import itertools
import random
from typing import Any

from gpulab.exercise.turns import AsGiven, NotYet, turn
from gpulab.exercise.wording import brief

FIRST, PERIOD, ACTIVE, CYCLES, STEPS = 20, 20, 3, 3, 100


@turn("three of every 20 steps, each time after a warm-up, and none of the first 20")
def three_of_twenty(answer: Any) -> None:
    """A function () that returns a schedule for `torch.profiler.profile`."""
    from torch.profiler import ProfilerAction

    plan = answer()
    if not callable(plan):
        raise NotYet(f"{brief(plan)} came back", expected="a schedule", likely="the return is missing")
    actions = [plan(step) for step in range(STEPS)]
    recorded = [i for i, does in enumerate(actions) if does in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)]
    warm = [i for i, does in enumerate(actions) if does is ProfilerAction.WARMUP]
    starts = [i for i in recorded if i - 1 not in recorded]
    says = f"steps {_listed(recorded)} are recorded"
    if recorded and recorded[0] == 2:
        raise AsGiven("the first steps are recorded, and 3 of every 5")
    if not recorded or recorded[0] < FIRST or (warm and warm[0] < FIRST):
        raise NotYet(
            f"{says}, with a warm-up at {_listed(warm)}",
            expected="nothing before step 20",
            likely="skip_first counts the steps that come before everything else",
        )
    if any(b - a != PERIOD for a, b in itertools.pairwise(starts)) or len(recorded) != ACTIVE * len(starts):
        raise NotYet(
            says, expected="3 of every 20", likely="wait, warmup and active together are one cycle: 16 + 1 + 3"
        )
    if warm != [i - 1 for i in starts]:
        raise NotYet(
            f"warm-up is at {_listed(warm)}, recording begins at {_listed(starts)}",
            expected="one step of warm-up before each",
            likely="warmup=1; without it the first recorded step pays for the profiler's own start",
        )
    if len(starts) != CYCLES:
        raise NotYet(
            f"there are {len(starts)} cycles in {STEPS} steps",
            expected=f"{CYCLES}",
            likely="repeat sets the number of cycles; 0, the default, continues to the end",
        )


def _listed(steps: list[int]) -> str:
    return ", ".join(map(str, steps[:6])) + (", …" if len(steps) > 6 else "") if steps else "none"


Shares = tuple[float, float, float, float]  # busy, loading, compute, memory


def _cases() -> dict[str, list[Shares]]:
    """Jobs of which everybody would say the same."""
    draw = random.uniform
    cases: dict[str, list[Shares]] = {"input": [], "launches": [], "bandwidth": [], "compute": [], "latency": []}
    for _ in range(6):
        loading = draw(0.6, 0.9)
        cases["input"].append((draw(0.02, 0.95 - loading), loading, draw(0.05, 0.6), draw(0.05, 0.6)))
        cases["launches"].append((draw(0.02, 0.55), draw(0.0, 0.1), draw(0.05, 0.6), draw(0.05, 0.6)))
        # Far below 60 % each, and beyond it together: some kernels are at one roof, others at the other.
        near, far = random.choice([(draw(0.65, 0.9), draw(0.02, 0.1)), (draw(0.45, 0.55), draw(0.22, 0.35))])
        # The host may wait for a batch while the GPU is still at work: nothing is lost by it.
        cases["bandwidth"].append((draw(0.93, 1.0), draw(0.0, 0.8), far, near))
        cases["compute"].append((draw(0.93, 1.0), draw(0.0, 0.8), near, far))
        cases["latency"].append((draw(0.93, 1.0), draw(0.0, 0.8), draw(0.02, 0.25), draw(0.02, 0.25)))
    return cases


_LIKELY = {
    "input": "there are gaps between the kernels, and the host spends them in the loader",
    "launches": "there are gaps, and the host is hardly in the loader: it is launching kernels",
    "bandwidth": "without gaps the loader does not matter; memory is the nearer roof",
    "compute": "without gaps the loader does not matter; arithmetic is the nearer roof",
    "latency": "there are no gaps, and both roofs together are below 60 %: no roof is near",
}
_BOTH = "the two add up: some kernels are at one roof, others at the other"


@turn("first the gaps and what the host does in them, then which roof is near, if any")
def bottleneck(answer: Any) -> None:
    """A function (busy, loading, compute, memory) that returns one of five words."""
    cases = _cases()
    got = {name: [answer(*shares) for shares in found] for name, found in cases.items()}
    if got == {name: ["input" if s[0] < 0.85 else "compute" for s in found] for name, found in cases.items()}:
        raise AsGiven("every gap is blamed on the input, and without gaps everything is bound by arithmetic")
    for said in itertools.chain.from_iterable(got.values()):
        if said not in cases:
            raise NotYet(f"{brief(said)} came back", expected=f"one of {', '.join(cases)}", likely="another word")
    for name, found in cases.items():
        for shares, said in zip(found, got[name], strict=True):
            if said != name:
                busy, loading, compute, memory = (f"{share:.0%}" for share in shares)
                raise NotYet(
                    f'"{said}" for busy {busy}, loading {loading}, compute {compute}, memory {memory}',
                    expected=f'"{name}"',
                    likely=_BOTH if said == "latency" and shares[0] > 0.9 else _LIKELY[name],
                )


@turn("the rank with the shortest kernels: the others spin in theirs until it arrives")
def late_rank(answer: Any) -> None:
    """A function (lasted) of {rank: ms} that returns a rank."""
    for _ in range(8):
        late, exchange = random.randrange(8), random.uniform(2, 20)
        lasted = {rank: exchange + random.uniform(5, 40) for rank in random.sample(range(8), 8)}
        lasted[late] = exchange
        got = answer(dict(lasted))
        longest = max(lasted, key=lambda rank: lasted[rank])
        told = ", ".join(f"{rank}: {ms:.0f}" for rank, ms in sorted(lasted.items()))
        if got == longest and not isinstance(got, bool):
            raise AsGiven("the rank that waited longest comes back")
        if got is None:
            raise NotYet("None came back", expected="a rank", likely="the return is missing")
        if isinstance(got, float):
            raise NotYet(f"{brief(got)} came back", expected="a rank", likely="min of the dict by its values: key=")
        if got != late or isinstance(got, bool):
            raise NotYet(
                f"{brief(got)} for {{{told}}}",
                expected=f"rank {late}",
                likely="the last rank finds all others waiting, so its kernel is the shortest",
            )

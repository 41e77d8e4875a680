"""Checks exercise 04.4, golf: 2 GiB cannot be allocated on a virtual T4, with almost no live memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from gpulab.exercise.contract import Clause, Contract, Facts
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import brief

from .common import MIB, gpus

ALLOCATOR, FOUR_NUMBERS = "The caching allocator", "Four numbers for one GPU"
GIB = 2**30
REQUEST, PAR = 2 * GIB, 16 * MIB
KIND, LEFT, LIMITED, OUTCOME, ALIVE = (
    "what comes back",
    "not returned, and alive",
    "limit",
    "request for 2 GiB",
    "alive",
)
SOURCE, WHAT = "where the 2 GiB come from", "what is alive"  # not judged
CLAUSES = (
    Clause("Returns the list of the tensors that are to stay alive", [KIND], "no list is returned", "", ALLOCATOR),
    Clause("everything else must be gone", [LEFT], "tensors that were not returned stay alive", "", FOUR_NUMBERS),
    Clause("Not allowed: limits and settings", [LIMITED], "the emptied GPU cannot be filled", "", ALLOCATOR),
    Clause("runs out of memory", [OUTCOME], "the request succeeds", "", ALLOCATOR),
    Clause("Par is 16 MiB", [ALIVE], "above par: too much is alive", "", ALLOCATOR),
)  # fmt: skip


def fails(nbytes: int = REQUEST) -> bool:
    try:
        torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        return True
    return False


def played(student: Callable[[], Any]) -> SimpleNamespace:
    """What the student left, and what came of the request, with the tensors and without."""
    kept = student()
    torch.cuda.synchronize()
    segments = torch.cuda.memory_snapshot()
    tensors = isinstance(kept, Sequence) and all(isinstance(t, torch.Tensor) for t in kept)
    found = SimpleNamespace(
        kind="a list of tensors" if tensors else brief(kept),
        slices=tensors and any(t.untyped_storage().nbytes() > 2 * t.nbytes + MIB for t in kept),
        live=torch.cuda.memory_allocated(),
        reserved=torch.cuda.memory_reserved(),
        driver=torch.cuda.mem_get_info()[0],
        asked=torch.cuda.memory_stats()["allocated_bytes.large_pool.allocated"],  # by all large requests together
        pinned=[segment for segment in segments if segment["allocated_size"]],
        blocks=sum(b["state"] != "inactive" for segment in segments for b in segment["blocks"]),
        unheld=any(s["total_size"] > 20 * MIB and not s["allocated_size"] for s in segments),
    )
    free = [b["size"] for segment in found.pinned for b in segment["blocks"] if b["state"] == "inactive"]
    found.gap, found.fails = max(free, default=0), fails()
    del kept
    gc.collect()
    torch.cuda.empty_cache()
    found.left, everything = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0] // (2 * MIB) * 2 * MIB
    found.limited = fails(max(everything, REQUEST))
    return found


def source(found: SimpleNamespace) -> str:
    """Where a request that succeeds has its 2 GiB from."""
    if not found.live:
        return "segments in which nothing is alive" if found.reserved else "an empty GPU"
    if found.gap >= REQUEST:
        return "a free block beside a live one"
    if found.driver >= REQUEST:
        again = found.unheld and found.asked >= found.reserved + REQUEST
        return "a segment that two tensors have had" if again else "the driver"
    small = all(segment["total_size"] <= 2 * MIB for segment in found.pinned)
    return "large segments, where what is alive is in the small pool" if small else "segments that were given back"


def what_is_alive(found: SimpleNamespace) -> str:
    if found.slices:
        return "slices"
    if found.live >= max(0.8 * (found.live + found.driver), GIB):
        return "nearly everything"
    twenty = sum(segment["total_size"] == 20 * MIB for segment in found.pinned)
    if twenty >= 100:
        return "segments of 20 MiB"
    return "many tensors" if found.live < 2 * MIB * found.blocks else "large tensors"


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    for _ in range(scene.rounds):
        with gpus(1):
            found = call(through=played)
    again = "the second round: " if scene.rounds > 1 else ""
    facts = Facts(
        f"{again}{mib(found.live)} alive, {mib(found.reserved)} reserved, with at most {mib(found.gap)} free in one "
        f"piece beside what is alive, {mib(found.driver)} left to the driver"
    )
    facts.add(KIND, found.kind, "a list of tensors")
    if facts.hold():
        facts.add(LEFT, "some" if found.left else "none", "none")
    if facts.hold():
        facts.add(LIMITED, "one was set" if found.limited else "none", "none")
    if facts.hold():
        facts.add(OUTCOME, "fails" if found.fails else "succeeds", "fails")
    if not facts.hold():
        if OUTCOME in facts.seen:
            facts.seen[SOURCE] = source(found)
        return facts
    facts.add(ALIVE, "more" if found.live > PAR else "at most 16 MiB", "at most 16 MiB")
    if not facts.hold():
        facts.seen[WHAT] = what_is_alive(found)
    return facts


def mib(nbytes: int) -> str:
    return f"{nbytes / GIB:,.3f} GiB" if nbytes >= GIB else f"{nbytes / MIB:,.2f} MiB"


EXERCISE = Contract(
    __file__,
    says="a request for 2 GiB fails, though next to nothing is alive: fragmentation",
    parameters=(),
    clauses=CLAUSES,
    edges={"rounds": (1, 2)},  # each on a GPU of its own
    play=play,
    errors={"OutOfMemoryError": "your function did not catch it: call torch.cuda.mem_get_info() before each large "
                                "allocation"},
)

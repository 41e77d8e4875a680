"""The check of a memory that is nearly empty and has no 2 GiB: played on a virtual T4, counted in live bytes."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..base import Trial, check
from ..wording import show
from .common import ALLOCATOR, FOUR_NUMBERS, MIB, gpus

GIB = 2**30
REQUEST = 2 * GIB
PAR = 16 * MIB
SMALL = MIB  # the largest request that the small pool serves


@dataclass(frozen=True)
class Round:
    """One round: what the student left, and what came of the request, with their tensors and without."""

    tensors: Any
    live: int
    reserved: int
    driver: int  # bytes that the driver can still give
    asked: int  # bytes of all large requests, one after another
    blocks: tuple[tuple[int, int, int], ...]  # of each segment: its size, the largest free block, live bytes
    smallest: int
    slices: bool
    failed: bool
    left: int
    fails_anyway: bool


def play(student: Any) -> Round:
    """Play a round; to be run in the student's thread, on a fresh GPU."""
    kept = student()
    torch.cuda.synchronize()
    segments = torch.cuda.memory_snapshot()
    blocks = []
    for segment in segments:
        free = [block["size"] for block in segment["blocks"] if block["state"] == "inactive"]
        blocks.append((segment["total_size"], max(free, default=0), segment["allocated_size"]))
    live = [b["size"] for segment in segments for b in segment["blocks"] if b["state"] != "inactive"]
    counts = torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]
    asked = torch.cuda.memory_stats()["allocated_bytes.large_pool.allocated"]
    tensors = isinstance(kept, Sequence) and all(isinstance(t, torch.Tensor) for t in kept)
    slices = tensors and any(t.untyped_storage().nbytes() > 2 * t.nbytes + MIB for t in kept)
    failed = _fails()
    shown = kept if tensors else show(kept)
    count = len(kept) if tensors else 0
    del kept, shown
    gc.collect()
    torch.cuda.empty_cache()
    left = torch.cuda.memory_allocated()
    return Round(
        count if tensors else None,
        *counts,
        asked,
        tuple(blocks),
        min(live, default=0),
        slices,
        failed,
        left,
        _fails(),
    )


def _fails() -> bool:
    try:
        torch.empty(REQUEST, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        return True
    return False


@check(lesson=4, says="2 GiB cannot be had, though next to nothing is alive: fragmentation")
def oom_golf(student: Any, trial: Trial) -> None:
    """Check a function without arguments: on an empty virtual T4 it leaves tensors, which it returns in a list, so that
    a request for 2 GiB fails with at most 16 MiB alive."""
    trial.function(student, ())
    with gpus(1):
        seen: Round = trial.call(lambda: play(student), explain=_explain)
    rows = {
        "expected": f"a request for 2 GiB that fails, with at most {PAR // MIB} MiB alive",
        "got": f"{'it fails' if seen.failed else 'it succeeds'}; {_mib(seen.live)} alive, {_mib(seen.reserved)} "
        f"reserved, {_mib(seen.driver)} left to the driver",
    }
    trial.expect(
        seen.tensors is not None,
        "what comes back is not a list of tensors",
        likely="return the tensors that hold the ground: one that nobody holds is freed as the function ends",
        read=ALLOCATOR,
        **rows,
    )
    _judge_tricks(trial, seen, rows)
    if not seen.failed:
        _judge_success(trial, seen, rows)
    _judge_live(trial, seen, rows)


def _judge_tricks(trial: Trial, seen: Round, rows: dict[str, str]) -> None:
    trial.expect(
        not seen.left,
        "tensors that were not returned stay alive",
        likely=f"{_mib(seen.left)} are held by a global, a default argument or a cycle: only what you return may stay",
        read=FOUR_NUMBERS,
        **rows,
    )
    trial.expect(
        not seen.fails_anyway,
        "the request fails even on the empty GPU",
        likely="a limit was set, as set_per_process_memory_fraction does: another error. Play with tensors only",
        read=ALLOCATOR,
        **rows,
    )


def _judge_success(trial: Trial, seen: Round, rows: dict[str, str]) -> None:
    """Say where the 2 GiB came from."""
    pinned = [segment for segment in seen.blocks if segment[2]]
    given_back = sum(size for size, _, live in seen.blocks if not live)
    trial.expect(
        seen.live > 0,
        "the request succeeds: nothing is alive on the GPU",
        likely="before it gives up, the allocator gives every segment without a live block back to the driver, and "
        "asks again. Each segment needs a live block"
        if seen.reserved
        else "nothing is on the GPU: tensors belong on device='cuda', and in the list that is returned",
        read=ALLOCATOR,
        **rows,
    )
    gap = max((free for _, free, _ in pinned), default=0)
    trial.expect(
        gap < REQUEST,
        "the request succeeds: it fits into one free block",
        likely=f"one of your segments has {_mib(gap)} free in one piece. What is free beside a live block must be "
        "smaller than 2 GiB, before it and after it",
        read=ALLOCATOR,
        **rows,
    )
    unheld = any(size > 20 * MIB and not live for size, _, live in seen.blocks)
    trial.expect(
        seen.driver < REQUEST or not unheld or seen.asked < seen.reserved + REQUEST,
        "the request succeeds: a later large tensor went into an earlier one's segment",
        likely="a segment without a live block serves the next large request, too. A live block of up to 1 MiB lies in "
        "the small pool, a larger one in the smallest free block that will do, or in a new segment of 20 MiB. Each "
        "large segment needs its own: torch.cuda.memory_snapshot() shows where each lies",
        read=ALLOCATOR,
        **rows,
    )
    trial.expect(
        seen.driver < REQUEST,
        "the request succeeds: the driver still has 2 GiB",
        likely="reserved is not enough yet: go on until torch.cuda.mem_get_info() has less than 2 GiB free",
        read=FOUR_NUMBERS,
        **rows,
    )
    small = all(size <= 2 * MIB for size, _, _ in pinned)
    trial.expect(
        not small,
        "the request succeeds: the small live blocks are not in the large segments",
        likely="a request up to 1 MiB goes to the small pool, in segments of 2 MiB. The large segments held nothing "
        f"live, and {_mib(given_back)} were given back to the driver. To sit in a large one, take a little more than "
        "1 MiB",
        read=ALLOCATOR,
        **rows,
    )
    trial.fail(
        "the request succeeds: segments without a live block were given back",
        likely=f"{_mib(given_back)} of your segments hold nothing live: the allocator gives them back to the driver "
        "before it gives up, and asks again. Best fit puts a small request into the smallest free block that will do, "
        "so look where each of yours has gone: torch.cuda.memory_snapshot()",
        read=ALLOCATOR,
        **rows,
    )


def _judge_live(trial: Trial, seen: Round, rows: dict[str, str]) -> None:
    if seen.live <= PAR:
        return
    trial.expect(
        not seen.slices,
        "a slice keeps all of its tensor alive",
        likely="big[:n] is a view: it holds the storage of big, to the last byte. Delete big, then ask for a small "
        "tensor: it goes into the block that has become free",
        read=ALLOCATOR,
        **rows,
    )
    trial.expect(
        seen.live < 0.8 * (seen.live + seen.driver) or seen.live < GIB,
        "the memory is full, not fragmented",
        likely="whoever holds everything runs out of it: here nearly all of what is reserved has to be free",
        read=FOUR_NUMBERS,
        **rows,
    )
    twenty = sum(1 for size, _, live in seen.blocks if size == 20 * MIB and live)
    trial.expect(
        twenty < 100,
        "above par: the live blocks hold segments of 20 MiB",
        likely=f"a request between 1 and 10 MiB that finds no free block gets a segment of 20 MiB, and you hold "
        f"{twenty} of them. One live block can hold a segment of 2 GiB: make a large tensor, delete it, then ask",
        read=ALLOCATOR,
        **rows,
    )
    trial.fail(
        "above par: too much is alive",
        likely=f"{seen.tensors} tensors, of which the smallest takes {_mib(seen.smallest)}. A block holds its segment "
        "however small it is: a little more than 1 MiB is enough to sit in a large segment",
        read=ALLOCATOR,
        **rows,
    )


def _mib(nbytes: int) -> str:
    return f"{nbytes / GIB:,.2f} GiB" if nbytes >= GIB else f"{nbytes / MIB:,.2f} MiB"


def _explain(error: str) -> str:
    if error.startswith("OutOfMemoryError"):
        return (
            "your own allocations ran out of memory, and nobody caught it. Ask torch.cuda.mem_get_info() how much is "
            "left before each large one"
        )
    return ""

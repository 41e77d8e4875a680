"""Judges the turns of lesson 05: the account of a message, recovery after `except`, a validation that keeps nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from gpulab.exercise.measure import allocated, left_behind, virtual_gpu
from gpulab.exercise.turns import AsGiven, NotYet, turn
from gpulab.exercise.wording import brief, is_number, is_whole

MIB = 2**20
MOST_CALLS = 40  # of an attempt: a loop that does not halve ends


def _whole(low: int, high: int) -> int:
    return int(torch.randint(low, high, ()))


@turn("others, context and cause, for three messages of each cause")
def account(answer: Any) -> None:
    """A function (capacity, free, process, allocated, cached, tried), in MiB, that returns (others, context, cause)."""
    given = True
    for cause in ("live tensors", "another process", "fragmentation") * 3:
        figures = _figures(cause)
        others = figures["capacity"] - figures["free"] - figures["process"]
        context = figures["process"] - figures["allocated"] - figures["cached"]
        got = answer(**figures)
        if not isinstance(got, tuple) or len(got) != 3 or not all(map(is_number, got[:2])):
            raise NotYet(brief(got), expected="(others, context, cause)", likely="the last line was changed")
        given = given and got == (0, 0, "live tensors")
        if given and cause != "fragmentation":
            continue
        if given:
            raise AsGiven("others and context are 0 for every message")
        told = ", ".join(f"{name} {size:,}" for name, size in figures.items())
        for name, value, right in (("others", got[0], others), ("context", got[1], context)):
            if abs(value - right) > 0.5:
                raise NotYet(
                    f"{name} is {value:,} for {told}",
                    expected=f"{right:,} MiB",
                    likely="capacity = free + this process + others"
                    if name == "others"
                    else "this process = context + allocated + cached",
                )
        if got[2] != cause:
            raise NotYet(f"{brief(got[2])} for {told}", expected=f'"{cause}"', likely=_why(cause, others))


def _figures(cause: str) -> dict[str, int]:
    """The figures of a message with this cause, in MiB; others hold something in any case."""
    capacity, tried, context = _whole(15_000, 81_000), 2 * _whole(200, 400), _whole(250, 600)
    free = tried - _whole(100, 300)
    others = _whole(20, 90) if cause == "live tensors" else tried - free + _whole(0, 4000)
    cached = tried + _whole(0, 900) if cause == "fragmentation" else tried - _whole(50, 300)
    process = capacity - free - others
    return {
        "capacity": capacity,
        "free": free,
        "process": process,
        "allocated": process - context - cached,
        "cached": cached,
        "tried": tried,
    }


def _why(cause: str, others: int) -> str:
    if cause == "fragmentation":
        return "the cache has as much as was tried, in pieces; check this first"
    if cause == "another process":
        return f"others hold {others:,} MiB, which is at least tried - free"
    return f"the cache has less than was tried, and the {others:,} MiB of others are less than tried - free"


@turn("the first batch that fits, each attempt made once, and 0 if none fits (virtual T4)")
def recover(answer: Any) -> None:
    """A function (attempt, batch) that halves batch until attempt(batch) raises no OutOfMemoryError."""
    start = _whole(400, 1600)
    for piece in (256 * MIB, 16 * 2**30):
        fits = 57 if piece == 256 * MIB else 0
        right = [start]
        while right[-1] > fits and right[-1] > 1:
            right.append(right[-1] // 2)
        wanted = right[-1] if right[-1] <= fits else 0
        with virtual_gpu(compute=False):
            attempt, tried = _attempts(piece)
            got = answer(attempt, start)
        if not is_whole(got):
            raise NotYet(f"{brief(got)} came back", expected=f"the batch, {wanted}", likely="a return is missing")
        if wanted and got == 0 and tried[-1] <= 1:
            raise AsGiven("0 comes back: the tensors of the first attempt stay in memory")
        if got != wanted or tried[: len(right)] != right:
            likely = "halve with //, and start with the batch itself"
            if len(tried) > MOST_CALLS:
                likely = "the loop tries the same batch again and again: halve it after the except block"
            elif got != wanted and not wanted:
                likely = "0 means that not even a batch of 1 fits"
            elif got != wanted:
                likely = "return the batch that fits, before it is halved again"
            raise NotYet(
                f"{got} came back after {_some(tried)}", expected=f"{wanted} after {_some(right)}", likely=likely
            )
    with virtual_gpu(compute=False):
        try:
            answer(_broken, 8)
        except ValueError:
            return
    raise NotYet(
        "a ValueError of the attempt is swallowed",
        expected="the error reaches the caller",
        likely="catch torch.OutOfMemoryError alone: no smaller batch helps against other errors",
    )


def _attempts(piece: int) -> tuple[Callable[[int], None], list[int]]:
    """A function that needs `piece` bytes for each sample, and the batches that it was called with."""
    tried: list[int] = []

    def attempt(batch: int) -> None:
        tried.append(batch)
        kept = []
        for _ in range(batch if len(tried) <= MOST_CALLS else 0):
            kept.append(torch.empty(piece, dtype=torch.uint8, device="cuda"))

    return attempt, tried


def _broken(batch: int) -> None:
    raise ValueError("a fault of the attempt")


def _some(tried: list[int]) -> str:
    shown = ", ".join(map(str, tried[:6]))
    return f"{shown}, …" if len(tried) > 6 else shown


@turn("the same losses, nothing kept on the GPU, no graph built, and the model back in training mode (virtual T4)")
def validate(answer: Any) -> None:
    """A function (model, batches) that returns the mse loss of each batch, in evaluation mode."""
    with virtual_gpu():
        model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.ReLU(), nn.Linear(64, 32)).to("cuda")
        batches = [(torch.randn(256, 64, device="cuda"), torch.randn(256, 32, device="cuda")) for _ in range(4)]
        model.eval()
        with torch.no_grad():
            wanted = [F.mse_loss(model(x), y).item() for x, y in batches]
        model.train()
        seen: list[tuple[bool, bool]] = []
        hook = model.register_forward_hook(lambda module, _, out: seen.append((out.requires_grad, module.training)))
        live: list[int] = []
        held = allocated()
        got = answer(model, _noting(batches, live))
        hook.remove()
        kept = sum(left_behind(held, got).values())
        if not isinstance(got, list) or len(got) != len(wanted):
            raise NotYet(brief(got), expected=f"a list of {len(wanted)} losses", likely="the return was changed")
        graphs = any(graph for graph, _ in seen)
        grown = (live[-1] - live[1]) // (len(live) - 2)
        if graphs and any(isinstance(loss, torch.Tensor) and loss.requires_grad for loss in got):
            raise AsGiven(f"each batch leaves {grown:,} bytes on the GPU")
        if any(abs(float(loss) - right) > 1e-5 for loss, right in zip(got, wanted, strict=True)):
            raise NotYet(
                f"the losses are {[round(float(loss), 3) for loss in got]}",
                expected=str([round(loss, 3) for loss in wanted]),
                likely="the model must be in evaluation mode, and the loss is the mean"
                if any(training for _, training in seen)
                else "the loss itself was changed: F.mse_loss(model(x), y)",
            )
        if graphs:
            raise NotYet(
                "every forward pass builds a graph",
                expected="none",
                likely="detach() and .item() come after the pass has built the graph: put torch.no_grad() around it",
            )
        if grown > 512 or kept > 0:
            raise NotYet(
                f"each batch leaves {grown:,} bytes on the GPU",
                expected="nothing, or the block of 512 bytes of one number",
                likely="mse_loss returns a scalar with the storage of all its elements: keep loss.item()",
            )
        if not model.training:
            raise NotYet("the model stays in evaluation mode", expected="training mode", likely="model.train() is gone")


def _noting(batches: list[Any], live: list[int]) -> Iterator[Any]:
    """The batches, one after the other; before each, and after the last, the live bytes are noted."""
    for batch in batches:
        live.append(torch.cuda.memory_allocated())
        yield batch
    live.append(torch.cuda.memory_allocated())

"""Judges the turns of lesson 03: an honest clock, the everyday form of a copy, logging, and memory of two streams."""

from __future__ import annotations

import random
import sys
from types import FrameType
from typing import Any

import torch
from torch.utils.data import TensorDataset

from gpulab.exercise.clocks import Clocks, clocks_here, scope
from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.races import races
from gpulab.exercise.turns import AsGiven, NotYet, turn
from gpulab.exercise.wording import brief, is_number
from virtualgpu.observe import observe

EARLIER = 0.06  # seconds of work that is queued before the clock is started
NEAR = 0.05  # of the right time


@turn("the time of the work, without earlier work in the queue")
def honest_clock(answer: Any) -> None:
    """A function of `work` that returns the milliseconds of `work()` on a GPU."""
    seconds, before, waits = random.uniform(0.014, 0.02), clocks_here(), list[str]()
    with scope(compute=False) as gpu, Clocks(answer, before, gpu.clock) as clocks:
        device = gpu.device(None)
        device.timer.kernel(0, EARLIER, "earlier work")
        with observe(gpu, wait=lambda name, _: waits.append(name)):
            got = answer(lambda: device.timer.kernel(device.stream, seconds, "work"))
    if not is_number(got):
        raise NotYet(brief(got), expected="milliseconds", likely="the last line was changed")
    right = seconds * 1e3
    told = f"{got:,.3f} ms for work of {right:.1f} ms"
    if not waits:
        raise AsGiven("the clock stops when the work is queued, not when it is done")
    if clocks.used:
        raise NotYet(
            f"{told}, by {', '.join(sorted(clocks.used))}",
            expected="time.perf_counter, or events",
            likely="other clocks can be set back during the measurement, or count processor time",
        )
    if abs(got - right) <= NEAR * right:
        return
    likely = "read the clock just before and just after the work"
    if abs(got * 1e3 - right) <= NEAR * right:
        likely = "perf_counter counts seconds"
    elif got > right:
        likely = "older work was in the queue: wait for it before the clock is started"
    elif got < right / 2:
        likely = "the clock stops when the work is queued, not when it is done: wait before the second reading"
    raise NotYet(told, expected=f"{right:.1f} ms", likely=likely)


@turn("pinned by the loader, copied without a wait")
def everyday_form(answer: Any) -> None:
    """A generator of a data set's batches on the GPU."""
    images, labels = torch.arange(2400.0).view(600, 4), torch.arange(600)
    waits, inline, seen = set[str](), list[int](), list[torch.Tensor]()
    with virtual_gpu() as gpu:
        timer = gpu.device(None).timer
        watch = observe(
            gpu,
            wait=lambda name, _: waits.add(name),
            pin=lambda nbytes: None if _in_the_loader() else inline.append(nbytes),
        )
        batches = answer(TensorDataset(images, labels))
        if not hasattr(batches, "__iter__"):
            raise NotYet(brief(batches), expected="batches, one by one", likely="the yield is missing")
        with watch:
            for batch in batches:
                if not isinstance(batch, list | tuple) or len(batch) != 2 or not all(part.is_cuda for part in batch):
                    raise NotYet(brief(batch), expected="images and labels on the GPU", likely="a `.to` is missing")
                seen.append(torch.column_stack(list(batch)))
                timer.kernel(0, 0.02, "the step")
        rows = torch.cat(seen).cpu() if seen else torch.empty(0, 5)
    if "copy to GPU, pageable" in waits:
        raise AsGiven("the host waits in each `.to`, and also for the step before it")
    if inline:
        raise NotYet(
            "the batch is pinned in the loop",
            expected="the loader pins it",
            likely="pinning in the loop costs more than it saves: use pin_memory=True in the DataLoader",
        )
    if any("pageable" in name for name in waits):
        raise NotYet(
            "the batches are in pageable memory, so the driver first copies them to a pinned buffer",
            expected="pinned memory",
            likely="pin_memory=True in the DataLoader is missing",
        )
    if waits:
        raise NotYet(
            f"the host waits: {', '.join(sorted(waits))}",
            expected="no wait",
            likely="non_blocking=True is missing in one `.to` or both",
        )
    if not torch.equal(rows[rows[:, 4].argsort()], torch.column_stack([images, labels])):
        raise NotYet(
            f"{len(rows)} samples arrived",
            expected="each of the 600 once, with its label",
            likely="the loop was changed",
        )


def _in_the_loader() -> bool:
    """Whether PyTorch's DataLoader asks for it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("torch.utils.data."):
            return True
        frame = frame.f_back
    return False


@turn("the same two numbers, and no wait before the last batch is queued")
def no_wait_in_the_loop(answer: Any) -> None:
    """A function (step, batches) that returns the mean and the largest of the losses that step(batch) returns."""
    with virtual_gpu() as gpu:
        timer, weight = gpu.device(None).timer, torch.rand(64, 64, device="cuda", requires_grad=True)
        batches = [torch.rand(256, 64, device="cuda") * scale for scale in torch.rand(6).tolist()]
        right = [(batch @ weight).square().mean().item() for batch in batches]
        live, waits = list[int](), list[int]()

        def step(batch: torch.Tensor) -> torch.Tensor:
            live.append(torch.cuda.memory_allocated())
            timer.kernel(0, 0.01, "the rest of the step")
            return (batch @ weight).square().mean()

        with observe(gpu, wait=lambda *_: waits.append(len(live))):
            got = answer(step, batches)
        early = sum(0 < count < len(batches) for count in waits)  # before the first step nothing is queued
        if early >= 2 * (len(batches) - 1):
            raise AsGiven(f"the host waits {early} times before the last batch is queued")
        if not isinstance(got, list | tuple) or len(got) != 2:
            raise NotYet(brief(got), expected="two numbers", likely="the return is missing")
        for name, value, wanted in zip(("mean", "largest"), got, (sum(right) / 6, max(right)), strict=True):
            if not is_number(value):
                raise NotYet(f"{brief(value)} for the {name}", expected="a number", likely=".item() after the loop")
            if abs(value - wanted) > 1e-3 * wanted:
                raise NotYet(
                    f"{value:.4f} for the {name}", expected=f"{wanted:.4f}", likely="a loss is left out, or added twice"
                )
    if early:
        raise NotYet(
            f"the host waits {early} times before the last batch is queued",
            expected="no wait",
            likely="Python's max() and `if` read the values they compare; torch.maximum and a list do not",
        )
    if live[-1] - live[1] > 4096:
        raise NotYet(
            f"each batch leaves {(live[-1] - live[1]) // (len(live) - 2):,} bytes on the GPU",
            expected="the graph is freed after its batch",
            likely="keep loss.detach()",
        )


@turn("main waits for the copy, the memory is kept until main is done, and the host does not wait")
def safe_in_two_streams(answer: Any) -> None:
    """A function (batch, side) that copies a pinned batch in side, for a caller in the current stream."""
    waits = set[str]()
    with virtual_gpu() as gpu, races() as found, observe(gpu, wait=lambda name, _: waits.add(name)):
        side, timer = torch.cuda.Stream(), gpu.device(None).timer
        for _ in range(3):
            batch = torch.randn(64, 64).pin_memory()
            timer.kernel(0, 0.005, "the step before")
            coming = answer(batch, side)
            if not isinstance(coming, torch.Tensor) or not coming.is_cuda:
                raise NotYet(brief(coming), expected="the batch on the GPU", likely="the return was changed")
            coming * 2
            del coming
    early, reused = any(not race.freed for race in found), any(race.freed for race in found)
    if waits:
        raise NotYet(
            f"the host waits: {', '.join(sorted(waits))}",
            expected="only main waits",
            likely="synchronize() stops the host; main.wait_stream(side) lets one stream wait for the other",
        )
    if early and reused:
        raise AsGiven("main may compute before the batch has arrived, and while the next copy overwrites it")
    if early:
        raise NotYet(
            "main may compute before the batch has arrived",
            expected="main starts after the copy",
            likely="main.wait_stream(side), after the copy has been queued",
        )
    if reused:
        raise NotYet(
            "the memory of a dropped batch may be overwritten while main reads it",
            expected="it is kept until main is done",
            likely="coming.record_stream(main) is missing",
        )

"""Results of the launch queue: who waits for whom, and how far a timer is off, from the calls that `model` makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from virtualgpu.gpus.specs import spec

from ..base.lanes import total
from ..base.simulator import Limit, Result, Row
from ..base.words import count, duration, percent
from .model import MODE_NAMES, MODES, SHAPE, STEPS, Run, Work, addition_us, run, seconds

VIRTUAL = "virtual"
FRAMES = 100


@dataclass(frozen=True)
class Queue(Result):
    """A few steps, and the same steps in other modes."""

    gpu: str
    work: Work
    run: Run
    without_items: float  # how long it takes without any `.item()`, in seconds
    modes: tuple[float, ...]  # seconds of a step in each of `MODES`
    moment: float  # seconds

    @property
    def step(self) -> float:
        return self.run.end / STEPS

    @property
    def timer(self) -> float:
        """A step as a timer sees it that does not synchronize."""
        return self.run.unsynchronised / STEPS

    @cached_property
    def running(self) -> float:
        """The share of the time in which a kernel runs."""
        return total(self.run.kernels) / self.run.end

    @cached_property
    def used(self) -> float:
        """The share of the GPU's multiprocessors that kernels keep busy, over all the time."""
        share = 1.0 if self.work.filling else 0.25
        return share * sum(end - start for start, end in self.run.kernels) / self.run.end

    @cached_property
    def launching(self) -> float:
        """The share of the time in which the host launches."""
        return total(self.run.launches) / self.run.end

    @property
    def item_cost(self) -> float:
        """What one `.item()` adds."""
        return (self.run.end - self.without_items) / len(self.run.items) if self.run.items else 0.0

    @cached_property
    def behind(self) -> float:
        """How much work the GPU has before it at the moment, in seconds."""
        return self.run.behind(self.moment)

    @cached_property
    def at_work(self) -> int | None:
        """The number in `run.kernels` of the first that runs at the moment."""
        return next((i for i, (start, end) in enumerate(self.run.kernels) if start <= self.moment < end), None)

    def name(self, kernel: int) -> str:
        each = len(self.run.kernels) // STEPS
        part = f", kernel {kernel % each + 1}" if self.work.launches > 1 else ""
        return f"step {self.run.steps[kernel] + 1}{part}"

    def waited(self, kernel: int) -> str:
        """For how long it was launched and did not run."""
        return f"waited {_time(self.run.kernels[kernel][0] - self.run.launches[kernel][1])}"

    def fate(self, kernel: int) -> str:
        return f"launched at {duration(self.run.launches[kernel][1])}, {self.waited(kernel)}"

    @property
    def finding(self) -> str:
        busy = f"a kernel runs {percent(self.running)} of the time"
        item = f"and costs {duration(self.item_cost)};"
        if self.timer < 0.95 * self.step:
            reads = f"Without synchronize a timer reads {duration(self.timer)} a step"
            return f"{reads}, but the GPU takes {duration(self.step)}"
        if self.running < 0.7 and self.run.items and self.item_cost > 0.2 * self.step * self.work.item:
            return f"Each .item() leaves the GPU idle {item} the GPU runs {percent(self.running)} of the time"
        if self.running < (0.7 if self.run.items else 0.95):
            extra = "; more streams launch no faster" if self.work.streams > 1 else ""
            return f"Launch-bound: the GPU computes {percent(self.running)} of the time and waits the rest{extra}"
        if self.run.items:
            return f"Each .item() makes the host wait {item} {busy}"
        if self.used < 0.7:
            return f"A{busy[1:]}, yet {percent(self.used)} of the GPU’s capacity is in use"
        return f"Host and GPU keep step: {busy}, {count(self.work.launches, 'launch')} a step"

    def rows(self) -> list[Row]:
        work, moment = self.work, self.moment
        fused = f" in {len(work.durations)}" if len(work.durations) < work.kernels else ""
        rows = [
            ("kernels per step", f"{work.kernels}{fused}, {count(work.launches, 'launch')}", ""),
            ("step", duration(self.step), VIRTUAL),
            ("a timer without synchronize reads", f"{duration(self.timer)} a step", VIRTUAL),
            ("a kernel is running", f"{percent(self.running)} of the time", VIRTUAL),
            ("of the GPU’s capacity in use", percent(self.used), VIRTUAL),
            ("host launching", f"{percent(self.launching)} of the time", VIRTUAL),
            ("host ahead of the GPU by up to", duration(self.run.most), VIRTUAL),
            ("host waits for values", _time(total(self.run.items)), VIRTUAL),
            ("host waits, the launch queue is full", _time(total(self.run.full)), VIRTUAL),
            ("each .item() costs", duration(self.item_cost) if self.run.items else "–", VIRTUAL),
        ]
        modes = zip(MODES, self.modes, strict=True)
        rows += [(f"step, {MODE_NAMES[mode]}", duration(took), VIRTUAL) for mode, took in modes]
        runs = "nothing" if self.at_work is None else f"{self.name(self.at_work)}, {self.fate(self.at_work)}"
        launched = percent(sum(end <= moment for _, end in self.run.launches) / len(self.run.launches))
        now = f"{launched} launched, work before the GPU: {_time(self.behind)}; it runs {runs}"
        return [*rows, (f"at {duration(moment) if moment else 0}", now, VIRTUAL)]


def _time(time: float) -> str:
    return duration(time) if time > 1e-9 else "none"


def simulate(
    gpu: str, kernel: int, launch: int, kernels: int, item: int, mode: str, streams: int, fills: str, moment: int
) -> Queue:
    """`STEPS` steps; where a `gpu` is named, `kernel` is the time that it takes to add two tensors."""
    work = Work(launch, kernel, kernels, item, streams, fills == "all", mode, gpu or "T4")
    done = run(work)
    without_items = seconds(replace(work, item=0)) if item else done.end
    modes = tuple((done.end if other == mode else seconds(replace(work, mode=other))) / STEPS for other in MODES)
    return Queue(gpu, work, done, without_items, modes, done.end * moment / FRAMES)


def limits(values: Mapping[str, Any]) -> dict[str, Limit]:
    """A kernel takes as long as the chosen GPU needs for it."""
    if not values["gpu"]:
        return {}
    took = addition_us(values["gpu"])
    words = (
        f"adding two {SHAPE[0]} × {SHAPE[1]} fp32 tensors takes {took} µs on {spec(values['gpu']).product} (virtual)"
    )
    return {"kernel": Limit(took, took, words)}

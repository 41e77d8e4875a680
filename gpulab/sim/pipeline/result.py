"""Results of the input pipeline: the step, who holds it up, and what each choice made the other way would save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from virtualgpu.clock.clock import Span

from ..base.simulator import Result, Row
from ..base.words import count, duration, percent
from .model import BATCHES, MOST_PREFETCH, MOST_WORKERS, Run, Work, first_wait, shown, steady

VIRTUAL, RECORDED = "virtual", "recorded: fork on Linux, 16 ms a worker"
FRAMES = 100
LEAST = 0.01  # of a step: a smaller difference is none


class Change(NamedTuple):
    """One choice made the other way, or a number raised: what having it does to `per`, a step or an epoch; negative
    seconds are saved."""

    name: str
    on: bool
    seconds: float
    control: str
    other: int  # its value, made the other way; a bool of a switch
    per: str = "step"

    def nothing(self, step: float) -> bool:
        return abs(self.seconds) < LEAST * step

    def words(self, step: float) -> str:
        if self.nothing(step):
            return "on, saves nothing" if self.on else "would save nothing"
        verb = "save" if self.seconds < 0 else "cost"
        verb = f"on, {verb}s" if self.on else f"would {verb}"
        return f"{verb} {duration(abs(self.seconds))}" + ("/epoch" if self.per == "epoch" else "")


@dataclass(frozen=True)
class Feed(Result):
    """The loop, its neighbours with one choice made differently, and the same with other numbers of workers."""

    work: Work
    run: Run
    step: float  # seconds, far from the ends of an epoch
    fetch: float  # of it, in `next(iterator)`
    by_workers: tuple[float, ...]  # a step with 0, 1, … workers
    changes: tuple[Change, ...]
    moment: float  # seconds

    @property
    def computing(self) -> float:
        """The share of the time in which the GPU computes."""
        return self.work.compute / self.step

    @property
    def copying(self) -> float:
        return self.work.copy / self.step

    @property
    def loading(self) -> float:
        """The share of the time in which a worker, or without one the main process, loads."""
        return self.work.load / self.step / max(1, self.work.workers)

    @property
    def pinning(self) -> float:
        return self.work.pin / self.step

    def idle(self, epoch: int) -> float:
        """How long the GPU has nothing to compute before an epoch's first batch, in seconds."""
        first, computed = epoch * BATCHES, self.run.computed
        return computed[first] - self.work.compute - (computed[first - 1] if epoch else 0.0)

    @property
    def enough(self) -> int:
        """From this many workers on, more do not help."""
        return enough(self.by_workers)

    @property
    def gains(self) -> str:
        """Where more workers stop helping, in words."""
        if self.enough == MOST_WORKERS:
            return f"still gaining at {MOST_WORKERS}"
        return f"no gain from {count(self.enough, 'worker')} on" if self.enough else "no gain from any worker"

    @property
    def followed(self) -> int | None:
        """The batch that the GPU computes at the moment, or next; None when it has computed all."""
        return next((number for number, end in enumerate(self.run.computed) if end > self.moment), None)

    @property
    def now(self) -> str:
        """What goes on at the moment."""
        at = self.moment
        going = [span for span in self.run.spans if span.start <= at < span.start + span.seconds]
        main = next(filter(None, map(doing, going)), "runs ahead")
        if at >= self.run.end:
            return "all is done"
        if main == "runs ahead" and at > self.run.taken[-1]:
            main = "is done"
        gpu = next((f"computes batch {int(span.name) + 1}" for span in going if span.where == "kernels"), "waits")
        return f"main process {main}, {count(self.run.ready(at), 'batch')} ready, GPU {gpu}"

    @property
    def finding(self) -> str:
        work, step, workers = self.work, duration(self.step), self.work.workers
        found = f"The GPU computes {percent(self.computing)} of the time"
        if self.computing >= 0.97:
            spare = f"; {count(self.enough, 'worker')} would do" if self.enough < workers else ""
            again = " until the next epoch" if self.idle(1) >= 0.01 * self.step else ""
            return f"After {duration(self.idle(0))} the GPU is fed almost without a gap{again}{spare}"
        if not workers:
            then = " and for copies" if self.copying > 0.05 else ""
            return f"{found}: it waits for loading{then}"
        takes = work.compute + (0 if work.side else work.copy)  # between two batches, if each is there at once
        if self.loading > 0.97 and self.step > 1.01 * takes:
            each = "1 worker brings" if workers == 1 else f"{workers} workers bring"
            return f"{found}: {each} a batch every {step}, and it could take one every {duration(takes)}"
        if self.pinning > 0.97:
            return f"{found}: the one thread that pins takes {duration(work.pin)} a batch; more workers do not help"
        if self.copying > 0.97:
            return f"{found}: a copy takes {duration(work.copy)}, longer than all else; more workers do not help"
        if not work.side and self.computing + self.copying > 0.97:
            return f"{found}: it stands still during copies of {duration(work.copy)}"
        more = min(self.changes[:2], key=lambda change: change.seconds)  # workers, or batches for each
        if more.seconds < -LEAST * self.step:
            saved = f"{more.name} would save {duration(-more.seconds)}"
            return f"{found}: now and then it waits for a slow batch; {saved}"
        return f"{found}: loading, pinning and copying hold it up in turns"

    def rows(self) -> list[Row]:
        work = self.work
        loads = "each worker loads" if work.workers else "main process loads"
        rows = [
            ("step", duration(self.step), VIRTUAL),
            ("of it the main process waits for or loads a batch", duration(self.fetch), VIRTUAL),
            ("GPU computes", f"{percent(self.computing)} of the time", VIRTUAL),
            ("copy engine copies", f"{percent(self.copying)} of the time, {duration(work.copy)} a batch", VIRTUAL),
            (loads, f"{percent(self.loading)} of the time", VIRTUAL),
        ]
        if work.pinned:
            rows.append(("pinning", f"{percent(self.pinning)} of the time, {duration(work.pin)} a batch", VIRTUAL))
        rows += [
            ("first batch of the first epoch after", duration(first_wait(self.run, 0)), VIRTUAL),
            ("first batch of the second epoch after", duration(first_wait(self.run, 1)), VIRTUAL),
            ("starting the workers", duration(work.workers * work.start) if work.workers else "none", RECORDED),
            ("more workers", self.gains, VIRTUAL),
        ]
        rows += [(f"step, {count(n, 'worker')}", duration(took), VIRTUAL) for n, took in enumerate(self.by_workers)]
        rows += [(change.name, change.words(self.step), VIRTUAL) for change in self.changes]
        return [*rows, (f"at {duration(self.moment) if self.moment else 0}", self.now, VIRTUAL)]


def simulate(
    gpu: str,
    load: int,
    spread: int,
    workers: int,
    prefetch: int,
    persistent: bool,
    batch: int,
    pinned: bool,
    non_blocking: bool,
    side: bool,
    compute: int,
    moment: int,
) -> Feed:
    """The loop, and its neighbours."""
    link = pinned, non_blocking, side, compute * 1e-3, gpu
    work = Work(load * 1e-3, spread / 100, workers, prefetch, persistent, batch * 2**20, *link)
    done, (step, fetch) = shown(work), steady(work)
    by_workers = tuple(steady(replace(work, workers=n)).step for n in range(MOST_WORKERS + 1))
    return Feed(work, done, step, fetch, by_workers, _changes(work, done, by_workers), done.end * moment / FRAMES)


def enough(steps: Sequence[float]) -> int:
    """The number of workers from which on more do not shorten a step."""
    return next(n for n in range(len(steps)) if min(steps[n:]) >= (1 - LEAST) * steps[n])


@lru_cache(maxsize=8)
def _changes(work: Work, done: Run, by_workers: tuple[float, ...]) -> tuple[Change, ...]:
    """Each choice against the other one; a number against one more, workers against as many as help."""
    step = by_workers[work.workers]

    def against(**other: int) -> float:
        return step - steady(replace(work, **other)).step  # type: ignore[arg-type]

    found = []
    workers, prefetch = max(work.workers + 1, enough(by_workers)), work.prefetch + 1
    for name, field, other, most in (
        ("num_workers", "workers", workers, MOST_WORKERS),
        ("prefetch_factor", "prefetch", prefetch, MOST_PREFETCH),
    ):
        now = getattr(work, field)
        other = other if now < most else now - 1
        found.append(Change(f"{name} {now} → {other}", False, -against(**{field: other}), field, other))
    for name, field in (("pin_memory", "pinned"), ("non_blocking", "non_blocking"), ("side stream", "side")):
        on = getattr(work, field)
        gain = against(**{field: not on})
        found.append(Change(name, on, gain if on else -gain, field, not on))
    on = work.persistent
    longer = first_wait(shown(replace(work, persistent=not on)), 1) - first_wait(done, 1)
    found.append(Change("persistent_workers", on, -longer if on else longer, "persistent", not on, "epoch"))
    return tuple(found)


def doing(span: Span) -> str:
    """What the main process does; nothing if the span is another's."""
    if span.where == "main":
        return "starts workers" if span.name == "start" else "loads"
    if span.where != "host":
        return ""
    if span.name == "a batch":
        return "waits for a batch"
    return "waits for the GPU" if "full" in span.name else "waits for a copy"

"""Loading, copying and computing: a training loop with PyTorch's DataLoader on the virtual GPU's own clock.

The worker processes and the thread that pins are modelled here, the copies and the GPU by the clock. It draws nothing.
"""

from __future__ import annotations

import bisect
import heapq
import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from virtualgpu.clock import rates
from virtualgpu.clock.clock import Clock, Span
from virtualgpu.clock.rates import Rates

MOST_WORKERS = MOST_PREFETCH = 8
EPOCHS, BATCHES = 2, 8  # in the picture
# Steps that the host is ahead at most, as launches of a step of some 340 kernels fill the queue of 1024.
AHEAD = 3
# The main process starts the workers one by one. Recorded: Linux, fork, torch 2 loaded; with spawn some seconds each.
START = 0.016
# The loading times of so many batches come again and again; no number of workers shares a factor with it, so that in
# the long run every worker has every one of them.
PERIOD = 11
WARM_UP = 2 * PERIOD
LEAST_ROUNDS = 4 * PERIOD


@dataclass(frozen=True)
class Work:
    """A loop `for batch in loader: step(batch.to("cuda"))`. Times in seconds.

    `spread`: a batch takes from 1 - spread to 1 + spread times `load`. `gpu`: whose link to the host it is.
    """

    load: float
    spread: float
    workers: int
    prefetch: int
    persistent: bool
    nbytes: int
    pinned: bool
    non_blocking: bool
    side: bool
    compute: float
    gpu: str
    start: float = START

    @property
    def link(self) -> Rates:
        return rates.rates_of(self.gpu)

    @property
    def copy(self) -> float:
        """Seconds of a copy to the GPU."""
        rate = self.link.pinned_gbps if self.pinned else self.link.pageable_gbps
        return self.link.copy_us * 1e-6 + self.nbytes / (rate * 1e9)

    @property
    def pin(self) -> float:
        """Seconds to copy a batch into memory that is page-locked already."""
        return self.nbytes / (self.link.host_copy_gbps * 1e9) if self.pinned else 0.0

    @property
    def fresh_pin(self) -> float:
        """Seconds to do so where the memory has to be page-locked first."""
        return self.link.malloc_us * 1e-6 + self.nbytes / (self.link.pin_gbps * 1e9) if self.pinned else 0.0

    def loading(self, batch: int) -> float:
        """Seconds to load a batch."""
        return self.load * (1 + self.spread * SPREAD[batch % PERIOD])


# Evenly spread from -1 to 1 in an order without a pattern that shows: cubes modulo a prime. Their mean is zero.
SPREAD: tuple[float, ...] = tuple((2 * ((i + 3) ** 3 % PERIOD) - PERIOD + 1) / (PERIOD - 1) for i in range(PERIOD))


class Loader:
    """A DataLoader's iterator on `clock`: index queues for the workers, results in order, batches pinned one by one.

    Batch i of an epoch goes to worker i mod workers. `prefetch` batches for each worker are asked for when an epoch
    begins, and one more whenever one is taken. With `used` all the memory it needs is page-locked already.
    """

    def __init__(self, work: Work, clock: Clock, batches: int, *, used: bool) -> None:
        self.work, self.clock, self.batches = work, clock, batches
        self.free = [0.0] * work.workers  # when each worker has done what it was asked for
        self.pinner = 0.0  # when the thread that pins has
        # when each page-locked block can be used again
        self.locked = [0.0] * (work.workers * work.prefetch + AHEAD + 2 if used else 0)
        self.epoch = -1
        self.loaded: list[float] = []  # when the worker of each batch, in order of the batches, was done with it
        self.pinned: list[float] = []  # when the thread that pins was done with each, in the order of pinning
        self.there: list[float] = []  # when each was on the GPU
        self.loading = [work.loading(number) for number in range(PERIOD)]
        self.pin, self.fresh_pin = work.pin, work.fresh_pin

    def begin(self) -> None:
        """`iter(loader)`."""
        work, clock = self.work, self.clock
        self.epoch += 1
        self.asked = self.taken = 0
        self.arrivals: list[tuple[float, int]] = []
        self.ready: dict[int, float] = {}
        if work.workers and (self.epoch == 0 or not work.persistent):
            self._record("start", "main", 0, clock.host, work.workers * work.start)
            clock.spend(work.workers * work.start)
        for _ in range(work.prefetch * work.workers):
            self._ask()

    def _ask(self) -> None:
        if self.asked == self.batches:
            return
        worker, number = self.asked % self.work.workers, self.epoch * self.batches + self.asked
        start, seconds = max(self.free[worker], self.clock.host), self.loading[number % PERIOD]
        self._record(str(number), "worker", worker, start, seconds)
        self.free[worker] = start + seconds
        self.loaded.append(start + seconds)
        heapq.heappush(self.arrivals, (start + seconds, self.asked))
        self.asked += 1

    def take(self) -> None:
        """`next(iterator)`: the host has the next batch, after waiting for it or loading it itself."""
        work, clock = self.work, self.clock
        number = self.epoch * self.batches + self.taken
        if not work.workers:
            seconds = self.loading[number % PERIOD]
            self._record(str(number), "main", 0, clock.host, seconds)
            clock.spend(seconds)
            if work.pinned:
                start = clock.host
                clock.spend(self._pinning(start))
                self._record(str(number), "pin", 0, start, clock.host - start)
        else:
            while self.taken not in self.ready:
                self._receive()
            clock.wait(self.ready.pop(self.taken), "a batch")
        self.taken += 1
        if work.workers:
            self._ask()

    def _receive(self) -> None:
        """The next result of any worker, which the thread pins."""
        at, index = heapq.heappop(self.arrivals)
        if self.work.pinned:
            start = max(at, self.pinner)
            at = self.pinner = start + self._pinning(start)
            self.pinned.append(at)
            self._record(str(self.epoch * self.batches + index), "pin", 0, start, at - start)
        self.ready[index] = at

    def _pinning(self, start: float) -> float:
        """Seconds to pin a batch: PyTorch keeps page-locked memory that no batch needs any more."""
        if self.locked and self.locked[0] <= start:
            heapq.heappop(self.locked)
            return self.pin
        return self.fresh_pin

    def copied(self, end: float) -> None:
        """The batch taken last has been copied to the GPU at `end`."""
        self.there.append(end)
        if self.work.pinned:
            heapq.heappush(self.locked, end)

    def _record(self, name: str, where: str, worker: int, start: float, seconds: float) -> None:
        if self.clock.record is not None:
            self.clock.record.append(Span(name, where, 0, worker, start, seconds))


@dataclass(frozen=True)
class Run:
    """What happened. Seconds since the first epoch began."""

    spans: tuple[Span, ...]
    begun: tuple[float, ...]  # when each epoch began
    asked: tuple[float, ...]  # when the host asked for each batch
    taken: tuple[float, ...]  # when it had it
    computed: tuple[float, ...]  # when the GPU was done with each
    loaded: tuple[float, ...]  # when a worker was done with each
    pinned: tuple[float, ...]  # when the thread that pins was done with one, in the order of pinning
    copied: tuple[float, ...]  # when each was on the GPU
    end: float

    @cached_property
    def arrivals(self) -> list[float]:
        """When each batch that workers load can be taken, in order of time."""
        workers = [span for span in self.spans if span.where == "worker"]
        pins = [span for span in self.spans if span.where == "pin"]
        return sorted(span.start + span.seconds for span in (pins or workers)) if workers else []

    def ready(self, at: float) -> int:
        """How many batches are loaded and not taken."""
        arrived, taken = (bisect.bisect_right(times, at) for times in (self.arrivals, self.taken))
        return arrived - taken if self.arrivals else 0


def run(work: Work, epochs: int, batches: int, *, record: bool = False, used: bool = False) -> Run:
    """`epochs` of `batches` steps each, and a synchronize at the end; with `used`, pinned memory is there before."""
    clock = Clock(1, work.link)
    spans: list[Span] = []
    clock.record = spans if record else None
    gpu = clock.devices[0]
    loader = Loader(work, clock, batches, used=used)
    begun: list[float] = []
    asked: list[float] = []
    taken: list[float] = []
    computed: list[float] = []
    stream = 1 if work.side else 0
    for _ in range(epochs):
        begun.append(clock.host)
        loader.begin()
        for _ in range(batches):
            number = len(taken)
            asked.append(clock.host)
            loader.take()
            taken.append(clock.host)
            end = gpu.copy(stream, work.nbytes, "to GPU", pinned=work.pinned, wait=not work.non_blocking)
            loader.copied(end)
            if stream:
                gpu.hold(0, end)
            if number >= AHEAD:
                clock.wait(computed[number - AHEAD], "the launch queue is full")
            computed.append(gpu.kernel(0, work.compute, str(number)))
    clock.record = None
    gpu.synchronize()
    loaded, pinned, copied = map(tuple, (loader.loaded, loader.pinned, loader.there))
    times = (tuple(begun), tuple(asked), tuple(taken), tuple(computed))
    return Run(_shown(spans), *times, loaded, pinned, copied, clock.host)


def _shown(spans: list[Span]) -> tuple[Span, ...]:
    """Copies named by the number of their batch; the host's launches, some microseconds each, left out."""
    copies = [span for span in spans if span.where == "to GPU"]
    others = [span for span in spans if span.where != "to GPU" and not (span.where == "host" and span.name.isdigit())]
    return (*others, *(replace(span, name=str(number)) for number, span in enumerate(copies)))


@lru_cache(maxsize=8)
def shown(work: Work) -> Run:
    """The two short epochs of the picture."""
    return run(work, EPOCHS, BATCHES, record=True)


class Steady(NamedTuple):
    """A step far from the ends of an epoch, in seconds."""

    step: float
    fetch: float  # of it, the host spends in `next(iterator)`


@lru_cache(maxsize=256)
def steady(work: Work) -> Steady:
    """After the batches asked for at the beginning, over whole rounds of workers and of loading times.

    Each stage (a worker, the thread that pins, the host, the copies, the kernels) is timed from one end of a batch's
    work to the end of the same work `rounds` batches later, which holds all that it does for so many. In the long run
    all stages go at one pace, that of the slowest: one that now goes faster lives on batches that wait between them,
    and they run out.
    """
    whole = math.lcm(PERIOD, max(1, work.workers))
    rounds = whole * math.ceil(LEAST_ROUNDS / whole)
    first = WARM_UP + work.workers * work.prefetch
    last = first + rounds
    done = run(work, 1, last + 1, used=True)
    fetch = sum(done.taken[first:last]) - sum(done.asked[first:last])
    stages = filter(None, (done.loaded, done.pinned, done.asked, done.copied, done.computed))
    return Steady(max(times[last] - times[first] for times in stages) / rounds, fetch / rounds)


def first_wait(done: Run, epoch: int) -> float:
    """From the beginning of an epoch of `shown` until the host has its first batch."""
    return done.taken[epoch * BATCHES] - done.begun[epoch]

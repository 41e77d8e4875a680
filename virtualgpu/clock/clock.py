"""Simulated time of host and GPUs: launches and waits; per GPU streams, one compute engine, two copy engines.

All times are seconds since the scope began. No torch, and no cost of operations (`cost`, `rates`). Simplified: small
kernels of several streams do not run side by side, and copies do not slow kernels down.
"""

from __future__ import annotations

import bisect
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import get_ident

from .graphs import Recording
from .hosts import Costs
from .power import Budget
from .processor import seconds_without_core
from .rates import Rates

real = time.perf_counter  # the original, before a scope replaces it
LAUNCHING = 100e-6  # seconds of a pause beside an operation that are taken to be Python's part of the launch
QUEUE = 1024  # launches that a GPU takes before the host has to wait: observed, NVIDIA does not document it


@dataclass(frozen=True)
class Span:
    """One interval of work, in seconds: `where` is "host", "kernels", "ranks", "to GPU", "to host" or "range".

    `nbytes` are those that a copy or a collective moves, and of a kernel those that it reads from the GPU's memory and
    writes there (not what the L2 cache gives). `address` is where on the GPU a copy to it begins; 0 where it is not
    written as it crosses the link. A collective's kernel starts when this rank has come to it; for `waited` seconds it
    spins until the last rank has come, and then the bytes move.
    """

    name: str
    where: str
    device: int
    stream: int
    start: float
    seconds: float
    flops: float = 0.0
    nbytes: int = 0
    address: int = 0
    waited: float = 0.0


class Covered:
    """The union of intervals, `seconds` long in all; they may be added in any order."""

    __slots__ = ("seconds", "spans")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.spans: list[tuple[float, float]] = []  # in order, disjoint; the oldest are dropped

    def add(self, start: float, end: float) -> None:
        """Add the interval from `start` to `end`."""
        spans = self.spans
        if not spans or start > spans[-1][1]:
            spans.append((start, end))
            self.seconds += end - start
            if len(spans) > 2 * QUEUE:
                del spans[:QUEUE]
            return
        first = bisect.bisect_left(spans, start, key=lambda span: span[1])
        after = bisect.bisect_right(spans, end, lo=first, key=lambda span: span[0])
        known = spans[first:after]
        if known:
            start, end = min(start, known[0][0]), max(end, known[-1][1])
        self.seconds += end - start - sum(b - a for a, b in known)
        spans[first:after] = [(start, end)]


class Engine:
    """Runs one thing at a time, in the order in which they become ready; a gap that is long enough is used."""

    __slots__ = ("busy",)

    def __init__(self) -> None:
        self.busy: list[list[float]] = []  # [start, end], in order, disjoint

    def take(self, ready: float, seconds: float, now: float) -> float:
        """Reserve `seconds` from `ready` on, and return the start; nothing becomes ready before `now` any more."""
        busy = self.busy
        while len(busy) > 1 and busy[0][1] <= now:
            busy.pop(0)
        at = max(0, bisect.bisect_right(busy, ready, key=lambda span: span[0]) - 1)
        start = ready
        while at < len(busy):
            if start + seconds <= busy[at][0]:
                break
            start = max(start, busy[at][1])
            at += 1
        end = start + seconds
        before, after = at and busy[at - 1][1] == start, at < len(busy) and busy[at][0] == end
        if before and after:
            busy[at - 1][1] = busy.pop(at)[1]
        elif before:
            busy[at - 1][1] = end
        elif after:
            busy[at][0] = start
        else:
            busy.insert(at, [start, end])
        return start


class Clock:
    """The host's clock, and one `DeviceClock` for each of `count` GPUs.

    `host`: the host's time in launches and waits, `waited` of it in waits; `own`: the real time that this machine
    spent between GPU operations, less what other programs took of it (`processor`). With `counts_host` that counts in
    `host` too, so that a slow input pipeline shows on the GPUs' clocks, and nothing repeats exactly.
    """

    def __init__(self, count: int, rates: Rates, *, counts_host: bool = False) -> None:
        self.rates = rates
        self.costs, self.launch_s = Costs(rates.host), rates.launch_us * 1e-6
        self.host = self.waited = self.own = 0.0
        self.counts_host = counts_host
        self.ignores_own = False  # for checks: a program's measurements do not depend on how busy this machine is
        self.record: list[Span] | deque[Span] | None = None
        self.on_wait: list[Callable[[str, float], object]] = []  # `observe` adds to these two
        self.on_question: list[Callable[[], object]] = []
        self.devices = [DeviceClock(self, index) for index in range(count)]
        self._began = self._last = self._entered = real()  # the host's own time is accounted for until `_last`
        self._queued = 0, 0.0  # the thread that last read its time without a processor, and that time
        self._after_operation = False
        self._asked, self._asked_after = False, 0.0  # the host's last call was a question, and the pause before it
        self._asker = 0  # the thread that asked it
        self._inside, self._thread = False, 0  # True while a thread does a GPU's work, and that thread
        self._shown = 0.0
        self._stopped = 0

    def now(self, index: int = 0) -> float:
        """Return the time at which all work queued on GPU `index` will be done."""
        return self.devices[index].done

    def busy(self, index: int = 0) -> float:
        """Return the seconds in which kernels of GPU `index` run or have run, collectives included."""
        device = self.devices[index]
        return device.busy if device.covered is None else device.covered.seconds

    def computing(self, index: int = 0) -> float:
        """Return the seconds of the kernels of GPU `index`, without collectives."""
        return self.devices[index].busy

    def kernels(self, index: int = 0) -> int:
        """Return the number of kernels launched on GPU `index`."""
        return self.devices[index].kernels

    def launching(self, index: int = 0) -> float:
        """Return the seconds that the host spent on launches for GPU `index`."""
        return self.devices[index].launching

    def flops(self, index: int = 0) -> float:
        """Return the floating-point operations of matrix products, convolutions and attention."""
        return self.devices[index].flops

    def flop_seconds(self, index: int = 0) -> float:
        """Return the seconds of the kernels that do the operations counted by `flops`."""
        return self.devices[index].flop_seconds

    # -- the host ----------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Begin to do a GPU's work in this thread: until `leave`, no time counts as the host's."""
        thread = get_ident()
        if self._inside and self._thread != thread:
            return  # another thread does a GPU's work already
        now = real()
        if now - self._last > LAUNCHING:
            self._account(now, True)
        elif now > self._last:
            self._last = now
        self._inside, self._thread, self._entered = True, thread, now

    def leave(self) -> None:
        """End the work that `enter` began."""
        if self._thread == get_ident():
            now = self._last = real()
            if now - self._entered > LAUNCHING:  # a shorter stretch has no room for a context switch
                self._queued = self._thread, seconds_without_core()
            self._after_operation, self._inside, self._asked = True, False, False

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Exclude what this thread does within the block from the host's time: for code that watches a program."""
        self.enter()
        self._stopped += 1
        try:
            yield
        finally:
            self._stopped -= 1
            self.leave()

    def skip(self, seconds: float) -> None:
        """Exclude `seconds` since the last operation from the host's time: they were spent on watching."""
        self._last += seconds

    def _account(self, now: float, before_operation: bool) -> None:
        """Count the time since `_last` as the host's own, less the part that a modelled launch already stands for."""
        gap = now - self._last
        if gap > 0:
            self._last = now
            if self._stopped:
                return
            if gap > LAUNCHING:
                gap -= self._taken()
            if gap < 10 * LAUNCHING and (before_operation or self._after_operation):
                gap -= LAUNCHING  # of a longer pause it is too little to matter
            if gap > 0:
                self.own += 0.0 if self.ignores_own else gap
                if self.counts_host:
                    self.host += gap

    def _taken(self) -> float:
        """Return the seconds this thread lacked a processor since its last call; 0 if another thread called since."""
        (asker, before), thread, now = self._queued, get_ident(), seconds_without_core()
        self._queued = thread, now
        return now - before if asker == thread else 0.0

    def spend(self, seconds: float) -> None:
        """Advance the host's clock by `seconds` of work."""
        self.host += seconds

    def wait(self, until: float, name: str = "wait") -> None:
        """Advance the host's clock to `until`, as a wait."""
        if until > self.host:
            if self.record is not None:
                self.record.append(Span(name, "host", 0, 0, self.host, until - self.host))
            for observer in self.on_wait:
                observer(name, until - self.host)
            self.waited += until - self.host
            self.host = until

    def call(self) -> None:
        """Charge a CUDA call that is no operation: an event, a stream, a wait."""
        if not self._inside:
            self._account(real(), True)
            self._after_operation = True
        self.host += self.costs.event

    def ask(self) -> None:
        """Charge a query whether something is done; repeated queries take the time that they really take.

        With `ignores_own`, a pause counts up to twice the one before it (from LAUNCHING up): a program that sleeps
        between its questions gets on, and one that does not is not charged for what else this machine had to do.
        Of a pause that it makes with `time.sleep` counts what it asked for (`slept`).
        """
        for observer in self.on_question:
            observer()
        if self._asked:
            now = real()
            gap = now - self._last
            self.host += min(gap, max(LAUNCHING, 2 * self._asked_after)) if self.ignores_own else gap
            self._last, self._asked_after = now, gap
        else:
            self._asked_after = 0.0
        self.call()
        self._asked, self._asker = True, get_ident()

    def reached(self, at: float) -> bool:
        """Return True if the host's clock has reached `at`; a query that returns False takes time."""
        if self.host < at:
            self.ask()
        return self.host >= at

    def slept(self, seconds: float) -> None:
        """Note that this thread slept for the `seconds` it asked for; with `ignores_own` they count between queries."""
        if self.ignores_own and self._asked and self._asker == get_ident():
            self.host += seconds
            self._last = real()

    def perf_counter(self) -> float:
        """Answer `time.perf_counter`: the host's own time plus the modelled time of launches and waits."""
        if not self._inside or self._thread == get_ident():
            self._account(real(), False)
            self._after_operation = False
        self._shown = max(self._shown, self._at())
        return self._shown

    def seen(self) -> float:
        """Return roughly `perf_counter`'s answer without changing anything, for an observer in another thread."""
        gap = 0.0 if self._inside else real() - self._last
        return self._at() + (gap if gap > LAUNCHING or not self._after_operation else 0.0)

    def _at(self) -> float:
        return self._began + self.host + (0.0 if self.counts_host else self.own)


class DeviceClock:
    """Streams and engines of one GPU. `busy`, `kernels`, `flops` and `copied` (bytes) total its work without
    collectives, `flop_seconds` the time of kernels with flops, `launching` the host's time in its launches.
    `covered` is the time in which any kernel runs, collectives included; None before the first collective. `urgent` are
    streams of high priority: their blocks go before those that wait, and what they take is taken from what comes later.
    """

    def __init__(self, clock: Clock, index: int) -> None:
        self.clock = clock
        self.index = index
        self.streams: dict[int, float] = {0: 0.0}  # when the last work queued on each stream will be done
        self.several = False
        self.urgent: set[int] = set()
        self.compute = Engine()
        self.copies = {"to GPU": Engine(), "to host": Engine()}
        self.queue: deque[float] = deque(maxlen=QUEUE)
        self.budget = None if clock.rates.power is None else Budget(clock.rates.power)
        self.done = 0.0
        self.busy = self.flops = self.flop_seconds = self.launching = 0.0
        self.kernels = self.copied = 0
        self.covered: Covered | None = None
        self.recording: Recording | None = None  # of a CUDA graph that is being captured
        self.unsettled: dict[object, Callable[[], None]] = {}  # collective -> call that waits for it

    def kernel(
        self,
        stream: int,
        seconds: float,
        name: str,
        flops: float = 0.0,
        host_seconds: float | None = None,
        joules: float = 0.0,
        nbytes: int = 0,
    ) -> float:
        """Launch a kernel of `seconds`; return when it will be done. `host_seconds`: None for a plain operation."""
        clock = self.clock
        began = clock.host
        if host_seconds is None:
            host_seconds = clock.costs.plain
        self.launching += host_seconds
        host = clock.host = began + host_seconds
        if self.recording is not None and stream in self.recording.streams:
            self.recording.kernel(stream, seconds, name, flops, joules, nbytes)
            return host
        queue = self.queue
        if len(queue) == QUEUE and queue[0] > host:
            clock.wait(queue[0], "the launch queue is full")
            host = clock.host
        ready = host + clock.launch_s
        if self.budget is not None:
            seconds = self.budget.spend(max(ready, self.streams.get(stream, 0.0)), seconds, joules)
        if not self.several:
            if stream == 0:
                start = self.streams[0]
                if ready > start:
                    start = ready
                end = self.streams[0] = start + seconds
            else:
                self._begin_several()
        if self.several:
            start = max(ready, self.streams.get(stream, 0.0))
            taken = self.compute.take(start, seconds, host)
            if stream not in self.urgent:
                start = taken
            end = self.streams[stream] = start + seconds
        queue.append(end)
        if end > self.done:
            self.done = end
        self.busy += seconds
        if self.covered is not None:
            self.covered.add(start, end)
        if flops:
            self.flops += flops
            self.flop_seconds += seconds
        self.kernels += 1
        if clock.record is not None:
            clock.record.append(Span(name, "host", self.index, stream, began, host - began))
            clock.record.append(Span(name, "kernels", self.index, stream, start, seconds, flops, nbytes))
        return end

    def _begin_several(self) -> None:
        """Let kernels of several streams share the compute engine from now on."""
        self.several = True
        if self.streams[0] > 0:
            self.compute.busy.append([0.0, self.streams[0]])

    def copy(self, stream: int, nbytes: int, way: str, *, pinned: bool, wait: bool, address: int = 0) -> float:
        """Queue a copy over the host's link, `way` "to GPU" or "to host"; return when it will be done.

        From pinned memory the host only gives it to the engine. Pageable memory goes through the driver's own pinned
        buffer: to the GPU, the host waits for the stream and until all is staged; to the host, until all is there.
        With `wait` the host waits for the end in any case, as PyTorch does without `non_blocking`.
        """
        clock = self.clock
        rates = clock.rates
        clock.host += clock.costs.plain
        name = f"copy {way}, {'pinned' if pinned else 'pageable'}"
        if self.recording is not None and stream in self.recording.streams:
            self.recording.copy(stream, nbytes, way, name)
            return clock.host
        if not self.several and stream != 0:
            self._begin_several()
        if not pinned:
            clock.wait(self.streams.get(stream, 0.0), f"{name}: the stream's work")
        rate = rates.pinned_gbps if pinned else rates.pageable_gbps
        seconds = rates.copy_us * 1e-6 + nbytes / (rate * 1e9)
        ready = max(clock.host, self.streams.get(stream, 0.0))
        start = self.copies[way].take(ready, seconds, clock.host)
        end = self.streams[stream] = start + seconds
        self.queue.append(end)
        self.done = max(self.done, end)
        self.copied += nbytes
        if clock.record is not None:
            span = Span(name, way, self.index, stream, start, seconds, nbytes=nbytes, address=address)
            clock.record.append(span)
        if not pinned and way == "to GPU":
            clock.wait(end - rates.copy_us * 1e-6, f"{name}: staging")
        if wait or (not pinned and way == "to host"):
            clock.wait(end, name)
        return end

    def joins(self) -> Covered:
        """Take part in collectives: record from now on when each kernel runs."""
        if self.covered is None:
            self.covered = Covered()
            if self.done > self.clock.host:
                self.covered.spans.append((self.clock.host, self.done))
            self.covered.seconds = self.busy
        return self.covered

    def collective(self, stream: int, arrived: float, ready: float, seconds: float, name: str, nbytes: int) -> float:
        """Queue a collective that this rank enters at `arrived` and the last rank at `ready`; return when it will be
        done.

        Its kernel starts when this rank's stream has come to it, and spins until the last rank has, as NCCL's does.
        Kernels run meanwhile at their full rate: that a collective takes some of the SMs is left out.
        """
        covered = self.joins()
        if stream != 0 and not self.several:
            self._begin_several()
        free = self.streams.get(stream, 0.0)
        start, moves = max(arrived, free), max(arrived, ready, free)
        end = self.streams[stream] = moves + seconds
        self.done = max(self.done, end)
        covered.add(start, end)
        if self.clock.record is not None:
            span = Span(name, "ranks", self.index, stream, start, end - start, nbytes=nbytes, waited=moves - start)
            self.clock.record.append(span)
        return end

    def launch_graph(self, stream: int, recorded: Recording) -> None:
        """Launch a graph: one launch for all of its nodes."""
        clock, began = self.clock, self.clock.host
        clock.host += clock.costs.plain
        self.launching += clock.costs.plain
        if len(self.queue) == QUEUE and self.queue[0] > clock.host:
            clock.wait(self.queue[0], "the launch queue is full")
        if clock.record is not None:
            clock.record.append(Span("graph", "host", self.index, stream, began, clock.host - began))
        start = max(clock.host + clock.launch_s, self.streams.get(stream, 0.0))
        end = self._run_graph(stream, recorded, start)
        self.streams[stream] = end
        self.queue.append(end)
        self.done = max(self.done, end)

    def _run_graph(self, stream: int, recorded: Recording, start: float) -> float:
        """Run a graph's nodes from `start` on, each after its predecessor in its stream; return when all are done."""
        clock, rates = self.clock, self.clock.rates
        if not self.several and (stream != 0 or recorded.wide):
            self._begin_several()
        at = dict.fromkeys(recorded.streams, start)
        marks: dict[int, float] = {}
        for number, node in enumerate(recorded.nodes):
            ready = at[node.stream]
            if node.kind == "mark":
                marks[number] = ready
            elif node.kind == "wait":
                at[node.stream] = max(ready, marks[node.after])
            elif node.kind == "copy":
                seconds = rates.copy_us * 1e-6 + node.nbytes / (rates.pinned_gbps * 1e9)
                begin = self.copies[node.way].take(ready, seconds, clock.host)
                at[node.stream] = begin + seconds
                self.copied += node.nbytes
                if clock.record is not None:
                    span = Span(node.name, node.way, self.index, stream, begin, seconds, nbytes=node.nbytes)
                    clock.record.append(span)
            else:
                seconds = node.seconds
                if self.budget is not None:
                    seconds = self.budget.spend(ready, seconds, node.joules)
                begin = self.compute.take(ready, seconds, clock.host) if self.several else ready
                at[node.stream] = begin + seconds
                self.busy += seconds
                if self.covered is not None:
                    self.covered.add(begin, begin + seconds)
                if node.flops:
                    self.flops += node.flops
                    self.flop_seconds += seconds
                self.kernels += 1
                if clock.record is not None:
                    span = Span(node.name, "kernels", self.index, stream, begin, seconds, node.flops, node.nbytes)
                    clock.record.append(span)
        return max(at.values())

    def mark(self, stream: int) -> float:
        """Record an event in `stream`: return the time at which all work queued there by now will be done."""
        self.clock.call()
        at = max(self.streams.get(stream, 0.0), self.clock.host + self.clock.launch_s)
        self.done = max(self.done, at)
        return at

    def hold(self, stream: int, until: float) -> None:
        """Let work queued on `stream` from now on start no earlier than `until`."""
        if stream != 0 and not self.several:
            self._begin_several()
        self.streams[stream] = max(self.streams.get(stream, 0.0), until)
        self.done = max(self.done, until)

    def synchronize(self, stream: int | None = None) -> None:
        """Wait on the host for one stream, or for all of them and unsettled collectives."""
        while stream is None and self.unsettled:
            self.unsettled.pop(next(iter(self.unsettled)))()
        until = self.done if stream is None else self.streams.get(stream, 0.0)
        self.clock.call()
        self.clock.wait(until, "synchronize" if stream is None else "stream.synchronize")

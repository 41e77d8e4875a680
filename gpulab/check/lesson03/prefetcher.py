"""The check of a prefetcher: what arrives, when each copy and each computation ran, and what each computation read.

Values are there at once on a virtual GPU. So what a kernel reads is told from times and addresses: a copy that had not
ended when the kernel began has not arrived, and one that began before the kernel's end, in the memory that it reads,
has overwritten it. Where a batch's memory is, the caching allocator says, which knows `record_stream`.
"""

from __future__ import annotations

import gc
import math
import random
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ...virtual.clock.clock import Span
from ...virtual.gpu import VirtualGPU
from ...virtual.scope.in_force import backing
from ..contract import Clause, Contract, Facts
from ..scenes import Scene
from .common import STREAMS, WAITS, Waits, scope

Batch = Any  # a tuple or a list of inputs and targets
KERNEL, SHORT = 3e-4, 3e-6  # seconds: some three times as long as a batch's copies, or far shorter
ROWS = 16384  # of a batch, some of them less: no two tensors have the same bytes, and all the same blocks of memory
MOST = 4  # batches on the GPU at a time
_SLACK = 1e-6
_LATE = 4e-5  # seconds that the host's launches may cost
YIELDED, OTHERS = "inputs and targets on the device", "other contents"
# What the caller does with a batch; READS: it waits for each result, as `loss.item()` does.
LONG, BRIEF, READS = "computes for long", "computes briefly", "computes for long and waits for each result"
CLAUSES = (
    Clause(
        "Yields (inputs, targets) on `device`",
        ["what is yielded"],
        "what is yielded is not a batch on the GPU",
        "a tuple of both, each moved to the device that was asked for",
        STREAMS,
    ),
    Clause(
        "all of them, in order",
        ["batches that arrive"],
        "the batches do not arrive as they are, each once and in order",
        "when the source ends, one batch is still on its way",
        STREAMS,
    ),
    Clause("it may be empty", ["batches that arrive, of none"], "an empty source gives a batch", read=STREAMS),
    Clause(
        "An exception of `batches` reaches the caller in its place: after the batches that came before it",
        ["the exception", "batches before the exception"],
        "an exception of the source does not reach the caller in its place",
        "keep the exception, yield what is there, then raise",
        STREAMS,
    ),
    Clause(
        "finds its current stream and GPU as they were",
        ["what is current for the caller"],
        "another stream or GPU is current for the caller",
        "only the copies belong under `with torch.cuda.stream(side)`",
        STREAMS,
    ),
    Clause(
        "at most one batch is taken ahead",
        ["most batches taken ahead"],
        "batches are taken further ahead than one",
        "each batch ahead costs its memory on the GPU; one is enough to hide a copy",
        STREAMS,
    ),
    Clause(
        "The host never waits",
        ["waits of the host"],
        "the host waits",
        "the host queues copies and waits for none: the streams wait for each other",
        WAITS,
    ),
    Clause(
        "each copied in a side stream while the one before it is in use",
        ["copies in the caller's stream", "copies that begin after the computation before"],
        "nothing overlaps",
        "copies in a side stream, which waits for the batch before the one in use at most",
        STREAMS,
    ),
    Clause(
        "The copy of batch i + 1 is queued before batch i is yielded",
        ["batches yielded before the next copy is queued"],
        "the next copy is queued only when the next batch is asked for",
        "take the next batch and queue its copy first, then yield the present one",
        STREAMS,
    ),
    Clause(
        "starts when the batch has arrived",
        ["computations that begin before their batch is there"],
        "a computation may start before its batch has arrived",
        "two streams do not wait for each other by themselves: main.wait_stream(side) before the yield",
        STREAMS,
    ),
    Clause(
        "The caller may change that stream between two batches",
        ["computations that begin before their batch is there, in another stream than the first"],
        "a caller that changes its stream may compute before its batch has arrived",
        "torch.cuda.current_stream(device) is read once, before the loop: ask anew for each batch",
        STREAMS,
    ),
    Clause(
        "does not wait for the next one",
        ["computations that begin late"],
        "a computation starts later than it could",
        "wait_stream waits for all that the side stream has been given by then: call it before the next copy is queued",
        STREAMS,
    ),
    Clause(
        "The memory of a batch is not used again before the caller's stream is done with it",
        ["batches overwritten while they are read"],
        "the memory of a batch is overwritten while it is still read",
        "a block, or a buffer of one's own, is written again before the kernel that reads it is done: record_stream "
        "tells the allocator; for a buffer the side stream has to wait",
        STREAMS,
    ),
    Clause(
        "no more than four batches lie on the GPU at a time, and none in the end",
        ["most batches on the GPU", "bytes left on the GPU"],
        "batches stay on the GPU long after they were used",
        "batches are kept in a list or on a longer-lived object",
        STREAMS,
    ),
)
EDGES = {
    "ends": ("after 6 batches", "after 1 batch", "at once", "with an exception at once", "with an exception after 5"),
    "source": ("a generator", "an iterable", "a list"),
    "stream": ("the default stream", "a stream of its own", "a stream that changes"),
    "device": ("cuda:0", "cuda:1", "cuda"),  # the second is not current; of the last the current one is cuda:1
    "caller": (LONG, BRIEF, READS),
    "batch": ("tuples of float32", "lists of uint8"),
}


def possible(scene: Scene) -> bool:
    """Who computes for long goes through many batches. Kernels of two streams share the GPU: who changes the stream
    computes briefly before, so that the first kernel in the new one is early if it does not wait for its batch, and for
    long from then on. A list ends without an exception."""
    if scene.stream == "a stream that changes" and (scene.caller != BRIEF or scene.ends != "after 6 batches"):
        return False
    many = scene.ends in ("after 6 batches", "with an exception after 5")
    return (many or scene.caller == BRIEF) and not (scene.source == "a list" and "exception" in scene.ends)


class SourceError(Exception):
    """What the source of batches raises."""


class Source:
    """The batches, counted as they are taken; `error` comes after them."""

    def __init__(self, batches: list[Batch], error: Exception | None) -> None:
        self.batches, self.error, self.taken = batches, error, 0

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches:
            self.taken += 1
            yield batch
        if self.error is not None:
            raise self.error


@dataclass
class Run:
    """One pass through a prefetcher; lists have one entry for each batch that arrived."""

    kinds: list[str] = field(default_factory=list)
    arrived: list[Any] = field(default_factory=list)  # the number of the batch
    places: list[list[tuple[int, int]]] = field(default_factory=list)  # of its tensors on the GPU, from and to
    storages: list[Any] = field(default_factory=list)  # weak references to those of the inputs
    kept: list[bool] = field(default_factory=list)  # whether they were there still two batches later
    taken: list[int] = field(default_factory=list)  # batches that the source had given
    queued: list[int] = field(default_factory=list)  # copies that had been queued
    moved: list[str] = field(default_factory=list)  # what was current and should not have been
    waits: list[str] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    held: int = 0  # the most bytes of the GPU
    error: BaseException | None = None


def draw_batches(scene: Scene) -> list[Batch]:
    """Batches of different numbers of rows, the last a short one, in pinned memory."""
    count = {"after 6 batches": 6, "after 1 batch": 1, "with an exception after 5": 5}.get(scene.ends, 0)
    rows = [ROWS - less for less in random.sample(range(16), count)]
    if count > 1:
        rows[-1] //= 2
    noise, targets = torch.randint(0, 250, (ROWS, 32), dtype=torch.uint8), torch.randint(0, 9, (ROWS,))
    if scene.batch == "lists of uint8":
        return [[(noise[:n] + i).pin_memory(), (targets[:n] + i).pin_memory()] for i, n in enumerate(rows)]
    floats = noise[:, :8].float()
    return [((floats[:n] + i).pin_memory(), (targets[:n] + i).pin_memory()) for i, n in enumerate(rows)]


class Consumer:
    """Goes through `student(batches, device)`, and queues a kernel for each batch in the stream that is current."""

    def __init__(self, gpu: VirtualGPU, scene: Scene, batches: list[Batch]) -> None:
        self.gpu, self.scene, self.batches, self.run = gpu, scene, batches, Run()
        self.current = 1 if scene.device == "cuda" else 0
        self.device = gpu.device(1 if scene.device == "cuda:1" else self.current)
        text = ("a batch cannot be read",) if scene.ends == "with an exception after 5" else ()  # nor need it say why
        self.error = SourceError(*text) if "exception" in scene.ends else None
        self.source = Source(batches, self.error)
        self.sizes = {t.nbytes: (i, part) for i, batch in enumerate(batches) for part, t in enumerate(batch)}

    def __call__(self, student: Callable[..., Any]) -> None:
        run, scene, clock, device = self.run, self.scene, self.gpu.clock, self.device
        torch.cuda.set_device(self.current)
        if scene.stream == "a stream of its own":
            device.stream = torch.cuda.Stream(device.index).stream_id
        stream, held = device.stream, torch.cuda.memory_allocated(device.index)
        source: Any = self.source if scene.source == "an iterable" else iter(self.source)
        if scene.source == "a list":
            source = list(self.batches)
        asked, ask = [0], clock.ask

        def noted() -> None:
            asked[0] += 1
            ask()

        clock.ask = noted  # type: ignore[method-assign]
        with self.gpu.timeline() as timeline, Waits(clock) as waits:
            try:
                for item in student(source, torch.device(scene.device)):
                    self._use(item, stream, timeline.spans, waits)
                    run.held = max(run.held, torch.cuda.memory_allocated(device.index) - held)
                    del item
                    run.kept += [ref() is not None for ref in run.storages[len(run.kept) : -2]]
                    if scene.stream == "a stream that changes" and len(run.arrived) == 1:
                        stream = device.stream = torch.cuda.Stream(device.index).stream_id
            except SourceError as error:
                run.error = error
                error.__traceback__ = None  # its frames hold batches
        self._look_around(stream, "afterwards")
        run.waits = sorted(
            {wait.name for wait in waits} | ({"questions"} if asked[0] > 3 * len(run.arrived) else set())
        )
        run.spans = [span for span in timeline.spans if span.device == device.index]
        self.before = held
        device.stream = 0
        torch.cuda.set_device(0)

    def left(self) -> int:
        """Bytes that are still held on the GPU."""
        if torch.cuda.memory_allocated(self.device.index) > self.before:
            gc.collect()
        return max(0, torch.cuda.memory_allocated(self.device.index) - self.before)

    def _look_around(self, stream: int, when: str) -> None:
        if self.device.stream != stream:
            self.run.moved.append(f"another stream {when}")
        if torch.cuda.current_device() != self.current:
            self.run.moved.append(f"another GPU {when}")

    def _use(self, item: Any, stream: int, spans: list[Span], waits: Waits) -> None:
        """Take note of a batch, and compute with it."""
        run, number = self.run, len(self.run.arrived)
        self._look_around(stream, "when a batch arrives")
        run.kinds.append(self._kind(item))
        whole = run.kinds[-1] == YIELDED
        with backing:
            run.arrived.append(
                next((i for i, batch in enumerate(self.batches) if all(map(_equal, batch, item))), OTHERS)
                if whole
                else OTHERS
            )
        run.places.append([(t.data_ptr(), t.data_ptr() + t.nbytes) for t in item] if whole else [])
        run.storages.append(weakref.ref(item[0].untyped_storage() if whole else self))
        run.taken.append(self.source.taken)
        run.queued.append(
            len({self.sizes[s.nbytes][0] for s in spans if s.where == "to GPU" and s.nbytes in self.sizes})
        )
        run.streams.append(self.device.stream)
        changed = number and self.scene.stream == "a stream that changes"
        seconds = SHORT if self.scene.caller == BRIEF and not changed else KERNEL
        self.device.timer.kernel(self.device.stream, seconds, f"batch {number}")
        before = len(waits)
        if self.scene.caller == READS:
            self.device.timer.synchronize(self.device.stream)
        del waits[before:]  # the consumer's own

    def _kind(self, item: Any) -> str:
        if not isinstance(item, tuple | list):
            return f"a {type(item).__name__}"
        if len(item) != 2 or not all(isinstance(t, torch.Tensor) for t in item):
            return f"a {type(item).__name__} of {', '.join(type(part).__name__ for part in item) or 'nothing'}"
        there = [t.device == self.device.name for t in item]
        return {(True, True): YIELDED, (True, False): "targets elsewhere", (False, True): "inputs elsewhere"}.get(
            (there[0], there[1]), "inputs and targets elsewhere"
        )


def _equal(old: torch.Tensor, new: torch.Tensor) -> bool:
    return old.dtype == new.dtype and torch.equal(old, new)


def explain(error: str) -> str:
    if "generator raised StopIteration" in error or error.startswith("StopIteration"):
        return "next() raises StopIteration when the batches end: in a generator it has to be caught, and means the end"
    if "cannot pin" in error:
        return "the batches are pinned already, and what is on the GPU cannot be"
    if "not iterable" in error:
        return "the function has to give something to iterate over: a generator has a yield in it"
    if "'generator' object is not subscriptable" in error or "has no len()" in error:
        return "batches is any iterable: take its elements with iter() and next()"
    return ""


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    with scope(compute=True, count=2) as gpu:
        batches = draw_batches(scene)
        consumer = Consumer(gpu, scene, batches)
        left = "the current stream", "the current GPU"  # judged here

        call(through=consumer, besides={"batches": batches}, may_leave=left, explain=explain)
        run, count = consumer.run, len(batches)
        facts = Facts(
            f"{scene.source} that ends {scene.ends}, on {scene.device}; the caller {scene.caller} in {scene.stream}"
        )
        if count:
            facts.add("what is yielded", sorted(set(run.kinds)), [YIELDED] if run.kinds else [])
        if not facts.hold():
            return facts
        name = "batches before the exception" if consumer.error else "batches that arrive"
        facts.add(name if count or consumer.error else "batches that arrive, of none", run.arrived, list(range(count)))
        if consumer.error is not None:
            seen = "the source's" if run.error is consumer.error else "another one" if run.error else "none"
            facts.add("the exception", seen, "the source's")
        if facts.hold() and count:
            judge(facts, consumer)
        return facts


def judge(facts: Facts, consumer: Consumer) -> None:
    """What the times and places of copies and computations show; all batches have arrived."""
    run, scene, times = consumer.run, consumer.scene, Times(consumer)
    count = len(run.arrived)

    def then(name: str, seen: Any, wanted: Any) -> None:
        if facts.hold():
            facts.add(name, seen, wanted)

    then("what is current for the caller", sorted(set(run.moved)), [])
    ahead = [max(run.taken[number], run.queued[number]) - number - 1 for number in range(count)]
    then("most batches taken ahead", max(1, *ahead), 1)
    then("waits of the host", run.waits, [])
    then("copies in the caller's stream", times.in_callers_stream, False)
    behind = [number for number in range(count - 1) if run.queued[number] < number + 2]
    late = [n for n in range(1, count) if times.begins(n) >= times.ends(n - 1) - _SLACK]
    if scene.caller == LONG:
        then("copies that begin after the computation before", late, [])
    then("batches yielded before the next copy is queued", behind, [])
    early = [number for number in range(count) if times.kernel(number).start < times.arrived(number) - _SLACK]
    changes = scene.stream == "a stream that changes"
    then("computations that begin before their batch is there", [n for n in early if n == 0 or not changes], [])
    if changes:
        then("computations that begin before their batch is there, in another stream than the first", early, [])
    if scene.caller != READS:
        then("computations that begin late", [n for n in range(count) if times.late(n)], [])
    overwritten = times.overwritten()
    facts.seen["what is overwritten"] = sorted({("inputs", "targets")[part] for _, part in overwritten})
    kept = any(run.kept[n] for n, _ in overwritten if n < len(run.kept))
    facts.seen["what was overwritten"] = (
        ("a buffer" if kept else "a block that was freed") if overwritten else "nothing"
    )
    then("batches overwritten while they are read", sorted({number for number, _ in overwritten}), [])
    largest = max(sum(t.nbytes for t in batch) for batch in consumer.batches)
    then("most batches on the GPU", max(MOST, math.ceil(run.held / largest - 0.1)), MOST)
    if facts.hold():
        facts.add("bytes left on the GPU", consumer.left(), 0)


class Times:
    """When the copies and the kernels of a run ran, and where the copies wrote."""

    def __init__(self, consumer: Consumer) -> None:
        run = consumer.run
        self.run, self.count = run, len(run.arrived)
        self.kernels = {span.name: span for span in run.spans if span.where == "kernels"}
        self.launched = [
            span.start + span.seconds for span in run.spans if span.where == "host" and "batch" in span.name
        ]
        self.copies: dict[tuple[int, int], Span] = {}
        for span in run.spans:
            if span.where == "to GPU" and span.nbytes in consumer.sizes:
                self.copies[consumer.sizes[span.nbytes]] = span
        self.in_callers_stream = any(span.stream in run.streams for span in self.copies.values())

    def kernel(self, number: int) -> Span:
        return self.kernels[f"batch {number}"]

    def ends(self, number: int) -> float:
        return self.kernel(number).start + self.kernel(number).seconds

    def of(self, number: int) -> list[Span]:
        return [span for (batch, _), span in self.copies.items() if batch == number]

    def begins(self, number: int) -> float:
        return min((span.start for span in self.of(number)), default=0.0)

    def arrived(self, number: int) -> float:
        return max((span.start + span.seconds for span in self.of(number)), default=0.0)

    def late(self, number: int) -> bool:
        """Whether a computation begins later than it is launched, its batch is there, and the one before is done."""
        free = self.ends(number - 1) if number else 0.0
        return self.kernel(number).start - max(free, self.arrived(number), self.launched[number]) > _LATE

    def overwritten(self) -> list[tuple[int, int]]:
        """The batches, and which part of each, in whose memory another one was written since they came, before their
        computation's end."""
        return [(number, part) for number in range(self.count) for part in (0, 1) if self._written(number, part)]

    def _written(self, number: int, part: int) -> bool:
        begin, end = self.run.places[number][part]
        own = self.copies.get((number, part))
        since = own.start if own else 0.0
        return any(
            span.address < end
            and begin < span.address + span.nbytes
            and since < span.start < self.ends(number) - _SLACK
            for (batch, _), span in self.copies.items()
            if span.address and batch != number
        )


EXERCISE = Contract(
    __file__,
    says="all batches in order, each copy hidden behind the batch before, memory safe, exceptions in place",
    parameters=("batches", "device"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=possible,
)

"""Checks exercise 03.4, "a prefetcher": the batches, when each copy and each computation ran, and what these read.

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
from typing import Any

import torch

from gpulab.exercise.clocks import scope
from gpulab.exercise.contract import Clause, Contract, Facts
from gpulab.exercise.scenes import Scene
from virtualgpu.clock.clock import Span
from virtualgpu.gpu import VirtualGPU
from virtualgpu.observe import observe
from virtualgpu.scope.in_force import backing

WAITS, STREAMS = "Who waits for a copy", "Two streams at once"
KERNEL, SHORT = 3e-4, 3e-6  # seconds: some three times as long as a batch's copies, or far shorter
ROWS = 16384  # of a batch, some of them less: no two tensors have the same bytes, and all the same blocks of memory
MOST = 4  # batches on the GPU at a time
SLACK, LAUNCHES = 1e-6, 4e-5  # seconds; the second is what the host's launches may cost
KIND, ARRIVE, NONE = "what is yielded", "batches that arrive", "batches that arrive, of none"
RAISED, BEFORE = "the exception", "batches before the exception"
CURRENT, AHEAD, HOST = "what is current for the caller", "most batches taken ahead", "what the host waits for"
OWN, BEHIND = "copies in the caller's stream", "copies that begin after the computation before"
ASKED, EARLY = "batches yielded before the next copy is queued", "computations that begin before their batch is there"
CHANGED, LATE = f"{EARLY}, in another stream than the first", "computations that begin late"
OVER, HELD, LEFT = "batches overwritten while they are read", "most batches on the GPU", "bytes left on the GPU"
# What the caller does with a batch; READS: it waits for each result, as `loss.item()` does.
LONG, BRIEF, READS = "computes for long", "computes briefly", "computes for long and waits for each result"
CLAUSES = [
    Clause(quote, facts, summary, rule, WAITS if facts == [HOST] else STREAMS)
    for quote, facts, summary, rule in (
        ("Yields (inputs, targets) on `device`", [KIND], "what is yielded is not a batch on the GPU",
         "a tuple of both, each moved to the device that was asked for"),
        ("all of them, in order", [ARRIVE], "the batches do not arrive as they are, each once and in order",
         "when the source ends, one batch is still on its way"),
        ("it may be empty", [NONE], "an empty source gives a batch", ""),
        ("An exception from `batches` reaches the caller in its place: after the batches that came before it",
         [RAISED, BEFORE], "an exception from the source does not reach the caller in its place",
         "keep the exception, yield the batch that has arrived, then raise"),
        ("finds its current stream and GPU as they were", [CURRENT], "another stream or GPU is current for the caller",
         "only the copies belong under `with torch.cuda.stream(side)`"),
        ("at most one batch is taken ahead", [AHEAD], "batches are taken further ahead than one",
         "each batch ahead costs its memory on the GPU; one is enough to hide a copy"),
        ("The host never waits", [HOST], "the host waits",
         "the host queues copies and waits for none; let the streams wait for each other"),
        ("each copied in a side stream while the one before it is in use", [OWN, BEHIND], "nothing overlaps",
         "put the copies in a side stream, which waits at most for the batch before the one in use"),
        ("The copy of batch i + 1 is queued before batch i is yielded", [ASKED],
         "the next copy is queued only when the next batch is asked for",
         "take the next batch and queue its copy first, then yield the current one"),
        ("starts when the batch has arrived", [EARLY], "a computation may start before its batch has arrived",
         "two streams do not wait for each other by themselves: main.wait_stream(side) before the yield"),
        ("The caller may change that stream between two batches", [CHANGED],
         "a caller that changes its stream may compute before its batch has arrived",
         "the stream that is current when a batch is yielded waits for that batch"),
        ("does not wait for the next one", [LATE], "a computation starts later than it could",
         "wait_stream waits for everything queued in the side stream so far: call it before the next copy"),
        ("The memory of a batch is not reused before the caller's stream is done with it", [OVER],
         "the memory of a batch is overwritten while it is still read",
         "record_stream tells the allocator; before it refills a buffer of yours, the side stream has to wait"),
        ("no more than four batches are on the GPU at a time, and none at the end", [HELD, LEFT],
         "batches stay on the GPU long after they were used", "release a batch when the next one is asked for"),
    )
]  # fmt: skip
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


class Source:
    """The batches, counted as they are taken; `error` comes after them."""

    def __init__(self, batches: list[Any], error: Exception | None) -> None:
        self.batches, self.error, self.taken = batches, error, 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            self.taken += 1
            yield batch
        if self.error is not None:
            raise self.error


def draw_batches(scene: Scene) -> list[Any]:
    """Batches of different numbers of rows, the last a short one, in pinned memory."""
    count = {"after 6 batches": 6, "after 1 batch": 1, "with an exception after 5": 5}.get(scene.ends, 0)
    rows = [ROWS - less for less in random.sample(range(16), count)]
    if count > 1:
        rows[-1] //= 2
    noise, targets = torch.randint(0, 250, (ROWS, 32), dtype=torch.uint8), torch.randint(0, 9, (ROWS,))
    kind = list if scene.batch == "lists of uint8" else tuple
    inputs = noise if kind is list else noise[:, :8].float()
    return [kind(t.pin_memory() for t in (inputs[:n] + i, targets[:n] + i)) for i, n in enumerate(rows)]


class Consumer:
    """Goes through `student(batches, device)`, and queues a kernel for each batch in the stream that is current.

    The lists have one entry for each batch that arrived.
    """

    def __init__(self, gpu: VirtualGPU, scene: Scene, batches: list[Any]) -> None:
        self.gpu, self.scene, self.batches = gpu, scene, batches
        self.current = 1 if scene.device == "cuda" else 0
        self.device = gpu.device(1 if scene.device == "cuda:1" else self.current)
        text = ("a batch cannot be read",) if scene.ends == "with an exception after 5" else ()  # nor need it say why
        self.error = OSError(*text) if "exception" in scene.ends else None
        self.source, self.raised, self.most = Source(batches, self.error), "none", 0
        self.sizes = {t.nbytes: (i, part) for i, batch in enumerate(batches) for part, t in enumerate(batch)}
        self.spans, self.own = list[Span](), set[int]()  # own: the consumer's waits, by their places among the spans
        self.kinds, self.moved, self.questions = set[str](), set[str](), 0
        self.kind = ", ".join([f"Tensor on {self.device.name}"] * 2)
        self.arrived, self.streams = list[Any](), list[int]()
        self.places = list[list[tuple[int, int]]]()  # of a batch's tensors on the GPU, from and to
        self.inputs, self.kept = list[Any](), list[bool]()  # weak references; whether there two batches later
        self.ahead, self.queued = list[int](), list[int]()  # batches taken ahead; batches whose copies are queued

    def __call__(self, student: Callable[..., Any]) -> None:
        scene, device = self.scene, self.device
        torch.cuda.set_device(self.current)
        if scene.stream == "a stream of its own":
            device.stream = torch.cuda.Stream(device.index).stream_id
        stream, self.before = device.stream, torch.cuda.memory_allocated(device.index)
        source: Any = list(self.batches) if scene.source == "a list" else self.source
        source = iter(source) if scene.source == "a generator" else source
        with self.gpu.timeline() as timeline, observe(self.gpu, question=self._asked):
            self.spans = timeline.spans
            try:
                for item in student(source, torch.device(scene.device)):
                    self._use(item, stream)
                    self.most = max(self.most, self.held())
                    del item
                    self.kept += [ref() is not None for ref in self.inputs[len(self.kept) : -2]]
                    if scene.stream == "a stream that changes" and len(self.arrived) == 1:
                        stream = device.stream = torch.cuda.Stream(device.index).stream_id
            except OSError as error:
                self.raised = "the source's" if error is self.error else "another one"
                error.__traceback__ = None  # its frames hold batches
        self._look_around(stream, "afterwards")

    def _asked(self) -> None:
        self.questions += 1

    def held(self) -> int:
        return torch.cuda.memory_allocated(self.device.index) - self.before

    def _look_around(self, stream: int, when: str) -> None:
        self.moved |= {f"another stream {when}"} if self.device.stream != stream else set()
        self.moved |= {f"another GPU {when}"} if torch.cuda.current_device() != self.current else set()

    def _use(self, item: Any, stream: int) -> None:
        """Take note of a batch, and compute with it."""
        number, parts = len(self.arrived), item if isinstance(item, tuple | list) else [item]
        kind = ", ".join(type(t).__name__ + (f" on {t.device}" if isinstance(t, torch.Tensor) else "") for t in parts)
        right, same = kind == self.kind, list[int]()
        self._look_around(stream, "when a batch arrives")
        self.kinds.add(kind)
        with backing:
            for i, batch in enumerate(self.batches if right else []):
                equal = [a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(batch, item, strict=True)]
                same += [i] if all(equal) else []
        self.arrived.append(same[0] if same else "other contents")
        self.places.append([(t.data_ptr(), t.data_ptr() + t.nbytes) for t in item] if right else [])
        self.inputs.append(weakref.ref(item[0].untyped_storage() if right else self))
        copied = {self.sizes[s.nbytes][0] for s in self.spans if s.where == "to GPU" and s.nbytes in self.sizes}
        self.queued.append(len(copied))
        self.ahead.append(max(self.source.taken, len(copied)) - number - 1)
        self.streams.append(self.device.stream)
        changed = number and self.scene.stream == "a stream that changes"
        seconds = SHORT if self.scene.caller == BRIEF and not changed else KERNEL
        self.device.timer.kernel(self.device.stream, seconds, f"batch {number}")
        if self.scene.caller == READS:
            self.own.add(len(self.spans))
            self.device.timer.synchronize(self.device.stream)


def end(span: Span) -> float:
    return span.start + span.seconds


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    with scope(compute=True, count=2) as gpu:
        batches = draw_batches(scene)
        seen, count = Consumer(gpu, scene, batches), len(batches)
        call(through=seen, besides={"batches": batches}, may_leave=("the current stream", "the current GPU"))
        facts = Facts(f"{scene.source}, ending {scene.ends}; {scene.device}; one {scene.caller} in {scene.stream}")
        facts.add(KIND, sorted(seen.kinds) if count else [], [seen.kind] if count and seen.kinds else [])
        if facts.hold():
            facts.add(BEFORE if seen.error else ARRIVE if count else NONE, seen.arrived, list(range(count)))
            if seen.error is not None:
                facts.add(RAISED, seen.raised, "the source's")
        if facts.hold() and count:
            judge(facts, seen)
        return facts


def judge(facts: Facts, seen: Consumer) -> None:
    """What the times and places of copies and computations show; all batches have arrived."""
    numbers, scene, changes = range(len(seen.arrived)), seen.scene, seen.scene.stream == "a stream that changes"
    spans = [span for span in seen.spans if span.device == seen.device.index]
    copies = {seen.sizes[s.nbytes]: s for s in spans if s.where == "to GPU" and s.nbytes in seen.sizes}
    kernels = {span.name: span for span in spans if span.where == "kernels"}
    runs = [kernels[f"batch {number}"] for number in numbers]
    launched = [end(span) for span in spans if span.where == "host" and "batch" in span.name]
    begun = [min((s.start for (n, _), s in copies.items() if n == number), default=0.0) for number in numbers]
    there = [max((end(s) for (n, _), s in copies.items() if n == number), default=0.0) for number in numbers]
    free = [0.0, *map(end, runs)]  # when the computation before has ended
    early = [n for n in numbers if runs[n].start < there[n] - SLACK]
    host = [span.name for i, span in enumerate(seen.spans) if span.where == "host" and i not in seen.own]
    waits = {name for name in host if name.startswith("copy to GPU, ") or name.endswith("synchronize")}
    waits |= {"a copy that it asks about again and again"} if seen.questions > 3 * len(numbers) else set()

    def then(name: str, seen: Any, wanted: Any) -> None:
        if facts.hold():
            facts.add(name, seen, wanted)

    def overwritten(number: int, part: int) -> bool:
        """Whether another batch was written in its memory since it came, before the end of its computation."""
        (begin, last), own = seen.places[number][part], copies.get((number, part))
        since = own.start if own else 0.0
        others = [s for (batch, _), s in copies.items() if batch != number and s.address]
        here = [s for s in others if s.address < last and begin < s.address + s.nbytes]
        return any(since < span.start < free[number + 1] - SLACK for span in here)

    then(CURRENT, sorted(seen.moved), [])
    then(AHEAD, max(1, *seen.ahead), 1)
    then(HOST, sorted(waits), [])
    then(OWN, any(span.stream in seen.streams for span in copies.values()), False)
    if scene.caller == LONG:
        then(BEHIND, [n for n in numbers[1:] if begun[n] >= free[n] - SLACK], [])
    then(ASKED, [n for n in numbers[:-1] if seen.queued[n] < n + 2], [])
    then(EARLY, [n for n in early if n == 0 or not changes], [])
    if changes:
        then(CHANGED, early, [])
    if scene.caller != READS:
        then(LATE, [n for n in numbers if runs[n].start - max(free[n], there[n], launched[n]) > LAUNCHES], [])
    over = [(n, part) for n in numbers for part in (0, 1) if overwritten(n, part)]
    kept = any(seen.kept[n] for n, _ in over if n < len(seen.kept))
    facts.seen["what is overwritten"] = sorted({("inputs", "targets")[part] for _, part in over})
    facts.seen["its memory"] = ("a buffer" if kept else "a block that was freed") if over else "nothing"
    then(OVER, sorted({n for n, _ in over}), [])
    largest = max(sum(t.nbytes for t in batch) for batch in seen.batches)
    then(HELD, max(MOST, math.ceil(seen.most / largest - 0.1)), MOST)
    if seen.held():
        gc.collect()
    then(LEFT, max(0, seen.held()), 0)


EXERCISE = Contract(
    __file__,
    says="all batches in order, each copy hidden behind the batch before, memory safe, exceptions in place",
    parameters=("batches", "device"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=possible,
    errors={
        "cannot pin": "the batches are pinned already, and what is on the GPU cannot be",
        "generator raised StopIteration": "catch StopIteration in a generator: it means the end",
    },
)

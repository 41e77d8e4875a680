"""The check of a prefetcher: what arrives, when each copy and each computation ran, and who may use memory again.

The batches are of different sizes, so that each copy is known by its bytes; for each batch the consumer queues one
kernel, and the virtual GPU's clock says when all of it ran.
"""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from ...virtual.clock.clock import Span
from ...virtual.gpu import VirtualGPU
from ..base import Trial, check
from ..wording import show
from .common import STREAMS, WAITS, Wait, Waits, scope

Batch = tuple[torch.Tensor, torch.Tensor]
KERNEL = 3e-4  # seconds, some three times as long as a batch's copies
_SLACK = 1e-6
_LATE = 4e-5  # seconds that the host's launches may cost


class SourceError(Exception):
    """What the source of batches raises in the run that fails."""


@dataclass
class Run:
    """One pass of a consumer through a prefetcher; lists have one entry for each batch that arrived."""

    consumer: int  # the stream in which the consumer works
    taken: list[int] = field(default_factory=list)  # batches that the source had given when it arrived
    streams: list[int] = field(default_factory=list)  # the current one when it arrived
    items: list[Any] = field(default_factory=list)  # the batches on the CPU, where `values` asks for them
    places: list[list[tuple[int, int]]] = field(default_factory=list)  # addresses on the GPU, from and to
    marked: list[list[bool]] = field(default_factory=list)  # whether each tensor knows of the consumer's stream
    alive: list[bool] = field(default_factory=list)  # whether any of it was still held two batches later
    kept: list[bool] = field(default_factory=list)  # and four batches later
    waits: list[Wait] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    error: BaseException | None = None
    left: int = 0  # bytes held on the GPU at the end
    ended: int = 0  # the stream that is current at the end
    moved: int = -1  # the stream in which a consumer that changes it goes on

    def kernel(self, number: int) -> Span:
        return next(span for span in self.spans if span.where == "kernels" and span.name == f"batch {number}")

    def copies(self, batch: Batch) -> list[Span]:
        """The copies of a batch to the GPU, known by their bytes."""
        sizes = {tensor.nbytes for tensor in batch}
        return [span for span in self.spans if span.where == "to GPU" and span.nbytes in sizes]


def draw_batches(count: int) -> list[Batch]:
    """Batches of different numbers of rows, in pinned memory: no two tensors have the same bytes."""
    rows = random.sample(range(1500, 1500 + 8 * count), count)
    return [(torch.randn(n, 96).pin_memory(), torch.randint(0, 9, (n,)).pin_memory()) for n in rows]


class Consumer:
    """Goes through `student(batches, device)` and queues a kernel for each batch, in the current stream.

    `values` keeps what arrives. `reads`: after each batch it waits for its kernel, as `loss.item()` does. `fails_at`:
    the source raises in place of this batch. `moves`: after the first batch it goes on in another
    stream, with short kernels: one that does not wait for its batch is early then.
    """

    def __init__(
        self,
        gpu: VirtualGPU,
        batches: list[Batch],
        *,
        values: bool = False,
        reads: bool = False,
        own_stream: bool = False,
        fails_at: int | None = None,
        moves: bool = False,
    ) -> None:
        self.gpu, self.device, self.batches = gpu, gpu.device(0), batches
        self.values, self.reads, self.own_stream, self.fails_at = values, reads, own_stream, fails_at
        self.moves = moves
        self.taken = 0
        self.recorded: set[tuple[int, int]] = set()
        self.refs: list[list[weakref.ref[torch.Tensor]]] = []

    def source(self) -> Iterator[Batch]:
        for number, batch in enumerate(self.batches):
            if number == self.fails_at:
                raise SourceError(f"batch {number} cannot be read")
            self.taken += 1
            yield batch

    def __call__(self, student: Any) -> Run:
        own_record = torch.Tensor.record_stream

        def record(tensor: torch.Tensor, stream: Any) -> None:
            self.recorded.add((tensor.data_ptr(), stream.stream_id))
            own_record(tensor, stream)

        held = torch.cuda.memory_allocated()
        torch.Tensor.record_stream = record  # type: ignore[assignment, method-assign]
        try:
            with torch.cuda.stream(torch.cuda.Stream()) if self.own_stream else nullcontext():
                run = Run(self.device.stream)
                with self.gpu.timeline() as timeline, Waits(self.gpu.clock) as waits:
                    try:
                        for item in student(self.source(), torch.device("cuda", 0)):
                            self.use(run, item, waits)
                            del item
                            if self.moves and len(run.taken) == 1:
                                torch.cuda.set_stream(torch.cuda.Stream())
                                run.moved = self.device.stream
                    except SourceError as error:
                        run.error = error
                run.ended = self.device.stream
        finally:
            torch.Tensor.record_stream = own_record  # type: ignore[method-assign]
        run.waits, run.spans = list(waits), timeline.spans
        if torch.cuda.memory_allocated() > held:
            gc.collect()
        run.left = torch.cuda.memory_allocated() - held
        return run

    def use(self, run: Run, item: Any, waits: Waits) -> None:
        """Take note of a batch, and compute with it."""
        number, stream = len(run.taken), self.device.stream
        tensors = [t for t in item if isinstance(t, torch.Tensor)] if isinstance(item, (tuple, list)) else []
        run.taken.append(self.taken)
        run.streams.append(stream)
        run.places.append([(t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors])
        run.marked.append([(t.data_ptr(), run.consumer) in self.recorded for t in tensors])
        self.recorded -= {(t.data_ptr(), run.consumer) for t in tensors}  # the next tensor there is another one
        self.refs.append([weakref.ref(t) for t in tensors])
        run.alive.append(False)
        run.kept.append(False)
        for told, later in ((run.alive, 2), (run.kept, 4)):
            if number >= later:
                told[number - later] = any(ref() is not None for ref in self.refs[number - later])
        self.device.timer.kernel(stream, KERNEL / 100 if self.moves else KERNEL, f"batch {number}")
        before = len(waits)
        if self.values:
            on_gpu = len(tensors) == 2 == len(item) and all(t.is_cuda for t in tensors)
            run.items.append(tuple(t.cpu() for t in item) if on_gpu else _described(item))
        if self.reads:
            self.device.timer.synchronize(stream)
        del waits[before:]  # the consumer's own


def _described(item: Any) -> str:
    if isinstance(item, (tuple, list)) and any(isinstance(t, torch.Tensor) for t in item):
        return (
            "(" + ", ".join(f"a tensor on {t.device}" if isinstance(t, torch.Tensor) else show(t) for t in item) + ")"
        )
    return show(item)


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


@check(
    lesson=3, says="all batches in order, each copy hidden behind the batch before, memory safe, exceptions in place"
)
def prefetcher(student: Any, trial: Trial) -> None:
    """Check a function of (batches, device) that yields the batches on a GPU, copied one ahead in a side stream."""
    trial.function(student, ("batches", "device"))

    def run(count: int, **how: Any) -> tuple[Run, list[Batch]]:
        with scope(compute=True) as gpu:
            batches = draw_batches(count)
            consumer = Consumer(gpu, batches, **how)
            return trial.call(
                consumer,
                student,
                besides={"batches": batches},
                may_leave=("the current stream",),  # judged by `judge_place`
                explain=explain,
            ), batches

    for count in (5, 1, 0):
        judge_values(trial, *run(count, values=True))
    done, batches = run(6)
    judge_place(trial, done)
    judge_waits(trial, done)
    judge_order(trial, done, batches)
    judge_memory(trial, done, batches)
    judge_ahead(trial, *run(4, reads=True))
    done, batches = run(4, own_stream=True)
    judge_place(trial, done)
    judge_order(trial, done, batches)
    judge_move(trial, *run(4, own_stream=True, moves=True))
    for fails_at in (3, 0):
        judge_failure(trial, run(5, fails_at=fails_at)[0], fails_at)


def judge_values(trial: Trial, run: Run, batches: list[Batch]) -> None:
    got, count = run.items, len(batches)
    for number, item in enumerate(got):
        trial.expect(
            isinstance(item, tuple),
            "what is yielded is not a batch on the GPU",
            expected="(inputs, targets), both on the device",
            got=str(item),
            likely="the targets stay on the CPU: every tensor of the batch is copied" if "cuda" in str(item) else "",
            read=STREAMS,
        )
        places = [n for n, batch in enumerate(batches) if all(map(torch.equal, batch, item))]
        trial.expect(
            bool(places),
            "a batch arrives with other contents",
            expected=f"the inputs and targets of batch {number}",
            got="other values, another dtype or another shape",
            read=STREAMS,
        )
        if places[0] != number:
            twice = any(all(map(torch.equal, earlier, item)) for earlier in got[:number])
            trial.fail(
                "a batch arrives twice" if twice else "the batches arrive in another order, or one is left out",
                expected=f"batch {number} of {count}, counted from 0",
                got=f"batch {places[0]}",
                likely="the batch that is yielded and the one that is copied next have changed places"
                if not twice
                else "the same variable is yielded before it holds the next batch",
                read=STREAMS,
            )
    if len(got) != count:
        last = len(got) == count - 1
        trial.fail(
            "the last batch never arrives" if last else "not all batches arrive",
            expected=f"{count} batch{'es' if count != 1 else ''}",
            got=f"{len(got)}",
            likely="when the source ends, one batch is still on its way: it has to be yielded after the loop"
            if last
            else "",
            read=STREAMS,
        )


def judge_place(trial: Trial, run: Run) -> None:
    if any(stream != run.consumer for stream in run.streams):
        trial.fail(
            "the caller computes in the side stream",
            expected="the stream that was current for the caller is current for it at each batch",
            got="another current stream when a batch arrives",
            likely="the yield stands inside `with torch.cuda.stream(side)`: only the copies belong there",
            read=STREAMS,
        )
    trial.expect(
        run.ended == run.consumer,
        "another stream is current afterwards",
        expected="the stream that was current before",
        got="the side stream",
        likely="torch.cuda.set_stream is not undone by itself: use the stream as a context manager",
        read=STREAMS,
    )
    for number, taken in enumerate(run.taken):
        trial.expect(
            taken <= number + 2,
            "batches are taken further ahead than one",
            expected=f"{number + 2} batches taken from the source when batch {number} arrives, at most",
            got=f"{taken}",
            likely="all batches are taken (list(batches)), or copied, before the first is yielded: data sets do not fit"
            if taken == len(run.taken)
            else "each batch ahead costs its memory on the GPU; one is enough to hide a copy",
            read=STREAMS,
        )


def judge_waits(trial: Trial, run: Run) -> None:
    if not run.waits:
        return
    first = run.waits[0]
    told = "synchronize" in first.name
    trial.fail(
        "the host is told to wait" if told else "the host waits for a copy",
        expected="the host queues copies and waits for none: the streams wait for each other",
        got=f"{len(run.waits)} waits; the first{first.where}",
        likely="synchronize holds the host; main.wait_stream(side) lets the GPU's stream wait, and the host goes on"
        if told
        else "a default .to(device) waits, in any stream: non_blocking=True"
        if "pageable" not in first.name
        else "the copy is made from ordinary memory: a clone or a contiguous copy of a pinned tensor is not pinned",
        read=STREAMS if told else WAITS,
    )


def judge_order(trial: Trial, run: Run, batches: list[Batch]) -> None:
    """Each kernel starts when its batch has arrived and the stream is free, and copies run beside kernels."""
    arrived = [max((span.start + span.seconds for span in run.copies(batch)), default=0.0) for batch in batches]
    if any(span.stream == run.consumer for batch in batches for span in run.copies(batch)):
        trial.fail(
            "nothing overlaps: the copies stand in the caller's own stream",
            expected="copies in a side stream, beside the computations",
            got="one after the other",
            likely="non_blocking frees the host only; a stream works in order: put the copies under "
            "with torch.cuda.stream(side)",
            read=STREAMS,
        )
    free = 0.0
    for number in range(len(batches)):
        kernel = run.kernel(number)
        trial.expect(
            kernel.start >= arrived[number] - _SLACK,
            "a computation may start before its batch has arrived",
            expected=f"the kernel of batch {number} starts after its copies end",
            got=f"it starts {(arrived[number] - kernel.start) * 1e6:.0f} µs before (virtual)",
            likely="two streams do not wait for each other by themselves: main.wait_stream(side) before the yield",
            read=STREAMS,
        )
        if number + 1 < len(batches):
            start = min((span.start for span in run.copies(batches[number + 1])), default=0.0)
            trial.expect(
                start < kernel.start + kernel.seconds - _SLACK,
                "nothing overlaps: the next copy starts when the computation has ended",
                expected=f"the copy of batch {number + 1} beside the kernel of batch {number}",
                got="one after the other",
                likely="the side stream waits for the batch in use; it may wait for the one before at most",
                read=STREAMS,
            )
        late = kernel.start - max(free, arrived[number])
        if late > _LATE:
            following = arrived[min(number + 1, len(batches) - 1)]
            trial.fail(
                "a computation waits for the batch after its own"
                if abs(kernel.start - following) < _LATE
                else "a computation starts later than it could",
                expected=f"the kernel of batch {number} starts when its own copies end",
                got=f"it starts {late * 1e6:.0f} µs later (virtual)",
                likely="wait_stream waits for all that the side stream has been given by then: call it before the next "
                "copy is queued there",
                read=STREAMS,
            )
        free = kernel.start + kernel.seconds


def judge_memory(trial: Trial, run: Run, batches: list[Batch]) -> None:
    """The memory of a batch may not be given to a later copy that starts while its kernel may still read it."""
    for number in range(len(batches) - 2):
        if all(run.marked[number]) or run.alive[number]:
            continue
        kernel = run.kernel(number)
        start = min(span.start for span in run.copies(batches[number + 2]))
        if start >= kernel.start + kernel.seconds - _SLACK:
            continue  # the side stream waits for the caller's before it copies: as good
        some = any(run.marked[number])
        trial.fail(
            "the memory of a batch may be overwritten while it is still read",
            expected="each tensor that is yielded knows of the caller's stream",
            got="record_stream with the caller's stream for a part of the batch only"
            if some
            else "no record_stream with the caller's stream, and copies that do not wait for it",
            likely="the targets are a tensor as well: t.record_stream(main) for each"
            if some
            else "the allocator knows the side stream only: it gives the block to the next copy as soon as Python "
            "drops the batch. tensor.record_stream(torch.cuda.current_stream()) tells it",
            read=STREAMS,
        )
    trial.expect(
        not any(run.kept),
        "batches stay on the GPU long after they were used",
        expected="the batch in use, the next one, and one that is being let go",
        got="the first batch, still there when four more have come",
        likely="all batches are kept in a list: safe, and at the end the whole data set is on the GPU",
        read=STREAMS,
    )
    trial.expect(
        run.left <= 0,
        "memory is still held on the GPU when all batches are done",
        expected="nothing: the caller has dropped its batches",
        got=f"{run.left:,} bytes",
        likely="batches are kept in a list or on a longer-lived object",
        read=STREAMS,
    )


def judge_ahead(trial: Trial, run: Run, batches: list[Batch]) -> None:
    """With a consumer that waits for each computation, as `loss.item()` makes it."""
    for number in range(len(batches) - 1):
        kernel = run.kernel(number)
        start = min((span.start for span in run.copies(batches[number + 1])), default=0.0)
        trial.expect(
            start < kernel.start + kernel.seconds - _SLACK,
            "the next copy is queued only when the next batch is asked for",
            expected=f"the copy of batch {number + 1} queued before batch {number} is yielded",
            got="no overlap as soon as the caller waits for its result (loss.item() in the loop)",
            likely="take the next batch and queue its copy first, then yield the present one",
            read=STREAMS,
        )


def judge_move(trial: Trial, run: Run, batches: list[Batch]) -> None:
    """With a consumer that goes on in another stream after the first batch."""
    trial.expect(
        all(stream == run.moved for stream in run.streams[1:]),
        "the caller is put back into its earlier stream",
        expected="a caller that changes its current stream between two batches stays in the new one",
        got="another current stream when the next batch arrives",
        likely="the stream that was current at the beginning is made current again: use `with` around the copies only",
        read=STREAMS,
    )
    for number in range(1, len(batches)):
        early = max(span.start + span.seconds for span in run.copies(batches[number])) - run.kernel(number).start
        trial.expect(
            early <= _SLACK,
            "a caller that changes its stream may compute before its batch has arrived",
            expected="the stream that is current when a batch is asked for waits for its copies",
            got=f"the kernel of batch {number}, in the new stream, starts {early * 1e6:.0f} µs before (virtual)",
            likely="torch.cuda.current_stream(device) is read once, before the loop: ask anew for each batch",
            read=STREAMS,
        )


def judge_failure(trial: Trial, run: Run, fails_at: int) -> None:
    trial.expect(
        run.error is not None,
        "an exception of the source is swallowed",
        expected=f"the source's exception after {fails_at} batches",
        got=f"{len(run.taken)} batches, and an ordinary end",
        likely="except Exception takes a fault for the end of the data: only StopIteration is that",
        read=STREAMS,
    )
    trial.expect(
        len(run.taken) == fails_at,
        "an exception comes too early: a good batch before it is lost",
        expected=f"{fails_at} batches, then the exception",
        got=f"{len(run.taken)} batches, then the exception",
        likely="the source fails while the batch ahead is taken: keep the exception, yield what is there, then raise",
        read=STREAMS,
    )

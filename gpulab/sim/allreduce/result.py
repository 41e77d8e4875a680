"""Results of the all-reduce: a training step on N GPUs by DDP and by DataParallel, from the times of `model`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..base.simulator import Result, Row
from ..base.words import count, duration, percent, size
from .model import LINKS, Bucket, Copies, Work, data_parallel, ddp, hops, sent_bytes

FRAMES, VIRTUAL = 100, "virtual"


def times(speedup: float) -> str:
    """How many GPUs a speed is worth: `0.83`, `3.86`, `13.2`."""
    if speedup < 0.995:
        return f"{speedup:.2f}" if speedup >= 0.01 else "<0.01"
    return f"{speedup:.3g}"


@dataclass(frozen=True)
class Step(Result):
    """One training step by DDP and by DataParallel; `gpus` GPUs, each with a batch of the same size. Seconds."""

    gpus: int
    work: Work
    buckets: tuple[Bucket, ...]
    copies: Copies | None  # of DataParallel; None if it cannot run there
    moment: int  # of FRAMES, over the DDP step

    @property
    def seconds(self) -> float:
        """The DDP step."""
        return max(self.work.compute, self.buckets[-1].end)

    @property
    def data_parallel_seconds(self) -> float | None:
        return None if self.copies is None else self.work.compute + sum(self.copies)

    @property
    def speedup(self) -> float:
        """Samples a second, against those of one GPU alone."""
        return self.gpus * self.work.compute / self.seconds

    @property
    def sent_bytes(self) -> float:
        """What each GPU sends in a DDP step, and as much is what it receives."""
        return sent_bytes(self.work.gradient_bytes, self.gpus)

    @property
    def ring(self) -> float:
        """How long the ring is at work."""
        return sum(bucket.end - bucket.start for bucket in self.buckets)

    @property
    def latency(self) -> float:
        """The part of `ring` that passes before bytes flow, whatever their number."""
        return len(self.buckets) * self.work.latency(self.gpus) if self.gpus > 1 else 0.0

    @property
    def exposed(self) -> float:
        """How long the GPUs wait for the ring, after backward."""
        return self.seconds - self.work.compute

    @property
    def hidden(self) -> float:
        """The share of the ring's time during which backward computes."""
        return min(1.0, max(0.0, 1 - self.exposed / self.ring)) if self.gpus > 1 else 0.0

    @property
    def now(self) -> float:
        return self.seconds * self.moment / FRAMES

    @property
    def hops_done(self) -> int | None:
        """The hops of the bucket shown in slow motion: None before the ring begins, all when it has ended."""
        begin = self.buckets[0].start
        if self.now < begin:
            return None
        if self.gpus == 1:
            return 0
        return math.floor(min(1.0, (self.now - begin) / (self.seconds - begin)) * hops(self.gpus) + 1e-9)

    @property
    def finding(self) -> str:
        if self.gpus == 1:
            return f"One GPU has nothing to send: its step takes the {duration(self.work.compute)} of its computing"
        worth = "are slower than one" if self.speedup < 0.995 else f"do the work of {times(self.speedup)}"
        found = f"{self.gpus} GPUs {worth}"
        backward = self.work.compute - self.work.forward
        if len(self.buckets) == 1 and self.exposed < 0.01 * self.work.compute:
            return f"{found}: the only bucket goes round in {duration(self.ring)} after backward"
        if len(self.buckets) == 1:
            return f"{found}: the only bucket is full when backward ends"
        if self.latency > self.ring / 2 and self.exposed > 0.02 * self.work.compute:
            return f"{found}: with so many buckets {percent(self.latency / self.ring)} of the all-reduce is latency"
        if self.ring > backward:
            return f"{found}: the all-reduce takes {times(self.ring / backward)} times as long as backward"
        return f"{found}: backward hides {percent(self.hidden)} of the all-reduce"

    def rows(self) -> list[Row]:
        link, other = self.work.link, self.data_parallel_seconds
        path = "" if self.work.peer or link.staged_gbps is None else ", through host memory"
        factor = hops(self.gpus) / self.gpus
        rows = [
            ("gradients, 4 bytes each", f"{size(self.work.gradient_bytes)}, {count(len(self.buckets), 'bucket')}", ""),
            ("each GPU sends, DDP", f"{size(round(self.sent_bytes))} = {factor:.3g} × the gradients", ""),
            ("link, one way", f"{link.words}, {link.one_way_gbps:g} GB/s", "recorded: data sheet"),
            ("reached", f"{self.work.rate / 1e9:.3g} GB/s{path}", "virtual: a part of the vendor's, assumed"),
            ("computing", duration(self.work.compute), VIRTUAL),
            ("the ring at work", duration(self.ring) if self.ring else "0 ms", VIRTUAL),
            ("of it latency", percent(self.latency / self.ring if self.ring else 0), VIRTUAL),
            ("of it behind backward", percent(self.hidden), VIRTUAL),
            ("step, DDP", duration(self.seconds), VIRTUAL),
            ("scaling efficiency, DDP", percent(self.speedup / self.gpus), VIRTUAL),
        ]
        if other is None:
            return [*rows, ("step, DataParallel", "one process cannot leave its machine", "")]
        return [
            *rows,
            ("step, DataParallel", duration(other), VIRTUAL),
            ("scaling efficiency, DataParallel", percent(self.work.compute / other), VIRTUAL),
        ]


def simulate(
    gpus: int, parameters: int, compute: int, bucket: int | str, outputs: int, link: str, peer: bool, moment: int
) -> Step:
    """One step of `gpus` GPUs on a model of so many million `parameters`, whose gradients have 4 bytes each.

    `compute` is forward and backward on one GPU in ms, `bucket` DDP's `bucket_cap_mb` in MiB or "all", `outputs` what
    a GPU's forward returns, in MiB; `moment` is the part of the step that has passed, in percent.
    """
    gradients = 4 * parameters * 10**6
    work = Work(
        gradient_bytes=gradients,
        compute=compute / 1000,
        bucket_bytes=gradients if isinstance(bucket, str) else bucket * 2**20,
        output_bytes=outputs * 2**20,
        link=LINKS[link],
        peer=peer,
    )
    return Step(gpus, work, ddp(work, gpus), data_parallel(work, gpus), moment)

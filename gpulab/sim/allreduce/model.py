"""How long N GPUs take to agree on gradients: DDP's ring, bucket by bucket beside backward, and DataParallel.

Pure numbers: links, the ring all-reduce, the two kinds of training step. It draws nothing and knows no controls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from virtualgpu.clock.rates import published_rates
from virtualgpu.gpus.specs import PCIE3, spec

MOST_GPUS = 16
BUCKETS: dict[int | str, str] = {
    1: "1 MiB",
    5: "5 MiB",
    25: "25 MiB",
    100: "100 MiB",
    400: "400 MiB",
    "all": "one for all",
}

# Latency of NCCL's ring, protocol Simple, in its own cost model (src/graph/tuning.cc): once, and for each hop.
ONCE_US = 8.4
NVLINK_US, PCIE_US, NETWORK_US = 3.4, 5.7, 14.0
# torch.nn.parallel copies weights out, and adds gradients up, in pieces of this size.
DATA_PARALLEL_PIECE = 10 * 2**20
FORWARD = 1 / 3  # of the computing: backward makes two products where forward makes one


@dataclass(frozen=True)
class Link:
    """How one GPU's bytes reach the next: the vendor's rate one way, and what is reached, in 10⁹ bytes per second.

    `staged_gbps` is reached where GPUs may not reach each other: over PCIe into host memory and out of it again, taken
    as half of one such copy. It is None between machines, where one process cannot be.
    """

    words: str
    one_way_gbps: float
    reached_gbps: float
    staged_gbps: float | None
    hop_us: float

    def gbps(self, peer: bool) -> float:
        return self.reached_gbps if peer or self.staged_gbps is None else self.staged_gbps

    def hop(self, peer: bool) -> float:
        """Seconds before the first byte has gone one hop."""
        staged = not peer and self.staged_gbps is not None
        return (2 * PCIE_US if staged else self.hop_us) * 1e-6


def _nvlink(gpu: str) -> Link:
    link = spec(gpu).gpu_link
    assert link is not None
    rates = published_rates(spec(gpu))
    name = f"{link.name} ({gpu.split('-')[0]})"
    return Link(name, link.one_way_gbps, rates.peer_gbps, rates.pinned_gbps / 2, NVLINK_US)


def _pcie(gpu: str) -> Link:
    link = spec(gpu).host_link
    assert link is not None
    rate = published_rates(spec(gpu)).pinned_gbps
    return Link(link.name, link.one_way_gbps, rate, rate / 2, PCIE_US)


def _ethernet(gbits: int) -> Link:
    # the same part of the rate as on PCIe: an assumption
    part = published_rates(spec("T4")).pinned_gbps / PCIE3.one_way_gbps
    return Link(f"Ethernet {gbits} Gbit/s", gbits / 8, gbits / 8 * part, None, NETWORK_US)


LINKS: Mapping[str, Link] = MappingProxyType(
    {
        "nvlink5": _nvlink("B200"),
        "nvlink4": _nvlink("H100"),
        "nvlink3": _nvlink("A100-80"),
        "nvlink2": _nvlink("V100-32"),
        "pcie5": _pcie("H100"),
        "pcie4": _pcie("L4"),
        "pcie3": _pcie("T4"),
        "ethernet100": _ethernet(100),
        "ethernet25": _ethernet(25),
        "ethernet10": _ethernet(10),
    }
)


def hops(gpus: int) -> int:
    """How often a piece is handed on in a ring all-reduce: N - 1 times to be summed, N - 1 times to be spread."""
    return 2 * (gpus - 1)


def sent_bytes(nbytes: float, gpus: int) -> float:
    """What each GPU sends, and receives, to all-reduce `nbytes`: 2(N - 1)/N of them."""
    return hops(gpus) * nbytes / gpus


def held(gpu: int, piece: int, gpus: int, done: int) -> int:
    """Of how many GPUs the gradients are in `piece` of `gpu`'s bucket, after `done` hops.

    Piece p starts on GPU p and grows along the ring; GPU p - 1 is the last to add its part, and sends the sum round.
    """
    along = (gpu - piece) % gpus
    summed = along + 1 if along <= done else 1
    spread = (gpu - piece + 1) % gpus
    return gpus if spread <= done - (gpus - 1) else summed


def sends(gpu: int, gpus: int, done: int) -> int:
    """The piece that `gpu` hands to the next one in the hop that follows `done` hops."""
    return (gpu - done) % gpus if done < gpus - 1 else (gpu + 1 - (done - (gpus - 1))) % gpus


@dataclass(frozen=True)
class Work:
    """What every GPU has to do in a step, and how it reaches the others. Times in seconds."""

    gradient_bytes: int
    compute: float
    bucket_bytes: int
    output_bytes: int
    link: Link
    peer: bool

    @property
    def forward(self) -> float:
        return self.compute * FORWARD

    @property
    def rate(self) -> float:
        """Bytes per second, one way."""
        return self.link.gbps(self.peer) * 1e9

    @property
    def buckets(self) -> int:
        return math.ceil(self.gradient_bytes / self.bucket_bytes)

    @property
    def last_bytes(self) -> int:
        """What the last bucket holds: the rest."""
        return self.gradient_bytes - (self.buckets - 1) * self.bucket_bytes

    def latency(self, gpus: int) -> float:
        """The part of one all-reduce that does not depend on its bytes."""
        return ONCE_US * 1e-6 + hops(gpus) * self.link.hop(self.peer)

    def ring(self, nbytes: float, gpus: int) -> float:
        """One all-reduce of `nbytes`."""
        return self.latency(gpus) + sent_bytes(nbytes, gpus) / self.rate if gpus > 1 else 0.0

    def ready(self, bucket: int) -> float:
        """When backward has the last gradient of this bucket; it makes gradients at an even rate."""
        made = (bucket + 1) * self.bucket_bytes
        if made >= self.gradient_bytes:
            return self.compute
        return self.forward + (self.compute - self.forward) * made / self.gradient_bytes


class Bucket(NamedTuple):
    """When a bucket's gradients are there, and when the ring works on it."""

    ready: float
    start: float
    end: float


def ddp(work: Work, gpus: int) -> tuple[Bucket, ...]:
    """Every bucket of a DDP step, one after another through the ring."""
    whole, rest = work.ring(work.bucket_bytes, gpus), work.ring(work.last_bytes, gpus)
    done, last, buckets = 0.0, work.buckets - 1, []
    for index in range(work.buckets):
        ready = work.ready(index)
        start = max(ready, done)
        done = start + (rest if index == last else whole)
        buckets.append(Bucket(ready, start, done))
    return tuple(buckets)


def ddp_seconds(work: Work, gpus: int) -> float:
    """A DDP step: the end of its last bucket, without going through the others.

    Buckets of one size come at an even rate, so the ring is late by what it fell behind from the first of them on, or
    from the last but one, or from the last.
    """
    if gpus == 1:
        return work.compute
    whole, rest, number = work.ring(work.bucket_bytes, gpus), work.ring(work.last_bytes, gpus), work.buckets
    ends = [work.ready(number - 1) + rest]
    if number > 1:
        ends += [work.ready(0) + (number - 1) * whole + rest, work.ready(number - 2) + whole + rest]
    return max(ends)


class Copies(NamedTuple):
    """A DataParallel step, each part after the other: nothing of it overlaps."""

    weights: float  # from GPU 0 to all
    outputs: float  # from all to GPU 0, where the loss is computed
    output_gradients: float  # back to where the outputs came from
    gradients: float  # from all to GPU 0, summed


def data_parallel(work: Work, gpus: int) -> Copies | None:
    """What DataParallel copies in a step, in seconds; None where its one process cannot reach all GPUs.

    NCCL passes weights and gradients along a chain of GPUs, so that every link carries them once; outputs reach GPU 0
    from each of the others over its one link.
    """
    if work.link.staged_gbps is None and gpus > 1:
        return None
    if gpus == 1:
        return Copies(0.0, 0.0, 0.0, 0.0)
    pieces = math.ceil(work.gradient_bytes / DATA_PARALLEL_PIECE)
    chain = work.gradient_bytes / work.rate + pieces * (ONCE_US * 1e-6 + (gpus - 1) * work.link.hop(work.peer))
    gather = (gpus - 1) * (work.output_bytes / work.rate + work.link.hop(work.peer))
    return Copies(chain, gather, gather, chain)


def data_parallel_seconds(work: Work, gpus: int) -> float | None:
    copies = data_parallel(work, gpus)
    return None if copies is None else work.compute + sum(copies)

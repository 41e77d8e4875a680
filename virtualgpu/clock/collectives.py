"""Duration of NCCL collectives on a topology: NCCL's own cost model, plus a term from its measured curves.

NCCL estimates latency and bandwidth of each algorithm and protocol, and takes the fastest (NCCL 2.30,
`src/graph/tuning.cc`): the constants below are its tables. Simplified: a bandwidth is the link's, not one of the
steps that NCCL's search of rings tries; the network never sums; ranks of a group that are spread unevenly over
machines count as the machine with most of them. Added: the first chunk of every channel is not overlapped
(`Link.chunk`). Times are those of the kernel on the GPU; Python and the driver, which start it, are the host's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .links import Network, Topology

KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "gather",
    "scatter",
    "send",
    "barrier",
)
PROTOCOLS = ("LL", "LL128", "Simple")

# Microseconds by protocol: baseLatencies; hwLatencies of a step over NVLink, PCIe and the network.
_BASE = {"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4)}
_STEP = {
    "NVLink": {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4)},
    "PCIe": {"tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7)},
    "network": {"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0)},
}
_SWITCH_US, _SWITCH_NETWORK_US = 25.0, 20.9  # hwLatencies of NVLS within a machine, of NVLSTree between them
_POST_US = 1.0  # getNetOverhead: posting to an adapter with a processor of Intel
_PLATEAU = 1.4  # a Simple ring between machines; 1.9 before capability 8.0, which is left out
_PEER_US = 0.4  # one more peer of a rank that sends to several: NCCL's "arity serialization"
_NETWORK_LL_GBPS = (39.0, 20.4)  # llMaxBws with processors of Intel: two machines, more
# treeCorrectionFactor of LL, LL128 and Simple at 64 B, 128 B, ... 256 MiB, and none from 512 MiB on; here by straight
# lines between them.
_TREE = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    (*(0.9,) * 7, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 1),
)
# Part of the link's bandwidth that sends reach: 0.81 (A100) to 0.91 (B200) in published runs; an assumption between.
_SEND = 0.9
# A group of one: nccl-tests on one GPU measures 3.7 to 4.9 µs out of place (V100, 3090, A10G), whatever the few bytes.
_ALONE = 4e-6
# threadThresholds: no channel is opened for less than 64 bytes of each of its 512 threads. The other protocols' bounds
# are near it or below.
_PER_CHANNEL = 64 * 512


@dataclass(frozen=True)
class Choice:
    """The algorithm of a collective and its time: "ring", "tree", "in-switch" (NVLS), "in-switch tree" (NVLSTree),
    "direct" (sends) or "copy"."""

    algorithm: str
    protocol: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.algorithm}, {self.protocol}" if self.protocol else self.algorithm


@dataclass(frozen=True)
class _Group:
    """A process group's shape: n ranks on some machines, at most `local` on one."""

    n: int
    nodes: int
    local: int


@lru_cache(1024)
def _group(ranks: tuple[int, ...], topology: Topology) -> _Group:
    if not ranks:
        raise ValueError("ranks is empty; a process group has at least one rank")
    for rank in ranks:
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < topology.ranks:
            raise ValueError(
                f"ranks has {rank!r}; it must hold numbers from 0 to {topology.ranks - 1} ({topology.describe()})"
            )
    if len(set(ranks)) < len(ranks):
        raise ValueError(f"ranks is {list(ranks)}; it may hold each rank only once")
    per = Counter(rank // topology.per_node for rank in ranks)
    return _Group(len(ranks), len(per), max(per.values()))


def _check(kind: str, nbytes: int) -> None:
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(KINDS)}")
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
        raise ValueError(f"nbytes is {nbytes!r}; it must be a whole number of bytes, 0 or more")


def _between(group: _Group, topology: Topology) -> float:
    """Return the GB/s out of a machine for a group's ranks there: their adapters', limited by their links."""
    network = _of(topology)
    used = max(1, min(network.adapters, round(network.adapters * group.local / topology.per_node)))
    return min(used * network.gbps, group.local * topology.link.within(2))


def _of(topology: Topology) -> Network:
    if topology.network is None:
        raise ValueError(f"topology has {topology.nodes} nodes and no network")
    return topology.network


def _fill(nbytes: int, channels: int, group: _Group, topology: Topology) -> float:
    """Return the bytes that count twice: the first chunk of each channel overlaps with no other."""
    chunks = channels * group.local * topology.link.chunk
    return nbytes * chunks / (nbytes + chunks) if chunks else 0.0


def _ring(kind: str, nbytes: int, group: _Group, topology: Topology) -> Iterator[Choice]:
    link, n = topology.link, group.n
    step = _STEP["NVLink" if link.nvlink else "PCIe"]["ring"]
    # A rank sends (n - 1)/n of the bytes in n - 1 steps, twice if it reduces and gathers; all of them in a chain.
    passes = {"all_reduce": 2 * (n - 1), "all_gather": n - 1, "reduce_scatter": n - 1}.get(kind, n)
    inside = link.within(group.local) if group.local > 1 else math.inf
    bus = inside if group.nodes == 1 else min(inside, _between(group, topology))
    for p, protocol in enumerate(PROTOCOLS):
        if protocol == "LL128" and not link.nvlink:
            continue
        cap = link.ll_gbps if group.nodes == 1 else _NETWORK_LL_GBPS[group.nodes > 2]
        gbps = (min(bus / 2, cap), bus * 0.92, bus)[p]
        if kind in ("broadcast", "reduce"):
            # Through a switch the steps of a chain follow each other at once.
            hop = _STEP["network"]["ring"][p] if group.nodes > 1 else step[p]
            latency = hop if link.kind == "NVSwitch" and group.nodes == 1 else n * hop
        else:
            crossing = 0 if group.nodes == 1 else (group.nodes - 1) * (2 if kind == "all_reduce" else 1)
            post = 0.0 if group.nodes == 1 else _POST_US * (3 if protocol == "Simple" else 1)
            latency = (passes - crossing) * max(step[p], post)
            if crossing:
                which = "tree" if group.local == 1 else "ring"
                latency += crossing * (_STEP["network"][which][p] + _of(topology).latency_us)
        latency += _BASE["ring"][p]
        if group.nodes > 1 and protocol == "Simple" and kind == "all_reduce":
            latency *= _PLATEAU
        # LL sends flags with the data and keeps no chunks; a network that limits the ring hides them.
        fill = 0.0 if protocol == "LL" or group.nodes > 1 else _fill(nbytes, link.channels, group, topology)
        yield Choice("ring", protocol, latency * 1e-6 + (nbytes + fill) * passes / n / (gbps * 1e9))


def _tree(nbytes: int, group: _Group, topology: Topology) -> Iterator[Choice]:
    link = topology.link
    step = _STEP["NVLink" if link.nvlink else "PCIe"]["tree"]
    inside = link.within(group.local) if group.local > 1 else math.inf
    between = math.inf if group.nodes == 1 else _between(group, topology)
    # Between two machines a byte leaves each once, between more up to twice.
    alg = min(0.92 * inside / 2, between * (1 if group.nodes == 2 else 0.92 / 2))
    place = math.log2(max(nbytes, 64) / 64)
    for p, protocol in enumerate(PROTOCOLS):
        if protocol == "LL128" and not link.nvlink:
            continue
        cap = link.ll_gbps if group.nodes == 1 else _NETWORK_LL_GBPS[group.nodes > 2]
        gbps = (min(alg / 3.8, cap / 2), alg * (7 / 9 if group.nodes == 1 else 120 / 128), alg)[p]
        low = min(int(place), len(_TREE[p]) - 1)
        high = min(low + 1, len(_TREE[p]) - 1)
        gbps *= _TREE[p][low] + (_TREE[p][high] - _TREE[p][low]) * min(1.0, place - low)
        latency = _BASE["tree"][p] + 2 * (group.local - 1) * step[p]
        if group.nodes > 1:
            hop = _STEP["network"]["tree"][p] + _of(topology).latency_us * (2 if protocol == "Simple" else 1)
            latency += 2 * math.ceil(math.log2(group.nodes)) * hop
        yield Choice("tree", protocol, latency * 1e-6 + nbytes / (gbps * 1e9))


def _in_switch(nbytes: int, group: _Group, topology: Topology) -> Iterator[Choice]:
    """Sum inside the switch; between machines, combine the sums along a tree."""
    link = topology.link
    if not link.switch or group.local < 2:
        return
    gbps = link.gbps * link.switch * (group.local - 1) / group.local
    latency, name = _SWITCH_US, "in-switch"
    if group.nodes > 1:
        name = "in-switch tree"
        hop = _SWITCH_NETWORK_US + 2 * _of(topology).latency_us
        latency += 2 * math.ceil(math.log2(group.nodes)) * hop
        half = group.n / (2 * (group.n - 1))
        cap = link.switch_caps[group.nodes > 2] * group.local
        gbps = min(gbps, half * min(cap, _between(group, topology) * (2 if group.nodes == 2 else 1)))
    fill = _fill(nbytes, link.switch_channels, group, topology)
    yield Choice(name, "Simple", latency * 1e-6 + (nbytes + fill) / (gbps * 1e9))


def _sends(kind: str, nbytes: int, group: _Group, topology: Topology) -> Iterator[Choice]:
    """Send messages from rank to rank, all at once: the busiest rank decides."""
    link, n = topology.link, group.n
    near, far = (group.local - 1) / n, (n - group.local) / n
    if kind == "send":
        near, far = (1.0, 0.0) if group.nodes == 1 else (0.0, 1.0)
    rate = math.inf
    if far:
        network = _of(topology)
        alone = max(1, network.adapters // topology.per_node) * network.gbps
        rate = _between(group, topology) / group.local if kind == "all_to_all" else alone
        rate = min(rate, link.within(2))
    for p, protocol in enumerate(PROTOCOLS):
        if protocol == "LL128":
            continue
        hop = _STEP["network" if far else "NVLink" if link.nvlink else "PCIe"]["ring"][p]
        peers = 1 if kind == "send" else n - 1
        latency = _BASE["ring"][p] + hop + (peers - 1) * _PEER_US
        share = 0.5 if protocol == "LL" else _SEND
        gbps = link.within(n if group.nodes == 1 else group.local)
        moved = near / gbps + (far / rate if far else 0.0)
        yield Choice("direct", protocol, latency * 1e-6 + nbytes * moved / share / 1e9)


@lru_cache(4096)
def _choice(kind: str, nbytes: int, group: _Group, topology: Topology) -> Choice:
    if group.n == 1:
        return Choice("copy", "", _ALONE)
    if kind in ("all_to_all", "gather", "scatter", "send"):
        return min(_sends(kind, nbytes, group, topology), key=lambda way: way.seconds)
    ways = list(_ring(kind, nbytes, group, topology))
    if kind == "all_reduce":
        ways += [*_tree(nbytes, group, topology), *_in_switch(nbytes, group, topology)]
    return min(ways, key=lambda way: way.seconds)


def choice(kind: str, nbytes: int, ranks: Sequence[int], topology: Topology) -> Choice:
    """Return the fastest algorithm and protocol, with their time; arguments and errors as `seconds`."""
    _check(kind, nbytes)
    group = _group(tuple(ranks), topology)
    if kind == "send" and group.n > 2:
        raise ValueError(f"ranks is {list(ranks)}; a send has two ranks, the sender and the receiver")
    # PyTorch's barrier on NCCL is an all-reduce of one element.
    return _choice(*(("all_reduce", 4) if kind == "barrier" else (kind, nbytes)), group, topology)


def seconds(kind: str, nbytes: int, ranks: Sequence[int], topology: Topology) -> float:
    """Return the seconds of one collective on the GPUs, from the arrival of the last rank on.

    `nbytes` as nccl-tests count them: a rank's buffer for all_reduce, broadcast and reduce; all that a rank has in the
    end for all_gather; all that it had for reduce_scatter and all_to_all; all of the root for gather and scatter; the
    message for send; nothing for barrier. `ranks`: the process group's global ranks, of which rank r sits in machine
    r // per_node. Raises ValueError for anything else.
    """
    return choice(kind, nbytes, ranks, topology).seconds


def sms(kind: str, nbytes: int, ranks: Sequence[int], topology: Topology) -> int:
    """Return the number of SMs that the collective occupies: each channel is a block that stays on one SM."""
    way = choice(kind, nbytes, ranks, topology)
    if way.algorithm == "copy":
        return 0
    link = topology.link
    channels = link.switch_channels if way.algorithm.startswith("in-switch") else link.channels
    return max(1, min(channels, math.ceil(nbytes / _PER_CHANNEL)))


def bus_bandwidth(kind: str, nbytes: int, seconds: float, n: int) -> float:
    """Return the GB/s as nccl-tests report them (doc/PERFORMANCE.md): a link's, whatever the number of ranks `n`."""
    _check(kind, nbytes)
    if kind == "barrier":
        raise ValueError("kind is 'barrier', which moves no data and has no bandwidth")
    if not 0 < seconds < math.inf:
        raise ValueError(f"seconds is {seconds!r}; it must be a number above 0")
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n is {n!r}; it must be the number of ranks, 1 or more")
    factor = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1.0, "reduce": 1.0, "send": 1.0}.get(kind, (n - 1) / n)
    return nbytes / seconds / 1e9 * factor

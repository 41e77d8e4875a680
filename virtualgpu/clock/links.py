"""Interconnects between GPUs: NVLink and PCIe within a machine, networks between machines, common machine types.

Bandwidths are those that copy kernels reach, not the wire's: an SM sends 128 bytes at a time, so of the 25 GB/s of an
NVLink 3 about 20 are left (nccl-tests issue 149). Unless a source says otherwise the figures are NCCL 2.30's own,
`src/graph/topo.h` and `src/graph/tuning.cc`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ..gpus.specs import spec


@dataclass(frozen=True)
class Link:
    """The interconnect of the GPUs of one machine.

    `gbps`: GB/s of a GPU in one direction; `few`: pairs of a number of GPUs and the GB/s of a group of at most so many,
    where not every GPU is joined to every other. `channels`: blocks, so SMs, that a large collective runs on.
    `chunk`: bytes of a channel and rank that are not overlapped with the next (`collectives`), 0 where none were seen.
    `ll_gbps`: the most that protocol LL carries. `switch`: efficiency of a sum inside the switch (NVLS), 0 where it
    cannot, with `switch_channels` and, between two and more machines, `switch_caps` in GB/s per channel. `most`: GPUs
    that a machine holds; `gpus`: the names of those that have the link, all if empty.
    """

    name: str
    kind: str
    gbps: float
    channels: int
    source: str
    most: int = 16
    few: tuple[tuple[int, float], ...] = ()
    chunk: int = 0
    ll_gbps: float = 39.0
    switch: float = 0.0
    switch_channels: int = 0
    switch_caps: tuple[float, float] = (0.0, 0.0)
    gpus: tuple[str, ...] = ()

    @property
    def nvlink(self) -> bool:
        return self.kind in ("NVLink", "NVSwitch")

    def within(self, ranks: int) -> float:
        """Return the GB/s of one GPU and direction in a group of `ranks`."""
        return next((gbps for most, gbps in self.few if ranks <= most), self.gbps)


@dataclass(frozen=True)
class Network:
    """The network between machines: `gbps` of an adapter and direction, `adapters` per machine, the wire's latency."""

    name: str
    gbps: float
    adapters: int
    source: str
    latency_us: float = 0.0


@dataclass(frozen=True)
class Topology:
    """`nodes` machines of `per_node` GPUs; rank r is GPU r % per_node of machine r // per_node."""

    gpu: str
    link: Link
    network: Network | None
    per_node: int
    nodes: int

    @property
    def ranks(self) -> int:
        return self.per_node * self.nodes

    def describe(self) -> str:
        """Describe the topology in one line."""
        if self.ranks == 1:
            return f"1 x {self.gpu}"
        if self.network is None:
            return f"{self.per_node} x {self.gpu}, {self.link.name}"
        inside = f", {self.link.name}" if self.per_node > 1 else ""
        one = self.network.adapters == 1
        adapters = "one adapter" if one else f"{self.network.adapters} adapters"
        rate = f"{self.network.gbps:g} GB/s" + ("" if one else " each")
        return f"{self.nodes} nodes of {self.per_node} x {self.gpu}{inside}; {adapters} of {rate} ({self.network.name})"


@dataclass(frozen=True)
class Machine:
    """A common machine, or several: the GPU's name as in `gpus.specs`, and their topology."""

    gpu: str
    topology: Topology


# 128 KiB is NCCL's chunk of an in-switch collective (`src/transport/nvls.cc`). That rings through a switch lose as much
# was read off published curves, of 8 x H200 in-switch and 8 x A100 by ring; 8 x V100 without a switch do not.
_CHUNK = 128 * 1024
_SWITCH = Link("NVSwitch", "NVSwitch", 0, 24, "", most=8, chunk=_CHUNK)
_V100 = ("V100-16", "V100-32")
_A100 = ("A100-40", "A100-80")
_HOST = "bytes go into the host's memory and out again, taken to be as fast as NCCL reckons between two processors"
_ROWS = {
    "nvlink2-mesh": Link(
        "NVLink 2, hybrid cube mesh",
        "NVLink",
        6 * 20.0,
        12,
        "SM70_NVLINK_BW; a GPU has six links, four of them to the three others of its half, at most two to one of "
        "them (NVIDIA DGX-1 whitepaper); 12 channels: an assumption, as of the log of two such machines",
        most=8,
        few=((2, 40.0), (4, 80.0)),
        gpus=_V100,
    ),
    "nvswitch-v100": replace(
        _SWITCH,
        name="NVSwitch (NVLink 2)",
        gbps=6 * 20.0,
        channels=12,
        most=16,
        gpus=_V100,
        source="SM70_NVLINK_BW, six links (NVIDIA DGX-2)",
    ),
    "nvswitch-a100": replace(
        _SWITCH,
        name="NVSwitch (NVLink 3)",
        gbps=12 * 20.0,
        ll_gbps=87.7,
        gpus=_A100,
        source="SM80_NVLINK_BW, twelve links; 24 channels: nccl-tests issue 100, 8 x A100",
    ),
    "nvlink3-bridge": Link(
        "NVLink 3, two GPUs joined",
        "NVLink",
        12 * 20.0,
        24,
        "SM80_NVLINK_BW, twelve links (NV12 in nccl-tests issue 178)",
        most=2,
        ll_gbps=87.7,
        gpus=_A100,
    ),
    "nvswitch-h100": replace(
        _SWITCH,
        name="NVSwitch (NVLink 4)",
        gbps=18 * 20.6,
        ll_gbps=141.0,
        switch=0.85,
        switch_channels=16,
        switch_caps=(57.7, 45.5),
        gpus=("H100", "H200"),
        source="SM90_NVLINK_BW, eighteen links; in-switch sums: nvlsEfficiency, NVLS_NCHANNELS_SM90",
    ),
    "nvswitch-b200": replace(
        _SWITCH,
        name="NVSwitch (NVLink 5)",
        gbps=18 * 40.1,
        ll_gbps=282.0,
        switch=0.74,
        switch_channels=24,
        switch_caps=(96.0, 80.0),
        gpus=("B200",),
        source="SM100_NVLINK_BW, eighteen links; in-switch sums: nvlsEfficiency, NVLS_NCHANNELS_SM100_NVL; 24 channels "
        "of a ring: an assumption, as on the generation before",
    ),
    "nvlink4-bridge": Link(
        "NVLink 4 bridges between two GPUs",
        "NVLink",
        6 * 20.6,
        24,
        "nccl issue 1161: 116 GB/s, which is six links of SM90_NVLINK_BW, while the bridges are sold as twelve; why is "
        "not known, so this figure is fitted to that one row",
        most=2,
        ll_gbps=141.0,
        gpus=("H100-PCIE",),
    ),
    "nvlink4-pair": Link(
        "NVLink 4, two GPUs joined",
        "NVLink",
        18 * 20.6,
        24,
        "SM90_NVLINK_BW, eighteen links (NVIDIA GH200 NVL2); no published curve found",
        most=2,
        ll_gbps=141.0,
        gpus=("GH200",),
    ),
    "pcie3": Link("PCIe 3", "PCIe", 12.0, 2, "PCI_BW; two channels: log of nccl issue 428, T4"),
    "pcie4": Link("PCIe 4", "PCIe", 24.0, 4, "twice PCI_BW; four channels: an assumption"),
    "pcie5": Link("PCIe 5", "PCIe", 48.0, 8, "four times PCI_BW; eight channels: an assumption"),
    "pcie3-host": Link("PCIe 3 without peer-to-peer", "PCIe, host", 10.0, 2, f"{_HOST} of Intel (SKL_QPI_BW)"),
    "pcie4-host": Link("PCIe 4 without peer-to-peer", "PCIe, host", 16.0, 4, f"{_HOST} of AMD (AMD_BW)"),
    "pcie5-host": Link(
        "PCIe 5 without peer-to-peer",
        "PCIe, host",
        32.0,
        8,
        "twice that of PCIe 4: an assumption; nccl issue 1639 has 28 GB/s of 8 x 5090",
    ),
}
LINKS: Mapping[str, Link] = MappingProxyType(_ROWS)

# GeForce boards answer that they cannot access a peer over PCIe (published output of p2pBandwidthLatencyTest: 2080 Ti,
# 4090); for the 3060, 3090 and 5090 that is an assumption. The 3090's NVLink bridge is left out, as in `gpus.specs`.
_USUAL = {
    **dict.fromkeys(_V100, "nvlink2-mesh"),
    **dict.fromkeys(_A100, "nvswitch-a100"),
    **dict.fromkeys(("H100", "H200"), "nvswitch-h100"),
    "B200": "nvswitch-b200",
    "GH200": "nvlink4-pair",
    "H100-PCIE": "pcie5",
    "T4": "pcie3",
    **dict.fromkeys(("A10G", "L4", "L40S"), "pcie4"),
    **dict.fromkeys(("RTX3060", "RTX3090", "RTX4090"), "pcie4-host"),
    "RTX5090": "pcie5-host",
    **dict.fromkeys(("RTXPRO6000", "RTXPRO6000-MAXQ"), "pcie5"),
}
_NVIDIA = (
    "NVIDIA's engineers name 12 GB/s for 100 Gb/s and 24 for 200 (nccl-tests issue 119), 46-48 for 400 (issue 290)"
)
NETWORKS: Mapping[str, Network] = MappingProxyType(
    {
        "100G": Network("100 Gb/s", 12.0, 1, _NVIDIA),
        "EDR": Network("InfiniBand EDR", 12.0, 4, f"{_NVIDIA}; four in a DGX-1"),
        "HDR": Network("InfiniBand HDR", 24.0, 8, f"{_NVIDIA}; eight in a DGX A100"),
        "NDR": Network("InfiniBand NDR", 48.0, 8, f"{_NVIDIA}; eight in a DGX H100"),
        # The latency is fitted to one row, 32 KiB between 4 x 8 B200, which take 97 µs.
        "EFA": Network("EFA, 400 Gb/s", 48.0, 8, f"{_NVIDIA}; latency: fitted to one published row", latency_us=15.5),
        "10G": Network("10 Gb/s Ethernet", 1.2, 1, "4 % below the wire, as with 100 Gb/s: an assumption"),
    }
)
_ADAPTERS = {**dict.fromkeys(_V100, "EDR"), **dict.fromkeys(_A100, "HDR")} | dict.fromkeys(
    ("H100", "H200", "GH200", "H100-PCIE", "B200"), "NDR"
)


def _network(gpu: str, adapters: int | str | None, nodes: int) -> Network | None:
    if nodes == 1:
        if adapters is not None:
            raise ValueError(
                f"adapters is {adapters!r}; a single machine uses none: nodes must be 2 or more, or no adapters"
            )
        return None
    usual = NETWORKS[_ADAPTERS.get(gpu, "100G")]
    if adapters is None:
        return usual
    if isinstance(adapters, str):
        found = re.fullmatch(r"(?:(\d+) ?x ?)?(\w+)", adapters)
        if found and found[2] in NETWORKS and (found[1] is None or 1 <= int(found[1]) <= 64):
            network = NETWORKS[found[2]]
            return network if found[1] is None else replace(network, adapters=int(found[1]))
    elif isinstance(adapters, int) and not isinstance(adapters, bool) and 1 <= adapters <= 64:
        return replace(usual, adapters=adapters)
    raise ValueError(
        f"adapters is {adapters!r}; it must be how many a machine has (1 to 64), a network ({', '.join(NETWORKS)}), or "
        "both, such as '4 x HDR'"
    )


def topology(
    gpu: str, *, ranks: int, link: str | None = None, nodes: int = 1, adapters: int | str | None = None
) -> Topology:
    """Return the usual machine with this GPU, or `nodes` of them that share `ranks` evenly.

    `link`: a name in `LINKS` instead of the usual one; `adapters`: how many a machine has, which network (a name in
    `NETWORKS`), or both ("4 x HDR"). Raises ValueError for a name that is not known, a link that the GPU does not have,
    and numbers that do not go together.
    """
    spec(gpu)
    for argument, value in (("ranks", ranks), ("nodes", nodes)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{argument} is {value!r}; it must be a whole number of at least 1")
    if link is not None and link not in LINKS:
        raise ValueError(f"link is {link!r}; known links: {', '.join(LINKS)}")
    found = LINKS[link or _USUAL[gpu]]
    if found.gpus and gpu not in found.gpus:
        raise ValueError(f"link is {link!r}, which {gpu} does not have; the usual one is {_USUAL[gpu]!r}")
    if ranks % nodes:
        raise ValueError(f"nodes is {nodes}; it must divide the {ranks} ranks, so that every machine has as many")
    if ranks // nodes > found.most:
        right = next(n for n in range(1, ranks + 1) if ranks % n == 0 and ranks // n <= found.most)
        raise ValueError(
            f"ranks is {ranks} in {nodes} node{'s'[: nodes > 1]}; {found.name} joins at most {found.most} {gpu} in a "
            f"machine: nodes={right}, for example"
        )
    return Topology(gpu, found, _network(gpu, adapters, nodes), ranks // nodes, nodes)


def _machine(gpu: str, ranks: int, nodes: int = 1, adapters: int | None = None) -> Machine:
    return Machine(gpu, topology(gpu, ranks=ranks, nodes=nodes, adapters=adapters))


MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        "8xV100": _machine("V100-16", 8),
        "8xA100": _machine("A100-80", 8),
        "8xH100": _machine("H100", 8),
        "8xH200": _machine("H200", 8),
        "8xB200": _machine("B200", 8),
        "4xT4": _machine("T4", 4),
        "4xA10G": _machine("A10G", 4),
        "8xL40S": _machine("L40S", 8),
        "2xRTX3090": _machine("RTX3090", 2),
        "8xRTX4090": _machine("RTX4090", 8),
        "2x8xA100": _machine("A100-80", 16, nodes=2),
        "2x8xH100": _machine("H100", 16, nodes=2),
        "2x8xH100, one adapter": _machine("H100", 16, nodes=2, adapters=1),
    }
)

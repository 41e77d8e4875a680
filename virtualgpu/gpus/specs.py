"""Data sheet values of each GPU model, and the memory size that its driver reports.

Peak rates are dense (no sparsity) and never reached. A value that no page of the vendor and no output of its tools
was found for is None, and nothing may be computed from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_MiB = 1 << 20


@dataclass(frozen=True)
class Link:
    """A connection; the vendor gives `both_ways_gbps`, the sum of both directions, in 10⁹ bytes per second."""

    name: str
    both_ways_gbps: float

    @property
    def one_way_gbps(self) -> float:
        return self.both_ways_gbps / 2


PCIE3, PCIE4, PCIE5 = Link("PCIe 3 x16", 32), Link("PCIe 4 x16", 64), Link("PCIe 5 x16", 128)


@dataclass(frozen=True)
class Spec:
    """One GPU.

    `product` is what `torch.cuda.get_device_name` answers; `tflops` maps "fp32", "tf32", "fp16", "bf16" to the peak
    in 10¹² operations per second (products accumulated in fp32); `memory_gb` is the figure it is sold under, which is
    nearer to GiB than to 10⁹ bytes; `memory_bytes` what CUDA can see, which changes by a few percent with the driver,
    and by a sixteenth on GDDR memory with ECC. `l2_bytes` is the second-level cache, `watts` the board's power limit.
    """

    name: str
    product: str
    capability: tuple[int, int]
    sms: int
    fp32_lanes: int
    tflops: Mapping[str, float | None]
    memory_gb: int
    memory_bytes: int
    bandwidth_gbps: float
    l2_bytes: int
    watts: int
    host_link: Link | None
    gpu_link: Link | None
    source: str

    def has(self, dtype: str) -> bool:
        """Return True if there is hardware for `dtype`; TF32 and bf16 came with capability 8.0."""
        if dtype not in self.tflops:
            raise ValueError(f"dtype is {dtype!r}; it must be one of {', '.join(self.tflops)}")
        return dtype in ("fp32", "fp16") or self.capability >= (8, 0)


def _tflops(fp32: float, tf32: float | None, fp16: float, bf16: float | None) -> Mapping[str, float | None]:
    return MappingProxyType({"fp32": fp32, "tf32": tf32, "fp16": fp16, "bf16": bf16})


_ROWS = (
    Spec(
        name="T4",
        product="Tesla T4",
        capability=(7, 5),
        sms=40,
        fp32_lanes=2560,
        tflops=_tflops(8.1, None, 65, None),
        memory_gb=16,
        memory_bytes=15_828_320_256,
        bandwidth_gbps=320,
        l2_bytes=4 * _MiB,
        watts=70,
        host_link=PCIE3,
        gpu_link=None,
        source="NVIDIA T4 datasheet; memory: cudaMemGetInfo on Google Colab, driver for CUDA 12.4",
    ),
    Spec(
        name="RTX3060",
        product="NVIDIA GeForce RTX 3060",
        capability=(8, 6),
        sms=28,
        fp32_lanes=3584,
        # Not found on a page of NVIDIA: the TF32 rate.
        tflops=_tflops(12.7, None, 25, 25),
        memory_gb=12,
        memory_bytes=12_587_106_304,
        bandwidth_gbps=360,
        l2_bytes=2_359_296,
        watts=170,
        host_link=PCIE4,
        gpu_link=None,
        source="NVIDIA's deviceQuery (SMs, lanes, memory, CUDA 12.4 driver); fp32: 2 operations x lanes x 1.777 "
        "GHz; fp16: NVIDIA GA10x tensor cores, twice the fp32 rate",
    ),
    Spec(
        name="RTX3090",
        product="NVIDIA GeForce RTX 3090",
        capability=(8, 6),
        sms=82,
        fp32_lanes=10496,
        # Not found on a page of NVIDIA: the TF32 rate.
        tflops=_tflops(35.6, None, 71, 71),
        memory_gb=24,
        memory_bytes=25_414_860_800,
        bandwidth_gbps=936,
        l2_bytes=6 * _MiB,
        watts=350,
        host_link=PCIE4,
        gpu_link=None,
        source="NVIDIA GA102 whitepaper; NVIDIA's deviceQuery (SMs, lanes, L2, memory, CUDA 12.1 driver). Two "
        "boards can be joined by an NVLink bridge, which is left out",
    ),
    Spec(
        name="A10G",
        product="NVIDIA A10G",
        capability=(8, 6),
        sms=80,
        fp32_lanes=10240,
        # Not found on a page of NVIDIA or AWS: any rate, and the host's link (taken to be PCIe 4).
        tflops=_tflops(35, None, 70, 70),
        memory_gb=24,
        memory_bytes=22587 * _MiB,
        bandwidth_gbps=600,
        l2_bytes=6 * _MiB,
        watts=300,
        host_link=PCIE4,
        gpu_link=None,
        source="torch's device properties (SMs, L2, memory, CUDA 13.0 driver); nvidia-smi (watts); rates: the "
        "GA102's, 128 lanes x 2 and 512 operations on tensor cores per SM and clock at 1.71 GHz, and 69.5 "
        "measured (zzc0721/torch-performance-test-data); bandwidth: as sold",
    ),
    Spec(
        name="RTX4090",
        product="NVIDIA GeForce RTX 4090",
        capability=(8, 9),
        sms=128,
        fp32_lanes=16384,
        # Not found on a page of NVIDIA: the TF32 rate.
        tflops=_tflops(82.6, None, 165, 165),
        memory_gb=24,
        memory_bytes=25_250_627_584,
        bandwidth_gbps=1008,
        l2_bytes=72 * _MiB,
        watts=450,
        host_link=PCIE4,
        gpu_link=None,
        source="NVIDIA Ada GPU architecture whitepaper; NVIDIA's deviceQuery (SMs, lanes, memory, CUDA 13.0 driver)",
    ),
    Spec(
        name="L4",
        product="NVIDIA L4",
        capability=(8, 9),
        sms=58,
        fp32_lanes=7424,
        tflops=_tflops(30.3, 60, 121, 121),
        memory_gb=24,
        memory_bytes=23_612_293_120,
        bandwidth_gbps=300,
        l2_bytes=48 * _MiB,
        watts=72,
        host_link=PCIE4,
        gpu_link=None,
        source="NVIDIA L4 datasheet (its tensor rates, halved: they are with sparsity); NVIDIA's deviceQuery "
        "(SMs, lanes, memory, CUDA 12.0 driver)",
    ),
    Spec(
        name="L40S",
        product="NVIDIA L40S",
        capability=(8, 9),
        sms=142,
        fp32_lanes=18176,
        tflops=_tflops(91.6, 183, 362, 362),
        memory_gb=48,
        memory_bytes=47_576_711_168,
        bandwidth_gbps=864,
        l2_bytes=96 * _MiB,
        watts=350,
        host_link=PCIE4,
        gpu_link=None,
        source="NVIDIA L40S datasheet (its tensor rates, halved: they are with sparsity); NVIDIA's deviceQuery "
        "(SMs, lanes, L2, memory, CUDA 12.4 driver)",
    ),
    Spec(
        name="V100-16",
        product="Tesla V100-SXM2-16GB",
        capability=(7, 0),
        sms=80,
        fp32_lanes=5120,
        tflops=_tflops(15.7, None, 125, None),
        memory_gb=16,
        memory_bytes=16_945_512_448,
        bandwidth_gbps=900,
        l2_bytes=6 * _MiB,
        watts=300,
        host_link=PCIE3,
        gpu_link=Link("NVLink 2", 300),
        source="NVIDIA V100 datasheet; memory: NVIDIA's deviceQuery, CUDA 10.2 driver",
    ),
    Spec(
        name="V100-32",
        product="Tesla V100-SXM2-32GB",
        capability=(7, 0),
        sms=80,
        fp32_lanes=5120,
        tflops=_tflops(15.7, None, 125, None),
        memory_gb=32,
        memory_bytes=34_072_559_616,
        bandwidth_gbps=900,
        l2_bytes=6 * _MiB,
        watts=300,
        host_link=PCIE3,
        gpu_link=Link("NVLink 2", 300),
        source="NVIDIA V100 datasheet; memory: NVIDIA's deviceQuery, CUDA 12.9 driver",
    ),
    Spec(
        name="A100-40",
        product="NVIDIA A100-SXM4-40GB",
        capability=(8, 0),
        sms=108,
        fp32_lanes=6912,
        tflops=_tflops(19.5, 156, 312, 312),
        memory_gb=40,
        memory_bytes=40536 * _MiB,
        bandwidth_gbps=1555,
        l2_bytes=40 * _MiB,
        watts=400,
        host_link=PCIE4,
        gpu_link=Link("NVLink 3", 600),
        source="NVIDIA A100 datasheet; memory, to the MiB: device properties in Paddle's documentation",
    ),
    Spec(
        name="A100-80",
        product="NVIDIA A100-SXM4-80GB",
        capability=(8, 0),
        sms=108,
        fp32_lanes=6912,
        tflops=_tflops(19.5, 156, 312, 312),
        memory_gb=80,
        memory_bytes=85_100_068_864,
        bandwidth_gbps=2039,
        l2_bytes=40 * _MiB,
        watts=400,
        host_link=PCIE4,
        gpu_link=Link("NVLink 3", 600),
        source="NVIDIA A100 datasheet; memory: NVIDIA's deviceQuery, CUDA 12.5 driver",
    ),
    Spec(
        name="H100",
        product="NVIDIA H100 80GB HBM3",
        capability=(9, 0),
        sms=132,
        fp32_lanes=16896,
        tflops=_tflops(67, 494.5, 989, 989),
        memory_gb=80,
        memory_bytes=85_017_755_648,
        bandwidth_gbps=3350,
        l2_bytes=50 * _MiB,
        watts=700,
        host_link=PCIE5,
        gpu_link=Link("NVLink 4", 900),
        source="NVIDIA H100 datasheet (its tensor rates, halved: they are with sparsity); memory: NVIDIA's "
        "deviceQuery, CUDA 13.0 driver",
    ),
    Spec(
        name="H100-PCIE",
        product="NVIDIA H100 PCIe",
        capability=(9, 0),
        sms=114,
        fp32_lanes=14592,
        tflops=_tflops(51, 378, 756, 756),
        memory_gb=80,
        memory_bytes=85_045_477_376,
        bandwidth_gbps=2039,
        l2_bytes=50 * _MiB,
        watts=350,
        host_link=PCIE5,
        gpu_link=None,
        source="NVIDIA H100 datasheet (its tensor rates, halved: they are with sparsity); nvaccelinfo (SMs, L2, "
        "memory, CUDA 12.7 driver). Pairs can be joined by NVLink bridges, which are left out",
    ),
    Spec(
        name="H200",
        product="NVIDIA H200",
        capability=(9, 0),
        sms=132,
        fp32_lanes=16896,
        tflops=_tflops(67, 494.5, 989, 989),
        memory_gb=141,
        memory_bytes=143156 * _MiB,
        bandwidth_gbps=4800,
        l2_bytes=60 * _MiB,
        watts=700,
        host_link=PCIE5,
        gpu_link=Link("NVLink 4", 900),
        source="NVIDIA H200 datasheet (its tensor rates, halved: they are with sparsity); links: NVIDIA's MLPerf "
        "inference 4.1 system file; memory, to the MiB: torch's device properties",
    ),
    Spec(
        name="GH200",
        product="NVIDIA GH200 480GB",
        capability=(9, 0),
        sms=132,
        fp32_lanes=16896,
        tflops=_tflops(67, 494.5, 989, 989),
        memory_gb=96,
        memory_bytes=102_005_473_280,
        bandwidth_gbps=4000,
        l2_bytes=60 * _MiB,
        watts=700,
        host_link=Link("NVLink-C2C", 900),
        gpu_link=None,
        source="NVIDIA GH200 datasheet, 96 GB of HBM3 (tensor rates without sparsity); NVIDIA's deviceQuery "
        "(SMs, lanes, L2, memory, CUDA 12.2 driver); its 700 W are one of the settings that systems have",
    ),
    Spec(
        name="B200",
        product="NVIDIA B200",
        capability=(10, 0),
        sms=148,
        fp32_lanes=18944,
        tflops=_tflops(75, 1125, 2250, 2250),
        memory_gb=180,
        memory_bytes=182642 * _MiB,
        bandwidth_gbps=7700,
        l2_bytes=126 * _MiB,
        watts=1000,
        # The DGX B200 has PCIe 5 processors; which link the GPU has was not found on a page of NVIDIA.
        host_link=None,
        gpu_link=Link("NVLink 5", 1800),
        source="NVIDIA Blackwell datasheet, HGX B200 (as cited by torch's device_info); memory: DGX B200 user "
        "guide, and to the MiB torch's device properties",
    ),
    Spec(
        name="RTX5090",
        product="NVIDIA GeForce RTX 5090",
        capability=(12, 0),
        sms=170,
        fp32_lanes=21760,
        # fp32: 2 operations x lanes x 2.407 GHz. Not found on a page of NVIDIA: the TF32 rate.
        tflops=_tflops(104.8, None, 209.5, 209.5),
        memory_gb=32,
        memory_bytes=33_680_457_728,
        bandwidth_gbps=1792,
        l2_bytes=96 * _MiB,
        watts=575,
        host_link=PCIE5,
        gpu_link=None,
        source="NVIDIA RTX Blackwell whitepaper; NVIDIA's deviceQuery (SMs, lanes, L2, memory)",
    ),
    Spec(
        name="RTXPRO6000",
        product="NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        capability=(12, 0),
        sms=188,
        fp32_lanes=24064,
        # TF32: half of fp16's, as its generation has it; not found on a page of NVIDIA.
        tflops=_tflops(125, 251.9, 503.8, 503.8),
        memory_gb=96,
        memory_bytes=97247 * _MiB,
        bandwidth_gbps=1792,
        l2_bytes=128 * _MiB,
        watts=600,
        host_link=PCIE5,
        gpu_link=None,
        source="NVIDIA RTX Blackwell PRO whitepaper; nvidia-smi (watts); llama.cpp's device list (memory, to the MiB)",
    ),
    Spec(
        name="RTXPRO6000-MAXQ",
        product="NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        capability=(12, 0),
        sms=188,
        fp32_lanes=24064,
        # TF32: half of fp16's, as its generation has it; not found on a page of NVIDIA.
        tflops=_tflops(110, 220, 440, 440),
        memory_gb=96,
        memory_bytes=97247 * _MiB,
        bandwidth_gbps=1792,
        l2_bytes=128 * _MiB,
        watts=300,
        host_link=PCIE5,
        gpu_link=None,
        source="NVIDIA RTX PRO 6000 Blackwell Max-Q datasheet (fp32, bandwidth, watts); fp16: 1024 operations "
        "per SM and clock at 2.288 GHz; memory, to the MiB: llama.cpp's device list",
    ),
)

SPECS: Mapping[str, Spec] = MappingProxyType({row.name: row for row in _ROWS})


# A short list for simulators: one of each group of boards that behave alike.
SHOWN: Mapping[str, Spec] = {
    name: found
    for name, found in SPECS.items()
    if name not in ("A10G", "H100-PCIE", "GH200", "RTXPRO6000", "RTXPRO6000-MAXQ")
}


def spec(name: str) -> Spec:
    """Return the GPU called `name`, such as "T4" or "A100-80"."""
    if name not in SPECS:
        raise ValueError(f"name is {name!r}; known GPUs: {', '.join(SPECS)}")
    return SPECS[name]

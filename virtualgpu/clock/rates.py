"""Achievable rates of a GPU: large matrix products, memory bandwidth, host links, launch latency.

They come from a recording of that GPU in `virtualgpu/recordings/`, else from published figures; `Rates.source` says
which. No torch, and nothing here was fitted to a training step.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ..gpus.specs import Spec, spec
from . import hosts
from .hosts import SERVER, Host
from .power import Power

RECORDINGS = Path(__file__).resolve().parents[1] / "recordings"


class Tiling(NamedTuple):
    """How a product is tiled: `tiles` of `height` × `width`, in `splits` parts along the depth, in `waves`."""

    seconds: float
    height: int
    width: int
    tiles: int
    splits: int
    waves: int


@dataclass(frozen=True)
class Rates:
    """Achievable rates of one GPU and its host.

    `tflops`: 10¹² operations per second of a large product, by "fp32", "tf32", "fp16", "bf16", "fp64"; a precision
    without hardware has the rate of PyTorch's fallback. `loads_per_us`: numbers that all multiprocessors can
    load from their own caches in a microsecond. `memory_gbps`, `l2_gbps`, `pinned_gbps`, `pageable_gbps`, `peer_gbps`:
    10⁹ bytes per second from and to the GPU's memory (read and written added up), its L2 cache of `l2_bytes`, to and
    from the host, to another GPU. `copy_us`: latency of a copy to or from the host. `kernel_us`: the least time of a
    kernel. `launch_us`: from the host's call to the start on an idle GPU. `host`: the host that launches. `pin_gbps`:
    the rate at which the host copies into fresh pinned memory, `host_copy_gbps` into existing one. `malloc_us`: one
    call of the driver that takes memory or gives it back. `first_ms`: setup time in the first call of "cublas" and
    "cudnn". `power`: None where the board's limit is never reached.
    """

    source: str
    capability: tuple[int, int]
    sms: int
    tflops: Mapping[str, float]
    loads_per_us: float
    memory_gbps: float
    l2_bytes: int
    l2_gbps: float
    pinned_gbps: float
    pageable_gbps: float
    peer_gbps: float
    copy_us: float
    kernel_us: float
    launch_us: float
    host: Host
    pin_gbps: float
    host_copy_gbps: float
    malloc_us: float
    first_ms: Mapping[str, float]
    power: Power | None

    def product_seconds(self, rows: int, columns: int, depth: int, count: int, dtype: str, aligned: int = 16) -> float:
        """Return the arithmetic time of `count` products of (rows, depth) and (depth, columns) matrices."""
        return self.tiling(rows, columns, depth, count, dtype, aligned).seconds

    def tiling(self, rows: int, columns: int, depth: int, count: int, dtype: str, aligned: int = 16) -> Tiling:
        """Return how `count` products of (rows, depth) and (depth, columns) matrices are tiled.

        Each multiprocessor works on one tile of a result at a time, so a result of few tiles leaves some idle, and one
        of a few more than there are multiprocessors takes twice as long; deep products are split along their depth. A
        tile's operands come from L2, and the larger it is the less often; its first operands are waited for, and while
        its result is written its multiprocessor computes nothing, so short products are slower; from Hopper on that is
        so for the first and the last tile alone. `aligned` is the power
        of two of bytes, up to 16, that every row of the operands begins at.
        """
        key = rows, columns, depth, count, dtype, aligned
        known = self._tilings.get(key)
        if known is None:
            if len(self._tilings) >= _MOST_TILINGS:
                self._tilings.clear()
            known = self._tilings[key] = self._tiling(*key)
        return known

    @cached_property
    def _tilings(self) -> dict[tuple[int, int, int, int, str, int], Tiling]:
        """Cache: the products of a step are those of the step before."""
        return {}

    def _tiling(self, rows: int, columns: int, depth: int, count: int, dtype: str, aligned: int) -> Tiling:
        shares = _ALIGNED_ON_HOPPER if self.capability == (9, 0) else _ALIGNED
        rate = self.tflops[dtype] * 1e12 * (shares[aligned] if dtype in _ON_TENSOR_CORES else 1.0) / self.sms
        size = BYTES[dtype]
        fetched = size * _SHARED.get(self.capability, 1.0) / (self.l2_rate / self.sms)
        written = size / (self.memory_rate / self.sms)
        persistent = self.capability in _PERSISTENT and dtype in _ON_TENSOR_CORES and aligned == 16
        best = None
        for height, width in _TILES:
            tiles = count * -(-rows // height) * -(-columns // width)
            splits = max(1, min(self.sms // tiles, depth // _LEAST_DEPTH))
            waves = -(-tiles * splits // self.sms)
            part = depth / splits
            one = max(2 * height * width * part / rate, (height + width) * part * fetched)
            beside = min(rows, height) * min(columns, width) * written + _FILL
            seconds = waves * one + (beside if persistent else waves * beside)
            if best is None or seconds < best.seconds:
                best = Tiling(seconds, height, width, tiles, splits, waves)
        assert best is not None
        return best

    def memory_seconds(self, nbytes: float) -> float:
        """Return the time to read and write `nbytes` altogether."""
        return nbytes / self.memory_rate

    @cached_property
    def memory_rate(self) -> float:
        """Bytes per second."""
        return self.memory_gbps * 1e9

    @cached_property
    def l2_holds(self) -> float:
        """Bytes that stay in L2."""
        return self.l2_bytes * _L2_HOLDS.get(self.capability, _L2_HOLDS_ELSE)

    @cached_property
    def l2_rate(self) -> float:
        """Bytes per second."""
        return self.l2_gbps * 1e9

    @cached_property
    def cycles(self) -> float:
        """Cycles per second of all multiprocessors together."""
        return self.loads_per_us * 1e6 / _LOADS

    @cached_property
    def kernel_s(self) -> float:
        """`kernel_us` in seconds."""
        return self.kernel_us * 1e-6


# Parts of a result that one multiprocessor works on; libraries choose among some such.
_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64))
_MOST_TILINGS = 1 << 12
_LEAST_DEPTH = 256  # of a part of a product that is split
_FILL = 1e-6  # seconds until a tile's first operands have come: an assumption
BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp64": 8}
_ON_TENSOR_CORES = ("tf32", "fp16", "bf16")
_ALIGNED = {16: 1.0, 8: 0.85, 4: 0.7, 2: 0.5}  # part of the rate by the bytes that rows of operands are aligned to
# On an H100 as recorded ("products": 4,096 cubed, and one more, two more, four more of depth or columns): what is not
# aligned to 16 bytes runs on the kernels of the generation before.
_ALIGNED_ON_HOPPER = {16: 1.0, 8: 0.35, 4: 0.35, 2: 0.18}
# Kernels that stay for all their tiles: one group of warps loads the next tile, and one writes a result while another
# multiplies (CUTLASS, "pingpong"). Products of ViT and GPT-2 in 16 bits took an H200 0.65 of what waiting tiles take.
_PERSISTENT = ((9, 0), (10, 0))
_SHARED = {(9, 0): 0.5, (10, 0): 0.5}  # part of a tile's operands that it fetches itself: clusters share the rest

# Part of the peak that the largest products reach on tensor cores, where the board's power allows it. 8.0, 9.0, 10.0:
# Maximum Achievable Matmul FLOPS (BF16) of stas00/ml-engineering; others: `torch.mm` in bursts of 30, tables of
# zzc0721/torch-performance-test-data (V100 97 of 125, RTX 3060, 3090 and 4090 98 to 106 %: GeForce boards clock above
# the boost that their peak is given for); 7.5: cuBLAS on a T4, alexarmbr, "How To Write A Fast Matrix Multiplication
# From Scratch With Tensor Cores".
_TENSOR = {
    (7, 0): 0.78, (7, 5): 0.76, (8, 0): 0.869, (8, 6): 1.02, (8, 9): 1.06, (9, 0): 0.803, (10, 0): 0.776, (12, 0): 1.12,
}  # fmt: skip
# The same without tensor cores, same tables: from 8.6 on, half of the lanes share their port with whole numbers.
_LANES = {(7, 0): 0.92, (7, 5): 0.92, (8, 0): 0.98, (8, 6): 0.68, (8, 9): 0.65, (9, 0): 0.78, (12, 0): 0.67}
_LANES_ELSE = 0.78
# Part of the memory's rate that a copy reaches. 7.5: Jia et al., arXiv 1903.07486; 9.0: an H200; others: copies in
# te42kyfo/gpu-benches and the tables above.
_MEMORY = {
    (7, 0): 0.89, (7, 5): 220 / 320, (8, 0): 0.87, (8, 6): 0.92, (8, 9): 0.91, (9, 0): 0.87, (12, 0): 0.84,
}  # fmt: skip
_MEMORY_ELSE = 0.85
_LINK = 0.75  # pinned copies: 12 GB/s over PCIe 3 x16
# Of pinned copies: an assumption. And no more than the host copies into what is pinned, an assumption too; beside an
# H100 and an H200 (PCIe 5) it was 7 and 8 GB/s to the GPU, 12 and 14 back.
PAGEABLE, HOST_COPY_GBPS = 0.5, 10.0
_FP64 = {(7, 0): 2, (8, 0): 2, (9, 0): 2, (10, 0): 2, (7, 5): 32}  # fp32 lanes per fp64 result, CUDA programming guide
_FP64_ELSE = 64
_LOADS = 32  # numbers per clock that a multiprocessor loads from its own cache: CUDA programming guide
# 10⁹ bytes per second that are read from L2. 7.0: Jia et al., arXiv 1804.06826, 7.5: 1903.07486; others:
# te42kyfo/gpu-benches, gpu-l2-cache (A100, A40, L40, H100 PCIe); 10.0, 12.0: not found, as their predecessors.
_L2_GBPS = {
    (7, 0): 2155, (7, 5): 1270, (8, 0): 5400, (8, 6): 2400, (8, 9): 5200, (9, 0): 7000, (10, 0): 7000, (12, 0): 5200,
}  # fmt: skip
# Part of L2 in which a tensor is found again: on 8.0 and 9.0 it is two halves, and what the other half's
# multiprocessors read is kept twice (same source: A100 up to 23.5 of 40 MiB, H100 31 of 50).
_L2_HOLDS = {(8, 0): 0.55, (9, 0): 0.6, (10, 0): 0.6}
_L2_HOLDS_ELSE = 0.9


# Picojoules of a product's multiply-adds, per floating-point operation on tensor cores: what boards sustain at their
# limit. 7.5: a T4 24 TFLOP/s at 70 W (NVIDIA's forum); 8.9: an L40S 266 at 350 W, an L4 52 to 59 at 72 W; 9.0: an H100
# PCIe 496 at 350 W; 12.0: an RTX PRO 6000 391 at 600 W, its Max-Q 229 at 300 W. Other boards do not meet their limit.
_TENSOR_PJ = {(7, 5): 2.3, (8, 9): 1.0, (9, 0): 0.56, (12, 0): 1.1}
_LANES_PJ = {(7, 5): 12.0, (8, 9): 5.0, (9, 0): 4.0, (12, 0): 5.0}  # in fp32 lanes: a T4 4.3 TFLOP/s, an L40S 47
# Picojoules per byte from and to memory, GDDR (an L40 845 GB/s at 199 W) and HBM (an A100 1372 at 227 W, an H200 3759
# at 572 W): te42kyfo/gpu-benches, gpu-roofline.
_GDDR_PJ, _HBM_PJ = 160.0, 110.0
_WITH_HBM = ((7, 0), (8, 0), (9, 0), (10, 0))
_IDLE = 0.22  # part of the limit that a board draws without computing, clocks up: an assumption


def _power(gpu: Spec, tensor: float, fp32: float) -> Power | None:
    """Return the power model; None for a board whose limit was never seen to slow it down."""
    if gpu.capability not in _TENSOR_PJ:
        return None
    per_flop, lane = _TENSOR_PJ[gpu.capability], _LANES_PJ[gpu.capability]
    on_tensor_cores = {"tf32": 2 * per_flop, "fp16": per_flop, "bf16": per_flop}
    found = Power(
        gpu.watts,
        _IDLE * gpu.watts,
        {"fp32": lane, "fp64": 2 * lane}
        | {name: needed if gpu.has(name) else lane for name, needed in on_tensor_cores.items()},
        _HBM_PJ if gpu.capability in _WITH_HBM else _GDDR_PJ,
    )
    most = tensor * (gpu.tflops["fp16"] or 0) * per_flop
    return found if found.idle_watts + max(most, fp32 * lane) > gpu.watts else None


def published_rates(gpu: Spec) -> Rates:
    """Return rates from published figures; this file names the source of each, and which are assumptions."""
    fp32 = (gpu.tflops["fp32"] or 0) * _LANES.get(gpu.capability, _LANES_ELSE)
    tensor = _TENSOR[gpu.capability]

    def reached(name: str) -> float:
        peak = gpu.tflops[name]
        if peak is None and name == "tf32" and gpu.has(name):
            peak = (gpu.tflops["fp16"] or 0) / 2  # as measured where no page of the vendor has it: the tables above
        return fp32 if peak is None or not gpu.has(name) else peak * tensor

    link = gpu.host_link.one_way_gbps if gpu.host_link else 64.0  # B200's is not published: as PCIe 5 x16
    return Rates(
        source="published rates",
        capability=gpu.capability,
        sms=gpu.sms,
        tflops={
            "fp32": fp32,
            **{name: reached(name) for name in ("tf32", "fp16", "bf16")},
            "fp64": fp32 / _FP64.get(gpu.capability, _FP64_ELSE),
        },
        loads_per_us=(gpu.tflops["fp32"] or 0) * 1e6 / 2 * _LOADS * gpu.sms / gpu.fp32_lanes,
        memory_gbps=gpu.bandwidth_gbps * _MEMORY.get(gpu.capability, _MEMORY_ELSE),
        l2_bytes=gpu.l2_bytes,
        l2_gbps=_L2_GBPS[gpu.capability],
        pinned_gbps=link * _LINK,
        pageable_gbps=min(link * _LINK * PAGEABLE, HOST_COPY_GBPS),
        peer_gbps=(gpu.gpu_link.one_way_gbps if gpu.gpu_link else link) * _LINK,
        # Assumptions of the usual size, to be replaced by a recording.
        copy_us=8.0,
        kernel_us=2.0,
        launch_us=4.0,
        host=SERVER,
        pin_gbps=2.0,
        host_copy_gbps=HOST_COPY_GBPS,
        malloc_us=100.0,
        first_ms={"cublas": 60.0, "cudnn": 300.0},  # tens and hundreds of milliseconds; hosts and disks differ
        power=_power(gpu, tensor, fp32),
    )


def recorded_rates(gpu: Spec, recording: Mapping[str, Any]) -> Rates:
    """Return rates of a GPU and its machine from a recording's microbenchmarks; what it lacks stays as published.

    Its sections "copies", "matmul", "host", "first_calls" and "touched" are read.
    """
    rates, of_machine = _of_gpu(gpu, recording), _of_machine(recording)
    first = {**rates.first_ms, **_first_ms(recording.get("first_calls"))}
    return replace(rates, first_ms=first, **of_machine)


def _of_gpu(gpu: Spec, recording: Mapping[str, Any]) -> Rates:
    """Return the rates that belong to the GPU and its link."""
    rates = published_rates(gpu)
    name = recording.get("device", {}).get("name", "a GPU")
    changed: dict[str, Any] = {"source": f"recorded on {name}"}
    copies = _copies(recording)
    if len(copies) >= 2:
        changed["pinned_gbps"] = statistics.mean(1e-9 / slope for _, slope in _fits(copies, "h2d_pinned", "d2h_pinned"))
        outside = [row for row in copies if row["bytes"] > rates.l2_bytes]  # smaller ones are L2's
        if len(outside) >= 2:
            _, slope = relative_fit([(row["bytes"], row["d2d"] * 1e-3) for row in outside])
            changed["memory_gbps"] = 2e-9 / slope
    products = recording.get("matmul")
    if isinstance(products, Mapping):
        best = {
            name: max(
                (row[f"{name}_tflops"] for row in products.get("matmul", ()) if row.get(f"{name}_tflops")), default=0
            )
            for name in ("fp32", "tf32", "fp16", "bf16")
        }
        changed["tflops"] = {**rates.tflops, **{name: value for name, value in best.items() if value}}
    inside = [row for row in recording.get("touched") or () if isinstance(row, Mapping)]
    in_l2 = [row for row in inside if 2 * rates.l2_bytes / 10 < row["bytes_between"] < rates.l2_holds / 2]
    if in_l2:  # two tensors of each pair, one read and one written
        reached = max(2 * row["bytes_each"] / (row["ms"] * 1e-3 - rates.kernel_s) for row in in_l2)
        changed["l2_gbps"] = max(reached * 1e-9, changed.get("memory_gbps", rates.memory_gbps))
    return replace(rates, **changed)


def _of_machine(recording: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded fields of `Rates` that depend on the processor and its memory."""
    found: dict[str, Any] = {}
    copies = _copies(recording)
    if len(copies) >= 2:
        fits = _fits(copies, "h2d_pageable", "d2h_pageable")
        found["pageable_gbps"] = statistics.mean(1e-9 / slope for _, slope in fits)
        at_zero = statistics.mean(seconds for seconds, _ in _fits(copies, "h2d_pinned", "d2h_pinned"))
        found["copy_us"] = max(0.0, at_zero * 1e6)
        pinned = [row["bytes"] / row["pin_ms"] * 1e-6 for row in copies if row.get("pin_ms")]
        found |= {"pin_gbps": statistics.median(pinned)} if pinned else {}
    costs = recording.get("host")
    if isinstance(costs, Mapping) and "add_us" in costs:
        name = f"the host of {recording.get('device', {}).get('name', 'a GPU')}"
        found["host"] = hosts.recorded_host({key.removesuffix("_us"): value for key, value in costs.items()}, name)
    return found


def _copies(recording: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in recording.get("copies") or () if isinstance(row, Mapping) and "bytes" in row]


def _fits(copies: Sequence[Mapping[str, Any]], *fields: str) -> list[tuple[float, float]]:
    """Return the latency of a copy and its seconds per byte, in both directions."""
    return [relative_fit([(row["bytes"], row[field] * 1e-3) for row in copies]) for field in fields]


def _first_ms(found: Any) -> dict[str, float]:
    """Return how much longer a library's first call took than its second, from the section "first_calls"."""
    if not isinstance(found, Mapping):
        return {}
    calls = {"cublas": "matmul_fp32", "cudnn": "convolution"}
    return {
        library: max(0.0, found[f"{call}_first_s"] - found[f"{call}_second_s"]) * 1e3
        for library, call in calls.items()
        if f"{call}_first_s" in found
    }


def relative_fit(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit a line with the least relative error (least squares, weights 1/y²); return its value at zero and slope."""
    if len(points) < 2:
        raise ValueError(f"there are {len(points)} points; a line needs two")
    weights = [1 / y**2 for _, y in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True)) / spread
    return mean_y - slope * mean_x, slope


@cache
def rates_of(name: str) -> Rates:
    """Return the rates of the GPU `name` (see `specs.SPECS`), from its recording where there is one.

    The machine's own stay as published: a host is chosen separately, and one machine does not stand for all.
    """
    gpu = spec(name)
    path = recording_path(gpu)
    return published_rates(gpu) if path is None else _of_gpu(gpu, json.loads(path.read_text(encoding="utf-8")))


def recording_path(gpu: Spec) -> Path | None:
    """Return the path of its recording, None where there is none."""
    path = RECORDINGS / recording_name(gpu.product)
    return path if path.is_file() else None


def recording_name(product: str) -> str:
    """Return the file name of a GPU's recording, from the product name that the driver reports."""
    return re.sub(r"[^A-Za-z0-9]+", "-", product) + ".json"

"""How fast a GPU is in practice: what large products, memory, links and launches reach.

From a recording of that GPU where there is one in `gpulab/recordings/`, else from published figures; `Rates.source`
says which. It knows nothing of torch, and nothing here was fitted to a training step.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ..gpus.specs import Spec, spec

RECORDINGS = Path(__file__).resolve().parents[2] / "recordings"


class Tiling(NamedTuple):
    """How a product is shared out: `tiles` of `side` × `side`, each in `splits` parts along the depth, in `waves`."""

    seconds: float
    side: int
    tiles: int
    splits: int
    waves: int


@dataclass(frozen=True)
class Rates:
    """What one GPU and its host reach.

    `tflops`: 10¹² operations per second of a large product, by "fp32", "tf32", "fp16", "bf16", "fp64"; a precision
    without hardware has the rate of what PyTorch does instead. `memory_gbps`, `pinned_gbps`, `pageable_gbps`,
    `peer_gbps`: 10⁹ bytes per second within the GPU (read and written added up), to and from the host, to another GPU.
    `copy_us`: what a copy to or from the host takes beside its bytes. `kernel_us`: what a kernel takes at least.
    `launch_us`: from the host's call to the start on an idle GPU. `host_us`: the host's time for one operation.
    `pin_gbps`: the rate at which the host copies into fresh
    pinned memory, `host_copy_gbps` into such as it has already. `malloc_us`: one call of the driver that takes memory
    or gives it back. All times in microseconds.
    """

    source: str
    sms: int
    tflops: Mapping[str, float]
    memory_gbps: float
    pinned_gbps: float
    pageable_gbps: float
    peer_gbps: float
    copy_us: float
    kernel_us: float
    launch_us: float
    host_us: float
    pin_gbps: float
    host_copy_gbps: float
    malloc_us: float

    def product_seconds(self, rows: int, columns: int, depth: int, count: int, dtype: str) -> float:
        """The arithmetic of `count` products of (rows, depth) and (depth, columns) matrices."""
        return self.tiling(rows, columns, depth, count, dtype).seconds

    def tiling(self, rows: int, columns: int, depth: int, count: int, dtype: str) -> Tiling:
        """How `count` products of (rows, depth) and (depth, columns) matrices are shared out.

        Each multiprocessor works on one tile of a result at a time, so a result of few tiles leaves some idle, and one
        of a few more than there are multiprocessors takes twice as long; deep products are split along their depth.
        """
        rate = self.tflops[dtype] * 1e12
        best = None
        for side, efficiency in _TILES:
            tiles = count * -(-rows // side) * -(-columns // side)
            splits = max(1, min(self.sms // tiles, depth // _LEAST_DEPTH))
            waves = -(-tiles * splits // self.sms)
            seconds = waves * 2 * side * side * depth / splits / (rate * efficiency / self.sms)
            if best is None or seconds < best.seconds:
                best = Tiling(seconds, side, tiles, splits, waves)
        assert best is not None
        return best

    def memory_seconds(self, nbytes: float) -> float:
        """Reading and writing `nbytes` altogether."""
        return nbytes / self.memory_rate

    @cached_property
    def memory_rate(self) -> float:
        """Bytes per second."""
        return self.memory_gbps * 1e9

    @cached_property
    def kernel_s(self) -> float:
        """`kernel_us` in seconds."""
        return self.kernel_us * 1e-6


# Side of the square of a result that one multiprocessor works on, and how near to the full rate that comes: a smaller
# one is read again more often. Libraries choose among some such; the two figures are an assumption.
_TILES = ((128, 1.0), (64, 0.7))
_LEAST_DEPTH = 256  # of a part of a product that is split

# Part of the peak that the largest products reach. 8.0, 9.0, 10.0: Maximum Achievable Matmul FLOPS (BF16) of
# stas00/ml-engineering; 7.5: cuBLAS on a T4, alexarmbr, "How To Write A Fast Matrix Multiplication From Scratch With
# Tensor Cores". Others: the mean of these, an assumption.
_TENSOR = {(8, 0): 0.869, (9, 0): 0.803, (10, 0): 0.776, (7, 5): 0.76}
_TENSOR_ELSE = 0.80
_LANES = 0.92  # without tensor cores: the same T4
# Part of the memory's rate. T4: Jia et al., arXiv 1903.07486; 9.0: a copy on an H200. Others: an assumption between.
_MEMORY = {(7, 5): 220 / 320, (9, 0): 4.3 / 4.8}
_MEMORY_ELSE = 0.85
_LINK = 0.75  # pinned copies: 12 GB/s over PCIe 3 x16
_PAGEABLE = 0.5  # of pinned copies: an assumption; it depends on the host's memory
_FP64 = {(7, 0): 2, (8, 0): 2, (9, 0): 2, (10, 0): 2, (7, 5): 32}  # fp32 lanes per fp64 result, CUDA programming guide
_FP64_ELSE = 64


def published(gpu: Spec) -> Rates:
    """Rates from published figures; the file says where each comes from, and which are assumptions."""
    fp32 = (gpu.tflops["fp32"] or 0) * _LANES
    tensor = _TENSOR.get(gpu.capability, _TENSOR_ELSE)

    def reached(name: str) -> float:
        peak = gpu.tflops[name]
        return fp32 if peak is None or not gpu.has(name) else peak * tensor

    link = gpu.host_link.one_way_gbps if gpu.host_link else 64.0  # B200's is not published: as PCIe 5 x16
    return Rates(
        source="published rates",
        sms=gpu.sms,
        tflops={
            "fp32": fp32,
            **{name: reached(name) for name in ("tf32", "fp16", "bf16")},
            "fp64": fp32 / _FP64.get(gpu.capability, _FP64_ELSE),
        },
        memory_gbps=gpu.bandwidth_gbps * _MEMORY.get(gpu.capability, _MEMORY_ELSE),
        pinned_gbps=link * _LINK,
        pageable_gbps=link * _LINK * _PAGEABLE,
        peer_gbps=(gpu.gpu_link.one_way_gbps if gpu.gpu_link else link) * _LINK,
        # Assumptions of the usual size, to be replaced by a recording.
        copy_us=8.0,
        kernel_us=2.0,
        launch_us=4.0,
        host_us=5.0,
        pin_gbps=2.0,
        host_copy_gbps=10.0,
        malloc_us=100.0,
    )


def recorded(gpu: Spec, recording: Mapping[str, Any]) -> Rates:
    """Rates from the microbenchmarks of a recording: `copies` and `matmul`; what it lacks stays as published."""
    rates = published(gpu)
    name = recording.get("device", {}).get("name", "a GPU")
    changed: dict[str, Any] = {"source": f"recorded on {name}"}
    copies = [row for row in recording.get("copies") or () if isinstance(row, Mapping) and "bytes" in row]
    if len(copies) >= 2:
        latencies = []
        for key, fields in (("pinned_gbps", "h2d_pinned d2h_pinned"), ("pageable_gbps", "h2d_pageable d2h_pageable")):
            fits = [line([(row["bytes"], row[field] * 1e-3) for row in copies]) for field in fields.split()]
            changed[key] = statistics.mean(1e-9 / slope for _, slope in fits)
            latencies += [at_zero for at_zero, _ in fits] if key == "pinned_gbps" else []
        changed["copy_us"] = max(0.0, statistics.mean(latencies) * 1e6)
        _, slope = line([(row["bytes"], row["d2d"] * 1e-3) for row in copies])
        changed["memory_gbps"] = 2e-9 / slope
        pinned = [row["bytes"] / row["pin_ms"] * 1e-6 for row in copies if row.get("pin_ms")]
        changed |= {"pin_gbps": statistics.median(pinned)} if pinned else {}
    products = recording.get("matmul")
    if isinstance(products, Mapping):
        best = {
            name: max(
                (row[f"{name}_tflops"] for row in products.get("matmul", ()) if row.get(f"{name}_tflops")), default=0
            )
            for name in ("fp32", "tf32", "fp16", "bf16")
        }
        changed["tflops"] = {**rates.tflops, **{name: value for name, value in best.items() if value}}
        if "launch_us" in products:
            changed["host_us"] = products["launch_us"]
    return replace(rates, **changed)


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Value at zero and slope of the line nearest to the points in relative terms (least squares, weights 1/y²)."""
    if len(points) < 2:
        raise ValueError(f"points are {len(points)}; a line needs two")
    weights = [1 / y**2 for _, y in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True)) / spread
    return mean_y - slope * mean_x, slope


@cache
def of(name: str) -> Rates:
    """The rates of the GPU `name` (see `specs.SPECS`), from its recording where there is one."""
    gpu = spec(name)
    for path in sorted(RECORDINGS.glob("*.json")):
        if path.name.startswith("no-gpu"):
            continue  # its times mean nothing
        recording = json.loads(path.read_text(encoding="utf-8"))
        if recording["device"]["name"] == gpu.product:
            return recorded(gpu, recording)
    return published(gpu)

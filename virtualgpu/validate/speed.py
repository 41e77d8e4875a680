"""Measure milliseconds: copies, matrix products, launches, operations.

Times are medians of CUDA events after a warm-up, on random data: a GPU is faster on zeros.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..units import MIB
from .models import Model
from .operators import DEVICE, Case, autocast

# name -> dtype, TF32
PRECISIONS: dict[str, tuple[torch.dtype, bool]] = {
    "fp32": (torch.float32, False),
    "tf32": (torch.float32, True),
    "fp16": (torch.float16, False),
    "bf16": (torch.bfloat16, False),
}


def median_ms(run: Callable[[], object], repeat: int = 20, warm_up: int = 5) -> float:
    """Median milliseconds on the device from before `run` to after it."""
    for _ in range(warm_up):
        run()
    torch.cuda.synchronize()
    times: list[float] = []
    for _ in range(repeat):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def copies(nbytes: int) -> dict[str, Any]:
    """One size: host to device and back, from pinned and pageable memory, within the device; and what pinning takes."""
    pageable = torch.empty(nbytes, dtype=torch.uint8).random_()
    pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    pinned.copy_(pageable)
    here, there = (torch.empty(nbytes, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    repeat = 20 if nbytes <= 10 * MIB else 5
    row = {
        "bytes": nbytes,
        "h2d_pinned": median_ms(lambda: here.copy_(pinned, non_blocking=True), repeat),
        "h2d_pageable": median_ms(lambda: here.copy_(pageable), repeat),
        "d2h_pinned": median_ms(lambda: pinned.copy_(here, non_blocking=True), repeat),
        "d2h_pageable": median_ms(lambda: pageable.copy_(here), repeat),
        "d2d": median_ms(lambda: there.copy_(here), repeat),
    }
    began = time.perf_counter()
    pageable.pin_memory()
    return row | {"pin_ms": (time.perf_counter() - began) * 1e3}


def matmul(n: int, precisions: Sequence[str]) -> dict[str, Any]:
    """Milliseconds and TFLOP/s of the product of two n × n matrices, by precision."""
    row: dict[str, Any] = {"n": n}
    allowed = torch.backends.cuda.matmul.allow_tf32
    try:
        for name in precisions:
            dtype, torch.backends.cuda.matmul.allow_tf32 = PRECISIONS[name]
            row[f"{name}_ms"] = taken = _product_ms(n, dtype)
            row[f"{name}_tflops"] = 2 * n**3 / (taken * 1e-3) / 1e12 if taken else None
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    return row


def _product_ms(n: int, dtype: torch.dtype) -> float:
    one, other = (torch.randn(n, n, device=DEVICE, dtype=dtype) for _ in range(2))
    return median_ms(lambda: one @ other, 10, 3)


def launches(number: int = 1000) -> dict[str, float]:
    """Microseconds a launch of a kernel with next to nothing to do, on the device and as the host sees it."""
    one = torch.zeros(1, device=DEVICE)

    def many() -> None:
        for _ in range(number):
            one.add_(1)

    device_ms = median_ms(many, 5, 2)
    began = time.perf_counter()
    many()
    host_ms = (time.perf_counter() - began) * 1e3
    torch.cuda.synchronize()
    return {"launch_us": device_ms * 1e3 / number, "launch_host_us": host_ms * 1e3 / number}


def relu_ms(elements: int) -> float:
    """An operation that the memory's bandwidth bounds: it reads and writes `elements` float32 numbers."""
    values = torch.randn(elements, device=DEVICE)
    return median_ms(lambda: torch.relu(values), 10, 3)


def operation(case: Case, dtype: torch.dtype | None) -> dict[str, float]:
    """Milliseconds of the forward pass, and of forward and backward together."""

    def forward() -> Tensor:
        with autocast(dtype):
            return case.call(*case.inputs)

    gradient = torch.randn_like(forward())
    return {"forward_ms": median_ms(forward, 10, 3), "both_ms": median_ms(lambda: forward().backward(gradient), 10, 3)}


def small_step(model: Model, batch: int, mode: str, dtype: torch.dtype | None) -> dict[str, Any]:
    """Milliseconds of a training step with AdamW and of inference: between events, and of the host's clock."""
    net = model.make().to(DEVICE).train()
    optimizer = torch.optim.AdamW(net.parameters())
    x, y = model.batch(batch)

    def step() -> None:
        with autocast(dtype):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def infer() -> None:
        with torch.inference_mode(), autocast(dtype):
            net(x)

    row: dict[str, Any] = {"model": model.name, "batch": batch, "mode": mode, "optimizer": "adamw"}
    row |= {"train_ms": median_ms(step, 7, 3), "train_host_ms": host_ms(step, 7)}
    net.eval()
    return row | {"infer_ms": median_ms(infer, 7, 3), "infer_host_ms": host_ms(infer, 7)}


def by_operation(run: Callable[[], object]) -> dict[str, Any]:
    """Return the kernels of `run` as the profiler counts them: total ms, number, and ms by operation.

    Beside the time between two events this tells the kernels' part of a step from the host's.
    """
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        run()
        torch.cuda.synchronize()
    rows = [row for row in profile.key_averages() if row.self_device_time_total > 0]
    kernels = [row for row in rows if row.device_type.name == "CUDA" and not getattr(row, "is_user_annotation", False)]
    taken = {row.key: row.self_device_time_total / 1e3 for row in rows if row.device_type.name == "CPU"}
    return {
        "kernels": sum(row.count for row in kernels),
        "kernels_ms": sum(row.self_device_time_total for row in kernels) / 1e3,
        "operations_ms": dict(sorted(taken.items(), key=lambda item: -item[1])),
    }


def host_ms(run: Callable[[], object], repeat: int) -> float:
    """Median milliseconds of the host's clock for `run` alone, without the wait for the device after it."""
    times = []
    for _ in range(repeat):
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        times.append((time.perf_counter() - began) * 1e3)
    torch.cuda.synchronize()
    return statistics.median(times)

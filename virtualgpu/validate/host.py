"""Measure CPU overhead: microseconds per call while the GPU keeps up, and the cost of first calls.

First calls are measured in a process of their own, in which nothing has touched the GPU: the context, then the first
and the second call of each library. A convolution's first call of each new shape is slow too: cuDNN plans it then, or
tries what it has if `torch.backends.cudnn.benchmark` is on.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .operators import DEVICE, autocast

DEPTH = 50  # layers of the deep network, 64 wide: two operations with parameters are two kernels, each of some µs


def microseconds(call: Callable[[], object], calls: int, rounds: int = 7) -> float:
    """Median microseconds of the host per `call()`: it is not waited for within the clock."""
    for _ in range(max(1, calls // 20)):
        call()
    found = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - began) / calls)
    torch.cuda.synchronize()
    return statistics.median(found) * 1e6


def costs(calls: int = 500) -> Iterator[tuple[str, float]]:
    """(what, microseconds of the host), one by one. A name that ends in a number is of that many layers or tensors.

    A launch queue holds about a thousand kernels; no measurement gives it more between two waits.
    """
    few = max(1, min(calls, 500) // 25)
    x = torch.randn(64, 64, device=DEVICE)
    weight = torch.randn(64, 64, device=DEVICE, requires_grad=True)
    layer = nn.Linear(64, 64, device=DEVICE)
    with torch.no_grad():
        yield "add", microseconds(lambda: x + x, calls)
        yield "add_in_place", microseconds(lambda: x.add_(1e-9), calls)
        yield "view", microseconds(lambda: x.view(-1), calls)
        yield "empty", microseconds(lambda: torch.empty(64, 64, device=DEVICE), calls)
        yield "matmul", microseconds(lambda: x @ x, calls)
        yield "cast_fp16", microseconds(lambda: x.half(), calls)
        yield "linear_no_grad", microseconds(lambda: layer(x), calls)
    yield "matmul_grad", microseconds(lambda: x @ weight, calls)
    yield "linear_grad", microseconds(lambda: layer(x), calls)
    yield from _deep(few)
    event = torch.cuda.Event(enable_timing=True)
    yield "event_record", microseconds(event.record, calls)
    yield "synchronize_idle", microseconds(torch.cuda.synchronize, calls)
    few_waits = max(1, calls // 5)
    yield "item", microseconds(lambda: x[0, 0].item(), few_waits)
    pageable = torch.randn(64, 64)
    pinned = pageable.pin_memory()
    yield "to_gpu_pageable_16k", microseconds(lambda: pageable.to(DEVICE), few_waits)
    yield "to_gpu_pinned_non_blocking_16k", microseconds(lambda: pinned.to(DEVICE, non_blocking=True), few_waits)


def _deep(calls: int) -> Iterator[tuple[str, float]]:
    """Forward, backward and optimizers of a deep and narrow network, whose kernels take less than their launch."""
    deep = nn.Sequential(*(nn.Linear(64, 64, device=DEVICE) for _ in range(DEPTH)))
    x = torch.randn(64, 64, device=DEVICE)

    def forward(dtype: torch.dtype | None = None) -> torch.Tensor:
        with autocast(dtype):
            out: torch.Tensor = deep(x)
        return out

    def both(dtype: torch.dtype | None = None) -> None:
        forward(dtype).sum().backward()

    rounds = 3
    yield f"forward_{DEPTH}", microseconds(forward, calls, rounds)
    yield f"forward_autocast_fp16_{DEPTH}", microseconds(lambda: forward(torch.float16), calls, rounds)
    yield f"forward_backward_{DEPTH}", microseconds(both, calls, rounds)
    yield f"forward_backward_autocast_fp16_{DEPTH}", microseconds(lambda: both(torch.float16), calls, rounds)
    both()
    kinds: dict[str, dict[str, Any]] = {
        "plain": {"foreach": False},
        "foreach": {"foreach": True},
        "fused": {"fused": True},
    }
    for name, kind in kinds.items():
        for optimizer in (torch.optim.SGD, torch.optim.AdamW):
            step = optimizer(deep.parameters(), lr=1e-9, **kind).step
            step()
            yield f"{optimizer.__name__}_{name}_{2 * DEPTH}", microseconds(step, calls, rounds)


# -- first calls -----------------------------------------------------------------------------------------------------


def first_calls(virtual: str | None = None) -> dict[str, float]:
    """Seconds, in a process of its own; `virtual` names the virtual GPU to ask there, None for the real one.

    Raises RuntimeError with the last line that the process wrote where it fails.
    """
    root = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import print_first_calls; print_first_calls({virtual!r})"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["the process wrote nothing"])[-1])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def print_first_calls(virtual: str | None) -> None:
    """Print `_first_calls` as one line of JSON, for `first_calls`, and end the process at once."""
    if virtual is None:
        found = dict(_first_calls())
    else:
        from ..gpu import VirtualGPU

        with VirtualGPU(virtual, compute=False):
            found = dict(_first_calls())
    print(json.dumps(found), flush=True)
    os._exit(0)  # all is said, and autograd's threads may abort a process that ends in good order


def _first_calls() -> Iterator[tuple[str, float]]:
    began = time.perf_counter()
    x = torch.zeros(1, device=DEVICE)
    torch.cuda.synchronize()
    yield "context_s", time.perf_counter() - began
    a = torch.randn(512, 512, device=DEVICE)
    half = a.half()
    image = torch.randn(2, 8, 32, 32, device=DEVICE)
    convolution = nn.Conv2d(8, 8, 3, device=DEVICE)
    heads = torch.randn(1, 2, 64, 64, device=DEVICE, dtype=torch.float16)
    torch.cuda.synchronize()
    calls: dict[str, Callable[[], object]] = {
        "add": lambda: x + 1,
        "matmul_fp32": lambda: a @ a,
        "matmul_fp16": lambda: half @ half,
        "convolution": lambda: convolution(image),
        "convolution_backward": lambda: convolution(image).sum().backward(),
        "attention_fp16": lambda: nn.functional.scaled_dot_product_attention(heads, heads, heads),
        "sort": lambda: a.sort(),
    }
    for name, call in calls.items():
        for which in ("first", "second"):
            began = time.perf_counter()
            call()
            torch.cuda.synchronize()
            yield f"{name}_{which}_s", time.perf_counter() - began


NEW = ((16, 3, 56), (32, 3, 28), (48, 5, 28), (64, 1, 28), (96, 3, 14), (128, 7, 14))  # channels, window, pixels a side


def new_shape(shape: tuple[int, int, int], dtype: torch.dtype, benchmark: bool) -> dict[str, Any]:
    """Milliseconds until a convolution of 8 images is done, the first and the second time, forward and backward.

    Where cuDNN tries its algorithms (`benchmark`) the images are four rows higher: it keeps what it knows of a shape.
    """
    channels, window, side = shape
    layer = nn.Conv2d(channels, channels, window, padding=window // 2, device=DEVICE, dtype=dtype)
    x = torch.randn(8, channels, side + 4 * benchmark, side, device=DEVICE, dtype=dtype).requires_grad_()
    forward, backward = [], []
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = benchmark
    try:
        for _ in range(2):
            ms, out = _until_done(lambda: layer(x))
            forward.append(ms)
            grad = torch.ones_like(out)
            ms, _ = _until_done(partial(out.backward, grad))
            backward.append(ms)
    finally:
        torch.backends.cudnn.benchmark = before
    about = {"benchmark": benchmark, "dtype": str(dtype), "channels": channels, "window": window}
    return about | {"pixels": list(x.shape[2:]), "forward_ms": forward, "backward_ms": backward}


def _until_done(call: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds until what `call()` has launched is done, and what it returned."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    returned = call()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3, returned

"""Measure memory: an allocator trace, saved tensors of operations, peaks of training steps.

All of it asks `torch.cuda` only, so that the same code runs on a real GPU, where it measures, and on the virtual one,
where it predicts.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from .. import collecting
from ..units import MIB
from .models import Model, optimizers
from .operators import DEVICE, Case, autocast

COLUMNS = ["event", "arg", "id (alloc)", "allocated", "reserved", "requested"]

# Mode of a step -> dtype of autocast, micro-batches. "tf32" lets products and convolutions round their inputs.
STEP_MODES: dict[str, tuple[torch.dtype | None, int]] = {
    "fp32": (None, 1),
    "tf32": (None, 1),
    "amp_fp16": (torch.float16, 1),
    "amp_bf16": (torch.bfloat16, 1),
    "accum4_bf16": (torch.bfloat16, 4),
}


def reset_memory() -> None:
    """Nothing cached, peaks from here on."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def warm_up() -> None:
    """Allocate a process's one-time memory: the context, library handles and, up to torch 2.14, workspaces."""
    layer = torch.nn.Linear(64, 64, device=DEVICE)
    layer(torch.randn(8, 64, device=DEVICE)).sum().backward()
    torch.cuda.synchronize()


@contextlib.contextmanager
def quick_collections() -> Iterator[None]:
    """Exclude existing objects, imported modules above all, from garbage collections within the block."""
    gc.collect()
    with collecting.collect_new_only(for_long=True):
        yield


def counts() -> list[int]:
    """Allocated, reserved, requested."""
    requested = torch.cuda.memory_stats().get("requested_bytes.all.current", 0)
    return [torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), requested]


# -- the allocator ---------------------------------------------------------------------------------------------------


def events(number: int, seed: int = 0, most: int = 200 * MIB) -> Iterator[list[Any]]:
    """A seeded mixture of ["alloc", bytes, id], ["free", id] and ["empty_cache", None], of all sizes up to `most`."""
    rng = random.Random(seed)
    live: list[int] = []
    ranges = [(1, 4096), (4096, MIB), (MIB, 10 * MIB), (10 * MIB, most // 5), (most // 10, most)]
    for i in range(number):
        if live and rng.random() < 0.47:
            yield ["free", live.pop(rng.randrange(len(live)))]
        elif rng.random() < 0.004:
            yield ["empty_cache", None]
        else:
            live.append(i)
            yield ["alloc", rng.randint(*rng.choice(ranges)), i]


def replay(trace: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Run the events (further items of a row are ignored); return each with the counters after it."""
    live: dict[int, Tensor] = {}
    rows = []
    for event in trace:
        if event[0] == "alloc":
            done = list(event[:3])
            live[event[2]] = torch.empty(event[1], dtype=torch.uint8, device=DEVICE)
        else:
            done = list(event[:2])
            if event[0] == "free":
                del live[event[1]]
            else:
                torch.cuda.empty_cache()
        rows.append([*done, *counts()])
    return rows


def allocator_trace(trace: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """A trace as it stands in a recording."""
    gc.collect()
    reset_memory()
    return {"base": counts(), "columns": COLUMNS, "trace": replay(trace)}


# -- an operation ----------------------------------------------------------------------------------------------------


def saved_bytes(case: Case, dtype: torch.dtype | None) -> dict[str, Any]:
    """Bytes that one call adds, needs at most, and keeps for backward; the same for the backward pass."""

    def backward(result: Tensor) -> list[int]:
        gradient = torch.empty_like(result)
        reset_memory()
        start = torch.cuda.memory_allocated()
        result.backward(gradient)
        return [torch.cuda.memory_allocated() - start, torch.cuda.max_memory_allocated() - start]

    leaves = [t for t in (*case.inputs, *case.parameters) if t.requires_grad]
    with autocast(dtype):
        result = case.call(*case.inputs)
    backward(result)  # libraries start, workspaces are taken
    del result
    for leaf in leaves:
        leaf.grad = None
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if tensor.is_cuda:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # itself, it would keep alive the graph that keeps it

    reset_memory()
    start = torch.cuda.memory_allocated()
    with autocast(dtype), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = case.call(*case.inputs)
    inputs = {t.untyped_storage().data_ptr() for t in case.inputs}
    row = {
        "delta": torch.cuda.memory_allocated() - start,
        "peak": torch.cuda.max_memory_allocated() - start,
        "output": result.untyped_storage().nbytes(),
        "output_dtype": str(result.dtype),
        "saved": sum(seen.values()),
        "saved_not_input": sum(nbytes for pointer, nbytes in seen.items() if pointer not in inputs),
    }
    return row | {"backward": backward(result)}


# -- a training step -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One row: model, batch size, mode and optimizer."""

    model: Model
    batch: int
    mode: str
    optimizer: str = "adamw"

    @property
    def names(self) -> dict[str, Any]:
        return {"model": self.model.name, "batch": self.batch, "mode": self.mode, "optimizer": self.optimizer}


def step_peaks(
    step: Step, *, cudnn: bool = True, then: Callable[[Callable[[], None]], dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Three steps: marks of the first, peaks of the first two and of the third, and what remains.

    Peaks are [allocated, reserved]. `cudnn_at_peak` is the part of the peak that cuDNN's workspaces are (a further
    step; not with `cudnn=False`). `then` is called with the step at the end, and adds to the row.
    """
    dtype, micro_batches = STEP_MODES[step.mode]
    gc.collect()
    reset_memory()
    torch.manual_seed(0)
    allowed = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = step.mode == "tf32"
    try:
        row: dict[str, Any] = {"base": counts()[:2]}
        model = copy.deepcopy(_built(step.model)).to(DEVICE).train()
        row["weights"] = torch.cuda.memory_allocated() - row["base"][0]
        optimizer = optimizers()[step.optimizer](model.parameters())
        scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16)
        marks: dict[str, int] = {}

        def run() -> None:
            for _ in range(micro_batches):
                x, y = step.model.batch(step.batch)
                with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
                    z = model(x)
                    loss = F.cross_entropy(z.flatten(0, -2), y.flatten()) / micro_batches
                marks["forward"] = torch.cuda.memory_allocated()
                del x, y, z
                scaler.scale(loss).backward()
                del loss
                marks["backward"] = torch.cuda.memory_allocated()
            scaler.step(optimizer)
            scaler.update()
            marks["optimizer"] = torch.cuda.memory_allocated()
            optimizer.zero_grad()

        run()
        row["marks"] = dict(marks)
        run()
        row["peak_first_two"] = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
        torch.cuda.reset_peak_memory_stats()
        run()
        row["peak"] = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
        row["requested_peak"] = torch.cuda.memory_stats().get("requested_bytes.all.peak", 0)
        row["steady"] = torch.cuda.memory_allocated()
        if cudnn:
            with _Watch() as watch:
                run()
            row["cudnn_at_peak"] = watch.highest - watch.highest_without
        return row | (then(run) if then is not None else {})
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = allowed


@functools.lru_cache(maxsize=1)
def _built(model: Model) -> torch.nn.Module:
    """On the host; rows of one model follow each other, and building it takes longer than its step."""
    return model.make()


class _Watch(TorchDispatchMode):
    """The highest peak of what runs within, and the highest without the workspaces of cuDNN's own operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.highest = self.highest_without = 0
        torch.cuda.reset_peak_memory_stats()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note(torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        out = func(*args, **kwargs or {})
        name = func._schema.name
        of_cudnn = "cudnn" in name or "convolution" in name
        self._note(torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated() if of_cudnn else None)
        torch.cuda.reset_peak_memory_stats()
        return out

    def _note(self, peak: int, without: int | None = None) -> None:
        self.highest = max(self.highest, peak)
        self.highest_without = max(self.highest_without, peak if without is None else without)

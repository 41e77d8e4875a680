"""Simulates other machines for a student's function: without a GPU, with another maker's GPU, with other cores.

Only PyTorch's queries for devices are patched; nothing computes elsewhere because of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

from virtualgpu import gpu as virtual

_NEED_A_GPU = ("current_device", "get_device_name", "get_device_properties", "synchronize", "reset_peak_memory_stats")
_COUNT_NOTHING = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
STAND_IN = "meta"  # a device that PyTorch has on any machine, in place of one that is not here


@contextmanager
def without_gpu() -> Iterator[None]:
    """A machine with PyTorch's CUDA build and no GPU."""

    def accelerator(check_available: bool = False) -> torch.device | None:
        return None if check_available else torch.device("cuda")

    with _answers(accelerator, lambda: False, lambda: 0, _no_cuda):
        yield


@contextmanager
def on_the_cpu() -> Iterator[None]:
    """The same, without the notebook's virtual GPU, which would intercept every operation."""
    with virtual.without_gpu(), without_gpu():
        yield


@contextmanager
def with_another_accelerator() -> Iterator[set[str]]:
    """A machine whose only GPU is not CUDA's, as Intel's or Apple's; its device type here is `STAND_IN`. Yields a set
    that collects which of "xpu" and "mps" were asked for by name."""

    def accelerator(check_available: bool = False) -> torch.device:
        return torch.device(STAND_IN)

    with _answers(accelerator, lambda: True, lambda: 1, lambda *args: 0) as kinds:
        yield kinds


@contextmanager
def with_cores(count: int) -> Iterator[None]:
    """A machine of `count` cores, all of them available to this process, by each of Python's functions."""
    with ExitStack() as stack:
        for name, answer in (
            ("cpu_count", lambda: count),
            ("process_cpu_count", lambda: count),
            ("sched_getaffinity", lambda pid: set(range(count))),
        ):
            if hasattr(os, name):
                stack.enter_context(patch.object(os, name, answer))
        yield


def _no_cuda(*args: object, **kwargs: object) -> None:
    raise RuntimeError("No CUDA GPUs are available")


@contextmanager
def _answers(
    accelerator: Callable[..., Any], available: Callable[[], bool], count: Callable[[], int], index: Callable[..., Any]
) -> Iterator[set[str]]:
    kinds: set[str] = set()

    def no(kind: str) -> bool:
        kinds.add(kind)
        return False

    here: list[tuple[Any, str, Callable[..., Any]]] = [
        (torch.accelerator, "current_accelerator", accelerator),
        (torch.accelerator, "is_available", available),
        (torch.accelerator, "device_count", count),
        (torch.accelerator, "current_device_index", index),
        (torch.accelerator, "current_device_idx", index),
        (torch.cuda, "is_available", lambda: False),
        (torch.cuda, "device_count", lambda: 0),
        *((torch.cuda, name, _no_cuda) for name in _NEED_A_GPU),
        *((torch.cuda, name, lambda *args, **kwargs: 0) for name in _COUNT_NOTHING),
        (torch.xpu, "is_available", lambda: no("xpu")),
        (torch.mps, "is_available", lambda: no("mps")),
        (torch.backends.mps, "is_available", lambda: no("mps")),
    ]
    with ExitStack() as stack:
        for home, name, answer in here:
            if hasattr(home, name):
                stack.enter_context(patch.object(home, name, answer))
        yield kinds

"""What the checks of lesson 04 share: the lecture's sections, the virtual GPUs they run on, a machine without one, and
the search for the misconception behind a wrong number of MiB.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn

from ...virtual.gpu import VirtualGPU
from ...virtual.scope import in_force
from ..base import Trial
from ..measure import virtual_gpu
from ..wording import as_float, is_number, show

MIB = 2**20

# The sections of the lecture that a failed check sends its reader to.
FOUR_NUMBERS = "Four numbers for one GPU"
FOUR_BUCKETS = "Four buckets, and the logits"
SEVEN_BILLION = "Seven billion parameters"
KEEPS = "What the forward pass keeps"
ALLOCATOR = "The caching allocator"
TRACKER = "A tracker of your own"
STEP = "Watch a step"
SECTIONS = (FOUR_NUMBERS, FOUR_BUCKETS, SEVEN_BILLION, KEEPS, ALLOCATOR, TRACKER, STEP)


@dataclass(frozen=True)
class Suspect:
    """The number that a known mistake would give, in MiB, and what to say of it."""

    value: float
    summary: str
    likely: str
    read: str


class Halves(nn.Module):
    """The product of both halves of the columns: autograd saves two views of one storage, which holds all of them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        return x[..., :half] * x[..., half : 2 * half]


def gpus(count: int = 2) -> VirtualGPU:
    """Virtual T4s that know shapes only, with the allocator's own settings, whatever the environment asks for."""
    return virtual_gpu(count=count, compute=False)


@contextlib.contextmanager
def no_gpu() -> Iterator[None]:
    """A machine without a GPU, whatever stands in this one; to be entered in the thread that works there."""
    with contextlib.ExitStack() as stack:
        if in_force.current is not None:
            stack.enter_context(in_force.current.suspended())
        if torch.cuda.is_available() or torch.accelerator.is_available():
            answers: dict[str, Any] = {"is_available": False, "device_count": 0, "memory_allocated": 0}
            answers |= {"max_memory_allocated": 0, "memory_reserved": 0, "max_memory_reserved": 0}
            for name, answer in answers.items():
                stack.enter_context(mock.patch.object(torch.cuda, name, lambda *_, answer=answer, **__: answer))
            for name in ("synchronize", "reset_peak_memory_stats", "current_device", "init", "current_stream"):
                stack.enter_context(mock.patch.object(torch.cuda, name, _no_driver))
            for name, answer in {"is_available": False, "device_count": 0, "current_accelerator": None}.items():
                stack.enter_context(mock.patch.object(torch.accelerator, name, lambda *_, answer=answer, **__: answer))
        yield


def _no_driver(*_: Any, **__: Any) -> None:
    raise RuntimeError("Found no NVIDIA driver on your system.")


def near(got: float, want: float) -> bool:
    """Equal but for the last digits of a float; bytes are exact."""
    return abs(got - want) <= 1e-9 * max(1.0, abs(want))


def judge_mib(
    trial: Trial, name: str, got: Any, want: float, where: str, suspects: Iterable[Suspect], *, likely: str, read: str
) -> None:
    """Pass if `got` is `want` MiB; else name the first suspect that would give it, or a wrong unit. `where` says
    what was measured; `likely` is for a number that nothing explains."""
    number = is_number(got)
    got = as_float(got) if number else got
    if number and near(got, want):
        return
    rows = {"expected": f"{mib(want)}: {where}", "got": mib(got) if number else show(got)}
    if not number:
        trial.fail(
            f"{name} is not a number",
            likely="the end of a measurement sets it: here it was never set, or set to something else",
            read=read,
            **rows,
        )
    for suspect in suspects:
        if near(got, suspect.value) and not near(want, suspect.value):
            trial.fail(suspect.summary, likely=suspect.likely, read=suspect.read, **rows)
    for factor, unit in _UNITS:
        if want and near(got, want * factor):
            trial.fail(
                f"{name} is in {unit}, not in MiB",
                likely="PyTorch's messages and nvidia-smi count in MiB, 2**20 bytes, also where their text says MB: "
                f"divide the bytes by 2**20. A number in {unit} does not compare with theirs",
                read=FOUR_NUMBERS,
                **rows,
            )
    trial.fail(f"{name} is not what was measured", likely=likely, read=read, **rows)


_UNITS = (
    (MIB / 1e6, "MB of 10**6 bytes"),
    (float(MIB), "bytes"),
    (1024.0, "KiB"),
    (1 / 1024, "GiB"),
    (MIB / 1e9, "GB of 10**9 bytes"),
)


def mib(value: float) -> str:
    text = f"{value:,.4f}".rstrip("0").rstrip(".")
    return f"{text} MiB" if abs(value) < 1e6 else f"{value:,.0f}"

"""Defines the reading of one GPU and the readings of all GPUs at one moment, with their table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from virtualgpu.readings.source import Numbers
from virtualgpu.units import MIB


@dataclass(frozen=True)
class Slice:
    """One MIG slice of a GPU: sizes in bytes; `device` is its name in torch, such as "cuda:0", if known."""

    index: int
    name: str | None = None
    uuid: str | None = None
    device: str | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None

    @property
    def label(self) -> str:
        return f"slice {self.index}" + (f" ({self.device})" if self.device else "")


@dataclass(frozen=True)
class Reading:
    """The state of one GPU at one moment. A value that the driver does not provide is None, and `unread` says why.

    - `index`: the physical number, as in nvidia-smi; CUDA_VISIBLE_DEVICES does not change it. `device` is the same
      GPU's name in this program's torch ("cuda:0"); None if torch does not see it or if it is unknown.
    - `used_bytes`, `total_bytes`: all of the GPU's memory in use, by every program, as nvidia-smi counts it: the CUDA
      context and PyTorch's cached blocks are in it. `torch.cuda.memory_allocated` counts this program's tensors only.
    - `utilization`: percent of the time of the last sample period in which at least one kernel was running. The driver
      chooses the period, from 1/6 s to 1 s. 100 does not mean that the GPU is well used: one kernel on one of its
      multiprocessors counts as much as one on all of them. On the virtual GPU: percent of the time since the previous
      reading, on the scope's own clock; Python's real time between operations is part of it, so that this number is
      not exactly reproducible.
    - `memory_utilization`: percent of the same period in which its memory was being read or written: the traffic, not
      the amount of memory in use.
    - `temperature_c` in °C; `power_w` and the limit in force, `power_limit_w`, in watts; `sm_clock_mhz`, the clock of
      the multiprocessors at this moment, in MHz.
    - `energy_j`: joules since the driver was loaded; the difference of two readings is the energy between them.
    - `mig`: the GPU is split into `slices`. The driver then has no utilization, and a program gets one slice.
    - `numbers`: "measured" or "virtual".
    """

    index: int
    numbers: Numbers
    name: str | None = None
    uuid: str | None = None
    device: str | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None
    utilization: float | None = None
    memory_utilization: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: float | None = None
    energy_j: float | None = None
    mig: bool = False
    slices: tuple[Slice, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The name in tables and pictures."""
        return f"GPU {self.index}" + (f" ({self.device})" if self.device else "")


class Readings(tuple[Reading, ...]):
    """The readings of one moment, one for each GPU. Without any, `reason` says why; printed, it is a table."""

    reason: str

    def __new__(cls, readings: Iterable[Reading] = (), reason: str = "") -> Readings:
        self = super().__new__(cls, readings)
        self.reason = reason
        return self

    def __repr__(self) -> str:
        if not self:
            return f"no reading: {self.reason}"
        rows = [_HEAD, *(row for reading in self for row in _rows(reading))]
        untold: dict[tuple[str, ...], list[str]] = {}
        for reading in self:
            untold.setdefault(reading.unread, []).append(reading.label)
        notes = [f"{', '.join(who)}, not told: {'; '.join(why)}" for why, who in untold.items() if why]
        return "\n".join([*_aligned(rows), *notes])


_HEAD = ("GPU", "name", "busy", "memory", "temperature", "power", "clock", "numbers")


def _rows(reading: Reading) -> list[tuple[str, ...]]:
    first: tuple[str, ...] = (
        reading.label,
        reading.name or "–",
        amount(reading.utilization, "%"),
        memory(reading.used_bytes, reading.total_bytes),
        amount(reading.temperature_c, "°C"),
        power(reading.power_w, reading.power_limit_w),
        amount(reading.sm_clock_mhz, "MHz"),
        reading.numbers,
    )
    return [first] + [
        (f"  {part.label}", part.name or "–", "–", memory(part.used_bytes, part.total_bytes), "–", "–", "–", first[-1])
        for part in reading.slices
    ]


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def amount(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:,.0f} {unit}"


def memory(used: int | None, total: int | None) -> str:
    if used is None:
        return "–"
    return f"{used / MIB:,.0f} MiB" if total is None else f"{used / MIB:,.0f} of {total / MIB:,.0f} MiB"


def power(watts: float | None, limit: float | None) -> str:
    if watts is None:
        return "–"
    return f"{watts:,.0f} W" if limit is None else f"{watts:,.0f} of {limit:,.0f} W"

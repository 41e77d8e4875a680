"""Reads and judges the host: Python, memory, processors and disk, within the limits of this process's container."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time, sleep
from typing import Any

from virtualgpu.control_groups import Limits, read_limits
from virtualgpu.units import gib

from ... import course
from .finding import Finding

OLDEST_PYTHON = (3, 11)
_LOOK_SECONDS = 0.1
_GIB = 2**30


@dataclass(frozen=True)
class Memory:
    """The host's memory in bytes, and the limits of this process."""

    total: int
    available: int
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Processors:
    """The logical processors of the host, those `allowed` for this process, and its share of time if limited.

    `busy` is the number of allowed ones that other programs use.
    """

    host: int
    allowed: int
    share: float | None = None
    busy: float = 0.0

    @property
    def threads(self) -> int:
        """The number of threads that get a processor each. More would wait for one another after every operation."""
        free = min(self.allowed - self.busy + 0.5, self.allowed if self.share is None else self.share)
        return max(1, int(free + 1e-9))

    @property
    def why(self) -> str:
        """The limit of `threads`; "" if it is the number of processors alone."""
        if self.threads == int(self.share or 0) or (self.share is not None and self.share < 1):
            return f"{self.share:g} processors' worth of time is allowed"
        if self.threads < self.allowed:
            return f"other programs keep {self.busy:.1f} of {self.allowed} processors busy"
        return f"{self.allowed} of {self.host} processors are allowed" if self.allowed < self.host else ""


@dataclass(frozen=True)
class Disk:
    """The disk of the course folder, or else of the current one, in bytes."""

    total: int
    free: int
    writable: bool


def read_python() -> tuple[int, ...]:
    return tuple(sys.version_info[:3])


def read_memory() -> Memory:
    import psutil

    memory = psutil.virtual_memory()
    return Memory(memory.total, memory.available, read_limits())


def read_processors() -> Processors:
    host = os.cpu_count() or 1
    if hasattr(os, "process_cpu_count"):  # Python 3.13
        allowed = os.process_cpu_count() or host
    elif hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = host
    return Processors(host, allowed, read_limits().processors, read_busy(allowed))


def read_busy(allowed: int) -> float:
    """Return how many of the `allowed` processors other programs use: the lower of the last minute's load, which counts
    this process too, and the use at this moment, which may be exceptional.
    """
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float(allowed)  # not on Windows
    return min(load, _busy_now()) if load >= 0.5 else 0.0


def _busy_now() -> float:
    """Return how many of this process's processors other programs use, over a tenth of a second."""
    import psutil

    at = process_time()
    before = psutil.cpu_times(percpu=True)
    sleep(_LOOK_SECONDS)
    after, own = psutil.cpu_times(percpu=True), process_time() - at
    mine: Iterable[int] = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(after))
    busy = 0.0
    for number in mine:
        if number < min(len(before), len(after)):
            passed = sum(after[number]) - sum(before[number])
            waited = _waiting(after[number]) - _waiting(before[number])
            busy += 1 - waited / passed if passed > 0 else 0.0
    return max(0.0, busy - own / _LOOK_SECONDS)


def _waiting(times: Any) -> float:
    return float(times.idle + getattr(times, "iowait", 0.0))


def read_disk(folder: Path | None = None) -> Disk:
    folder = folder or course.folder() or Path.cwd()
    usage = shutil.disk_usage(folder)
    return Disk(usage.total, usage.free, os.access(folder, os.W_OK))


def judge_python(version: tuple[int, ...]) -> Finding:
    text, oldest = ".".join(map(str, version)), ".".join(map(str, OLDEST_PYTHON))
    if version < OLDEST_PYTHON:
        return Finding(
            "Python",
            "problem",
            f"{text}: the course needs {oldest} or newer",
            f"Install Python {oldest} or newer, remove the folder .venv, and run make lab again.",
        )
    return Finding("Python", "ok", text)


def judge_memory(memory: Memory) -> Finding:
    total, available, whose = memory.total, memory.available, "in this machine"
    limits = memory.limits
    if limits.memory is not None and limits.memory < total:
        total, whose = limits.memory, f"allowed here (the machine has {gib(memory.total)})"
        available = min(available, max(0, limits.memory - (limits.used or 0)))
    what = f"{gib(available)} free of {gib(total)} {whose}"
    close = "Close other programs and shut down kernels you have finished with"
    if available < _GIB:
        return Finding("Memory", "problem", what, f"{close}: a lesson needs about 1 GiB.")
    if available < 2 * _GIB:
        return Finding("Memory", "note", what, f"{close} before you open a second lesson.")
    return Finding("Memory", "ok", what)


def judge_processors(processors: Processors) -> Finding:
    """Judge how many processors this process may use, which may be fewer than the host has."""
    here, host = processors.allowed, processors.host
    what = f"{here} of {host} for this process"
    limited = processors.share is not None and processors.share < here
    if limited:
        what += f", with {processors.share:g} processors' worth of time"
    if processors.busy >= 0.5:
        what += f"; other programs keep {processors.busy:.1f} busy"
    count = processors.threads
    what += f"; gpulab.setup() lets PyTorch compute with {count} {'thread' if count == 1 else 'threads'} at most"
    if limited:
        do = "Give DataLoader no more workers than that: os.cpu_count() ignores this limit."
        return Finding("Processors", "note", what, do)
    if processors.busy >= 0.5 and count < here:
        do = "If this machine is yours, end the other programs, and run gpulab.setup() again."
        return Finding("Processors", "note", what, do)
    return Finding("Processors", "ok", what)


def judge_disk(disk: Disk) -> Finding:
    what = f"{gib(disk.free)} free of {gib(disk.total)} where the course is"
    if not disk.writable:
        return Finding(
            "Disk",
            "problem",
            f"{what}; the folder cannot be written",
            "Copy the course to a folder of your own, or take write permission on this one.",
        )
    if disk.free < _GIB:
        return Finding("Disk", "problem", what, "Free 1 GiB or more: notebooks may not save, and pip cannot install.")
    if disk.free < 5 * _GIB:
        return Finding("Disk", "note", what, "Free some: a CUDA build of torch alone takes several GiB.")
    return Finding("Disk", "ok", what)

"""Read the memory and CPU limits of Linux control groups (containers, batch systems; v1 and v2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Limits:
    """Limits of the control groups: bytes of memory, bytes in use under that limit, CPU time in cores."""

    memory: int | None = None
    used: int | None = None
    processors: float | None = None


def read_limits(root: Path = Path("/")) -> Limits:
    """Return the limits of this process (Linux, v1 and v2); empty where there are none. `root` stands in for /."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return Limits()
    memory, used, processors = [], [], []
    for line in groups:
        _, controllers, path = line.split(":", 2)
        for folder in _chain(root / "sys/fs/cgroup" / controllers, path):
            limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
            now = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes")
            if limit is not None and limit < 2**60:  # version 1 writes "no limit" as a huge number
                memory.append(limit)
                used.append((limit, max(0, (now or 0) - _reclaimable(folder))))
            if (share := _share(folder)) is not None:
                processors.append(share)
    return Limits(min(memory, default=None), min(used)[1] if used else None, min(processors, default=None))


def _chain(base: Path, path: str) -> Iterator[Path]:
    """Yield the group's folder and its parents: each of their limits holds."""
    folder = base / path.lstrip("/")
    while folder != base:
        yield folder
        folder = folder.parent
    yield base


def _number(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _reclaimable(folder: Path) -> int:
    """Return the bytes of file pages that the kernel reclaims under memory pressure."""
    try:
        table = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:
        return 0
    return int(table.get("total_inactive_file", table.get("inactive_file", 0)))


def _share(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except OSError:
        first, second = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        return first / second if first and second else None

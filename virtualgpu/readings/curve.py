"""`MemoryCurve` and `Mark`: allocated and reserved memory over a run, as data."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..units import mib
from .source import Numbers


@dataclass(frozen=True)
class Mark:
    """A moment with a name: `point` is the number of the curve's point at which it was set."""

    name: str
    point: int


@dataclass(frozen=True)
class Allocation:
    """A block that a tensor had: counted in the curve from point `born` on, and no longer from point `freed` on.

    `freed` is None if it was there at the end; `born` is 0 if it was there at the start. `line` says which line of code
    asked for it, "" where that is not known, as in a backward pass.
    """

    nbytes: int
    born: int
    freed: int | None
    line: str = ""


@dataclass(frozen=True)
class MemoryCurve:
    """The bytes allocated and reserved on one GPU, from the start of a run to its end.

    Point 0 is the start. With `every_event`, each further point is the state after one allocation, one free, or one
    change of the reserved memory; without it the points are the marks only, each exact. `requests` counts the
    allocations and frees up to each point. `allocations` are all tensors' blocks; empty without `every_event`.
    """

    device: str
    numbers: Numbers
    allocated_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...]
    requests: tuple[int, ...]
    marks: tuple[Mark, ...] = ()
    every_event: bool = True
    label: str = ""
    allocations: tuple[Allocation, ...] = field(default=(), repr=False)

    @property
    def peak_allocated_bytes(self) -> int:
        return max(self.allocated_bytes)

    @property
    def peak_reserved_bytes(self) -> int:
        return max(self.reserved_bytes)

    @property
    def peak_phase(self) -> str | None:
        """The mark after which the peak of allocated memory was reached; None before the first."""
        return self.phase(self.allocated_bytes.index(self.peak_allocated_bytes))

    def phase(self, point: int) -> str | None:
        """Return the mark after which `point` was reached; None before the first."""
        # A mark shows the state that was reached before it.
        before = [mark.name for mark in self.marks if mark.point < max(point, 1)]
        return before[-1] if before else None

    def finding(self) -> str:
        """State the peak in one line."""
        phase = f" in “{self.peak_phase}”" if self.peak_phase else ""
        start = "Allocated memory" if self.every_event else "At the marks, allocated memory"
        finding = f"{start} peaks at {mib(self.peak_allocated_bytes)}{phase}"
        return f"{self.label}: {finding[0].lower()}{finding[1:]}" if self.label else finding

    def describe(self) -> str:
        """Describe the curve in full, as alternative text."""
        first, last = self.allocated_bytes[0], self.allocated_bytes[-1]
        parts = [
            f"{self.finding()} ({self.device}, {self.numbers}).",
            f"Allocated: {mib(first)} at the start, {mib(last)} at the end. Reserved: at most "
            f"{mib(self.peak_reserved_bytes)}.",
        ]
        if self.marks:
            marks = ", ".join(f"{mark.name} at {mib(self.allocated_bytes[mark.point])}" for mark in self.marks[:12])
            more = len(self.marks) - 12
            parts.append(f"Allocated at the marks: {marks}{f' and {more} more' if more > 0 else ''}.")
        if not self.every_event:
            parts.append("Between the marks nothing is known.")
        return " ".join(parts)

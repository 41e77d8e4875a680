"""Defines the result of `transfers.measure`: `Transfers`, its `Series` and their `Copy`s, with a table and a plot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from virtualgpu.readings.source import Numbers
from virtualgpu.units import decimal_size, duration_ms, three_figures

from ..timing import Timing
from .fit import Fit, fit
from .picture import show_plot

Direction = Literal["h2d", "d2h", "d2d"]
Kind = Literal["pinned", "pageable", "on the GPU"]


@dataclass(frozen=True)
class Copy:
    """The copies of one size; `gbps` is the effective bandwidth, bytes by time, in 10⁹ bytes per second.

    A copy within the GPU reads and writes, so that its memory's bandwidth is twice that.
    """

    nbytes: int
    timing: Timing

    @property
    def ms(self) -> float:
        return self.timing.median_ms

    @property
    def gbps(self) -> float:
        return self.nbytes / self.ms * 1e-6 if self.ms else float("inf")


@dataclass(frozen=True)
class Pinning:
    """The time of one `Tensor.pin_memory()`, which allocates page-locked memory and copies into it."""

    nbytes: int
    ms: float


@dataclass(frozen=True, repr=False)
class Series:
    """The copies of one kind, and the line through their times, None if there is none (see `fit`)."""

    kind: Kind
    copies: tuple[Copy, ...]

    @property
    def fit(self) -> Fit | None:
        if not all(copy.ms for copy in self.copies):
            return None
        return fit([copy.nbytes for copy in self.copies], [copy.ms for copy in self.copies])

    @property
    def latency_us(self) -> float:
        """The time of a copy without its bytes, in microseconds; ValueError if there is no line."""
        return self._line().latency_us

    @property
    def bandwidth_gbps(self) -> float:
        """The limit for large copies, in 10⁹ bytes per second; ValueError if there is no line."""
        return self._line().bandwidth_gbps

    def _line(self) -> Fit:
        line = self.fit
        if line is None:
            raise ValueError(
                f"latency and bandwidth cannot be computed from {len(self.copies)} sizes of {self.kind} copies, whose "
                "times must grow with the size: measure more sizes, further apart"
            )
        return line

    def __str__(self) -> str:
        line = self.fit
        if line is None:
            return f"{self.kind}: too few sizes for a line"
        worst = "the times lie on this line" if line.worst < 0.005 else f"the times are within {line.worst:.0%} of it"
        return (
            f"{self.kind}: {duration_ms(line.latency_us / 1e3)} + bytes / ({three_figures(line.bandwidth_gbps)} GB/s), "
            f"half of that rate at {decimal_size(line.half_rate_bytes)}; {worst}"
        )

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class Transfers:
    """Copies by size in one direction: "h2d" (CPU to GPU), "d2h" (GPU to CPU) or "d2d" (within the GPU).

    `series` has one entry for each kind of host memory, also as `pinned` and `pageable`. `skipped` has a sentence for
    each size that was left out.
    """

    direction: Direction
    device: str
    gpu: str
    how: str
    numbers: Numbers
    series: tuple[Series, ...]
    pinning: tuple[Pinning, ...] = ()
    skipped: tuple[str, ...] = ()

    @property
    def pinned(self) -> Series:
        """Copies from or to page-locked memory; ValueError if they were not measured."""
        return self._of("pinned")

    @property
    def pageable(self) -> Series:
        """Copies from or to ordinary memory; ValueError if they were not measured."""
        return self._of("pageable")

    @property
    def latency_us(self) -> float:
        """That of the only series; ValueError if there are two: use `pinned` or `pageable`."""
        return self._only("latency_us").latency_us

    @property
    def bandwidth_gbps(self) -> float:
        """That of the only series; ValueError if there are two: use `pinned` or `pageable`."""
        return self._only("bandwidth_gbps").bandwidth_gbps

    def _of(self, kind: Kind) -> Series:
        for series in self.series:
            if series.kind == kind:
                return series
        raise ValueError(f"no {kind} copies were measured, but {' and '.join(s.kind for s in self.series)} ones")

    def _only(self, what: str) -> Series:
        if len(self.series) > 1:
            raise ValueError(f"two kinds were measured: read .pinned.{what} or .pageable.{what}")
        return self.series[0]

    @property
    def route(self) -> str:
        return {"h2d": f"CPU to {self.device}", "d2h": f"{self.device} to CPU", "d2d": f"within {self.device}"}[
            self.direction
        ]

    def finding(self) -> str:
        """Return the result in one line."""
        reached = [(s.kind, max((copy.gbps for copy in s.copies), default=0.0)) for s in self.series if s.copies]
        if not reached:
            return "No size was measured"
        (kind, best), *rest = reached
        first = "Copies on the GPU" if kind == "on the GPU" else f"{kind.capitalize()} copies"
        return f"{first} reach {three_figures(best)} GB/s" + "".join(f", {k} ones {three_figures(b)}" for k, b in rest)

    def describe(self) -> str:
        """Return all results in sentences, as alt text."""
        parts = [f"{self.finding()} ({self.route}, {self.gpu}, {self.numbers})."]
        for series in self.series:
            times = ", ".join(f"{decimal_size(copy.nbytes)} {duration_ms(copy.ms)}" for copy in series.copies)
            parts.append(f"Time by size, {series.kind}: {times}. {series}.")
        return " ".join(parts + list(self.skipped))

    def plot(self) -> None:
        """Plot time and bandwidth by size, with the lines; needs matplotlib."""
        show_plot(self)

    def __str__(self) -> str:
        lines = [f"{self.route} ({self.gpu}): {self.numbers}, median, {self.how}"]
        if any(series.copies for series in self.series):
            lines += _table(self)
            lines += [str(series) for series in self.series]
        return "\n".join([*lines, *self.skipped])

    __repr__ = __str__


def _table(found: Transfers) -> list[str]:
    pinning = {pin.nbytes: pin.ms for pin in found.pinning}
    head = ["size"]
    for series in found.series:
        head += [series.kind, "GB/s"]
    rows = [[*head, "pin_memory()" if pinning else ""]]
    for index, nbytes in enumerate(copy.nbytes for copy in found.series[0].copies):
        row = [decimal_size(nbytes)]
        for series in found.series:
            copy = series.copies[index]
            row += [duration_ms(copy.ms), three_figures(copy.gbps)]
        rows.append([*row, duration_ms(pinning[nbytes]) if nbytes in pinning else ""])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]

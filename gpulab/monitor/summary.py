"""Summarises the samples of a watch: mean and largest values and the energy of each GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from virtualgpu.readings.source import Numbers
from virtualgpu.units import count

from .reading import Reading, Readings, Slice, memory
from .visible import is_mine

T = TypeVar("T")


@dataclass(frozen=True)
class Sample:
    """All readings of one moment, `at_s` seconds after the first, on a virtual GPU by its clock."""

    at_s: float
    readings: Readings


@dataclass(frozen=True)
class GPUSummary:
    """One GPU over all samples; None for values that no sample has.

    `mean_utilization`, in percent, and `mean_power_w`, in watts, are weighted by the time between samples.
    `peak_used_bytes` is the maximum of the samples: a peak between two is missed (`GPUMemoryTracker` has the exact one
    of this program's tensors). `energy_j` is the difference of the driver's counter, in joules. `slices` have the
    maximum in `used_bytes`.
    """

    index: int
    numbers: Numbers
    name: str | None = None
    device: str | None = None
    mean_utilization: float | None = None
    max_utilization: float | None = None
    peak_used_bytes: int | None = None
    total_bytes: int | None = None
    mean_power_w: float | None = None
    energy_j: float | None = None
    slices: tuple[Slice, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"GPU {self.index}" + (f" ({self.device})" if self.device else "")

    def __str__(self) -> str:
        parts = [f"{self.label}, {self.name or 'of unknown name'}, {self.numbers}: {self.busy}"]
        if self.peak_used_bytes is not None:
            parts.append(f"at most {memory(self.peak_used_bytes, self.total_bytes)} in use")
        if self.energy_j is not None:
            parts.append(f"{self.energy_j:,.0f} J")
        if self.mean_power_w is not None:
            parts.append(f"{self.mean_power_w:,.0f} W on average")
        lines = ["; ".join(parts)]
        for part in self.slices:
            used = memory(part.used_bytes, part.total_bytes)
            lines.append(f"  {part.label}, {part.name or 'of unknown name'}: at most {used} in use")
        return "\n".join(lines)

    @property
    def busy(self) -> str:
        if self.mean_utilization is None or self.max_utilization is None:
            return "busy: not told"
        return f"busy {self.mean_utilization:.0f} % on average, {self.max_utilization:.0f} % at most"


@dataclass(frozen=True)
class Summary:
    """The summary of a watch: its seconds, its number of samples, and each GPU. Without any GPU, `reason` says why.

    If this program's GPUs are known, only they are in it.
    """

    seconds: float
    samples: int
    gpus: tuple[GPUSummary, ...]
    reason: str = ""

    def __repr__(self) -> str:
        if not self.gpus:
            return f"no GPU was read: {self.reason}"
        readings = count(self.samples, "reading")
        clock = " on the virtual GPU's clock" if all(gpu.numbers == "virtual" for gpu in self.gpus) else ""
        head = f"{self.seconds:.3g} s{clock}, {readings}"
        return "\n".join([head, *map(str, self.gpus), *([f"Then: {self.reason}"] if self.reason else [])])


def summarise(samples: Sequence[Sample]) -> Summary:
    """Return the summary of these samples, which must be in the order of time."""
    if not samples:
        return Summary(0.0, 0, (), "nothing has been read yet")
    gpus = tuple(_summary(*series) for series in series_of(samples))
    return Summary(samples[-1].at_s - samples[0].at_s, len(samples), gpus, samples[-1].readings.reason)


Series = tuple[list[tuple[float, Reading]], list[float]]  # times and readings; the seconds of each


def series_of(samples: Sequence[Sample]) -> list[Series]:
    """Return the readings of each GPU, of this program's only if they are known.

    A reading counts for the time since the previous sample. A failed one belongs to the GPU of its index.
    """
    found: dict[tuple[Numbers, int, str | None], Series] = {}
    latest: dict[tuple[Numbers, int], tuple[Numbers, int, str | None]] = {}
    before = samples[0].at_s
    for sample in samples:
        for reading in sample.readings:
            place = reading.numbers, reading.index
            key = latest.get(place, (*place, reading.name)) if reading.name is None else (*place, reading.name)
            if latest.get(place, key)[2] is None and place in latest:  # its first readings failed and had no name
                found[key] = found.pop(latest[place])
            latest[place] = key
            readings, seconds = found.setdefault(key, ([], []))
            readings.append((sample.at_s, reading))
            seconds.append(sample.at_s - before)
        before = sample.at_s
    ours = [series for series in found.values() if any(is_mine(reading) for _, reading in series[0])]
    return ours or list(found.values())


def _summary(series: Sequence[tuple[float, Reading]], seconds: Sequence[float]) -> GPUSummary:
    readings = [reading for _, reading in series]
    used = [reading.used_bytes for reading in readings if reading.used_bytes is not None]
    # The first value is of the time before the watch.
    later = readings[1:] or readings
    busy = [reading.utilization for reading in later if reading.utilization is not None]
    return GPUSummary(
        index=readings[0].index,
        numbers=readings[0].numbers,
        name=_last(reading.name for reading in readings),
        device=_last(reading.device for reading in readings),
        mean_utilization=_mean(later, seconds[-len(later) :], lambda reading: reading.utilization),
        max_utilization=max(busy, default=None),
        peak_used_bytes=max(used, default=None),
        total_bytes=_last(reading.total_bytes for reading in readings),
        mean_power_w=_mean(later, seconds[-len(later) :], lambda reading: reading.power_w),
        energy_j=_energy([reading.energy_j for reading in readings if reading.energy_j is not None]),
        slices=_slices(readings),
        unread=readings[-1].unread,
    )


def _last(values: Iterable[T | None]) -> T | None:
    known = [value for value in values if value is not None]
    return known[-1] if known else None


def _mean(
    readings: Sequence[Reading], seconds: Sequence[float], field: Callable[[Reading], float | None]
) -> float | None:
    told = [
        (value, weight)
        for reading, weight in zip(readings, seconds, strict=True)
        if (value := field(reading)) is not None
    ]
    if not told:
        return None
    whole = sum(weight for _, weight in told)
    if whole <= 0:
        return sum(value for value, _ in told) / len(told)
    mean = sum(value * weight / whole for value, weight in told)
    # rounding must not put a mean outside of the range of its values
    return min(max(mean, min(value for value, _ in told)), max(value for value, _ in told))


def _energy(counter: Sequence[float]) -> float | None:
    """Return the energy from the first to the last value; None if the counter was reset with the driver."""
    if len(counter) < 2 or counter[-1] < counter[0]:
        return None
    return counter[-1] - counter[0]


def _slices(readings: Sequence[Reading]) -> tuple[Slice, ...]:
    most: dict[str, Slice] = {}
    for part in (part for reading in readings for part in reading.slices):
        key = part.uuid or str(part.index)
        known = [one.used_bytes for one in (part, most.get(key, part)) if one.used_bytes is not None]
        most[key] = replace(part, used_bytes=max(known, default=None))
    return tuple(most.values())

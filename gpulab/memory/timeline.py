"""Records allocated and reserved memory over a run, event by event, with named marks, from PyTorch's memory history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from virtualgpu.readings import counters
from virtualgpu.readings.counters import DeviceLike, Gpu
from virtualgpu.readings.curve import Allocation, Mark, MemoryCurve
from virtualgpu.readings.source import in_force, numbers_of
from virtualgpu.units import mib

from .replay import Life, Point, Replayed, Unclear, replay


def timeline(device: DeviceLike = None, *, label: str = "", max_events: int = 200_000) -> Timeline:
    """Record one GPU's memory in a `with` block; afterwards the object displays itself in a notebook.

        with gpulab.memory.timeline() as t:
            t.mark("forward")          # what follows is the forward pass
            loss = model(x).sum()
            t.mark("backward")
            loss.backward()
        t                              # or t.show(since="backward"); the data are in t.curve

    The picture shows each large tensor as a band: point at it to read its size, its phases and the line that asked for
    it. Drag over a stretch, or use the arrow keys and +, to see it larger.

    `device` is None (the current GPU), a number, a text such as "cuda:1" or a torch.device.
    It uses `torch.cuda.memory._record_memory_history`, for the block only unless it is on already. Recording costs some
    microseconds per allocation. If the history is incomplete (more than `max_events` events; a backend without one,
    such as cudaMallocAsync), the curve has its points at the marks only, and says so.
    """
    if isinstance(max_events, bool) or not isinstance(max_events, int) or max_events < 1:
        raise ValueError(f"max_events must be a number of events above 0, not {max_events!r}")
    found = counters.parse_device(device)
    if found == "all":
        raise ValueError('timeline records one GPU, so device must not be "all"; open one timeline for each GPU')
    return Timeline(found, label, max_events)


class Timeline:
    """The context manager of `timeline()`, with `mark`, and afterwards with `curve` and a figure."""

    def __init__(self, device: Any, label: str, max_events: int) -> None:
        self._device = device
        self._label = label
        self._max_events = max_events
        self._open = False
        self._gpu: Gpu | None = None
        self._readings: list[_Reading] = []
        self._history: _History | None = None
        self._curve: MemoryCurve | None = None
        self._entered = False

    @property
    def available(self) -> bool:
        """True if there is a GPU to record; without one the block runs and there is no curve."""
        return self._gpu is not None if self._entered else bool(counters.find_gpus(self._device))

    @property
    def curve(self) -> MemoryCurve:
        """The data. Raises RuntimeError before the end of the block, and without a GPU."""
        if self._curve is None:
            raise RuntimeError(self._why_not())
        return self._curve

    def mark(self, name: str) -> None:
        """Name the phase that follows. It does not synchronise."""
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"mark(name={name!r}): name must be a text such as 'backward'")
        if not self._open:
            raise RuntimeError(f"mark({name!r}) is outside the timeline's `with` block")
        if self._gpu is not None and in_force() is self._gpu.scope:
            self._readings.append(_Reading.now(self._gpu, name.strip()))

    def show(self, *, since: str | None = None, until: str | None = None) -> None:
        """Draw the curve; without one, print why.

        `since` and `until` are names of marks: drawn is what lies between the first that is named `since` and the first
        after it that is named `until`. Raises ValueError for a name that no mark has.
        """
        from .shown import show_curve

        if self._curve is None:
            print(self._why_not())
        else:
            show_curve(self._curve, *_stretch(self._curve, since, until))

    def _ipython_display_(self) -> None:
        self.show()

    def __repr__(self) -> str:
        if self._curve is None:
            return f"<Timeline: {self._why_not()}>"
        curve = self._curve
        return (
            f"<Timeline of {curve.device}: peak {mib(curve.peak_allocated_bytes)} allocated, "
            f"{mib(curve.peak_reserved_bytes)} reserved, marks: {len(curve.marks)}, {curve.numbers}>"
        )

    def _why_not(self) -> str:
        if self._open or not self._entered:
            return "no memory curve yet: it exists after the `with` block"
        return "no memory curve: there was no GPU to record"

    def __enter__(self) -> Timeline:
        if self._open:
            raise RuntimeError("this timeline is already open: use another timeline for a second block")
        gpus = counters.find_gpus(self._device)
        self._gpu, self._curve, self._history, self._readings = (gpus[0] if gpus else None), None, None, []
        self._entered = True
        if self._gpu is not None:
            import torch

            if self._gpu.type == "cuda" and torch.cuda.memory.get_allocator_backend() == "native":
                self._history = _History(self._gpu, self._max_events)
            self._readings.append(_Reading.now(self._gpu, ""))
        self._open = True
        return self

    def __exit__(self, *error: object) -> None:
        self._open = False
        gpu, history = self._gpu, self._history
        if gpu is None:
            return
        replayed = None
        if in_force() is gpu.scope:
            self._readings.append(_Reading.now(gpu, ""))
            if history is not None:
                replayed = history.end()
        self._history = None
        self._curve = _curve(gpu, self._readings, replayed, self._label)


@dataclass(frozen=True)
class _Reading:
    """PyTorch's counts at one moment; `requests` are the allocations and frees of the process so far."""

    name: str
    allocated: int
    reserved: int
    requests: int

    @staticmethod
    def now(gpu: Gpu, name: str) -> _Reading:
        stats = gpu.counts.memory_stats(gpu.number)
        requests = stats.get("allocation.all.allocated", 0) + stats.get("allocation.all.freed", 0)
        allocated, reserved = (stats.get(f"{kind}_bytes.all.current", 0) for kind in ("allocated", "reserved"))
        return _Reading(name, allocated, reserved, requests)


class _History:
    """PyTorch's memory history for one block of code."""

    def __init__(self, gpu: Gpu, max_events: int) -> None:
        import torch

        self._index = gpu.number
        torch.cuda.init()
        self._ours = not torch._C._cuda_isHistoryEnabled()
        if self._ours:
            torch.cuda.memory._record_memory_history(
                "all", context="alloc", stacks="python", max_entries=max_events, clear_history=True
            )
        self._first = torch.cuda.memory._snapshot()

    def end(self) -> Replayed | None:
        """Return what happened since the start; None if the history is incomplete."""
        import torch

        last = torch.cuda.memory._snapshot()
        if self._ours:
            torch.cuda.memory._record_memory_history(None)
        known = len(self._first["device_traces"][self._index])
        try:
            return replay(self._first, last["device_traces"][self._index][known:], self._index)
        except (Unclear, IndexError):
            return None


def _curve(gpu: Gpu, readings: list[_Reading], replayed: Replayed | None, label: str) -> MemoryCurve:
    points, lives = replayed or ([], [])
    places = _places(readings, points)
    start = readings[0].requests
    if places is None:
        lives = []
        points = [Point(r.allocated, r.reserved, r.requests - start) for r in readings]
        places = list(range(len(readings)))
        every_event = False
    else:
        every_event = True
    named = [(place, r.name) for r, place in zip(readings, places, strict=True) if r.name]
    failed = [(i, f"out of memory: {mib(point.oom)} asked") for i, point in enumerate(points) if point.oom]
    return MemoryCurve(
        device=gpu.name,
        numbers=numbers_of(gpu.scope),
        allocated_bytes=tuple(point.allocated for point in points),
        reserved_bytes=tuple(point.reserved for point in points),
        requests=tuple(point.requests for point in points),
        marks=tuple(Mark(name, place) for place, name in sorted(named + failed, key=lambda pair: pair[0])),
        every_event=every_event,
        label=label,
        allocations=tuple(Allocation(life.size, life.born, life.freed, _line(life)) for life in lives),
    )


def _stretch(curve: MemoryCurve, since: str | None, until: str | None) -> tuple[int, int]:
    """Return the points of two marks by their names; those of the ends for None."""

    def point(argument: str, name: str, after: int) -> int:
        found = [mark.point for mark in curve.marks if mark.name == name and mark.point > after]
        if not found:
            names = ", ".join(dict.fromkeys(repr(mark.name) for mark in curve.marks if mark.point > after)) or "none"
            where = "" if after < 0 else f" after {since!r}"
            raise ValueError(f"show({argument}={name!r}): no mark has this name{where}; there are {names}")
        return found[0]

    first = 0 if since is None else point("since", since, -1)
    last = len(curve.allocated_bytes) - 1 if until is None else point("until", until, -1 if since is None else first)
    return first, last


def _line(life: Life) -> str:
    """Say which line of the program asked for it, and in which function; "" where there is none in the history."""
    from virtualgpu.planning.peak_line import lines_of

    line, _ = lines_of((frame["filename"], frame["line"], frame["name"]) for frame in life.frames)
    if line is None:
        return ""
    return str(line) + ("" if line.function == "<module>" else f"\nin {line.function}")


def _places(readings: list[_Reading], points: list[Point]) -> list[int] | None:
    """Return the index in the curve of each reading; None if the curve does not contain all of them."""
    start, place, places = readings[0].requests, 0, []
    for reading in readings:
        wanted = reading.allocated, reading.reserved, reading.requests - start
        while place < len(points) and points[place].counts != wanted:
            place += 1
        if place == len(points):
            return None
        places.append(place)
    return places

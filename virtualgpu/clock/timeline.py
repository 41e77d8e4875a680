"""Record spans of host and GPU work on the virtual clock, and export them as a Chrome trace."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .clock import Clock, Span


class Timeline:
    """The spans of a stretch of code; `save` writes them for chrome://tracing or https://ui.perfetto.dev."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a Chrome trace; raises FileNotFoundError where the folder of `path` is missing."""
        path = Path(path)
        if not path.parent.is_dir():
            raise FileNotFoundError(f"path is {str(path)!r}; the folder {str(path.parent)!r} does not exist")
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(as_trace(self.spans)), encoding="utf-8")
        os.replace(part, path)
        return path

    def __repr__(self) -> str:
        kernels = [span for span in self.spans if span.where == "kernels"]
        if not self.spans:
            return "<Timeline: nothing recorded>"
        end = max(span.start + span.seconds for span in self.spans)
        took = end - min(span.start for span in self.spans)
        busy = sum(span.seconds for span in kernels)
        return f"<Timeline: {took * 1e3:.3f} ms, {len(kernels)} kernels of {busy * 1e3:.3f} ms together (virtual)>"


@dataclass(frozen=True)
class Communication:
    """A GPU's collectives in a stretch of time, in seconds and bytes.

    In `seconds` a collective's kernel ran, from this rank's arrival on; in `waited` of them it spun until the last
    rank had come, and in `exposed` no other kernel of this GPU ran: the cost of the exchange and of late ranks. The
    `nbytes` move in `seconds` without `waited`.
    """

    seconds: float
    exposed: float
    collectives: int
    nbytes: int
    waited: float = 0.0

    @property
    def hidden(self) -> float:
        return self.seconds - self.exposed


def communication(spans: Iterable[Span], device: int = 0, since: float = 0.0) -> Communication:
    """Return the collectives of a GPU that began at `since` or later."""
    mine = [span for span in spans if span.device == device and span.start >= since]
    between = [span for span in mine if span.where == "ranks"]
    together = _merged((span.start, span.start + span.seconds) for span in between)
    kernels = _merged((span.start, span.start + span.seconds) for span in mine if span.where == "kernels")
    waits = _merged((span.start, span.start + span.waited) for span in between)
    seconds = _length(together)
    exposed = seconds - _overlap(together, kernels)
    return Communication(seconds, exposed, len(between), sum(span.nbytes for span in between), _length(waits))


def _length(intervals: list[tuple[float, float]]) -> float:
    return sum(end - start for start, end in intervals)


def _merged(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the union of the intervals, in order and disjoint."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _overlap(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> float:
    total, at = 0.0, 0
    for start, end in one:
        while at < len(other) and other[at][1] <= start:
            at += 1
        place = at
        while place < len(other) and other[place][0] < end:
            total += min(end, other[place][1]) - max(start, other[place][0])
            place += 1
    return total


@contextlib.contextmanager
def record_timeline(clock: Clock) -> Iterator[Timeline]:
    """Record the spans of `clock` within the block; recordings may nest."""
    timeline = Timeline()
    outer, clock.record = clock.record, timeline.spans
    try:
        yield timeline
    finally:
        clock.record = outer
        if outer is not None:
            outer.extend(timeline.spans)


def as_trace(spans: Sequence[Span]) -> dict[str, Any]:
    """Return the spans as a Chrome trace, for chrome://tracing or Perfetto; its times are in microseconds."""
    events: list[dict[str, Any]] = []
    lanes: dict[tuple[int, str], None] = {}
    for span in spans:
        pid = 0 if span.where in ("host", "range") else 1 + span.device
        lanes_of = {"kernels": f"stream {span.stream}", "ranks": f"stream {span.stream} (between ranks)"}
        lane = {"host": "host (virtual)", "range": "NVTX ranges (virtual)", **lanes_of}.get(
            span.where, f"copy {span.where}"
        )
        lanes[pid, lane] = None
        about: dict[str, Any] = {}
        if span.flops:
            about |= {"flops": span.flops, "TFLOP/s": round(span.flops / span.seconds / 1e12, 3)}
        if span.nbytes:
            moving = span.seconds - span.waited
            about |= {"bytes": span.nbytes, "GB/s": round(span.nbytes / moving / 1e9, 3)}
        if span.waited:
            about["waited for other ranks (us)"] = round(span.waited * 1e6, 3)
        events.append(
            {
                "ph": "X", "name": span.name, "cat": span.where, "pid": pid, "tid": lane,
                "ts": round(span.start * 1e6, 3), "dur": round(span.seconds * 1e6, 3), "args": about,
            }
        )  # fmt: skip
    tids = {key: number for number, key in enumerate(lanes)}
    for event in events:
        event["tid"] = tids[event["pid"], event["tid"]]
    names = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"virtual cuda:{pid - 1}" if pid else "host"}}
        for pid in sorted({pid for pid, _ in lanes})
    ]
    names += [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": lane}}
        for (pid, lane), tid in tids.items()
    ]
    return {"traceEvents": names + events, "displayTimeUnit": "ms", "gpulab": "virtual times, predicted by a model"}

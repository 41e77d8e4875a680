"""One call over time: what the host did, and below it each stream of the GPU, as data, text and picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from virtualgpu.pictures import display
from virtualgpu.readings.counters import DeviceLike

from .recording import Event, Recording, record

_COLUMNS = 60  # of the text form
_LETTERS = {"launch": "|", "wait": "w", "kernel": "#", "copy": "="}


@dataclass(frozen=True, repr=False)
class Timeline:
    """What host and GPU did in one call; times in ms from its start, until both were done (`ms`).

    `lanes` has the host's events first, then those of each stream in which something ran. Streams are counted from 0 in
    the order of their ids, which CUDA gives anew to each one that is made; the default stream's is the lowest.
    """

    recording: Recording

    @property
    def ms(self) -> float:
        return self.recording.ms

    @property
    def lanes(self) -> dict[str, tuple[Event, ...]]:
        events = self.recording.events
        streams = sorted({event.stream for event in events if event.stream is not None})
        named = [("host", None), *((f"stream {number}", stream) for number, stream in enumerate(streams))]
        return {name: tuple(event for event in events if event.stream == stream) for name, stream in named}

    @property
    def finding(self) -> str:
        """How much of the time kernels and copies ran and the host waited, in one sentence."""
        if not self.recording.on_gpu:
            return f"No kernel and no copy ran on {self.recording.device}"
        of = {kind: _covered(event for event in self.recording.events if event.kind == kind) for kind in _LETTERS}
        both = of["kernel"] + of["copy"] - _covered(self.recording.on_gpu)
        together = f", both at once {both / self.ms:.0%}" if both > 0.005 * self.ms else ""
        return (
            f"In {self.ms:,.3f} ms kernels run {of['kernel'] / self.ms:.0%} of the time, copies "
            f"{of['copy'] / self.ms:.0%}{together}; the host waits {of['wait'] / self.ms:.0%}"
        )

    def __str__(self) -> str:
        lanes = [f"{name:<10} {_line(events, self.ms)}" for name, events in self.lanes.items()]
        key = f"| launch, w wait, # kernel, = copy; one letter is {self.ms / _COLUMNS:.2g} ms"
        return "\n".join([f"{self.finding} ({self.recording.source}).", *lanes, key])

    __repr__ = __str__

    def describe(self) -> str:
        """The lanes in sentences, as alternative text of the picture."""
        lanes = ". ".join(
            f"{name}: "
            + (", ".join(f"{event.name} at {event.start_ms:.3f}" for event in events[:12]) or "nothing")
            + (f" and {len(events) - 12} more" if len(events) > 12 else "")
            for name, events in self.lanes.items()
        )
        return f"{self.finding} ({self.recording.source}). Starts in ms. {lanes}."

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return display.bundle(str(self), svg=self.svg())

    def show(self) -> None:
        """Show text and picture in a notebook, the text in a terminal."""
        display.show(str(self), svg=self.svg())

    def svg(self) -> str:
        """The picture as an SVG document; names and times of bars show where the pointer rests on them."""
        from virtualgpu.pictures.style import scale

        from .picture import draw

        where = f"{self.recording.device}, {self.recording.source}"
        return draw(self).text(note=f"One call on {where}. Bars too thin to be seen are drawn together.", scale=scale())


def timeline(function: Callable[[], object], *, device: DeviceLike = None) -> Timeline:
    """Call `function()` once; return its timeline: launches and waits of the host, kernels and copies by stream.

        gpulab.timing.timeline(lambda: step(x))      # last in a cell it shows its picture, in ms

    The GPU is idle at the start. On a virtual GPU the source is its clock: launches and waits are the model's, and
    Python's own time between them does not count. On a real one it is `torch.profiler`, which slows the host down by
    some microseconds an operation; there the host's bars are CUDA's calls.

    `device` is the GPU whose streams are drawn: None (the current one), a number, a text such as "cuda:1" or a
    torch.device. What `function` returns is dropped; its exceptions pass through. Raises RuntimeError without a CUDA
    GPU, real or virtual, TypeError if `function` cannot be called without arguments.
    """
    return Timeline(record(function, device, "timing.timeline"))


def _covered(events: Iterable[Event]) -> float:
    """Milliseconds in which at least one of them goes on."""
    total, until = 0.0, 0.0
    for start, end in sorted((event.start_ms, event.end_ms) for event in events):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def _line(events: Iterable[Event], ms: float) -> str:
    """A lane in letters, each for the event that takes most of its time."""
    shares: list[dict[str, float]] = [{} for _ in range(_COLUMNS)]
    for event in events:
        first, last = (
            min(_COLUMNS - 1, max(0, int(at / (ms or 1) * _COLUMNS))) for at in (event.start_ms, event.end_ms)
        )
        for column in range(first, last + 1):
            start, end = column * ms / _COLUMNS, (column + 1) * ms / _COLUMNS
            share = min(end, event.end_ms) - max(start, event.start_ms)
            shares[column][event.kind] = shares[column].get(event.kind, 0.0) + share
    most = (max(share, key=lambda kind: share[kind]) if share else "" for share in shares)
    return "".join(_LETTERS.get(kind, ".") for kind in most)

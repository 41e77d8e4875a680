"""Detect host accesses to pinned memory while an asynchronous copy is still in flight.

A virtual GPU copies values at once, so the program computes the right results; on a real one they may not be there
yet. The virtual clock knows when a copy ends. Copies of CUDA graphs, and accesses through an address or a NumPy array
that was taken earlier, are not detected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..units import duration
from .source_lines import Line, Place, SourceLines

if TYPE_CHECKING:
    from ..clock.clock import Clock

_UNDER_WAY = "_gpulab_under_way"  # on a host storage: direction, end and line of its copy
_SHOWN = 3


class EarlyHostAccess:
    """Receives the copies of one scope (`began`), and the host's accesses to its memory (`used`)."""

    def __init__(self, clock: Clock, places: SourceLines) -> None:
        self._clock, self._places = clock, places
        self._until = 0.0  # end of the last copy
        self._found: dict[tuple[Place | None, Place | None, str], float] = {}  # how many seconds early, at most

    def began(self, storage: Any, way: str, end: float) -> None:
        """Note a copy between pinned memory and the GPU: `way` is "to GPU" or "to host", `end` on the clock."""
        self._until = max(self._until, end)
        setattr(storage, _UNDER_WAY, (way, end, self._places.here()))

    def waits(self) -> bool:
        """Return True if any copy is in flight."""
        if self._until <= self._clock.host:
            self._until = 0.0
        return self._until > 0

    def used(self, storage: Any, *, writes: bool) -> None:
        """Check a read of a storage by the host, or a write."""
        way, end, begun = getattr(storage, _UNDER_WAY, None) or ("", 0.0, None)
        early = end - self._clock.host
        if early > 0 and (writes or way == "to host"):
            key = self._places.here(), begun, way
            self._found[key] = max(self._found.get(key, 0.0), early)

    def sentences(self) -> tuple[str, ...]:
        """Return warnings, the earliest access first."""
        found = sorted(self._found.items(), key=lambda item: -item[1])
        said = [self._sentence(*key, early) for key, early in found[:_SHOWN]]
        if len(found) > _SHOWN:
            said.append(f"{len(found) - _SHOWN} more lines use host memory too early.")
        return tuple(said)

    def _sentence(self, used: Place | None, begun: Place | None, way: str, early: float) -> str:
        line, begin = (_short(None if place is None else self._places.line(place)) for place in (used, begun))
        what, risk = "writes to a pinned tensor whose copy to", "the new values may be what arrives"
        if way == "to host":
            what, risk = "uses a host tensor whose copy from", "it may find old values"
        return (
            f"{line} {what} the GPU, begun at {begin} with non_blocking=True, ends only {duration(early)} later "
            f"(virtual): on a GPU {risk}. Synchronize first{'' if way == 'to host' else ', or take another tensor'}."
        )


def _short(line: Line | None) -> str:
    return "PyTorch" if line is None else f"{line.file}:{line.line}"

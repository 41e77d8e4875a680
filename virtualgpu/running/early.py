"""Detect host accesses to pinned memory while an asynchronous copy is still in flight.

A virtual GPU has all values at once, so that the program computes what it should; a real one may not have them yet. The
virtual clock knows when a copy ends. What a CUDA graph copies, and who reads through an address or a NumPy array that
was taken before, is not seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..units import duration
from .places import Line, Place, Places

if TYPE_CHECKING:
    from ..clock.clock import Clock

_UNDER_WAY = "_gpulab_under_way"  # on a storage of the host: its copy's way, end and line
_SHOWN = 3


class Early:
    """Told of the copies of one scope (`began`), and of what the host does with its memory meanwhile (`used`)."""

    def __init__(self, clock: Clock, places: Places) -> None:
        self._clock, self._places = clock, places
        self._until = 0.0  # when the last of all ends
        self._found: dict[tuple[Place | None, Place | None, str], float] = {}  # how many seconds early, at most

    def began(self, storage: Any, way: str, end: float) -> None:
        """A copy between pinned memory and the GPU, `way` "to GPU" or "to host", ends at `end` of the clock."""
        self._until = max(self._until, end)
        setattr(storage, _UNDER_WAY, (way, end, self._places.here()))

    def waits(self) -> bool:
        """Whether any copy is under way."""
        if self._until <= self._clock.host:
            self._until = 0.0
        return self._until > 0

    def used(self, storage: Any, *, writes: bool) -> None:
        """The host reads a storage, or writes to it."""
        way, end, begun = getattr(storage, _UNDER_WAY, None) or ("", 0.0, None)
        early = end - self._clock.host
        if early > 0 and (writes or way == "to host"):
            key = self._places.here(), begun, way
            self._found[key] = max(self._found.get(key, 0.0), early)

    def sentences(self) -> tuple[str, ...]:
        """What is to be said of them, the earliest first."""
        found = sorted(self._found.items(), key=lambda item: -item[1])
        said = [self._sentence(*key, early) for key, early in found[:_SHOWN]]
        if len(found) > _SHOWN:
            said.append(f"{len(found) - _SHOWN} more lines use host memory too early.")
        return tuple(said)

    def _sentence(self, used: Place | None, begun: Place | None, way: str, early: float) -> str:
        line, begin = (_short(None if place is None else self._places.line(place)) for place in (used, begun))
        copy = f"begun at {begin} with non_blocking=True, ends only {duration(early)} later (virtual)"
        if way == "to host":
            return (
                f"{line} uses a host tensor whose copy from the GPU, {copy}: on a GPU it may find old values. "
                "Synchronize first."
            )
        return (
            f"{line} writes to a pinned tensor whose copy to the GPU, {copy}: on a GPU the new values may be "
            "what arrives. Synchronize first, or take another tensor."
        )


def _short(line: Line | None) -> str:
    return "PyTorch" if line is None else f"{line.file}:{line.line}"

"""Find script lines that time with `time.time()` or `time.monotonic()`, which stay the real clock.

Dates and time limits need it; a duration so measured is the time that this machine took to compute the values.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from typing import Any

from .source_lines import Place, SourceLines

_TWICE = 2  # a line that calls once reads a date


class WallClockCalls:
    """Counts, until `end`, the calls by script line."""

    def __init__(self, places: SourceLines) -> None:
        self._places = places
        self._calls: Counter[tuple[Place, str]] = Counter()
        self._undo = contextlib.ExitStack()
        for name in ("time", "monotonic"):
            own = getattr(time, name)
            self._undo.callback(setattr, time, name, own)
            setattr(time, name, self._counting(own, name))

    def end(self) -> None:
        """Stop counting."""
        self._undo.close()

    def sentence(self) -> str:
        """Return a note on them, "" if no line has called twice."""
        asked = [(place, name) for (place, name), calls in self._calls.items() if calls >= _TWICE]
        if not asked:
            return ""
        (place, name), *more = asked
        line = self._places.line(place)
        others = f" (and {len(more)} more line{'s' * (len(more) > 1)})" if more else ""
        return (
            f"{line.file}:{line.line}{others} reads time.{name}(), which stays this machine's clock: "
            "time.perf_counter() and CUDA events show the virtual time."
        )

    def _counting(self, own: Any, name: str) -> Any:
        calls, caller = self._calls, self._places.caller

        def call() -> float:
            place = caller()
            if place is not None:
                calls[place, name] += 1
            return own()

        return call

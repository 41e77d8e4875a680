"""NVTX ranges on a virtual GPU, which a recorded timeline shows beside its kernels."""

from __future__ import annotations

import itertools
import threading
from typing import Any

from ..clock.clock import Clock, Span


class Ranges:
    """The functions of `torch.cuda.nvtx`. Pushed ranges nest within their thread; started ones need not."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._started: dict[int, tuple[str, float]] = {}
        self._numbers = itertools.count(1)
        self._mine = threading.local()

    @property
    def _pushed(self) -> list[tuple[str, float]]:
        if not hasattr(self._mine, "pushed"):
            self._mine.pushed = []
        pushed: list[tuple[str, float]] = self._mine.pushed
        return pushed

    def range_push(self, msg: str) -> int:
        """Begin a range; the depth at which it lies, from 0."""
        self._pushed.append((msg, self.clock.host))
        return len(self._pushed) - 1

    def range_pop(self) -> int:
        """End the innermost range; the depth at which it lay, or a negative number where none is open."""
        if not self._pushed:
            return -2  # NVTX_NO_PUSH_POP_TRACKING, which NVTX answers
        self._record(*self._pushed.pop())
        return len(self._pushed)

    def range_start(self, msg: str) -> int:
        """Begin a range that any thread may end; its number."""
        number = next(self._numbers)
        self._started[number] = msg, self.clock.host
        return number

    def range_end(self, range_id: int) -> None:
        """End the range of this number; one that is unknown is passed over, as NVTX does."""
        if range_id in self._started:
            self._record(*self._started.pop(range_id))

    def mark(self, msg: str) -> None:
        self._record(msg, self.clock.host)

    def _record(self, name: Any, began: float) -> None:
        if self.clock.record is not None:
            self.clock.record.append(Span(str(name), "range", 0, 0, began, self.clock.host - began))

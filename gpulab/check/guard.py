"""Running a student's code in bounds: a time limit, a cap on what it prints, settings and random states put back.

The code runs in a thread of its own, so that a call which never returns cannot take the kernel with it, and
so that grad mode or autocast it switches never reach the notebook. No signals: they need the main thread.
"""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from . import settings
from .worker import Worker

LIMIT_SECONDS = 5.0
_KEEP_CHARACTERS = 200


@dataclass(frozen=True)
class Outcome:
    """What became of one call: a value, an error, or neither because its time was up."""

    value: Any = None
    error: BaseException | None = None
    timed_out: bool = False
    ended: bool = True  # False when the thread could not be stopped
    limit: float = 0.0
    left_behind: tuple[str, ...] = ()


class Guard:
    """Runs calls one at a time. The time limit is `LIMIT_SECONDS`, and more where the processor is shared."""

    def __init__(self) -> None:
        self._limit = LIMIT_SECONDS * _slowdown()
        self._out = _Capped()

    def run(self, function: Callable[..., Any], args: Sequence[Any], inside: AbstractContextManager[Any]) -> Outcome:
        """Call `function(*args)` in a thread with torch's default thread-local modes, `inside` entered there."""
        box: dict[str, Any] = {}

        def work() -> None:
            before = settings.local()
            try:
                with inside:
                    box["value"] = function(*args)
            finally:
                box["changed"] = settings.changed(before, settings.local())

        before, states, worker = settings.shared(), settings.random_states(), Worker(work)
        try:
            with redirect_stdout(self._out), redirect_stderr(self._out), warnings.catch_warnings():
                warnings.showwarning = self._out.take_warning
                try:
                    timed_out = not worker.wait(self._limit)
                finally:  # also when the student presses stop
                    ended = worker.end()
            left = tuple((settings.changed(before, settings.shared()) | box.get("changed", {})).values())
        finally:
            settings.put_back(before, also=box.get("changed", {}))
            settings.put_back_random(states)
        if timed_out:
            return Outcome(timed_out=True, ended=ended, limit=self._limit, left_behind=left)
        return Outcome(box.get("value"), worker.error, limit=self._limit, left_behind=left)

    def printed(self) -> str:
        """The beginning of what the calls printed, and how much there was."""
        return self._out.summary()


class _Capped(io.TextIOBase):
    """A stream that keeps the beginning and counts the rest: a student's million lines cost a few bytes."""

    def __init__(self) -> None:
        self._kept, self._count = "", 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._count < _KEEP_CHARACTERS:
            self._kept += text[: _KEEP_CHARACTERS - self._count]
        self._count += len(text)
        return len(text)

    def take_warning(self, message: Warning | str, category: type[Warning], *place: Any, **to: Any) -> None:
        self.write(f"{category.__name__}: {message}\n")

    def summary(self) -> str:
        kept = " ".join(self._kept.split())
        more = self._count - len(self._kept)
        return f"{kept} … and {more:,} more characters" if more > 0 else kept


def _slowdown() -> float:
    """How many times longer than its processor time this thread takes just now, from 1 to 10."""
    wall, processor = time.perf_counter(), time.thread_time()
    while (used := time.thread_time() - processor) < 0.005:
        pass
    return min(max((time.perf_counter() - wall) / used, 1.0), 10.0)

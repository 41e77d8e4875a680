"""Runs a student's code with a time limit and captured output, and restores settings and random states.

The code runs in a thread, so that a call which never returns does not block the kernel, and grad mode or autocast stay
its own. No signals: they need the main thread.

The limit is processor time, so that a slow answer on a busy machine does not count as an endless one. A call that uses
none, or little, is ended by a wall clock, which goes slower on a busy machine. During an import both stand still.
"""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any, Literal

from . import settings, worker
from .processor import TICK, FairClock, ProcessorTime
from .worker import Worker

LIMIT_SECONDS = 5.0  # of processor time
IDLE_SECONDS = 10.0  # in which a call uses next to no processor time
WALL_SECONDS = 60.0
_NEXT_TO_NONE = 0.01  # of the time
_KEEP_CHARACTERS = 200


Over = Literal["", "processor", "idle", "wall", "import"]


@dataclass(frozen=True)
class Outcome:
    """The result of one call: a value, an error, or neither where it exceeded a limit."""

    value: Any = None
    error: BaseException | None = None
    over: Over = ""  # the limit that it exceeded
    limit: float = 0.0  # that limit, in seconds
    ended: bool = True  # False when the thread could not be stopped
    left_behind: tuple[str, ...] = ()
    seeded: tuple[str, ...] = ()  # names of the functions that seed the global generators that were seeded


class Guard:
    """Runs a student's function, one call at a time."""

    def __init__(self) -> None:
        self._out = _Capped()

    def run(self, function: Callable[..., Any], args: Sequence[Any], inside: AbstractContextManager[Any]) -> Outcome:
        """Call `function(*args)` inside the context `inside`, in a thread with torch's default thread-local modes."""
        box: dict[str, Any] = {}

        def work() -> None:
            before = settings.local()
            try:
                with inside:
                    box["value"] = function(*args)
            finally:
                box["changed"] = settings.changed(before, settings.local())

        before, states, seeds, thread = settings.shared(), settings.random_states(), settings.seeds(), Worker(work)
        over: Over = ""
        limit = 0.0
        after: dict[str, Any] | None = None
        try:
            with redirect_stdout(self._out), redirect_stderr(self._out), warnings.catch_warnings():
                warnings.showwarning = self._out.take_warning
                watch, filters = _Watch(thread), _Filters()
                try:
                    thread.start()
                    while not over and not thread.wait(TICK):
                        over, limit = watch.over()
                finally:  # also when the student presses stop
                    ended = thread.end(for_imports=0.0 if over == "import" else worker.IMPORT_SECONDS)
                own = filters.changed()
            after = settings.shared()
            left = tuple((settings.changed(before, after) | box.get("changed", {}) | own).values())
            seeded = tuple(settings.seeded(states, seeds))
        finally:
            settings.restore(before, also=box.get("changed", {}), as_read=after)
            settings.restore_random(states)
        if over:
            return Outcome(over=over, limit=limit, ended=ended, left_behind=left)
        return Outcome(box.get("value"), thread.error, left_behind=left, seeded=seeded)

    def printed(self) -> str:
        """Return the beginning of what the calls printed, and how much more there was."""
        return self._out.summary()


class _Capped(io.TextIOBase):
    """A stream that keeps the first characters and counts the rest."""

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


class _Filters:
    """Detects changed warning filters; ignores changes if modules were imported, which may add filters."""

    def __init__(self) -> None:
        self._filters, self._modules = list(warnings.filters), len(sys.modules)

    def changed(self) -> dict[str, str]:
        if list(warnings.filters) == self._filters or len(sys.modules) != self._modules:
            return {}
        return {"warnings.filters": "warnings.filters with other entries (warnings.simplefilter or filterwarnings)"}


class _Watch:
    """Measures a call against the limits; `over` must be called every `TICK`."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._processor, self._clock = worker, ProcessorTime(), FairClock()
        self._used = self._at = 0.0  # processor time; seconds of the clock
        self._spared_used = self._spared_wall = self._import = 0.0  # in imports; in the one that goes on
        self._moved, self._moved_used = 0.0, 0.0  # when the call was last seen to compute
        self._children: float | None = None

    def over(self) -> tuple[Over, float]:
        """Return the limit that the call exceeds, and its seconds; ("", 0) if none."""
        last_used, last_at = self._used, self._at
        self._used, self._at = self._processor.used(), self._clock.now()
        if self._worker.importing():
            self._spared_used += self._used - last_used
            self._spared_wall += self._at - last_at
            self._import += self._at - last_at
            self._computes()
            return ("import", worker.IMPORT_SECONDS) if self._import > worker.IMPORT_SECONDS else ("", 0.0)
        self._import = 0.0
        if self._used - self._spared_used > LIMIT_SECONDS:
            return "processor", LIMIT_SECONDS
        if self._at - self._spared_wall > WALL_SECONDS:
            return "wall", WALL_SECONDS
        return ("idle", IDLE_SECONDS) if self._is_idle() else ("", 0.0)

    def _computes(self) -> None:
        self._moved, self._moved_used = self._at, self._used

    def _is_idle(self) -> bool:
        little = _NEXT_TO_NONE * IDLE_SECONDS
        if self._used - self._moved_used > little:
            self._computes()
        if self._at - self._moved <= IDLE_SECONDS / 2:
            self._children = None  # reading them takes longer than many calls
            return False
        if self._children is None:
            self._children = self._processor.of_children()
        if self._at - self._moved <= IDLE_SECONDS:
            return False
        before, self._children = self._children, self._processor.of_children()
        self._computes()
        return self._children - before <= little  # children that ended are missing in it

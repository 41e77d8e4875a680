"""Publish the operation in which a rank waits, so that a hang report names who waits for whom.

It waits in slices. Between them Python handles signals, which C would delay until the wait ends; after the first, the
rank publishes its operation in the ranks' store.
"""

from __future__ import annotations

import concurrent.futures
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")
SLICE = 0.5  # seconds
_KEY = "gpulab waits in "  # followed by a rank
_SHOWN = 4  # ranks that a text lists


@dataclass(frozen=True)
class Wait:
    """A wait in the operation `what`, described alike on all ranks; `ranks`: its global ranks, where they are known."""

    what: str
    ranks: tuple[int, ...] = ()


class Waits:
    """The waits of this process, published in the ranks' store once there is one."""

    def __init__(self) -> None:
        self._rank = 0
        self._store: Any = None
        self._clone: Any = None  # a separate connection: another thread may be waiting in the ranks' one
        self._wait: Wait | None = None

    def meet(self, store: Any, rank: int) -> None:
        """Publish through `store` from now on, as global rank `rank`."""
        self._rank, self._store, self._clone = rank, store, None

    def until(self, over: Callable[[float], bool], wait: Wait) -> None:
        """Wait until `over(seconds)`, which waits at most so long, returns True."""
        while not over(SLICE):
            if self._wait != wait:
                self._write(wait.what)
                self._wait = wait
        if self._wait is not None:  # kept if an error or Ctrl-C ends the wait, for the report
            self._wait = None
            self._write("")

    def text(self) -> str:
        """Return the operation in which this rank waits, and the ranks that it waits for; "" if it waits for none."""
        wait = self._wait
        if wait is None:
            return ""
        named = []
        for rank in wait.ranks if self._store is not None else ():
            what = self._read(rank)
            if rank != self._rank and what != wait.what:
                does = f"waits in {what}" if what else "waits for nobody: it is on its way, or has ended"
                named.append(f"rank {rank}, which {does}")
        more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
        return f"{wait.what}, for {'; '.join(named[:_SHOWN]) or 'the other ranks'}{more}"

    def _asks(self) -> Any:
        if self._clone is None and self._store is not None:
            self._clone = self._store.clone()
        return self._clone

    def _write(self, what: str) -> None:
        if self._store is not None:
            try:
                self._asks().set(f"{_KEY}{self._rank}", json.dumps(what))
            except RuntimeError:  # the store has ended with the process that held it
                self._store = None

    def _read(self, rank: int) -> str:
        """Return the operation in which another rank waits; "" if in none, or if the store is gone."""
        try:
            store, key = self._asks(), f"{_KEY}{rank}"
            return str(json.loads(store.get(key))) if store.check([key]) else ""
        except RuntimeError:
            return ""


here = Waits()


class Apart(Generic[_T]):
    """Calls a function that blocks in C in a thread of its own, so that the calling thread handles signals."""

    def __init__(self, function: Callable[[], _T]) -> None:
        self._function = function
        self._future: concurrent.futures.Future[_T] | None = None

    def there(self, seconds: float = 1e-3) -> bool:
        """Return True if it has returned or raised within `seconds` from now."""
        if self._future is None:
            self._future = concurrent.futures.Future()
            threading.Thread(target=self._run, args=(self._future,), daemon=True).start()
        return bool(concurrent.futures.wait([self._future], seconds).done)

    def take(self, wait: Wait) -> _T:
        """Return its result, or raise its error."""
        here.until(self.there, wait)
        assert self._future is not None
        return self._future.result()

    def _run(self, future: concurrent.futures.Future[_T]) -> None:
        try:
            future.set_result(self._function())
        except BaseException as error:  # raised again in `take`
            future.set_exception(error)

"""Publish the operation in which a rank waits, so that a hang report names who waits for whom.

It waits in slices. Between two of them Python handles signals, which C would hold back until the wait is over; and
after the first, the rank writes into the ranks' store what it waits in.
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
_KEY = "gpulab waits in "  # and a rank
_SHOWN = 4  # ranks of which a text tells


@dataclass(frozen=True)
class Wait:
    """A wait in `what`, in words that are the same on all ranks; `ranks` are the global ones that it takes, where these
    are known."""

    what: str
    ranks: tuple[int, ...] = ()


class Waits:
    """The waits of this process, whose global rank is `rank`, told through the ranks' `store` once there is one."""

    def __init__(self) -> None:
        self._rank = 0
        self._store: Any = None
        self._clone: Any = None  # a connection of its own: another thread may be waiting in the ranks' one
        self._wait: Wait | None = None

    def meet(self, store: Any, rank: int) -> None:
        """The ranks have met: from now on they can tell each other through `store`."""
        self._rank, self._store, self._clone = rank, store, None

    def until(self, over: Callable[[float], bool], wait: Wait) -> None:
        """Wait until `over`, which waits for some seconds and says whether it is."""
        while not over(SLICE):
            if self._wait != wait:
                self._write(wait.what)
                self._wait = wait
        if self._wait is not None:  # kept where an error or Ctrl-C ends the wait: it tells what the rank was in
            self._wait = None
            self._write("")

    def text(self) -> str:
        """What this rank waits in, and which ranks have not come to it: "" where it waits for nobody."""
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
            except RuntimeError:  # it has ended with the rank or the launcher that held it: nobody can be told
                self._store = None

    def _read(self, rank: int) -> str:
        """What another rank waits in; "" where it waits in nothing, or the store is gone."""
        try:
            store, key = self._asks(), f"{_KEY}{rank}"
            return str(json.loads(store.get(key))) if store.check([key]) else ""
        except RuntimeError:
            return ""


here = Waits()


class Apart(Generic[_T]):
    """A function that waits in C, called in a thread of its own, so that the thread that needs it handles signals."""

    def __init__(self, function: Callable[[], _T]) -> None:
        self._function = function
        self._future: concurrent.futures.Future[_T] | None = None

    def there(self, seconds: float = 1e-3) -> bool:
        """Whether it has returned or raised, `seconds` from now at the latest."""
        if self._future is None:
            self._future = concurrent.futures.Future()
            threading.Thread(target=self._run, args=(self._future,), daemon=True).start()
        return bool(concurrent.futures.wait([self._future], seconds).done)

    def take(self, wait: Wait) -> _T:
        """What it returns, or raise what it raises."""
        here.until(self.there, wait)
        assert self._future is not None
        return self._future.result()

    def _run(self, future: concurrent.futures.Future[_T]) -> None:
        try:
            future.set_result(self._function())
        except BaseException as error:  # it is raised where it is taken
            future.set_exception(error)

"""Runs one call in a thread that can be waited for, interrupted by the student, and ended from outside.

Python can end a thread only by raising an exception in it. Code that catches everything goes on, and so does a call
into C that never returns: such a thread is abandoned. So is one that imports, since half a module in `sys.modules`
would fail every later import of it.
"""

from __future__ import annotations

import contextvars
import ctypes
import functools
import importlib
import threading
import time
from collections.abc import Callable
from typing import Any

from .processor import FairClock, thread_seconds

IMPORT_SECONDS = 60.0  # for an import to end
_POLITE_SECONDS = 0.2
_END_SECONDS = 1.0
_PAUSE = 0.002  # between two exceptions
_DEPTH = 20
_imports: Any = importlib._bootstrap
_raise_in = ctypes.PYFUNCTYPE(None, ctypes.c_ulong, ctypes.py_object)(("PyThreadState_SetAsyncExc", ctypes.pythonapi))


class TimeUp(SystemExit):
    """Raised in a thread to end it. `except Exception` does not catch it; threading does not print it."""


class _Mark(BaseException):
    """Raised by a thread in itself, and caught, so that no asynchronous exception stays pending.

    A pending one keeps the interpreter's eval breaker set, and Python 3.11 then never gets past the first line of a
    function while it is traced: in a debugger, a profiler, or under Hypothesis. So this is done without a call of a
    Python function.
    """


class Worker:
    """Runs `call` in the daemon thread `thread`; `error` is the exception that it raised."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self._call, self._over, self._done = call, False, threading.Event()
        self._dropped, self._running = False, threading.Event()  # ended before it started; started
        context = contextvars.copy_context()  # so that a notebook's display finds its cell
        self.thread = threading.Thread(target=context.run, args=(self._run,), name="gpulab check", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def wait(self, seconds: float) -> bool:
        """Return True if the call ends within this time."""
        self._done.wait(seconds)  # not join: interrupted, it takes the thread for ended (Python 3.11)
        return self._done.is_set()

    def importing(self) -> bool:
        """Return True if the thread is within an import, or waits for another thread's.

        Its frames would show it too, but a reference to a frame keeps its tensors alive, which changes the memory that
        a check measures.
        """
        thread = self.thread.ident
        if thread is None:
            return False
        locks = [reference() for reference in list(_imports._module_locks.values())]
        return bool(_imports._blocking_on.get(thread)) or any(getattr(lock, "owner", None) == thread for lock in locks)

    def end(self, *, for_imports: float = IMPORT_SECONDS) -> bool:
        """Raise `TimeUp` in the thread until it ends. Returns False if that fails for a second in which the thread did
        nothing, or for a second of its own processor time.

        A bare `except` in a loop catches what is raised inside its try. So after a while each exception raises the next
        one when it is caught, which hits the handler, and so on outwards. (Python 3.12 counts the jump at the end of a
        handler as part of the try: there a loop with `except: pass` may go on.) A destructor that runs in the thread
        meanwhile, also of other code's garbage, is hit too.

        An import gets `for_imports` seconds to end. It cannot start between the check of the import locks and the
        exception: Python switches threads after 5 ms, and this one has only just been switched to.
        """
        self._dropped = True
        thread = self.thread.ident
        if thread is None:  # interrupted while the thread was being started: it will not call
            return True
        self._running.wait()
        here, clock, imports = threading.get_ident(), FairClock(), FairClock()
        strike: type[BaseException] = TimeUp
        mark, first, latest = 0.0, thread_seconds(self.thread.native_id), 0.0
        while not self._done.is_set() and self.thread.is_alive():
            if self.importing():  # wait; the second begins afterwards
                if imports.now() > for_imports:
                    return False
                clock = FairClock()
                mark, first, latest = 0.0, thread_seconds(self.thread.native_id), 0.0
                self._done.wait(_PAUSE)
                continue
            spent = clock.now()
            if spent - mark > _END_SECONDS:
                now = thread_seconds(self.thread.native_id)
                own = 0.0 if now is None or first is None else now - first
                if own - latest < 0.01 or own > _END_SECONDS:
                    return False
                mark, latest = spent, own  # it runs, on a busy machine
            if spent > _POLITE_SECONDS and strike is TimeUp:
                for _ in range(_DEPTH):
                    bring = functools.partial(_raise_in, thread, strike)  # C code, which no exception can interrupt
                    strike = type("TimeUp", (TimeUp,), {"__init__": staticmethod(bring)})
            if self.importing() or self._over:
                self._done.wait(_PAUSE)
                continue
            _raise_in(thread, strike)
            time.sleep(_PAUSE)
            try:
                _raise_in(here, _Mark)
                while True:
                    time.sleep(0)  # it is raised here
            except _Mark:
                pass
        self.thread.join()
        return True

    def _run(self) -> None:
        thread = threading.get_ident()
        self._running.set()
        try:
            if not self._dropped:
                self._call()
        except BaseException as error:
            self._over = True  # no exception is raised here from now on, and the mark replaces a pending one: there
            if self._dropped:  # is no interruptible bytecode before or between these
                try:
                    _raise_in(thread, _Mark)
                    while True:
                        time.sleep(0)
                except _Mark:
                    pass
            self.error = error
        self._over = True
        self._done.set()

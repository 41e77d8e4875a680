"""One call in a thread of its own that can be waited for, interrupted by the student, and ended from outside.

Python has no way to end a thread but to raise in it, and code that catches everything goes on. Neither does a
call into C that never comes back end: such a thread is left behind. So is one that imports: half a module in
`sys.modules` would fail every later import of it.
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

IMPORT_SECONDS = 60.0  # that an import is given to come to its end
_POLITE_SECONDS = 0.2
_END_SECONDS = 1.0
_PAUSE = 0.002  # between two exceptions
_DEPTH = 20
_imports: Any = importlib._bootstrap
_raise_in = ctypes.PYFUNCTYPE(None, ctypes.c_ulong, ctypes.py_object)(("PyThreadState_SetAsyncExc", ctypes.pythonapi))


class TimeUp(SystemExit):
    """Raised in a thread whose time is over. `except Exception` does not catch it; threading prints nothing of it."""


class _Mark(BaseException):
    """What a thread raises in itself, and catches, so that no exception that was meant for a thread is under way.

    One that its thread has not taken leaves the interpreter on the look-out, and Python 3.11 then never gets past the
    first line of a function while it is traced: in a debugger or a profiler, or under Hypothesis. So it is done without
    a call of a function in Python.
    """


class Worker:
    """`call` in a daemon thread; `error` is what it raised, and `thread` the thread."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self._call, self._over, self._done = call, False, threading.Event()
        self._dropped, self._running = False, threading.Event()  # ended before it began; it has begun
        context = contextvars.copy_context()  # so that a notebook's display finds its cell
        self.thread = threading.Thread(target=context.run, args=(self._run,), name="gpulab check", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def wait(self, seconds: float) -> bool:
        """Whether the call is over within this time."""
        self._done.wait(seconds)  # not join: interrupted, it takes the thread for ended (Python 3.11)
        return self._done.is_set()

    def importing(self) -> bool:
        """Whether the thread is within an import just now, or waits for another thread's.

        Its frames would tell too, but who looks at one that returns keeps what was in it: then tensors die late, and
        the memory that is being measured is another.
        """
        thread = self.thread.ident
        if thread is None:
            return False
        locks = [reference() for reference in list(_imports._module_locks.values())]
        return bool(_imports._blocking_on.get(thread)) or any(getattr(lock, "owner", None) == thread for lock in locks)

    def end(self, *, for_imports: float = IMPORT_SECONDS) -> bool:
        """See the thread to its end, raising `TimeUp` in it until then; False when that is in vain: for a second in
        which the thread did nothing, or for a second of its own processor time.

        A bare `except` in a loop catches what strikes inside its try. So after a while each exception brings the next
        as it is caught, which strikes in the handler, and so on outwards. (Python 3.12 takes the jump at the end of a
        handler for a part of the try: there a loop with `except: pass` may go on.) A destructor that runs in the thread
        meanwhile, also one of other code's garbage, is struck as everything is.

        An import is waited for, `for_imports` seconds long. Between the look at the import's locks and the exception
        it does not run: Python gives another thread its turn after 5 ms, and this one has only just got it.
        """
        self._dropped = True
        thread = self.thread.ident
        if thread is None:  # stop was pressed while the thread was being started: it finds nothing to do
            return True
        self._running.wait()
        here, clock, imports = threading.get_ident(), FairClock(), FairClock()
        strike: type[BaseException] = TimeUp
        mark, first, latest = 0.0, thread_seconds(self.thread.native_id), 0.0
        while not self._done.is_set() and self.thread.is_alive():
            if self.importing():  # nothing to do but wait; the second begins afterwards
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
                mark, latest = spent, own  # it runs, but others want the processor too
            if spent > _POLITE_SECONDS and strike is TimeUp:
                for _ in range(_DEPTH):
                    bring = functools.partial(_raise_in, thread, strike)  # C code: nothing can strike within it
                    strike = type("TimeUp", (TimeUp,), {"__init__": staticmethod(bring)})
            if self.importing() or self._over:
                self._done.wait(_PAUSE)
                continue
            _raise_in(thread, strike)
            time.sleep(_PAUSE)
            try:
                _raise_in(here, _Mark)
                while True:
                    time.sleep(0)  # it strikes here
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
            self._over = True  # nobody raises here from now on, and what may be pending gives way to the mark: no
            if self._dropped:  # bytecode that could be interrupted lies before or between these
                try:
                    _raise_in(thread, _Mark)
                    while True:
                        time.sleep(0)
                except _Mark:
                    pass
            self.error = error
        self._over = True
        self._done.set()

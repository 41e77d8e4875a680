"""One call in a thread of its own that can be waited for, interrupted by the student, and ended from outside.

Python has no way to end a thread but to raise in it, and code that catches everything goes on. Neither does a
call into C that never comes back end: such a thread is left behind.
"""

from __future__ import annotations

import contextvars
import ctypes
import functools
import threading
import time
from collections.abc import Callable

_POLITE_SECONDS = 0.2
_END_SECONDS = 1.0
_DEPTH = 20
_raise_in = ctypes.PYFUNCTYPE(None, ctypes.c_ulong, ctypes.py_object)(("PyThreadState_SetAsyncExc", ctypes.pythonapi))
_calm = ctypes.PYFUNCTYPE(None, ctypes.c_ulong, ctypes.c_void_p)(("PyThreadState_SetAsyncExc", ctypes.pythonapi))


class TimeUp(SystemExit):
    """Raised in a thread whose time is over. `except Exception` does not catch it; threading prints nothing of it."""


class _Mark(BaseException):
    """What `_settle` raises in its own thread."""


def _settle() -> None:
    """Let an exception that was meant for a thread come to its end here.

    One that its thread no longer took leaves the interpreter on the look-out for good, and Python 3.11 then never gets
    past the first line of a function while it is traced: in a debugger, or under Hypothesis.
    """
    try:
        _raise_in(threading.get_ident(), _Mark)
        while True:
            time.sleep(0)  # it strikes here
    except _Mark:
        return


class Worker:
    """`call` in a daemon thread; `error` is what it raised, and `thread` the thread."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self._call, self._over, self._done = call, False, threading.Event()
        context = contextvars.copy_context()  # so that a notebook's display finds its cell
        self.thread = threading.Thread(target=context.run, args=(self._run,), name="gpulab check", daemon=True)

    def wait(self, seconds: float) -> bool:
        """Start, and say whether the call was over in this time."""
        self.thread.start()
        self._done.wait(seconds)  # not join: interrupted, it takes the thread for ended (Python 3.11)
        return self._done.is_set()

    def end(self) -> bool:
        """See the thread to its end, raising `TimeUp` in it until then; False when that was in vain for a second.

        A bare `except` in a loop catches what strikes inside its try. So after a while each exception brings the next
        as it is caught, which strikes in the handler, and so on outwards. (Python 3.12 takes the jump at the end of a
        handler for a part of the try: there a loop with `except: pass` may go on.)
        """
        thread, started = self.thread.ident or 0, time.monotonic()
        strike: type[BaseException] = TimeUp
        while not self._done.is_set() and self.thread.is_alive():
            spent = time.monotonic() - started
            if spent > _END_SECONDS:
                _settle()
                return False
            if spent > _POLITE_SECONDS and strike is TimeUp:
                for _ in range(_DEPTH):
                    bring = functools.partial(_raise_in, thread, strike)  # C code: nothing can strike within it
                    strike = type("TimeUp", (TimeUp,), {"__init__": staticmethod(bring)})
            if not self._over:
                _raise_in(thread, strike)
            self._done.wait(0.002)
        self.thread.join()
        _settle()
        return True

    def _run(self) -> None:
        calm = functools.partial(_calm, threading.get_ident(), None)
        try:
            self._call()
        except BaseException as error:
            self._over = True  # nobody raises here from now on, and what is pending is taken back: no bytecode that
            calm()  # could be interrupted lies before or between these two
            self.error = error
        self._over = True
        self._done.set()

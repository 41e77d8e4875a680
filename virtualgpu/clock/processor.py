"""Read how long the calling thread was runnable but had no CPU core, because other programs used it."""

from __future__ import annotations

import os
import threading


class _Thread(threading.local):
    file: int | None = None
    process = 0


_thread = _Thread()


def seconds_without_core() -> float:
    """Return those seconds since this thread began. Linux counts them (schedstat, in nanoseconds); elsewhere 0."""
    mine = _thread
    if mine.process != os.getpid():  # a new thread, or one of a forked process
        mine.process = os.getpid()
        mine.file = _opened()
    return 0.0 if mine.file is None else int(os.pread(mine.file, 64, 0).split()[1]) * 1e-9


def _opened() -> int | None:
    try:
        return os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None

"""How long a call has been at work: processor time, and a wall clock that goes slower where the machine is busy.

Neither depends on how many others want the processor. The clock's functions are taken at import: a check may replace
those of `time` while a student's code runs.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from time import monotonic, process_time, thread_time

import psutil

TICK = 0.1  # seconds between two looks at a call
_BEAT = 1.0  # seconds between two measurements of what the processor gives this thread
_SAMPLE = 0.01  # seconds of processor time that one takes
_LEAST_SHARE = 0.05


def thread_seconds(native_id: int | None) -> float | None:
    """The processor time of the thread with this number; None where it has ended, or the system does not tell."""
    if not _TELLS or native_id is None:
        return None
    return _thread_seconds(native_id)


def _thread_seconds(native_id: int) -> float | None:
    # Linux's number of a thread's clock: man 2 clock_getres. time.pthread_getcpuclockid would give the same, and
    # crash for a thread that has just ended.
    try:
        return time.clock_gettime((~native_id << 3) | 6)
    except (AttributeError, OSError, OverflowError):
        return None


def _tells() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    before, seconds, after = thread_time(), _thread_seconds(threading.get_native_id()), thread_time()
    return seconds is not None and before <= seconds <= after


_TELLS = _tells()


class ProcessorTime:
    """The processor time that this process uses from now on, that of the Python threads which are already there left
    out: widgets, a monitor, an earlier call that could not be ended. Where the system does not tell the time of a
    thread (macOS, Windows), only that of the thread which asks is left out."""

    def __init__(self) -> None:
        self._own = thread_time()
        me = threading.current_thread()  # its object keeps, in a fork, the number that it had before
        others = {thread.native_id for thread in threading.enumerate() if thread is not me} if _TELLS else set()
        others.add(threading.get_native_id())
        self._others = {number: thread_seconds(number) for number in others}
        self._process = process_time()

    def used(self) -> float:
        """Seconds. To be asked in the thread that made this."""
        process = process_time() - self._process
        if not _TELLS:
            return process - (thread_time() - self._own)
        for number, before in self._others.items():
            now = thread_seconds(number)
            if before is not None and now is not None:
                process -= now - before
        return process

    @staticmethod
    def of_children() -> float:
        """The processor time of all child processes, those that have ended included; takes some milliseconds."""
        ended = os.times()
        total = ended.children_user + ended.children_system
        try:
            children = psutil.Process().children(recursive=True)
        except psutil.Error:
            return total
        for child in children:
            try:
                times = child.cpu_times()
            except psutil.Error:  # it has just ended
                continue
            total += times.user + times.system
        return total


class FairClock:
    """Seconds in which this machine had time for us. To be asked every `TICK`, in one thread.

    A pause in which nobody asked (the process was stopped, or another one had the processor) counts as two ticks at
    most. Once in a second a hundredth is spent to see how much of the processor a thread gets, and time passes by that
    share.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._share, self._last, self._sampled = 1.0, monotonic(), 0.0

    def now(self) -> float:
        at = monotonic()
        self.seconds += min(at - self._last, 2 * TICK) * self._share
        self._last = at
        if self.seconds >= self._sampled + _BEAT * self._share:
            self._share = max(_LEAST_SHARE, _share_of_the_processor())
            self._sampled, self._last = self.seconds, monotonic()
        return self.seconds


def _share_of_the_processor() -> float:
    """What part of the time this thread gets while it computes, from 0 to 1."""
    wall, own = monotonic(), thread_time()
    while (used := thread_time() - own) < _SAMPLE:
        pass
    return min(1.0, used / max(monotonic() - wall, used))

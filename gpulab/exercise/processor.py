"""Measures how long a call has run: processor time, and a wall clock that goes slower on a busy machine.

Neither depends on the load by other programs. The functions of `time` are bound at import: a check may replace them
while a student's code runs.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from time import monotonic, process_time, thread_time

import psutil

TICK = 0.1  # seconds between two measurements of a call
_BEAT = 1.0  # seconds between two measurements of this thread's share of the processor
_SAMPLE = 0.01  # seconds of processor time for one
_LEAST_SHARE = 0.05


def thread_seconds(native_id: int | None) -> float | None:
    """Return the processor time of this thread; None where it has ended or the system has no such clock."""
    if not _TELLS or native_id is None:
        return None
    return _thread_seconds(native_id)


def _thread_seconds(native_id: int) -> float | None:
    # Linux's id of a thread's clock (man 2 clock_getres). time.pthread_getcpuclockid returns the same, but crashes for
    # a thread that has just ended.
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
    """The processor time of this process from now on, without that of the existing Python threads: widgets, a monitor,
    an earlier call that could not be ended. Where the system has no clock for other threads (macOS, Windows), only the
    calling thread is left out."""

    def __init__(self) -> None:
        self._own = thread_time()
        me = threading.current_thread()  # in a fork, its object keeps its former id
        others = {thread.native_id for thread in threading.enumerate() if thread is not me} if _TELLS else set()
        others.add(threading.get_native_id())
        self._others = {number: thread_seconds(number) for number in others}
        self._process = process_time()

    def used(self) -> float:
        """Return the seconds; call it in the thread that made this object."""
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
        """Return the processor time of all child processes, also of ended ones; takes some milliseconds."""
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
    """A clock of the time in which the processor was available to this process; call `now` every `TICK` in one thread.

    A longer pause between calls (the process was stopped, or another one had the processor) counts as two ticks. Once a
    second, 10 ms are spent to measure the share of the processor that a thread gets, by which time passes.
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
    """Return the share of the time that this thread runs while it computes, from 0 to 1."""
    wall, own = monotonic(), thread_time()
    while (used := thread_time() - own) < _SAMPLE:
        pass
    return min(1.0, used / max(monotonic() - wall, used))

"""How long a process computes before another has its turn, where more of them want to than there are cores.

Linux changes after a few ms; what comes next finds nothing of its own in the caches. So four processes of the tests on
two cores each take 14 % more of the processor than two do, and 4 % more with turns of 100 ms. What has not asked for
long turns, a browser for instance, interrupts them. Linux takes the wish from 6.12 on, from anybody; elsewhere nothing
changes but the time that tests take.
"""

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LONG = 100_000_000  # ns; the longest that the kernel gives

_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}  # sched_setattr, sched_getattr: glibc names them from 2.41 on
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # sched(7): size, policy, flags, nice, priority, runtime, deadline, period
_RUNTIME = 5  # of an ordinary process: its turn, in ns


def turn() -> int | None:
    """The ns that this thread computes at a time; None where the kernel does not say, or decides otherwise."""
    attributes = _read()
    return attributes[_RUNTIME] or None if attributes else None


@contextmanager
def long_turns() -> Iterator[None]:
    """This thread and what it starts within it have turns of `LONG`; the thread has its own again afterwards."""
    before = turn()
    if before is None:
        yield
        return
    _set(LONG)
    try:
        yield
    finally:
        _set(before)


def _read() -> list[int] | None:
    calls = _CALLS.get(platform.machine())
    if sys.platform != "linux" or calls is None:
        return None
    buffer = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if ctypes.CDLL(None).syscall(calls[1], 0, buffer, _ATTRIBUTES.size, 0) != 0:  # 0: this thread
        return None  # a kernel from before, or a container that forbids the call
    attributes = list(_ATTRIBUTES.unpack(buffer))
    return attributes if attributes[1] in (os.SCHED_OTHER, os.SCHED_BATCH) else None


def _set(nanoseconds: int) -> None:
    attributes = _read()
    if attributes:
        attributes[_RUNTIME] = nanoseconds
        ctypes.CDLL(None).syscall(_CALLS[platform.machine()][0], 0, _ATTRIBUTES.pack(*attributes), 0)

"""A machine that is busy: processes that compute beside a program and end with it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

MOST_SECONDS = 4 * 3600
# Ends by itself: with its parent (whose number then is another, or cannot be had), and after the time given.
_COMPUTE = """
import os, sys, time
parent, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while time.monotonic() < end and os.getppid() == parent:
    sum(range(300_000))
"""


@contextmanager
def busy(processes: int, most_seconds: float = MOST_SECONDS) -> Iterator[list[int]]:
    """`processes` that compute while this is entered; yields their numbers. None outlives it."""
    with ExitStack() as ends:
        children = []
        for _ in range(processes):
            command = [sys.executable, "-c", _COMPUTE, str(os.getpid()), str(most_seconds)]
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            ends.callback(child.wait)
            ends.callback(child.kill)
            children.append(child.pid)
        yield children

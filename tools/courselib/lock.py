"""One set-up at a time: a lock of the operating system on a file that is there anyway.

It ends with the processes that hold it, so there is no stale lock to remove by hand.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

FAR = 1 << 30  # Windows locks bytes and not files: one far behind the end hinders no reader

if sys.platform == "win32":
    import msvcrt

    def _take(file: IO[bytes]) -> bool:
        file.seek(FAR)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

else:
    import fcntl

    def _take(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks: better two set-ups at once than none
            return True
        return True


@contextmanager
def only_one(path: Path, waiting: Callable[[], None]) -> Iterator[int]:
    """Hold the lock on `path`, after calling `waiting` once where somebody else holds it.

    Yields the file descriptor: a child process that inherits it keeps the lock for as long as it lives.
    """
    with path.open("r+b") as file:
        told = False
        while not _take(file):
            if not told:
                waiting()
                told = True
            time.sleep(0.5)
        yield file.fileno()

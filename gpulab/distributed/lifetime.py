"""How long a run's folder is there: made, held and removed by one process, and swept away if that is killed.

The notebook chooses the name. The process that will remove the folder makes it, so that there is never one that nobody
would remove, and holds a lock on it, which ends with that process however it ends. Where that is killed, the notebook
removes the folder; where both are, the next run does: it finds one that nobody holds.

The file is also loaded by its path, outside the notebook, and imports nothing of gpulab.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import sys
import time

if sys.platform != "win32":  # which has no such locks: there nothing is swept
    import fcntl

_NAME = re.compile(r"gpulab-ranks-[0-9a-f]{16}")  # no name that somebody gives by hand

# Tries, and seconds between two of them: those that have been killed are gone by then, on a machine that is busy too.
_TRIES, _PAUSE = 500, 0.02


def new(temporary: str) -> str:
    """The path of a folder in `temporary` that is not there yet."""
    return os.path.join(temporary, f"gpulab-ranks-{secrets.token_hex(8)}")


def claim(folder: str) -> int | None:
    """Make `folder`; it is held as long as the file descriptor that comes back is open, here or where it is passed on.

    None on Windows. Raises OSError where the folder cannot be made.
    """
    while True:
        os.mkdir(folder, 0o700)
        if sys.platform == "win32":
            return None
        with contextlib.suppress(FileNotFoundError):  # somebody swept it away before it was held
            held = os.open(folder, os.O_RDONLY)
            with contextlib.suppress(OSError):  # a file system without locks, where nothing can be swept either
                fcntl.flock(held, fcntl.LOCK_SH)
            if os.path.exists(folder):
                return held
            os.close(held)


def remove(folder: str) -> None:
    """Remove `folder`, also where a process that has been killed writes one more file; no error where it is gone."""
    for _ in range(_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return
        time.sleep(_PAUSE)


def remove_when_free(folder: str) -> None:
    """Remove what a launcher that was killed has left, when what it had started is gone and holds it no more."""
    for _ in range(_TRIES):
        _remove_if_free(folder)
        if not os.path.lexists(folder):
            return
        time.sleep(_PAUSE)
    shutil.rmtree(folder, ignore_errors=True)


def sweep(temporary: str) -> None:
    """Remove this user's folders in `temporary` that nobody holds."""
    if sys.platform == "win32":
        return
    found = []
    with contextlib.suppress(OSError), os.scandir(temporary) as entries:  # a folder that cannot be read
        found = [entry for entry in entries if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)]
    for entry in found:
        with contextlib.suppress(FileNotFoundError):  # its own launcher has removed it
            if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                _remove_if_free(entry.path)


def _remove_if_free(folder: str) -> None:
    if sys.platform == "win32":
        shutil.rmtree(folder, ignore_errors=True)
        return
    with contextlib.suppress(OSError):  # it is gone, or somebody holds it, or the file system has no locks
        mine = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(mine)

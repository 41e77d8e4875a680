"""What a program that runs has printed by now, and waiting until it has."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from courselib.patience import HANG_SECONDS


def printed(folder: Path) -> str:
    log = folder / "log"
    return log.read_text(errors="replace") if log.exists() else ""


def wait_for(come: Callable[[], bool], folder: Path, run: subprocess.Popen | None = None) -> None:
    """Until `come()`; an error with what stands in the log where `run` ends before, or it never comes."""
    end = time.monotonic() + HANG_SECONDS
    while not come():
        over = run is not None and run.poll() is not None and not come()
        assert not over, f"ended before:\n{printed(folder)}"
        assert time.monotonic() < end, f"does not come:\n{printed(folder)}"
        time.sleep(0.05)

"""The keeper: a small process between notebook and launcher, which makes the run's folder and leaves nothing of it.

It starts the launcher that it is given as a command, adopts what that leaves behind, and says when it is over. Then
it waits: the folder is the notebook's to read until that lets go. When it does, or dies, the keeper kills whatever
descends from it, removes the folder, and ends; it need not know which of the two it was. It imports no torch, so that
nothing of torchrun's, neither its signals nor a crash, can keep it from that.

The file is run by its path, as `processes.py`. A launcher that is forked (`forking.py`) is its own keeper.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

_LOOK = 0.02  # seconds between two looks

# Of whoever wants a process to end. Their default would end the keeper on the spot.
SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]


def _beside(name: str) -> Any:
    """A module of this folder, without the package that it belongs to."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    spec: Any = importlib.util.spec_from_file_location(f"_gpulab_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


lifetime: Any = _beside("lifetime")
processes: Any = _beside("processes")


def keep(folder: str, notebook: str, *command: str) -> None:
    """Run `command`, a launcher that writes into `folder`, which is there until the process `notebook` lets go."""
    import psutil  # noqa: F401  (what is not there is told before there is anything to remove)

    told = asked_to_end()
    processes.adopt_orphans()
    left = threading.Event()
    processes.when_let_go(left.set)

    def gone() -> bool:
        # What the notebook has forked holds the pipe too, and may outlive it.
        return left.is_set() or not processes.lives(int(notebook))

    held = lifetime.claim(folder)
    code: int | None = None
    try:
        with open(os.path.join(folder, "launcher.log"), "wb") as log:
            launcher = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # by its end the launcher learns that the keeper is gone
                stdout=log,
                stderr=log,
                pass_fds=() if held is None else (held,),  # torchrun makes its own folders in it as long as it lives
            )
        while not (gone() or told or (code := launcher.poll()) is not None):
            left.wait(_LOOK)
    except BaseException:
        traceback.print_exc()
    end(folder, gone, f"it was ended by {signal.Signals(told[0]).name}" if told else f"exit code {code}")


def asked_to_end() -> list[int]:
    """The signals by which somebody asks this process to end, as they come."""
    told: list[int] = []
    for number in SIGNALS:
        signal.signal(number, lambda number, _: told.append(number))
    return told


def end(folder: str, gone: Callable[[], bool], how: str) -> None:
    """Kill what descends from this process, say `how` the launcher ended, and remove `folder` when all are `gone`."""
    processes.leave_nothing()
    if not gone():
        processes.write(os.path.join(folder, "over"), how)
    while not gone():
        time.sleep(_LOOK)
    lifetime.remove(folder)


if __name__ == "__main__":
    keep(*sys.argv[1:])

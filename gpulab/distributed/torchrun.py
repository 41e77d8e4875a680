"""The launcher of a run that torchrun starts, as the notebook sees it; `processes.py` is what it runs."""

from __future__ import annotations

import os
import subprocess
import sys

from . import processes
from .folder import Folder, kept
from .result import on_screen


class Torchrun:
    """A launcher of `folder.count` ranks of `folder.script`, which starts at once."""

    def __init__(self, folder: Folder, args: list[str], env: dict[str, str]) -> None:
        self._folder = folder
        command = ["launch", str(folder.path), str(os.getpid()), str(folder.count), folder.script, *args]
        with folder.launcher_log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", processes.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,  # an interrupt in a terminal or a notebook goes to all of its session
            )

    @property
    def pid(self) -> int | None:
        """Whose children the ranks are."""
        return self._process.pid

    def ended(self) -> bool:
        return self._process.poll() is not None

    def let_go(self, patience: float | None) -> bool:
        """The sign to kill the ranks and end; whether it has ended within `patience` seconds, None for any time."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            return False
        return True

    def failed(self) -> str:
        """What to say where it ended before the ranks did."""
        log = "\n".join(on_screen(kept(self._folder.launcher_log))[-20:])
        code = self._process.returncode
        return f"torchrun ended before the ranks did (exit code {code}). Its last lines:\n{log}"

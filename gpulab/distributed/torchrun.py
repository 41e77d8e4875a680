"""The launcher of a run that torchrun starts, as the notebook sees it: `keeper.py` runs `processes.py`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ..machine.debugger import kept_out
from . import processes
from .folder import Folder, kept
from .result import on_screen


class Torchrun:
    """A launcher of `folder.count` ranks of `folder.script`, which starts at once."""

    def __init__(self, folder: Folder, args: list[str], env: dict[str, str]) -> None:
        self._folder = folder
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  (the keeper's, where it cannot make the folder)
        launch = ["launch", str(folder.path), str(folder.count), folder.script, *args]
        python, keeper = [sys.executable, "-P"], str(Path(__file__).with_name("keeper.py"))
        with kept_out():
            self._process = subprocess.Popen(
                [*python, keeper, str(folder.path), str(os.getpid()), *python, processes.__file__, *launch],
                stdin=subprocess.PIPE,
                stdout=self._words,
                stderr=self._words,
                env=env,
                start_new_session=True,  # an interrupt in a terminal or a notebook goes to all of its session
            )

    @property
    def pid(self) -> int | None:
        """Whose descendants the ranks are."""
        return self._process.pid

    def ended(self) -> bool:
        return self._process.poll() is not None

    def let_go(self, patience: float | None) -> bool:
        """The sign to end, with ranks and folder; whether it has within `patience` seconds, None for any time."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            return False
        self._words.close()
        return True

    def failed(self) -> str:
        """What to say where it ended before the ranks did."""
        self._words.seek(0)
        words = self._words.read().decode("utf-8", errors="replace") + kept(self._folder.launcher_log)
        code = self._process.poll()
        how = self._folder.over() or f"its keeper ended before, with exit code {code}"
        log = "\n".join(on_screen(words)[-20:])
        return f"torchrun ended before the ranks did ({how}). Its last lines:\n{log}"

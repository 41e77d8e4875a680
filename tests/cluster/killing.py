"""Processes that save, killed at the system call that is asked for."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from .lesson import environ, write_programs

_CALL = re.compile(r"^\d+ +(\w+)\(", re.MULTILINE)


class Savers:
    """`savers.py`, running in `folder`: one question, one answer."""

    def __init__(self, folder: Path) -> None:
        write_programs(folder)
        self._asked = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("savers.py"))],
            cwd=folder,
            env=environ(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def ask(self, *words: object) -> str:
        assert self._asked.stdin is not None
        assert self._asked.stdout is not None
        print(*words, file=self._asked.stdin, flush=True)
        answer = self._asked.stdout.readline()
        assert answer, f"savers.py has ended: {self._asked.wait()}"
        return answer.strip()

    def end(self) -> None:
        self._asked.communicate()

    def save(self, way: str, folder: Path, step: int) -> None:
        """To its end."""
        os.kill(self._stopped(way, folder, step), signal.SIGCONT)
        assert self.ask("ended") == "0"

    def calls(self, way: str, folder: Path, step: int) -> list[tuple[str, int]]:
        """Every system call of that save in order, as its name and the how manieth of that name it is."""
        log = folder.parent / "calls"
        self._traced(self._stopped(way, folder, step), "-o", str(log))
        assert self.ask("ended") == "0"
        names = [name for name in _CALL.findall(log.read_text()) if name != "exit_group"]
        return [(name, Counter(names[: place + 1])[name]) for place, name in enumerate(names)]

    def kill_at(self, call: tuple[str, int], way: str, folder: Path, step: int) -> None:
        """SIGKILL as that save enters that call, which is then not made."""
        name, nth = call
        inject = f"inject={name}:signal=KILL:when={nth}"
        self._traced(self._stopped(way, folder, step), "-e", f"trace={name}", "-e", inject, "-o", os.devnull)
        assert self.ask("ended") == str(-signal.SIGKILL), f"the save was over before {name} number {nth}"

    def _stopped(self, way: str, folder: Path, step: int) -> int:
        process = int(self.ask("save", way, folder, step))
        while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)
        return process

    def _traced(self, process: int, *options: str) -> None:
        command = ["strace", "-f", "-p", str(process), *options]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as trace:
            assert trace.stderr is not None
            said = trace.stderr.readline()
            assert "attached" in said, said
            os.kill(process, signal.SIGCONT)
            trace.stderr.read()

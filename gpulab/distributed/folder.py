"""What keeper, launcher and ranks have written into a run's folder, read as data; `processes.py` writes most of it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from . import processes
from .result import Rank
from .stacks import collective, where

_KEPT = 2**20  # bytes of a rank's output
_LAUNCHER = "launcher.log"
# PyTorch looks up the name of whoever connects, for its logs; of a machine that reaches no name server it says so.
_NO_NAME = re.compile(r"^\[W\S* \S+ socket\.cpp:\d+\] \[c10d\] The hostname of the client socket .*\n?", re.MULTILINE)


@dataclass(frozen=True)
class Report:
    """How the ranks ended, by torchrun's word: exit codes by rank, 0 for those not named.

    `later` are the pids of those that lived when the first had failed, `stopped` of those that then had to be stopped.
    """

    exit_codes: dict[int, int] = field(default_factory=dict)
    stopped: frozenset[int] = frozenset()
    later: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Folder:
    """The folder of a run of `script` on `count` ranks."""

    path: Path
    script: str
    count: int

    @property
    def launcher_log(self) -> Path:
        return self.path / _LAUNCHER

    def log(self, rank: int) -> Path:
        return self.path / f"rank-{rank}.log"

    def launcher_pid(self) -> int | None:
        """The launcher's own word; None where it has said nothing."""
        return int(text) if (text := _text(self.path / "launcher.pid")) else None

    def over(self) -> str:
        """How the launcher came to its end; "" until all ranks are gone, and where its keeper was killed."""
        return _text(self.path / "over")

    def report(self) -> Report | None:
        """The launcher's last word, None where it had none."""
        text = _text(self.path / "report.json")
        if not text:
            return None
        found = json.loads(text)
        codes = {int(rank): code for rank, code in found["exit_codes"].items()}
        return Report(codes, frozenset(found["stopped"]), frozenset(found["later"]))

    def pids(self) -> dict[int, int]:
        """The process of each rank that has started, whether it is alive or not."""
        found = {rank: _text(self._of(rank, "pid")) for rank in range(self.count)}
        return {rank: int(text) for rank, text in found.items() if text}

    def alive(self, launcher: int | None) -> frozenset[int]:
        """The pids of the ranks that run now and descend from `launcher`; None is one that has not started."""
        if launcher is None:
            return frozenset()
        try:
            descendants = psutil.Process(launcher).children(recursive=True)
        except psutil.NoSuchProcess:
            return frozenset()
        pids = {process.pid for process in descendants} & set(self.pids().values())
        return frozenset(pid for pid in pids if processes.lives(pid))

    def fails(self, launcher: int | None) -> bool:
        """Whether a rank is about to be reported as failed: it is gone, or on its way, and its script had not ended."""
        alive = self.alive(launcher)
        return any(
            self._of(rank, "error").exists() or (pid not in alive and not self._of(rank, "finished").exists())
            for rank, pid in self.pids().items()
        )

    def ends(self, report: Report) -> dict[int, float]:
        """When each rank's script ended, in seconds since the epoch.

        A process that was killed says nothing: its end is taken for early, or for late if it outlived another's.
        """
        pids = self.pids()
        ends = {}
        for rank in range(self.count):
            unknown = math.inf if pids.get(rank) in report.later else 0.0
            ends[rank] = float(self._error(rank).get("time") or _text(self._of(rank, "exit")) or unknown)
        return ends

    def stacks(self, rank: int) -> str:
        return _text(self._of(rank, "stacks"))

    def ranks(self, report: Report) -> tuple[Rank, ...]:
        """All that is known of each rank."""
        pids = self.pids()
        return tuple(self._rank(rank, pids.get(rank), report) for rank in range(self.count))

    def _rank(self, rank: int, pid: int | None, report: Report) -> Rank:
        stopped = pid in report.stopped
        code = report.exit_codes.get(rank, None if pid is None or stopped else 0)
        error = self._error(rank)
        return Rank(
            rank=rank,
            pid=pid,
            exit_code=code,
            # Before it has a log of its own, a rank writes into the launcher's.
            output=kept(self.launcher_log if pid is None and code else self.log(rank)),
            exception=error.get("exception", ""),
            traceback=error.get("traceback", "").rstrip("\n"),
            where="" if error else where(self.stacks(rank), self.script),
            stopped=stopped,
            collective="" if error else collective(self.stacks(rank), self.script),
            finished=self._of(rank, "finished").exists(),
        )

    def _error(self, rank: int) -> dict[str, Any]:
        return dict(json.loads(_text(self._of(rank, "error")) or "{}"))

    def _of(self, rank: int, kind: str) -> Path:
        return self.path / f"rank-{rank}.{kind}"


def kept(path: Path) -> str:
    """The text of a log, "" where there is none; of a long one the first and the last half, and how much is missing."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size <= _KEPT:
                return _decoded(file.read(_KEPT))  # it may grow meanwhile
            head = file.read(_KEPT // 2)
            file.seek(-(_KEPT // 2), 2)
            tail = file.read(_KEPT // 2)
    except FileNotFoundError:
        return ""
    return f"{_decoded(head)}\n... {(size - _KEPT) / 2**20:.1f} MiB of output are left out ...\n{_decoded(tail)}"


def _decoded(data: bytes) -> str:
    return _NO_NAME.sub("", data.decode("utf-8", errors="replace").replace("\r\n", "\n"))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""

"""One trial of `run --what-if`: the script in a process of its own, with a remedy; and what its report says."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .arguments import again
from .remedies import SETTINGS, Remedy

_GRACE = 10  # seconds for a trial to end after SIGTERM


@dataclass(frozen=True)
class Trial:
    """What this command needs of a report: bytes and seconds.

    `needed` is the driver's peak, of a run that was out of memory what it would have needed. `steps` are the first
    optimizer's, `seconds` their median; `whole` is the run's time. `asked` is the last request that failed, `enough`
    the smallest GPU for it. Of the `gpus` that the process uses, the fullest is the one shown.
    """

    name: str
    gpu: str
    gpus: int
    ranks: int
    ending: Mapping[str, Any]
    measured: bool
    shapes_only: bool
    allocated: int
    needed: int
    total: int
    steps: int
    seconds: float | None
    whole: float | None
    exchanges: bool
    asked: int | None = None
    enough: str | None = None

    @property
    def out_of_memory(self) -> bool:
        """True if that ended the script."""
        return self.ending["kind"] == "error" and self.ending["why"].startswith("OutOfMemoryError")


def read(report: Mapping[str, Any]) -> Trial:
    """Read the JSON of a run's report: the only place that knows its layout."""
    gpu = max(report["gpus"], key=lambda each: each["memory"]["peak_allocated"])
    memory, short = gpu["memory"], gpu["shortage"]
    allocated, needed, enough = memory["peak_allocated"], memory["peak_used"] or 0, None
    if short is not None:
        tried = short["tried"]
        needed = max(needed, memory["total"] - short["free"] + short["requested"])
        if tried is not None and tried["until"]:
            allocated, needed, enough = tried["allocated"], tried["used"], tried["gpu"]
    steps: dict[str, Any] = next(iter(report["steps"]), {})
    return Trial(
        name=report["name"], gpu=report["gpu"], ranks=report["world_size"], ending=report["ending"],
        gpus=sum(bool(each["memory"]["peak_allocated"]) for each in report["gpus"]),
        measured=report["numbers"] == "measured", shapes_only=report["shapes_only"],
        allocated=allocated, needed=needed, total=memory["total"],
        steps=steps.get("count", 0), seconds=steps.get("median"), whole=(gpu["time"] or {}).get("elapsed"),
        exchanges=bool(steps.get("between")), asked=None if short is None else short["requested"], enough=enough,
    )  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """A process that has ended: its exit code, its report and what `seen.Seen` saw, or None and its last words."""

    code: int
    report: dict[str, Any] | None
    facts: dict[str, Any]
    words: str = ""


def run(options: argparse.Namespace, remedy: Remedy, folder: Path) -> Ended:
    """Run the script with a remedy, to its end."""
    report, facts, said = (folder / name for name in ("report.json", "facts.json", "stderr"))
    for file in (report, facts):
        file.unlink(missing_ok=True)
    environment = dict(os.environ)
    if remedy.settings:
        environment.pop(SETTINGS[1], None)
        environment[SETTINGS[0]] = remedy.settings
    command = again(options, report, trial=(remedy.patch, str(facts)), **remedy.options)
    with said.open("wb") as stream:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stream, env=environment,
            start_new_session=os.name == "posix",
        )  # fmt: skip
        try:
            process.wait()
        finally:
            _end(process)
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    if report.exists() and facts.exists():
        found, did = (json.loads(file.read_text(encoding="utf-8")) for file in (report, facts))
        return Ended(code, found, did)
    words = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return Ended(code, None, {}, words[-1] if words else f"exit code {code}, without a word")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a trial that still runs, with the processes that it has started."""
    if process.poll() is not None:
        return
    for number in ("SIGTERM", "SIGKILL"):
        if os.name == "posix":
            os.killpg(process.pid, getattr(signal, number))
        else:
            process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
            return

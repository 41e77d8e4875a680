"""`run`: has a launcher started, follows it, and takes everything down when time is up or the cell is interrupted.

A launcher is torchrun (`torchrun.py`) or a fork of the warm server (`warm.py`); what it and the ranks tell comes
through a folder that is there until the launcher is let go (`lifetime.py`).
"""

from __future__ import annotations

import codecs
import contextlib
import os
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import psutil

from . import lifetime, processes
from .arguments import checked_args, checked_env, checked_ranks, checked_script, checked_timeout
from .folder import Folder, Report
from .nccl import beside
from .result import RankFailed, Run, TimeLimit, failure_text, first_failure, limit_text
from .torchrun import Torchrun

_LOOK = 0.02  # seconds between two looks at the launcher
_PATIENCE = 10.0  # seconds that ranks have to write where they are: a moment, where the processor is theirs


def run(
    script: str | os.PathLike[str],
    ranks: int = 2,
    *,
    args: Sequence[str] = (),
    timeout: float | None = 60.0,
    env: Mapping[str, str] | None = None,
    live: bool = False,
    warm: bool = False,
) -> Run:
    """Run the Python file `script` on `ranks` processes of this machine, and return each one's output.

    It is what `torchrun --standalone --nproc-per-node RANKS SCRIPT ARGS` does, on a free port: each process finds RANK,
    LOCAL_RANK and WORLD_SIZE in its environment, as `torch.distributed.init_process_group` expects. Where a virtual GPU
    is in force, GPULAB_GPU names it for the script's `gpulab.setup()`, unless `env` does; `env` is added to the
    environment. Each rank computes with one thread unless OMP_NUM_THREADS says otherwise. `timeout` is in seconds from
    the call, of which starting takes some four; None is no limit. With `live`, what rank 0 writes is also printed as it
    comes. Of a longer output the first and the last half MiB are kept.

    With `warm`, the ranks are forks of a server that has imported torch already, and gpulab where they have a virtual
    GPU: for short cells, since they start in a fraction of the time. The server starts at the first use, again where
    the environment changes what counts as Python starts (PYTHONPATH, OMP_NUM_THREADS) or a package is installed, and
    ends with the notebook's kernel or after ten minutes without a run. Logs, errors and time limit are the same. What
    differs: what a script sets before `import torch` comes too late for what torch reads then; all ranks hash strings
    alike, so that a set has the same order on each; of torchrun's own variables only TORCHELASTIC_USE_AGENT_STORE and
    TORCHELASTIC_RESTART_COUNT are set, so `torch.distributed.is_torchelastic_launched()` is False. Linux only:
    elsewhere a warning says that torchrun starts the ranks all the same.

    A rank that is done waits for its threads, calls what `atexit` has and lets go of the script's objects; what C++
    libraries do beyond that at the end of a process is left out, since Gloo now and then ends it by SIGABRT there.

    When a rank fails, time is up or the cell is interrupted, all ranks end within seconds. Nothing that a rank started
    outlives the run, nor, on Linux and macOS, the notebook's kernel.

    Raises RankFailed when a rank fails, TimeLimit when time is up, FileNotFoundError, IsADirectoryError, TypeError or
    ValueError for arguments that cannot be run, RuntimeError where torchrun or the warm server itself fails.
    """
    script = checked_script(script)
    count = checked_ranks(ranks)
    words, limit, extra = checked_args(args), checked_timeout(timeout), checked_env(env)
    grouped = b"torch.distributed" in Path(script).read_bytes()
    start = _launcher(warm)
    started = time.monotonic()
    with _folder(script, count) as folder, _launched(start(folder, words, environment(extra))) as launcher:
        echo = _Echo(folder.log(0)) if live else None
        in_time = _wait(launcher, None if limit is None else started + limit, folder, echo)
        report = folder.report() if in_time else _where_they_are(folder, launcher)
        if report is None:
            raise RuntimeError(launcher.failed())
        result = Run(script, folder.ranks(report), time.monotonic() - started, grouped)
        culprit = first_failure(result, folder.ends(report))
    if culprit is not None:
        raise RankFailed(failure_text(result, culprit, beside(result, culprit)), result, culprit)
    if not in_time:
        raise TimeLimit(limit_text(result, limit or 0.0, beside(result, None)), result)
    return result


class Launcher(Protocol):
    """Who starts the ranks and sees to them, in a process of its own, which makes the run's folder and removes it."""

    @property
    def pid(self) -> int | None:
        """Whose descendants the ranks are; None before it has started."""

    def ended(self) -> bool:
        """Whether it has ended before it was let go."""

    def let_go(self, patience: float | None) -> bool:
        """The sign to end, with ranks and folder; whether it has within `patience` seconds, None for any time."""

    def failed(self) -> str:
        """What to say where it ended before the ranks did."""


def _launcher(warm: bool) -> Callable[[Folder, list[str], dict[str, str]], Launcher]:
    if warm and sys.platform == "linux":
        from .warm import Forked

        return Forked
    if warm:
        warnings.warn(
            f"warm=True forks the ranks, which is done on Linux only, not on {sys.platform}: torchrun starts them, "
            "with the same result",
            stacklevel=3,
        )
    return Torchrun


@contextlib.contextmanager
def _folder(script: str, count: int) -> Iterator[Folder]:
    """The folder that a launcher makes and removes; it is removed here only where the launcher has been killed."""
    temporary = tempfile.gettempdir()
    lifetime.sweep(temporary)
    folder = Folder(Path(lifetime.new(temporary)), script, count)
    try:
        yield folder
    finally:
        lifetime.remove_when_free(str(folder.path))


@contextlib.contextmanager
def _launched(launcher: Launcher) -> Iterator[Launcher]:
    """The launcher, which is gone with all that descends from it when the block is left, however it is left."""
    try:
        yield launcher
    finally:
        if not launcher.let_go(10) and (pid := launcher.pid) is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
            launcher.let_go(None)


def _wait(launcher: Launcher, deadline: float | None, folder: Folder, echo: _Echo | None) -> bool:
    """Until the run is over; False where it is not by the deadline."""
    late = 0.0
    try:
        while not (launcher.ended() or folder.over()):
            if deadline is not None and time.monotonic() > deadline + late:
                if late or not folder.fails(launcher.pid):
                    return False
                late = processes.GRACE + 2.0  # a rank has failed in time: that is the better message
            if echo:
                echo.forward()
            time.sleep(_LOOK)
    except KeyboardInterrupt as interrupt:
        for rank in folder.ranks(_where_they_are(folder, launcher)):
            interrupt.add_note(f"rank {rank.rank} {rank.ended}" + (f" at {rank.where}" if rank.where else ""))
        raise
    if echo:
        echo.forward()
    return True


def _where_they_are(folder: Folder, launcher: Launcher) -> Report:
    """Have the ranks that are alive write their stacks: what can be said of a run that is about to be stopped."""
    alive = folder.alive(launcher.pid)
    if processes.ASK is not None:
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, processes.ASK)
        asked = [rank for rank, pid in folder.pids().items() if pid in alive]
        patience, quiet = time.monotonic() + _PATIENCE, 0
        stacks: list[str] = []
        while time.monotonic() < patience and quiet < 4:  # after that nothing more comes
            time.sleep(0.05)
            before, stacks = stacks, [folder.stacks(rank) for rank in asked]
            quiet = quiet + 1 if all(stacks) and stacks == before else 0
    return Report(stopped=alive)


class _Echo:
    """Prints what comes to be written into a log."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._place = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def forward(self) -> None:
        if not self._log.exists():
            return
        with self._log.open("rb") as file:
            file.seek(self._place)
            data = file.read()
        self._place += len(data)
        print(self._decoder.decode(data), end="", flush=True)


def environment(extra: dict[str, str]) -> dict[str, str]:
    """This process's environment, without what would change torchrun or only holds in a notebook."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}  # torchrun's options
    for name in ("CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR"):  # IPython's, for a terminal
        env.pop(name, None)
    if env.get("MPLBACKEND", "").startswith("module://"):
        env["MPLBACKEND"] = "agg"
    env.setdefault("OMP_NUM_THREADS", "1")
    env["PYTHONIOENCODING"] = "utf-8"
    loopback = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)
    if loopback in [name for _, name in socket.if_nameindex()]:
        env.setdefault("GLOO_SOCKET_IFNAME", loopback)  # a host name that means nothing is asked for otherwise
    virtual = sys.modules.get("virtualgpu.scope.in_force")
    if virtual is not None and virtual.current is not None:
        env["GPULAB_GPU"] = f"virtual:{virtual.current.spec.name}"
    return {**env, **extra}

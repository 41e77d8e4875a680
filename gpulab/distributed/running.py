"""`run`: starts the launcher, follows it, and takes everything down when time is up or the cell is interrupted.

Launcher and ranks are processes of `processes.py`; what they tell comes through a folder that lives as long as the run.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from . import processes
from .arguments import checked_args, checked_env, checked_ranks, checked_script, checked_timeout
from .folder import Folder, Report, kept
from .result import RankFailed, Run, TimeLimit, failure_text, first_failure, limit_text, on_screen

_LOOK = 0.1  # seconds between two looks at the launcher
_PATIENCE = 10.0  # seconds that ranks have to write where they are: a moment, where the processor is theirs


def run(
    script: str | os.PathLike[str],
    ranks: int = 2,
    *,
    args: Sequence[str] = (),
    timeout: float | None = 60.0,
    env: Mapping[str, str] | None = None,
    live: bool = False,
) -> Run:
    """Run the Python file `script` on `ranks` processes of this machine, and return each one's output.

    It is what `torchrun --standalone --nproc-per-node RANKS SCRIPT ARGS` does, on a free port: each process finds RANK,
    LOCAL_RANK and WORLD_SIZE in its environment, as `torch.distributed.init_process_group` expects. Where a virtual GPU
    is in force, GPULAB_GPU names it for the script's `gpulab.setup()`, unless `env` does; `env` is added to the
    environment. Each rank computes with one thread unless OMP_NUM_THREADS says otherwise. `timeout` is in seconds from
    the call, of which starting takes some four; None is no limit. With `live`, what rank 0 writes is also printed as it
    comes. Of a longer output the first and the last half MiB are kept.

    When a rank fails, time is up or the cell is interrupted, all ranks end within seconds. Nothing that a rank started
    outlives the run, nor, on Linux and macOS, the notebook's kernel.

    Raises RankFailed when a rank fails, TimeLimit when time is up, FileNotFoundError, IsADirectoryError, TypeError or
    ValueError for arguments that cannot be run, RuntimeError where torchrun itself fails.
    """
    script = checked_script(script)
    count = checked_ranks(ranks)
    words, limit, extra = checked_args(args), checked_timeout(timeout), checked_env(env)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpulab-ranks-", ignore_cleanup_errors=True) as name:
        folder = Folder(Path(name), script, count)
        echo = _Echo(folder.log(0)) if live else None
        with _launched(folder, words, environment(extra)) as launcher:
            in_time = _wait(launcher, None if limit is None else started + limit, folder, echo)
            report = folder.report() if in_time else _where_they_are(folder, launcher)
        if report is None:
            raise RuntimeError(_torchrun_failed(folder, launcher))
        result = Run(script, folder.ranks(report), time.monotonic() - started)
        culprit = first_failure(result, folder.ends(report))
    if culprit is not None:
        raise RankFailed(failure_text(result, culprit), result, culprit)
    if not in_time:
        raise TimeLimit(limit_text(result, limit or 0.0), result)
    return result


@contextlib.contextmanager
def _launched(folder: Folder, args: list[str], env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The launcher, which is gone with all that descends from it when the block is left, however it is left."""
    command = ["launch", str(folder.path), str(os.getpid()), str(folder.count), folder.script, *args]
    with folder.launcher_log.open("wb") as log:
        launcher = subprocess.Popen(
            [sys.executable, "-P", processes.__file__, *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=env,
            start_new_session=True,  # an interrupt in a terminal or a notebook goes to all of its session
        )
    assert launcher.stdin is not None
    try:
        yield launcher
    finally:
        launcher.stdin.close()  # for the launcher, the sign to kill the ranks and end
        try:
            launcher.wait(10)
        except subprocess.TimeoutExpired:
            for process in psutil.Process(launcher.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            launcher.kill()
            launcher.wait()


def _wait(launcher: subprocess.Popen[bytes], deadline: float | None, folder: Folder, echo: _Echo | None) -> bool:
    """Until the launcher has ended by itself; False where it has not by the deadline."""
    late = 0.0
    try:
        while launcher.poll() is None:
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


def _where_they_are(folder: Folder, launcher: subprocess.Popen[bytes]) -> Report:
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
    virtual = sys.modules.get("gpulab.virtual.scope.in_force")
    if virtual is not None and virtual.current is not None:
        env["GPULAB_GPU"] = f"virtual:{virtual.current.spec.name}"
    return {**env, **extra}


def _torchrun_failed(folder: Folder, launcher: subprocess.Popen[bytes]) -> str:
    log = "\n".join(on_screen(kept(folder.launcher_log))[-20:])
    return f"torchrun ended before the ranks did (exit code {launcher.returncode}). Its last lines:\n{log}"

"""What runs outside the notebook: the launcher, which is torchrun in a process of its own, and the start of each rank.

The file is run by its path and imports nothing of gpulab, so that a rank is what `torchrun train.py` would make of it.
All that the two have to say they write into the folder they are given, which `running.py` reads. `forking.py` starts
ranks in another way, and has what is common to both from here.

The launcher's standard input is a pipe that nobody writes to: when the notebook lets go of it, or dies, it ends, and
the launcher kills whatever descends from it. On Linux the kernel also ends the ranks with the launcher; on macOS a rank
stays only where notebook and launcher are killed in the same moment.
"""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import importlib.machinery
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
import types
from typing import Any, NoReturn

# Seconds between SIGTERM and SIGKILL for the other ranks once one has failed; also what a rank that raised has to exit.
GRACE = 3

# Seconds that the others have to fail by themselves: what all ranks do wrong, they do at about the same time.
TOGETHER = 0.5

# Asks a rank where it is. Real-time signals are nobody's; macOS has none.
ASK: int | None = getattr(signal, "SIGRTMAX", getattr(signal, "SIGUSR2", None))

_SET_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # of Linux's prctl


# -- the launcher ----------------------------------------------------------------------------------------------------


def launch(folder: str, notebook: str, ranks: str, script: str, *args: str) -> None:
    """torchrun for `ranks` ranks of `script`; writes `folder`/report.json, and leaves no descendant."""
    if sys.platform != "win32":  # where a virtual environment's Python is another process's child
        end_with(int(notebook), signal.SIGTERM)
    adopt_orphans()
    pipe = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a rank that reads its input finds the end of it
    threading.Thread(target=_watch, args=(pipe, folder, int(notebook)), daemon=True).start()

    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.api import PContext
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    later: list[int] = []  # pids of those that lived when the first had failed
    stopped: list[int] = []  # pids of those that did not end by themselves even then
    own_close = PContext.close

    def close(self: Any, death_sig: Any = None, timeout: int = GRACE) -> None:
        if not later:
            later.extend(children())
            time.sleep(TOGETHER if later else 0)
            stopped.extend(children())
        own_close(self, death_sig, min(timeout, GRACE))  # torchrun gives ranks that ignore SIGTERM half a minute

    PContext.close = close  # type: ignore[method-assign]
    options = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}", f"--log-dir={folder}"]
    start = [os.path.abspath(__file__), "rank", folder, str(os.getpid()), script, *args]
    exit_codes: dict[int, int] = {}
    try:
        torchrun.run(torchrun.parse_args([*options, *start]))
    except ChildFailedError as error:
        exit_codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
    finally:
        leave_nothing(None if _reads(int(notebook)) else folder)
    report(folder, exit_codes, later, stopped)


def _watch(pipe: int, folder: str, notebook: int) -> None:
    """Wait until the notebook lets go of the launcher."""
    while os.read(pipe, 1):
        pass
    leave_nothing(None if _reads(notebook) else folder)
    os._exit(1)


def _reads(notebook: int) -> bool:
    """Whether somebody is left who reads the folder."""
    return sys.platform == "win32" or os.getppid() == notebook


def children() -> list[int]:
    """The pids of this process's children that run."""
    import psutil

    alive = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process.pid)
    return alive


def leave_nothing(folder: str | None) -> None:
    """No process that descends from this one, and no `folder`."""
    import psutil

    patience = 10
    while patience and (descendants := psutil.Process().children(recursive=True)):
        patience -= 1  # one that is about to be killed may start another
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(descendants, timeout=1)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def report(folder: str, exit_codes: dict[int, int], later: list[int], stopped: list[int]) -> None:
    """The launcher's last word: how the ranks ended; `folder.py` says what it means."""
    said = {"exit_codes": exit_codes, "later": later, "stopped": stopped}
    write(os.path.join(folder, "report.json"), json.dumps(said))


# -- a rank ----------------------------------------------------------------------------------------------------------


def rank(folder: str, launcher: str, script: str, *args: str) -> None:
    """Become `script`, with all output in one log, and on record where it failed or hangs."""
    place = os.path.join(folder, f"rank-{os.environ['RANK']}")
    log = os.open(f"{place}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    stacks = open(f"{place}.stacks", "w", encoding="utf-8")  # noqa: SIM115  (open as long as the rank lives)
    faulthandler.enable(stacks)
    if ASK is not None and hasattr(faulthandler, "register"):
        faulthandler.register(ASK, stacks)
    write(f"{place}.pid", str(os.getpid()))
    if sys.platform != "win32":
        end_with(int(launcher), signal.SIGKILL)

    sys.argv = [script, *args]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    loader = importlib.machinery.SourceFileLoader("__main__", script)
    try:
        code = loader.source_to_code(loader.get_data(script), script)
    except (OSError, SyntaxError, ValueError) as error:
        _fail(place, error.with_traceback(None))
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __file__=script, __loader__=loader)
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:  # multiprocessing's second name for it
        sys.modules["__mp_main__"] = main
    process = os.getpid()
    try:
        exec(code, main.__dict__)
    except SystemExit:
        write(f"{place}.exit", str(time.time()))
        raise
    except BaseException as error:
        if os.getpid() != process:
            raise
        trace = error.__traceback__
        _fail(place, error.with_traceback(trace.tb_next if trace else None))
    write(f"{place}.finished", "")


def _fail(place: str, error: BaseException) -> NoReturn:
    said = {"exception": f"{type(error).__name__}: {error}", "traceback": "".join(traceback.format_exception(error))}
    write(f"{place}.error", json.dumps({"time": time.time(), **said}))
    sys.excepthook(type(error), error, error.__traceback__)
    # Python's end may wait for threads that wait for other ranks.
    faulthandler.dump_traceback_later(GRACE, exit=True, file=open(os.devnull, "w"))  # noqa: SIM115
    raise SystemExit(1)


# -- both ------------------------------------------------------------------------------------------------------------


def end_with(parent: int, death_signal: int) -> None:
    """On Linux: send this process `death_signal` when its parent dies. Anywhere: end where that has happened."""
    _prctl(_SET_DEATH_SIGNAL, death_signal)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """On Linux: what a dead rank leaves behind becomes this process's child."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def write(path: str, text: str) -> None:
    """Whole or not at all."""
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.part", path)


if __name__ == "__main__":
    (launch if sys.argv[1] == "launch" else rank)(*sys.argv[2:])

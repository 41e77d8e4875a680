"""What runs outside the notebook: the launcher, which is torchrun in a process of its own, and the start of each rank.

The file is run by its path and imports nothing of gpulab, so that a rank is what `torchrun train.py` would make of it.
All that the two have to say they write into the folder they are given, which `running.py` reads. `forking.py` starts
ranks in another way, and has what is common to both from here.

Notebook, keeper (`keeper.py`), launcher and ranks are a chain. The standard input of keeper and launcher is a pipe that
nobody writes to: it ends when the one before lets go of it, or dies, and then they kill whatever descends from them.
On Linux each of the two also adopts what the one behind it leaves, and the ranks end with the launcher; on macOS the
ranks of a launcher that is itself killed stay.
"""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import gc
import importlib.machinery
import json
import os
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Collection, Iterator
from typing import Any, NoReturn

# Seconds between SIGTERM and SIGKILL for the other ranks once one has failed; also what a rank that raised has to exit.
GRACE = 3

# Seconds that the others have to fail by themselves: what all ranks do wrong, they do at about the same time.
TOGETHER = 0.5

# Asks a rank where it is. Real-time signals are nobody's; macOS has none.
ASK: int | None = getattr(signal, "SIGRTMAX", getattr(signal, "SIGUSR2", None))

_SET_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # of Linux's prctl


# -- the launcher ----------------------------------------------------------------------------------------------------


def launch(folder: str, ranks: str, script: str, *args: str) -> None:
    """torchrun for `ranks` ranks of `script`; writes `folder`/report.json."""
    adopt_orphans()
    when_let_go(_end)

    with uncollected():
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
    report(folder, exit_codes, later, stopped)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """For an import of torch: a fifth of its time would go to looking for garbage in what has just come."""
    usual = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if usual:
            gc.enable()


def _end() -> None:
    leave_nothing()
    os._exit(1)


def children() -> list[int]:
    """The pids of this process's children that run."""
    import psutil

    return [child.pid for child in psutil.Process().children() if lives(child.pid)]


def report(folder: str, exit_codes: dict[int, int], later: list[int], stopped: list[int]) -> None:
    """How the ranks ended; `folder.py` says what it means."""
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


def be_rank(*args: str) -> NoReturn:
    """Be that `rank`, and end."""
    code = 0
    try:
        rank(*args)
    except SystemExit as end:
        code = exit_code(end)
    end_as_python_does(code)


def _fail(place: str, error: BaseException) -> NoReturn:
    said = {"exception": f"{type(error).__name__}: {error}", "traceback": "".join(traceback.format_exception(error))}
    write(f"{place}.error", json.dumps({"time": time.time(), **said}))
    sys.excepthook(type(error), error, error.__traceback__)
    # Python's end may wait for threads that wait for other ranks.
    faulthandler.dump_traceback_later(GRACE, exit=True, file=open(os.devnull, "w"))  # noqa: SIM115
    raise SystemExit(1)


def exit_code(end: SystemExit) -> int:
    """With which a process ends, as Python would have it; a text is printed."""
    if end.code is None or isinstance(end.code, int):
        return int(end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)
    return 1


def end_as_python_does(code: int) -> NoReturn:
    """What the end of Python does for the script, and not what it does to all that has been imported.

    To take torch to pieces costs a second of processor time in each rank, and on a busy machine a thread of Gloo's that
    lets go of a tensor meanwhile ends the process by SIGABRT, one time in forty. Threads are waited for, functions of
    `atexit` called, the script's own objects let go, Python's and C's streams flushed. The destructors of the libraries
    do not run: what they call of Python finds no state of its thread any more.
    """
    import atexit
    import ctypes

    threading._shutdown()  # type: ignore[attr-defined]
    atexit.unregister(gc.unfreeze)
    atexit._run_exitfuncs()
    sys.modules["__main__"].__dict__.clear()
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed by the script, or replaced
            stream.flush()
    if sys.platform != "win32":
        ctypes.CDLL(None).fflush(None)
    os._exit(code)


# -- all -------------------------------------------------------------------------------------------------------------


def when_let_go(act: Callable[[], None]) -> None:
    """Call `act`, in a thread, when the standard input, a pipe, ends; what this process starts finds none."""
    pipe, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def wait() -> None:
        while os.read(pipe, 1):
            pass
        act()

    threading.Thread(target=wait, daemon=True).start()


def end_with(parent: int, death_signal: int) -> None:
    """On Linux: send this process `death_signal` when its parent dies. Anywhere: end where that has happened."""
    _prctl(_SET_DEATH_SIGNAL, death_signal)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """On Linux: what a descendant leaves behind as it dies becomes this process's child."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def lives(pid: int) -> bool:
    """Whether that process runs; a zombie does not."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def leave_nothing(spared: Collection[int] = ()) -> None:
    """No process that descends from this one, but for the children `spared` and what descends from them."""
    import psutil

    # One that is about to be killed may start another, or leave one behind.
    while mine := [child for child in psutil.Process().children() if child.pid not in spared]:
        for child in mine:
            family = [child]
            with contextlib.suppress(psutil.NoSuchProcess):
                family += child.children(recursive=True)
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        psutil.wait_procs(mine, timeout=1)


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
    role, *rest = sys.argv[1:]
    if role == "launch":
        launch(*rest)
    else:
        be_rank(*rest)

"""The warm server: a process that has imported torch, and forks a launcher and the ranks of each run from itself.

The file is run by its path, as `processes.py`, and has one thread and no process group; `warm.py` is the notebook's
side. Over a channel of the two come sockets, one for each run, which its launcher reads the run from, and by whose end
it learns that the notebook has left or died; before some a pipe, with more to import. A launcher forks the ranks, and
does for them what torchrun does: it keeps the store where they meet, stops all where one fails, and reports; a rank
never touches the server. It is also its own keeper: it makes the run's folder, and removes it when the notebook has
left.

The server ends with the notebook, or when it had nothing to do for some time.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

READY, RUN, IMPORT, RETIRE = b"r", b"f", b"i", b"q"  # what is said on the channel

_LOOK = 0.02  # seconds between two looks at the ranks
_FIRST = 60.0  # seconds that it waits at least for the run that it was started for
_PARENT = 1.0  # seconds between two looks at whether the notebook lives
_ENDING = 10.0  # seconds for threads that have ended to be gone

# What a process that was forked does: each job is returned through all that forked it, so that the ranks start from an
# empty stack, and end as any Python does.
Job: TypeAlias = "Callable[[], Job | None] | Callable[[], None]"


_path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "keeper.py")
_spec: Any = importlib.util.spec_from_file_location("_gpulab_keeper", _path)
keeper: Any = importlib.util.module_from_spec(_spec)  # without the package that it belongs to
_spec.loader.exec_module(keeper)
processes: Any = keeper.processes


# -- the server ------------------------------------------------------------------------------------------------------


def serve(channel: socket.socket, notebook: int, idle: float, imported: Sequence[str]) -> Job | None:
    """Fork a launcher for each socket that comes; None when it is time to end, in a launcher what that has to do.

    `idle` is in seconds without a run. The modules `imported` are, before the first.
    """
    _import(imported)
    processes.adopt_orphans()
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    launchers: set[int] = set()
    used, retired, first = time.monotonic(), False, max(idle, _FIRST)
    channel.sendall(READY)
    while os.getppid() == notebook and (launchers or not retired):
        readable, _, _ = select.select([channel.fileno(), woken], [], [], min(_PARENT, idle))
        if woken in readable:
            os.read(woken, 1024)
        while launchers and _buried(launchers, os.WNOHANG):
            used = time.monotonic()
        if channel.fileno() in readable:
            said, sockets, _, _ = socket.recv_fds(channel, 1, 1)
            if not said:
                break
            retired = retired or said == RETIRE
            if said == IMPORT:
                (pipe,) = sockets
                _import(**_received(pipe))
                os.close(pipe)
            for run in sockets if said == RUN else ():
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, before)
                    for mine in (woken, wake, channel.detach()):
                        os.close(mine)
                    return partial(launch, run, notebook)
                os.close(run)
                launchers.add(pid)
                first = idle
        elif not launchers and time.monotonic() - used > first:
            break
    for launcher in launchers:
        os.kill(launcher, signal.SIGTERM)
    while launchers:
        _buried(launchers, 0)
    return None


def _buried(launchers: set[int], options: int) -> bool:
    """Whether a child has ended: it is taken out of `launchers`, and what is left of one that was killed is killed."""
    ended, status = os.waitpid(-1, options)
    launchers.discard(ended)
    if ended and os.WIFSIGNALED(status):
        processes.leave_nothing(launchers)
    return bool(ended)


def _import(modules: Sequence[str], path: Sequence[str] = ()) -> None:
    """What no rank has to import any more, also from the folders `path`."""
    before = sys.path[:]
    sys.path[:] = [*path, *before[0 if sys.flags.safe_path else 1 :]]  # this file's folder, which nobody imports from
    try:
        with processes.uncollected():
            for name in modules:
                importlib.import_module(name)
    except Exception:
        traceback.print_exc()
        os._exit(1)  # what libraries print at a regular end would hide it
    sys.path[:] = before  # a rank puts its script's folder first

    import psutil

    if (trial := os.fork()) == 0:  # before a fork OpenBLAS ends its own threads, until they are needed again
        os._exit(0)
    os.waitpid(trial, 0)
    until = time.monotonic() + _ENDING
    while (threads := psutil.Process().num_threads()) != 1:  # a busy machine counts one that has ended a while longer
        if time.monotonic() > until:  # a lock that another thread holds stays locked in a fork for ever
            raise RuntimeError(f"{threads} threads run after import torch, and a process with several cannot be forked")
        time.sleep(0.001)
    gc.collect()
    gc.freeze()  # what is not looked at by the ranks' garbage collection stays shared memory


# -- a run's launcher ------------------------------------------------------------------------------------------------


def launch(run: int, notebook: int) -> Job | None:
    """Fork the ranks of the run that the socket `run` tells, and see to them; returns only in a rank."""
    server, launcher = os.getppid(), os.getpid()
    os.setsid()
    processes.end_with(server, signal.SIGTERM)
    processes.adopt_orphans()
    asked = _received(run)
    told = keeper.asked_to_end()

    def gone() -> bool:
        # What the notebook has forked holds the socket too, and may outlive it.
        return bool(select.select([run], [], [], 0)[0]) or not processes.lives(notebook)

    held = keeper.lifetime.claim(asked["folder"])
    try:
        job = _launch(asked, (run, held), lambda: gone() or bool(told))
        if os.getpid() != launcher:
            return job
    except BaseException:
        if os.getpid() != launcher:
            raise
        traceback.print_exc()
    keeper.end(asked["folder"], gone, "it ended")
    os._exit(0)


def _launch(asked: dict[str, Any], mine: tuple[int, ...], enough: Callable[[], bool]) -> Job | None:
    """Until the ranks are gone, or it is `enough`; in a rank, which has no use for the files `mine`, what to do."""
    folder, count = asked["folder"], asked["count"]
    processes.write(os.path.join(folder, "launcher.pid"), str(os.getpid()))
    log = os.open(os.path.join(folder, "launcher.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    # The port is bound here, by the store's own socket: nobody can take it before the ranks have come.
    store = socket.create_server(("127.0.0.1", 0), backlog=max(128, 4 * count))
    port = store.getsockname()[1]
    ranks: dict[int, int] = {}
    me = str(os.getpid())
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            for file in mine:
                os.close(file)
            store.close()
            os.setsid()
            os.environ.update(_variables(rank, count, port))
            _as_if_new()
            return partial(processes.be_rank, folder, me, asked["script"], *asked["args"])
        ranks[pid] = rank
    _see_to(Ranks(folder, ranks), store, enough)
    return None


def _received(file: int) -> dict[str, Any]:
    """What the notebook asks for; it may have left already."""
    data = b""
    while b"\0" not in data:
        part = os.read(file, 2**16)
        if not part:
            os._exit(0)
        data += part
    return dict(json.loads(data.partition(b"\0")[0]))


def _variables(rank: int, count: int, port: int) -> dict[str, str]:
    """What torchrun tells each of its ranks, without what is about restarts and elastic runs.

    TORCHELASTIC_USE_AGENT_STORE is its way to say that rank 0 need not open the store: it is there.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


def _as_if_new() -> None:
    """What a process finds at its start, or draws then, and the server has found or drawn long ago."""
    import atexit
    import multiprocessing.process
    import tempfile

    for number in keeper.SIGNALS:  # torchrun has handlers for them too, so that its ranks ignore none of them
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as Python has it at its start
    atexit.register(gc.unfreeze)  # where Python itself ends the process, it takes to pieces what it finds
    importlib.invalidate_caches()
    tempfile.tempdir = None
    time.tzset()
    multiprocessing.process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
    multiprocessing.process.current_process().authkey = os.urandom(32)
    # Python's own random draws a new seed by itself.
    sys.modules["torch"].default_generator.seed()
    sys.modules["torch.distributed"].set_debug_level_from_env()  # TORCH_DISTRIBUTED_DEBUG
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


class Ranks:
    """The ranks of one run: which process each is, and how it ended."""

    store: object  # where they meet

    def __init__(self, folder: str, ranks: dict[int, int]) -> None:
        self.folder = folder
        self.alive = ranks
        self.exit_codes: dict[int, int] = {}  # of those that ended and not well

    def look(self) -> None:
        """Take note of who has ended; orphans of theirs are buried too."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                rank = self.alive.pop(found[0], None)
                code = os.waitstatus_to_exitcode(found[1])
                if rank is not None and code:
                    self.exit_codes[rank] = code

    def send(self, number: int) -> None:
        """To the rank, and to what it started and what stayed in its session."""
        for pid in self.alive:
            try:
                os.killpg(pid, number)
            except ProcessLookupError:  # it is about to make itself a session of its own
                os.kill(pid, number)


def _see_to(ranks: Ranks, store: socket.socket, enough: Callable[[], bool]) -> None:
    """As torchrun's agent: where one rank fails, the others get a moment, SIGTERM, and SIGKILL.

    Where it is `enough` before, it leaves the ranks to the caller, and reports nothing.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    port = store.getsockname()[1]
    # It has threads: the forks are over.
    ranks.store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=store.detach())

    def wait(ready: Callable[[], bool], seconds: float | None = None) -> None:
        until = None if seconds is None else time.monotonic() + seconds
        while not enough():
            ranks.look()
            if ready() or (until is not None and time.monotonic() > until):
                return
            time.sleep(_LOOK)

    def over() -> bool:
        return not ranks.alive

    wait(lambda: over() or bool(ranks.exit_codes))
    later = list(ranks.alive)
    if later:
        wait(over, processes.TOGETHER)
    stopped = list(ranks.alive)
    if stopped:
        ranks.send(signal.SIGTERM)
        wait(over, processes.GRACE)
        ranks.send(signal.SIGKILL)
        wait(over)
    if not enough():
        processes.report(ranks.folder, ranks.exit_codes, later, stopped)


if __name__ == "__main__":
    number, notebook, idle, *modules = sys.argv[1:]
    try:
        job = serve(socket.socket(fileno=int(number)), int(notebook), float(idle), modules)
    except Exception:
        traceback.print_exc()
        os._exit(1)  # as in _import
    while job is not None:
        job = job()

"""The warm server as the notebook sees it: started at the first use, asked for runs, let go with the notebook.

`forking.py` is what it runs. There is one at a time; where a run needs a process that started otherwise
(`start_conditions`), the next one takes its place.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ..machine.debugger import kept_out
from . import processes
from .folder import Folder, kept
from .result import on_screen

IDLE = 600.0  # seconds that a server waits for the next run

_READY, _RUN, _IMPORT, _RETIRE = b"r", b"f", b"i", b"q"  # as forking.py has them

# What any rank that trains imports: an optimizer and DistributedDataParallel alone need torch._dynamo, for seconds.
IMPORTED = ("torch.distributed", "torch.distributed.fsdp", "torch.distributed.tensor", "torch._dynamo")
# What ranks with a virtual GPU import; gpulab itself is found where this file is.
VIRTUAL = ("virtualgpu.gpu", "virtualgpu.ranks.fork_preload")
_GPULAB = str(Path(__file__).parents[2])

# Variables that Python, the loader, torch and what torch loads read once, as they start or are imported.
_READ_ONCE = (
    *("PYTHON", "LD_", "LANG", "LC_", "MALLOC_", "GLIBC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_"),
    *("NUMEXPR_", "NPY_", "ATEN_", "C10", "TORCH", "PYTORCH", "TRITON_", "CUDA", "NVIDIA_", "ROCM_", "HIP_", "HSA_"),
)
_LEVEL, _LEVELS = "TORCH_DISTRIBUTED_DEBUG", ("OFF", "INFO", "DETAIL")  # which each rank reads again


def start_conditions(env: dict[str, str]) -> tuple[object, ...]:
    """What a process with the environment `env`, started now, would have from its start and not be able to change."""
    once = {name: value for name, value in env.items() if name.startswith(_READ_ONCE)}
    if once.get(_LEVEL, "").upper() in _LEVELS:  # with another value torch cannot be imported
        del once[_LEVEL]
    path = env.get("PYTHONPATH", "")  # an empty entry is the current folder, an empty variable is none
    once["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, path.split(os.pathsep))) if path else ""
    packages = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
    installed = [os.stat(folder).st_mtime_ns for folder in sorted(packages) if os.path.isdir(folder)]
    limits = [resource.getrlimit(n) for name, n in vars(resource).items() if name.startswith("RLIMIT_")]
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    umask = [line for line in status if line.startswith("Umask:")]
    mine = (os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0))
    return sys.executable, sorted(once.items()), installed, limits, umask, mine


class Server:
    """A process that imports torch, and forks launchers from then on."""

    def __init__(self, env: dict[str, str]) -> None:
        self.start_conditions = start_conditions(env)
        self.owner = os.getpid()
        self._is_ready = False
        self._imported: set[str] = set()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the server lives)
        self._channel, its = socket.socketpair()
        file = str(Path(__file__).with_name("forking.py"))
        with its, kept_out():
            self.process = subprocess.Popen(
                [sys.executable, "-u", file, str(its.fileno()), str(self.owner), str(IDLE), *IMPORTED],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=env,
                pass_fds=[its.fileno()],
                start_new_session=True,
            )

    def ready(self) -> bool:
        """Whether it can be asked to fork; RuntimeError where it ended before."""
        if not self._is_ready:
            with contextlib.suppress(BlockingIOError, ConnectionError):
                self._is_ready = self._channel.recv(1, socket.MSG_DONTWAIT) == _READY
            if not self._is_ready and self.ended():
                raise RuntimeError(f"the warm server did not start. {self.last_words()}")
        return self._is_ready

    def ended(self) -> bool:
        return self.process.poll() is not None

    def was_idle(self) -> bool:
        """Whether it ended by itself, in the very moment in which it was asked."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(10) == 0
        return False

    def fork(self, run: socket.socket) -> None:
        """Have it fork a launcher for `run`; nothing where it has just ended."""
        with contextlib.suppress(ConnectionError):
            socket.send_fds(self._channel, [_RUN], [run.fileno()])

    def imports(self, modules: Sequence[str]) -> None:
        """Have it import these modules of gpulab before the next run is forked, so that its ranks need not."""
        new = [name for name in modules if name not in self._imported]
        self._imported.update(new)
        if not new:
            return
        its, mine = os.pipe()
        with open(its, "rb"), open(mine, "wb", buffering=0) as pipe:
            pipe.write(json.dumps({"modules": new, "path": [_GPULAB]}).encode() + b"\0")
            with contextlib.suppress(ConnectionError):  # it has just ended
                socket.send_fds(self._channel, [_IMPORT], [its])

    def last_words(self) -> str:
        code = self.process.wait()
        ended = f"It was killed by {signal.Signals(-code).name}" if code < 0 else f"It ended with exit code {code}"
        words = self.words()
        return "\n".join([f"{ended}. Its last lines:", *words] if words else [f"{ended}."])

    def words(self) -> list[str]:
        """The last lines that it has written."""
        log = self._log.fileno()
        words = os.pread(log, os.fstat(log).st_size, 0)  # it goes on where this file stands
        return on_screen(words.decode("utf-8", errors="replace"))[-20:]

    def close(self, retire: bool = False) -> None:
        """End it now; or, with `retire`, when the runs that it has begun are over."""
        if retire:
            with contextlib.suppress(ConnectionError):
                self._channel.send(_RETIRE)
            _retired.append(self)
            return
        self._channel.close()
        if self.owner == os.getpid():
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()


_lock = threading.Lock()
_current: Server | None = None
_retired: list[Server] = []


def server(env: dict[str, str]) -> Server:
    """The server for runs in the environment `env`, started where there is none that fits."""
    global _current
    with _lock:
        if _current is not None and _current.owner != os.getpid():  # this process is a fork: it was the other's
            _current, _retired[:] = None, []
        for old in [old for old in _retired if old.ended()]:
            _retired.remove(old)
            old.close()
        if _current is not None and _current.ended():
            _current.close()
            _current = None
        if _current is not None and _current.start_conditions != start_conditions(env):
            _current.close(retire=True)
            _current = None
        if _current is None:
            _current = Server(env)
        return _current


def server_pid() -> int | None:
    """The process of this process's server, None where none runs."""
    with _lock:
        return None if _current is None or _current.ended() else _current.process.pid


@atexit.register
def stop() -> None:
    """End this process's server, with whatever it runs. The next warm run starts another."""
    global _current
    with _lock:
        for one in [*_retired, *([] if _current is None else [_current])]:
            one.close()
        _current, _retired[:] = None, []


class Forked:
    """A launcher of `folder.count` ranks of `folder.script`, which the server forks when it is ready."""

    def __init__(self, folder: Folder, args: list[str], env: dict[str, str]) -> None:
        self._folder, self._env = folder, env
        asked = {"folder": str(folder.path), "count": folder.count, "script": folder.script, "args": args}
        self._asked = json.dumps(asked | {"env": env, "cwd": os.getcwd()}).encode() + b"\0"
        self._server = server(env)
        if env.get("GPULAB_GPU", "").startswith("virtual"):
            self._server.imports(VIRTUAL)
        self._socket: socket.socket | None = None
        self._pid: int | None = None

    @property
    def pid(self) -> int | None:
        """Whose children the ranks are; once it was seen, also when the folder is gone."""
        self._pid = self._pid or self._folder.launcher_pid()
        return self._pid

    def ended(self) -> bool:
        """RuntimeError where the server cannot start."""
        if self._socket is None:
            if not self._server.ready():
                return False
            self._socket, its = socket.socketpair()
            with its:
                self._server.fork(its)
            with contextlib.suppress(ConnectionError):
                self._socket.sendall(self._asked)
        try:
            if self._socket.recv(1, socket.MSG_DONTWAIT):
                raise AssertionError("a launcher says nothing here")
        except BlockingIOError:
            return False
        except ConnectionResetError:  # it ended before it had read all
            pass
        if self.pid is None and self._server.was_idle():
            self._socket.close()
            self._socket, self._server = None, server(self._env)
            return False
        return True

    def let_go(self, patience: float | None) -> bool:
        """The sign to end, with ranks and folder; whether it has within `patience` seconds, None for any time."""
        if self._socket is None:
            return True
        launcher = self.pid  # while the folder is there
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self._socket.settimeout(patience)
        try:
            self._socket.recv(1)
        except TimeoutError:
            if launcher is not None:
                return False
        except ConnectionResetError:
            pass
        self._socket.close()
        while launcher is not None and processes.lives(launcher):
            time.sleep(0.001)  # its files are closed, it is about to end
        return True

    def failed(self) -> str:
        """What to say where it ended before the ranks did."""
        if self._server.ended():
            return f"the warm server ended before the ranks did. {self._server.last_words()}"
        # Where it cannot make the folder, it has the server's log.
        log = "\n".join(on_screen(kept(self._folder.launcher_log))[-20:] or self._server.words())
        return f"the ranks' launcher ended before they did. Its last lines:\n{log}"

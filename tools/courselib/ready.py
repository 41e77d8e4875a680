"""A Python that has others' libraries loaded when it starts: a fork of one process that has imported them.

`import torch` takes two seconds of the processor, and its compiler, which the first optimizer imports, two more: of
what the tests start, most of the time. So `make test` keeps a process that has imported both, and nothing of gpulab,
and what would start a Python starts this file instead (`python_here`, and Jupyter's kernels): it asks for a fork,
passes signals on, and ends as the fork has ended. Where nobody is to be asked, or Python would begin otherwise than
that process has (its options, or variables that Python, the loader or a library reads at the start), the file becomes
an ordinary Python.

Linux only: elsewhere everything starts an ordinary Python, and takes longer. A test of how a process starts, ends or is
killed has no use for it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing takes longer to import than the rest of what who asks needs
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

PLACE = "READY_PYTHON"  # the socket to ask at; what else is ready lies beside it
# Read at the start, by Python, the loader or a library: a fork cannot begin otherwise than what it is a fork of.
_AT_THE_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC", "OMP_", "GOMP_", "MKL_", "KMP_", "OPENBLAS_", "TORCH_")
# These make no difference: the last is read by torchrun, when it starts ranks.
_OR_LATER = ("PYTHONPATH", "PYTHON_EXEC", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE")
_IMPORTED = ("torch", "torch._dynamo", "torchvision", "ipykernel.ipkernel", "ipykernel.kernelapp", "nbformat")
ASKING = ("-S", "-E", os.path.abspath(__file__))  # Python's arguments, before those that are meant
_MOST_FILES = 200  # open ones that a fork is given; the kernel takes 253
_HEAD, _NUMBER = 4, 16  # bytes: of a request's length, and more than any number in an answer has


def python_here() -> list[str]:
    """How a command begins that starts a Python as this one, with what is `_IMPORTED` if that is ready."""
    return [sys.executable, *(ASKING if os.environ.get(PLACE) else ())]


def ranks_here(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables by which torchrun starts its ranks so, where these are its variables."""
    place = environ.get(PLACE)
    return {"PYTHON_EXEC": os.path.join(os.path.dirname(place), "python")} if place else {}


def kernels_here() -> dict[str, str]:
    """The variables by which Jupyter starts its kernels so; it looks at other places after this one."""
    place = os.environ.get(PLACE)
    return {"JUPYTER_PATH": os.path.dirname(place)} if place else {}


# -- who asks: few imports, for this runs before each process --------------------------------------------------------


def ask(arguments: list[str]) -> None:
    """Have a fork do what `python *arguments` would, and end as it did; become an ordinary Python where none does."""
    place = os.environ.get(PLACE)
    if place and _taken_apart(arguments):
        _ask(place, arguments)
    os.execv(sys.executable, [sys.executable, *arguments])


def _taken_apart(arguments: list[str]) -> tuple[list[str], str, str, list[str]] | None:
    """Options, "-c", "-m" or "" with what is run, and its arguments; None where it is something else."""
    words, options = list(arguments), []
    while words and words[0] in ("-u", "-B", "-W"):
        options += [words.pop(0) for _ in range(2 if words[0] == "-W" else 1)]
    kind = words.pop(0) if words and words[0] in ("-c", "-m") else ""
    if not words or not (kind or words[0].endswith(".py")):
        return None
    return options, kind, words[0], words[1:]


def _is_open(file: int) -> bool:
    try:
        os.fstat(file)
    except OSError:
        return False
    return True


def _catchable() -> set[int]:
    import signal

    return {*map(int, signal.valid_signals())} - {signal.SIGKILL, signal.SIGSTOP}


def _ask(place: str, arguments: list[str]) -> None:
    import signal
    import socket

    files = [int(name) for name in os.listdir("/proc/self/fd")]  # and that of the folder itself, which is closed by now
    files = [file for file in files if file < _MOST_FILES and _is_open(file)]
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
    ignored = [int(number) for number in _catchable() if signal.getsignal(number) is signal.SIG_IGN]
    fork = 0
    early: list[int] = []

    def passed_on(number: int, _: object) -> None:
        early.append(number)
        while fork and early:
            try:
                os.kill(fork, early.pop(0))
            except ProcessLookupError:
                return  # it has just ended

    before = {number: signal.signal(number, passed_on) for number in numbers}
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(place)
            said = repr((arguments, os.getcwd(), dict(os.environ), ignored, files)).encode()
            socket.send_fds(server, [len(said).to_bytes(_HEAD, "big")], files)
            server.sendall(said)
            fork = int(server.recv(_NUMBER) or 0)
        except OSError:  # it has ended
            fork = 0
        if fork:
            if early:
                passed_on(early.pop(), None)
            server.send(b"1")  # the fork may begin: signals reach it
            code = int(server.recv(_NUMBER) or -signal.SIGKILL)
            if code >= 0:
                os._exit(code)
            if -code in numbers:
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
    for number, handler in before.items():
        signal.signal(number, handler)


# -- who is asked ----------------------------------------------------------------------------------------------------


def serve(place: str) -> Callable[[], None]:
    """Fork for each that asks at the socket `place`, until standard input ends. Returns in a fork: what that does."""
    import gc
    import importlib
    import select
    import signal
    import socket

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who has started the tests is told, and ends this
    door = socket.socket(socket.AF_UNIX)
    door.bind(place)
    door.listen(64)  # who asks waits until there is something to fork
    at_the_start = _read_at_the_start(os.environ)  # before libraries set some
    del sys.path[0]  # this folder, which has no libraries
    gc.disable()  # it would look through all of that again and again
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.enable()
    gc.collect()
    gc.freeze()  # what is not looked at by the forks' garbage collection stays shared memory
    if (trial := os.fork()) == 0:  # before a fork OpenBLAS ends its own threads, until they are needed again
        os._exit(0)
    os.waitpid(trial, 0)
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:  # a lock that another thread holds stays locked in a fork for ever
        raise SystemExit(f"{threads} threads run after importing {_IMPORTED}: no fork of that is safe")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system buries who minds a fork
    while True:
        readable, _, _ = select.select([0, door.fileno()], [], [])
        if 0 in readable:
            os._exit(0)
        asking, _ = door.accept()
        if os.fork() == 0:
            door.close()
            return _minded(asking, at_the_start)
        asking.close()


def _minded(asking: socket.socket, at_the_start: dict[str, str]) -> Callable[[], None]:
    """Fork once more, and see to that until it has ended or who asks is gone. Returns in the fork: what to do."""
    import ast
    import fcntl
    import select
    import signal
    import socket
    from contextlib import suppress
    from functools import partial

    head, given, _, _ = socket.recv_fds(asking, _HEAD, _MOST_FILES)
    said = b""
    while len(said) < int.from_bytes(head, "big"):
        said += asking.recv(2**16)
    arguments, folder, environ, ignored, files = ast.literal_eval(said.decode())
    if _read_at_the_start(environ) != at_the_start:
        os._exit(0)  # and says nothing
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    begin, may_begin = os.pipe()
    fork = os.fork()
    if fork == 0:
        os.setsid()
        os.close(may_begin)
        os.read(begin, 1)
        os.close(begin)
        asking.close()
        above = [fcntl.fcntl(file, fcntl.F_DUPFD, 2 * _MOST_FILES) for file in given]
        os.closerange(3, 2 * _MOST_FILES)
        for file, number in zip(above, files, strict=True):
            os.dup2(file, number)
            os.close(file)
        return partial(_be, arguments, folder, environ, ignored)
    end = os.pidfd_open(fork)
    asking.sendall(b"%d" % fork)
    asking.recv(1)
    os.close(may_begin)
    for file in (begin, *given):
        os.close(file)
    if end not in select.select([asking.fileno(), end], [], [])[0]:  # who asked was killed
        os.kill(fork, signal.SIGKILL)
    _, status = os.waitpid(fork, 0)
    with suppress(BrokenPipeError):
        asking.sendall(b"%d" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _read_at_the_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_AT_THE_START) and name not in _OR_LATER}


def _be(arguments: list[str], folder: str, environ: dict[str, str], ignored: list[int]) -> None:
    """What `python *arguments` does in this folder with these variables, where these signals are ignored; its end."""
    import atexit
    import io
    import multiprocessing.spawn
    import runpy
    import signal
    import threading
    import types
    import warnings

    options, kind, program, rest = _taken_apart(arguments)  # type: ignore[misc]
    first = {"-c": "", "-m": folder}.get(kind, os.path.dirname(os.path.realpath(os.path.join(folder, program))))
    _as_if_new(folder, environ, first)
    for number in _catchable():
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in ignored else usual)
    if "-u" in options:
        for name, number in (("stdout", 1), ("stderr", 2)):
            setattr(sys, name, io.TextIOWrapper(io.FileIO(number, "wb", closefd=False), write_through=True))
    sys.dont_write_bytecode = sys.dont_write_bytecode or "-B" in options
    if "-W" in options:
        sys.warnoptions += options[options.index("-W") + 1 :: 2]
        warnings._processoptions(sys.warnoptions)  # type: ignore[attr-defined]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __annotations__={})
    multiprocessing.spawn.set_executable(os.path.join(os.path.dirname(environ[PLACE]), "python"))
    sys.orig_argv = [sys.executable, *arguments]
    sys.argv = ["-c" if kind == "-c" else program, *rest]
    code = 0
    try:
        if kind == "-c":
            exec(compile(program, "<string>", "exec", dont_inherit=True), main.__dict__)
        elif kind == "-m":
            runpy._run_module_as_main(program)  # type: ignore[attr-defined]
        else:
            main.__dict__.update(__file__=program, __cached__=None)
            with open(program, "rb") as script:
                exec(compile(script.read(), program, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as asked:
        if isinstance(asked.code, int | None):
            code = asked.code or 0
        else:
            print(asked.code, file=sys.stderr)
            code = 1
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        del error, trace
    # What Python does at its end, but that it takes all modules to pieces too: of these, for a second.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    main.__dict__.clear()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            try:
                stream.flush()
            except (OSError, ValueError):
                code = code or 120  # as Python's exit code is then
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 255)


def _as_if_new(folder: str, environ: dict[str, str], first: str) -> None:
    """What a process finds at its start, or draws then, and the one before has found or drawn long ago."""
    import importlib
    import multiprocessing.process
    import tempfile
    import threading
    import time

    before = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    now = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    sys.path[:] = [first, *now, *sys.path[len(before) :]]
    importlib.invalidate_caches()
    time.tzset()
    tempfile.tempdir = None
    multiprocessing.process.ORIGINAL_DIR = folder  # type: ignore[attr-defined]
    multiprocessing.process.current_process().authkey = os.urandom(32)
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # which Python before 3.13 forgets
    # Python's own random draws a new seed by itself.
    sys.modules["numpy.random"].seed()
    sys.modules["torch"].default_generator.seed()


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])()
    else:
        ask(sys.argv[1:])

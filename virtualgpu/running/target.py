"""Locate a script, a module or a function that builds a step, check it, and execute it as `python` would.

`__main__`, `sys.argv` and `sys.path` are the script's, and tracebacks show only its frames.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import importlib.machinery
import importlib.util
import io
import os
import runpy
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

_NOT_PYTHON = {
    ".ipynb": "a notebook: open it in Jupyter, and begin it with gpulab.setup()",
    ".sh": "a shell script: put `-m gpulab run` after the `python` in it",
    ".json": "JSON", ".yaml": "YAML", ".yml": "YAML", ".toml": "TOML",
}  # fmt: skip
OUT_OF_MEMORY = 12  # the exit code of a script that does not catch it; the number of ENOMEM
_STEPS, _MOST_STEPS = 4, 8  # of a function that builds them: at the fourth, three times from step to step are known
INTERRUPTED = 130  # a shell's exit code for a process that Ctrl-C has ended
_OURS = (os.path.dirname(os.path.abspath(__file__)) + os.sep, runpy.__file__)
_VIRTUAL = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class CannotRun(Exception):
    """The target cannot be run; the text says why, and what would be right."""


@dataclass(frozen=True)
class Target:
    """Code to run as `__main__`; `name` is shown to the user, `argv` becomes `sys.argv`.

    A script has a `path`, as Python writes it in tracebacks; a module has none before it is found. With a `function` of
    the script, it is the steps that `function(batch)` returns.
    """

    name: str
    argv: tuple[str, ...]
    first_on_path: str
    path: str = ""
    module: str = ""
    function: str = ""
    batch: int = 0


@dataclass(frozen=True)
class Ending:
    """How the code ended: its exit code, and a short reason, "" for a normal end."""

    code: int
    kind: Literal["finished", "exit", "error", "interrupted", "terminated"] = "finished"
    why: str = ""

    @property
    def out_of_memory(self) -> bool:
        """True if the code ended with an uncaught OutOfMemoryError."""
        return self.kind == "error" and self.why.startswith("OutOfMemoryError")


def script_target(path: str, arguments: Sequence[str] = ()) -> Target:
    """Return the script at `path`; raises CannotRun where there is none that can be read."""
    found = Path(path)
    if found.is_dir():
        inside = found / "__main__.py"
        raise CannotRun(
            f"{path!r} is a directory. Give the Python file to run"
            + (f": {inside}." if inside.exists() else "; a package is run with -m NAME.")
        )
    if not found.exists():
        folder = found.parent if found.parent.is_dir() else Path()
        here = sorted(file.name for file in folder.glob("*.py"))
        there = f" Python files there: {', '.join(here[:5])}{', …' if len(here) > 5 else ''}." if here else ""
        raise CannotRun(f"{path!r}: no such file.{there} A module is run with -m NAME.")
    if found.suffix in _NOT_PYTHON:
        raise CannotRun(f"{path!r} is not Python source but {_NOT_PYTHON[found.suffix]}.")
    try:
        start = found.read_bytes()[:4096] if found.is_file() else b""
    except OSError as error:
        raise CannotRun(f"{path!r} cannot be read: {error.strerror}.") from None
    if b"\0" in start:
        raise CannotRun(f"{path!r} is not Python source: it has bytes of value 0. A checkpoint, or compiled code?")
    full = os.path.join(os.getcwd(), path)
    return Target(found.name, (path, *arguments), os.path.dirname(os.path.realpath(full)), path=full)


def step_target(path_and_function: str, batch: int) -> Target:
    """Return the steps of FILE.py:FUNCTION, whose FUNCTION(batch) builds all and returns one step."""
    path, _, function = path_and_function.rpartition(":")
    if not function.isidentifier() or not os.path.isfile(path):
        raise CannotRun(f"target is {path_and_function!r}; it must be FILE.py:FUNCTION, of an existing file")
    if batch < 1:
        raise CannotRun(f"batch must be 1 or more, not {batch}")
    script = script_target(path)
    name = f"{script.name}:{function}, batch {batch:,}"
    return dataclasses.replace(script, name=name, function=function, batch=batch)


def module_target(name: str, arguments: Sequence[str] = ()) -> Target:
    """Return the module `name`, as `python -m` finds it from here; raises CannotRun if its package is missing."""
    found = Target(f"-m {name}", ("-m", *arguments), os.getcwd(), module=name)
    before = sys.path[:]
    _put_first(found)
    try:
        there = name.isprintable() and importlib.util.find_spec(name.partition(".")[0]) is not None
    except (ImportError, ValueError):
        there = False
    finally:
        sys.path[:] = before
    if not there:
        hint = f" A file is run without -m: {name}." if name.endswith(".py") else ""
        raise CannotRun(f"-m {name}: there is no module of this name here.{hint}")
    return found


def _put_first(target: Target) -> None:
    """Set the first entry of `sys.path` as Python would for this target."""
    if not sys.flags.safe_path:
        sys.path[0:1] = [target.first_on_path]


@contextlib.contextmanager
def interpreter_restored() -> Iterator[None]:
    """Restore the interpreter's state that `execute` changes; for a process that goes on afterwards."""
    main, argv, path = sys.modules["__main__"], sys.argv, sys.path[:]
    try:
        yield
    finally:
        sys.modules["__main__"], sys.argv, sys.path[:] = main, argv, path


def execute(target: Target, stepped: Callable[[], object] = lambda: None) -> Ending:
    """Run it to its end; an uncaught exception is shown as Python shows it. `stepped` is called after each step of a
    function that builds them; CannotRun is raised where there is no such function.

    `sys.modules["__main__"]`, `sys.argv` and `sys.path` stay the script's: its exit handlers and child processes need
    them.
    """
    main = types.ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    if sys.version_info < (3, 14):
        vars(main)["__annotations__"] = {}
    sys.modules["__main__"] = main
    sys.argv = list(target.argv)
    _put_first(target)
    try:
        if target.function:
            _take_steps(target, stepped)
            return Ending(0)
        code, known = _code(target)
        if target.module:
            sys.argv[0] = code.co_filename
        vars(main).update(known)
        exec(code, vars(main))
    except CannotRun:
        raise
    except SystemExit as error:
        return _exit(error.code)
    except BaseException as error:
        number = _code_of(error)
        if not (target.function and number == OUT_OF_MEMORY):  # which is an answer there
            error.__traceback__ = _theirs(error)
            sys.excepthook(type(error), error, error.__traceback__)
        why = type(error).__name__ + (f": {line}" if (line := str(error).partition("\n")[0]) else "")
        if isinstance(error, KeyboardInterrupt):
            return Ending(INTERRUPTED, "interrupted", why)
        return Ending(number, "error", why)
    return Ending(0)


def _take_steps(target: Target, stepped: Callable[[], object]) -> None:
    """Take four steps, and more until memory repeats."""
    build = runpy.run_path(target.path, run_name="planned").get(target.function)
    if not callable(build):
        raise CannotRun(f"{target.path} has no function {target.function!r}")

    import torch

    step = build(target.batch)
    before: tuple[int, ...] = ()
    if not callable(step):
        raise CannotRun(
            f"{target.function}({target.batch}) must return the step, a function without arguments that does one "
            f"training step, not {step!r:.80} ({type(step).__name__})"
        )
    for number in range(1, _MOST_STEPS + 1):
        step()
        stepped()
        now = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        if number >= _STEPS and now == before:
            return
        before = now


def _code(target: Target) -> tuple[types.CodeType, dict[str, Any]]:
    """Return the code, and its module's attributes; raises the same errors as Python for invalid code."""
    if target.module:
        _, spec, code = runpy._get_module_details(target.module, SystemExit)  # type: ignore[attr-defined]
        known = {"__spec__": spec, "__package__": spec.parent, "__loader__": spec.loader, "__file__": spec.origin}
        return code, {**known, "__cached__": spec.cached}
    with io.open_code(target.path) as file:
        source = file.read()
    loader = importlib.machinery.SourceFileLoader("__main__", target.path)
    known = {"__spec__": None, "__package__": None, "__loader__": loader, "__file__": target.path}
    return compile(source, target.path, "exec", dont_inherit=True), {**known, "__cached__": None}


def _code_of(error: BaseException) -> int:
    """Return the exit code of an uncaught error: Python's, or that of memory which ran out."""
    import torch

    return OUT_OF_MEMORY if isinstance(error, torch.OutOfMemoryError) else 1


def _exit(code: object) -> Ending:
    """Return the ending of `sys.exit(code)`."""
    if code is None:
        return Ending(0, "exit")
    if isinstance(code, int):
        return Ending(code, "exit", f"sys.exit({code:d})")
    print(code, file=sys.stderr)
    return Ending(1, "exit", f"sys.exit({str(code).partition(chr(10))[0]!r})")


def _theirs(error: BaseException) -> types.TracebackType | None:
    """Return the traceback without the runner's frames; for CUDA's errors, also without the virtual GPU's."""
    import torch

    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((*_OURS, "<frozen runpy>")):
        trace = trace.tb_next
    if not isinstance(error, (torch.OutOfMemoryError, torch.AcceleratorError)):
        return trace
    kept = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_VIRTUAL):
            kept.append(trace)
        trace = trace.tb_next
    for each in reversed(kept):
        trace = types.TracebackType(trace, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return trace

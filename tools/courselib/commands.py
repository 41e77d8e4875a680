"""The commands by name: what each needs installed and what it runs.

A command ends with 0, with 1 and one sentence on what to do, or with the exit status of what it ran.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .cluster import run_cluster
from .installing import set_up
from .lab import open_lab
from .lanes import LINT_LANES, chosen, run_exploring, run_lanes, run_tests
from .terminal import Stop, say
from .venv import Venv
from .versions import run_versions

STUDENT = frozenset({"lab"})
AUTHOR = frozenset({"lab", "test", "author"})


@dataclass(frozen=True)
class Command:
    """`run` takes the environment, once it holds the `extras`, and what LANE names; it returns the exit status."""

    purpose: str
    extras: frozenset[str]
    run: Callable[[Venv, str | None], int]


def _program(*arguments: str) -> Callable[[Venv, str | None], int]:
    return lambda venv, _: subprocess.call([venv.python, *arguments], cwd=venv.root, env=venv.environ())


def _lab(venv: Venv, _: str | None) -> int:
    return open_lab(venv, os.environ.get("PORT") or None)


def _lint(venv: Venv, only: str | None) -> int:
    return run_lanes(venv, chosen([*LINT_LANES], only))


def _nothing_more(venv: Venv, _: str | None) -> int:
    say(f"{venv.folder} is ready.")
    return 0


COMMANDS = {
    "lab": Command("set up, and open JupyterLab at the first notebook", STUDENT, _lab),
    "test": Command("set up, and run every test (LANE=unit for one lane)", AUTHOR, run_tests),
    "explore": Command(
        "look for what `make test` does not meet: new random examples, a busy machine", AUTHOR, run_exploring
    ),
    "versions": Command(
        "the supported versions of Python and torch, each in an environment of its own (LANE=python3.13 for one)",
        STUDENT,
        run_versions,
    ),
    "cluster": Command(
        "run what needs a cluster: SLURM, two nodes, processes killed, the power cut (Linux, as root)",
        AUTHOR,
        run_cluster,
    ),
    "doctor": Command(
        "check this machine, and say what to do for each failing line", STUDENT, _program("-m", "gpulab", "doctor")
    ),
    "notebooks": Command("build notebooks, solutions and exercises from lessons/", AUTHOR, _program("tools/build.py")),
    "check": Command("verify that what is built agrees with lessons/", AUTHOR, _program("tools/build.py", "--check")),
    "lint": Command("ruff and mypy", AUTHOR, _lint),
    "bench": Command("the performance table", AUTHOR, _program("tools/bench.py")),
    "gpu": Command(
        "measure a real GPU, for holding the virtual one against it", STUDENT, _program("-m", "gpulab", "validate")
    ),
    "setup": Command("set up .venv only, as the other commands do first", STUDENT, _nothing_more),
}


def help_text() -> str:
    """The list of commands."""
    rows = "\n".join(f"  make {name:10} {command.purpose}" for name, command in COMMANDS.items())
    return (
        f"{rows}\n\n"
        "Settings, after the command: TORCH=cpu (torch's smaller build, without CUDA), PORT=8890, LANE=unit,\n"
        "WORKERS=8 (lanes at once, or processes of one); for explore EXAMPLES=20 (times as many as the tests draw),\n"
        "BUSY=16.\n"
        "Without make: python tools/course.py lab, and likewise for the others."
    )


def run(arguments: Sequence[str]) -> int:
    """Run the command that `arguments` name, with settings as NAME=value; returns the exit status."""
    names = [argument for argument in arguments if "=" not in argument]
    for setting in set(arguments).difference(names):
        name, _, value = setting.partition("=")
        os.environ[name] = value
    if not names or names[0] in ("help", "-h", "--help"):
        say(help_text())
        return 0
    try:
        signal.signal(signal.SIGTERM, _end)
        if len(names) > 1 or names[0] not in COMMANDS:
            raise Stop(f"`{' '.join(names)}` is no command: use one of {', '.join(COMMANDS)}.")
        venv, command = Venv(), COMMANDS[names[0]]
        set_up(venv, command.extras, os.environ.get("TORCH") or None)
        return command.run(venv, os.environ.get("LANE") or None)
    except Stop as stop:
        say(str(stop))
        return 1
    except KeyboardInterrupt:
        say("\nInterrupted; the same command goes on from here.")
        return 130


def _end(number: int, frame: object) -> None:
    sys.exit(128 + number)  # through the `finally`s, so that no pip is left behind

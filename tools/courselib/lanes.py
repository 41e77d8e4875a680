"""Run several programs and sum them up: the tests, and the linters.

Each lane runs even if one before it failed; the whole fails if any did. Those of the tests run side by side, each in
one process, and are shown one after the other: no verdict hangs on how busy the machine is.
"""

import codecs
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from . import ready
from .busy import busy
from .patience import HANG_SECONDS
from .terminal import Stop, say
from .venv import Venv

# The first is the same browser without windows: Debian's chromium-headless-shell takes a sixth less of the processor.
CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

# What checks draw, and the order of sets of strings. Hypothesis draws the same by itself: tests/conftest.py.
EVERY_TIME_THE_SAME = {"GPULAB_CHECK_SEED": "0", "PYTHONHASHSEED": "0"}
TIMES, BUSY = 10, 8  # `make explore`: so many times the examples; so many busy processes

NOT_UNIT = ("--ignore=tests/browser", "--ignore=tests/cluster")  # a lane, and a command, of their own
ANSWERS = ("tests/wrong_answers",)
VIRTUAL = ("tests/virtualgpu", "tests/timing")

# Memory of tensors that come and go stays with the process: half of the time of some cells went to asking for it anew.
KEEPS_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "100000000000", "MALLOC_MMAP_THRESHOLD_": "100000000000"}

# Programs that run tests at once: on two cores a third fills the time in which others wait for pages, kernels or ranks.
WORKERS = 3  # WORKERS=8 on a larger machine
# Of a lane that runs alone so many processes share the modules, in the order of the files: those of one long test would
# come last otherwise, and leave a process idle.
_BY_MODULE = ("--dist", "loadscope", "--no-loadscope-reorder")
_ONE_BY_ONE = ("--dist", "load")  # where all tests are in one module


def _workers() -> int:
    return int(_number("WORKERS", WORKERS, 1, 64))


def _side_by_side() -> tuple[str, ...]:
    return "-n", str(_workers()), *_BY_MODULE[:2]


@dataclass(frozen=True)
class Lane:
    """One program of the environment's Python: its name, what it is for, its arguments."""

    name: str
    title: str
    arguments: tuple[str, ...]
    missing: str = ""  # why it cannot run here; printed, and no failure
    environ: Mapping[str, str] = field(default_factory=lambda: EVERY_TIME_THE_SAME)
    beside: int = 0  # processes that keep the machine busy meanwhile
    shared: tuple[str, ...] = ()  # how several processes share its tests where it runs alone


def lanes_for_tests(chromium: str | None) -> list[Lane]:
    """What `make test` runs, in this order; the longest begin first."""
    pytest = ("-m", "pytest", "-p", "no:cacheprovider")
    rest = ("tests", *NOT_UNIT, *(f"--ignore={folder}" for folder in (*ANSWERS, *VIRTUAL)))
    cells = ("--nbval-kernel-name=python3", f"--nbval-cell-timeout={HANG_SECONDS}", "--nbval")
    strict = (*cells, "--nbval-sanitize-with", "tests/nbval_sanitize.cfg", "notebooks", "solutions")
    no_browser = "browser tests NOT run: no Chromium on PATH (" + ", ".join(CHROMIUM) + ")"
    solved = ("-m", "not unsolved")
    return [
        Lane("unit", "unit and property tests", (*pytest, *rest, *solved), shared=_BY_MODULE),
        Lane(
            "browser",
            "JupyterLab in Chromium, as a student uses it",
            (*pytest, "tests/browser"),
            missing="" if chromium else no_browser,
        ),
        Lane(
            "notebooks",
            "lectures and solutions print what is stored in them",
            (*pytest, *strict),
            shared=_BY_MODULE[:2],
        ),
        Lane("answers", "the checks pass right answers, and tell wrong ones", (*pytest, *ANSWERS), shared=_BY_MODULE),
        Lane(
            "virtual", "the virtual GPU is as PyTorch's CUDA code and real GPUs", (*pytest, *VIRTUAL), shared=_BY_MODULE
        ),
        Lane(
            "exercises",
            "exercises run without a solution, and say that nothing was attempted",
            (*pytest, "tests/test_notebooks.py", "-m", "unsolved"),
            shared=_ONE_BY_ONE,
        ),
    ]


def lanes_for_exploring(times: float, processes: int, seed: int) -> list[Lane]:
    """What `make explore` runs: what `make test` has fixed is drawn by `seed`, and the machine is kept busy."""
    drawn = {"GPULAB_CHECK_SEED": str(seed), "GPULAB_EXAMPLES": str(times)}
    explore = ("-m", "pytest", "--hypothesis-profile=explore", *_side_by_side(), "-p", "no:cacheprovider")
    return [
        Lane(
            "properties",
            f"{times:g} times the examples of every property, all of them new (GPULAB_CHECK_SEED={seed})",
            (*explore, "tests", *NOT_UNIT, "-m", "hypothesis"),
            environ=drawn,
        ),
        Lane(
            "busy",
            f"checks, wrong answers and what starts processes, beside {processes} busy processes",
            (*explore, *(f"tests/{name}" for name in LOAD_SENSITIVE)),
            environ=drawn | {"GPULAB_EXAMPLES": "1"},
            beside=processes,
        ),
    ]


_SEEDS = 10**9
LOAD_SENSITIVE = ("exercise", "wrong_answers", "distributed", "virtualgpu/planning", "virtualgpu/running", "monitor")

LINT_LANES = (
    Lane("ruff", "lint", ("-m", "ruff", "check", ".")),
    Lane("format", "formatting", ("-m", "ruff", "format", "--check", ".")),
    Lane("mypy", "types", ("-m", "mypy")),
    Lane("mypy of tools", "types of what builds and tests", ("-m", "mypy", "tools")),
)


def run_tests(venv: Venv, only: str | None) -> int:
    """The test lanes, or the one named `only`; 1 if any failed."""
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    lanes, workers = chosen(lanes_for_tests(found), only), _workers()
    with libraries_ready(venv) as environ:
        if only is not None:
            lanes = [replace(lane, arguments=_shared(venv, lane, workers, bool(environ))) for lane in lanes]
        elif environ:
            lanes = [replace(lane, arguments=(*ready.ASKING, *lane.arguments)) for lane in lanes]
        lanes = [replace(lane, environ={**lane.environ, **environ}) for lane in lanes]
        return run_lanes(venv, lanes, workers if only is None else 1)


def _shared(venv: Venv, lane: Lane, number: int, is_ready: bool) -> tuple[str, ...]:
    """The arguments by which so many processes share the tests of a lane; with torch imported, if that is ready."""
    if not lane.shared:
        return lane.arguments
    if not is_ready:
        return *lane.arguments, "-n", str(number), *lane.shared
    started = f"{number}*popen//python={shlex.join([str(venv.python), *ready.ASKING])}"
    restarts = ("--max-worker-restart", str(4 * number))  # which -n has by itself
    return *lane.arguments, "--tx", started, *restarts, *lane.shared


def run_exploring(venv: Venv, only: str | None) -> int:
    """The lanes that explore, or the one named `only`.

    Of the environment, EXAMPLES and BUSY say how much, and GPULAB_CHECK_SEED gives the checks an earlier run's inputs.
    """
    times, processes = _number("EXAMPLES", TIMES, 0.01), int(_number("BUSY", BUSY, 0))
    seed = int(_number("GPULAB_CHECK_SEED", random.SystemRandom().randrange(_SEEDS), 0, _SEEDS))
    return run_lanes(venv, chosen(lanes_for_exploring(times, processes, seed), only))


def _number(name: str, usual: float, least: float, most: float = 1000) -> float:
    text = os.environ.get(name) or str(usual)
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not least <= number <= most:
        raise Stop(f"{name}={text} is no number from {least:g} to {most:g}: give one, such as {name}={usual:g}.")
    return number


def chosen(lanes: list[Lane], only: str | None) -> list[Lane]:
    """The lane named `only`; all where it is None."""
    if only is not None:
        names = [lane.name for lane in lanes]
        lanes = [lane for lane in lanes if lane.name == only]
        if not lanes:
            raise Stop(f"LANE={only} is not known: use one of {', '.join(names)}, or leave it out for all.")
    return lanes


def run_lanes(venv: Venv, lanes: Sequence[Lane], at_once: int = 1) -> int:
    """Run each lane, so many `at_once`, and print a line on each at the end; 1 if any failed.

    What they say is shown one after the other, of each as it comes.
    """
    summary = []
    failed = False
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(at_once) as turns:
        begun: dict[str, Future[tuple[int, float]]] = {}
        for lane in lanes if at_once > 1 else ():
            if not lane.missing:
                Path(folder, lane.name).touch()
                begun[lane.name] = turns.submit(_timed, venv, lane, Path(folder, lane.name))
        try:
            for lane in lanes:
                say(f"\n=== {lane.name}: {lane.title}")
                if lane.missing:
                    say(lane.missing)
                    summary.append(f"  not run        {lane.name}: {lane.missing}")
                    continue
                if lane.name in begun:
                    _follow(Path(folder, lane.name), begun[lane.name])
                    code, seconds = begun[lane.name].result()
                else:
                    code, seconds = _timed(venv, lane, None)
                failed = failed or code != 0
                summary.append(f"  {'passed' if code == 0 else 'FAILED'} {seconds:5.0f} s  {lane.name}: {lane.title}")
        finally:  # where somebody has stopped it, those that wait for their turn do not begin
            turns.shutdown(wait=False, cancel_futures=True)
    say("\n=== summary")
    say("\n".join(summary))
    return int(failed)


def _follow(file: Path, lane: Future[tuple[int, float]]) -> None:
    """Show what a lane writes into this file until it has ended."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with file.open("rb") as said:
        over = False
        while not over:
            over = lane.done()
            sys.stdout.write(decoder.decode(said.read()))
            sys.stdout.flush()
            wait([lane], 0.2)


def _timed(venv: Venv, lane: Lane, said: Path | None) -> tuple[int, float]:
    """The exit code of a lane and its seconds; what it says goes into the file `said`, or is shown at once."""
    started = time.monotonic()
    if said is None:
        return _run(venv, lane), time.monotonic() - started
    with said.open("wb") as output:
        return _run(venv, lane, output), time.monotonic() - started


@contextmanager
def libraries_ready(venv: Venv) -> Iterator[dict[str, str]]:
    """Keep a process that has imported torch for all that the tests start; yields how it is found, as `ready` says."""
    if sys.platform != "linux":
        yield {}
        return
    with tempfile.TemporaryDirectory() as folder:
        place = str(Path(folder, "ready"))
        starts = [str(venv.python), *ready.ASKING]
        kernel = Path(folder, "kernels", "python3", "kernel.json")
        kernel.parent.mkdir(parents=True)
        spec = {"argv": [*starts, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "language": "python"}
        kernel.write_text(json.dumps(spec | {"display_name": "Python 3 (ipykernel)"}), encoding="utf-8")
        program = Path(folder, "python")
        program.write_text(f'#!/bin/sh\nexec {shlex.join(starts)} "$@"\n', encoding="utf-8")
        program.chmod(0o700)
        if not os.access(program, os.X_OK):  # a folder for temporary files where no program may be
            yield {}
            return
        server = subprocess.Popen(
            [venv.python, ready.__file__, "serve", place],
            stdin=subprocess.PIPE,
            cwd=venv.root,
            env=_environ(venv, EVERY_TIME_THE_SAME),
        )
        jupyter = os.pathsep.join([folder, venv.environ()["JUPYTER_PATH"]])
        try:
            yield {ready.PLACE: place, "JUPYTER_PATH": jupyter}
        finally:
            server.communicate()  # its input ends, and it with that


def _environ(venv: Venv, more: Mapping[str, str]) -> dict[str, str]:
    """The variables of what runs here; two notebooks run side by side, and more threads than cores slow both down."""
    return venv.environ() | {"GPULAB_GPU": "virtual:T4", "OMP_NUM_THREADS": "1", **KEEPS_MEMORY, **more}


def _run(venv: Venv, lane: Lane, output: IO[bytes] | None = None) -> int:
    with tempfile.TemporaryDirectory() as temporary:
        # not the person's own, and one for each kernel: what one solves must not show in another
        progress = {"GPULAB_PROGRESS": str(Path(temporary) / "progress-{pid}.json")}
        if "--nbval" in lane.arguments:  # it ends kernels by force: their files would stay, 2 GB of them with each run
            progress["TMPDIR"] = temporary
            progress |= ready.ranks_here(lane.environ)  # a lecture's torchrun; others choose for themselves
        environ = _environ(venv, progress | dict(lane.environ))
        with busy(lane.beside):
            command, shown = [str(venv.python), *lane.arguments], output is None
            return subprocess.call(
                command,
                cwd=venv.root,
                env=environ,
                stdin=None if shown else subprocess.DEVNULL,
                stdout=output,
                stderr=None if shown else subprocess.STDOUT,
            )

"""Run several programs one after the other and sum them up: the tests, and the linters.

Each lane runs even if one before it failed; the whole fails if any did.
"""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .terminal import Stop, say
from .venv import Venv

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")

_SIDE_BY_SIDE = ("-n", "2", "--dist", "loadscope")
_NBVAL = (
    *("-m", "pytest", "--nbval-current-env", "--nbval-cell-timeout=120"),
    *_SIDE_BY_SIDE,
    *("-p", "no:cacheprovider"),
)


@dataclass(frozen=True)
class Lane:
    """One program of the environment's Python: its name, what it is for, its arguments."""

    name: str
    title: str
    arguments: tuple[str, ...]
    missing: str = ""  # why it cannot run here; printed, and no failure


def lanes_for_tests(chromium: str | None) -> list[Lane]:
    """What `make test` runs, in order."""
    unit = ("-m", "pytest", "tests", "--ignore=tests/browser", "-m", "not browser", *_SIDE_BY_SIDE)
    strict = ("--nbval", "--nbval-sanitize-with", "tests/nbval_sanitize.cfg", "notebooks", "solutions")
    no_browser = "browser tests NOT run: no Chromium on PATH (" + ", ".join(CHROMIUM) + ")"
    return [
        Lane("unit", "unit and property tests, wrong answers", unit),
        Lane(
            "browser",
            "JupyterLab in Chromium, as a student uses it",
            ("-m", "pytest", "tests/browser"),
            missing="" if chromium else no_browser,
        ),
        Lane("notebooks", "lectures and solutions print what is stored in them", (*_NBVAL, *strict)),
        Lane("exercises", "exercises run without a solution", (*_NBVAL, "--nbval-lax", "exercises")),
    ]


LINT_LANES = (
    Lane("ruff", "lint", ("-m", "ruff", "check", ".")),
    Lane("format", "formatting", ("-m", "ruff", "format", "--check", ".")),
    Lane("mypy", "types", ("-m", "mypy")),
)


def run_tests(venv: Venv, only: str | None) -> int:
    """The test lanes, or the one named `only`; 1 if any failed."""
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    lanes = lanes_for_tests(found)
    if only is not None:
        names = [lane.name for lane in lanes]
        lanes = [lane for lane in lanes if lane.name == only]
        if not lanes:
            raise Stop(f"LANE={only} is not known: use one of {', '.join(names)}, or leave it out for all.")
    return run_lanes(venv, lanes)


def run_lanes(venv: Venv, lanes: Sequence[Lane]) -> int:
    """Run each lane and print a line on each at the end; 1 if any failed."""
    summary = []
    failed = False
    for lane in lanes:
        say(f"\n=== {lane.name}: {lane.title}")
        if lane.missing:
            say(lane.missing)
            summary.append(f"  not run        {lane.name}: {lane.missing}")
            continue
        started = time.monotonic()
        code = _run(venv, lane)
        failed = failed or code != 0
        outcome = "passed" if code == 0 else "FAILED"
        summary.append(f"  {outcome} {time.monotonic() - started:5.0f} s  {lane.name}: {lane.title}")
    say("\n=== summary")
    say("\n".join(summary))
    return int(failed)


def _run(venv: Venv, lane: Lane) -> int:
    with tempfile.TemporaryDirectory() as temporary:
        environ = venv.environ() | {
            "GPULAB_GPU": "virtual:T4",
            # not the person's own, and one for each kernel: what one solves must not show in another
            "GPULAB_PROGRESS": str(Path(temporary) / "progress-{pid}.json"),
            "OMP_NUM_THREADS": "1",  # two notebooks run side by side; more threads than cores slow both down
        }
        return subprocess.call([str(venv.python), *lane.arguments], cwd=venv.root, env=environ)

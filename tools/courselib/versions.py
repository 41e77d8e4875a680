"""`make versions`: what depends on the versions of Python and of torch, tried with each that is supported.

Every lane is an environment of its own below `.venvs/`, made anew and removed when its lane is done (KEEP=1 leaves it
there). A lane that cannot run says why, and is no failure; LANE=python3.13 runs that one alone.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .installer import install
from .installing import WITH_CUDA, check_space
from .lanes import EVERY_TIME_THE_SAME
from .lock import only_one
from .patience import HANG_SECONDS
from .terminal import Stop, say
from .venv import Venv

FOLDER = ".venvs"


@dataclass(frozen=True)
class Version:
    """A lane: the Python it takes, and what constraints.txt's lines are replaced by."""

    name: str
    python: str
    instead: dict[str, str] = field(default_factory=dict)  # package: the end of its line, such as "==2.11.*"


VERSIONS = (
    Version("python3.11", "3.11"),
    Version("python3.12", "3.12"),
    Version("python3.13", "3.13"),
    # as the machines with a GPU had it; torch 2.11 asks for a setuptools older than the tested one
    Version("torch2.11", "3.12", {"torch": "==2.11.*", "torchvision": "==0.26.*", "setuptools": "<82"}),
)
CPU = "cpu"  # tools/smoke_cpu.sh: the package alone, on a torch without CUDA

PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadscope")
NOTEBOOKS = ("00_start_here", "02_devices", "04_memory", "07_mixed_precision", "09_feeding_the_gpu", "12_many_gpus")
# What depends on the versions: torch's allocator, dispatcher, profiler and processes as the virtual GPU meets them;
# Python's own processes, tracebacks and names as a check meets them; what lectures print.
PARTS = {
    "virtual GPU, memory, timing, processes, checks, simulators": (
        *PYTEST,
        *(
            f"tests/{name}"
            for name in ("virtualgpu", "memory", "timing", "transfers", "distributed", "exercise", "sim")
        ),
    ),
    "answers pass, or are told what is wrong": (*PYTEST, "tests/wrong_answers", "tests/test_turns.py"),
}
_NBVAL = (*PYTEST, "--nbval-current-env", f"--nbval-cell-timeout={HANG_SECONDS}")
_SAME = ("--nbval", "--nbval-sanitize-with", "tests/nbval_sanitize.cfg")
LECTURES = {
    f"{len(NOTEBOOKS)} lectures print what is stored in them": (
        *(*_NBVAL, *_SAME, *(f"notebooks/{name}.ipynb" for name in NOTEBOOKS)),
    ),
}
# What is stored has the bytes of the tested torch; another one keeps cuBLAS's workspaces, for instance.
LECTURES_OF_ANOTHER_TORCH = {"all lectures run, and what they assert holds": (*_NBVAL, "--nbval-lax", "notebooks")}


def parts(version: Version) -> dict[str, tuple[str, ...]]:
    """What its lane runs: the title, and the arguments of Python."""
    return PARTS | (LECTURES_OF_ANOTHER_TORCH if "torch" in version.instead else LECTURES)


@dataclass(frozen=True)
class LaneVenv(Venv):
    """An environment below `.venvs/`."""

    name: str = ""

    @property
    def folder(self) -> Path:
        return self.root / FOLDER / self.name


def run_versions(venv: Venv, only: str | None) -> int:
    """All lanes, or the one named `only`; 1 if any failed. Prints at the end what each ran."""
    names = [*(version.name for version in VERSIONS), CPU]
    if only is not None and only not in names:
        raise Stop(f"LANE={only} is not known: use one of {', '.join(names)}, or leave it out for all.")
    summary: list[str] = []
    failed = False
    for name in names if only is None else [only]:
        say(f"\n=== {name}")
        version = next((version for version in VERSIONS if version.name == name), None)
        good, lines = _smoke(venv) if version is None else _lane(LaneVenv(venv.root, name), version)
        failed = failed or not good
        summary += [f"{name}:", *(f"  {line}" for line in lines)]
    say("\n=== summary")
    say("\n".join(summary))
    return int(failed)


def python_of(version: str) -> list[str] | None:
    """The command of a Python of that version, from PATH, Windows' launcher or pyenv; None where there is none."""
    candidates = [[f"python{version}"], ["py", f"-{version}"]]
    candidates += [[str(path)] for path in sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    for command in candidates:
        try:
            asked = [*command, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
            if subprocess.run(asked, capture_output=True, text=True).stdout.strip() == version:
                return command
        except OSError:
            continue
    return None


def constraints(text: str, instead: dict[str, str]) -> str:
    """constraints.txt with other versions of some packages; Stop where one of them has no line."""
    for package, wanted in instead.items():
        text, found = re.subn(rf"^{package}==\S+$", package + wanted, text, flags=re.MULTILINE)
        if found != 1:
            raise Stop(f"constraints.txt has {found} lines of {package}: versions.py replaces one.")
    return text


def counted(report: Path) -> tuple[Counter[str], list[str]]:
    """Of pytest's XML: how many passed, failed and were skipped, and the reasons of the skipped ones."""
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        outcome = "passed"
        if case.find("failure") is not None or case.find("error") is not None:
            outcome = "failed"
        elif (skipped := case.find("skipped")) is not None:
            outcome = "not run"
            reasons[skipped.get("message") or "no reason given"] += 1
        counts[outcome] += 1
    return counts, [f"not run, {number}: {reason}" for reason, number in reasons.most_common()]


def _lane(lane: LaneVenv, version: Version) -> tuple[bool, list[str]]:
    python = python_of(version.python)
    if python is None:
        return True, [f"NOT RUN: no Python {version.python} is found here"]
    try:
        _make(lane, version, python)
        shown = "import sys, torch; print('Python', sys.version.split()[0] + ', torch', torch.__version__)"
        lines = [subprocess.check_output([str(lane.python), "-c", shown], text=True).strip()]
        say(lines[0])
        good = True
        for title, arguments in parts(version).items():
            passed, told = _part(lane, title, arguments)
            good = good and passed
            lines += told
        return good, lines
    except Stop as stop:
        say(str(stop))
        return False, [f"NOT SET UP: {stop}"]
    finally:
        if not os.environ.get("KEEP"):
            shutil.rmtree(lane.folder, ignore_errors=True)


def _make(lane: LaneVenv, version: Version, python: Sequence[str]) -> None:
    lane.folder.parent.mkdir(exist_ok=True)
    if os.environ.get("KEEP") and lane.has("torch"):
        say(f"{lane.folder.relative_to(lane.root)} is there already, and used as it is.")
        return
    check_space(lane.folder.parent, WITH_CUDA)
    made = subprocess.run([*python, "-m", "venv", "--clear", lane.folder], capture_output=True, text=True)
    if made.returncode != 0:
        say((made.stdout + made.stderr)[-2000:])
        raise Stop(f"{' '.join(python)} could not make {lane.folder}; the lines above say why.")
    with (
        tempfile.TemporaryDirectory(dir=lane.folder) as temporary,
        only_one(lane.root / "pyproject.toml", _wait) as lock,
    ):
        limits = Path(temporary) / "constraints.txt"
        tested = (lane.root / "constraints.txt").read_text(encoding="utf-8")
        limits.write_text(constraints(tested, version.instead), encoding="utf-8")
        install(lane, ["-c", str(limits), "-e", ".[author,lab,test]"], keep_open=lock)


def _wait() -> None:
    say("Another set-up is at work here; waiting …")


def _part(lane: LaneVenv, title: str, arguments: tuple[str, ...]) -> tuple[bool, list[str]]:
    """Run one part; whether it passed, and its lines of the summary."""
    with tempfile.TemporaryDirectory() as temporary:
        report = Path(temporary) / "report.xml"
        environ = lane.environ() | {
            "GPULAB_GPU": "virtual:T4",
            "GPULAB_PROGRESS": str(Path(temporary) / "progress-{pid}.json"),
            "OMP_NUM_THREADS": "1",
            **EVERY_TIME_THE_SAME,
        }
        began = time.monotonic()
        code = subprocess.call([str(lane.python), *arguments, f"--junitxml={report}"], cwd=lane.root, env=environ)
        if not report.is_file():
            return False, [f"{title}: pytest ended with {code} and left no report"]
        counts, reasons = counted(report)
    told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "not run"))
    return code == 0, [f"{title}: {told} ({time.monotonic() - began:.0f} s)", *(f"  {reason}" for reason in reasons)]


def _smoke(venv: Venv) -> tuple[bool, list[str]]:
    """The package without its extras on a CPU-only torch."""
    if sys.platform == "win32" or shutil.which("bash") is None:
        return True, ["NOT RUN: tools/smoke_cpu.sh needs bash"]
    done = subprocess.run(
        ["bash", "tools/smoke_cpu.sh"], cwd=venv.root, env=venv.environ(), capture_output=True, text=True
    )
    shown = [line for line in done.stdout.splitlines() if line.startswith("gpulab ")]
    if not os.environ.get("KEEP"):
        shutil.rmtree(venv.root / ".venv-cpu", ignore_errors=True)
    if done.returncode != 0:
        say(done.stdout[-2000:] + done.stderr[-2000:])
    return done.returncode == 0, shown or [f"tools/smoke_cpu.sh ended with {done.returncode}: the lines above say why"]

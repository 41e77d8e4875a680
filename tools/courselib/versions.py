"""`make versions`: what depends on the versions of Python and of torch, tried with each that is supported.

uv makes every environment anew, below `.venvs/`, and gets a Python that is not here; it is removed when its lane is
done (KEEP=1 leaves it there, and takes it). A lane that cannot run says why, and is no failure. LANE=python3.13 runs
that one alone.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from . import installer
from .installing import WITH_CUDA, check_space
from .lanes import Lane, run_lanes
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

# What depends on the versions: torch's allocator, dispatcher, profiler and processes as the virtual GPU meets them;
# Python's own processes, tracebacks and names as a check meets them; what lectures print.
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadscope")
FOLDERS = ("virtualgpu", "memory", "timing", "transfers", "distributed", "exercise", "sim")
NOTEBOOKS = ("00_start_here", "02_devices", "04_memory", "07_mixed_precision", "09_feeding_the_gpu", "12_many_gpus")
_NBVAL = (*PYTEST, "--nbval-current-env", f"--nbval-cell-timeout={HANG_SECONDS}")


def lanes_for(version: Version) -> list[Lane]:
    """What runs in its environment. What is stored has the bytes of the tested torch: others' lectures only run."""
    strict = (*_NBVAL, "--nbval", "--nbval-sanitize-with", "tests/nbval_sanitize.cfg")
    lectures = (*strict, *(f"notebooks/{name}.ipynb" for name in NOTEBOOKS)), "print what is stored in them"
    if "torch" in version.instead:
        lectures = (*_NBVAL, "--nbval-lax", "notebooks"), "run, and what they assert holds"
    return [
        Lane(
            "package",
            "virtual GPU, memory, timing, processes, checks, simulators",
            (*PYTEST, *(f"tests/{name}" for name in FOLDERS)),
        ),
        Lane("answers", "pass, or are told what is wrong", (*PYTEST, "tests/wrong_answers", "tests/test_turns.py")),
        Lane("lectures", lectures[1], lectures[0]),
    ]


@dataclass(frozen=True)
class LaneVenv(Venv):
    """An environment below `.venvs/`."""

    name: str = ""

    @property
    def folder(self) -> Path:
        return self.root / FOLDER / self.name


def run_versions(venv: Venv, only: str | None) -> int:
    """All lanes, or the one named `only`; 1 if any failed."""
    versions = {version.name: version for version in VERSIONS}
    names = [*versions, CPU]
    if only is not None and only not in names:
        raise Stop(f"LANE={only} is not known: use one of {', '.join(names)}, or leave it out for all.")
    outcomes = {}
    for name in names if only is None else [only]:
        say(f"\n====== {name}")
        outcomes[name] = _smoke(venv) if name == CPU else _version(venv, versions[name])
    say("\n====== summary")
    say("\n".join(f"  {name}: {outcome}" for name, outcome in outcomes.items()))
    return int(any(outcome.startswith("FAILED") for outcome in outcomes.values()))


def constraints(text: str, instead: dict[str, str]) -> str:
    """constraints.txt with other versions of some packages; Stop where one of them has no line."""
    for package, wanted in instead.items():
        text, found = re.subn(rf"^{package}==\S+$", package + wanted, text, flags=re.MULTILINE)
        if found != 1:
            raise Stop(f"constraints.txt has {found} lines of {package}: versions.py replaces one.")
    return text


def _version(venv: Venv, version: Version) -> str:
    lane = LaneVenv(venv.root, version.name)
    try:
        if not (os.environ.get("KEEP") and lane.has("torch")):
            check_space(lane.root, WITH_CUDA)
            if why := _make(venv, lane, version):
                return f"NOT RUN: {why}"
        shown = "import sys, torch; print('Python', sys.version.split()[0] + ', torch', torch.__version__)"
        versions = subprocess.check_output([lane.python, "-c", shown], text=True).strip()
        return f"{'FAILED' if run_lanes(lane, lanes_for(version)) else 'passed'}: {versions}"
    except Stop as stop:
        return f"FAILED to be set up: {stop}"
    finally:
        if not os.environ.get("KEEP"):
            shutil.rmtree(lane.folder, ignore_errors=True)


def _make(venv: Venv, lane: LaneVenv, version: Version) -> str:
    """Make the environment and fill it; returns why there is no such Python, or nothing."""
    environ = installer.environ(venv)
    pyenv = Path.home().glob(f".pyenv/versions/{version.python}.*/bin")  # where uv does not look
    environ["PATH"] = os.pathsep.join([*map(str, pyenv), environ["PATH"]])
    command = [str(venv.uv), "venv", "--quiet", "--seed", "--clear", "--python", version.python, str(lane.folder)]
    made = subprocess.run(command, env=environ, stderr=subprocess.PIPE, text=True)
    if made.returncode != 0:
        return f"no Python {version.python} is found here, and uv gets none: {made.stderr.strip()[-300:]}"
    with tempfile.TemporaryDirectory(dir=lane.folder) as temporary:
        limits = Path(temporary) / "constraints.txt"
        tested = (lane.root / "constraints.txt").read_text(encoding="utf-8")
        limits.write_text(constraints(tested, version.instead), encoding="utf-8")
        install = [str(venv.uv), "pip", "install", "--python", str(lane.python), "-c", str(limits)]
        if subprocess.call([*install, "-e", ".[author,lab,test]"], cwd=lane.root, env=environ) != 0:
            raise Stop("uv could not install the packages; its lines above say why.")
    return ""


def _smoke(venv: Venv) -> str:
    """The package without its extras on a CPU-only torch."""
    if sys.platform == "win32" or shutil.which("bash") is None:
        return "NOT RUN: tools/smoke_cpu.sh needs bash"
    code = subprocess.call(["bash", "tools/smoke_cpu.sh"], cwd=venv.root, env=venv.environ())
    if not os.environ.get("KEEP"):
        shutil.rmtree(venv.root / ".venv-cpu", ignore_errors=True)
    return "passed" if code == 0 else f"FAILED: tools/smoke_cpu.sh ended with {code}"

"""The programs of lesson 14, and the losses that they print."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from courselib.patience import HANG_SECONDS

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "lessons" / "14_long_runs" / "programs"
_LOSS = re.compile(r"^step (\d+): loss (\S+)$", re.MULTILINE)
STEPS = 60  # of train.py, where nothing else is asked for

# A run that waits, once it has printed the loss of step GPULAB_PAUSE, for a signal that it has a handler for: whatever
# the machine is busy with, what the test does then comes in the middle. A job that was put back does not wait again.
_PAUSE = """
import builtins, os, signal
real, at = print, f"step {os.environ['GPULAB_PAUSE']}:"
def pausing(*words, **options):
    real(*words, **options)
    if words and str(words[0]).startswith(at) and not {"SLURM_RESTART_COUNT"} & set(os.environ):
        signal.pause()
builtins.print = pausing
"""


# Without it ranks that are started again can find the dead ones' addresses in the store that torchrun keeps (PyTorch's
# issues 135712 and 167288).
_NEW_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def write_programs(folder: Path) -> None:
    """checkpoints.py, train.py, train.sbatch and what else the lecture copies."""
    shutil.copytree(PROGRAMS, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


def environ(folder: Path, pause: int | None = None, **more: str) -> dict[str, str]:
    """For the programs in `folder`: this course's package, this Python, and the step after which to wait."""
    path, root = [str(folder)], str(ROOT)
    if pause is not None:
        (folder / "pause").mkdir()
        (folder / "pause" / "sitecustomize.py").write_text(_PAUSE)
        path, more = [str(folder / "pause"), *path], more | {"GPULAB_PAUSE": str(pause)}
    first = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    paths = {"PYTHONPATH": os.pathsep.join([*path, root])}
    gpu = {} if torch.cuda.is_available() else {"GPULAB_GPU": "virtual:T4"}
    return {**os.environ, **first, **paths, **gpu, "OMP_NUM_THREADS": "1", **_NEW_STORE, **more}


def losses(printed: str) -> dict[int, str]:
    """Of each step, in all its digits; a step that was done again must have come out the same."""
    found: dict[int, str] = {}
    for step, loss in _LOSS.findall(printed):
        assert found.setdefault(int(step), loss) == loss, f"step {step} done again gives {loss}, not {found[int(step)]}"
    return found


def torchrun(*options: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *options]


def uninterrupted(folder: Path, command: list[str]) -> dict[int, str]:
    """The losses of a run in `folder` that nothing happens to."""
    folder.mkdir()
    write_programs(folder)
    done = subprocess.run(
        command, cwd=folder, env=environ(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=HANG_SECONDS,
    )  # fmt: skip
    found = losses(done.stdout)
    assert done.returncode == 0, done.stdout
    assert list(found) == list(range(STEPS)), done.stdout
    return found

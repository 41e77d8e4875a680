"""An instructor releases the solutions with nbgrader and grades what comes back, with the same files."""

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from courselib.patience import HANG_SECONDS
from courselib.ready import python_here

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = "08_accumulation.ipynb"


@pytest.fixture
def nbgrader(tmp_path, monkeypatch):
    """Runs an nbgrader command in a course of its own, with nbgrader's default settings."""
    (tmp_path / "nbgrader_config.py").write_text("c = get_config()\nc.CourseDirectory.course_id = 'gpulab'\n")
    monkeypatch.setenv("GPULAB_GPU", "virtual:T4")
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)

    def run(*arguments):
        command = [*python_here(), "-m", "nbgrader", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS)
        assert done.returncode == 0, done.stderr[-2000:]

    return run


@pytest.mark.slow
def test_a_released_exercise_comes_back_and_is_graded(nbgrader, tmp_path):
    source = tmp_path / "source" / "ps08"
    source.mkdir(parents=True)
    shutil.copy(ROOT / "solutions" / NOTEBOOK, source)
    nbgrader("generate_assignment", "ps08", "--create")
    released = nbformat.read(tmp_path / "release" / "ps08" / NOTEBOOK, as_version=4)
    assert "in_window" not in nbformat.writes(released)

    solved = nbformat.read(ROOT / "solutions" / NOTEBOOK, as_version=4)
    answers = {c.metadata.nbgrader.grade_id: c.source for c in solved.cells if "nbgrader" in c.metadata}
    stubs = [c for c in released.cells if c.metadata.get("nbgrader", {}).get("solution")]
    for cell in stubs[:3]:
        cell.source = answers[cell.metadata.nbgrader.grade_id]
    handed_in = tmp_path / "submitted" / "ann" / "ps08"
    handed_in.mkdir(parents=True)
    nbformat.write(released, handed_in / NOTEBOOK)
    nbgrader("autograde", "ps08", "--create")
    nbgrader("export")
    (grade,) = csv.DictReader((tmp_path / "grades.csv").open())
    assert (grade["student_id"], float(grade["score"]), float(grade["max_score"])) == ("ann", 3, 4)

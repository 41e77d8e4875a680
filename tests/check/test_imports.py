"""What PyTorch imports when it first needs it is there before a student's time runs.

Each check is tried in a process of its own, in which nothing has been computed yet.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOOKS = """
import contextlib, json, os, sys
from importlib import import_module
from itertools import islice
import gpulab
from gpulab.check import guard
from gpulab.course import LESSONS
from tests.wrong_answers.bank import Bank

Bank.mistake = lambda *_, **__: None  # no wrong answer is tried
asked = [(lesson.number, name) for lesson in LESSONS for name in lesson.checks]
banks = {name: import_module(f"tests.wrong_answers.lesson{number:02d}.{name}").BANK for number, name in asked}
with contextlib.redirect_stdout(sys.stderr):
    gpulab.setup("T4").close()
    for _, name in asked:
        getattr(gpulab.check, name)
new, run = {}, guard.Guard.run

def watched(self, function, args, inside):
    before = len(sys.modules)
    try:
        return run(self, function, args, inside)
    finally:
        found.update(name for name in islice(sys.modules, before, None) if not name.startswith("gpulab."))

guard.Guard.run = watched
for name, bank in banks.items():
    if bank.contract and bank.contract.ranks:  # the student's time runs in other processes
        continue
    pid = os.fork()
    if not pid:
        found = set()
        with contextlib.redirect_stdout(sys.stderr):
            bank.check(bank.right_answers[0], seed=1)
        print(json.dumps([name, sorted(found)]), flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, name
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each check begins in a fork of one process")
def test_nothing_is_imported_while_a_students_time_runs(tmp_path):
    environ = os.environ | {"GPULAB_PROGRESS": str(tmp_path / "progress.json"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", LOOKS], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = dict(map(json.loads, done.stdout.splitlines()))
    assert len(found) > 25
    assert {name: modules for name, modules in found.items() if modules} == {}

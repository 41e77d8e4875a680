"""What PyTorch imports when it first needs it is there before a student's time runs.

Each check is tried in a process of its own, in which nothing has been computed yet. Where it asks for what optimizers
need, an import of seconds, it is tried again in a fork of a process that has that.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOOKS = """
import contextlib, gc, json, os, sys
from importlib import import_module
from itertools import islice
import gpulab
from gpulab.exercise import base, guard
from gpulab.course import LESSONS
sys.path.insert(0, "tools")
from banks.bank import Bank

Bank.mistake = lambda *_, **__: None  # no wrong answer is tried
# Banks that import what optimizers need themselves, most of them with torchvision: they come when it is there.
IMPORT_IT = {"name_bottleneck", "profiled_steps", "job_mfu", "graphs_per_call"}

def bank_of(name):
    return lessons[name].part(f"answers.{name}").BANK

lessons = {name: lesson for lesson in LESSONS for name in lesson.checks}
with contextlib.redirect_stdout(sys.stderr):
    gpulab.setup("T4").close()
    for name in lessons:
        getattr(gpulab.check, name)
        if name not in IMPORT_IT:
            bank_of(name)
            assert base.OPTIMIZERS not in sys.modules, f"the bank of {name} imports {base.OPTIMIZERS}: IMPORT_IT"
run = guard.Guard.run

def watched(self, function, args, inside):
    before = len(sys.modules)
    try:
        return run(self, function, args, inside)
    finally:
        new = islice(sys.modules, before, None)
        found.update(name for name in new if not name.startswith(("gpulab.", "virtualgpu")))

guard.Guard.run = watched
own_import, later = base.import_module, 3

def imports(module):
    if module == base.OPTIMIZERS and module not in sys.modules:
        os._exit(later)  # before anything of the check's own
    return own_import(module)

def tried(name):
    "The exit code of a fork, which prints what was imported while the student's time ran."
    global found
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    bank = bank_of(name)
    if not (bank.contract and bank.contract.ranks):  # there the student's time runs in other processes
        found = set()
        with contextlib.redirect_stdout(sys.stderr):
            bank.check(bank.right_answers[0], seed=1)
        print(json.dumps([name, sorted(found)]), flush=True)
    os._exit(0)

base.import_module, asked, their_turn = imports, [name for name in lessons if name not in IMPORT_IT], [*IMPORT_IT]
for _ in range(2):
    gc.collect()
    gc.freeze()  # answers that collect do not look through all of torch
    codes = {name: tried(name) for name in asked}
    assert set(codes.values()) <= {0, later}, codes
    asked = [name for name in asked if codes[name] == later] + their_turn
    their_turn = []
    own_import(base.OPTIMIZERS)
assert not asked
os._exit(0)  # all is printed by now, and Python would take all of torch to pieces
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each check begins in a fork of one process")
def test_nothing_is_imported_while_a_students_time_runs(tmp_path):
    environ = os.environ | {"GPULAB_PROGRESS": str(tmp_path / "progress.json"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", LOOKS], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = dict(map(json.loads, done.stdout.splitlines()))
    assert len(found) > 25
    assert {name: modules for name, modules in found.items() if modules} == {}

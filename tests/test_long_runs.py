"""The programs of lesson 14: none of them loses a run. `make cluster` has the rest."""

import errno
import importlib.util
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch
from courselib.patience import HANG_SECONDS
from torch.utils.data import DataLoader

import gpulab

from .cluster.lesson import environ, losses, uninterrupted, write_programs
from .cluster.watching import wait_for

POSIX = pytest.mark.skipif(os.name != "posix", reason="signals, bash and limits of a process are POSIX's")


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    write_programs(folder)
    return folder


@pytest.fixture(scope="module")
def checkpoints(programs):
    spec = importlib.util.spec_from_file_location("checkpoints_of_lesson_14", programs / "checkpoints.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def state(step):
    return {"step": step, "weights": torch.full((500,), float(step))}


@pytest.fixture
def kept(checkpoints, tmp_path):
    """A folder with the checkpoints of steps 20, 30 and 40."""
    for step in (20, 30, 40):
        checkpoints.save(state(step), tmp_path, step)
    return tmp_path


def files(folder):
    return {path.name: zlib.crc32(path.read_bytes()) for path in folder.iterdir()}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# --- what is damage, and what is not ---------------------------------------------------------------------------------


def test_a_file_that_cannot_be_opened_is_no_damaged_one(checkpoints, kept):
    before = files(kept)
    for path in ("step00000040.pt", *before):
        with (
            gpulab.crash.record(kept, unreadable=["step00000040.pt", path]),
            pytest.raises(OSError, match=os.strerror(errno.ESTALE)),
        ):
            checkpoints.newest(kept)
    assert files(kept) == before
    assert checkpoints.newest(kept).name == "step00000040.pt"


def test_a_folder_that_cannot_be_listed_is_no_empty_one(checkpoints, tmp_path):
    with pytest.raises(OSError, match="not there"):
        checkpoints.newest(tmp_path / "not there")


class OfThisTest:
    """A class that the program which loads does not have."""


@pytest.mark.parametrize("content", [np.random.get_state(), OfThisTest()], ids=["NumPy's state", "a class"])
def test_a_whole_file_that_is_not_to_be_built_is_no_damaged_one(checkpoints, kept, content):
    torch.save(state(50) | {"more": content}, kept / "step00000050.pt")
    before = files(kept)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        checkpoints.newest(kept)
    assert files(kept) == before


def damaged(data, draw):
    """`data` cut off, with some zeros, or with a wrong bit."""
    at = draw.randrange(len(data))
    return draw.choice(
        [
            data[:at],
            data[:at] + bytes(len(data[at : at + 16])) + data[at + 16 :],
            data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :],
        ]
    )


def test_whatever_is_damaged_the_newest_checkpoint_is_one_that_loads_as_it_was(checkpoints, kept):
    path, draw, aside = kept / "step00000040.pt", random.Random(14), 0
    whole = path.read_bytes()
    for _ in range(300):
        path.write_bytes(damaged(whole, draw))
        newest = checkpoints.newest(kept)
        loaded = torch.load(newest, weights_only=True)
        assert torch.equal(loaded["weights"], state(loaded["step"])["weights"])
        aside += newest != path
        assert (kept / "step00000040.damaged").exists() == (newest != path)
        (kept / "step00000040.damaged").unlink(missing_ok=True)
    assert 150 < aside < 300  # some bytes of an archive say nothing


def test_where_all_are_damaged_no_start_begins_at_step_0(checkpoints, kept):
    for path in kept.iterdir():
        path.write_bytes(path.read_bytes()[:100])
    for _ in range(2):  # a job that is put back asks again
        with pytest.raises(RuntimeError, match=r"all checkpoints in .* are damaged"):
            checkpoints.newest(kept)
    assert names(kept) == [f"step000000{step}.damaged" for step in (20, 30, 40)]


def test_none_is_for_a_folder_that_nothing_was_saved_in(checkpoints, tmp_path):
    assert checkpoints.newest(tmp_path) is None


# --- what stays ------------------------------------------------------------------------------------------------------


def test_after_going_back_the_newest_is_what_was_saved_last(checkpoints, kept):
    checkpoints.save(state(25), kept, 25)
    assert checkpoints.newest(kept).name == "step00000025.pt"
    for crash in ("kills", "power_cuts"):
        with gpulab.crash.record(kept) as journal:
            checkpoints.save(state(22), kept, 22)
        for left in getattr(journal, crash):
            with left.opened() as place:
                # 20 is what the run has gone back to; 25 is the way that it has left, until its first save begins
                wanted = {"step00000022.pt"} if left.finished else {f"step000000{step}.pt" for step in (20, 22, 25)}
                assert checkpoints.newest(place).name in wanted
        checkpoints.save(state(25), kept, 25)


def test_the_last_three_stay_and_every_thousandth_step(checkpoints, tmp_path):
    for step in range(500, 4001, 500):
        checkpoints.save(state(step), tmp_path, step)
    assert names(tmp_path) == [f"step{step:08}.pt" for step in (1000, 2000, 3000, 3500, 4000)]


# The system refuses what goes beyond this many bytes of a file, as it does where the disk is full.
_FULL = """
import resource, sys
import torch, checkpoints
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
checkpoints.save({"weights": torch.zeros(20_000)}, sys.argv[1], 50)
"""


@POSIX
def test_on_a_full_disk_a_save_raises_and_the_last_good_checkpoint_stays(checkpoints, programs, kept):
    before = files(kept)
    command = [sys.executable, "-c", _FULL, str(kept)]
    done = subprocess.run(command, env=environ(programs), capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 1, done.stderr
    assert "File too large" in done.stderr
    (kept / "unfinished.tmp").unlink()  # the next save writes over it
    assert files(kept) == before
    assert checkpoints.newest(kept).name == "step00000040.pt"


# --- the second tier -------------------------------------------------------------------------------------------------


def test_killed_at_any_moment_an_upload_leaves_the_one_before_or_the_new_one(checkpoints, kept, tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    for step in (20, 30):
        checkpoints.upload(kept / f"step000000{step}.pt", store)
    with gpulab.crash.record(store) as journal:
        checkpoints.upload(kept / "step00000040.pt", store)
    found = []
    for left in journal.kills:
        folder = tmp_path_factory.mktemp("another machine")
        with left.opened() as place:
            checkpoints.fetch(place, folder)
            found.append(torch.load(checkpoints.newest(folder))["step"])
            checkpoints.upload(kept / "step00000040.pt", place)  # what the kill has left is in nobody's way
            assert len(names(place)) == 6
    new = found.index(40)
    assert found == [30] * new + [40] * (len(found) - new)
    assert new > 1


def test_after_going_back_the_second_tier_gives_what_was_saved_last(checkpoints, kept, tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    for path in sorted(kept.glob("step*.pt")):
        checkpoints.upload(path, store)
    checkpoints.upload(checkpoints.save(state(25), kept, 25), store)
    folder = tmp_path_factory.mktemp("another machine")
    checkpoints.fetch(store, folder)
    assert checkpoints.newest(folder).name == "step00000025.pt"


def test_what_is_newer_on_the_local_disk_is_taken(checkpoints, kept, tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    checkpoints.upload(kept / "step00000030.pt", store)
    checkpoints.fetch(store, kept)
    assert checkpoints.newest(kept).name == "step00000040.pt"


def test_the_store_keeps_as_many_as_the_disk(checkpoints, tmp_path_factory):
    folder, store = tmp_path_factory.mktemp("local"), tmp_path_factory.mktemp("store")
    for step in range(10, 60, 10):
        checkpoints.upload(checkpoints.save(state(step), folder, step), store)
    assert sorted(path.stem for path in store.glob("*.pt")) == [path.stem for path in sorted(folder.iterdir())]


# --- train.py --------------------------------------------------------------------------------------------------------


@POSIX
def test_a_notice_leaves_a_mark_and_the_next_machine_goes_on_from_the_store(tmp_path):
    command = [sys.executable, "train.py", "--device", "cpu", "--store", "store"]
    wanted = uninterrupted(tmp_path / "alone", command)
    folder = tmp_path / "noticed"
    folder.mkdir()
    write_programs(folder)
    with open(folder / "log", "w") as log:
        run = subprocess.Popen(command, cwd=folder, env=environ(folder, pause=25), stdout=log, stderr=log)
    wait_for(lambda: "step 25:" in (folder / "log").read_text(), folder, run)
    run.send_signal(signal.SIGTERM)
    assert run.wait(HANG_SECONDS) == 0
    assert (folder / "kept" / "again").exists()
    shutil.rmtree(folder / "kept")  # the machine is gone, with its disk
    again = subprocess.run(command, cwd=folder, env=environ(folder), capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "rank 0 goes on from step00000026.pt" in again.stdout
    assert not (folder / "kept" / "again").exists()
    assert losses((folder / "log").read_text() + again.stdout) == wanted


# --- the batch file --------------------------------------------------------------------------------------------------

# In the place of SLURM's own: `srun` runs two steps of a program that ends a while after its second signal.
_SRUN = """#!/usr/bin/env python3
import os, pathlib, signal, sys
count = []
signal.signal(signal.SIGUSR1, lambda *_: (count.append(1), print("signal", len(count), flush=True)))
print("ready", flush=True)
while len(count) < int(os.environ["SIGNALS"]):
    signal.pause()
pathlib.Path("kept").mkdir(exist_ok=True)
if count:
    pathlib.Path("kept/again").touch()
sys.exit(int(os.environ["CODE"]))
"""
_SCONTROL = """#!/bin/sh
echo "scontrol $*"
"""


def batch(folder, signals, code):
    """What the batch file says, with so many signals, in a srun that ends with `code`; and its exit code."""
    write_programs(folder)
    for name, text in (("srun", _SRUN), ("scontrol", _SCONTROL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    env = environ(folder, SIGNALS=str(signals), CODE=str(code), SLURM_JOB_ID="7", SLURM_NTASKS="2")
    env |= {"PATH": f"{folder}{os.pathsep}{env['PATH']}"}
    (folder / "kept").mkdir()
    (folder / "kept" / "again").touch()  # of the start before
    with open(folder / "log", "w") as log:
        job = subprocess.Popen(["bash", "train.sbatch"], cwd=folder, env=env, stdout=log, stderr=log)
    said = (folder / "log").read_text
    wait_for(lambda: "ready" in said(), folder, job)
    for number in range(signals):
        wait_for(lambda number=number: number == 0 or f"signal {number}" in said(), folder, job)
        job.send_signal(signal.SIGUSR1)
    job.wait(HANG_SECONDS)
    return said(), job.returncode


@POSIX
@pytest.mark.parametrize("signals", [1, 2, 3])
def test_the_batch_file_waits_for_the_ranks_however_many_signals_come(tmp_path, signals):
    said, _ = batch(tmp_path, signals, 0)
    assert f"signal {signals}" in said
    assert "scontrol requeue 7" in said


@POSIX
@pytest.mark.parametrize("code", [0, 3])
def test_the_batch_file_puts_back_no_job_that_is_done_or_has_failed_and_passes_its_code_on(tmp_path, code):
    said, ended = batch(tmp_path, 0, code)
    assert "requeue" not in said
    assert ended == code


# --- sentences of the lecture ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True])
def test_an_iterator_of_a_loader_moves_pytorchs_generator_unless_the_loader_has_its_own(own):
    loader = DataLoader(range(4), generator=torch.Generator() if own else None)
    before = torch.get_rng_state()
    iter(loader)
    assert torch.equal(torch.get_rng_state(), before) == own

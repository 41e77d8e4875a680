"""The power fails at every system call of a save, on a real ext4: what was not forced to the disk is not there.

The disk is a file behind a loop device. ext4 writes into it what is synced, and anything else up to 30 seconds later: a
copy of the file, made at once, is the disk as a power cut leaves it. Mounted, it goes through ext4's own recovery.
"""

import os
import shutil
import subprocess
import time
from contextlib import contextmanager

import pytest

from .killing import Savers
from .namespaces import INSIDE

MEGABYTES = 16
WRITTEN_ANYWAY = 25  # seconds; Linux's vm.dirty_expire_centisecs is 30 s


@pytest.fixture(scope="module")
def savers(tmp_path_factory):
    assert os.environ.get(INSIDE) == "yes", "this mounts disks: use `make cluster`, where they go with their namespace"
    savers = Savers(tmp_path_factory.mktemp("savers"))
    yield savers
    savers.end()


@contextmanager
def mounted(image, at):
    at.mkdir(exist_ok=True)
    # What is renamed comes to the disk with the next commit of the journal: in five minutes, if nobody asks for one.
    subprocess.run(["mount", "-o", "loop,noatime,commit=300", str(image), str(at)], check=True)
    try:
        yield at / "kept"
    finally:
        subprocess.run(["umount", str(at)], check=True)


@pytest.fixture
def disk(savers, tmp_path):
    """A disk with the checkpoints of steps 10, 20 and 30 in its folder `kept`."""
    image = tmp_path / "disk"
    with open(image, "wb") as file:
        file.truncate(MEGABYTES << 20)
    subprocess.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image)], check=True)
    with mounted(image, tmp_path / "mount") as kept:
        kept.mkdir()
        for step in (10, 20, 30):
            savers.save("course", kept, step)
    return image


def after_a_cut(savers, disk, place, way, call, load):
    """What is loaded where the power fails as step 40's save makes `call` (None: when it has ended), and where it
    fails later, when another program has synced a file of its own."""
    found = []
    shutil.copyfile(disk, place / "work")
    with mounted(place / "work", place / "mount") as kept:
        if call:
            savers.kill_at(call, way, kept, 40)
        else:
            savers.save(way, kept, 40)
        shutil.copyfile(place / "work", place / "cut0")
        with open(kept.parent / "another", "w") as file:
            os.fsync(file.fileno())  # commits the journal: every name so far, and of the data this file's only
        shutil.copyfile(place / "work", place / "cut1")
    for cut in ("cut0", "cut1"):
        with mounted(place / cut, place / "mount") as kept:
            found.append(savers.ask(load, kept))
    return found


def calls(savers, disk, place, way):
    shutil.copyfile(disk, place / "work")
    with mounted(place / "work", place / "mount") as kept:
        return savers.calls(way, kept, 40)


def test_after_a_power_cut_at_every_system_call_the_state_before_or_the_new_one_is_there(savers, disk, tmp_path):
    found = [
        after_a_cut(savers, disk, tmp_path, "course", call, "load_straight")
        for call in [*calls(savers, disk, tmp_path, "course"), None]
    ]
    print(f"course: a power cut at each of {len(found) - 1} calls, and after the last: {found}")
    assert {one for pair in found for one in pair} == {"30", "40"}
    assert found[0] == ["30", "30"]
    assert found[-1] == ["40", "40"]  # it has ended: nothing later may take it away


def test_without_fsync_a_power_cut_loses_the_new_one_or_leaves_its_name_without_its_data(savers, disk, tmp_path):
    def soon(load):  # on a machine so busy that ext4 writes the data of its own accord there is nothing to see
        while True:
            began = time.monotonic()
            found = after_a_cut(savers, disk, tmp_path, "not_synced", None, load)
            if time.monotonic() - began < WRITTEN_ANYWAY:
                return found

    at_once, later = soon("load_straight")
    print(f"not synced: {at_once!r} where the power fails at once, {later!r} where it fails later")
    assert at_once == "30"
    assert later.startswith("damaged")
    assert soon("load") == ["30", "30"]  # the lesson's loader takes the one before

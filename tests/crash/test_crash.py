"""The states that gpulab.crash computes are those that a crash leaves: of a real folder, and of a killed process."""

import errno
import json
import mmap
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from os import replace

import numpy as np
import pytest
import torch
from courselib.ready import python_here

import gpulab
from gpulab.crash import NotSeen
from gpulab.crash.journal import MOST, Journal


def on_disk(folder):
    """What really lies there, as State.tree tells it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        found[name] = os.readlink(path) if path.is_symlink() else None if path.is_dir() else path.read_bytes()
    return found


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def atomic(folder):
    with open(folder / "new.tmp", "wb") as file:
        file.write(b"new" * 5000)
        file.flush()
        os.fsync(file.fileno())
    os.replace(folder / "new.tmp", folder / "a.pt")
    sync(folder)


def by_tempfile(folder):
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
        json.dump(list(range(3000)), file)
    os.rename(file.name, folder / "a.pt")


def by_torch(folder):
    torch.save({"w": torch.arange(5000.0)}, folder / "a.pt")


def by_pathlib(folder):
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "sub" / "deep" / "b").write_text("two words")
    (folder / "sub" / "c").touch()
    (folder / "latest").symlink_to("sub/deep/b")
    (folder / "sub").rename(folder / "moved")
    (folder / "a.pt").unlink()


def by_os(folder):
    fd = os.open(folder / "a.pt", os.O_RDWR)
    os.lseek(fd, 2, os.SEEK_SET)
    os.write(fd, b"XY")
    os.pwrite(fd, b"end", 10)
    os.ftruncate(fd, 12)
    os.close(fd)
    os.truncate(folder / "a.pt", 5)
    os.link(folder / "a.pt", folder / "b.pt")
    with open(folder / "b.pt", "r+b") as file:
        file.write(b"both")
    with open(folder / "b.pt", "ab", buffering=0) as file:
        file.write(b"more")
    os.remove(folder / "a.pt")


def by_shutil(folder):
    shutil.copytree(folder, folder / "copy")
    shutil.copy2(folder / "a.pt", folder / "c.pt")
    shutil.move(folder / "c.pt", folder / "copy" / "d.pt")
    shutil.rmtree(folder / "copy")


def by_numpy(folder):
    np.save(folder / "a.npy", np.arange(3000))  # C code writes into the file that Python has opened
    np.savez(folder / "a.npz", a=np.arange(3))


def of_a_temporary_file(folder):
    with tempfile.NamedTemporaryFile(dir=folder) as file:  # its removal was bound to a name long ago
        file.write(b"gone in a moment")
    (folder / "after").write_bytes(b"x")


WAYS = [atomic, by_tempfile, by_torch, by_pathlib, by_os, by_shutil, by_numpy, of_a_temporary_file]
if os.name == "nt":
    WAYS.remove(by_pathlib)  # a link takes a right that not every account has


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.pt").write_bytes(b"what was there before")
    return folder


@pytest.mark.parametrize("way", WAYS)
def test_the_folder_is_what_the_journal_says_after_each_operation(way, folder, monkeypatch):
    told = []
    add = Journal.add

    def looked(self, operation):
        add(self, operation)
        if "elsewhere" not in operation.words:
            told.append((operation.words, self.now.tree(), on_disk(folder)))

    monkeypatch.setattr(Journal, "add", looked)
    with gpulab.crash.record(folder) as journal:
        way(folder)
    assert len(told) >= 3
    late = way in (by_numpy, of_a_temporary_file)  # what is seen a moment late
    for words, seen, real in told:
        assert late or seen == real, words
    assert journal.kills[-1].tree == on_disk(folder)


@pytest.mark.parametrize("way", WAYS)
def test_a_state_is_opened_as_it_is(way, folder):
    with gpulab.crash.record(folder) as journal:
        way(folder)
    for state in [*journal.kills, *journal.power_cuts][:40]:
        with state.opened() as place:
            assert on_disk(place) == state.tree
        assert not place.exists()


KILLED = """
import os, signal, sys, pathlib
sys.path[:] = {path!r}
import gpulab, test_crash
from gpulab.crash.journal import Journal
folder, left, add = pathlib.Path(sys.argv[1]), int(sys.argv[2]), Journal.add
def one_less(self, operation):
    global left
    add(self, operation)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
Journal.add = one_less
with gpulab.crash.record(folder):
    getattr(test_crash, sys.argv[3])(folder)
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL on Windows")
@pytest.mark.parametrize("way", [atomic, by_torch, by_os])
def test_a_killed_process_leaves_that_state(way, folder, tmp_path):
    """With nothing flushed, closed or cleaned up: what Python has in its buffers is lost."""
    with gpulab.crash.record(folder) as journal:
        way(folder)
    states = {int(state.about.split()[3]): state for state in journal.kills if "after" in state.about}
    for number in (1, 2, len(journal.operations) - 1):
        again = tmp_path / f"killed_{number}"
        again.mkdir()
        (again / "a.pt").write_bytes(b"what was there before")
        code = KILLED.format(path=[str(pathlib.Path(__file__).parent), *sys.path])
        done = subprocess.run([*python_here(), "-c", code, str(again), str(number), way.__name__])
        assert done.returncode == -signal.SIGKILL
        last = next(n for n in range(number, 0, -1) if n in states)  # an fsync leaves what was there before it
        assert on_disk(again) == states[last].tree


def test_torch_saves_the_same_bytes(folder, tmp_path):
    with gpulab.crash.record(folder):
        by_torch(folder)
    torch.save({"w": torch.arange(5000.0)}, tmp_path / "a.pt")
    assert (folder / "a.pt").read_bytes() == (tmp_path / "a.pt").read_bytes()


def test_torch_stops_where_it_cannot_save(folder):
    with gpulab.crash.record(folder) as journal, pytest.raises(AttributeError, match="local"):
        torch.save({"w": torch.ones(3), "f": lambda: 0}, folder / "a.pt")
    assert b"before" not in journal.kills[-1].files["a.pt"]
    with gpulab.crash.record(folder), pytest.raises(RuntimeError, match="Parent directory"):
        torch.save({}, folder / "missing" / "a.pt")


def test_a_kill_leaves_old_or_new_where_a_save_is_atomic(folder):
    with gpulab.crash.record(folder) as journal:
        atomic(folder)
    old, new = b"what was there before", b"new" * 5000
    kept = [state.files["a.pt"] for state in journal.kills]
    assert kept == [old] * kept.index(new) + [new] * kept.count(new)
    assert {state.files["a.pt"] for state in journal.power_cuts} == {old, new}
    assert journal.kills[1].about == "killed after operation 1 of 5: create new.tmp"


def left_by_power_cuts(folder, save):
    with gpulab.crash.record(folder) as journal:
        save()
    return [state.files.get("a.pt") for state in journal.power_cuts]


def renamed(folder, *, flush=True, sync_file=True, sync_folder=True):
    with open(folder / "tmp", "wb") as file:
        file.write(b"new")
        if flush:
            file.flush()
        if sync_file:
            os.fsync(file.fileno())
    os.replace(folder / "tmp", folder / "a.pt")
    if sync_folder:
        sync(folder)


@pytest.mark.skipif(os.name != "posix", reason="Windows has no O_SYNC")
def test_what_is_written_through_is_on_the_disk(folder):
    def through(flag):
        with open(folder / "tmp", "wb", opener=lambda path, flags: os.open(path, flags | flag)) as file:
            file.write(b"new")
        os.replace(folder / "tmp", folder / "a.pt")
        sync(folder)

    for flag in (os.O_SYNC, os.O_DSYNC):
        assert b"" not in left_by_power_cuts(folder, lambda flag=flag: through(flag))
    assert b"" in left_by_power_cuts(folder, lambda: through(0))


def test_a_power_cut_takes_what_was_not_fsynced(folder):
    old = b"what was there before"
    assert set(left_by_power_cuts(folder, lambda: renamed(folder))) == {old, b"new"}
    assert left_by_power_cuts(folder, lambda: renamed(folder))[-1] == b"new"
    (folder / "a.pt").write_bytes(old)
    assert b"" in left_by_power_cuts(folder, lambda: renamed(folder, sync_file=False))
    (folder / "a.pt").write_bytes(old)
    assert b"" in left_by_power_cuts(folder, lambda: renamed(folder, flush=False))  # fsync of nothing
    (folder / "a.pt").write_bytes(old)
    with gpulab.crash.record(folder) as journal:
        renamed(folder, sync_folder=False)
    at_the_end = {state.files["a.pt"] for state in journal.power_cuts if state.finished}
    assert at_the_end == ({b"new"} if os.name == "nt" else {old, b"new"})


@pytest.mark.skipif(os.name == "nt", reason="names are safe at once there")
def test_the_later_of_two_names_may_be_safe_and_the_earlier_not(folder):
    def replaces():
        renamed(folder, sync_folder=False)
        os.remove(folder / "other")
        sync(folder)

    (folder / "other").write_bytes(b"2")
    with gpulab.crash.record(folder) as journal:
        replaces()
    left = {(state.files["a.pt"], "other" in state.files) for state in journal.power_cuts}
    old = b"what was there before"
    assert left == {(old, True), (b"new", True), (old, False), (b"new", False)}


@pytest.mark.skipif(os.name == "nt", reason="names are safe at once there")
def test_a_folder_is_safe_once_its_own_folder_is_fsynced(folder):
    def makes():
        (folder / "sub").mkdir()
        with open(folder / "sub" / "b", "wb") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
        sync(folder / "sub")

    with gpulab.crash.record(folder) as journal:
        makes()
    ends = [state.tree for state in journal.power_cuts if state.finished]
    assert [sorted(tree) for tree in ends] == [["a.pt"], ["a.pt", "sub", "sub/b"]]


def test_power_cuts_are_bounded(folder):
    with gpulab.crash.record(folder) as journal:
        for number in range(30):
            (folder / f"{number}.pt").write_bytes(bytes([number]) * 100)
    states = journal.power_cuts
    assert len(states) == MOST
    assert [state.tree for state in states] == [state.tree for state in journal.power_cuts]


def test_a_file_from_elsewhere(folder, tmp_path):
    for is_safe in (False, True):
        with gpulab.crash.record(folder) as journal:
            with open(tmp_path / "outside", "wb") as file:
                file.write(b"new")
                file.flush()
                if is_safe:
                    os.fsync(file.fileno())
            os.replace(tmp_path / "outside", folder / "b.pt")
        assert [state.files.get("b.pt") for state in journal.kills] == [None, b"new"]
        assert (b"" in [state.files.get("b.pt") for state in journal.power_cuts]) != is_safe
        os.remove(folder / "b.pt")
    with gpulab.crash.record(folder, own_disk=True) as journal:
        (tmp_path / "outside").write_bytes(b"new")
        with pytest.raises(OSError, match=os.strerror(errno.EXDEV)):
            os.replace(tmp_path / "outside", folder / "b.pt")
        shutil.move(tmp_path / "outside", folder / "b.pt")  # copies
    assert b"" in [state.files.get("b.pt") for state in journal.kills]


def test_a_file_that_cannot_be_read_is_refused_to_whoever_opens_it_and_stays(folder):
    before = (folder / "a.pt").read_bytes()
    reads = (
        lambda path: open(path, "rb"),  # noqa: SIM115
        lambda path: os.open(path, os.O_RDONLY),
        pathlib.Path.read_bytes,
        torch.load,
        zipfile.ZipFile,
    )
    for read in reads:
        with (
            gpulab.crash.record(folder, unreadable=["a.pt"]),
            pytest.raises(OSError, match=os.strerror(errno.ESTALE)),
        ):
            read(folder / "a.pt")
    assert (folder / "a.pt").read_bytes() == before


def test_what_is_not_seen_is_an_error(folder):
    with (
        pytest.raises(NotSeen, match=r"b\.pt was changed.*3 bytes, in the journal nothing"),
        gpulab.crash.record(folder),
    ):
        subprocess.run([sys.executable, "-c", f"open({str(folder / 'b.pt')!r}, 'wb').write(b'abc')"], check=True)


def test_a_memory_map_is_not_seen(folder):
    def writes():
        mapped = mmap.mmap(file.fileno(), 0)
        mapped[0:4] = b"WHAT"
        mapped.close()

    with open(folder / "a.pt", "r+b") as file, pytest.raises(NotSeen, match=r"a\.pt"), gpulab.crash.record(folder):
        writes()


def test_an_exception_is_the_callers_and_all_is_put_back(folder):
    before = os.replace, os.fsync, open, torch.serialization._open_zipfile_writer_file, pathlib.os.open

    def fails():
        assert os.replace is not before[0]
        subprocess.run([sys.executable, "-c", f"open({str(folder / 'b.pt')!r}, 'wb')"], check=True)  # unseen
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), gpulab.crash.record(folder):
        fails()
    assert before == (os.replace, os.fsync, open, torch.serialization._open_zipfile_writer_file, pathlib.os.open)


def test_recordings_may_be_nested(folder):
    (folder / "inner").mkdir()
    with gpulab.crash.record(folder) as outer:
        (folder / "b").write_bytes(b"1")
        with gpulab.crash.record(folder / "inner") as inner:
            (folder / "inner" / "c").write_bytes(b"2")
            (folder / "d").write_bytes(b"3")
    assert inner.kills[-1].files == {"c": b"2"}
    assert [state.files.keys() - {"a.pt"} for state in outer.kills][-1] == {"b", "inner/c", "d"}


def test_other_threads_are_recorded(folder):
    with gpulab.crash.record(folder) as journal:
        saving = threading.Thread(target=atomic, args=(folder,))
        saving.start()
        saving.join()
    assert journal.kills[-1].files == {"a.pt": b"new" * 5000}


def test_an_fsync_may_be_written_down_alone(folder, monkeypatch):
    made = []
    monkeypatch.setattr(os, "fsync", made.append)
    with gpulab.crash.record(folder, fsync=False) as journal:
        atomic(folder)
        with pytest.raises(OSError, match="descriptor"):
            os.fsync(10_000)
    assert not made
    assert {state.files["a.pt"] for state in journal.power_cuts} == {b"what was there before", b"new" * 5000}


def test_a_name_that_was_imported(folder):
    names = {"swap": replace}
    with gpulab.crash.record(folder, names=[names]) as journal:
        names["swap"](folder / "a.pt", folder / "b.pt")
    assert journal.kills[-1].files.keys() == {"b.pt"}
    assert names["swap"] is replace


@pytest.mark.parametrize("mode", ["w", "wt", "w+", "wb", "x", "a", "ab", "a+", "r+", "rb+", "r", "z", "wr", "bt", "ww"])
def test_open_is_open(mode, folder, tmp_path):
    def tried(path):
        try:
            with open(path, mode) as file:
                told = type(file).__name__, file.mode.replace("b+", "+b"), file.readable(), file.writable(), file.tell()
                if file.writable():
                    file.write("text\n" if "b" not in mode else b"text\n")
                return *told, str(file.name) == str(path)
        except (OSError, ValueError) as error:
            return type(error).__name__, str(error).replace(str(path), "")

    other = tmp_path / "other"
    other.mkdir()
    names = ["new"] if mode == "x" else ["a.pt", "new"]
    for name in names:
        for place in (folder, other):
            (place / "a.pt").write_bytes(b"what was there before")
        with gpulab.crash.record(folder):
            got = tried(folder / name)
        assert got == tried(other / name)
        assert on_disk(folder) == on_disk(other)


def test_a_folder_that_is_none(folder):
    recording = gpulab.crash.record(folder / "a.pt")
    with pytest.raises(NotADirectoryError, match=r"folder must be one that exists, not .*a\.pt"):
        recording.__enter__()


def test_the_open_of_a_notebook_is_seen(folder, monkeypatch):
    """IPython gives the cells an open() of its own, which calls that of io by a name it has kept."""
    shell = pytest.importorskip("IPython.core.interactiveshell")
    opened = shell.InteractiveShell.instance().user_ns["open"]
    assert opened is not open
    with gpulab.crash.record(folder) as journal, opened(folder / "b", "wb") as file:
        file.write(b"12")
    assert [state.files.get("b") for state in journal.kills] == [None, b"", b"1", b"12"]
    shell.InteractiveShell.clear_instance()


@pytest.mark.skipif(not hasattr(os, "sync"), reason="there is no os.sync on Windows")
def test_sync_makes_all_safe(folder, monkeypatch):
    monkeypatch.setattr(os, "sync", lambda: None)  # the real one waits for every disk of this machine
    with gpulab.crash.record(folder) as journal:
        by_torch(folder)
        (folder / "b").mkdir()
        os.sync()
    (state,) = [state for state in journal.power_cuts if state.finished]
    assert state.tree == on_disk(folder)

"""The folder of a run: who holds it, who removes it, and what a sweep leaves alone."""

import os
import shutil
import sys

import pytest

from gpulab.distributed import lifetime, running

if sys.platform == "win32":
    pytest.skip("Windows has no such locks", allow_module_level=True)

import fcntl


@pytest.fixture
def folder(tmp_path):
    return lifetime.new(str(tmp_path))


def test_every_run_has_a_name_of_its_own(tmp_path):
    assert len({lifetime.new(str(tmp_path)) for _ in range(100)}) == 100
    assert list(tmp_path.iterdir()) == []  # whoever removes it makes it


def test_a_folder_is_swept_away_when_the_last_that_holds_it_has_closed_it(tmp_path, folder):
    held = lifetime.claim(folder)
    passed_on = os.dup(held)
    assert os.stat(folder).st_mode & 0o777 == 0o700
    open(os.path.join(folder, "report.json"), "w").close()
    for file in (held, passed_on):
        lifetime.sweep(str(tmp_path))
        assert os.listdir(folder) == ["report.json"]
        os.close(file)
    lifetime.sweep(str(tmp_path))
    assert not os.path.exists(folder)


def test_a_run_begins_with_a_sweep(tmp_path, folder, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    os.mkdir(folder)
    with running._folder("train.py", 2) as its:
        assert not os.path.exists(folder)
        assert its.path.parent == tmp_path


def test_a_temporary_folder_that_cannot_be_read_is_not_swept(tmp_path):
    lifetime.sweep(str(tmp_path / "none"))


def test_a_name_that_is_taken_is_told(folder):
    os.mkdir(folder)
    with pytest.raises(FileExistsError):
        lifetime.claim(folder)


def test_a_sweep_between_making_and_holding_does_no_harm(tmp_path, folder, monkeypatch):
    lock, swept = fcntl.flock, []

    def flock(file, how):
        if not swept:
            swept.append(True)
            lifetime.sweep(str(tmp_path))
            assert not os.path.exists(folder)
        lock(file, how)

    monkeypatch.setattr(lifetime.fcntl, "flock", flock)
    held = lifetime.claim(folder)
    lifetime.sweep(str(tmp_path))
    assert swept
    assert os.path.samestat(os.stat(folder), os.fstat(held))
    os.close(held)


def test_a_sweep_leaves_alone_what_is_no_runs(tmp_path, folder, monkeypatch):
    name = os.path.basename(folder)
    (tmp_path / "gpulab-ranks-mine").mkdir()
    (tmp_path / f"{name}-old").mkdir()
    (tmp_path / name).touch()
    target = tmp_path / "target"
    target.mkdir()
    os.symlink(target, lifetime.new(str(tmp_path)))
    before = sorted(tmp_path.iterdir())
    lifetime.sweep(str(tmp_path))
    assert sorted(tmp_path.iterdir()) == before

    others = lifetime.new(str(tmp_path))
    os.mkdir(others)
    monkeypatch.setattr(os, "getuid", lambda: os.stat(others).st_uid + 1)
    lifetime.sweep(str(tmp_path))
    assert os.path.isdir(others)


def test_where_a_file_system_has_no_locks_nothing_is_swept(tmp_path, folder, monkeypatch):
    def none(file, how):
        raise OSError("no locks available")

    monkeypatch.setattr(lifetime.fcntl, "flock", none)
    os.close(lifetime.claim(folder))
    lifetime.sweep(str(tmp_path))
    assert os.path.isdir(folder)


def test_a_file_that_comes_while_the_folder_is_removed_goes_too(folder, monkeypatch):
    os.mkdir(folder)
    remove, late = shutil.rmtree, ["b", "a"]

    def rmtree(path, **how):
        remove(path, **how)
        if late:  # as a rank that has been killed, and has not ended yet
            os.mkdir(folder)
            open(os.path.join(folder, late.pop()), "w").close()

    monkeypatch.setattr(lifetime.shutil, "rmtree", rmtree)
    lifetime.remove(folder)
    assert not late
    assert not os.path.exists(folder)
    lifetime.remove(folder)  # and no error where it is gone


def test_what_a_killed_launcher_has_left_is_removed_when_it_is_free(folder, monkeypatch):
    held, looks = lifetime.claim(folder), []

    def sleep(seconds):
        assert os.path.isdir(folder)
        looks.append(seconds)
        if len(looks) == 3:
            os.close(held)

    monkeypatch.setattr(lifetime.time, "sleep", sleep)
    lifetime.remove_when_free(folder)
    assert len(looks) == 3
    assert not os.path.exists(folder)
    lifetime.remove_when_free(folder)
    assert len(looks) == 3


def test_what_is_never_free_does_not_hold_up_the_notebook(folder, monkeypatch):
    held = lifetime.claim(folder)
    monkeypatch.setattr(lifetime.time, "sleep", lambda seconds: None)
    lifetime.remove_when_free(folder)
    assert not os.path.exists(folder)
    os.close(held)

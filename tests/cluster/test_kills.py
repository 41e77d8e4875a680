"""Killed at every system call of a save, and at a hundred moments of a run: no damaged checkpoint, no more lost than
what came after the last one."""

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .killing import Savers
from .lesson import losses, uninterrupted

KILLS, EVERY, SEED = 100, 2, 14


@pytest.fixture(scope="module")
def savers(tmp_path_factory):
    savers = Savers(tmp_path_factory.mktemp("savers"))
    yield savers
    savers.end()


@pytest.fixture(scope="module")
def three(savers, tmp_path_factory):
    """A folder with the checkpoints of steps 10, 20 and 30: as many as are kept."""
    folder = tmp_path_factory.mktemp("three")
    for step in (10, 20, 30):
        savers.save("course", folder, step)
    return folder


def killed_at_each_call(savers: Savers, before: Path, place: Path, way: str) -> Iterator[Path]:
    """What is left of `before` where step 40's save was killed at its first system call, at its second, …, never."""
    calls = savers.calls(way, shutil.copytree(before, place / "whole"), 40)
    for number, call in enumerate(calls):
        folder = shutil.copytree(before, place / str(number))
        savers.kill_at(call, way, folder, 40)
        yield folder
    yield place / "whole"
    print(f"{way}: killed at each of {len(calls)} calls: {' '.join(name for name, _ in calls)}")


def test_killed_at_every_system_call_the_course_s_save_leaves_the_state_before_or_the_new_one(savers, three, tmp_path):
    found = []
    for folder in killed_at_each_call(savers, three, tmp_path, "course"):
        found.append(savers.ask("load_straight", folder))  # by the newest name, and not by the newest that is whole
        assert savers.ask("load", folder) == found[-1]
        savers.save("course", folder, 50)  # what the kill has left is in nobody's way
        assert savers.ask("load", folder) == "50"
        assert len(os.listdir(folder)) == 3
    new = found.index("40")
    assert 10 < new < len(found) - 1
    assert found == ["30"] * new + ["40"] * (len(found) - new)


def test_killed_at_some_system_call_a_save_in_place_leaves_a_damaged_file(savers, tmp_path):
    before = tmp_path / "before"
    before.mkdir()
    savers.save("in_place", before, 30)
    found = []
    for folder in killed_at_each_call(savers, before, tmp_path, "in_place"):
        found.append(savers.ask("load_straight", folder))
        if found[-1].startswith("damaged"):  # the lesson's loader sees it, and finds nothing else in the folder
            assert savers.ask("load", folder) == "all damaged"
    assert found[0] == "30"
    assert found[-1] == "40"
    assert sum(one.startswith("damaged") for one in found) > 3


def test_killed_at_a_hundred_moments_a_run_loses_one_interval_at_most_and_ends_with_the_same_losses(savers, tmp_path):
    options = ("--device", "cpu", "--every", str(EVERY))
    wanted = uninterrupted(tmp_path / "alone", [sys.executable, "train.py", *options])
    draw, span, kills, runs = random.Random(SEED), None, 0, 0
    while True:
        folder, printed = tmp_path / f"run{runs}", tmp_path / f"run{runs}.log"
        began = time.monotonic()
        process = int(savers.ask("train", printed, "--folder", folder, *options))
        if span is not None and kills < KILLS:
            time.sleep(draw.uniform(0, span))  # where this falls hangs on the machine; what holds there must not
            os.kill(process, signal.SIGKILL)
        code = savers.ask("ended")
        span = span or time.monotonic() - began
        seen = losses(printed.read_text())
        step = int(savers.ask("load", folder)) if folder.exists() else 0
        assert step >= max(seen, default=0) // EVERY * EVERY
        assert seen.items() <= wanted.items()
        if code == "0":  # this run is through: the next one begins at the beginning
            assert seen == wanted
            if kills == KILLS:
                break
            runs += 1
        else:
            assert code == str(-signal.SIGKILL), printed.read_text()
            kills += 1
    print(f"{kills} kills; {runs} runs came to their end between them")

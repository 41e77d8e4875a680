"""The tests draw the same examples in every run; with the profile `explore` new ones, and more of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PLUGIN = "_hypothesis_pytestplugin"
A_TEST = """
import importlib, json, os, random
from pathlib import Path
from hypothesis import given, settings, strategies as st

drawn = []
importlib.import_module(os.environ.get("ALSO", "json"))

@settings(max_examples=30)
@given(st.tuples(*[st.integers(0, 10**9)] * 5))
def test_property(numbers):
    drawn.extend(numbers)

def test_after():
    other = random.random()
    Path("drawn.json").write_text(json.dumps([drawn, other]))
"""


def drawn(folder, *options, **environment):
    """What a test in a folder below the one of conftest.py draws."""
    below = folder / "tests" / "below"
    below.mkdir(parents=True, exist_ok=True)
    (below.parent / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (below / "test_it.py").write_text(A_TEST)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("GPULAB_", "PYTEST_"))}
    environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # others than Hypothesis take seconds to import
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", PLUGIN, *options, "tests"]
    done = subprocess.run(command, cwd=folder, env=environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return (folder / "drawn.json").read_text()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pytest.ini").touch()
    return tmp_path


def test_every_run_draws_the_same_examples_and_random_numbers(folder):
    first = drawn(folder)
    assert first.count(",") >= 150
    assert drawn(folder, PYTHONHASHSEED="7") == first
    assert not (folder / ".hypothesis").exists()


def test_they_hang_on_no_module_that_happens_to_be_imported(folder):
    alone = drawn(folder)
    (folder / "ours.py").write_text("NUMBERS = " + ", ".join(map(str, range(123_456, 123_556))))
    assert drawn(folder, PYTHONPATH=str(folder), ALSO="ours") == alone


def test_exploring_draws_new_ones_and_more_of_them(folder):
    explore = "--hypothesis-profile=explore"
    first = drawn(folder, explore, GPULAB_EXAMPLES="10")
    second = drawn(folder, explore, GPULAB_EXAMPLES="10", GPULAB_CHECK_SEED="5")
    assert first != second
    assert first.count(",") >= 1450
    assert first.partition("]")[2] != second.partition("]")[2]

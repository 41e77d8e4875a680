"""A model far larger than this machine's memory is planned in little of it."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from courselib.patience import HANG_SECONDS
from courselib.ready import python_here


def planned(mode):
    script = Path(__file__).with_name("seven_billion.py")
    env = {**os.environ, "PYTHONPATH": str(script.parents[3])}
    command = [*python_here(), str(script), mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=True, env=env)
    return json.loads(done.stdout)


@pytest.mark.parametrize("mode", ["bfloat16", "autocast", "host"])
def test_seven_billion_weights(mode):
    found = planned(mode)
    weights = 6_738_415_616 * (4 if mode == "autocast" else 2)  # those of Llama 2
    assert found["fits"]
    assert found["weights"] == pytest.approx(weights, rel=1e-3)  # and the two tables of angles
    assert found["gradients"] == weights
    assert found["optimizer_state"] == pytest.approx(2 * weights, rel=1e-5)  # and the steps' numbers
    assert found["process_bytes"] < weights / 8  # how much, and how long, is make bench's to say
    assert found["step_ms"] > 6 * 6.7e9 * 2048 / 989e12 * 1000  # no GPU is faster than its peak


def test_eight_billion_weights_from_a_configuration():
    found = planned("config")
    assert found["weights"] == pytest.approx(2 * 8_030_261_248, rel=1e-6)  # those of Llama 3
    assert found["gradients"] == 2 * 8_030_261_248
    assert found["process_bytes"] < found["weights"] / 8

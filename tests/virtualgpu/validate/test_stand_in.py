"""The recorder on PyTorch's own CUDA code, which runs here on a driver that answers and does nothing."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from virtualgpu.validate import predict

HERE = Path(__file__).resolve().parent
TOOLS = HERE.parent / "torch_cuda"
CAN = sys.platform == "linux" and torch.version.cuda is not None and shutil.which("gcc") is not None

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CAN, reason="needs Linux, gcc and a CUDA build of torch"),
]

RECORD = """
import dataclasses
import sys
from pathlib import Path
from virtualgpu.validate import recorder
effort = dataclasses.replace(
    recorder.QUICK, events=150, other_rules=True, profiled=False,
    operators=("linear", "conv3x3", "sdpa_causal"), models=("mlp", "unet"),
)
kind = "PyTorch's CUDA code on a stand-in driver; no kernel ran"
recorder.record(Path(sys.argv[1]), kind=kind, effort=effort)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Of a process that sees a stand-in for an A100."""
    sys.path.insert(0, str(TOOLS))
    try:
        import stand_in

        library = stand_in.build(tmp_path_factory.mktemp("driver"))
        return stand_in.environment(library, "8.0") | {"OMP_NUM_THREADS": "1"}
    finally:
        sys.path.remove(str(TOOLS))


def run(environment, *arguments):
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments], env=environment, capture_output=True, text=True, check=False
    )


def test_every_section_runs_there_and_its_bytes_are_predicted(environment, tmp_path):
    path = tmp_path / "recording.json"
    done = run(environment, "-c", RECORD, str(path))
    assert done.returncode == 0, done.stderr
    recording = json.loads(path.read_text())
    assert {name: value for name, value in recording.items() if isinstance(value, dict) and "error" in value} == {}
    assert [trace["settings"] for trace in recording["allocator"]["others"]] == [
        "max_split_size_mb:64", "roundup_power2_divisions:4", "expandable_segments:True",
    ]  # fmt: skip
    assert [pair for pair in predict.allocator(recording) if pair.recorded != pair.predicted] == []
    assert [pair for pair in predict.saved(recording) if pair.recorded != pair.predicted] == []
    for step in predict.steps(recording, lambda row: row["mode"] in ("fp32", "amp_bf16")):
        assert abs(step.allocated.error) < 0.03, step.name
        assert abs(step.allocated_without_cudnn.error) < 0.03, step.name


def test_the_command_sees_that_no_kernel_runs_and_measures_nothing(environment, tmp_path):
    done = run(environment, "-m", "gpulab", "validate", str(tmp_path / "x.json"))
    assert done.returncode == 2
    assert "runs no kernels (a sum came out wrong), so nothing can be measured." in done.stdout
    assert os.listdir(tmp_path) == []

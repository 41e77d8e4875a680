"""Every recording that the package holds, against the predictions. Real GPUs come first, and there is none yet."""

from pathlib import Path
from statistics import median

import pytest

from gpulab.validate import predict

ROOT = Path(__file__).resolve().parents[2]
NONE_YET = "No real GPU has been recorded yet."
PATHS = predict.recordings()
# Where no cuDNN runs, recurrent layers keep no reserve.
NOT_IN_THE_STAND_IN = ("lstm",)

each = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def compared(recording, name):
    """Whether a row or an operation of this name can be held against the recording."""
    return predict.is_of_a_gpu(recording) or name.partition("/")[0] not in NOT_IN_THE_STAND_IN


def test_the_readmes_say_that_no_gpu_was_recorded_exactly_as_long_as_that_is_so():
    real = [path.name for path in PATHS if predict.is_of_a_gpu(predict.load(path))]
    for readme in (ROOT / "README.md", predict.FOLDER / "README.md"):
        assert (NONE_YET in " ".join(readme.read_text().split())) == (not real), readme


def test_there_is_something_to_compare_and_the_readme_lists_it():
    assert PATHS
    readme = (predict.FOLDER / "README.md").read_text()
    assert [path.name for path in PATHS if f"`{path.name}`" not in readme] == []


@each
def test_what_is_no_gpu_has_a_name_that_says_so(path):
    assert path.name.startswith("no-gpu-") != predict.is_of_a_gpu(predict.load(path))
    assert path.stat().st_size < 300_000


@each
def test_no_section_failed(path):
    recording = predict.load(path)
    assert {
        name: value["error"] for name, value in recording.items() if isinstance(value, dict) and "error" in value
    } == {}


@each
def test_the_allocator_is_predicted_to_the_byte(path):
    pairs = list(predict.allocator(predict.load(path)))
    assert len(pairs) > 500
    assert [pair for pair in pairs if pair.recorded != pair.predicted][:1] == []


@each
def test_saved_tensors_and_dtypes_are_predicted_to_the_byte(path):
    recording = predict.load(path)
    pairs = [pair for pair in predict.saved(recording) if compared(recording, pair.what)]
    assert len(pairs) > 200
    assert [pair for pair in pairs if pair.recorded != pair.predicted] == []


@each
@pytest.mark.slow
def test_peaks_of_training_steps_are_predicted(path):
    """Peak allocated without cuDNN's workspaces where they were recorded apart, and reserved with all."""
    recording = predict.load(path)
    real = predict.is_of_a_gpu(recording)

    few = ("fp32", "amp_fp16")  # of what is no GPU: tools/accuracy.py compares more of that

    def wanted(row):
        plain = row["optimizer"] == "adamw" and row["mode"] in few
        return compared(recording, row["model"]) and (real or plain)

    steps = list(predict.steps(recording, wanted))
    assert len({step.row["model"] for step in steps}) >= 8
    allocated = {step.name: abs((step.allocated_without_cudnn or step.allocated).error) for step in steps}
    assert median(allocated.values()) <= 0.03
    assert max(allocated.values()) <= 0.08, max(allocated, key=allocated.get)
    assert median(abs(step.reserved.error) for step in steps) <= 0.05

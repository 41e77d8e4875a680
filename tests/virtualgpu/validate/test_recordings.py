"""Every recording that the package holds, against the predictions."""

from pathlib import Path
from statistics import median

import pytest

from virtualgpu.validate import predict

ROOT = Path(__file__).resolve().parents[3]
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
    assert path.stat().st_size < 600_000


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


# Of each model few rows, in small batches; tools/accuracy.py compares all of them, which takes minutes.
PREDICTED = {
    "mlp": ("fp32", "tf32", "amp_fp16", "amp_bf16", "accum4_bf16"), "resnet18": ("amp_fp16", "amp_bf16"),
    "resnet50": ("amp_bf16",), "vit_b_16": ("fp32",), "swin_t": ("fp32",), "gpt2_small": ("fp32", "amp_bf16"),
    "encoder": ("amp_fp16",), "gpt2_small_ckpt": ("amp_bf16",), "lstm": ("fp32", "amp_bf16"),
}  # fmt: skip


def predicted_rows(recording):
    least = {}
    for row in recording["steps"]:
        least.setdefault(row["model"], row["batch"])

    def wanted(row):
        mode = row["mode"] in PREDICTED.get(row["model"], ())
        plain = row["optimizer"] == "adamw" and row["batch"] == least[row["model"]]
        return mode and plain and compared(recording, row["model"])

    return list(predict.steps(recording, wanted, peaks_only=True))


@each
@pytest.mark.slow
def test_peaks_of_training_steps_are_predicted(path):
    """What the program asks for at its peak to the byte; what is allocated for that, and reserved, hangs on the cache's
    past, and on cuDNN's workspaces."""
    recording = predict.load(path)
    steps = predicted_rows(recording)
    assert len({step.row["model"] for step in steps}) >= 7
    asked = [step.requested for step in steps]
    assert [pair.what for pair in asked if pair.recorded != pair.predicted] == []
    allocated = [abs(step.allocated.error) for step in steps]
    assert max(allocated) <= 0.01
    assert median(abs(step.reserved.error) for step in steps) <= 0.01


def test_a_step_whose_gradients_overflowed_is_left_out():
    """Of ResNet-50 in float16 an H100's first gradients are infinite, so AdamW makes no states."""
    recording = predict.load(predict.FOLDER / "NVIDIA-H100-80GB-HBM3.json")
    left_out = [(row["model"], row["batch"]) for row in recording["steps"] if predict.overflowed(row)]
    assert left_out == [
        ("resnet50", 8),
        ("convnext_tiny", 8),
        ("resnet50_ckpt", 64),
        ("resnet50", 64),
        ("resnet50", 256),
    ]

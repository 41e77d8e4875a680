"""A trace is written whatever happens in the block, and says what the GPU did."""

import json

import pytest
import torch

from gpulab import VirtualGPU, timing


def names(path):
    return [event["name"] for event in json.loads(path.read_text())["traceEvents"]]


def test_on_a_virtual_gpu_it_is_the_gpus_own(tmp_path):
    with VirtualGPU("T4"):
        x = torch.ones(64, 64, device="cuda")
        with timing.trace(tmp_path / "step.json") as path:
            (x @ x).relu().sum().item()
    assert path == tmp_path / "step.json"
    found = names(path)
    assert {"mm", "relu", "copy to host, pinned", "virtual cuda:0", "stream 0"} <= {
        *found,
        *(e["args"].get("name") for e in json.loads(path.read_text())["traceEvents"]),
    }
    assert list(tmp_path.iterdir()) == [path]


def test_without_a_gpu_it_is_pytorchs_profile(tmp_path):
    with timing.trace(str(tmp_path / "step.json")) as path:
        torch.ones(8, 8) @ torch.ones(8, 8)
    assert "aten::mm" in names(path)


def test_pytorch_is_told_that_there_is_one_cycle(tmp_path, monkeypatch):
    """Else 2.11 warns, with a path of the machine, that it would forget the events of earlier ones."""
    made = []
    profile = torch.profiler.profile
    monkeypatch.setattr(torch.profiler, "profile", lambda **options: made.append(options) or profile(**options))
    with timing.trace(tmp_path / "step.json"):
        torch.ones(2).relu()
    assert [options["acc_events"] for options in made] == [True]


@pytest.mark.parametrize("virtual", [True, False])
def test_it_is_written_after_an_exception_which_passes_through(tmp_path, virtual):
    def fail():
        with timing.trace(tmp_path / "step.json"):
            torch.ones(2, 2, device="cuda" if virtual else "cpu").relu()
            raise KeyError("mine")

    if virtual:
        with VirtualGPU("T4"), pytest.raises(KeyError, match="mine"):
            fail()
    else:
        with pytest.raises(KeyError, match="mine"):
            fail()
    assert any("relu" in name for name in names(tmp_path / "step.json"))


def test_a_folder_that_is_missing_is_told_before_anything_runs(tmp_path):
    ran = []
    missing = pytest.raises(FileNotFoundError, match=r"path is .*trace\.json.*nowhere")
    with missing, timing.trace(tmp_path / "nowhere" / "trace.json"):
        ran.append(1)
    assert not ran


@pytest.mark.parametrize(
    ("written", "words"),
    [("no trace", "is not a Chrome trace: Expecting value"), ("[]", "it has no traceEvents"), ("{}", "no traceEvents")],
)
def test_what_is_no_trace_is_not_merged(tmp_path, written, words):
    (tmp_path / "one.json").write_text(written)
    with pytest.raises(ValueError, match=words):
        timing.merge_traces([tmp_path / "one.json"], tmp_path / "all.json")
    assert not (tmp_path / "all.json").exists()


def test_traces_to_merge_are_a_list_of_files_that_exist(tmp_path):
    with pytest.raises(ValueError, match="paths must be a list of trace files"):
        timing.merge_traces("step.json", tmp_path / "all.json")
    with pytest.raises(FileNotFoundError):
        timing.merge_traces([tmp_path / "none.json"], tmp_path / "all.json")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        timing.merge_traces([tmp_path / "none.json"], tmp_path / "nowhere" / "all.json")

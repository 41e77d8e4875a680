"""Recordings against predictions: what is equal is found equal, what differs is found, older recordings are read."""

import copy
import dataclasses

import pytest
import torch

from gpulab import VirtualGPU
from virtualgpu.clock import rates
from virtualgpu.gpus.specs import SPECS
from virtualgpu.validate import predict, recorder

LITTLE = recorder.Effort(
    events=80, other_rules=False, operators=("linear", "conv3x3", "sdpa_dropout"), models=("mlp", "unet"), sizes=1,
    times=False,
)  # fmt: skip
DEVICE = {"name": "NVIDIA L4", "capability": [8, 9], "sm": 58, "total": 23_612_293_120, "torch": "2.15.0"}


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    path = tmp_path_factory.mktemp("validate") / "virtual.json"
    with VirtualGPU("L4", compute=False):
        sections = ("device", "allocator", "saved", "steps")
        recorder.record(path, kind="virtual", effort=LITTLE, sections=sections, tell=lambda text: None)
    return predict.load(path)


def test_what_the_virtual_gpu_recorded_it_predicts(recording):
    assert [pair for pair in predict.allocator(recording) if pair.recorded != pair.predicted] == []
    saved = list(predict.saved(recording))
    assert len(saved) == 3 * 5 * len(predict.SAVED)
    assert [pair for pair in saved if pair.recorded != pair.predicted] == []
    steps = list(predict.steps(recording, lambda row: row["mode"] in ("fp32", "accum4_bf16")))
    assert {step.row["model"] for step in steps} == {"mlp", "unet"}
    for step in steps:
        assert step.allocated.error == step.reserved.error == step.allocated_without_cudnn.error == 0, step.name


def test_times_that_the_virtual_gpu_recorded_it_predicts(tmp_path):
    few = dataclasses.replace(LITTLE, times=True, models=("mlp",), cudnn=False)
    with VirtualGPU("L4", compute=False):
        rows = recorder.record(
            tmp_path / "r.json", kind="virtual", effort=few, sections=("device", "steps"), tell=lambda text: None
        )
    steps = list(predict.steps(rows))
    assert len(steps) > 3
    for step in steps:
        assert step.time.recorded > 0
        assert step.time.error == pytest.approx(0, abs=1e-6), step.name
        assert 0 < step.predicted["busy_ms"] <= step.predicted["step_ms"] * 1.001
    assert predict.Trained({"model": "m", "batch": 1, "mode": "fp32", "optimizer": "sgd"}, {}, None).time is None


def test_microbenchmarks_that_the_virtual_gpu_recorded_give_its_rates_back(tmp_path):
    few = dataclasses.replace(
        LITTLE, copies=(1 << 20, 1 << 26, 1 << 28), products=(1024, 8192), launches=100, elements=1 << 20
    )
    with VirtualGPU("A100-80", compute=False) as gpu:
        recording = recorder.record(
            tmp_path / "r.json",
            kind="virtual",
            effort=few,
            sections=("device", "copies", "matmul"),
            tell=lambda text: None,
        )
    found = rates.recorded_rates(SPECS["A100-80"], recording)
    for field in ("pinned_gbps", "pageable_gbps", "memory_gbps"):
        assert getattr(found, field) == pytest.approx(getattr(gpu.rates, field), rel=0.02), field
    for precision in ("fp32", "tf32", "fp16", "bf16"):
        assert found.tflops[precision] == pytest.approx(gpu.rates.tflops[precision], rel=0.04), precision
    assert 0 < found.pin_gbps < 1.01 * gpu.rates.pin_gbps  # this machine's own time may come on top


def test_a_byte_that_differs_is_found(recording):
    other = copy.deepcopy(recording)
    other["allocator"]["trace"][40][-3] += 512
    other["saved"]["linear/fp32"]["saved"] += 1
    (pair,) = (pair for pair in predict.allocator(other) if pair.recorded != pair.predicted)
    assert pair.recorded[0] == pair.predicted[0] + 512
    (pair,) = (pair for pair in predict.saved(other) if pair.recorded != pair.predicted)
    assert pair.what == "linear/fp32 saved"


def test_a_step_that_failed_is_left_out(recording):
    row = recording["steps"][0]
    failed = {key: row[key] for key in ("model", "batch", "mode", "optimizer")} | {"error": "OutOfMemoryError: …"}
    assert list(predict.steps(recording | {"steps": [failed]})) == []


def test_an_error_is_relative_to_what_was_recorded():
    assert predict.Pair("x", 200, 202).error == pytest.approx(0.01)


class TestOlderRecorder:
    """One file outside the package; its counts at the start are in another order, and it knows no settings."""

    def test_its_recording_is_one_of_a_gpu(self):
        assert predict.is_of_a_gpu({"device": DEVICE})
        assert predict.is_of_a_gpu({"kind": recorder.MEASURED})
        assert not predict.is_of_a_gpu({"kind": "PyTorch's CUDA code on a stand-in driver; no kernel ran"})

    def test_its_trace_is_held_to_the_byte(self):
        base = [100, 512, 2 << 20]  # requested, allocated, reserved
        trace = [
            ["alloc", 11 << 20, 0, 512 + (12 << 20), (2 + 12) << 20, 100 + (11 << 20)],
            ["free", 0, 512, (2 + 12) << 20, 100],
            ["empty_cache", None, 512, 2 << 20, 100],
        ]
        pairs = list(predict.allocator({"device": DEVICE, "allocator": {"base": base, "trace": trace}}))
        assert len(pairs) == 3
        assert [pair for pair in pairs if pair.recorded != pair.predicted] == []

    def test_its_operations_and_steps_are_found_by_name(self):
        rows = {
            "relu/fp32": {
                "output": 4194304,
                "output_dtype": "torch.float32",
                "saved": 4194304,
                "saved_not_input": 4194304,
            }
        }
        rows |= {"no_such_operation/fp32": {}, "relu/fp16": {"error": "…"}}
        pairs = list(predict.saved({"device": DEVICE, "saved": rows}))
        assert [(p.what, p.recorded) for p in pairs if p.recorded != p.predicted] == []
        assert len(pairs) == 4
        row = {"model": "mlp", "batch": 64, "mode": "fp32", "optimizer": "adamw", "peak": [420416000, 434110464]}
        other = row | {"model": "of another version"}
        (step,) = predict.steps({"device": DEVICE, "steps": [row, other]})
        assert step.allocated_without_cudnn is None
        assert abs(step.allocated.error) < 0.01

    def test_up_to_torch_2_14_workspaces_were_kept(self):
        assert predict.keeps_workspaces(DEVICE | {"torch": "2.11.0+cu130"})
        assert not predict.keeps_workspaces(DEVICE | {"torch": "2.15.0+cu132"})
        assert predict.keeps_workspaces(DEVICE | {"settings": {"TORCH_CUBLAS_WORKSPACE_CACHE": "1"}})
        with predict.virtual({"device": DEVICE | {"torch": "2.11.0+cu130"}}):
            one = torch.ones(64, 64, device="cuda")
            assert torch.cuda.memory_allocated() == 16384
            del one
            torch.nn.Linear(64, 64, bias=False, device="cuda")(torch.ones(1, 64, device="cuda"))
            assert torch.cuda.memory_allocated() == 8_519_680


class TestWhichGPU:
    def test_a_known_one_has_the_recorded_memory(self):
        spec = predict.spec_of({"name": "Tesla T4", "capability": [7, 5], "sm": 40, "total": 15_642_329_088})
        assert (spec.name, spec.memory_bytes) == ("T4", 15_642_329_088)

    def test_another_of_the_same_generation_has_the_recorded_sms(self):
        device = {"name": "NVIDIA A100 80GB PCIe", "capability": [8, 0], "sm": 108, "total": 84_974_239_744}
        assert predict.spec_of(device).name == "A100-80"
        device = {"name": "NVIDIA GeForce RTX 3090", "capability": [8, 6], "sm": 82, "total": 25_300_000_000}
        spec = predict.spec_of(device)
        assert (spec.capability, spec.sms) == ((8, 6), 82)

    def test_one_that_is_older_than_all_is_refused(self):
        oldest = min(spec.capability for spec in SPECS.values())
        with pytest.raises(ValueError, match=r"capability is \(6, 1\); the virtual GPUs begin with"):
            predict.spec_of({"name": "GTX 1080", "capability": [6, 1], "sm": 20, "total": 8 << 30})
        assert oldest > (6, 1)

    def test_settings_of_the_allocator_are_the_recorded_ones(self):
        device = DEVICE | {"settings": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}}
        with predict.virtual({"device": device}) as gpu:
            assert gpu.settings.max_split_size_mb == 64
        with predict.virtual({"device": device}, "expandable_segments:True") as gpu:
            assert gpu.settings.expandable_segments
            assert gpu.settings.max_split_size_mb is None

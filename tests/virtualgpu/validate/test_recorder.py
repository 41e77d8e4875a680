"""The recorder: it runs on the virtual GPU here, called by its own name, and refuses to call that a measurement."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from courselib.ready import ranks_here

from gpulab import VirtualGPU
from gpulab.__main__ import main
from virtualgpu.validate import host, memory, models, recorder, sections, sustained

LITTLE = recorder.QUICK


def quiet(text):
    pass


def a_python_that_has_torch(patch):
    """For the process of the first calls: no GPU has been asked there."""
    patch.setattr(host, "sys", SimpleNamespace(executable=ranks_here().get("PYTHON_EXEC", sys.executable)))


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    path = tmp_path_factory.mktemp("validate") / "virtual.json"
    with pytest.MonkeyPatch.context() as patch, VirtualGPU("L4", compute=False):
        a_python_that_has_torch(patch)
        made = recorder.record(path, kind="virtual", effort=LITTLE, tell=quiet)
    assert json.loads(path.read_text()) == json.loads(json.dumps(made))
    return made


class TestSections:
    def test_all_of_them_are_written_and_none_fails(self, recording):
        assert list(recording) == ["kind", "by", *recorder.SECTIONS]
        assert recorder.failed(recording) == []
        assert recording["kind"] == "virtual"

    def test_the_device_says_what_a_prediction_depends_on(self, recording):
        device = recording["device"]
        assert (device["name"], device["capability"], device["sm"]) == ("NVIDIA L4", [8, 9], 58)
        assert device["torch"] == torch.__version__
        assert device["mem_get_info"][1] == device["total"]

    def test_the_trace_counts_after_every_event(self, recording):
        trace = recording["allocator"]["trace"]
        assert len(trace) == 60
        for row in trace:
            allocated, reserved, requested = row[-3:]
            assert requested <= allocated <= reserved
        assert {row[0] for row in trace} >= {"alloc", "free"}

    def test_an_operation_has_its_dtypes_and_its_bytes_in_every_mode(self, recording):
        assert len(recording["saved"]) == 3 * 5
        row = recording["saved"]["linear/autocast_bf16"]
        tokens, weight = 8 * 256 * 512, 512 * 2048
        assert row["output_dtype"] == "torch.bfloat16"
        assert row["saved"] == 2 * (tokens + weight)  # the casts
        assert row["output"] == 2 * 8 * 256 * 2048
        assert row["backward"][0] == 4 * (tokens + weight + 2048) - 2 * (tokens + weight)

    def test_a_step_has_peaks_marks_and_what_cudnn_took(self, recording):
        rows = recording["steps"]
        assert {row["mode"] for row in rows} == set(memory.STEP_MODES)
        assert {row["optimizer"] for row in rows} == set(models.optimizers())
        for row in rows:
            assert row["peak"][0] >= row["steady"] >= 3 * row["weights"] * (row["optimizer"] != "sgd_momentum")
            assert row["marks"]["optimizer"] > row["weights"]
            assert row["cudnn_at_peak"] == 0  # there is no convolution
            assert row["step_ms"] > 0

    def test_every_time_is_there_and_positive(self, recording):
        (copy,) = recording["copies"]
        assert copy["bytes"] == 1000
        assert all(value > 0 for value in copy.values())
        assert recording["matmul"]["launch_us"] > 0
        assert recording["matmul"]["matmul"][0]["tf32_ms"] > 0
        assert all(row["both_ms"] > row["forward_ms"] > 0 for row in recording["ops"].values())

    def test_first_calls_are_those_of_a_fresh_process(self, recording):
        found = recording["first_calls"]
        assert found["context_s"] > 0
        names = {name.removesuffix("_first_s") for name in found if name.endswith("_first_s")}
        assert names >= {"add", "matmul_fp32", "matmul_fp16", "convolution", "attention_fp16"}
        assert all(f"{name}_second_s" in found for name in names)

    def test_a_process_for_first_calls_that_fails_says_why(self, monkeypatch):
        a_python_that_has_torch(monkeypatch)
        with pytest.raises(RuntimeError, match="ValueError: name is 'P4000'"):
            host.first_calls("P4000")

    def test_the_host_has_a_name_and_a_cost_for_each_kind_of_call(self, recording):
        found = recording["host"]
        assert found["processor"]
        assert {"add_us", "linear_grad_us", "cast_fp16_us", "event_record_us", "item_us"} <= set(found)
        assert {f"AdamW_{kind}_100_us" for kind in ("plain", "foreach", "fused")} <= set(found)
        assert all(value >= 0 for name, value in found.items() if name.endswith("_us"))

    def test_new_shapes_are_called_twice_without_and_with_benchmark(self, recording):
        rows = recording["new_shapes"]
        assert [(row["benchmark"], row["dtype"], row["pixels"]) for row in rows] == [
            (benchmark, dtype, [60 if benchmark else 56, 56])
            for benchmark in (False, True)
            for dtype in ("torch.float32", "torch.float16")
        ]
        assert all(len(row[way]) == 2 and min(row[way]) > 0 for row in rows for way in ("forward_ms", "backward_ms"))
        assert not torch.backends.cudnn.benchmark

    def test_products_have_their_shape_and_their_precision(self, recording):
        assert [(row["mnk"], row["precision"]) for row in recording["products"]] == [
            ([16, 16, 17], name) for name in ("fp32", "tf32", "fp16", "bf16")
        ]

    def test_what_is_touched_in_turn_is_said(self, recording):
        half, *rest = recording["touched"]
        assert half["bytes_between"] == 2 * half["bytes_each"] * half["pairs"] == 1 << 19
        assert [(row["bytes_each"], row["pairs"]) for row in rest] == [(1 << 19, 1), (1 << 18, 2)]

    def test_layers_are_timed_in_training_and_in_inference(self, recording):
        rows = recording["layers"]
        assert {
            (row["name"], row["mode"], row["train"]) for row in rows if not row["name"].startswith("attention")
        } == {
            (name, mode, train)
            for name in ("depthwise3x3", "batch_norm_channels_last")
            for mode in ("fp32", "amp_fp16", "amp_bf16")
            for train in (True, False)
        }
        assert all(row["both_ms"] > row["forward_ms"] > 0 for row in rows if row["train"])

    def test_small_steps_are_timed_by_both_clocks(self, recording):
        assert [row["mode"] for row in recording["small_steps"]] == ["fp32", "amp_fp16", "amp_bf16"]
        for row in recording["small_steps"]:
            assert min(row[f"{what}_ms"] for what in ("train", "train_host", "infer", "infer_host")) > 0

    def test_what_is_kept_up_is_a_rate_for_each_load(self, recording):
        products, images = recording["sustained"].values()
        assert (products["unit"], images["unit"]) == ("TFLOP/s", "images/s")
        assert all(rate > 0 for _, rate in products["rates"] + images["rates"])
        assert products["read_by"].startswith("no readings") or products["fields"][1] == "power_w"

    def test_a_driver_that_does_not_tell_leaves_a_gap(self, monkeypatch):
        answer = subprocess.CompletedProcess([], 0, stdout="69.53, 1590, [N/A], 61\n")
        monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: answer)
        assert sustained._by_smi() == (69.53, 1590.0, None, 61.0)
        answer.stdout = ""
        assert sustained._by_smi() == (None, None, None, None)

    def test_the_readings_are_those_of_the_gpu_that_works(self, monkeypatch):
        class Driver:
            NVMLError = RuntimeError
            NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
            nvmlDeviceGetCount = staticmethod(lambda: 2)
            nvmlDeviceGetHandleByIndex = staticmethod(lambda index: index)
            nvmlDeviceGetUUID = staticmethod(lambda index: ["GPU-aa", "GPU-bb"][index])
            nvmlDeviceGetPowerUsage = staticmethod(lambda handle: 71_500)
            nvmlDeviceGetClockInfo = staticmethod(lambda handle, which: 1500 + which)

            @staticmethod
            def nvmlDeviceGetTemperature(handle, which):
                raise RuntimeError("Not Supported")

        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="bb"))
        assert sustained._handle(Driver) == 1
        assert sustained._by_nvml(Driver, 1) == (71.5, 1501, 1502, None)


class TestTrouble:
    def test_a_section_that_fails_says_so_and_costs_no_other(self, tmp_path, monkeypatch):
        def broken(run):
            run.keep([{"bytes": 1}])
            raise RuntimeError("CUDA error: the second line tells more\nof it")

        monkeypatch.setitem(recorder.SECTIONS, "copies", broken)
        with VirtualGPU("T4", compute=False):
            few = ("device", "copies", "saved", "steps")
            made = recorder.record(tmp_path / "x.json", kind="virtual", effort=LITTLE, sections=few, tell=quiet)
        assert recorder.failed(made) == ["copies"]
        assert made["copies"] == {
            "rows": [{"bytes": 1}], "error": "RuntimeError: CUDA error: the second line tells more",
        }  # fmt: skip
        assert made["steps"]
        assert not any("bf16" in name for name in made["saved"])  # a T4 has none

    def test_when_the_time_is_up_the_rest_is_left_out_by_name(self, tmp_path):
        with VirtualGPU("T4", compute=False):
            made = recorder.record(tmp_path / "x.json", kind="virtual", effort=LITTLE, minutes=1e-9, tell=quiet)
        assert made["device"]["name"] == "Tesla T4"
        assert made["steps"] == {"left_out": "the 1e-09 minutes were over"}

    def test_a_row_that_runs_out_of_memory_keeps_its_error(self, tmp_path):
        huge = models.Model("huge", lambda: torch.nn.Linear(1 << 16, 1 << 17, device="meta"), None, (1,))
        with VirtualGPU("T4", compute=False), pytest.MonkeyPatch.context() as patch:
            patch.setattr(sections, "models", lambda: [huge])
            effort = recorder.Effort(times=False)
            made = recorder.record(tmp_path / "x.json", kind="virtual", effort=effort, sections=("steps",), tell=quiet)
        assert all(row["error"].startswith(("OutOfMemoryError", "NotImplementedError")) for row in made["steps"])

    def test_a_write_that_is_cut_short_leaves_the_file_before_it(self, tmp_path, monkeypatch):
        path = tmp_path / "x.json"
        recorder._write(path, {"kind": "first"})
        monkeypatch.setattr(os, "replace", lambda *names: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            recorder._write(path, {"kind": "second"})
        assert json.loads(path.read_text()) == {"kind": "first"}

    @pytest.mark.parametrize("minutes", [0, -1, float("nan")])
    def test_minutes_must_be_some(self, minutes, tmp_path):
        with pytest.raises(ValueError, match=r"minutes is .*; it must be above 0"):
            recorder.record(tmp_path / "x.json", kind="virtual", minutes=minutes)


class TestRefusals:
    def test_a_virtual_gpu_is_not_measured(self, tmp_path):
        with VirtualGPU("T4"), pytest.raises(recorder.NoRealGPU, match="is in force"):
            recorder.record(tmp_path / "x.json")
        assert list(tmp_path.iterdir()) == []

    def test_without_a_gpu_the_command_says_so_in_one_sentence_and_exits_with_two(self, monkeypatch, capsys, tmp_path):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert main(["validate", str(tmp_path / "x.json")]) == 2
        assert capsys.readouterr().out == "PyTorch finds no CUDA GPU here, and `validate` measures a real one.\n"
        assert list(tmp_path.iterdir()) == []

    def test_the_command_names_the_sections_there_are(self, capsys):
        assert main(["validate", "--section", "steps", "stops"]) == 2
        assert "section is 'stops'; there are device, first_calls, host, " in capsys.readouterr().out

    def test_the_device_is_always_recorded_and_nothing_twice(self):
        assert recorder.chosen(["steps", "saved", "steps"]) == ("device", "steps", "saved")
        assert recorder.chosen(None) == tuple(recorder.SECTIONS)

    def test_no_torch_is_loaded_before_validate_is_asked_for(self):
        code = "import sys, gpulab.__main__; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestModels:
    def test_recomputed_blocks_need_less_memory_and_give_the_same_gradients(self):
        from torchvision.models import resnet18

        def gradients(make):
            torch.manual_seed(0)
            model = make().train()
            kept = 0

            def pack(tensor):
                nonlocal kept
                kept += tensor.nbytes
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                out = model(torch.ones(2, 3, 64, 64))
            out.sum().backward()
            return kept, [p.grad for p in model.parameters()]

        plain, recomputed = gradients(resnet18), gradients(models.recomputed(resnet18))
        assert recomputed[0] < plain[0] / 2
        for one, other in zip(plain[1], recomputed[1], strict=True):
            torch.testing.assert_close(one, other)

    def test_there_are_ten_models_beside_those_with_recomputed_blocks(self):
        names = [model.name for model in models.models()]
        assert len(names) == len(set(names))
        assert len([name for name in names if not name.endswith("_ckpt")]) >= 10
        assert len([name for name in names if name.endswith("_ckpt")]) == 3


def test_what_cudnn_takes_at_the_peak_is_told_apart_also_after_steps_that_took_as_much():
    """The steps before it had the same peak, with their workspaces in it."""
    lstm = models.by_name()["lstm"]
    with VirtualGPU("H100", compute=False):
        row = memory.step_peaks(memory.Step(lstm, 64, "fp32"))
    assert 0.2 * row["peak"][0] < row["cudnn_at_peak"] < 0.4 * row["peak"][0]

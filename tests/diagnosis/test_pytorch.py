"""PyTorch as it is installed: reading it in this process and in one of its own, and judging it."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch as real_torch

from gpulab.machine.diagnosis import pytorch, subprocess_probe
from gpulab.machine.diagnosis.finding import Finding
from gpulab.machine.diagnosis.pytorch import Device, Torch, has_code, judge_apple, judge_devices, judge_install

GIB = 2**30
BUILT = Torch(
    "2.15.0+cu132", cuda="13.2", arch_list=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    builds=(("12.6", (50, 60, 70, 75, 80, 86, 90)), ("13.2", (75, 80, 86, 90, 100, 120))),
)  # fmt: skip


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


def on(device: Device) -> Finding:
    return only(judge_devices(dataclasses.replace(BUILT, devices=(device,))))


def without_what_is_free(reading: Torch) -> Torch:
    """Of a GPU that is here, other processes take memory meanwhile."""
    return dataclasses.replace(reading, devices=tuple(dataclasses.replace(d, free=None) for d in reading.devices))


# Reading


def test_reading_here_and_in_a_process_of_its_own_agree() -> None:
    here = pytorch.read_torch()
    assert here.version == real_torch.__version__
    assert here.broken is None
    assert without_what_is_free(subprocess_probe.probe_torch()) == without_what_is_free(here)


def test_a_reading_survives_the_crossing() -> None:
    reading = dataclasses.replace(BUILT, devices=(Device(1, "T4", (7, 5), 15 * GIB, None, "broken"),))
    assert subprocess_probe.from_json(json.dumps(dataclasses.asdict(reading))) == reading


def test_a_python_without_torch_reads_as_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert pytorch.read_torch() == Torch()


def test_a_torch_that_does_not_import_is_read_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')")
    monkeypatch.chdir(tmp_path)  # a student's torch.py in the notebook's folder does this
    assert subprocess_probe.probe_torch() == Torch(broken="OSError: libcudart.so.13: cannot open shared object file")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals to die of")
def test_a_torch_that_kills_its_process_is_read_with_the_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    monkeypatch.chdir(tmp_path)
    broken = subprocess_probe.probe_torch().broken
    assert broken is not None
    assert signal.Signals.SIGILL.name in broken


def test_a_torch_that_never_comes_back_is_read_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(*arguments: object, **options: object) -> None:
        raise subprocess.TimeoutExpired("python", 180)

    monkeypatch.setattr(subprocess, "run", wait)
    assert "takes more than 180 s" in (subprocess_probe.probe_torch().broken or "")


def test_a_cuda_that_does_not_start_is_read_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(index: int) -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old\nmore")

    monkeypatch.setattr(real_torch.version, "cuda", "13.2")
    monkeypatch.setattr(real_torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(real_torch.cuda, "get_device_properties", refuse)
    reading = pytorch.read_torch()
    assert reading.trouble == "The NVIDIA driver on your system is too old"
    assert reading.devices == ()


def test_each_cuda_device_is_read_and_tried_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def free(index: int) -> tuple[int, int]:
        if index == 1:
            raise real_torch.OutOfMemoryError("CUDA error: out of memory")
        return 10 * GIB, 15 * GIB

    monkeypatch.setattr(real_torch.version, "cuda", "13.2")
    monkeypatch.setattr(real_torch.cuda, "device_count", lambda: 2)
    properties = SimpleNamespace(name="Tesla T4", major=7, minor=5, total_memory=15 * GIB)
    monkeypatch.setattr(real_torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(real_torch.cuda, "mem_get_info", free)
    monkeypatch.setattr(real_torch.cuda, "get_arch_list", lambda: ["sm_75"])
    monkeypatch.setattr(pytorch, "kernel_trouble", lambda device: "out of memory" if device.index else None)
    reading = pytorch.read_torch()
    assert reading.arch_list == ("sm_75",)
    assert reading.devices == (
        Device(0, "Tesla T4", (7, 5), 15 * GIB, 10 * GIB, None),
        Device(1, "Tesla T4", (7, 5), 15 * GIB, None, "out of memory"),
    )


# Code for a GPU


@pytest.mark.parametrize(
    ("capability", "arch_list", "expected"),
    [
        ((7, 5), ("sm_75",), True),
        ((8, 9), ("sm_80", "sm_86"), True),  # binary code runs on later minor versions
        ((8, 0), ("sm_86",), False),
        ((9, 0), ("sm_80", "sm_86"), False),  # and not on another major version
        ((9, 0), ("sm_80", "compute_80"), True),  # PTX is compiled for what is newer
        ((7, 0), ("compute_80",), False),
        ((10, 0), ("sm_100",), True),
        ((10, 3), ("sm_100",), True),
        ((10, 3), ("sm_100a",), False),
        ((10, 3), ("sm_100f",), True),
        ((12, 0), ("sm_100f", "compute_90a"), False),
        ((9, 0), (), False),
        ((9, 0), ("gfx90a",), False),
    ],
)
def test_which_gpus_a_build_has_code_for(
    capability: tuple[int, int], arch_list: tuple[str, ...], expected: bool
) -> None:
    assert has_code(capability, arch_list) is expected


# Judging the install


def test_a_missing_torch_is_a_problem_with_what_to_install() -> None:
    finding = judge_install(Torch())
    assert finding.status == "problem"
    assert "make lab" in finding.do


def test_a_torch_that_does_not_import_is_a_problem_with_its_text() -> None:
    finding = judge_install(Torch(broken="OSError: libcudart.so.13"))
    assert finding.status == "problem"
    assert "OSError: libcudart.so.13" in finding.what


@pytest.mark.parametrize(
    ("version", "status"),
    [("2.10.1+cpu", "problem"), ("1.13.0", "problem"), ("2.11.0", "ok"), ("2.15.0+cu132", "ok"), ("3.0.0a0", "ok")],
)
def test_the_version_must_be_2_11_or_newer(version: str, status: str) -> None:
    assert judge_install(Torch(version)).status == status


@pytest.mark.parametrize(
    ("torch", "build"),
    [
        (Torch("2.15.0", cuda="13.2"), "built for CUDA 13.2"),
        (Torch("2.15.0", hip="7.1"), "built for ROCm 7.1"),
        (Torch("2.15.0"), "a CPU-only build"),
    ],
)
def test_the_build_is_named(torch: Torch, build: str) -> None:
    assert judge_install(torch).what == f"2.15.0, {build}"


# Judging devices


def test_a_working_device_is_described() -> None:
    finding = on(Device(0, "NVIDIA H200", (9, 0), 141 * GIB, 100 * GIB))
    assert (finding.name, finding.status) == ("cuda:0", "ok")
    for said in ("NVIDIA H200", "141.0 GiB", "100.0 GiB free", "capability 9.0", "has code for it and runs"):
        assert said in finding.what


def test_a_gpu_this_build_has_no_code_for_is_answered_with_the_build_that_has() -> None:
    finding = on(Device(0, "Tesla V100", (7, 0), 16 * GIB, 15 * GIB, "CUDA error: no kernel image is available"))
    assert finding.status == "problem"
    assert "lists no code for it and cannot run on it" in finding.what
    assert "torch for CUDA 12.6" in finding.do
    assert "gpulab.setup('T4')" in finding.do


def test_a_gpu_that_no_published_build_has_code_for_is_told_so() -> None:
    finding = on(Device(0, "Tesla K80", (3, 7), 11 * GIB, 11 * GIB, "no kernel image"))
    assert "Install a build of torch that has" in finding.do


def test_a_full_gpu_is_a_problem_with_how_to_make_room() -> None:
    taken = on(Device(0, "Tesla T4", (7, 5), 15 * GIB, None, "CUDA out of memory. Tried to allocate 2.00 MiB."))
    nearly = on(Device(0, "Tesla T4", (7, 5), 15 * GIB, GIB // 2))
    for finding in (taken, nearly):
        assert finding.status == "problem"
        assert "shut down other notebooks' kernels" in finding.do


def test_a_gpu_that_fails_for_another_reason_says_it() -> None:
    finding = on(Device(2, "Tesla T4", (7, 5), 15 * GIB, 14 * GIB, "CUDA error: uncorrectable ECC error encountered"))
    assert (finding.name, finding.status) == ("cuda:2", "problem")
    assert "uncorrectable ECC error" in finding.what


# Apple


def test_apples_gpu_is_told_where_torch_is_built_for_it() -> None:
    assert judge_apple(Torch("2.15.0", mps_built=True, mps_available=True)).status == "ok"
    assert judge_apple(Torch("2.15.0", mps_built=True)).status == "note"
    assert judge_apple(Torch("2.15.0")) is None

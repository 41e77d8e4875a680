"""The NVIDIA driver: readings that fail one by one, and what is judged from them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpulab.machine.diagnosis.driver import Driver, Gpu, Process, judge_driver, judge_gpus, judge_none, read_driver
from gpulab.machine.diagnosis.finding import Finding
from gpulab.machine.diagnosis.pytorch import Device, Torch

GIB = 2**30
H200 = Gpu(0, "NVIDIA H200", 141 * GIB, 140 * GIB, (9, 0))
ON_H200 = Device(0, "NVIDIA H200", (9, 0), 141 * GIB, 140 * GIB)
BUILDS = (("12.6", (70, 80, 90)), ("13.0", (80, 90)), ("13.2", (80, 90)))
NO_BUS = Path("/nonexistent")


class FakeNvml:
    """Two GPUs. `fails` maps "function" or "function index" to the NVML error code it gives."""

    def __init__(self, **fails: int) -> None:
        self.fails = fails
        self.processes = [
            SimpleNamespace(pid=os.getpid(), usedGpuMemory=5),
            SimpleNamespace(pid=4321, usedGpuMemory=3 * GIB),
            SimpleNamespace(pid=4322, usedGpuMemory=None),
        ]
        self.shut = False

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Callable[..., Any]] = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: setattr(self, "shut", True),
            "nvmlSystemGetDriverVersion": lambda: "580.65.06",
            "nvmlSystemGetCudaDriverVersion_v2": lambda: 13000,
            "nvmlSystemGetProcessName": lambda pid: f"/usr/bin/program{pid}",
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetName": lambda handle: b"NVIDIA H200" if handle else "NVIDIA H200",
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=141 * GIB, free=100 * GIB),
            "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: [] if handle else self.processes,
            "nvmlDeviceGetMigMode": lambda handle: [0, 0],
        }

        def call(*arguments: Any) -> Any:
            for key in (name, f"{name}_{arguments[0]}" if arguments else name):
                if key in self.fails:
                    raise pynvml.NVMLError(self.fails[key])
            return answers[name](*arguments)

        return call


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


# Reading


def test_a_healthy_driver_is_read_whole() -> None:
    nvml = FakeNvml()
    reading = read_driver(nvml, NO_BUS)
    assert (reading.error, reading.version, reading.cuda) == (None, "580.65.06", (13, 0))
    first, second = reading.gpus
    assert first.others == (Process(4321, "program4321", 3 * GIB), Process(4322, "program4322", None))
    assert second == Gpu(1, "NVIDIA H200", 141 * GIB, 100 * GIB, (9, 0))
    assert nvml.shut


def test_one_gpu_that_does_not_support_a_reading_leaves_the_other_whole() -> None:
    code = pynvml.NVML_ERROR_NOT_SUPPORTED
    reading = read_driver(FakeNvml(nvmlDeviceGetMemoryInfo_1=code, nvmlDeviceGetComputeRunningProcesses_1=code), NO_BUS)
    first, second = reading.gpus
    assert first.unread == ()
    assert second.name == "NVIDIA H200"
    assert (second.total, second.free, second.others) == (None, None, ())
    assert second.unread == ("memory: Not Supported", "programs: Not Supported")


@pytest.mark.parametrize(
    "function",
    [
        "nvmlShutdown", "nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetProcessName",
        "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMigMode",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND]
)
def test_any_reading_may_fail_without_an_exception(function: str, code: int) -> None:
    reading = read_driver(FakeNvml(**{function: code}), NO_BUS)
    assert reading.error is None
    for torch in (Torch(), Torch("2.15.0", cuda="13.2"), Torch("2.15.0+cpu")):
        assert judge_driver(reading, torch).what
    assert len(judge_gpus(reading)) == len(reading.gpus)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "NVMLError_LibraryNotFound"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "NVMLError_DriverNotLoaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "NVMLError_LibRmVersionMismatch"),
        (pynvml.NVML_ERROR_UNKNOWN, "NVMLError_Unknown"),
    ],
)
def test_an_nvml_that_does_not_start_is_a_reading_with_its_error(code: int, name: str) -> None:
    reading = read_driver(FakeNvml(nvmlInit=code), NO_BUS)
    assert reading.error is not None
    assert reading.error.startswith(f"{name}: ")
    assert reading.gpus == ()


def test_a_missing_pynvml_is_a_reading_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert (read_driver(system=NO_BUS).error or "").startswith("ModuleNotFoundError: ")


def test_nvidia_display_controllers_on_the_bus_are_counted(tmp_path: Path) -> None:
    for number, (vendor, kind) in enumerate(
        [("0x10de", "0x030000"), ("0x10de", "0x030200"), ("0x10de", "0x040300"), ("0x8086", "0x030000")]
    ):
        device = tmp_path / "bus/pci/devices" / f"0000:0{number}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text(vendor + "\n")
        (device / "class").write_text(kind + "\n")
    assert read_driver(FakeNvml(nvmlInit=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND), tmp_path).on_bus == 2


# Judging the driver against torch


def test_a_driver_older_than_the_build_is_answered_with_the_driver_and_the_build_to_take() -> None:
    driver = Driver(version="550.54.14", cuda=(12, 4), gpus=(H200,))
    torch = Torch("2.15.0+cu132", cuda="13.2", trouble="The NVIDIA driver on your system is too old", builds=BUILDS)
    finding = judge_driver(driver, torch)
    assert finding.status == "problem"
    assert "550.54.14" in finding.what
    assert "CUDA 12.4" in finding.what
    assert "CUDA 13.2" in finding.what
    assert "580 or newer" in finding.do
    assert "torch for CUDA 12.6" in finding.do


def test_a_driver_for_an_older_cuda_12_asks_for_525() -> None:
    driver = Driver(version="470.1", cuda=(11, 4), gpus=(H200,))
    assert "525 or newer" in judge_driver(driver, Torch("2.11.0", cuda="12.6", trouble="too old")).do


def test_a_driver_that_runs_the_build_is_fine_whatever_the_numbers_say() -> None:
    for cuda in ((12, 4), (13, 0), (14, 0), None):  # the first: NVIDIA's forward compatibility package
        driver = Driver(version="580.65", cuda=cuda, gpus=(H200,))
        finding = judge_driver(driver, Torch("2.15.0", cuda="13.2", devices=(ON_H200,)))
        assert finding.status == "ok"
        assert "this torch (CUDA 13.2) runs on it" in finding.what


def test_an_older_minor_version_of_the_same_major_is_fine() -> None:
    driver = Driver(version="580.65", cuda=(13, 0), gpus=(H200,))
    assert judge_driver(driver, Torch("2.15.0", cuda="13.2")).status == "ok"


def test_a_cpu_only_build_beside_an_nvidia_gpu_is_a_problem_with_the_build_to_install() -> None:
    driver = Driver(version="535.1", cuda=(12, 2), gpus=(H200,))
    finding = judge_driver(driver, Torch("2.15.0+cpu", builds=BUILDS))
    assert finding.status == "problem"
    assert "torch 2.15.0+cpu has no CUDA" in finding.what
    assert "build of torch for CUDA 12.6" in finding.do


def test_a_gpu_on_the_bus_without_a_driver_is_a_problem() -> None:
    finding = judge_driver(Driver(error="NVMLError_LibraryNotFound: …", on_bus=1), Torch("2.15.0", cuda="13.2"))
    assert finding.status == "problem"
    assert "Install NVIDIA's driver" in finding.do


def test_a_driver_updated_under_a_running_system_asks_for_a_restart() -> None:
    error = "NVMLError_LibRmVersionMismatch: Driver/library version mismatch"
    finding = judge_driver(Driver(error=error), Torch("2.15.0", cuda="13.2"))
    assert (finding.status, finding.do) == ("problem", "Restart the machine.")


def test_a_library_without_its_driver_is_a_note() -> None:
    assert judge_driver(Driver(error="NVMLError_DriverNotLoaded: …"), Torch("2.15.0")).status == "note"


def test_a_gpu_that_torch_uses_while_nvml_is_closed_is_a_note() -> None:
    finding = judge_driver(Driver(error="NVMLError_Unknown: …"), Torch("2.15.0", cuda="13.2", devices=(ON_H200,)))
    assert finding.status == "note"
    assert "torch finds its GPU" in finding.what


def test_a_gpu_hidden_by_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    torch = Torch("2.15.0", cuda="13.2", trouble="No CUDA GPUs are available")
    finding = judge_driver(Driver(version="580", cuda=(13, 0), gpus=(H200,)), torch)
    assert finding.status == "problem"
    assert "CUDA_VISIBLE_DEVICES is ''" in finding.do


def test_a_gpu_divided_by_mig_without_a_slice_in_sight_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    mig = Gpu(0, "NVIDIA A100", capability=(8, 0), mig=True, unread=("memory: Insufficient Permissions",))
    torch = Torch("2.15.0", cuda="13.2", trouble="No CUDA GPUs are available")
    driver = Driver(version="580", cuda=(13, 0), gpus=(mig,))
    assert "nvidia-smi -L" in judge_driver(driver, torch).do
    line = only(judge_gpus(driver))
    assert "MIG is on" in line.what
    assert "not readable: memory: Insufficient Permissions" in line.what


def test_a_driver_that_torch_cannot_start_for_no_known_reason_asks_for_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    torch = Torch("2.15.0", cuda="13.2", trouble="CUDA unknown error")
    finding = judge_driver(Driver(version="580", cuda=(13, 0), gpus=(H200,)), torch)
    assert finding.status == "problem"
    assert "CUDA unknown error" in finding.what
    assert "Restart the machine" in finding.do


def test_no_driver_and_no_gpu_is_fine() -> None:
    driver = Driver(error="NVMLError_LibraryNotFound: NVML Shared Library Not Found")
    assert judge_driver(driver, Torch("2.15.0", cuda="13.2", trouble="Found no NVIDIA driver")).status == "ok"
    assert judge_none(driver, Torch("2.15.0")).status == "ok"


@pytest.mark.parametrize(
    ("driver", "torch"),
    [
        (Driver(gpus=(H200,)), Torch()),
        (Driver(error="…", on_bus=1), Torch()),
        (Driver(error="…"), Torch(devices=(ON_H200,))),
        (Driver(error="…"), Torch(mps_available=True)),
    ],
)
def test_a_machine_with_any_gpu_has_no_line_that_there_is_none(driver: Driver, torch: Torch) -> None:
    assert judge_none(driver, torch) is None


# Judging the GPUs


def test_programs_on_a_gpu_are_named_with_their_memory() -> None:
    gpu = Gpu(0, "NVIDIA L4", 24 * GIB, 4 * GIB, (8, 9), others=(Process(12, "ollama", 19 * GIB), Process(13)))
    finding = only(judge_gpus(Driver(gpus=(gpu,))))
    assert finding.status == "note"
    assert "4.0 GiB of 24.0 GiB free" in finding.what
    assert "ollama (pid 12): 19.0 GiB, a program (pid 13): memory not told" in finding.what
    assert "CUDA_VISIBLE_DEVICES" in finding.do

"""Readings of real GPUs: whole, with fields that are not told, several, cut into slices, lost, and none at all."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import pynvml
import pytest

from gpulab.monitor import Readings, driver, read
from gpulab.monitor.reader import Reader

MIB = 2**20
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED

# what asks for what; the memory and the temperature have an older call to fall back to
ASKED = {
    "nvmlDeviceGetName": ("name",),
    "nvmlDeviceGetUUID": ("uuid",),
    "nvmlDeviceGetMemoryInfo": ("used_bytes", "total_bytes"),
    "nvmlDeviceGetUtilizationRates": ("utilization", "memory_utilization"),
    "nvmlDeviceGetTemperature": ("temperature_c",),
    "nvmlDeviceGetPowerUsage": ("power_w",),
    "nvmlDeviceGetEnforcedPowerLimit": ("power_limit_w",),
    "nvmlDeviceGetClockInfo": ("sm_clock_mhz",),
    "nvmlDeviceGetTotalEnergyConsumption": ("energy_j",),
}
NUMBERS = tuple(field for fields in ASKED.values() for field in fields)


def readings(nvml: Any) -> Readings:
    with Reader(nvml) as reader:
        return reader.read()[2]


def test_a_healthy_gpu_is_read_whole_in_the_units_it_promises(fake_nvml: Any) -> None:
    (gpu,) = readings(fake_nvml({"name": b"Tesla T4"}))
    assert (gpu.index, gpu.name, gpu.numbers, gpu.unread) == (0, "Tesla T4", "measured", ())
    assert (gpu.used_bytes, gpu.total_bytes) == (1000 * MIB, 15360 * MIB), "without what the driver keeps for itself"
    assert (gpu.utilization, gpu.memory_utilization, gpu.temperature_c) == (87, 41, 61)
    assert (gpu.power_w, gpu.power_limit_w, gpu.sm_clock_mhz, gpu.energy_j) == (65.4, 70, 1590, 5000)


@pytest.mark.parametrize("function", ASKED)
@pytest.mark.parametrize("error", [NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION, AttributeError("an old pynvml")])
def test_a_field_that_is_not_told_is_none_with_its_reason_and_costs_nothing_else(
    fake_nvml: Any, function: str, error: Any
) -> None:
    fails = {f"{function} 1": error, f"{function}V 1": error}
    one, two = readings(fake_nvml({}, {}, fails=fails))
    assert one.unread == ()
    assert {field for field in NUMBERS if getattr(two, field) is None} == set(ASKED[function])
    assert len(two.unread) == 1


def test_a_gpu_that_tells_nothing_is_listed(fake_nvml: Any) -> None:
    nvml = fake_nvml({}, fails=dict.fromkeys([*ASKED, "nvmlDeviceGetTemperatureV"], NOT_SUPPORTED))
    (gpu,) = readings(nvml)
    assert all(getattr(gpu, field) is None for field in NUMBERS)
    assert len(gpu.unread) == len(ASKED)
    assert "memory: this GPU or its driver does not report it (Not Supported)" in gpu.unread
    assert "GPU 0" in repr(readings(nvml))


def test_an_older_driver_is_asked_in_its_older_ways(fake_nvml: Any) -> None:
    class Older(type(fake_nvml({}))):  # type: ignore[misc]
        def _nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any:
            if version:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            return super()._nvmlDeviceGetMemoryInfo(handle)

    older = Older({}, fails={"nvmlDeviceGetTemperatureV": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})
    (gpu,) = readings(older)
    assert (gpu.used_bytes, gpu.temperature_c, gpu.unread) == (1300 * MIB, 61, ())


def test_a_gpu_that_is_cut_into_slices_lists_their_memory_and_asks_for_no_utilization(fake_nvml: Any) -> None:
    slices = (
        {"name": "A100 MIG 3g.20gb", "uuid": "MIG-a", "used": 5 * MIB, "total": 20000 * MIB},
        None,
        {"name": "A100 MIG 1g.5gb", "uuid": "MIG-b", "used": 7 * MIB, "total": 5000 * MIB},
    )
    nvml = fake_nvml({"mig": 1, "slices": slices}, {"mig": 0}, fails={"nvmlDeviceGetUtilizationRates 0": NOT_SUPPORTED})
    one, two = readings(nvml)
    assert one.mig
    assert [(part.index, part.uuid, part.used_bytes, part.total_bytes) for part in one.slices] == [
        (0, "MIG-a", 5 * MIB, 20000 * MIB),
        (2, "MIG-b", 7 * MIB, 5000 * MIB),
    ]
    assert one.utilization is None
    assert one.unread == ("utilization: not available for a GPU split into MIG slices",)
    assert (two.mig, two.slices, two.utilization) == (False, (), 87)
    assert "slice 2" in repr(readings(nvml))
    nvml.fails["nvmlDeviceGetMaxMigDeviceCount"] = NOT_SUPPORTED
    assert readings(nvml)[0].slices == ()


def test_a_gpu_that_is_lost_between_two_readings_leaves_the_other(fake_nvml: Any) -> None:
    nvml = fake_nvml({}, {})
    with Reader(nvml) as reader:
        assert [gpu.unread for gpu in reader.read()[2]] == [(), ()]
        nvml.fails["nvmlDeviceGetHandleByIndex 0"] = pynvml.NVML_ERROR_GPU_IS_LOST
        lost, well = reader.read()[2]
        assert lost.unread == ("the GPU: the GPU has fallen off the bus: restart the machine (GPU is lost)",)
        assert (lost.used_bytes, lost.utilization) == (None, None)
        assert well.utilization == 87
        nvml.fails["nvmlDeviceGetCount"] = pynvml.NVML_ERROR_UNKNOWN
        assert "does not answer" in reader.read()[2].reason


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver is installed here"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "its driver is not loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "updated while the old one runs: restart the machine"),
        (pynvml.NVML_ERROR_UNKNOWN, "does not answer"),
        (OSError("a broken library"), "does not answer (OSError: a broken library)"),
    ],
)
def test_without_a_driver_there_is_no_reading_and_a_sentence(fake_nvml: Any, error: Any, said: str) -> None:
    found = readings(fake_nvml({}, fails={"nvmlInit": error}))
    assert found == ()
    assert said in found.reason
    assert repr(found) == f"no reading: {found.reason}"


def test_a_missing_pynvml_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = read()
    assert found == ()
    assert "pip install nvidia-ml-py" in found.reason


def test_a_driver_without_gpus_says_so(fake_nvml: Any) -> None:
    assert "sees no GPU" in readings(fake_nvml()).reason


def test_nvml_is_opened_once_for_many_readings_and_given_back(fake_nvml: Any) -> None:
    nvml = fake_nvml({})
    with Reader(nvml) as reader:
        for _ in range(3):
            reader.read()
            assert nvml.open == 1
    assert nvml.open == 0
    nvml.fails["nvmlDeviceGetName"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        readings(nvml)
    assert nvml.open == 0, "an interrupt passes, and NVML is given back all the same"


def test_the_table_has_a_line_for_each_gpu_and_dashes_for_what_is_not_told(fake_nvml: Any) -> None:
    table = repr(readings(fake_nvml({}, {"name": "L4"}, fails={"nvmlDeviceGetPowerUsage 1": NOT_SUPPORTED})))
    head, one, two, untold = table.splitlines()
    assert head.split() == ["GPU", "name", "busy", "memory", "temperature", "power", "clock", "numbers"]
    assert one.split("  ")[-1] == "measured"
    for part in ("Tesla T4", "87 %", "1,000 of 15,360 MiB", "61 °C", "65 of 70 W", "1,590 MHz"):
        assert part in one
    assert "–" in two
    assert untold.startswith("GPU 1")
    assert "power: " in untold
    assert one.index("Tesla") == two.index("L4") == head.index("name")


def test_readings_can_be_copied_and_pickled_with_their_reason(fake_nvml: Any) -> None:
    for found in (readings(fake_nvml({}, {})), Readings((), "why")):
        for same in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
            assert (type(same), same, same.reason) == (Readings, found, found.reason)


def test_every_question_is_one_of_the_real_bindings() -> None:
    """The fake refuses what pynvml does not have; here, that the constants and signatures are as they are used."""
    assert pynvml.nvmlMemory_v2
    for field in ("used", "total"):
        assert hasattr(pynvml.c_nvmlMemory_t(), field)
        assert hasattr(pynvml.c_nvmlMemory_v2_t(), field)
    assert {name for name, _ in pynvml.c_nvmlUtilization_t._fields_} == {"gpu", "memory"}
    known = {name.removeprefix("NVMLError_") for name in vars(pynvml) if name.startswith("NVMLError_")}
    assert set(driver._UNTOLD) <= known
    assert set(driver._SHUT) - {"ModuleNotFoundError"} <= known


def test_reading_imports_no_torch() -> None:
    code = (
        "import sys, gpulab.monitor; gpulab.monitor.read(); print('torch' in sys.modules, 'ipywidgets' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]

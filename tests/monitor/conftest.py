"""A driver that is played, GPUs that are virtual in name only, and a look for threads that stay."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from courselib.patience import HANG_SECONDS

MIB = 2**20

HEALTHY = {
    "name": "Tesla T4",
    "used": 1000 * MIB,
    "total": 15360 * MIB,
    "gpu": 87,
    "memory": 41,
    "celsius": 61,
    "milliwatts": 65_400,
    "limit": 70_000,
    "clock": 1590,
    "millijoules": 5_000_000,
    "mig": None,
    "slices": (),
}


class FakeNvml:
    """NVML with the given GPUs: each a dictionary that changes HEALTHY.

    `fails` maps "function", or "function index" for one GPU, to the code of the NVMLError that it raises; a value
    that is an exception is raised itself.
    """

    def __init__(self, *gpus: dict[str, Any], fails: dict[str, Any] | None = None) -> None:
        self.gpus = [{**HEALTHY, "uuid": f"GPU-{i:08x}-0000", **gpu} for i, gpu in enumerate(gpus)]
        self.fails = dict(fails or {})
        self.open = 0
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name == "nvmlMemory_v2":
            return getattr(pynvml, name)
        inspect = getattr(pynvml, name)  # what the real bindings do not have must not be asked for
        assert callable(inspect)

        def call(*arguments: Any) -> Any:
            self.asked += 1
            number = arguments[0][0] if arguments and isinstance(arguments[0], tuple) else (arguments or ("",))[0]
            for key in (name, f"{name} {number}"):
                if key in self.fails:
                    code = self.fails[key]
                    raise code if isinstance(code, BaseException) else pynvml.NVMLError(code)
            return getattr(self, f"_{name}")(*arguments)

        return call

    def _nvmlInit(self) -> None:
        self.open += 1

    def _nvmlShutdown(self) -> None:
        self.open -= 1

    def _nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return (index,)

    def _of(self, handle: Any) -> dict[str, Any]:
        gpu = self.gpus[handle[0]]
        return gpu if len(handle) == 1 else gpu["slices"][handle[1]]

    def _nvmlDeviceGetName(self, handle: Any) -> Any:
        return self._of(handle)["name"]

    def _nvmlDeviceGetUUID(self, handle: Any) -> Any:
        return self._of(handle)["uuid"]

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any:
        gpu = self._of(handle)
        reserved = 0 if version else 300 * MIB  # the first version counts it as used
        assert version in (None, pynvml.nvmlMemory_v2)
        return SimpleNamespace(total=gpu["total"], used=gpu["used"] + reserved)

    def _nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        return SimpleNamespace(gpu=self._of(handle)["gpu"], memory=self._of(handle)["memory"])

    def _nvmlDeviceGetTemperatureV(self, handle: Any, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return int(self._of(handle)["celsius"])

    _nvmlDeviceGetTemperature = _nvmlDeviceGetTemperatureV

    def _nvmlDeviceGetPowerUsage(self, handle: Any) -> Any:
        return self._of(handle)["milliwatts"]

    def _nvmlDeviceGetEnforcedPowerLimit(self, handle: Any) -> Any:
        return self._of(handle)["limit"]

    def _nvmlDeviceGetClockInfo(self, handle: Any, kind: int) -> Any:
        assert kind == pynvml.NVML_CLOCK_SM
        return self._of(handle)["clock"]

    def _nvmlDeviceGetTotalEnergyConsumption(self, handle: Any) -> Any:
        return self._of(handle)["millijoules"]

    def _nvmlDeviceGetMigMode(self, handle: Any) -> Any:
        mode = self._of(handle)["mig"]
        if mode is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [mode, mode]

    def _nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int:
        return 7

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, place: int) -> Any:
        if place >= len(self._of(handle)["slices"]) or self._of(handle)["slices"][place] is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return (handle[0], place)


@pytest.fixture
def fake_nvml() -> type[FakeNvml]:
    return FakeNvml


def watching() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "gpulab.monitor"]


@pytest.fixture(autouse=True)
def no_thread_stays() -> Any:
    yield
    until = time.monotonic() + HANG_SECONDS
    while watching() and time.monotonic() < until:
        time.sleep(0.01)
    assert watching() == []

"""Measure sustained load: rate, power, clock and temperature over a minute.

Two loads, since a power limit strikes them differently: large products, and the inference of a ResNet-50. The driver
is asked twice a second by NVML where pynvml is installed, else by nvidia-smi; without either only rates are kept.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..nvml import nvml_opened
from .operators import DEVICE, autocast

FIELDS = ("power_w", "sm_clock_mhz", "memory_clock_mhz", "temperature_c")
_QUERY = "power.draw,clocks.sm,clocks.mem,temperature.gpu"
_EVERY_SECONDS = 0.5

Read = Callable[[], tuple[float | None, ...]]


@contextmanager
def reader() -> Iterator[tuple[Read | None, str]]:
    """Return a function that reads FIELDS of this process's first GPU, and its name; else None and the reason."""
    with nvml_opened() as (nvml, error):
        if error is None:
            handle = _handle(nvml)
            yield lambda: _by_nvml(nvml, handle), "NVML"
            return
    if shutil.which("nvidia-smi"):
        yield _by_smi, "nvidia-smi"
    else:
        yield None, f"no readings: {type(error).__name__}, and no nvidia-smi on PATH"


def _handle(nvml: Any) -> Any:
    """The GPU that is cuda:0 here, whatever CUDA_VISIBLE_DEVICES makes of the driver's order."""
    uuid = str(getattr(torch.cuda.get_device_properties(0), "uuid", ""))
    for index in range(nvml.nvmlDeviceGetCount()):
        found = nvml.nvmlDeviceGetHandleByIndex(index)
        name = nvml.nvmlDeviceGetUUID(found)
        if uuid and uuid in (name.decode() if isinstance(name, bytes) else name):
            return found
    return nvml.nvmlDeviceGetHandleByIndex(0)


def _by_nvml(nvml: Any, handle: Any) -> tuple[float | None, ...]:
    def told(call: Callable[[], float]) -> float | None:
        try:
            return call()
        except nvml.NVMLError:  # this GPU or its driver does not tell
            return None

    return (
        told(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        told(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        told(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        told(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
    )


def _by_smi() -> tuple[float | None, ...]:
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits", "-i", "0"]
    text = subprocess.run(command, capture_output=True, text=True).stdout
    return tuple(map(_number, text.strip().split(","))) if text.strip() else (None,) * len(FIELDS)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # "[N/A]"
        return None


def loads(side: int, images: int) -> dict[str, tuple[Callable[[], object], float, str]]:
    """Return name -> function to call repeatedly, units of work per call, name of the unit."""
    import torchvision

    dtype = torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16
    a, b = (torch.randn(side, side, device=DEVICE, dtype=dtype) for _ in range(2))
    model = torchvision.models.resnet50().to(DEVICE).eval()
    x = torch.randn(images, 3, 224, 224, device=DEVICE)

    def infer() -> None:
        with torch.inference_mode(), autocast(torch.float16):
            model(x)

    return {
        f"products_{side}_{str(dtype).removeprefix('torch.')}": (lambda: a @ b, 2 * side**3 / 1e12, "TFLOP"),
        f"resnet50_inference_amp_fp16_{images}": (infer, images, "images"),
    }


def sustained(call: Callable[[], object], done: float, unit: str, seconds: float) -> dict[str, Any]:
    """Call it for `seconds` on end: what was done per second, second by second, beside what the driver says.

    The host waits after some calls, so that its queue never holds more than a fraction of a second.
    """
    rates: list[list[float]] = []
    readings: list[list[float | None]] = []
    over = threading.Event()
    call()
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    together = max(1, round(0.2 / max(time.perf_counter() - began, 1e-6)))
    together = min(together, 500)
    with reader() as (read, how):
        began = time.perf_counter()

        def watch() -> None:
            while read is not None and not over.wait(_EVERY_SECONDS):
                readings.append([round(time.perf_counter() - began, 2), *read()])

        watching = threading.Thread(target=watch, name="gpulab validate", daemon=True)
        watching.start()
        try:
            while (at := time.perf_counter() - began) < seconds:
                for _ in range(together):
                    call()
                torch.cuda.synchronize()
                taken = time.perf_counter() - began - at
                rates.append([round(at, 2), together * done / taken])
        finally:
            over.set()
            watching.join()
    return {"unit": f"{unit}/s", "rates": rates, "read_by": how, "fields": ["seconds", *FIELDS], "readings": readings}

"""Reads all GPUs: the virtual ones if a virtual GPU is in force, else the real ones through NVIDIA's driver."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from virtualgpu.nvml import nvml_opened
from virtualgpu.readings.source import in_force

from . import driver
from .reading import Readings
from .virtual import VirtualReader
from .visible import with_device_names


class Reader(AbstractContextManager["Reader"]):
    """Reads repeatedly, and keeps NVML open from the first use until it is closed. Not thread-safe.

    `nvml` replaces the module pynvml in tests.
    """

    def __init__(self, nvml: Any = None) -> None:
        self._given = nvml
        self._nvml: Any = None
        self._error: Exception | None = None
        self._open = ExitStack()
        self._virtual = VirtualReader()

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close NVML; a later read opens it again."""
        self._nvml = self._error = None
        self._open.close()

    def read(self) -> tuple[object | None, float, Readings]:
        """Return the clock (of a virtual GPU, None for this machine's), its seconds, and the readings."""
        scope: Any = in_force()
        if scope is not None:
            return scope.clock, *self._virtual.read(scope)
        if self._nvml is None and self._error is None:
            self._nvml, self._error = self._open.enter_context(nvml_opened(self._given))
        # Real time, also within a scope.
        at = time.monotonic()
        if self._error is not None:
            return None, at, Readings((), driver.open_error(self._error))
        return None, at, with_device_names(driver.readings(self._nvml))


_virtual = VirtualReader()  # keeps the previous `read()`


def read() -> Readings:
    """Return one `Reading` for each GPU: the virtual ones if a virtual GPU is in force, else all physical ones.

    The result is a tuple, and prints as a table. A value that cannot be read is None, and the reading's `unread` says
    why; without a GPU or a driver the tuple is empty, and its `reason` says why. It launches nothing on a GPU, does not
    initialise CUDA, and does not wait.

    The driver's numbers are those of all programs together; see `Reading` for their meaning, above all `utilization`.
    On the virtual GPU utilization is that since the previous `read()`, and None the first time.
    """
    scope: Any = in_force()
    if scope is not None:
        return _virtual.read(scope)[1]
    with Reader() as reader:
        return reader.read()[2]

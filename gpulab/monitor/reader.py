"""Who answers now: the virtual GPU where one is in force, NVIDIA's driver otherwise; `read()` asks once."""

from __future__ import annotations

import time
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from virtualgpu.nvml import nvml_opened
from virtualgpu.readings.source import in_force

from . import driver
from .reading import Readings
from .virtual import VirtualReader
from .visible import named


class Reader:
    """Reads again and again, and keeps NVML open from the first need until it is closed. Not for two threads at once.

    `nvml` stands in for the module pynvml.
    """

    def __init__(self, nvml: Any = None) -> None:
        self._given = nvml
        self._nvml: Any = None
        self._error: Exception | None = None
        self._open = ExitStack()
        self._virtual = VirtualReader()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give NVML back; reading after that opens it again."""
        self._nvml = self._error = None
        self._open.close()

    def read(self) -> tuple[object | None, float, Readings]:
        """Whose time it is (a virtual GPU's clock, None for this machine's), its seconds, and the readings."""
        scope: Any = in_force()
        if scope is not None:
            return scope.clock, *self._virtual.read(scope)
        if self._nvml is None and self._error is None:
            self._nvml, self._error = self._open.enter_context(nvml_opened(self._given))
        # Real time, and in no scope's power.
        at = time.monotonic()
        if self._error is not None:
            return None, at, Readings((), driver.shut(self._error))
        return None, at, named(driver.readings(self._nvml))


_virtual = VirtualReader()  # so that a second `read()` knows the first


def read() -> Readings:
    """One `Reading` for each GPU: the virtual ones where a virtual GPU is in force, all physical ones otherwise.

    The result is a tuple, and prints as a table. It never raises for what cannot be read: a field is None then, and the
    reading's `unread` says why; without any GPU or driver the tuple is empty, and its `reason` says why. It launches
    nothing on a GPU, does not start CUDA, and does not wait.

    The driver's numbers are those of all programs together; see `Reading` for what each means, above all
    `utilization`. On the virtual GPU utilization is that since the `read()` before, and None the first time.
    """
    scope: Any = in_force()
    if scope is not None:
        return _virtual.read(scope)[1]
    with Reader() as reader:
        return reader.read()[2]

"""Open and query NVML, the driver's management library, so that one failing query does not fail the others.

The doctor and the monitor decide what to query and what an answer means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@contextmanager
def nvml_opened(nvml: Any = None) -> Iterator[tuple[Any, Exception | None]]:
    """Yield the module pynvml and None while NVML is open, or None and the error that prevented it.

    `nvml` stands in for pynvml. NVML counts how often it is opened, so stretches may nest and overlap.
    """
    module, error = attempt(lambda: _open(nvml))
    try:
        yield module, error
    finally:
        if module is not None:
            attempt(module.nvmlShutdown)


def _open(nvml: Any) -> Any:
    if nvml is None:
        import pynvml

        nvml = pynvml
    nvml.nvmlInit()
    return nvml


def attempt(call: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Return the result of `call` and None, or None and its error."""
    try:
        return call(), None
    except Exception as error:
        return None, error


def as_text(value: Any) -> str | None:
    """Decode a text of NVML's: older bindings return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value

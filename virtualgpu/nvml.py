"""Open and query NVML, the driver's management library, so that one failing query does not fail the others.

For the doctor and the monitor. It knows how to open, ask and close; what is asked, and what an answer means, is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@contextmanager
def opened(nvml: Any = None) -> Iterator[tuple[Any, Exception | None]]:
    """The module pynvml while NVML is open and None, or None and the error that kept it shut.

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
    """What `call` returns and None, or None and its error."""
    try:
        return call(), None
    except Exception as error:
        return None, error


def as_text(value: Any) -> str | None:
    """A text of NVML's: its older bindings give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value

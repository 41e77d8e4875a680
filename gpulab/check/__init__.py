"""Checks of the exercises: `gpulab.check.NAME(your_function)` passes, or raises and says what was misunderstood.

One file per lesson holds its checks; a check is loaded when it is first used.
"""

from importlib import import_module
from typing import Any

from ..course import LESSONS
from .base import CheckFailed, NotAttempted

__all__ = ["CheckFailed", "NotAttempted"]

_HOME = {name: f"{__name__}.lesson{lesson.number:02d}" for lesson in LESSONS for name in lesson.checks}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"there is no check {name!r}; the checks are: {', '.join(sorted(_HOME))}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_HOME])

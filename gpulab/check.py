"""Provides the checks of the exercises: `gpulab.check.NAME(your_function)` passes, or raises with the likely mistake.

Each check is a file `lessons/NN_topic/checks/NAME.py` with an `EXERCISE`, imported when it is first used.
"""

from typing import Any

from .course import LESSONS
from .exercise.base import CheckFailed, NotAttempted

__all__ = ["CheckFailed", "NotAttempted"]

_HOME = {name: lesson for lesson in LESSONS for name in lesson.checks}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"there is no check {name!r}; the checks are: {', '.join(sorted(_HOME))}")
    module = _HOME[name].part(f"checks.{name}")
    return module.EXERCISE.check if hasattr(module, "EXERCISE") else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_HOME])

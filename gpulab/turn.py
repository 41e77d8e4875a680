"""Provides the turns of the lectures: `gpulab.turn.NAME(your_function)` shows a verdict, without a grade.

The turns of a lesson are the functions under `@turn` in the file `turns.py` of its folder.
"""

import re
from functools import cache
from typing import Any

from .course import LESSONS, Lesson

_TURN = re.compile(r"^@turn\b.*\ndef (\w+)\(", re.MULTILINE)


@cache
def _homes() -> dict[str, Lesson]:
    """Return the lesson of each turn, found in the files without importing them."""
    files = ((lesson, lesson.folder / "turns.py") for lesson in LESSONS)
    return {name: row for row, file in files if file.exists() for name in _TURN.findall(file.read_text("utf-8"))}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name not in _homes():
        raise AttributeError(f"there is no turn {name!r}; the turns are: {', '.join(sorted(_homes()))}")
    return getattr(_homes()[name].part("turns"), name)


def __dir__() -> list[str]:
    return sorted(_homes())

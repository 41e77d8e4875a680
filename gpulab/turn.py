"""The reader's turns inside lectures: `gpulab.turn.NAME(your_function)` answers in a line or two, and raises nothing.

A turn has no grade and is not kept; the lecture goes on without it. The file `turns.py` of a lesson's folder holds its
turns, each a function under `@turn`.
"""

import re
from functools import cache
from typing import Any

from .course import LESSONS, Lesson

_TURN = re.compile(r"^@turn\b.*\ndef (\w+)\(", re.MULTILINE)


@cache
def _homes() -> dict[str, Lesson]:
    """The lesson of each turn, read from the files without running them."""
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

"""Reads the table of lessons: number, name, promise, minutes and exercises, from each folder's `lesson.toml`.

The map of the course, the checks and the progress file use it.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

from .lessons import FOLDER


@dataclass(frozen=True)
class Lesson:
    """One lesson. `minutes` is for reading and running the lecture; exercises take as long again."""

    number: int
    slug: str
    promise: str
    minutes: int
    checks: tuple[str, ...] = ()
    questions: int = 0

    @property
    def name(self) -> str:
        return f"{self.number:02d}_{self.slug}"

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    def part(self, name: str) -> ModuleType:
        """Import a module of its folder, such as "checks.amdahl"; ModuleNotFoundError if there is none."""
        return import_module(f"{__package__}.lessons.{self.name}.{name}")


def _read(folder: Path) -> Lesson:
    number, _, slug = folder.name.partition("_")
    row = tomllib.loads((folder / "lesson.toml").read_text(encoding="utf-8"))
    quiz = folder / "quiz.toml"
    questions = quiz.read_text(encoding="utf-8").count("[[question]]") if quiz.exists() else 0
    return Lesson(int(number), slug, row["promise"], row["minutes"], tuple(row["exercises"]), questions)


LESSONS: tuple[Lesson, ...] = tuple(_read(path.parent) for path in sorted(FOLDER.glob("[0-9][0-9]_*/lesson.toml")))


def lesson(number: int) -> Lesson:
    """Return the lesson with this number; ValueError if there is none."""
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(LESSONS):
        raise ValueError(f"lesson must be a whole number from 0 to {len(LESSONS) - 1}, not {number!r}")
    return LESSONS[number]


def _current() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # the folder was removed
        return Path("/")


_STARTED = _current()  # before a notebook calls chdir


def folder(start: Path | None = None) -> Path | None:
    """Return the course folder, the nearest one at or above `start` that has notebooks and exercises; for the copies in
    its `work/` too. None outside the course. `start` is by default the current folder, or else the one in which this
    process began."""
    if start is None:
        return folder(Path.cwd()) or folder(_STARTED)
    here = start.resolve()
    for place in (here, *here.parents):
        if _is_course(place):
            return place.parent if place.name == "work" and _is_course(place.parent) else place
    return None


def _is_course(place: Path) -> bool:
    return (place / "notebooks").is_dir() and (place / "exercises").is_dir()

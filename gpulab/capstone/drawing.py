"""Draws twelve faults by a name, the same each time, and writes the script to a file and into a notebook cell."""

from __future__ import annotations

import hashlib
import os
import random
from dataclasses import dataclass
from pathlib import Path

from virtualgpu.pictures.display import in_notebook

from .faults import FAULTS, FIRST, LECTURE, with_faults
from .places import PLACES

_OF_EACH_KIND = 4


@dataclass(frozen=True)
class Drawn:
    """A script drawn for `name`, written to `path`."""

    name: str
    path: Path

    def __fspath__(self) -> str:
        return str(self.path)


def script(of: str = "exercise") -> str:
    """Return lesson 15's script with the twelve faults of its "exercise" or the three of its "lecture".

    Raises ValueError for anything else.
    """
    faults = {"exercise": FIRST, "lecture": LECTURE}
    if of not in faults:
        raise ValueError(f"of must be 'exercise' or 'lecture', not {of!r}")
    return with_faults(faults[of])


def faults_of(name: str) -> tuple[str, ...]:
    """Return the twelve faults of a name: four of each kind, in twelve places, at least half of them not the lesson's.

    The same name gives the same faults on every machine, whatever its case and spaces.
    """
    words = " ".join(_checked(name).casefold().split())
    dice = random.Random(int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big"))
    while True:
        chosen: list[str] = []
        for kind in ("memory", "speed", "correctness"):
            places = sorted(place.name for place in PLACES.values() if place.kind == kind)
            for place in sorted(dice.sample(places, _OF_EACH_KIND)):
                chosen.append(dice.choice(sorted(fault.name for fault in FAULTS if fault.place == place)))
        if len(set(chosen) - set(FIRST)) >= len(chosen) // 2:
            return tuple(chosen)


def draw(name: str, path: str | os.PathLike[str]) -> Drawn:
    """Write the script drawn for `name` to `path`, and in a notebook put it into a new cell below, to repair it there.

    Raises ValueError for an empty name, FileNotFoundError where the folder of `path` is missing.
    """
    text, file = with_faults(faults_of(name)), Path(path)
    if not file.parent.is_dir():
        raise FileNotFoundError(f"path is {str(file)!r}; the folder {str(file.parent)!r} does not exist")
    file.write_text(text, encoding="utf-8")
    if in_notebook():
        from IPython import get_ipython

        get_ipython().set_next_input(f"%%writefile {file}\n{text.rstrip()}")
    return Drawn(name, file)


def _checked(name: str) -> str:
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"name must be a text such as 'Ada Lovelace', not {name!r}")
    return name

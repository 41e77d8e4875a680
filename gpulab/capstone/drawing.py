"""`draw`: twelve faults of the pool for a name, always the same for it, as a file and as a cell to work in."""

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
    """A script that was drawn for `name`, and the file it was written to."""

    name: str
    path: Path

    def __fspath__(self) -> str:
        return str(self.path)


def script(of: str = "exercise") -> str:
    """The text of lesson 15's script: with the twelve faults of its "exercise", or with the three of its "lecture".

    Raises ValueError for anything else.
    """
    faults = {"exercise": FIRST, "lecture": LECTURE}
    if of not in faults:
        raise ValueError(f"of must be 'exercise' or 'lecture', not {of!r}")
    return with_faults(faults[of])


def faults_of(name: str) -> tuple[str, ...]:
    """The twelve faults drawn for a name: four of each kind, in twelve places; never the twelve of the lesson.

    The same name gives the same faults on every machine; its case and the spaces around it do not count.
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

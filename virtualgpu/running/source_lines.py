"""Find the script's line that is being executed: the innermost frame outside libraries.

Frames of PyTorch, Python's library, installed packages and `gpulab` do not count.
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType, FrameType

from .. import own_code

Place = tuple[str, int]  # file and line


@dataclass(frozen=True)
class Line:
    """A line of code: the file relative to the working directory, its number, and its text."""

    file: str
    line: int
    code: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.code}".rstrip() if self.line else self.file


_LIBRARY, _OTHER, _SCRIPT = range(3)


class SourceLines:
    """Finds script lines: in files under `homes` except installed packages, else in any file outside libraries.

    Files are shown relative to `start`, the directory in which the run began.
    """

    def __init__(self, start: str, *homes: str) -> None:
        self._start = os.path.abspath(start)
        paths = sysconfig.get_paths()
        folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
        folders.update(own_code.folders())
        if torch := sys.modules.get("torch"):
            folders.add(os.path.dirname(os.path.abspath(torch.__file__ or "")))
        self._libraries = _as_prefixes(folders)
        self._homes = _as_prefixes((start, *homes))
        # A package that is run as a script counts as the script, although its folder is a library's.
        self._installed = tuple(home for home in self._homes if self._is_library(home))
        self._known: dict[CodeType, int] = {}

    def here(self) -> Place | None:
        """Return this thread's current line; for a thread without one (PyTorch's), the main thread's."""
        found = self._outwards(sys._getframe(1))
        if found is None and threading.current_thread() is not threading.main_thread():
            found = self._outwards(sys._current_frames().get(threading.main_thread().ident or 0))
        return found

    def caller(self) -> Place | None:
        """Return the line that called the calling function, if it is the script's."""
        frame = sys._getframe(2)
        file = frame.f_code.co_filename
        return (file, frame.f_lineno) if self._whose(file) == _SCRIPT else None

    def line(self, place: Place) -> Line:
        """Return the text of a place."""
        file, number = place
        shown = os.path.relpath(file, self._start) if file.startswith(os.path.join(self._start, "")) else file
        return Line(shown, number, linecache.getline(file, number).strip())

    def _outwards(self, frame: FrameType | None) -> Place | None:
        known, other = self._known, None
        while frame is not None:
            code = frame.f_code
            whose = known.get(code)
            if whose is None:
                whose = known[code] = self._whose(code.co_filename)
            if whose == _SCRIPT:
                return code.co_filename, frame.f_lineno
            if whose == _OTHER and other is None:
                other = code.co_filename, frame.f_lineno
            frame = frame.f_back
        return other

    def _whose(self, file: str) -> int:
        if file.startswith(self._installed):
            return _SCRIPT
        if file.startswith("<") or self._is_library(file):
            return _LIBRARY
        return _SCRIPT if file.startswith(self._homes) else _OTHER

    def _is_library(self, path: str) -> bool:
        return path.startswith(self._libraries) or "site-packages" in path or "dist-packages" in path


def _as_prefixes(folders: Iterable[str]) -> tuple[str, ...]:
    return tuple(os.path.join(os.path.abspath(folder), "") for folder in folders)

"""Tell this package's code from the user's, and read what its own functions are doing from the stack."""

from __future__ import annotations

import os
from types import FrameType
from typing import Any

_folders = [os.path.dirname(os.path.abspath(__file__)) + os.sep]


def add(*paths: str) -> None:
    """Count these files, and all code below these folders, as the package's own; the course adds its checks."""
    whole = (os.path.abspath(path) for path in paths)
    _folders.extend(path + os.sep * os.path.isdir(path) for path in whole)


def folders() -> tuple[str, ...]:
    """Return files, and folders with a separator at their end, for `str.startswith`."""
    return tuple(_folders)


def local_of(frame: FrameType, name: str) -> Any:
    """Return a local variable, None where it is not set, of a function that is running: one of this package or torch's.

    Up to Python 3.12 `f_locals` is a copy of all variables, which the frame keeps: it would keep their tensors alive
    when the function has dropped them. So the copy is emptied. Never for a module's frame, whose copy is the original.
    """
    found: Any = frame.f_locals
    value = found.get(name)
    if found.__class__ is dict:
        found.clear()
    return value

"""The folders of this package, and of those built on it, whose code is no part of a user's program."""

from __future__ import annotations

import os

_folders = [os.path.dirname(os.path.abspath(__file__)) + os.sep]


def add(*folders: str) -> None:
    """Count the code below these folders as the package's own too, as the course does with its lessons."""
    _folders.extend(f"{os.path.abspath(folder)}{os.sep}" for folder in folders)


def folders() -> tuple[str, ...]:
    """Each with a separator at its end, for `str.startswith`."""
    return tuple(_folders)

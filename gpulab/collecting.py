"""Garbage collections that are quick: they do not look through what was there before."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterator

_inside = 0  # how many of these blocks have been entered


@contextlib.contextmanager
def of_what_is_new() -> Iterator[None]:
    """Within it, `gc.collect()` looks through what has been made since it was entered: milliseconds, where all objects
    of torch and a notebook take a third of a second. Garbage that was there before stays until afterwards."""
    global _inside
    freezes = not _inside and not _somebody_else_does()
    _inside += 1
    if freezes:
        gc.freeze()
    try:
        yield
    finally:
        _inside -= 1
        if freezes:
            gc.unfreeze()


@functools.cache
def _somebody_else_does() -> bool:
    """Whether objects were frozen before, as a test suite or a server that forks does: then they stay so. Asked once,
    since Python counts them one by one, in up to half a second."""
    return gc.get_freeze_count() > 0

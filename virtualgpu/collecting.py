"""Speed up `gc.collect()` by freezing objects that existed before a block."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterator

_inside = 0  # how many of these blocks have been entered


@contextlib.contextmanager
def collect_new_only(*, for_long: bool = False) -> Iterator[None]:
    """Within it, `gc.collect()` looks through what has been made since it was entered: milliseconds, where all objects
    of torch and a notebook take a third of a second. Garbage that was there before stays until afterwards.

    Where somebody else has frozen objects, what has come since is looked through as well; or, for a block that is
    entered `for_long`, frozen too, and stays so with the rest."""
    global _inside
    outermost = not _inside
    # Within another of these blocks nothing depends on it, and there it takes the longest.
    frozen = outermost and (gc.get_freeze_count() > 0 if for_long else _somebody_else_does())
    _inside += 1
    if outermost and frozen and for_long:
        gc.collect()
    if outermost and (for_long or not frozen):
        gc.freeze()
    try:
        yield
    finally:
        _inside -= 1
        if outermost and not frozen:
            gc.unfreeze()


@functools.cache
def _somebody_else_does() -> bool:
    """Whether objects were frozen before, as a test suite or a server that forks does: then they stay so. Asked once,
    since Python counts them one by one, in up to half a second."""
    return gc.get_freeze_count() > 0

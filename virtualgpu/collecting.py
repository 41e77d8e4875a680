"""Speed up `gc.collect()` by freezing objects that existed before a block."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterator

_OWN = 10_000  # Python 3.12 freezes some hundred objects as it starts; who freezes all has frozen more than this
_inside = 0  # how many of these blocks have been entered


@contextlib.contextmanager
def collect_new_only(*, for_long: bool = False) -> Iterator[None]:
    """Within the block, `gc.collect()` traverses only objects made since its start: milliseconds, where all objects of
    torch and a notebook take a third of a second. Older garbage stays until afterwards.

    Where other code has frozen objects, those made since then are traversed as well; or, for a block that is entered
    `for_long`, frozen too, and stay so with the rest."""
    global _inside
    outermost = not _inside
    # Within another of these blocks nothing depends on it, and there it takes the longest.
    frozen = outermost and (gc.get_freeze_count() > _OWN if for_long else _somebody_else_does())
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
    """Return True if objects were frozen before, as a test suite or a fork server does: then they stay so. Cached,
    since Python counts them one by one, in up to half a second."""
    return gc.get_freeze_count() > _OWN

"""Garbage collections that are quick: they do not look through what was there before."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def of_what_is_new() -> Iterator[None]:
    """Within it, `gc.collect()` looks through what has been made since it was entered: milliseconds, where all objects
    of torch and a notebook take a third of a second. Garbage that was there before stays until afterwards."""
    frozen = gc.get_freeze_count()  # somebody else's: then it stays as it is
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()

"""Errors and warnings of the virtual GPU: operations it does not mirror, values it does not have."""

from __future__ import annotations

import warnings


class NotMirrored(NotImplementedError):
    """An operation that the virtual GPU cannot do as a GPU does it."""


class NoValues(RuntimeError):
    """A value was asked for where only shapes exist."""


def warn_once(warned: set[str], text: str) -> None:
    """Warn with `text` unless it was `warned` before."""
    if text not in warned:
        warned.add(text)
        warnings.warn(text, stacklevel=6)

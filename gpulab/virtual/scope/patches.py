"""Attributes that are replaced for a while, and put back to the identical objects.

It knows nothing of what it replaces.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any

_ABSENT = object()


class Patches:
    """Replacements in the order they were made; `restore` undoes them in the opposite order."""

    def __init__(self) -> None:
        self._made: list[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace `owner.name`. What an owner inherits is hidden, not changed, and shows again afterwards."""
        self._made.append(partial(_put_back, owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def item(self, owner: MutableMapping[str, Any], name: str, value: Any) -> None:
        """Replace `owner[name]`."""
        self._made.append(partial(_put_item_back, owner, name, owner.get(name, _ABSENT)))
        owner[name] = value

    def undo(self, call: Callable[[], None]) -> None:
        """What else `restore` has to do, in its turn."""
        self._made.append(call)

    def replaced(self) -> list[tuple[Any, str, Any]]:
        """What `set` has replaced: owner, name, and what stood there."""
        return [entry.args for entry in self._made if isinstance(entry, partial) and entry.func is _put_back]

    def restore(self) -> None:
        while self._made:
            self._made.pop()()


def _put_item_back(owner: MutableMapping[str, Any], name: str, value: Any) -> None:
    if value is _ABSENT:
        del owner[name]
    else:
        owner[name] = value


def _put_back(owner: Any, name: str, value: Any) -> None:
    if value is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)

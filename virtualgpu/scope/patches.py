"""Replace attributes for a while, and restore the identical objects."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

_ABSENT = object()


class Patches:
    """Replacements in the order they were made; `restore` undoes them in the opposite order."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, str, Any] | Callable[[], None]] = []  # owner, name and what stood there, or a call
        self._replaced: list[tuple[Any, str, Any]] | None = None

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace `owner.name`. An inherited attribute is hidden, not changed, and shows again afterwards."""
        self._made.append((owner, name, vars(owner).get(name, _ABSENT)))
        self._replaced = None
        setattr(owner, name, value)

    def item(self, owner: MutableMapping[str, Any], name: str, value: Any) -> None:
        """Replace `owner[name]`."""
        before = owner.get(name, _ABSENT)
        self._made.append(lambda: _put_item_back(owner, name, before))
        owner[name] = value

    def undo(self, call: Callable[[], None]) -> None:
        """Add a call that `restore` makes in its turn."""
        self._made.append(call)

    def replaced(self) -> list[tuple[Any, str, Any]]:
        """Return the replacements made by `set`: owner, name, original; the same list until they change."""
        if self._replaced is None:
            self._replaced = [entry for entry in self._made if isinstance(entry, tuple)]
        return self._replaced

    def restore(self) -> None:
        self._replaced = None
        while self._made:
            entry = self._made.pop()
            if not isinstance(entry, tuple):
                entry()
                continue
            owner, name, value = entry
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def _put_item_back(owner: MutableMapping[str, Any], name: str, value: Any) -> None:
    if value is _ABSENT:
        del owner[name]
    else:
        owner[name] = value

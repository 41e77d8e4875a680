"""Child processes of a script: forked ones report nothing, spawned ones get their own virtual GPUs.

A spawned process imports the script again; on a machine with a real GPU it would find that one.
"""

from __future__ import annotations

import importlib
import multiprocessing.spawn
import os
from collections.abc import Callable
from typing import Any

from ..gpu import VirtualGPU

_forgets: list[Callable[[], None]] = []  # called first in a forked child


def begin(recipe: dict[str, Any]) -> None:
    """Start the same virtual GPUs in a spawned process, before it imports the script, until its end."""
    spawning: Any = importlib.import_module("torch.multiprocessing.spawn")  # as an attribute, it is the function in it
    first = spawning._wrap
    VirtualGPU(**recipe).start()
    spawning._wrap = first  # processes of `torch.multiprocessing.spawn` start their own GPUs, and need this one
    ChildProcesses(recipe, lambda: None)


class _Recipe:
    """Calls `begin` when the child unpickles it."""

    def __init__(self, recipe: dict[str, Any]) -> None:
        self.recipe = recipe

    def __reduce__(self) -> Any:
        return begin, (self.recipe,)


class ChildProcesses:
    """From now on, spawned processes get the GPUs that `recipe` describes, and forked ones call `forget`."""

    def __init__(self, recipe: dict[str, Any] | None, forget: Callable[[], None]) -> None:
        self._forget = forget
        self._own: Any = None
        _forgets.append(forget)
        if recipe is not None:
            own = self._own = multiprocessing.spawn.get_preparation_data

            def get_preparation_data(name: str) -> dict[str, Any]:
                return {**own(name), "gpulab": _Recipe(recipe)}

            multiprocessing.spawn.get_preparation_data = get_preparation_data

    def end(self) -> None:
        """Restore the original behaviour."""
        _forgets.remove(self._forget)
        if self._own is not None:
            multiprocessing.spawn.get_preparation_data = self._own


def _in_forked_child() -> None:
    for forget in _forgets:
        forget()
    _forgets.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)

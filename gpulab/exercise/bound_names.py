"""Rebinds functions that a student imported from torch by name, so that they see the check's own virtual GPU.

`from torch.cuda import memory_allocated` keeps a reference to the function of the notebook's GPU, or of none. For the
time of a check such globals of the student's code are set to the current function in torch, and restored afterwards.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CellType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from virtualgpu.scope import in_force


@contextmanager
def of_this_gpu(students: Sequence[Any]) -> Iterator[None]:
    """Rebind the globals of these functions, classes and objects to what the GPU in force has patched into torch."""
    gpu, undo = in_force.current, list[tuple[dict[str, Any], str, Any]]()
    if gpu is not None:
        replaced: _Replaced | None = None
        for names in globals_of(students):
            for name, value in [(name, value) for name, value in names.items() if _may_be_replaced(value)]:
                replaced = replaced or _replaced_by(gpu)
                now = replaced.now(name, value)
                if now is not value:
                    undo.append((names, name, value))
                    names[name] = now
    try:
        yield
    finally:
        for names, name, value in undo:
            names[name] = value


def _may_be_replaced(value: Any) -> bool:
    """Return True for objects of torch or a virtual GPU: a cheap filter, since the full search takes a millisecond."""
    if not callable(value):
        return False
    module = getattr(value, "__module__", None) or ""
    return isinstance(module, str) and module.partition(".")[0] in ("torch", "gpulab", "virtualgpu", "time")


class _Replaced:
    """The patches of a GPU in force, found by the original object or by the code of the replacement."""

    def __init__(self, replacements: list[tuple[Any, str, Any]]) -> None:
        self.replacements = replacements  # keeps the originals alive, so that no other object gets their id
        self._places = {
            id(old): (owner, name)
            for owner, name, old in replacements
            if isinstance(owner, ModuleType) and callable(old) and hasattr(owner, name)
        }

    @functools.cached_property
    def _by_code(self) -> dict[Any, dict[str, Any]]:
        found: dict[Any, dict[str, Any]] = {}
        for owner, name in self._places.values():
            now = getattr(owner, name)
            found.setdefault(_code(now), {})[name] = now
        return found

    def now(self, name: str, value: Any) -> Any:
        if id(value) in self._places:
            return getattr(*self._places[id(value)])
        if not _is_replacement(value):
            return value
        found = self._by_code.get(_code(value), {})  # the replacement by another virtual GPU
        if len({id(now) for now in found.values()}) == 1:
            return next(iter(found.values()))
        return found.get(name, found.get(getattr(value, "__name__", ""), value))


_known: WeakKeyDictionary[Any, _Replaced] = WeakKeyDictionary()


def _replaced_by(gpu: Any) -> _Replaced:
    """Return the patches of `gpu`, cached for each start of it."""
    known, replacements = _known.get(gpu), gpu.replacements()
    if known is None or known.replacements is not replacements:
        known = _known[gpu] = _Replaced(replacements)
    return known


def _is_replacement(value: Any) -> bool:
    """Return True if the virtual GPU's code defines it, whatever `__module__` says."""
    if isinstance(value, functools.partial):
        return _is_replacement(value.func)
    if isinstance(value, type):
        return _ours(value.__module__) or _ours(type(value).__module__) or _is_replacement(vars(value).get("__new__"))
    if inspect.ismethod(value) or isinstance(value, staticmethod):
        return _is_replacement(value.__func__)
    return inspect.isfunction(value) and _ours(value.__globals__.get("__name__"))


def _ours(module: Any) -> bool:
    return str(module).startswith(_VIRTUAL)


def _code(value: Any) -> Any:
    """Return a key that two GPUs' replacements of one function share: the code, and the constants bound to it."""
    if isinstance(value, functools.partial):
        return _code(value.func), _plain([*value.args, *value.keywords.values()])
    if isinstance(value, type):
        return value.__module__, value.__qualname__
    if inspect.ismethod(value):
        return _code(value.__func__)
    if inspect.isfunction(value):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != _EMPTY]
        return value.__code__, _plain([*cells, *(value.__defaults__ or ())])
    return id(value)


_EMPTY = CellType()
_VIRTUAL = "virtualgpu."


def _plain(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(value for value in values if isinstance(value, str | int | float))


def globals_of(students: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the globals of the functions of these objects, each once."""
    found: dict[int, dict[str, Any]] = {}
    pending = list(students)
    while pending:
        item = pending.pop()
        if isinstance(item, functools.partial):
            pending += [item.func, *item.args]
        elif isinstance(item, staticmethod | classmethod) or inspect.ismethod(item):
            pending.append(item.__func__)
        elif inspect.isfunction(item):
            found[id(item.__globals__)] = item.__globals__
            pending += [item.__wrapped__] if hasattr(item, "__wrapped__") else []
        elif isinstance(item, type):
            pending += [value for value in vars(item).values() if inspect.isfunction(value)]
        elif item is not None and not inspect.isbuiltin(item):
            pending.append(type(item))
    return list(found.values())

"""Names that a student took out of torch before the check brought its own GPU: they mean that GPU while the check runs.

`from torch.cuda import memory_allocated` keeps the function that was there then, which is of the notebook's GPU, or of
none. In the globals of the student's code such a name is given what stands in torch now, and put back afterwards.
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
    """Within it, the globals of these functions, classes and objects name what the GPU in force has put into torch."""
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
    """What torch or a virtual GPU has made; to look at all that has been replaced takes a millisecond."""
    if not callable(value):
        return False
    module = getattr(value, "__module__", None) or ""
    return isinstance(module, str) and module.partition(".")[0] in ("torch", "gpulab", "virtualgpu", "time")


class _Replaced:
    """What a GPU in force has put where, by what stood there before, and by which code it is."""

    def __init__(self, replacements: list[tuple[Any, str, Any]]) -> None:
        self.replacements = replacements  # so what stood there lives, and no other object is at its address
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
        found = self._by_code.get(_code(value), {})  # the replacement that another virtual GPU had made
        if len({id(now) for now in found.values()}) == 1:
            return next(iter(found.values()))
        return found.get(name, found.get(getattr(value, "__name__", ""), value))


_known: WeakKeyDictionary[Any, _Replaced] = WeakKeyDictionary()


def _replaced_by(gpu: Any) -> _Replaced:
    """Found out once for each start of a GPU."""
    known, replacements = _known.get(gpu), gpu.replacements()
    if known is None or known.replacements is not replacements:
        known = _known[gpu] = _Replaced(replacements)
    return known


def _is_replacement(value: Any) -> bool:
    """Whether the virtual GPU's code has made it, whatever module it says that it is of."""
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
    """What two replacements of one thing have in common, made for two GPUs: code, and the words and numbers with it."""
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
    """The globals of their functions, each once."""
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

"""Cache of output shapes in shapes-only mode, keyed by operation and input shapes.

PyTorch computes many output shapes in Python, which takes half a millisecond per operation; training steps repeat the
same operations, and a model's layers are alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

import torch

from . import sparse_shapes
from .kernel_dtypes import WITHOUT_VALUES
from .results import tensors_in

Tensor = torch.Tensor
Args = tuple[Any, ...]
Kwargs = dict[str, Any]

_MOST = 1 << 15  # results; at this size the cache is cleared
_empty: Any = torch.empty_strided
_META: Final = torch.device("meta")
_is_meta: Any = torch._C.TensorBase.is_meta.__get__  # type: ignore[attr-defined]
_storage: Any = torch._C.TensorBase.untyped_storage


@dataclass
class CacheCount:
    """Counts lookups and hits."""

    asked: int = 0
    found: int = 0


def run_cached(count: CacheCount, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Return the result of `func` on `meta` tensors and host numbers, from the cache if possible."""
    count.asked += 1
    try:
        key = func, torch.get_default_dtype(), _key(func, args), _key(func, tuple(kwargs.items())) if kwargs else ()
        if _writes(func):
            _apart(tensors_in((*args, *kwargs.values())))
    except _Cannot:
        return sparse_shapes.run(func, args, kwargs)
    recipe = _RESULTS.get(key, _UNSEEN)
    if recipe is None:
        return func._op(*args, **kwargs)
    if recipe is not _UNSEEN:
        count.found += 1
        if recipe.__class__ is _New:
            return _empty(recipe.shape, recipe.stride, dtype=recipe.dtype, device=_META)
        return _make(recipe, tensors_in((*args, *kwargs.values())))
    if func in WITHOUT_VALUES:
        WITHOUT_VALUES[func](func, args)
    out = func._op(*args, **kwargs)
    if len(_RESULTS) >= _MOST:
        _RESULTS.clear()
    # An operation that changes the shape of an argument is not cached.
    unchanged = (_key(func, args), _key(func, tuple(kwargs.items()))) == key[2:]
    _RESULTS[key] = _recipe(out, args, kwargs) if unchanged else None
    return out


_RESULTS: dict[Any, Any] = {}


class _Cannot(Exception):
    """Raised for arguments or results that are not cached."""


_UNSEEN: Final = object()
_ALIKE: Final = frozenset((int, bool, str, type(None), torch.dtype, torch.layout, torch.memory_format, torch.device))


def _key(func: Any, items: Args) -> Any:
    """Return the cache key: everything that a result's shape can depend on."""
    found: list[Any] = []
    for item in items:
        if item.__class__ in _ALIKE:
            found.append((item.__class__, item))
        elif isinstance(item, Tensor):
            if item.layout is not torch.strided or item.dtype.is_complex:
                raise _Cannot
            found.append((item.shape, item.stride(), item.dtype, _is_meta(item)))
        elif item.__class__ in (list, tuple, torch.Size):
            found.append(_key(func, tuple(item)))
        elif item.__class__ is float:
            found.append(float if _by_lists(func) else item)  # the rates of an optimizer change with each step
        else:
            raise _Cannot
    return tuple(found)


@cache
def _writes(func: Any) -> bool:
    """Return True if it writes to its arguments."""
    return any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)


def _apart(given: list[Tensor]) -> None:
    """Raise _Cannot where tensors share memory: writes then depend on the overlap."""
    if len({_storage(tensor)._cdata for tensor in given}) < len(given):
        raise _Cannot


@cache
def _by_lists(func: Any) -> bool:
    """Return True if it does the same to each tensor of a list, as optimizers do."""
    return str(func._schema.name).startswith(("aten::_foreach_", "aten::_fused_"))


# -- results ---------------------------------------------------------------------------------------------------------


class _New(NamedTuple):
    """A new tensor in a recipe."""

    shape: Any
    stride: Any
    dtype: torch.dtype


def _recipe(out: Any, args: Args, kwargs: Kwargs) -> Any:
    """Return a recipe for the result: new tensors, and positions of arguments; None if there is none."""
    given = tensors_in((*args, *kwargs.values()))
    try:
        return _part(out, given, {_storage(tensor)._cdata for tensor in given})
    except (_Cannot, RuntimeError, NotImplementedError):
        return None


def _part(out: Any, given: list[Tensor], storages: set[int]) -> Any:
    if isinstance(out, Tensor):
        for place, tensor in enumerate(given):
            if tensor is out:
                return place
        if type(out) is not Tensor or not _is_meta(out) or out.layout is not torch.strided or out.dtype.is_complex:
            raise _Cannot
        storage = _storage(out)
        steps = sum((size - 1) * step for size, step in zip(out.shape, out.stride(), strict=True))
        if storage.nbytes() != ((1 + steps) * out.itemsize if out.numel() else 0) or storage._cdata in storages:
            raise _Cannot  # it shares its memory, or has more than it shows
        storages.add(storage._cdata)
        return _New(out.shape, out.stride(), out.dtype)
    if isinstance(out, (list, tuple)):
        return type(out), [_part(item, given, storages) for item in out]
    if out is None:
        return _NOTHING
    raise _Cannot


def _make(recipe: Any, given: list[Tensor]) -> Any:
    if recipe.__class__ is _New:
        return _empty(recipe.shape, recipe.stride, dtype=recipe.dtype, device=_META)
    if recipe.__class__ is int:
        return given[recipe]
    if recipe is _NOTHING:
        return None
    kind, parts = recipe
    return kind(_make(part, given) for part in parts)


_NOTHING: Final = object()

"""What is known of values on shapes alone: small whole numbers and truth values that follow from constants.

Positions, masks and the like decide which way a program goes. So such tensors, made on the GPU or copied from the host,
have a shadow with their values, on their storage; what is computed from them alone is computed for them, too. Anything
else that writes to a storage takes its shadow away.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from ..scope.in_force import backing
from ..scope.labels import NAME, storage_of

Tensor = torch.Tensor
_SHADOW = "_gpulab_shadow"  # on a storage without values: one of as many bytes with them
_MOST = 1 << 16  # elements
_LIKE = {f"aten::{n}" for n in ("ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full")}
_KINDS = frozenset((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))


def value(tensor: Tensor) -> Tensor | None:
    """`tensor` with its values, on the host, where they are known; a view of the shadow."""
    storage = storage_of(tensor)
    shadow = None if storage is None else getattr(storage, _SHADOW, None)
    if shadow is None or shadow.nbytes() != storage.nbytes():
        return None
    with backing:
        empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return empty.set_(shadow, tensor.storage_offset(), tensor.shape, tensor.stride())


def follow(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
    """`func` has been run on shapes: do the same with the values, where all are known."""
    written, makes = _nature(func)
    if written:
        targets = [a for i, a in enumerate(args) if i in written] + [kwargs[n] for n in written if n in kwargs]
        shadowed = [s for s in map(storage_of, _tensors(targets)) if getattr(s, _SHADOW, None) is not None]
        if shadowed and _computed(func, args, kwargs) is None:
            for storage in shadowed:
                delattr(storage, _SHADOW)
    elif makes and any(_small(t) for t in _tensors(out)):
        found = _computed(func, args, kwargs)
        if found is not None:
            for shape, real in zip(_tensors(out), _tensors(found), strict=True):
                _give(shape, real)


def compute(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of `func`, on the host, where all values that it asks for are known; else None."""
    return _computed(func, args, kwargs)


def _computed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func._schema.name in _LIKE:  # their values do not follow from those of the first argument
        with backing:
            args = (torch.empty(args[0].shape, dtype=args[0].dtype, device="cpu"), *args[1:])
    if _drawn(func):
        return None
    try:
        real = _real(args), {k: _real(v) for k, v in kwargs.items() if k not in ("device", "pin_memory", "generator")}
    except _Unknown:
        return None
    with backing:
        try:
            if "device" in kwargs:
                return func._op(*real[0], **real[1], device=torch.device("cpu"))
            return func._op(*real[0], **real[1])
        except (RuntimeError, IndexError):
            return None  # on the GPU this would surface later, or never


class _Unknown(Exception):
    pass


def _real(item: Any) -> Any:
    if isinstance(item, Tensor):
        found = value(item)
        if found is None:
            if getattr(storage_of(item), NAME, None) is not None or item.device.type != "cpu" or item.numel() > _MOST:
                raise _Unknown
            return item
        return found
    if isinstance(item, (list, tuple)):
        return type(item)(map(_real, item))
    return item


def _small(tensor: Tensor) -> bool:
    if tensor.dtype not in _KINDS or tensor.numel() > _MOST or tensor.layout is not torch.strided:
        return False
    return getattr(storage_of(tensor), NAME, None) is not None


def _give(shape: Tensor, real: Tensor) -> None:
    """Note the values `real` on the storage of `shape`."""
    if not _small(shape) or real.dtype is not shape.dtype:
        return
    with backing:
        storage = shape.untyped_storage()
        if storage.nbytes() > 8 * _MOST:
            return
        shadow = torch.UntypedStorage(storage.nbytes(), device="cpu")
        setattr(storage, _SHADOW, shadow)
        into = torch.empty(0, dtype=shape.dtype, device="cpu").set_(
            shadow, shape.storage_offset(), shape.shape, shape.stride()
        )
        into.copy_(real)


def _tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    return [t for item in tree for t in _tensors(item)] if isinstance(tree, (list, tuple)) else []


@cache
def _nature(func: Any) -> tuple[frozenset[Any], bool]:
    """Places and names of the arguments that it writes to; whether it makes tensors that follow from its arguments."""
    schema = func._schema
    written: set[Any] = set()
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written |= {place, argument.name}
    views = schema.returns and all(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    return frozenset(written), not (views or _drawn(func))


def _drawn(func: Any) -> bool:
    """Whether its results do not follow from its arguments."""
    return torch.Tag.nondeterministic_seeded in func.tags or "empty" in func._schema.name

"""Track small integer and boolean values in shapes-only mode, where they follow from constants.

Positions, masks and the like decide which way a program goes. So such tensors, made on the GPU or copied from the host,
have a shadow with their values, on their storage; what is computed from them alone is computed for them, too. Anything
else that writes to a storage takes its shadow away. Of floating-point numbers only masks and single ones
are followed.

What nobody knows is an ordinary number where a program asks: is the loss nan, is it smaller than the best so far? It is
finite, positive and unlike any that it is compared with; the answer is on the result's storage, one for all elements.
Which class a whole number stands for is no such question.
"""

from __future__ import annotations

import operator
from functools import cache
from typing import Any

import torch

from ..scope.in_force import backing
from ..scope.labels import NAME, storage_of
from .results import tensors_in

Tensor = torch.Tensor
_item: Any = torch._C.TensorBase.item
_SHADOW = "_gpulab_shadow"  # on a storage without values: one of as many bytes with them
_ASSUMED = "_gpulab_assumed"  # on a storage without values: the assumed value of all its elements
_MOST = 1 << 16  # elements
ORDINARY = 1  # stands for an unknown number where one is needed
_TESTS = {"isnan": False, "isinf": False, "isposinf": False, "isneginf": False, "isfinite": True}
_COMPARISONS = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq,
                "ne": operator.ne}  # fmt: skip
_OF_TWO = {"logical_and": operator.and_, "bitwise_and": operator.and_, "mul": operator.and_,
           "logical_or": operator.or_, "bitwise_or": operator.or_, "logical_xor": operator.xor,
           "bitwise_xor": operator.xor}  # fmt: skip
_OF_ALL = {
    "any",
    "all",
    "amax",
    "amin",
    "max",
    "min",
    "clone",
    "_to_copy",
    "logical_not",
    "bitwise_not",
    "sum",
    "count_nonzero",
}
_LIKE = {f"aten::{n}" for n in ("ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full")}
WHOLE = frozenset((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))
_MOST_OF_MASK = 1 << 22  # elements, of a mask with two dimensions
_MASKS = frozenset((torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64))
# Operations that make floating-point masks, and those of them that make masks without inputs.
_MADE = {f"aten::{n}" for n in ("zeros", "ones", "full", "eye")}
_MASKING = _MADE | _LIKE | {
    f"aten::{n}" for n in ("triu", "tril", "masked_fill", "where", "_to_copy", "clone", "repeat", "cat", "stack")
}  # fmt: skip


def value(tensor: Tensor) -> Tensor | None:
    """Return `tensor` with its values on the host, where they are known; a view of the shadow."""
    storage = storage_of(tensor)
    shadow = None if storage is None else getattr(storage, _SHADOW, None)
    if shadow is None or shadow.nbytes() != storage.nbytes():
        return None
    with backing:
        empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return empty.set_(shadow, tensor.storage_offset(), tensor.shape, tensor.stride())


def outside(tensor: Tensor, least: int, greatest: int, ignored: int | None = None) -> bool:
    """Return True if a known element of `tensor`, on the GPU or the host, is below `least` or above `greatest`.

    The value `ignored` passes.
    """
    try:
        found = _real(tensor)
    except _Unknown:
        return False
    with backing:
        if ignored is not None:
            found = found[found != ignored]
        if not found.numel():
            return False
        low, high = map(_item, found.aminmax())
        return bool(low < least or high > greatest)


def follow(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
    """Repeat `func`, which ran on shapes, with the values, where all are known."""
    written, makes, asks = _nature(func)
    if asks:
        _assume(asks, args, out)
    if written:
        targets = [a for i, a in enumerate(args) if i in written] + [kwargs[n] for n in written if n in kwargs]
        storages = [s for s in map(storage_of, tensors_in(targets)) if s is not None]
        for storage in storages:
            if getattr(storage, _ASSUMED, None) is not None:
                delattr(storage, _ASSUMED)
        shadowed = [s for s in storages if getattr(s, _SHADOW, None) is not None]
        if shadowed and _computed(func, args, kwargs) is None:
            for storage in shadowed:
                delattr(storage, _SHADOW)
    elif makes and any(_small(t) or _masks(func, t, args) for t in tensors_in(out)):
        found = _computed(func, args, kwargs)
        if found is not None:
            for shape, real in zip(tensors_in(out), tensors_in(found), strict=True):
                if _small(shape) or _masks(func, shape, args):
                    _give(shape, real)


def forget(tensor: Tensor) -> None:
    """Drop the values of `tensor`, overwritten by an operation whose schema returns a new one."""
    storage = storage_of(tensor)
    for name in (_SHADOW, _ASSUMED):
        if getattr(storage, name, None) is not None:
            delattr(storage, name)


def written(tensors: list[Tensor], values: list[Tensor] | None = None) -> None:
    """Set the values of `tensors`, overwritten outside of operations; None where they are unknown.

    A storage with only a part of its values known counts as unknown.
    """
    for place, tensor in enumerate(tensors):
        of_storage = [t for t in tensors if storage_of(t) is storage_of(tensor)]
        whole = sum(t.nbytes for t in of_storage) >= tensor.untyped_storage().nbytes()
        if values is None or (value(tensor) is None and not whole):
            forget(tensor)
            continue
        if assumed(tensor) is not None:
            delattr(storage_of(tensor), _ASSUMED)
        if value(tensor) is None:
            _give(tensor, values[place])
        into = value(tensor)
        if into is not None:
            with backing:
                into.copy_(values[place])


def assumed(tensor: Tensor) -> Any:
    """Return the value that each element of `tensor` is assumed to have; None where nothing is assumed."""
    return getattr(storage_of(tensor), _ASSUMED, None)


def _assume(asks: str, args: tuple[Any, ...], out: Any) -> None:
    """Record the assumed result of a comparison of unknown values."""
    if not isinstance(out, Tensor) or getattr(storage_of(out), NAME, None) is None:
        return
    if asks in _COMPARISONS:
        answer = _compared(asks, *args[:2])
    elif asks in _TESTS:
        answer = _TESTS[asks] if value(args[0]) is None else None
    else:
        two = asks in _OF_TWO
        settled = _settled(_OF_TWO[asks], args[:2], out) if two and not out.is_floating_point() else None
        if settled is not None:
            setattr(storage_of(out), _ASSUMED, settled if out.dtype is torch.bool else int(settled))
            return
        given = [assumed(item) if isinstance(item, Tensor) else item for item in args[: 1 + two]]
        if not all(isinstance(item, int) for item in given):
            return
        answer = _OF_TWO[asks](*given) if asks in _OF_TWO else given[0]
        if asks in ("logical_not", "bitwise_not"):
            answer = not answer
        if asks in ("sum", "count_nonzero"):
            answer = int(answer) * (args[0].numel() // max(1, out.numel()))
    if isinstance(answer, Tensor):
        _give(out, answer)
    elif answer is not None:
        setattr(storage_of(out), _ASSUMED, bool(answer) if out.dtype is torch.bool else int(answer))


def _settled(of_two: Any, sides: tuple[Any, ...], out: Tensor) -> bool | None:
    """Return the result where one side alone decides each element: `x or True`, `x and False`."""
    decides = {operator.or_: True, operator.and_: False}.get(of_two)
    if decides is None or (decides and out.dtype is not torch.bool):
        return None
    for side in sides:
        found = assumed(side) if isinstance(side, Tensor) else side
        if found is None:
            real = value(side)
            with backing:
                if real is not None and real.numel() and bool((real == decides).all()):
                    found = decides
        if found == decides and isinstance(found, int):
            return decides
    return None


def _compared(asks: str, *sides: Any) -> Any:
    """Return the result of a comparison with an unknown side: one, or one per element of the known side."""
    one, other = sides
    if one is other:  # of a number with itself: PyTorch's own isnan is x != x
        return asks in ("eq", "le", "ge") if value(one) is None else None
    numbers = [_number(side) for side in sides]
    unknown = [number is _UNKNOWN for number in numbers]
    if not any(unknown):
        if all(assumed(side) is None for side in sides if isinstance(side, Tensor)):
            return None  # all is known
    elif asks in ("eq", "ne"):  # a class or a word has no ordinary answer, but a count of nonzero elements has
        floating = any(isinstance(side, Tensor) and side.is_floating_point() for side in sides)
        count = not one.dim() and any(type(number) is int and number == 0 for number in numbers)
        return asks == "ne" if floating or count else None
    elif all(unknown):
        return False
    with backing:
        found = _COMPARISONS[asks](*(ORDINARY if number is _UNKNOWN else number for number in numbers))
    return found if not isinstance(found, Tensor) or found.numel() > 1 else bool(found)


_UNKNOWN = object()


def _number(side: Any) -> Any:
    if not isinstance(side, Tensor):
        return side
    found = assumed(side)
    if found is not None:
        return found
    try:
        real = _real(side)
    except _Unknown:
        return _UNKNOWN
    with backing:
        return real.item() if real.numel() == 1 else real


def compute(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of `func` on the host if all values that it needs are known, else None."""
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
            if getattr(storage_of(item), NAME, None) is not None or item.device.type != "cpu" or not _fits(item):
                raise _Unknown
            return item
        return found
    if isinstance(item, (list, tuple)):
        return type(item)(map(_real, item))
    return item


def _fits(tensor: Tensor) -> bool:
    return tensor.numel() <= (_MOST_OF_MASK if tensor.dtype in _MASKS and tensor.dim() == 2 else _MOST)


def _small(tensor: Tensor) -> bool:
    if tensor.dtype not in WHOLE or not _fits(tensor) or tensor.layout is not torch.strided:
        return False
    return getattr(storage_of(tensor), NAME, None) is not None


def _masks(func: Any, tensor: Tensor, args: tuple[Any, ...]) -> bool:
    """Return True if this may be a floating-point mask, or a scalar such as the best loss so far.

    Weights, data and activations are not tracked.
    """
    if func._schema.name not in _MASKING or tensor.dtype not in _MASKS or tensor.dim() == 1 or not _fits(tensor):
        return False
    if getattr(storage_of(tensor), NAME, None) is None:
        return False
    if func._schema.name in _MADE:
        return tensor.numel() <= _MOST or tensor.shape[-1] == tensor.shape[-2]
    if not args or not isinstance(args[0], Tensor):
        return True
    if getattr(storage_of(args[0]), NAME, None) is not None:
        return func._schema.name == "aten::where" or value(args[0]) is not None
    return not tensor.dim() or _says_yes_or_no(args[0])


def _says_yes_or_no(tensor: Tensor) -> bool:
    """Return True if a host tensor has only zeros, ones, and large negative numbers that mask scores."""
    with backing:
        for part in (tensor.flatten()[:8], tensor):  # data and weights are found out by the first numbers
            if not ((part == 0) | (part == 1) | (part <= _FORBIDS)).all():
                return False
    return True


_FORBIDS = -1e4


def _give(shape: Tensor, real: Tensor) -> None:
    """Store the values `real` on the storage of `shape`."""
    if real.dtype is not shape.dtype or not _fits(shape) or getattr(storage_of(shape), NAME, None) is None:
        return
    with backing:
        storage = shape.untyped_storage()
        if storage.nbytes() > 8 * max(_MOST, shape.numel()):
            return
        shadow = torch.UntypedStorage(storage.nbytes(), device="cpu")
        setattr(storage, _SHADOW, shadow)
        into = torch.empty(0, dtype=shape.dtype, device="cpu").set_(
            shadow, shape.storage_offset(), shape.shape, shape.stride()
        )
        into.copy_(real)


@cache
def _nature(func: Any) -> tuple[frozenset[Any], bool, str]:
    """Return positions and names of the arguments that it writes to; True if its results follow from its arguments;
    and its name, if it compares values or continues with a comparison's result.
    """
    schema = func._schema
    written: set[Any] = set()
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written |= {place, argument.name}
    views = schema.returns and all(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    name = func._schema.name.partition("::")[2]
    asks = not written and (name in _TESTS or name in _COMPARISONS or name in _OF_TWO or name in _OF_ALL)
    return frozenset(written), not (views or _drawn(func)), name if asks else ""


def written_by(func: Any) -> frozenset[Any]:
    """Return positions and names of the arguments that `func` writes to."""
    return _nature(func)[0]


def _drawn(func: Any) -> bool:
    """Return True if its results do not follow from its arguments."""
    return torch.Tag.nondeterministic_seeded in func.tags or "empty" in func._schema.name

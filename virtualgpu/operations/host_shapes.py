"""CPU tensors without values for shapes-only mode: large factory results, and what is computed from them.

Most programs make a model on the host and move it to the GPU. On shapes alone its weights are not needed there either:
they are tensors of the host whose memory is never touched, so that the system never gives it, under a label that says
so. (With `meta` tensors, autograd refuses where they meet others of the host: a gradient must be where its tensor is.)
A small tensor has its values, and so has what comes from NumPy, from files and from data sets.
"""

from __future__ import annotations

import math
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from ..scope import host_memory
from ..scope.in_force import backing
from ..scope.labels import NAME, HostShape, storage_of
from ..scope.refusals import NoValues
from . import known_values
from .results import map_tensors, tensors_in
from .shapes_only import SYNCHRONISING

if TYPE_CHECKING:
    from ..gpu import VirtualGPU

Tensor = torch.Tensor
Args = tuple[Any, ...]
Kwargs = dict[str, Any]

LEAST = 1 << 20  # bytes from which a tensor has no values
LEAST_WHOLE = 64 << 20  # of whole numbers: they are words, labels and places, by which programs decide
_KEEP = {"aten::_to_copy", "aten::randperm", "aten::scalar_tensor"}  # copies keep values, and an order is for reading
_LIKE = ("_like", "new_")


def label_of(tensor: Tensor) -> HostShape | None:
    """Return the label of a host tensor without values; None for any other tensor."""
    label = getattr(storage_of(tensor), NAME, None)
    return label if type(label) is HostShape else None


def any_host_shape(tree: Any) -> bool:
    """Return True if lists and tuples contain a host tensor without values."""
    if not HostShape.made:
        return False
    for item in tree:
        if isinstance(item, Tensor):
            if label_of(item) is not None:
                return True
        elif (
            isinstance(item, (list, tuple)) and item and not isinstance(item[0], (int, float)) and any_host_shape(item)
        ):
            return True
    return False


# -- made ------------------------------------------------------------------------------------------------------------


def create(gpu: VirtualGPU, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run a host factory: without values if its result is large, or made like a tensor without values.

    With values, raises MemoryError where this machine lacks the memory.
    """
    if any_host_shape(args):  # of a GPU around this one, perhaps
        return run_on_shapes(func, args, kwargs)
    if gpu.compute:
        nbytes = _size(func, args, kwargs)
        if nbytes >= host_memory.WORTH_ASKING:
            host_memory.check_room(nbytes, f"a tensor of {nbytes / 2**20:,.0f} MiB is to be made on the host")
        return func._op(*args, **kwargs)
    if not _invents(func) or kwargs.get("layout") not in (None, torch.strided):
        return func._op(*args, **kwargs)
    if _size(func, args, kwargs) < LEAST and _sized(func):
        return func._op(*args, **kwargs)
    with backing:
        arguments = {**kwargs, "device": torch.device("meta")}
        if "generator" in arguments:
            arguments["generator"] = None
        shapes = func._op(*map_tensors(lambda t: t.to("meta") if t.dim() else t, args), **arguments)
    whole = not (shapes.is_floating_point() or shapes.is_complex())
    if shapes.untyped_storage().nbytes() < (LEAST_WHOLE if whole else LEAST):
        return func._op(*args, **kwargs)
    return shape_of(shapes, func)


@cache
def _invents(func: Any) -> bool:
    """Return True if it creates new values, rather than those of an argument."""
    name = func._schema.name
    if name in _KEEP or not name.startswith("aten::"):
        return False
    takes = [a for a in func._schema.arguments if "Tensor" in str(a.type)]
    return not takes or any(part in name for part in _LIKE)


@cache
def _sized(func: Any) -> bool:
    """Return True if `_size` can compute the result's size."""
    arguments = func._schema.arguments
    return any(a.name == "size" and place < 2 for place, a in enumerate(arguments)) or "_like" in func._schema.name


def _size(func: Any, args: Args, kwargs: Kwargs) -> int:
    """Return the bytes of a factory's result if its arguments determine them, else 0."""
    if not _sized(func) or not args:
        return 0
    like = args[0] if isinstance(args[0], Tensor) else None
    numbers = like.shape if like is not None and "_like" in func._schema.name else args[-1 if like is None else 1]
    if like is None:
        numbers = next((a for a in args if isinstance(a, (list, tuple))), ())
    dtype = kwargs.get("dtype") or (like.dtype if like is not None else torch.get_default_dtype())
    return math.prod(numbers) * dtype.itemsize if all(isinstance(n, int) for n in numbers) else 0


# -- computed --------------------------------------------------------------------------------------------------------


def run_on_shapes(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run a host operation on tensors without values: return the shapes of its results.

    Tensors that it writes to lose their values. Raises NoValues where the host would read one.
    """
    if func.name() in SYNCHRONISING:
        found = known_values.compute(func, args, kwargs)
        if found is None and func.name() == "aten::_local_scalar_dense":
            found = known_values.assumed(args[0])
        if found is None:
            raise refusal(args, func)
        return found
    with backing:
        given: dict[int, Tensor] = {}
        held: list[Tensor] = []  # or another tensor could get its number

        def shape(tensor: Tensor) -> Tensor:
            if tensor.layout is torch.strided:
                meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_META)
            else:
                meta = tensor.to(_META)
            given[id(meta)] = tensor
            held.append(meta)
            return meta

        named = {key: _META if key == "device" else value for key, value in kwargs.items() if key != "generator"}
        arguments = map_tensors(shape, args), map_tensors(shape, named)
        try:
            out = func._op(*arguments[0], **arguments[1])
        except NotImplementedError as error:
            if "meta" not in str(error).lower():
                raise
            raise refusal(args, func) from None
        named = dict(zip((a.name for a in func._schema.arguments), arguments[0], strict=False)) | arguments[1]
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                map_tensors(lambda meta: _written(given[id(meta)], meta, func), named.get(argument.name))
        return map_tensors(lambda t: given[id(t)] if id(t) in given else shape_of(t, func), out)


_META = torch.device("meta")


def shape_of(meta: Tensor, made_by: Any) -> Tensor:
    """Return a host tensor with the shape of `meta` and no values."""
    with backing:
        storage = torch.UntypedStorage(meta.untyped_storage().nbytes(), device="cpu")
        made = torch.empty(0, dtype=meta.dtype, device="cpu")
        made.set_(storage, meta.storage_offset(), meta.shape, meta.stride())
    setattr(storage, NAME, HostShape(made_by, made, _line()))
    return made


def _written(tensor: Tensor, meta: Tensor, func: Any) -> Tensor:
    """Return `tensor` after `func` has written to it and changed its shape to that of `meta`."""
    forget(tensor, func)
    if (tensor.shape, tensor.stride()) != (meta.shape, meta.stride()):
        offset = tensor.storage_offset() + meta.storage_offset()
        missing = offset * meta.itemsize + meta.untyped_storage().nbytes()
        if missing > tensor.untyped_storage().nbytes():
            tensor.untyped_storage().resize_(int(missing))
        tensor.as_strided_(meta.shape, meta.stride(), offset)
    return tensor


def forget(tensor: Tensor, made_by: Any) -> Tensor:
    """Drop the values of a host tensor that `made_by` has written to."""
    if label_of(tensor) is None:
        if tensor.is_floating_point():
            tensor.fill_(math.nan)  # for code that reads the memory directly, as NumPy may
        setattr(storage_of(tensor), NAME, HostShape(made_by, tensor, _line()))
    return tensor


def copy(gpu: VirtualGPU, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run `copy_` between host tensors, some without values."""
    into, source = args[:2]
    pairs = zip(into, source, strict=True) if isinstance(into, (list, tuple)) else [(into, source)]
    with backing:
        for one, other in pairs:
            if label_of(other) is not None:
                forget(one, func)
    return into if isinstance(into, Tensor) else None


# -- asked -----------------------------------------------------------------------------------------------------------


def refusal(args: Any, asked: Any) -> NoValues:
    """Return the error for a read of a missing value on the host; it names the tensor."""
    label = next((found for found in map(label_of, tensors_in(args)) if found is not None), None)
    what = "a tensor of the host" if label is None else str(label)
    return NoValues(
        f"{asked} reads the values of {what}. With compute=False, what PyTorch makes on the host has shapes only from "
        f"{LEAST >> 20} MiB on. What comes from NumPy, files and data sets keeps its values; with compute=True it runs."
    )


def _line() -> str:
    """Return the current line of the user's program, as `train.py:12`; "" outside of it."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__") or ""
        if not f"{module}.".startswith(_NOT_THE_USERS):
            return f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


_NOT_THE_USERS = ("torch.", "virtualgpu.", "transformers.", "timm.", "contextlib.", "functools.", "importlib.")

"""Operations in shapes-only mode: run on meta tensors, and report reads of missing values."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..scope.in_force import backing
from ..scope.labels import storage_of
from ..scope.refusals import NotMirrored, NoValues
from . import error_words, known_values, shape_cache
from .results import map_tensors, tensors_in

if TYPE_CHECKING:
    from ..gpu import VirtualGPU
    from ..scope.device import Device

Tensor = torch.Tensor
aten = torch.ops.aten
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
# The host waits for these: they give Python numbers, or tensors whose shape depends on values.
SYNCHRONISING = {
    "aten::_local_scalar_dense",
    "aten::allclose",
    "aten::equal",
    "aten::is_nonzero",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::unique_dim_consecutive",
    "aten::repeat_interleave.Tensor",
    "aten::bincount",
}
KNOWN = "_gpulab_known"  # on a storage without values: its single known value


def run_on_meta(gpu: VirtualGPU, device: Device, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Return the shapes of an operation's results."""
    try:
        with backing:
            return shape_cache.run_cached(gpu.remembered, func, args, kwargs)
    except NotImplementedError as error:
        if "meta" not in str(error).lower():
            raise
        if not func._schema.returns:
            return None  # it writes to its arguments, and returns nothing
        raise NotMirrored(
            f"{func} is not mirrored in shapes-only mode: PyTorch does not know its result's shape without running it. "
            "With compute=True it runs."
        ) from None
    except RuntimeError as error:
        # CUDA takes scalars of the host, some of PyTorch's shape functions do not.
        moved = [t for t in tensors_in((args, tuple(kwargs.values()))) if t.dim() == 0 and not t.is_meta]
        if not moved:
            raise error_words.of_meta(func, args, kwargs, error) from None
        with backing:
            bring = partial(map_tensors, lambda t: t.to("meta") if t.dim() == 0 else t)
            return func._op(*bring(args), **bring(kwargs))


def index(gpu: VirtualGPU, device: Device, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run `index`, where a mask with known values determines the number of elements."""
    tensor, indices = args
    places: list[Tensor | None] = []
    for item in indices:
        found = None if item is None or item.dtype is not torch.bool else _places(item)
        places += [item] if found is None else found
    return run_on_meta(gpu, device, func, (tensor, places), kwargs)


class _Thread(threading.local):
    """Return True if a mask over ranks selects all of them."""

    takes_ranks = False


_thread = _Thread()


@contextlib.contextmanager
def each_rank_has_a_batch() -> Iterator[None]:
    """Within the block, masks that are assumed true select everything, such as the ranks with a batch."""
    before, _thread.takes_ranks = _thread.takes_ranks, True
    try:
        yield
    finally:
        _thread.takes_ranks = before


def _places(mask: Tensor) -> list[Tensor] | None:
    """Return the indices of the true elements of `mask`, one tensor per dimension."""
    known = known_values.value(mask)
    with backing:
        if known is not None:
            return [place.to("meta") for place in known.nonzero(as_tuple=True)]
        if not (_thread.takes_ranks and known_values.assumed(mask)):
            return None
        return [torch.empty(mask.numel(), dtype=torch.int64, device="meta") for _ in mask.shape]


def copy_without_values(gpu: VirtualGPU, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run `copy_` in shapes-only mode."""
    if func is not aten.copy_.default:
        for into, source in zip(args[0], args[1], strict=True):
            copy_without_values(gpu, aten.copy_.default, (into, source), {})
        return None
    into, source = args[:2]
    with backing:
        if into.device.type == "meta":
            return func._op(into, source.to("meta"), **kwargs)
        gpu.warn_unknown()
        return into.fill_(math.nan) if into.is_floating_point() else into.zero_()


def _counts(weights: Tensor | None, length: int) -> Tensor:
    """Compute `torch.bincount`."""
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype is torch.float32 else torch.float64
    with backing:
        return torch.empty(length, dtype=dtype, device="meta")


def unknown_value(gpu: VirtualGPU, func: Any, args: Args) -> Any:
    """Answer a read of a value that does not exist; `args` are all of the schema's."""
    if func.name() == "aten::bincount" and args[2]:
        gpu.warn_unknown()  # no number is above those that were expected
        return _counts(*args[1:])
    if func.name() != "aten::_local_scalar_dense":
        raise NoValues(
            f"{func} depends on values, and with compute=False the virtual GPU has none. With compute=True it runs."
        )
    known = getattr(storage_of(args[0]), KNOWN, None)
    if known is not None:
        return known
    assumed = known_values.assumed(args[0])
    if assumed is not None:
        gpu.warn_unknown()
        return assumed
    if args[0].dtype == torch.bool:
        raise NoValues(
            "a branch on a tensor's value: with compute=False the virtual GPU knows only shapes, not values. "
            "Use compute=True, or decide on something that does not come from a tensor."
        )
    gpu.warn_unknown()
    whole = not (args[0].is_floating_point() or args[0].is_complex())
    return known_values.ORDINARY if whole else float(known_values.ORDINARY)

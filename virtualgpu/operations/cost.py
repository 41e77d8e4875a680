"""Charge one operation to the clock: host overhead, and the slower of arithmetic and memory traffic.

Most operations are memory-bound: they read their arguments and write their results. Matrix products, convolutions,
attention and recurrent layers are compute-bound (`arithmetic`); a few others move less or more than their arguments.
Recently accessed data is read from the L2 cache.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .. import own_code
from . import arithmetic, layouts, lists, norms
from .traffic import Args, Cost, Rule, reading, traffic, writes, writing

if TYPE_CHECKING:
    from ..scope.device import Device

_graph_task: Any = torch._C._current_graph_task_id
_recording: Any = torch.is_grad_enabled
aten = torch.ops.aten
Tensor = torch.Tensor


def charge(device: Device, func: Any, args: Args, out: Any) -> None:
    """Charge an operation that has run to the clocks of host and device, in the current stream."""
    try:
        rule, name, kind, _ = _KNOWN[id(func)]
    except KeyError:
        rule, name, kind, _ = _KNOWN[id(func)] = RULES.get(func) or _rule(func), _name(func), _kind(func), func
    timer = device.timer
    clock = timer.clock
    rates, costs = clock.rates, clock.costs
    before = device.moved
    seconds, flops, kernels, joules, after = rule(device, func, args, out)
    if not kernels:
        return
    nbytes = device.moved - before - (after[2] if after else 0)
    if kernels > 1:
        seconds, flops, joules, nbytes = seconds / kernels, flops / kernels, joules / kernels, nbytes // kernels
    if rates.power is not None:
        joules += device.moved * rates.power.per_byte_pj * 1e-12 / kernels
        device.moved = 0
    if _graph_task() != -1:
        host_s = costs.backward
    elif kind == "plain":
        host_s = costs.plain
        first = args[0] if args else None
        if first.__class__ is list or first.__class__ is tuple:
            host_s += costs.tensor * len(first)
        elif _recording() and _recorded(args):
            host_s += costs.recorded
    else:
        host_s = costs.cast if kind == "cast" else costs.plain + costs.layer if _in_forward() else costs.plain
        if _recording() and _recorded(args):
            host_s += costs.recorded
    seconds += rates.kernel_s
    end = timer.kernel(device.stream, seconds, name, flops, host_s, joules, nbytes)
    for _ in range(kernels - 1):
        end = timer.kernel(device.stream, seconds, name, flops, costs.launch, joules, nbytes)
    if after:
        name, seconds, nbytes = after
        end = timer.kernel(device.stream, seconds + rates.kernel_s, name, 0.0, costs.launch, 0.0, nbytes)
    if device.blocking:
        clock.wait(end, name)


# Of an operation: its rule, its name, what the host does for it. By its id, since its hash is computed in Python.
_KNOWN: dict[int, tuple[Rule, str, str, Any]] = {}


def _recorded(args: Any) -> bool:
    """Return True if autograd records an operation on these arguments."""
    for item in args:
        if isinstance(item, torch.Tensor):
            if item.requires_grad:
                return True
        elif (item.__class__ is list or item.__class__ is tuple) and _recorded(item):
            return True
    return False


def _kind(func: Any) -> str:
    """Return the kind of host overhead: usually called by a layer, a cast, or neither."""
    if func is aten._to_copy.default:
        return "cast"
    name = _name(func)
    return "layer" if any(part in name for part in _LAYER_NAMES) and not name.startswith(_NO_LAYERS) else "plain"


_LAYER_NAMES = (
    "convolution", "addmm", "mm", "bmm", "baddbmm", "embedding", "dropout", "norm", "pool", "relu", "elu", "silu",
    "sigmoid", "hardtanh", "softmax", "attention", "loss", "_rnn", "upsample", "mish",
)  # fmt: skip


_NO_LAYERS = (
    "_foreach",
    "batch_norm_gather_stats",
    "batch_norm_elemt",
)  # of a synchronised norm, its first kernel is one


def _in_forward() -> bool:
    """Return True if a `forward` called this operation, not a line outside of modules."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        try:
            kind = _FRAMES[code]
        except KeyError:
            ours = code.co_filename.startswith((_TORCH, *own_code.folders())) and code.co_filename not in _IN_PARTS
            kind = _FRAMES[code] = "forward" if code.co_name == "forward" else "between" if ours else "program"
        if kind != "between":
            return kind == "forward"
        frame = frame.f_back
    return False


_TORCH = str(Path(torch.__file__).parent) + os.sep
_IN_PARTS = {str(Path(__file__).with_name(name)) for name in ("layers.py", "nested.py")}  # C++ calls what these call
_FRAMES: dict[Any, str] = {}


def fused(device: Device, name: str, *moved: Any) -> None:
    """Put a kernel that only CUDA has on the device's clock: it reads and writes `moved`."""
    timer = device.timer
    costs = timer.clock.costs
    rates = timer.clock.rates
    nbytes = traffic(moved)
    host_s = costs.backward if _graph_task() != -1 else costs.plain + costs.layer
    timer.kernel(device.stream, rates.memory_seconds(nbytes) + rates.kernel_s, name, 0.0, host_s, nbytes=nbytes)


def kernel(device: Device, name: str, found: Cost) -> None:
    """Put a kernel of this cost, which is no operation of PyTorch's, on the device's clock."""
    timer = device.timer
    rates, costs = timer.clock.rates, timer.clock.costs
    joules = found.joules
    if rates.power is not None:
        joules += device.moved * rates.power.per_byte_pj * 1e-12
        device.moved = 0
    host_s = costs.backward if _graph_task() != -1 else costs.plain + costs.layer
    end = timer.kernel(device.stream, found.seconds + rates.kernel_s, name, found.flops, host_s, joules)
    if device.blocking:
        timer.clock.wait(end, name)


@cache
def _name(func: Any) -> str:
    return str(func.name().removeprefix("aten::"))


# -- memory traffic of operations -------------------------------------------------------------------------------------


def _moves(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """All arguments are read, all results written."""
    seconds = reading(device, *args) + writing(device, out)
    return Cost(seconds, kernels=1 if seconds else 0)


def _in_place(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """Nothing is returned; what is written in place is read and written."""
    written = [args[i] for i in _written(func) if i < len(args)]
    seconds = reading(device, args) + writing(device, written)
    return Cost(seconds, kernels=1 if seconds else 0)


def _of_lists(device: Device, func: Any, args: Args, out: Any) -> Cost:
    return lists.cost(device, args, [out, *(args[i] for i in _written(func) if i < len(args))])


def _picks(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """Read as much as is returned: a few rows of a table."""
    rate = device.timer.clock.rates.memory_rate
    return Cost(writing(device, out) + traffic(out) / rate + reading(device, *args[1:]))


def _puts(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """Values are added to a few places of the first argument."""
    return Cost(3 * traffic(args[1:]) / device.timer.clock.rates.memory_rate)


def _dropped(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """In inference mode it arrives as a whole; in evaluation it does nothing."""
    return (_moves if args[1] and args[2] else _free)(device, func, args, out)


def _free(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """No kernel at all."""
    return Cost(0.0, kernels=0)


@cache
def _written(func: Any) -> tuple[int, ...]:
    return tuple(i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write)


RULES: dict[Any, Rule] = {
    **arithmetic.RULES,
    **norms.RULES,
    **layouts.RULES,
    **dict.fromkeys((aten.dropout.default, aten.dropout_.default, aten.feature_dropout.default), _dropped),
    **dict.fromkeys(
        (
            aten.embedding.default, aten.index.Tensor, aten.index_select.default, aten.gather.default,
            aten.nll_loss_forward.default, aten.nll_loss2d_forward.default, aten._unsafe_index.Tensor,
        ),
        _picks,
    ),
    **dict.fromkeys(
        (aten.index_put_.default, aten._index_put_impl_.default, aten.scatter_add_.default, aten.index_add_.default),
        _puts,
    ),
    **dict.fromkeys((aten.nll_loss_backward.default, aten.nll_loss2d_backward.default, aten.fill_.Scalar), writes),
}  # fmt: skip


def _rule(func: Any) -> Rule:
    """The rule of an operation that is not listed."""
    name = _name(func)
    if name.startswith(
        (
            "_local_scalar_dense",
            "is_nonzero",
            "empty",
            "new_empty",
            "set_",
            "resize",
            "_cudnn_rnn_flatten_weight",
            "_unsafe_view",
            "_pack_padded_sequence",
            "fsdp::record_grad_output_stream",  # a note for the host
        )
    ):
        return _free
    if name.startswith(
        ("zero_", "fill_", "ones", "zeros", "full", "rand", "new_zeros", "new_ones", "new_full", "arange")
    ):
        return writes
    if name.split(".")[0].endswith("_") and name.split(".")[0].rstrip("_") in (
        "normal",
        "uniform",
        "bernoulli",
        "random",
    ):
        return writes
    if name.startswith("fsdp::all_gather_copy_in"):
        return lists.gathered_from
    if name.startswith(("fsdp::split_with_sizes_copy", "fsdp::chunk_cat")):
        return lists.copied_into
    if name.startswith(("_foreach_", "_fused_", "_amp_foreach_")):
        return _of_lists
    if not func._schema.returns:
        return _in_place
    return _moves

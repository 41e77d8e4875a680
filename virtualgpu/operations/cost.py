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
from . import arithmetic, temporaries
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
    seconds, flops, kernels, joules = rule(device, func, args, out)
    if not kernels:
        return
    nbytes = device.moved - before
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


def _norm(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """Statistics first: what is normalised is read for them, and again."""
    return Cost(reading(device, args[0], args[0]) + reading(device, *args[1:]) + writing(device, out))


def _norm_backward(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """The gradient and what was normalised are read for two sums, and again."""
    return Cost(reading(device, *args[:2], *args[:2]) + reading(device, *args[2:]) + writing(device, out))


def _batch_norm(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """In evaluation it is a scale and a shift."""
    if not args[5]:
        return _at_least(_moves(device, func, args, out), _in_evaluation(device, args[0], args[1]))
    return _at_least(_norm(device, func, args, out), _of_planes(device, args[0], args[1], 3))


def _batch_norm_backward(device: Device, func: Any, args: Args, out: Any) -> Cost:
    return _at_least(_norm_backward(device, func, args, out), _of_planes(device, args[1], args[2], 5))


def _at_least(cost: Cost, seconds: float) -> Cost:
    return cost if cost.seconds >= seconds else cost._replace(seconds=seconds)


# Numbers per microsecond that a multiprocessor of an H200 passes in a batch norm: cuDNN's kernel, PyTorch's (which has
# bfloat16), and backward; "near" for planes that it keeps while it has the sums.
_PASSED = {
    "cudnn": 5200.0, "near": 12000.0, "pytorch": 3600.0, "backward": 3600.0, "pytorch backward": 5400.0,
    "evaluation": 3300.0, "evaluation, last": 2600.0,
}  # fmt: skip
_NEAR = 1 << 17  # bytes
_TAKEN = 256  # numbers of one channel of an image that evaluation takes at a time, where they are next to each other


def _of_planes(device: Device, x: Tensor, weight: Tensor | None, passes: int) -> float:
    """Seconds of a batch norm on Hopper beside its traffic, as an H200 was seen to do it in ten shapes.

    With channels first each channel is one block's, so that few channels leave multiprocessors idle.
    """
    if device.spec.capability != (9, 0) or not x.numel() or x.dim() < 3:
        return 0.0
    by_cudnn, backward = temporaries.by_cudnn(x, weight), passes == 5
    plane = x.numel() // x.shape[1]
    if _channels_last(x):
        kind = "pytorch backward" if backward else "pytorch"
        return 0.0 if by_cudnn else x.numel() * passes / (device.spec.sms * _PASSED[kind]) * 1e-6
    kind = "backward" if backward else "cudnn" if by_cudnn else "pytorch"
    if kind == "cudnn" and x.element_size() == 2 and 2 * plane <= _NEAR:
        kind = "near"
    waves = -(-x.shape[1] // device.spec.sms)
    return waves * plane * passes / _PASSED[kind] * 1e-6


def _in_evaluation(device: Device, x: Tensor, weight: Tensor | None) -> float:
    """Batch norm in evaluation: a scale and a shift."""
    if device.spec.capability != (9, 0) or not x.numel() or x.dim() < 3:
        return 0.0
    if _channels_last(x):
        by_cudnn = temporaries.by_cudnn(x, weight)
        return x.numel() / (device.spec.sms * _PASSED["evaluation, last"]) * 1e-6 if by_cudnn else 0.0
    planes = x.shape[0] * x.shape[1]
    numbers = planes * -(-x.numel() // (planes * _TAKEN)) * _TAKEN
    return numbers / (device.spec.sms * _PASSED["evaluation"]) * 1e-6


def _channels_last(x: Tensor) -> bool:
    """Also of images of one pixel."""
    return not x.is_contiguous() or x.numel() == x.shape[0] * x.shape[1]


def _gathered_statistics(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """Statistics of all ranks, and running ones: the input is passed for its dtype alone."""
    return Cost(reading(device, *args[1:]) + writing(device, out, *args[3:5]))


def _free(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """No kernel at all."""
    return Cost(0.0, kernels=0)


@cache
def _written(func: Any) -> tuple[int, ...]:
    return tuple(i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write)


RULES: dict[Any, Rule] = {
    **arithmetic.RULES,
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.batch_norm_gather_stats_with_counts.default: _gathered_statistics,
    aten.native_group_norm.default: _norm,  # a layer norm's rows are short: their second reading is the cache's
    **dict.fromkeys((aten.dropout.default, aten.dropout_.default, aten.feature_dropout.default), _dropped),
    **dict.fromkeys(
        (aten.native_layer_norm_backward.default, aten.native_group_norm_backward.default),
        _norm_backward,
    ),
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
    if not func._schema.returns:
        return _in_place
    return _moves

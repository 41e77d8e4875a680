"""Time of normalisations: which kernels they have, and what each reads and writes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ..clock import limits
from . import temporaries
from .traffic import Args, Cost, Rule, Tensor, reading, traffic, writing

if TYPE_CHECKING:
    from ..scope.device import Device

aten = torch.ops.aten


def _statistics_first(device: Device, args: Args, out: Any) -> Cost:
    """What is normalised is read for its statistics, and again."""
    return Cost(reading(device, args[0], args[0]) + reading(device, *args[1:]) + writing(device, out))


def _sums_first(device: Device, args: Args, out: Any) -> Cost:
    """The gradient and what was normalised are read for two sums, and again."""
    return Cost(reading(device, *args[:2], *args[:2]) + reading(device, *args[2:]) + writing(device, out))


def _at_least(cost: Cost, seconds: float) -> Cost:
    return cost if cost.seconds >= seconds else cost._replace(seconds=seconds)


# -- layer norm and group norm ----------------------------------------------------------------------------------------


def _in_order(device: Device, *tensors: Tensor) -> tuple[float, int]:
    """Return the seconds to copy those that are not contiguous, and how many they are: the kernels want them so."""
    copied = [tensor for tensor in tensors if not tensor.is_contiguous()]
    seconds = 0.0
    for tensor in copied:
        moved = 2 * traffic(tensor)
        seconds += max(_rates(device).memory_seconds(moved), limits.one_by_one(_rates(device), moved))
        device.moved += moved
    return seconds, len(copied)


def _layer_norm(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """A row is read once: its second reading is the cache's."""
    copying, copies = _in_order(device, args[0])
    rows = args[0].numel() // (math.prod(args[1]) or 1)
    seconds = reading(device, *args) + writing(device, out) + limits.layer_norm(_rates(device), rows)
    return Cost(seconds + copying, kernels=1 + copies)


def _layer_norm_backward(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """One kernel for the gradient of what was normalised, and one for those of weight and bias."""
    grad, tensor, shape, mean, rstd, weight = args[:6]
    copying, copies = _in_order(device, grad, tensor)
    of_tensor, *of_parameters = out
    rates, columns = _rates(device), math.prod(shape) or 1
    rows = tensor.numel() // columns
    seconds, kernels = copying, copies
    if of_tensor is not None:
        seconds += reading(device, grad, tensor, mean, rstd, weight) + writing(device, of_tensor)
        seconds += limits.layer_norm(rates, rows, backward=True)
        kernels += 1
    if any(one is not None for one in of_parameters):
        least = limits.sums_of_columns(rates, rows, columns, traffic(grad, tensor))
        seconds += max(reading(device, grad, tensor) + writing(device, of_parameters), least)
        kernels += 1
    return Cost(seconds, kernels=kernels)


def _group_norm(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """A block adds up each group of each image; then all is read again, scaled and shifted."""
    tensor, groups = args[0], args[0].shape[0] * args[6]
    sums = max(reading(device, tensor), limits.sums_of_groups(_rates(device), groups, traffic(tensor)) if groups else 0)
    return Cost(sums + reading(device, *args) + writing(device, out))


def _group_norm_backward(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """A block adds up each channel of each image."""
    grad, tensor = args[:2]
    planes = tensor.shape[0] * tensor.shape[1]
    least = limits.sums_of_groups(_rates(device), planes, traffic(grad, tensor)) if planes else 0
    sums = max(reading(device, grad, tensor), least)
    return Cost(sums + reading(device, *args) + writing(device, out))


# -- softmax ----------------------------------------------------------------------------------------------------------

_REGISTERS = 1024  # numbers of a row that a warp keeps: PersistentSoftmax.cuh, `dim_size <= 1024`
_SHARED = 48 << 10  # bytes of a row that a block keeps, if it begins at 16 bytes: SoftMax.cu, `can_use_smem`


def _read_again(device: Device, tensor: Tensor, dim: int, given: tuple[Tensor, ...], times: int) -> float:
    """Return the seconds to read rows that are kept nowhere so many times more: from L2 where all at work fit."""
    length = tensor.shape[dim] if tensor.dim() else 1
    row = length * tensor.element_size()
    if length <= _REGISTERS or (row <= _SHARED and row % 16 == 0):
        return 0.0
    rates, again = _rates(device), times * traffic(*given)
    if 2 * rates.sms * row * len(given) <= rates.l2_holds:  # two blocks on each multiprocessor
        return again / float(rates.l2_rate)
    device.moved += again
    return float(rates.memory_seconds(again))


def _softmax(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """The largest, the sum, and the result: a long row is read for each."""
    seconds = reading(device, args[0]) + writing(device, out)
    return Cost(seconds + _read_again(device, args[0], args[1], (args[0],), 2), kernels=1 if seconds else 0)


def _softmax_backward(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """A sum, and the result: long rows are read for both."""
    grad, of_forward, dim = args[:3]
    seconds = reading(device, grad, of_forward) + writing(device, out)
    return Cost(seconds + _read_again(device, grad, dim, (grad, of_forward), 1), kernels=1 if seconds else 0)


def _rates(device: Device) -> Any:
    return device.timer.clock.rates


# -- batch norm ------------------------------------------------------------------------------------------------------


def _batch_norm(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """In evaluation it is a scale and a shift."""
    if not args[5]:
        moved = Cost(reading(device, *args) + writing(device, out))
        return _at_least(moved, _in_evaluation(device, args[0], args[1]))
    return _at_least(_statistics_first(device, args, out), _of_planes(device, args[0], args[1], 3))


def _batch_norm_backward(device: Device, func: Any, args: Args, out: Any) -> Cost:
    return _at_least(_sums_first(device, args, out), _of_planes(device, args[1], args[2], 5))


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


RULES: dict[Any, Rule] = {
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    **dict.fromkeys((aten._softmax.default, aten._log_softmax.default), _softmax),
    **dict.fromkeys((aten._softmax_backward_data.default, aten._log_softmax_backward_data.default), _softmax_backward),
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.batch_norm_gather_stats_with_counts.default: _gathered_statistics,
}

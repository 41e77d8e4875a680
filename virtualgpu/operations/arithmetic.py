"""Kernel times of compute-bound operations: reads their shapes, and asks `clock.work` for the duration."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..clock import work
from ..scope import in_force
from . import layouts, recurrent, recurrent_memory, temporaries
from .traffic import Args, Cost, Rule, Tensor, reading, traffic, writes, writing

if TYPE_CHECKING:
    from ..scope.device import Device

aten = torch.ops.aten


# -- arithmetic ------------------------------------------------------------------------------------------------------


def precision(dtype: torch.dtype, *, convolution: bool = False) -> str:
    """Return the precision, as in `Rates.tflops`, at which products of this dtype run."""
    name = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}.get(dtype, "fp32")
    return "tf32" if name == "fp32" and _allows_tf32("conv" if convolution else "matmul") else name


def _allows_tf32(operation: str) -> bool:
    if in_force.current is not None and not in_force.current.spec.has("tf32"):
        return False  # before Ampere the flag says so all the same
    backend = "cudnn" if operation == "conv" else "cublas"
    try:
        return bool(getattr(torch._C, f"_get_{backend}_allow_tf32")())
    except RuntimeError:  # set with fp32_precision, the newer way; then the older cannot be read
        getter: Any = torch._C._get_fp32_precision_getter
        return str(getter("cuda", operation)) == "tf32"


def _mm(device: Device, func: Any, args: Args, out: Any) -> Cost:
    one, other = args[1:3] if args[0] is not None and len(args) > 2 and isinstance(args[2], Tensor) else args[:2]
    count = one.shape[0] if one.dim() == 3 else 1
    rows, depth, columns = one.shape[-2], one.shape[-1], other.shape[-1]
    if not (rows and depth and columns and count):
        return writes(device, func, args, out)
    device.load("cublas")
    name, rates = precision(one.dtype), device.timer.clock.rates
    moved = reading(device, args) + writing(device, out)
    found = work.product(rates, rows, columns, depth, count, name, moved, _aligned(one, other, out))
    return costs(device, found, name)


def _aligned(*matrices: Tensor) -> int:
    """Return the alignment in bytes, up to 16, of every row (or column, if transposed) of the matrices."""
    found = 16
    for matrix in matrices:
        strides = matrix.stride()
        if len(strides) < 2:
            continue
        leading = max(strides[-1], strides[-2]) * matrix.element_size()
        found = min(found, leading & -leading or 16)
    return found


def costs(device: Device, found: work.Work, dtype: str, kernels: int = 1) -> Cost:
    """Return the cost of such work at this precision."""
    power = device.timer.clock.rates.power
    joules = 0.0 if power is None else found.flops * power.per_flop_pj[dtype] * 1e-12
    return Cost(found.seconds, found.flops, kernels, joules)


def _conv_forward(device: Device, func: Any, args: Args, out: Any) -> Cost:
    tensor, weight, *_, transposed, _, groups = args[:9]
    moved = reading(device, tensor, weight) + writing(device, out)
    found = _Convolution(tensor, weight, out, args[3], args[5], transposed, groups)
    done = _convolved(device, found, ("forward",), moved, [tensor, out])
    if args[2] is None or not _by_a_library(found, [tensor, out]):
        return done
    before = device.moved
    seconds = reading(device, out, args[2]) + writing(device, out)
    return done._replace(after=("add_", seconds, device.moved - before))  # to cuDNN's result


def _conv_backward(device: Device, func: Any, args: Args, out: Any) -> Cost:
    """Two kernels: each reads the gradient; a sum of it is that of the bias."""
    grad, tensor, weight = args[:3]
    transposed, groups, mask = args[7], args[9], args[10]
    parts = tuple(part for part, wanted in zip(("input", "weight"), mask, strict=False) if wanted)
    moved = reading(device, *[grad] * len(parts), tensor if mask[1] else None, weight if mask[0] else None)
    moved += writing(device, out)
    images = [grad] * len(parts) + [image for image, wanted in ((out[0], mask[0]), (tensor, mask[1])) if wanted]
    found = _Convolution(tensor, weight, grad, args[4], args[6], transposed, groups)
    done = _convolved(device, found, parts, moved, images)
    if not mask[2]:
        return done
    before = device.moved
    seconds = layouts.summed(device, grad, out[2], (0, *range(2, grad.dim())))
    return done._replace(after=("sum", seconds, device.moved - before))


def _by_a_library(given: _Convolution, images: list[Tensor]) -> bool:
    """Return True if cuDNN does it, which adds no bias; PyTorch's own depthwise kernel does."""
    return not given.depthwise or given.by_cudnn(any(image.is_contiguous() for image in images))


class _Convolution(NamedTuple):
    """Arguments of a convolution; `out` is its result, or the gradient of that."""

    tensor: Tensor
    weight: Tensor
    out: Tensor
    stride: list[int]
    dilation: list[int]
    transposed: bool
    groups: int

    @property
    def depthwise(self) -> bool:
        return self.weight.shape[1] == 1 and self.groups > 1

    def by_cudnn(self, plain: bool) -> bool:
        """Return True if cuDNN runs a depthwise convolution (PyTorch's `use_cudnn_depthwise`, cuDNN 8.2 and later)."""
        if not plain:
            return True
        if self.tensor.dtype is not torch.float16 or self.tensor.dim() != 4 or max(self.dilation) > 1:
            return False
        (batch, channels, _, width), (*_, high, side) = self.tensor.shape, self.weight.shape
        stride = self.stride[-1]
        if channels < 32 or high != side or side not in (1, 3, 5) or width < 7 or stride > 2:
            return False
        if stride == 1:
            return True
        if batch == 1:
            return side > 1 or width <= 28
        if side == 1:
            return batch <= 16 and channels >= 128 and width <= 7
        return channels >= 512 or (channels >= 256 and width >= 28)


def _convolved(device: Device, given: _Convolution, parts: tuple[str, ...], moved: float, images: list[Tensor]) -> Cost:
    """`parts` of a convolution that spends `moved` seconds on memory; `images` are what has channels."""
    device.load("cudnn")
    rates = device.timer.clock.rates
    name = precision(given.tensor.dtype, convolution=True)
    plain = traffic([image for image in images if image.is_contiguous()])
    point = all(size == 1 for size in given.weight.shape[2:])
    unit = not given.transposed and max(*given.stride, *given.dilation) == 1
    done = work.convolution_parts(
        rates,
        given.tensor.shape,
        given.weight.shape,
        given.out.shape,
        name,
        groups=given.groups,
        transposed=given.transposed,
        by_cudnn=not given.depthwise or given.by_cudnn(bool(plain)),
        last=not plain,
        unit=unit,
        parts=parts,
    )
    backward = parts != ("forward",)
    as_it_lies = point and unit and device.spec.capability == (9, 0) and temporaries.lie_well(given.tensor)
    plain = 0 if given.depthwise or as_it_lies else plain
    found = work.convolution(rates, done, name, moved, plain, backward=backward)
    return costs(device, found, name, len(parts))


def _attention(share: float) -> Rule:
    def found(device: Device, func: Any, args: Args, out: Any) -> Cost:
        flops = float(_counter(func)(*args, out_val=out))
        position = _argument(func, "is_causal")
        if position is not None and position < len(args) and args[position]:
            flops /= 2  # the part above the diagonal is skipped
        name = precision(args[0].dtype)
        moved = reading(device, args) + writing(device, out)
        return costs(device, work.attention(device.timer.clock.rates, flops, name, share, moved), name)

    return found


def _flash(*, backward: bool) -> Rule:
    """Flash attention, and cuDNN's."""

    def found(device: Device, func: Any, args: Args, out: Any) -> Cost:
        query, key = args[1:3] if backward else args[:2]
        position = _argument(func, "is_causal")
        causal = position is not None and position < len(args) and bool(args[position])
        flops = float(_counter(func)(*args, out_val=out)) / (2 if causal else 1)  # above the diagonal nothing counts
        batch, heads, queries, width = query.shape
        name, moved = precision(query.dtype), reading(device, args) + writing(device, out)
        sizes = batch * heads, queries, key.shape[2], width
        rates = device.timer.clock.rates
        done = work.flash_attention(rates, *sizes, name, flops, moved, causal=causal, backward=backward)
        return costs(device, done, name)

    return found


@cache
def _counter(func: Any) -> Any:
    from torch.utils.flop_counter import flop_registry

    return flop_registry[func.overloadpacket]


@cache
def _argument(func: Any, name: str) -> int | None:
    names = [argument.name for argument in func._schema.arguments]
    return names.index(name) if name in names else None


# Microseconds that a step of one layer takes at least, forward and backward: an H100's, as recorded (lstm in "ops").
# A persistent kernel takes all steps; the standard algorithm has several kernels for each.
_STEP_US = {recurrent_memory.PERSIST: (2.3, 4.1)}
_STEP_US_ELSE = 19.0, 22.0


def _recurrent(passes: int) -> Rule:
    """cuDNN's recurrent layers: the products of all steps' inputs at once, those of the states one after another."""

    def found(device: Device, func: Any, args: Args, out: Any) -> Cost:
        device.load("cudnn")
        rates = device.timer.clock.rates
        tensor, weights, stride = args[0], args[1], args[2]
        layer = recurrent.layer_of(args, backward=passes == 2)
        steps, rows_in_all = layer.length, tensor.numel() // tensor.shape[-1]
        batch = -(-rows_in_all // steps)  # of packed sequences the mean
        algorithm = recurrent.algorithm_of(device, args, backward=passes == 2)
        least = _STEP_US.get(algorithm, _STEP_US_ELSE)[passes - 1] * 1e-6
        seconds = flops = 0.0
        for position, weight in enumerate(weights):
            if weight.dim() != 2:
                continue
            of_states = position % stride == 1
            rows, depth = weight.shape
            times, width = (steps, batch) if of_states else (1, rows_in_all)
            one = max(
                rates.product_seconds(width, rows, depth, 1, precision(tensor.dtype)),
                rates.memory_seconds(weight.nbytes),
            )
            seconds += times * max(passes * one + rates.kernel_s, least) if of_states else passes * one
            flops += 2.0 * rows_in_all * rows * depth
        return Cost(seconds + reading(device, args[0]) + writing(device, out), passes * flops)

    return found


RULES: dict[Any, Rule] = {
    **{
        getattr(packet, overload): _mm
        for packet in (aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten._addmm_activation, aten.addmm_, aten.baddbmm_)
        for overload in packet.overloads()
    },
    aten.convolution.default: _conv_forward,
    aten.convolution_backward.default: _conv_backward,
    aten._scaled_dot_product_flash_attention.default: _flash(backward=False),
    aten._scaled_dot_product_flash_attention_backward.default: _flash(backward=True),
    aten._scaled_dot_product_cudnn_attention.default: _flash(backward=False),
    aten._scaled_dot_product_cudnn_attention_backward.default: _flash(backward=True),
    aten._scaled_dot_product_efficient_attention.default: _attention(work.EFFICIENT),
    aten._scaled_dot_product_efficient_attention_backward.default: _attention(work.EFFICIENT),
    aten._cudnn_rnn.default: _recurrent(1),
    aten._cudnn_rnn_backward.default: _recurrent(2),
}

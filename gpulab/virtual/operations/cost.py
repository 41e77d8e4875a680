"""What one operation costs on the device: the slower of its arithmetic and its memory traffic, by the GPU's `Rates`.

Most operations only move memory: what they read and write is what they are given and return. Matrix products,
convolutions, attention and recurrent layers do arithmetic that counts; a few others move less or more than they show.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from ..clock import work
from ..scope import in_force

if TYPE_CHECKING:
    from ..clock.rates import Rates
    from ..scope.device import Device

Tensor = torch.Tensor
_nbytes: Any = torch._C.TensorBase.nbytes.__get__  # type: ignore[attr-defined]
aten = torch.ops.aten
Args = tuple[Any, ...]
Cost = tuple[float, float, int]  # seconds beside a kernel's least time, floating-point operations, kernels
Rule = Callable[["Rates", Any, Args, Any], Cost]

_PER_TENSOR = 0.2e-6  # the host's time for each tensor of a list that one operation is given: an assumption


def charge(device: Device, func: Any, args: Args, out: Any) -> None:
    """Put an operation that has been run on the device's clock, in the current stream."""
    try:
        rule = RULES[func]
    except KeyError:
        rule = RULES[func] = _rule(func)
    timer = device.timer
    rates = timer.clock.rates
    if rule is _moves:
        nbytes = traffic(args, out)
        if nbytes:
            seconds = nbytes / rates.memory_rate + rates.kernel_s
            end = timer.kernel(device.stream, seconds, _name(func), 0.0, _listed(args))
    else:
        seconds, flops, kernels = rule(rates, func, args, out)
        nbytes = kernels and traffic(args, out)
        if nbytes:
            for _ in range(kernels):
                seconds_each = seconds / kernels + rates.kernel_s
                end = timer.kernel(device.stream, seconds_each, _name(func), flops / kernels, _listed(args))
    if device.blocking and nbytes:
        timer.clock.wait(end, _name(func))


def _listed(args: Args) -> float:
    """The host's time for the tensors of a list that an operation is given."""
    first = args[0] if args else None
    return _PER_TENSOR * len(first) if first.__class__ is list or first.__class__ is tuple else 0.0


def fused(device: Device, name: str, *moved: Any) -> None:
    """Put a kernel that only CUDA has on the device's clock: it reads and writes `moved`."""
    rates = device.timer.clock.rates
    device.timer.kernel(device.stream, rates.memory_seconds(traffic(moved)) + rates.kernel_s, name)


@cache
def _name(func: Any) -> str:
    return str(func.name().removeprefix("aten::"))


# -- memory ----------------------------------------------------------------------------------------------------------


def traffic(*items: Any) -> int:
    """Bytes of all tensors in `items`, and in the lists among them."""
    total = 0
    for item in items:
        if isinstance(item, Tensor):
            try:
                total += _nbytes(item)
            except (RuntimeError, NotImplementedError):  # a sparse tensor: its values
                total += item._values().nbytes if item.layout is torch.sparse_coo else item.values().nbytes
        elif item.__class__ is list or item.__class__ is tuple:
            total += traffic(*item)
    return total


def _moves(rates: Rates, func: Any, args: Args, out: Any) -> Cost:
    """All arguments are read, all results written."""
    return rates.memory_seconds(traffic(args, out)), 0.0, 1


def _writes(rates: Rates, func: Any, args: Args, out: Any) -> Cost:
    """The results are written, and nothing is read that counts."""
    return rates.memory_seconds(traffic(out)), 0.0, 1


def _in_place(rates: Rates, func: Any, args: Args, out: Any) -> Cost:
    """Nothing is returned; what is written in place is read and written."""
    written = [args[i] for i in _written(func) if i < len(args)]
    return rates.memory_seconds(traffic(args, written)), 0.0, 1


def _picks(rates: Rates, func: Any, args: Args, out: Any) -> Cost:
    """As much is read as is returned: a few rows of a table."""
    return rates.memory_seconds(2 * traffic(out) + traffic(args[1:])), 0.0, 1


def _puts(rates: Rates, func: Any, args: Args, out: Any) -> Cost:
    """Values are added to a few places of the first argument."""
    return rates.memory_seconds(3 * traffic(args[1:])), 0.0, 1


def _twice(rates: Rates, func: Any, args: Args, out: Any) -> Cost:
    """The first argument is read twice: once for statistics over all of it."""
    return rates.memory_seconds(traffic(args, out) + traffic(args[0])), 0.0, 1


def _free(rates: Rates, func: Any, args: Args, out: Any) -> Cost:
    """No kernel at all."""
    return 0.0, 0.0, 0


@cache
def _written(func: Any) -> tuple[int, ...]:
    return tuple(i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write)


# -- arithmetic ------------------------------------------------------------------------------------------------------


def precision(dtype: torch.dtype, *, convolution: bool = False) -> str:
    """Which of a GPU's rates a product of this dtype runs at."""
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


def _mm(rates: Rates, func: Any, args: Args, out: Any) -> Cost:
    one, other = args[1:3] if args[0] is not None and len(args) > 2 and isinstance(args[2], Tensor) else args[:2]
    count = one.shape[0] if one.dim() == 3 else 1
    rows, depth, columns = one.shape[-2], one.shape[-1], other.shape[-1]
    if not (rows and depth and columns and count):
        return _writes(rates, func, args, out)
    found = work.product(rates, rows, columns, depth, count, precision(one.dtype), traffic(args, out))
    return found.seconds, found.flops, 1


def _conv_forward(rates: Rates, func: Any, args: Args, out: Any) -> Cost:
    tensor, weight, *_, transposed, _, groups = args[:9]
    found = _convolved(rates, tensor, weight, out, transposed, groups, ("forward",), (tensor, weight, out), [out])
    return found.seconds, found.flops, 1


def _conv_backward(rates: Rates, func: Any, args: Args, out: Any) -> Cost:
    grad, tensor, weight = args[:3]
    transposed, groups, mask = args[7], args[9], args[10]
    parts = tuple(part for part, wanted in zip(("input", "weight"), mask, strict=False) if wanted)
    images = [grad, *([out[0]] if mask[0] else [])]
    found = _convolved(rates, tensor, weight, grad, transposed, groups, parts, (grad, tensor, weight, out), images)
    return found.seconds, found.flops, max(1, len(parts))


def _convolved(
    rates: Rates,
    tensor: Tensor,
    weight: Tensor,
    out: Tensor,
    transposed: bool,
    groups: int,
    parts: tuple[str, ...],
    moved: Any,
    images: list[Tensor],
) -> work.Work:
    """`parts` of a convolution that reads and writes `moved`; `images` are those beside its input."""
    name = precision(tensor.dtype, convolution=True)
    found = work.convolved(
        rates, tensor.shape, weight.shape, out.shape, name, groups=groups, transposed=transposed, parts=parts
    )
    plain = traffic([image for image in (tensor, *images) if image.is_contiguous()])
    return work.convolution(rates, found, name, traffic(moved), plain)


def _attention(share: float) -> Rule:
    def cost(rates: Rates, func: Any, args: Args, out: Any) -> Cost:
        flops = float(_counter(func)(*args, out_val=out))
        position = _argument(func, "is_causal")
        if position is not None and position < len(args) and args[position]:
            flops /= 2  # the part above the diagonal is skipped
        found = work.attention(rates, flops, precision(args[0].dtype), share, traffic(args, out))
        return found.seconds, flops, 1

    return cost


@cache
def _counter(func: Any) -> Any:
    from torch.utils.flop_counter import flop_registry

    return flop_registry[func.overloadpacket]


@cache
def _argument(func: Any, name: str) -> int | None:
    names = [argument.name for argument in func._schema.arguments]
    return names.index(name) if name in names else None


def _recurrent(passes: int) -> Rule:
    """cuDNN's recurrent layers: the products of all steps' inputs at once, those of the states one after another."""

    def cost(rates: Rates, func: Any, args: Args, out: Any) -> Cost:
        tensor, weights, stride = args[0], args[1], args[2]
        position = _argument(func, "batch_first")
        steps, batch = tensor.shape[:2] if tensor.dim() == 3 else (1, tensor.shape[0])
        if position is not None and args[position]:
            steps, batch = batch, steps
        seconds = flops = 0.0
        for position, weight in enumerate(weights):
            if weight.dim() != 2:
                continue
            of_states = position % stride == 1
            rows, depth = weight.shape
            times, width = (steps, batch) if of_states else (1, steps * batch)
            one = max(
                rates.product_seconds(width, rows, depth, 1, precision(tensor.dtype)),
                rates.memory_seconds(weight.nbytes),
            )
            seconds += times * (one + (rates.kernel_s if of_states else 0.0))
            flops += 2.0 * steps * batch * rows * depth
        return passes * seconds + rates.memory_seconds(traffic(args[0], out)), passes * flops, 1

    return cost


RULES: dict[Any, Rule] = {
    **{
        getattr(packet, overload): _mm
        for packet in (aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten._addmm_activation, aten.addmm_, aten.baddbmm_)
        for overload in packet.overloads()
    },
    aten.convolution.default: _conv_forward,
    aten.convolution_backward.default: _conv_backward,
    aten._scaled_dot_product_flash_attention.default: _attention(work.FLASH),
    aten._scaled_dot_product_flash_attention_backward.default: _attention(work.FLASH_BACKWARD),
    aten._scaled_dot_product_cudnn_attention.default: _attention(work.FLASH),
    aten._scaled_dot_product_cudnn_attention_backward.default: _attention(work.FLASH_BACKWARD),
    aten._scaled_dot_product_efficient_attention.default: _attention(work.EFFICIENT),
    aten._scaled_dot_product_efficient_attention_backward.default: _attention(work.EFFICIENT),
    aten._cudnn_rnn.default: _recurrent(1),
    aten._cudnn_rnn_backward.default: _recurrent(2),
    **dict.fromkeys((aten.native_batch_norm.default, aten.native_batch_norm_backward.default), _twice),
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
    **dict.fromkeys((aten.nll_loss_backward.default, aten.nll_loss2d_backward.default, aten.fill_.Scalar), _writes),
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
        return _writes
    if name.split(".")[0].endswith("_") and name.split(".")[0].rstrip("_") in (
        "normal",
        "uniform",
        "bernoulli",
        "random",
    ):
        return _writes
    if not func._schema.returns:
        return _in_place
    return _moves

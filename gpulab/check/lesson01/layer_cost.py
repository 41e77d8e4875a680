"""The check of FLOPs and bytes of a layer: Linear and Conv2d of many forms, against their shapes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import Any, cast

import torch
from torch import nn

from ..audit import Kind
from ..base import Trial, check
from ..wording import show
from .common import ROOF, Mistake, close, find, number, pair

Layer = nn.Linear | nn.Conv2d


@dataclass(frozen=True)
class Case:
    """A layer, its input, and what it costs: reckoned before any of the student's code runs."""

    layer: Layer
    x: torch.Tensor
    out: torch.Tensor

    @property
    def per_output(self) -> int:
        """Multiply-adds for one number of the output."""
        return self.layer.weight[0].numel()

    @property
    def flops(self) -> int:
        return 2 * self.out.numel() * self.per_output

    @property
    def bias_bytes(self) -> int:
        return 0 if self.layer.bias is None else self.layer.bias.nbytes

    @property
    def nbytes(self) -> int:
        return self.x.nbytes + self.layer.weight.nbytes + self.bias_bytes + self.out.nbytes

    @property
    def words(self) -> str:
        layer = self.layer
        if isinstance(layer, nn.Linear):
            form = f"Linear({layer.in_features}, {layer.out_features}"
        else:
            form = f"Conv2d({layer.in_channels}, {layer.out_channels}, {layer.kernel_size}"
            for name, plain in (("stride", (1, 1)), ("padding", (0, 0)), ("dilation", (1, 1)), ("groups", 1)):
                form += f", {name}={getattr(layer, name)}" if getattr(layer, name) != plain else ""
        form += ")" if layer.bias is not None else ", bias=False)"
        dtype = str(self.x.dtype).removeprefix("torch.")
        place = ", meta" if self.x.is_meta else ""
        return f"{form} on an input of shape {tuple(self.x.shape)}, {dtype}{place}"


def flop_mistakes(case: Case) -> Iterator[Mistake]:
    layer, x, out, right = case.layer, case.x, case.out, case.flops
    conv = isinstance(layer, nn.Conv2d)
    if conv:
        samples, places = out.shape[0], prod(out.shape[2:])
    else:
        samples, places = prod(x.shape[:-1][:1]), prod(x.shape[1:-1])
        if x.dim() == 1:
            yield Mistake(
                right * x.shape[0],
                "the only dimension of the input was taken for rows",
                "a Linear takes (..., in_features): where nothing stands before the last dimension, it is one row",
            )
    yield Mistake(
        right // 2,
        "the multiply-adds were counted, and not the operations",
        "a multiply-add is two operations, a product and a sum",
    )
    yield Mistake(3 * right, "three times the FLOPs of a forward pass", "backward is not asked for here")
    yield Mistake(
        right + out.numel(),
        "the additions of the bias were counted",
        "they do not count here, as PyTorch's own counter leaves them out: out.numel() beside the products",
    )
    yield Mistake(
        right // (samples * places),
        "the FLOPs of one row only" if not conv else "the FLOPs of one output position only",
        "a layer does its work for each row of the input again: all dimensions but the last"
        if not conv
        else "a convolution does its work at each position of each image again: N × height × width of the output",
    )
    if conv:
        assert isinstance(layer, nn.Conv2d)
        yield from _conv_mistakes(layer, x, out, right, samples, places)
    for kept in _parts_of(x.shape[:-1]) if not conv else ():
        yield Mistake(
            right // (samples * places) * prod(x.shape[i] for i in kept),
            "a dimension of the input was left out",
            "x.shape[0] is the batch, and there may be more dimensions before the last: x.numel() // in_features rows"
            if 0 in kept
            else "the first dimension counts too: every row of every sample goes through the layer",
        )


def _parts_of(shape: torch.Size) -> Iterator[tuple[int, ...]]:
    """Some of these dimensions, and not all."""
    for count in range(1, len(shape)):
        yield from combinations(range(len(shape)), count)


def _conv_mistakes(
    layer: nn.Conv2d, x: torch.Tensor, out: torch.Tensor, right: int, samples: int, places: int
) -> Iterator[Mistake]:
    high, wide = layer.kernel_size
    yield Mistake(
        right // places * prod(x.shape[2:]),
        "the positions of the input were counted, and not those of the output",
        "stride, padding and dilation decide how often the kernel is put down: once for each position of the output",
    )
    for stride in layer.stride:
        sides = [
            (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
            for size, pad, dilation, kernel in zip(
                x.shape[2:], cast(tuple[int, ...], layer.padding), layer.dilation, layer.kernel_size, strict=True
            )
        ]
        yield Mistake(
            right // places * prod(sides),
            "the stride of one side was taken for both",
            "layer.stride has one for the height and one for the width, which may differ",
        )
    yield Mistake(
        right * layer.groups,
        "the groups were not counted",
        "with groups each output channel sees in_channels / groups channels: the shape of layer.weight says so",
    )
    yield Mistake(
        right // layer.groups,
        "the groups were counted twice",
        "layer.weight has in_channels / groups in its second dimension already",
    )
    for value in (right // high, right // wide):
        yield Mistake(
            value,
            "one side of the kernel was left out",
            "a kernel of height × width does height · width multiply-adds for each channel",
        )
    for side in (high, wide):
        yield Mistake(
            right // (high * wide) * side * side,
            "the kernel was taken to be square",
            "kernel_size has a height and a width, which may differ",
        )
    yield Mistake(
        right // samples,
        "the FLOPs of one image only",
        "each image of the batch goes through the layer",
    )
    yield Mistake(
        right // layer.out_channels,
        "the FLOPs of one output channel only",
        "each output channel has a kernel of its own",
    )
    yield Mistake(
        right // (layer.in_channels // layer.groups),
        "the FLOPs of one input channel only",
        "the kernel reaches through all input channels of its group",
    )


def byte_mistakes(case: Case) -> Iterator[Mistake]:
    x, out, weight, bias = case.x.nbytes, case.out.nbytes, case.layer.weight.nbytes, case.bias_bytes
    size, right = case.x.element_size(), case.nbytes
    numbers = right // size
    in_memory = "input, weight, bias and output are each moved once"
    if bias:
        yield Mistake(right - bias, "the bias was left out of the bytes", in_memory)
        yield Mistake(weight, "only the weight was counted", in_memory)
    yield Mistake(right - out, "the output was left out of the bytes", "what is computed must be written too")
    yield Mistake(right - x, "the input was left out of the bytes", in_memory)
    for value in (x + out, x + out + bias):
        yield Mistake(
            value,
            "the weight was left out of the bytes",
            "the weight lies in the GPU's memory like any tensor, and is read in each call",
        )
    yield Mistake(weight + bias, "only the parameters were counted", in_memory)
    yield Mistake(
        numbers,
        "the numbers were counted, and not their bytes",
        "each number takes element_size() bytes: 2 in bfloat16, 4 in float32, 8 in float64",
    )
    for other in {2, 4, 8} - {size}:
        yield Mistake(
            numbers * other,
            f"every number was taken to have {other} bytes",
            "the dtype decides: x.element_size(), or .nbytes of each tensor",
        )
    yield Mistake(right * 8, "these are bits", "a byte has eight of them; GB/s counts bytes")
    held = case.x.untyped_storage().nbytes()
    yield Mistake(
        right - x + held,
        "more than the input was counted",
        "x is a part of a larger tensor, whose whole storage was counted: x.nbytes is the part",
    )
    rows = case.out.numel() // case.layer.weight.shape[0]
    yield Mistake(
        right + weight * (rows - 1),
        "the weight was counted for every row again",
        "that it is read once for all rows is what makes a large batch pay",
    )
    if isinstance(case.layer, nn.Conv2d):
        yield Mistake(
            right - bias + bias // case.layer.groups,
            "the bias is smaller than it is",
            "with groups, too, it has a number for each output channel: layer.bias.nbytes",
        )
        yield Mistake(
            right + weight * (case.layer.groups - 1),
            "the weight is larger than it is",
            "with groups it has in_channels / groups in its second dimension: layer.weight.nbytes",
        )
    yield Mistake(
        right + weight + bias,
        "the parameters were counted twice",
        "their gradients belong to the backward pass, which is not asked for",
    )
    for factor, unit in ((1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB")):
        yield Mistake(right / factor, f"the bytes came in {unit}", "bytes are asked for, as a whole number")


def _told_apart(case: Case) -> bool:
    """Whether no two misconceptions give the same wrong number."""
    for right, mistakes in ((case.flops, list(flop_mistakes(case))), (case.nbytes, list(byte_mistakes(case)))):
        told: dict[float, tuple[str, str]] = {}
        for mistake in mistakes:
            words = mistake.summary, mistake.likely
            if mistake.value != right and told.setdefault(mistake.value, words) != words:
                return False
    return True


def _drawn(make: Callable[[], tuple[Layer, torch.Tensor]]) -> Case:
    while True:
        layer, x = make()
        with torch.no_grad():
            case = Case(layer, x, layer(x))
        if _told_apart(case):
            return case


def _size(low: int, high: int) -> int:
    return random.randint(low, high)


def plain_linear() -> tuple[Layer, torch.Tensor]:
    inputs = _size(20, 40)
    data, layer = torch.randn(_size(30, 50), inputs + 3), nn.Linear(inputs, _size(41, 60))
    for parameter in layer.parameters():
        parameter.grad = torch.randn_like(parameter)  # of the caller
    return layer, data[5 : 5 + _size(6, 20), :inputs]


def one_row() -> tuple[Layer, torch.Tensor]:
    inputs = _size(20, 40)
    return nn.Linear(inputs, _size(41, 60), bias=False), torch.randn(inputs)


def deep_linear() -> tuple[Layer, torch.Tensor]:
    inputs, dtype = _size(20, 40), torch.bfloat16
    x = torch.randn(_size(3, 7), _size(8, 10), _size(11, 15), inputs, dtype=dtype)
    return nn.Linear(inputs, _size(41, 60), bias=False, dtype=dtype), x


def plain_convolution() -> tuple[Layer, torch.Tensor]:
    channels = _size(4, 7)
    kernel, stride = (_size(2, 3), _size(4, 5)), random.choice(((1, 2), (2, 1), (2, 3)))
    layer = nn.Conv2d(channels, _size(8, 12), kernel, stride=stride, padding=(1, 2), bias=False)
    return layer, torch.randn(_size(3, 6), channels, _size(14, 18), _size(19, 23))


def grouped_convolution() -> tuple[Layer, torch.Tensor]:
    groups, dtype = _size(4, 5), torch.float64
    channels = groups * _size(6, 7)
    kernel = (_size(4, 5), _size(2, 3))
    layer = nn.Conv2d(channels, groups * _size(6, 9), kernel, groups=groups, dilation=(1, 2), dtype=dtype)
    layer.weight.requires_grad_(False)  # which makes it no smaller
    return layer, torch.randn(_size(3, 6), channels, _size(11, 14), _size(15, 18), dtype=dtype)


def huge_linear() -> tuple[Layer, torch.Tensor]:
    inputs, half = 8 * _size(1000, 2000), torch.float16
    layer = nn.Linear(inputs, 8 * _size(2001, 4000), device="meta", dtype=half)
    return layer, torch.empty((3, _size(1025, 4000), inputs), device="meta", dtype=half)


@check(lesson=1, says="FLOPs and bytes are right for Linear and Conv2d, in any shape and dtype")
def layer_cost(student: Any, trial: Trial) -> None:
    """Check a function of (layer, x), an nn.Linear or nn.Conv2d and its input: the FLOPs of a forward pass, a
    multiply-add as two and the bias's sums not counted, and the bytes of input, weight, bias and output together."""
    trial.function(student, ("layer", "x"))
    makers = (plain_linear, deep_linear, plain_convolution, grouped_convolution, huge_linear, one_row)
    for case in [_drawn(make) for make in makers]:
        before = {name: value.detach().clone() for name, value in case.layer.named_parameters()}
        held = [(name, p.grad, 0 if p.grad is None else p.grad._version) for name, p in case.layer.named_parameters()]
        got = trial.call(
            student,
            *(case.layer, case.x),
            may_change={"layer": JUDGED},
            explain=_explain,
        )
        _judge_layer(trial, case, before)
        _judge_gradients(trial, case, held)
        found = pair(trial, got, ("flops", "nbytes"), ROOF)
        flops, nbytes = (
            number(trial, value, name, ROOF) for value, name in zip(found, ("flops", "nbytes"), strict=True)
        )
        _judge(trial, case, flops, nbytes)


def _judge(trial: Trial, case: Case, flops: float, nbytes: float) -> None:
    trial.expect(
        (flops, nbytes) != (case.nbytes, case.flops),
        "the two numbers are swapped",
        expected=f"({case.flops:,} FLOPs, {case.nbytes:,} bytes)",
        got=f"({show(flops)}, {show(nbytes)})",
        read=ROOF,
    )
    if flops != case.flops:
        scaled = [
            Mistake(case.flops / factor, f"the FLOPs came in {unit}", "operations are asked for, as a whole number")
            for factor, unit in ((1e6, "MFLOP"), (1e9, "GFLOP"), (1e12, "TFLOP"))
        ]
        mistake = find(flops, [*flop_mistakes(case), *scaled], 1e-12)
        kind = type(case.layer).__name__
        trial.fail(
            mistake.summary if mistake else f"the FLOPs of a {kind} are not right",
            expected=f"{case.flops:,} FLOPs for {case.words}",
            got=f"{flops:,}",
            likely=mistake.likely if mistake else _near(flops, case.flops),
            read=ROOF,
        )
    if nbytes != case.nbytes:
        mistake = find(nbytes, byte_mistakes(case), 1e-12)
        trial.fail(
            mistake.summary if mistake else "the bytes are not right",
            expected=f"{case.nbytes:,} bytes for {case.words}: input {case.x.nbytes:,}, weight "
            f"{case.layer.weight.nbytes:,}, bias {case.bias_bytes:,}, output {case.out.nbytes:,}",
            got=f"{nbytes:,}",
            likely=mistake.likely if mistake else "",
            read=ROOF,
        )


def _near(got: float, want: int) -> str:
    if close(got, want, 1e-6):
        return "nearly: floats hold about 16 digits (float32 about 7), and a count of operations is a whole number"
    return "count the numbers of the output, then the multiply-adds that each of them takes"


# What `_judge_layer` compares itself, in its own words.
JUDGED: frozenset[Kind] = frozenset(("grad", "parameters", "parts", "place", "mode"))


def _judge_gradients(trial: Trial, case: Case, before: list[tuple[str, torch.Tensor | None, int]]) -> None:
    now = {name: value.grad for name, value in case.layer.named_parameters()}
    gone = [name for name, grad, _ in before if grad is not None and now.get(name) is None]
    trial.expect(
        not gone,
        "the gradients that were there are gone",
        expected="the layer as it was, with the caller's gradients",
        got=f"none in {', '.join(gone)}",
        likely="zero_grad() belongs to the caller, who may be in the middle of a step: shapes are enough",
        read=ROOF,
    )
    left = [
        name
        for name, grad, version in before
        if (new := now.get(name)) is not None and (new is not grad or new._version != version)
    ]
    trial.expect(
        not left,
        "gradients were left in the layer",
        expected="the layer as it was",
        got=f"a gradient in {', '.join(left)}",
        likely="backward is not needed to count: shapes are enough",
        read=ROOF,
    )


def _judge_layer(trial: Trial, case: Case, before: dict[str, torch.Tensor]) -> None:
    now = dict(case.layer.named_parameters())
    same = now.keys() == before.keys() and all(
        value.device == before[name].device
        and value.dtype == before[name].dtype
        and (value.is_meta or torch.equal(value.detach(), before[name]))
        for name, value in now.items()
    )
    trial.expect(
        same and case.layer.training,
        "the layer came back changed",
        expected="its parameters, their dtype and device, and its mode as they were",
        got="others",
        likely=".to(), .half() and .eval() change a module itself: work on the numbers, or on a copy",
        read=ROOF,
    )


def _explain(error: str) -> str:
    if "meta" in error or "no data" in error:
        return "the last input has shapes and no values (device meta): FLOPs and bytes follow from shapes alone"
    if "in_features" in error or "out_features" in error:
        return "a Conv2d has in_channels, out_channels and kernel_size; layer.weight.shape serves both kinds"
    if "in_channels" in error or "kernel_size" in error or "out_channels" in error:
        return "a Linear has in_features and out_features; layer.weight.shape serves both kinds"
    if "'NoneType'" in error and "bias" not in error:
        return "layer.bias is None where the layer has no bias"
    if error.startswith(("ValueError", "IndexError")) and ("unpack" in error or "range" in error):
        return "the input may have any number of dimensions before the last: use .numel() and shape[-1]"
    return ""

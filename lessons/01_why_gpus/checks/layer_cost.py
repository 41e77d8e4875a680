"""Checks exercise 01.1, "what a layer costs": FLOPs and bytes of Linear and Conv2d, from their shapes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import nn

from gpulab.exercise.numbers import Clause, Numbers, Part
from gpulab.exercise.scenes import Scene

ROOF = "Operations per byte, and the roof"


@dataclass(frozen=True)
class Job:
    """A layer, its input, and its output, which is computed before any of the student's code runs."""

    layer: Any  # an nn.Linear or an nn.Conv2d
    x: torch.Tensor
    out: torch.Tensor

    @property
    def flops(self) -> int:
        return 2 * self.out.numel() * int(self.layer.weight[0].numel())

    @property
    def nbytes(self) -> int:
        return self.x.nbytes + self.weight + self.bias + self.out.nbytes

    @property
    def weight(self) -> int:
        return int(self.layer.weight.nbytes)

    @property
    def bias(self) -> int:
        return 0 if self.layer.bias is None else int(self.layer.bias.nbytes)

    @property
    def groups(self) -> int:
        return int(self.layer.groups) if isinstance(self.layer, nn.Conv2d) else 1

    @property
    def numbers(self) -> int:
        return self.nbytes // self.x.element_size()

    @property
    def rows(self) -> int:
        return self.out.numel() // len(self.layer.weight)


def make(layer: Any, x: torch.Tensor) -> Job:
    with torch.no_grad():
        return Job(layer, x, layer(x))


LINEAR, CONVOLUTION = ("rows", "one row", "deep", "huge, on meta"), ("strided", "grouped")
EDGES = {
    "form": (*LINEAR, *CONVOLUTION),
    "bias": (True, False),
    "dtype": (torch.float32, torch.bfloat16, torch.float64),
    "frozen": (False, True),
}


def draw(edge: Scene) -> Job:
    size, device = random.randint, "meta" if edge.form == "huge, on meta" else "cpu"
    options = {"bias": edge.bias, "dtype": edge.dtype, "device": device}
    layer: Any
    if edge.form in LINEAR:
        inputs = size(20, 40) if device == "cpu" else 8 * size(1000, 2000)
        layer = nn.Linear(inputs, size(41, 60) if device == "cpu" else 8 * size(2001, 4000), **options)
        before = {"rows": (size(6, 19),), "one row": (), "deep": (size(3, 7), size(8, 10), size(11, 15))}
        shape = (*before.get(edge.form, (3, size(1025, 4000))), inputs)
    else:
        groups = 1 if edge.form == "strided" else size(4, 5)
        channels, kernel = groups * size(6, 7), random.choice(((2, 4), (3, 5), (5, 2), (4, 3)))
        form: dict[str, Any] = (
            {"stride": random.choice(((1, 2), (2, 1), (2, 3))), "padding": (1, 2)} if groups == 1 else {}
        )
        form = form or {"groups": groups, "dilation": (1, 2)}
        layer = nn.Conv2d(channels, groups * size(6, 9), kernel, **form, **options)
        shape = (size(3, 6), channels, size(14, 18), size(19, 23))
    layer.requires_grad_(not edge.frozen)
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)  # the caller's
    if edge.form == "rows":  # of a larger tensor
        return make(layer, torch.randn(40, shape[1] + 3).to(edge.dtype)[5 : 5 + shape[0], : shape[1]])
    return make(layer, torch.empty(shape, device=device).to(edge.dtype))


def linear(count: Callable[[Job], float]) -> Callable[[Job], float]:
    """This count for a Linear, the right one for a Conv2d."""
    return lambda j: count(j) if isinstance(j.layer, nn.Linear) else j.flops


def conv(count: Callable[[Job, Any], float]) -> Callable[[Job], float]:
    """This count for a Conv2d, the right one for a Linear."""
    return lambda j: count(j, j.layer) if isinstance(j.layer, nn.Conv2d) else j.flops


def as_if_strided(j: Job, layer: Any, side: int) -> int:
    """FLOPs with the stride of one side for both."""
    sides = [
        (length + 2 * int(pad) - wide * (kernel - 1) - 1) // layer.stride[side] + 1
        for length, pad, wide, kernel in zip(
            j.x.shape[2:], layer.padding, layer.dilation, layer.kernel_size, strict=True
        )
    ]
    return j.flops // int(prod(j.out.shape[2:])) * int(prod(sides))


EACH_MOVED = "input, weight, bias and output are each moved once"
MISTAKES = [
    ("flops", "multiply-adds were counted, not operations",
     "a multiply-add is two operations, a product and a sum", lambda j: j.flops // 2),
    ("flops", "three times the FLOPs of a forward pass", "backward is not asked for here", lambda j: 3 * j.flops),
    ("flops", "the additions of the bias were counted",
     "they do not count here, as PyTorch's own counter leaves them out: out.numel() beside the products",
     lambda j: j.flops + (j.out.numel() if j.bias else 0), lambda j: j.flops + j.out.numel()),
    ("flops", "the FLOPs of one row only",
     "a layer does its work for each row of the input again: all dimensions but the last",
     linear(lambda j: j.flops // j.rows)),
    ("flops", "the FLOPs of one output position only",
     "a convolution does its work at each position of each image again: N × height × width of the output",
     conv(lambda j, c: 2 * c.weight.numel()), lambda j: 2 * j.layer.weight.numel()),
    ("flops", "the only dimension of the input was taken for its rows",
     "a Linear takes (..., in_features): if there is no dimension before the last, it is one row",
     linear(lambda j: j.flops * (j.x.shape[0] if j.x.dim() == 1 else 1))),
    ("flops", "a dimension of the input was left out",
     "x.shape[0] is the batch, and there may be more dimensions before the last: x.numel() // in_features rows",
     linear(lambda j: j.flops // j.rows * j.x.shape[0]),
     linear(lambda j: j.flops // j.rows * j.x.shape[0] * (j.x.shape[1] if j.x.dim() == 3 else 1))),
    ("flops", "a dimension of the input was left out",
     "the first dimension counts too: every row of every sample goes through the layer",
     linear(lambda j: j.flops // j.rows * (j.x.shape[-2] if j.x.dim() > 1 else 1)),
     linear(lambda j: j.flops // j.rows * prod(j.x.shape[1:-1]))),
    ("flops", "the positions of the input were counted, not those of the output",
     "stride, padding and dilation decide how often the kernel is applied: once for each position of the output",
     conv(lambda j, c: j.flops // prod(j.out.shape[2:]) * prod(j.x.shape[2:]))),
    ("flops", "the stride of one dimension was used for both",
     "layer.stride has one for the height and one for the width, which may differ",
     conv(lambda j, c: as_if_strided(j, c, 0)), conv(lambda j, c: as_if_strided(j, c, 1))),
    ("flops", "the groups were not counted",
     "with groups each output channel sees in_channels / groups channels: the shape of layer.weight says so",
     lambda j: j.flops * j.groups),
    ("flops", "the groups were counted twice", "layer.weight has in_channels / groups in its second dimension already",
     lambda j: j.flops // j.groups),
    ("flops", "one dimension of the kernel was left out",
     "a kernel of height × width does height · width multiply-adds for each channel",
     conv(lambda j, c: j.flops // c.kernel_size[0]), conv(lambda j, c: j.flops // c.kernel_size[1])),
    ("flops", "the kernel was assumed to be square", "kernel_size has a height and a width, which may differ",
     conv(lambda j, c: j.flops // prod(c.kernel_size) * c.kernel_size[0] ** 2),
     conv(lambda j, c: j.flops // prod(c.kernel_size) * c.kernel_size[1] ** 2)),
    ("flops", "the FLOPs of one image only", "each image of the batch goes through the layer",
     conv(lambda j, c: j.flops // len(j.x))),
    ("flops", "the FLOPs of one output channel only", "each output channel has a kernel of its own",
     conv(lambda j, c: j.flops // c.out_channels)),
    ("flops", "the FLOPs of one input channel only", "the kernel spans all input channels of its group",
     conv(lambda j, c: 2 * j.out.numel() * prod(c.kernel_size))),
    *(("flops", f"the FLOPs were returned in {unit}", "operations are asked for, as a whole number",
       lambda j, of=of: j.flops / of) for of, unit in ((1e6, "MFLOP"), (1e9, "GFLOP"), (1e12, "TFLOP"))),
    ("flops", "the FLOPs are only nearly right",
     "floats hold about 16 digits (float32 about 7), and a count of operations is a whole number",
     lambda j: int(torch.tensor([2.0, j.out.numel(), j.layer.weight[0].numel()]).prod())),
    ("nbytes", "the bias was left out of the bytes", EACH_MOVED, lambda j: j.nbytes - j.bias),
    ("nbytes", "only the weight was counted", EACH_MOVED, lambda j: j.weight),
    ("nbytes", "only the parameters were counted", EACH_MOVED, lambda j: j.weight + j.bias),
    ("nbytes", "the output was left out of the bytes", "what is computed must be written too",
     lambda j: j.nbytes - j.out.nbytes),
    ("nbytes", "the input was left out of the bytes", EACH_MOVED, lambda j: j.nbytes - j.x.nbytes),
    ("nbytes", "the weight was left out of the bytes",
     "the weight lies in the GPU's memory like any tensor, trained or not, and is read in each call",
     lambda j: j.nbytes - j.weight, lambda j: j.nbytes - j.weight - j.bias,
     lambda j: j.nbytes - (0 if j.layer.weight.requires_grad else j.weight + j.bias)),
    ("nbytes", "elements were counted, not their bytes",
     "each element takes element_size() bytes: 2 in bfloat16, 4 in float32, 8 in float64", lambda j: j.numbers),
    *(("nbytes", f"every element was counted as {size} bytes",
       "the dtype decides: x.element_size(), or .nbytes of each tensor",
       lambda j, size=size: j.numbers * size) for size in (2, 4, 8)),
    ("nbytes", "bits were returned", "a byte has eight bits; GB/s counts bytes", lambda j: 8 * j.nbytes),
    ("nbytes", "more than the input was counted",
     "x may be a part of a larger tensor, whose whole storage was counted: x.nbytes is the part",
     lambda j: j.nbytes - j.x.nbytes + j.x.untyped_storage().nbytes()),
    ("nbytes", "the weight was counted for every row again",
     "it is read once for all rows; that is why a large batch pays off",
     lambda j: j.nbytes + j.weight * (j.rows - 1)),
    ("nbytes", "the bias was counted too small",
     "with groups, too, it has one element per output channel: layer.bias.nbytes",
     lambda j: j.nbytes - j.bias + j.bias // j.groups),
    ("nbytes", "the weight was counted too large",
     "with groups it has in_channels / groups in its second dimension: layer.weight.nbytes",
     lambda j: j.nbytes + j.weight * (j.groups - 1)),
    ("nbytes", "the parameters were counted twice",
     "their gradients belong to the backward pass, which is not asked for", lambda j: j.nbytes + j.weight + j.bias),
    *(("nbytes", f"the bytes were returned in {unit}", "bytes are asked for, as a whole number",
       lambda j, of=of: j.nbytes / of)
      for of, unit in ((1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB"))),
]  # fmt: skip
ERRORS = {
    "meta": "an input may have a shape and no values (device meta): FLOPs and bytes follow from shapes alone",
    "no data": "an input may have a shape and no values (device meta): FLOPs and bytes follow from shapes alone",
    "'Conv2d' object has no": "a Conv2d has in_channels, out_channels and kernel_size; layer.weight.shape serves both",
    "'Linear' object has no": "a Linear has in_features and out_features; layer.weight.shape serves both kinds",
    "'NoneType' object has no": "layer.bias is None where the layer has no bias",
    "unpack": "the input may have any number of dimensions before the last: use .numel() and shape[-1]",
    "IndexError": "the input may have any number of dimensions before the last: use .numel() and shape[-1]",
}
CLAUSES: list[Clause[Job]] = [
    Clause("a multiply-add is two", "flops", "the FLOPs of a Linear are not right",
           "the elements of the output, times the multiply-adds that each takes, times two",
           lambda j: isinstance(j.layer, nn.Linear)),
    Clause("a multiply-add is two", "flops", "the FLOPs of a Conv2d are not right",
           "the elements of the output, times the multiply-adds that each takes, times two"),
    Clause("input, weight, bias and output are moved once each, in their dtype", "nbytes", "the bytes are not right"),
]  # fmt: skip
EXERCISE = Numbers(
    __file__,
    says="FLOPs and bytes are right for Linear and Conv2d, in any shape and dtype",
    parameters=("layer", "x"),
    job=make,
    edges=EDGES,
    draw=draw,
    every=False,
    parts={
        "flops": Part(lambda j: j.flops, ROOF, same=lambda j, got: got == j.flops),
        "nbytes": Part(lambda j: j.nbytes, ROOF, same=lambda j, got: got == j.nbytes),
    },
    clauses=CLAUSES,
    mistakes=MISTAKES,
    explain=lambda j, error: next((likely for text, likely in ERRORS.items() if text in error), ""),
)

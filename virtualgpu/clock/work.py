"""Kernel durations from shapes: matrix products, convolutions, attention.

`cost` passes the shapes of a program's tensors, the simulators those of their sliders. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from . import limits
from .rates import BYTES, Rates

# Part of a large product's rate that attention reaches: flash attention as FlashAttention-2 on an A100 (arXiv
# 2307.08691: up to 73 % of the peak forward, 63 % backward); the memory-efficient kernels: an assumption.
FLASH, FLASH_BACKWARD, EFFICIENT = 0.8, 0.7, 0.4

_ON_TENSOR_CORES = ("fp16", "bf16", "tf32")
# Part of the memory's rate at which images change their layout: 540 of 800 GB/s on a V100, nchwToNhwcKernel in training
# ResNet-50 (github.com/PaddlePaddle/Paddle/issues/19425: 5.3 s for 128 steps with 128 images).
_TRANSPOSED = 0.68
_TRANSPOSED_ON_HOPPER = 0.5  # 2.0 to 2.3 of 4.3 TB/s, nchwToNhwcKernel on an H200; it always copies
_GATHERING = 0.75  # part of the rate of a convolution on tensor cores that reads images with channels first: assumed
_CHANNELS = {"fp16": 8, "bf16": 8, "tf32": 4}  # tensor cores take so many at a time; fewer are filled up

Shape = Sequence[int]


class Work(NamedTuple):
    """Seconds of arithmetic and of memory traffic, which overlap; `flops`; seconds of `copies` beforehand."""

    arithmetic: float
    memory: float
    flops: float
    copies: float = 0.0

    @property
    def seconds(self) -> float:
        """Time of the work, without a kernel's least time."""
        return max(self.arithmetic, self.memory) + self.copies


def product(
    rates: Rates, rows: int, columns: int, depth: int, count: int, dtype: str, moving: float, aligned: int = 16
) -> Work:
    """Return the work of `count` products of (rows, depth) and (depth, columns) matrices; `moving`: memory seconds."""
    seconds = rates.product_seconds(rows, columns, depth, count, dtype, aligned)
    return Work(seconds, moving, 2.0 * count * rows * columns * depth)


def convolution(
    rates: Rates,
    parts: Sequence[tuple[float, float]],
    dtype: str,
    moving: float,
    plain_bytes: int,
    *,
    backward: bool = False,
) -> Work:
    """Return the work of a convolution's `parts` (see `convolution_parts`) together; `moving`: memory seconds.

    Tensor cores want channels last. Images that are not, of `plain_bytes`, are copied, each copy read and written;
    forward a convolution can gather them itself and compute more slowly, and the faster way counts.
    """
    seconds, flops = sum(part for part, _ in parts), sum(flops for _, flops in parts)
    if dtype not in _ON_TENSOR_CORES or not plain_bytes:
        return Work(seconds, moving, flops)
    if rates.capability == (9, 0):
        return Work(seconds, moving, flops, rates.memory_seconds(2 * plain_bytes) / _TRANSPOSED_ON_HOPPER)
    copied = Work(seconds, moving, flops, rates.memory_seconds(2 * plain_bytes) / _TRANSPOSED)
    gathered = Work(seconds / _GATHERING, moving, flops)
    return copied if backward else min(copied, gathered, key=lambda way: way.seconds)


def convolution_parts(
    rates: Rates,
    tensor: Shape,
    weight: Shape,
    out: Shape,
    dtype: str,
    *,
    groups: int = 1,
    transposed: bool = False,
    by_cudnn: bool = True,
    last: bool = False,
    unit: bool = False,
    parts: Sequence[str] = ("forward",),
) -> list[tuple[float, float]]:
    """Return seconds and operations of each part of a convolution, as matrix products (im2col, without the copies).

    `tensor`, `weight` and `out` are shapes as PyTorch has them; `parts` are "forward", or "input" and "weight", the
    gradients of those. Of a depthwise convolution, `by_cudnn`: whether cuDNN does it, or a kernel of PyTorch; `last`:
    whether its images have channels last; `unit`: whether stride and dilation are 1 and nothing is transposed.
    """
    sides = convolution_products(tensor, weight, out, groups=groups, transposed=transposed)
    made = {"forward": "big" if transposed else "small", "input": "small" if transposed else "big", "weight": "weight"}
    found = []
    for part in parts:
        flops = 2.0 * math.prod(sides["small"]) * groups
        if not flops:
            seconds = 0.0
        elif 1 in (sides["small"][1], sides["big"][1]) and groups > 1:  # depthwise: no product of matrices
            window = math.prod(weight[2:])
            if rates.capability == (9, 0):
                seconds = _depthwise_on_hopper((out, tensor), window, part, dtype, by_cudnn, last) * 132 / rates.sms
            else:
                seconds = _depthwise(rates, (out, tensor), window, part, dtype, by_cudnn)
        else:
            seconds = rates.product_seconds(*_filled(*sides[made[part]], dtype), groups, dtype)
            if rates.capability == (9, 0) and dtype == "fp32" and groups == 1 and not last:
                seconds /= _share_of_lanes(part, weight, unit=unit)
        found.append((seconds, flops))
    return found


def _depthwise(rates: Rates, sides: tuple[Shape, Shape], window: int, part: str, dtype: str, by_cudnn: bool) -> float:
    """Return the time of a depthwise convolution: CUDA cores load a number of the image for each multiply-add.

    The weight's gradient goes through image and gradient once for each tap. PyTorch's own kernel (DepthwiseConv2d.cu)
    has a block for each tap, which finds nothing of the others'; cuDNN's is taken to find it in L2. On an A100 forward
    and backward together take 17.6 times (PyTorch's, fp32) and 3.4 times (cuDNN's, fp16) as long as forward alone
    (github.com/pytorch/pytorch/issues/18631).
    """
    small, big = sides
    if part == "weight":
        numbers = window * (math.prod(small) + math.prod(big))
        return numbers * BYTES[dtype] / rates.l2_rate if by_cudnn else rates.memory_seconds(numbers * BYTES[dtype])
    adds = math.prod(small) * window
    return max(2 * adds / (rates.tflops["fp32"] * 1e12), adds / (rates.loads_per_us * 1e6))


def _share_of_lanes(part: str, weight: Shape, *, unit: bool) -> float:
    """Return the part of a product's rate that a float32 convolution with channels first reaches on an H200 (cuDNN
    9.19, 65 shapes of ResNet, MobileNet and ConvNeXt); a 3 × 3 weight gradient may use Winograd's way, above 1.
    """
    if part != "weight":
        return {"forward": 0.65, "input": 0.5}[part]
    window = math.prod(weight[2:])
    if window == 9 and unit and min(weight[:2]) >= 128:
        return 1.8
    return 0.25 if window == 1 else 0.42


# 10¹² multiply-adds per second of depthwise convolutions on an H200 (cuDNN 9.19, torch 2.11, 28 shapes of MobileNet,
# ConvNeXt and of its own, medians): with 3 × 3 numbers, and with 5 × 5; with 7 × 7 where they are apart.
_HOPPER_DEPTHWISE: dict[str, dict[str, tuple[float, ...]]] = {
    "PyTorch's": {"forward": (0.93, 1.5), "input": (0.53, 1.1), "weight": (0.45, 0.62)},
    "first": {"forward": (2.5, 3.0), "input": (2.0, 2.5), "weight": (1.8, 2.6)},
    "last, 16 bits": {"forward": (5.0, 6.0, 7.5), "input": (5.0, 4.0, 2.8), "weight": (5.0, 5.0, 8.0)},
    "last": {"forward": (3.2, 3.2, 2.6), "input": (2.3, 3.0, 2.3), "weight": (3.0, 2.4, 0.21)},
}


def _depthwise_on_hopper(
    sides: tuple[Shape, Shape], window: int, part: str, dtype: str, by_cudnn: bool, last: bool
) -> float:
    """Return the time measured on an H200 (132 SMs): by kernel, and by how often a number of the image is used."""
    small, big = sides
    kernel = "PyTorch's"
    if by_cudnn:
        kernel = "first" if not last else "last, 16 bits" if BYTES[dtype] == 2 else "last"
    rates = _HOPPER_DEPTHWISE[kernel][part]
    rate = rates[min(0 if window <= 9 else 1 if window <= 25 else 2, len(rates) - 1)]
    return math.prod(big if part == "input" else small) * window / (rate * 1e12)


def _filled(rows: int, columns: int, depth: int, dtype: str) -> tuple[int, int, int]:
    multiple = _CHANNELS.get(dtype, 1)
    return rows, -(-columns // multiple) * multiple, -(-depth // multiple) * multiple


def convolution_products(
    tensor: Shape, weight: Shape, out: Shape, *, groups: int = 1, transposed: bool = False
) -> dict[str, tuple[int, int, int]]:
    """Return rows, columns and depth of the product that makes the "small" side, the "big" side, and the "weight"."""
    # A transposed convolution is the backward pass of an ordinary one: its input is the smaller side.
    big, small = (out, tensor) if transposed else (tensor, out)
    window, positions = math.prod(weight[2:]), small[0] * math.prod(small[2:])
    into, to = big[1] // groups, small[1] // groups
    pixels = big[0] * math.prod(big[2:])
    return {
        "small": (positions, to, into * window),
        "big": (pixels, into, max(1, round(positions * to * window / max(1, pixels)))),
        "weight": (to, into * window, positions),
    }


def attention(rates: Rates, flops: float, dtype: str, share: float, moving: float) -> Work:
    """Return the work of a fused attention kernel at `share` of a large product's rate; `moving`: memory seconds."""
    return Work(flops / (rates.tflops[dtype] * 1e12 * share), moving, flops)


# Flash attention as FlashAttention-2 has it (arXiv 2307.08691), cuDNN's alike: blocks of so many queries and keys; the
# part of a large product's rate that its products reach beside the exponentials, forward and backward. An A100's best
# is so 222 TFLOP/s forward and 170 to 200 backward with heads of 128 (published: 230 and 196), 190 and 160 with 64.
_BLOCK, _LEAST_BLOCK = 128, 16
_PRODUCTS, _PRODUCTS_BACKWARD = 1.0, 0.75


def flash_attention(
    rates: Rates,
    count: int,
    queries: int,
    keys: int,
    width: int,
    dtype: str,
    flops: float,
    moving: float,
    *,
    causal: bool = False,
    backward: bool = False,
) -> Work:
    """Return the work of flash attention of `count` heads in all, `width` wide; `flops` are those that count.

    Blocks are computed whole, those on the diagonal too. Each score's exponential follows its product.
    """
    size = _BLOCK if queries >= _BLOCK else -(-queries // _LEAST_BLOCK) * _LEAST_BLOCK
    rows, columns = -(-queries // size), -(-keys // _BLOCK)
    blocks = sum(min(columns, row + 1) for row in range(rows)) if causal and rows > 1 else rows * columns
    scores = float(count * blocks * size * _BLOCK)
    products, share = (10.0, _PRODUCTS_BACKWARD) if backward else (4.0, _PRODUCTS)
    seconds = scores * products * width / (rates.tflops[dtype] * 1e12 * share) + limits.exponentials(rates, scores)
    return Work(seconds, moving, flops)

"""What the operations that do arithmetic take on a GPU, from their shapes: products, convolutions, attention.

`cost` reads the shapes off a program's tensors, the simulators off their sliders; both ask here. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from .rates import Rates

# Part of a large product's rate that attention reaches: flash attention as FlashAttention-2 on an A100 (arXiv
# 2307.08691: up to 73 % of the peak forward, 63 % backward); the memory-efficient kernels: an assumption.
FLASH, FLASH_BACKWARD, EFFICIENT = 0.8, 0.7, 0.4

Shape = Sequence[int]


class Work(NamedTuple):
    """Seconds of arithmetic and of memory traffic, which overlap; `flops`; seconds of `copies` beforehand."""

    arithmetic: float
    memory: float
    flops: float
    copies: float = 0.0

    @property
    def seconds(self) -> float:
        """Beside a kernel's least time."""
        return max(self.arithmetic, self.memory) + self.copies


def product(rates: Rates, rows: int, columns: int, depth: int, count: int, dtype: str, nbytes: int) -> Work:
    """`count` products of (rows, depth) and (depth, columns) matrices that move `nbytes` altogether."""
    seconds = rates.product_seconds(rows, columns, depth, count, dtype)
    return Work(seconds, rates.memory_seconds(nbytes), 2.0 * count * rows * columns * depth)


def convolution(rates: Rates, parts: Sequence[tuple[float, float]], dtype: str, nbytes: int, plain_bytes: int) -> Work:
    """A convolution's `parts` (see `convolved`) together, which move `nbytes`.

    Tensor cores want channels last: images that are not, of `plain_bytes`, are copied, each copy read and written.
    """
    copies = rates.memory_seconds(2 * plain_bytes) if dtype in ("fp16", "bf16", "tf32") else 0.0
    seconds = sum(part for part, _ in parts)
    return Work(seconds, rates.memory_seconds(nbytes), sum(flops for _, flops in parts), copies)


def convolved(
    rates: Rates,
    tensor: Shape,
    weight: Shape,
    out: Shape,
    dtype: str,
    *,
    groups: int = 1,
    transposed: bool = False,
    parts: Sequence[str] = ("forward",),
) -> list[tuple[float, float]]:
    """Seconds and operations of the parts of a convolution, as products of matrices (im2col, without the copies).

    `tensor`, `weight` and `out` are shapes as PyTorch has them; `parts` are "forward", or "input" and "weight", the
    gradients of those.
    """
    sides = convolution_products(tensor, weight, out, groups=groups, transposed=transposed)
    made = {"forward": "big" if transposed else "small", "input": "small" if transposed else "big", "weight": "weight"}
    found = []
    for part in parts:
        flops = 2.0 * math.prod(sides["small"]) * groups
        if not flops:
            seconds = 0.0
        elif 1 in (sides["small"][1], sides["big"][1]):  # depthwise, or nearly: no product of matrices, the lanes do it
            seconds = flops / (rates.tflops["fp32"] * 1e12)
        else:
            seconds = rates.product_seconds(*sides[made[part]], groups, dtype)
        found.append((seconds, flops))
    return found


def convolution_products(
    tensor: Shape, weight: Shape, out: Shape, *, groups: int = 1, transposed: bool = False
) -> dict[str, tuple[int, int, int]]:
    """Rows, columns and depth of the product that makes the "small" side, the "big" side, and the "weight"."""
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


def attention(rates: Rates, flops: float, dtype: str, share: float, nbytes: int) -> Work:
    """A fused attention kernel that reaches `share` of a large product's rate and moves `nbytes`."""
    return Work(flops / (rates.tflops[dtype] * 1e12 * share), rates.memory_seconds(nbytes), flops)

"""Benchmark kernels by shape: matrix products, memory traffic, norms, convolutions, attention.

Milliseconds on the device, medians. Inputs are random: a GPU is faster on zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..units import MIB
from .operators import DEVICE, autocast
from .speed import PRECISIONS, median_ms

# (m, n, k): squares, few tiles, short and long inner dimensions, a batch of tokens, leading dimensions that are no
# multiple of 16 bytes, GPT-2's vocabulary and the one padded to a multiple of 64, one row.
SHAPES: tuple[tuple[int, int, int], ...] = (
    *((512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192)),
    *((4096, 4096, 4097), (4096, 4097, 4096), (4097, 4096, 4096), (4096, 4096, 4098), (4096, 4096, 4100)),
    *((4096, 4096, 4104), (4096, 4100, 4096), (4096, 4104, 4096)),
    *((8192, 768, 768), (8192, 3072, 768), (8192, 768, 3072), (8192, 50257, 768), (8192, 50304, 768)),
    *((16384, 64, 576), (4096, 4096, 64), (4096, 4096, 256), (64, 64, 65536), (128, 4096, 4096), (16, 4096, 4096)),
    *((1, 4096, 4096), (2304, 2304, 4096), (2560, 2560, 4096)),
)
# MiB touched again and again: from far below to far above the L2 cache of any GPU.
TOUCHED = (0.5, 1, 2, 4, 8, 16, 24, 32, 40, 48, 64, 72, 96, 128, 192, 256, 512, 1024, 2048)


def product(shape: tuple[int, int, int], precision: str) -> dict[str, Any]:
    """One product of m × k and k × n."""
    m, n, k = shape
    dtype, tf32 = PRECISIONS[precision]
    a, b = torch.randn(m, k, device=DEVICE, dtype=dtype), torch.randn(k, n, device=DEVICE, dtype=dtype)
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        ms = median_ms(lambda: a @ b, 10, 3)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    return {"mnk": list(shape), "precision": precision, "ms": ms}


def touched(mib: float) -> list[dict[str, Any]]:
    """Memory traffic while `mib` MiB are touched in turn: one pair of tensors of half that size, and pairs of 256 KiB.

    Of the pairs, what is read was written after `bytes_between` other bytes were touched.
    """
    rows = []
    for each in dict.fromkeys((int(mib * MIB) // 2, MIB // 4)):
        pairs = max(1, int(mib * MIB) // (2 * each))
        if pairs > 256:
            continue
        tensors = [torch.randn(each // 4, device=DEVICE) for _ in range(2 * pairs)]
        times = max(1, 20 // pairs)

        def run(tensors: Sequence[Tensor] = tensors, times: int = times) -> None:
            for _ in range(times):
                for one, other in zip(tensors[::2], tensors[1::2], strict=True):
                    torch.add(one, 1.0, out=other)
                    torch.add(other, 1.0, out=one)

        calls = 2 * pairs * times
        rows.append(
            {
                "bytes_each": each,
                "pairs": pairs,
                "bytes_between": 2 * each * pairs,
                "ms": median_ms(run, 10, 3) / calls,
            }
        )
    return rows


@dataclass(frozen=True)
class Layer:
    """A layer and the shape of its input; `last` for channels_last."""

    name: str
    module: nn.Module
    shape: tuple[int, ...]
    last: bool = False


def layers(batch: int = 64) -> Iterator[Layer]:
    """Norms, activations and convolutions, each in the layouts that training uses."""
    width, side = 256, 56
    image = (batch, width, side, side)
    for last in (False, True):
        where = "_channels_last" if last else ""
        yield Layer("batch_norm" + where, nn.BatchNorm2d(width), image, last)
        yield Layer("relu" + where, nn.ReLU(), image, last)
        for name, groups, kernel in (
            ("conv1x1", 1, 1),
            ("conv3x3", 1, 3),
            ("grouped32_3x3", 32, 3),
            ("depthwise3x3", width, 3),
            ("depthwise5x5", width, 5),
            ("depthwise7x7", width, 7),
        ):
            made = nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=groups, bias=False)
            yield Layer(name + where, made, image, last)
    yield Layer("group_norm", nn.GroupNorm(32, width), image)
    rows = (128 * batch, 1024)
    yield Layer("layer_norm", nn.LayerNorm(1024), rows)
    yield Layer("rms_norm", nn.RMSNorm(1024), rows)
    yield Layer("gelu", nn.GELU(), rows)
    yield Layer("softmax", nn.Softmax(-1), rows)
    yield Layer("dropout", nn.Dropout(0.1), rows)


def layer(one: Layer, mode: str, *, train: bool) -> dict[str, Any]:
    """One layer forward, and forward and backward together in training; `mode` is fp32, amp_fp16 or amp_bf16."""
    dtype = {"fp32": None, "amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}[mode]
    form = torch.channels_last if one.last else torch.contiguous_format
    module = one.module.to(DEVICE).to(memory_format=form).train(train)
    x = torch.randn(one.shape, device=DEVICE, dtype=dtype or torch.float32).to(memory_format=form).requires_grad_(train)

    def forward() -> Tensor:
        with autocast(dtype), torch.set_grad_enabled(train):
            out: Tensor = module(x)
        return out

    row = {
        "name": one.name,
        "shape": list(one.shape),
        "mode": mode,
        "train": train,
        "forward_ms": median_ms(forward, 10),
    }
    if train:
        gradient = torch.randn_like(forward())
        row["both_ms"] = median_ms(lambda: forward().backward(gradient), 10)
    return row


# (batch, heads, length, width of a head)
ATTENTION = ((8, 12, 1024, 64), (8, 12, 256, 64), (2, 16, 4096, 64), (4, 32, 1024, 128))


def attention(shape: tuple[int, ...], dtype: torch.dtype, *, causal: bool) -> dict[str, Any]:
    """Scaled dot-product attention forward, and forward and backward together."""
    q, k, v = (torch.randn(shape, device=DEVICE, dtype=dtype, requires_grad=True) for _ in range(3))

    def forward() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    gradient = torch.randn_like(forward())
    return {
        "name": "attention_causal" if causal else "attention",
        "shape": list(shape),
        "mode": str(dtype).removeprefix("torch."),
        "train": True,
        "forward_ms": median_ms(forward, 10),
        "both_ms": median_ms(lambda: forward().backward(gradient), 10),
    }

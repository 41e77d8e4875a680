"""Operations whose saved tensors and times are recorded: name, inputs, parameters, call.

Names and shapes are those of the older recorder from outside the package, so that its recordings are compared by the
same table. Nothing here measures.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DEVICE = "cuda:0"
BATCH, LENGTH, WIDTH, HEADS = 8, 256, 512, 8

# Mode of an operation -> dtype of its parameters and inputs, and that of autocast.
MODES: dict[str, tuple[torch.dtype, torch.dtype | None]] = {
    "fp32": (torch.float32, None),
    "autocast_fp16": (torch.float32, torch.float16),
    "autocast_bf16": (torch.float32, torch.bfloat16),
    "fp16": (torch.float16, None),
    "bf16": (torch.bfloat16, None),
}


@dataclass(frozen=True)
class Case:
    """`call(*inputs)` is the operation; `parameters` are those of its module, if it has one."""

    inputs: tuple[Tensor, ...]
    call: Callable[..., Tensor]
    parameters: tuple[nn.Parameter, ...] = ()


def autocast(dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    """Autocast to `dtype`, nothing for None."""
    return nullcontext() if dtype is None else torch.autocast("cuda", dtype=dtype)


def operators(dtype: torch.dtype) -> dict[str, Callable[[], Case]]:
    """Return name -> function that makes the case on the GPU, parameters and floating-point inputs in `dtype`."""

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, device=DEVICE, dtype=dtype, requires_grad=True)

    def ints(high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, device=DEVICE)

    def tokens() -> tuple[Tensor, ...]:
        return (rand(BATCH, LENGTH, WIDTH),)

    def image() -> tuple[Tensor, ...]:
        return (rand(BATCH, 64, 56, 56),)

    def heads() -> tuple[Tensor, ...]:
        return tuple(rand(BATCH, HEADS, LENGTH, WIDTH // HEADS) for _ in range(3))

    def function(inputs: Callable[[], tuple[Tensor, ...]], call: Callable[..., Tensor]) -> Callable[[], Case]:
        return lambda: Case(inputs(), call)

    def module(
        inputs: Callable[[], tuple[Tensor, ...]],
        make: Callable[[], nn.Module],
        call: Callable[..., Tensor] = lambda made, x: made(x),
    ) -> Callable[[], Case]:
        def case() -> Case:
            made = make().to(DEVICE, dtype)
            return Case(inputs(), lambda *args: call(made, *args), tuple(made.parameters()))

        return case

    attention = F.scaled_dot_product_attention
    return {
        "linear": module(tokens, lambda: nn.Linear(WIDTH, 4 * WIDTH)),
        "matmul": function(tokens, lambda x: x @ x.transpose(-1, -2)),
        "conv3x3": module(image, lambda: nn.Conv2d(64, 64, 3, padding=1)),
        "conv1x1": module(image, lambda: nn.Conv2d(64, 256, 1)),
        "conv_depthwise": module(image, lambda: nn.Conv2d(64, 64, 3, padding=1, groups=64)),
        "batch_norm": module(image, lambda: nn.BatchNorm2d(64)),
        "layer_norm": module(tokens, lambda: nn.LayerNorm(WIDTH)),
        "group_norm": module(image, lambda: nn.GroupNorm(8, 64)),
        "rms_norm": module(tokens, lambda: nn.RMSNorm(WIDTH)),
        "relu": function(tokens, F.relu),
        "gelu": function(tokens, F.gelu),
        "silu": function(tokens, F.silu),
        "softmax": function(tokens, lambda x: F.softmax(x, -1)),
        "log_softmax": function(tokens, lambda x: F.log_softmax(x, -1)),
        "dropout": function(tokens, lambda x: F.dropout(x, 0.1, True)),
        "max_pool": function(image, lambda x: F.max_pool2d(x, 2)),
        "avg_pool": function(image, lambda x: F.avg_pool2d(x, 2)),
        "sdpa": function(heads, attention),
        "sdpa_causal": function(heads, lambda q, k, v: attention(q, k, v, is_causal=True)),
        "sdpa_dropout": function(heads, lambda q, k, v: attention(q, k, v, dropout_p=0.1)),
        "cross_entropy": function(
            lambda: (*tokens(), ints(WIDTH, BATCH * LENGTH)), lambda x, t: F.cross_entropy(x.flatten(0, 1), t)
        ),
        "mse": function(tokens, lambda x: F.mse_loss(x, torch.zeros_like(x))),
        "embedding": module(lambda: (ints(1000, BATCH, LENGTH),), lambda: nn.Embedding(1000, WIDTH)),
        "lstm": module(tokens, lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True), lambda made, x: made(x)[0]),
        "mul_add": function(tokens, lambda x: x * x + x),
        "exp": function(tokens, torch.exp),
        "sum": function(tokens, torch.sum),
        "mean": function(tokens, lambda x: x.mean(-1)),
        "encoder_layer": module(tokens, lambda: nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True)),
        "multihead_attention": module(
            tokens,
            lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True),
            lambda made, x: made(x, x, x, need_weights=False)[0],
        ),
    }

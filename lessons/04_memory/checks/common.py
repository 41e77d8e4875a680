"""Provides the checks of lesson 04 with a layer that saves two views of one storage, and with virtual GPUs."""

from __future__ import annotations

import torch
from torch import nn

from gpulab.exercise.measure import virtual_gpu
from virtualgpu.gpu import VirtualGPU

MIB = 2**20


class Halves(nn.Module):
    """The product of both halves of the columns: autograd saves two views of one storage, which holds all of them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        return x[..., :half] * x[..., half : 2 * half]


def gpus(count: int = 2) -> VirtualGPU:
    """Virtual T4s that know shapes only, with the allocator's own settings, whatever the environment asks for."""
    return virtual_gpu(count=count, compute=False)


def near(got: float, want: float) -> bool:
    """Equal but for the last digits of a float; bytes are exact."""
    return abs(got - want) <= 1e-9 * max(1.0, abs(want))

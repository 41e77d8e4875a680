"""Scatter, gather and broadcast between GPUs, for `torch.nn.parallel.comm` and DataParallel.

Stand-ins for functions of `torch._C`; each copy is a copy between devices like any other.
"""

from __future__ import annotations

from typing import Any

import torch

from ..scope.patches import Patches

Tensor = torch.Tensor


def install(patches: Patches) -> None:
    """Replace the functions for as long as a virtual GPU is in force."""
    for function in (_scatter, _gather, _broadcast, _broadcast_coalesced):
        patches.set(torch._C, function.__name__, function)
    patches.set(torch.cuda.nccl, "is_available", lambda tensors: False)  # sums then go one by one, without NCCL


def _scatter(
    tensor: Tensor, devices: list[int], chunk_sizes: Any = None, dim: int = 0, streams: Any = None
) -> tuple[Tensor, ...]:
    chunks = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(chunk_sizes, dim)
    return tuple(chunk.to(index) for chunk, index in zip(chunks, devices, strict=False))


def _gather(tensors: list[Tensor], dim: int, destination: int | None = None) -> Tensor:
    for position, tensor in enumerate(tensors):
        if not tensor.is_cuda:
            raise RuntimeError(
                f"Expected all input tensors to be CUDA tensors, but tensor at index {position} has device "
                f"{tensor.device}"
            )
    target = "cpu" if destination == -1 else torch.cuda.current_device() if destination is None else destination
    return torch.cat([tensor.to(target) for tensor in tensors], dim)


def _broadcast(tensor: Tensor, devices: list[int]) -> list[Tensor]:
    return [tensor.to(index) for index in devices]


def _broadcast_coalesced(tensors: list[Tensor], devices: list[int], buffer_size: int) -> list[list[Tensor]]:
    return [[tensor.to(index) for tensor in tensors] for index in devices]

"""Fused CUDA kernels without a CPU counterpart, on labelled tensors: RMS norm and its gradient.

Their intermediate results take no GPU memory, as in a fused kernel.
"""

from __future__ import annotations

from typing import Any

import torch

from ..scope.in_force import backing
from ..scope.labels import device_of
from . import cost
from .results import capture_of, place

Tensor = torch.Tensor


def placed(device: Any, run: Any, given: tuple[Any, ...], *made: Tensor | None) -> list[Tensor | None]:
    """Run `run` on backing tensors of `given`, and place its results."""
    if device is None:  # in a CUDA graph that is replayed
        return list(made)
    for tensor in made:
        place(device, tensor)
    capture = capture_of(device)
    return (
        list(made) if capture is None else capture.note(lambda device, args, kwargs: run(*args), given, {}, list(made))
    )


def norm(tensor: Tensor, shape: list[int], weight: Tensor | None, eps: float | None) -> list[Any]:
    """Return the normalised tensor, and one float32 number per row (shape of `tensor`, 1 for normalised dimensions)."""
    device = device_of(tensor)
    dims = list(range(tensor.dim() - len(shape), tensor.dim()))
    with backing, torch.no_grad():
        wide = tensor.detach().float()
        rstd = (wide.pow(2).mean(dims, keepdim=True) + (torch.finfo(tensor.dtype).eps if eps is None else eps)).rsqrt()
        out = wide * rstd
        out = (out if weight is None else out * weight.detach()).to(tensor.dtype)
    if device is not None:
        cost.fused(device, "rms_norm", tensor, out)
    return placed(device, norm, (tensor, shape, weight, eps), out, rstd)


def norm_backward(grad: Tensor, tensor: Tensor, shape: list[int], rstd: Tensor, weight: Tensor | None) -> list[Any]:
    """Return the gradients of the tensor and of the weight."""
    device = device_of(tensor)
    dims = list(range(tensor.dim() - len(shape), tensor.dim()))
    with backing, torch.no_grad():
        normal, of_out = tensor.detach().float() * rstd, grad.float()
        scaled = of_out if weight is None else of_out * weight.detach()
        of_tensor = ((scaled - normal * (scaled * normal).mean(dims, keepdim=True)) * rstd).to(tensor.dtype)
        of_weight = None
        if weight is not None:
            summed = (of_out * normal).flatten(0, dims[0] - 1).sum(0) if dims[0] else of_out * normal
            of_weight = summed.to(weight.dtype)
    if device is not None:
        cost.fused(device, "rms_norm_backward", grad, tensor, of_tensor)
    return placed(device, norm_backward, (grad, tensor, shape, rstd, weight), of_tensor, of_weight)

"""Integer devices, as in `torch.zeros(3, device=0)`, on a PyTorch build without CUDA.

There PyTorch's C++ refuses a number while it reads the arguments, before any hook; so the factories are wrapped. On a
CUDA build nothing is. `torch.device(0)` itself stays refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._device import _device_constructors

from ..scope.patches import Patches


def install(patches: Patches) -> None:
    """Wrap the factories where numbers are refused, for as long as a virtual GPU is in force."""
    if torch._C._has_cuda:
        return
    factories = _device_constructors() | {torch.normal, *_named(torch, "_like"), *_named(torch.Tensor, "new_")}
    for owner in (torch, torch.fft, torch.Tensor):
        for name in dir(owner):
            function = getattr(owner, name, None)
            if callable(function) and not name.startswith("_") and function in factories:
                patches.set(owner, name, _numbered(function))


def _named(owner: Any, part: str) -> list[Any]:
    return [getattr(owner, name) for name in dir(owner) if part in name and not name.startswith("_")]


def _numbered(own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def make(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if type(device) is int:
            kwargs["device"] = torch.device("cuda", device)
        return own(*args, **kwargs)

    return make

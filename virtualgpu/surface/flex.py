"""`torch.nn.attention.flex_attention` on a virtual GPU: runs as the fused kernel of `torch.compile`.

Its checks, masks and results stay PyTorch's; only the compiled part is replaced.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from ..operations import flex
from ..scope.in_force import thread
from ..scope.labels import device_of, storage_of
from ..scope.numbering import device_at
from ..scope.patches import Patches


def attention(module: ModuleType, patches: Patches) -> None:
    """`torch.nn.attention.flex_attention`."""
    patches.set(module, "flex_attention_hop", flex.attend)
    patches.set(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)  # calls it as it is, and without a warning
    own = module._create_empty_block_mask

    def _create_empty_block_mask(query: torch.Tensor, key: torch.Tensor) -> Any:
        return flex.no_mask(query, lambda: own(query, key))

    patches.set(module, "_create_empty_block_mask", _create_empty_block_mask)
    patches.set(module, "create_mask", _masking(module.create_mask))


def _masking(own: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A mask that no index goes into is made of constants, which C++ puts where it takes the GPU to be."""
    signature = inspect.signature(own)

    @functools.wraps(own)
    def create_mask(*args: Any, **kwargs: Any) -> torch.Tensor:
        out = own(*args, **kwargs)
        device = torch.device(signature.bind(*args, **kwargs).arguments.get("device") or "cuda")
        if device.type == "cuda" and device_of(out) is None and not thread.inside:
            device_at(device.index).put(storage_of(out))
        return out

    return create_mask


CHANGES = {"torch.nn.attention.flex_attention": attention}

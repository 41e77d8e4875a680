"""Sharded tensors on virtual GPUs are refused where they are made.

A DTensor is a tensor without a storage of its own, and its operations reach the parts in it past the virtual GPU: what
they allocate would be missing in silence. A mesh of "cpu" works as ever.
"""

from __future__ import annotations

import functools
import sys
from types import FrameType, ModuleType
from typing import Any

import torch

from ..scope.labels import device_of
from ..scope.patches import Patches
from ..scope.refusals import NotMirrored

_HOME = "torch.distributed."


def meshes(module: ModuleType, patches: Patches) -> None:
    """Refuse a mesh of GPUs: in `torch.distributed.device_mesh`."""
    own = module.DeviceMesh.__init__

    @functools.wraps(own)
    def __init__(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            raise _refusal("DeviceMesh")
        own(self, device_type, *args, **kwargs)

    patches.set(module.DeviceMesh, "__init__", __init__)


def tensors(module: ModuleType, patches: Patches) -> None:
    """Refuse sharded tensors whose parts are on a virtual GPU: in `torch.distributed.tensor._api`."""
    own = module.DTensor.__init__

    @functools.wraps(own)
    def __init__(self: Any, local_tensor: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(local_tensor, torch.Tensor) and device_of(local_tensor) is not None:
            raise _refusal("DTensor")
        own(self, local_tensor, *args, **kwargs)

    patches.set(module.DTensor, "__init__", __init__)


CHANGES = {"torch.distributed.device_mesh": meshes, "torch.distributed.tensor._api": tensors}


def _refusal(name: str) -> NotMirrored:
    return NotMirrored(
        f"{_called(sys._getframe(2)) or name} is not mirrored by the virtual GPU: what sharded tensors (DTensor) "
        "allocate would not be counted. DistributedDataParallel works, plain tensors do, and a mesh of 'cpu'"
    )


def _called(frame: FrameType | None) -> str:
    """What of PyTorch's the program has called to get here, such as `fully_shard`."""
    found = ""
    while frame is not None and (home := frame.f_globals.get("__name__", "")).startswith("torch."):
        name = frame.f_code.co_name
        if home.startswith(_HOME) and not name.startswith(("_", "<")) and name not in _WRAPPERS:
            found = name
        frame = frame.f_back
    return found


_WRAPPERS = {"forward", "inner", "wrapper"}

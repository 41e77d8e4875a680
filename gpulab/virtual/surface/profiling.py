"""PyTorch's profiler on a virtual GPU: it records the host's side of a training step.

The virtual GPU starts no kernels, so the CUDA activity is left out and a note says so, once per scope. All else, the
schedule, the tables and the Chrome trace, is PyTorch's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..scope.patches import Patches
from ..scope.refusals import warn_once

if TYPE_CHECKING:
    from ..gpu import VirtualGPU

NOTE = (
    "the profiler records the CPU's activity only, in this machine's real time: the virtual GPU starts no kernels. "
    "When its kernels would run, in virtual time: with gpulab.timing.trace('trace.json')."
)


def install(gpu: VirtualGPU, patches: Patches) -> None:
    """Replace what the profiler asks for as long as `gpu` is in force."""
    from torch.autograd import profiler

    own = profiler.profile.__init__

    def __init__(self: Any, enabled: bool = True, *, use_device: str | None = None, **kwargs: Any) -> None:
        if use_device == "cuda":
            # The CPU's activity also where only CUDA's is asked for: an empty profile would tell nothing.
            use_device, kwargs["use_cpu"] = None, True
            warn_once(gpu.told, NOTE)
        own(self, enabled, use_device=use_device, **kwargs)

    patches.set(profiler.profile, "__init__", __init__)

"""`torch.compile` on a virtual GPU: functions run eagerly, and a note says so.

There is no CUDA to compile for, and the tracer stops at tensors that are not CUDA's. The wrappers that `torch.compile`
makes stay PyTorch's, with their attributes and the names in their state dictionaries.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from ..scope.patches import Patches
from ..scope.refusals import warn_once

if TYPE_CHECKING:
    from ..gpu import VirtualGPU

NOTE = "torch.compile runs the code as it is written, uncompiled: the virtual GPU has no kernels to compile for"
_TRACER = "torch._dynamo.eval_frame"


def install(gpu: VirtualGPU, patches: Patches) -> None:
    """Let nothing be compiled for as long as `gpu` is in force."""
    own = torch.compile

    def compile(*args: Any, **kwargs: Any) -> Any:
        warn_once(gpu.warned, NOTE)
        made = own(*args, **kwargs)
        _run_eagerly(patches)
        return made

    patches.set(torch, "compile", compile)
    if _TRACER in sys.modules:  # something may be compiled already; to import it takes a second
        _run_eagerly(patches)


def _run_eagerly(patches: Patches) -> None:
    """Do what `torch.compiler.set_stance("force_eager")` does."""
    tracer = sys.modules[_TRACER]
    if tracer._stance.stance != "force_eager":
        patches.set(tracer, "_stance", type(tracer._stance)("force_eager"))

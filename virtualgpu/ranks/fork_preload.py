"""Preload, in a server that forks ranks, the imports and registrations that each rank would repeat.

A rank needs the imports at its first collective; registering kernels above autograd changes the dispatch tables of all
operations. Neither starts a thread, and without a virtual GPU these kernels are not called.
"""

import torch._subclasses.schema_check_mode
import torch.utils.serialization  # noqa: F401  (at the first load)

from ..operations import above_autograd
from . import functional, gradients, group, imagined, logger, over_gloo, reducer  # noqa: F401

above_autograd.register()

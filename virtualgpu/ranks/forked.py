"""Preload, in a server that forks ranks, the imports and registrations that each rank would repeat.

That is to import what a rank needs at its first collective, and to register what stands above autograd, which changes
the tables of all of PyTorch's operations. Neither starts a thread, and without a virtual GPU nothing passes there.
"""

import torch._subclasses.schema_check_mode
import torch.utils.serialization  # noqa: F401  (at the first load)

from ..operations import above_autograd
from . import functional, gradients, group, imagined, logger, over_gloo, reducer  # noqa: F401

above_autograd.register()

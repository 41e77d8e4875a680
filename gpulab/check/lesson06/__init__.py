"""The checks of lesson 06: checkpointing within a budget, the plan that fits, activations on the host.

The first and the third count bytes on a virtual GPU of their own, whatever machine they run on.
"""

from .checkpoint_budget import checkpoint_budget
from .fit_budget import fit_budget
from .offload_activations import offload_activations

__all__ = ["checkpoint_budget", "fit_budget", "offload_activations"]

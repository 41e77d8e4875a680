"""The checks of lesson 07: comparing precisions, one step in mixed precision, a loss scaler, the choice of a format.

Those that need a GPU run in the scope of a virtual one, on every machine, so that bytes and times are exact.
"""

from .amp_step import amp_step
from .loss_scaler import loss_scaler
from .pick_format import pick_format
from .precision_comparison import precision_comparison

__all__ = ["amp_step", "loss_scaler", "pick_format", "precision_comparison"]

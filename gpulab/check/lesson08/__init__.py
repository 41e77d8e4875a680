"""The checks of lesson 08: windows, token weighting, mixed precision with clipping, and BatchNorm.

Each runs the student's function beside a reference on the same small model. Where the answer is wrong, the
gradients it stepped with are compared with what each known misconception would give, and that one is named.
"""

from .accumulation_amp import accumulation_amp
from .accumulation_window import accumulation_window
from .batch_norm_free import batch_norm_free
from .token_weighting import token_weighting

__all__ = ["accumulation_amp", "accumulation_window", "batch_norm_free", "token_weighting"]

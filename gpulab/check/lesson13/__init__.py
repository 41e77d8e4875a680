"""The checks of lesson 13: what each rank holds of a model, one file from all of them, and a training on all."""

from .bytes_per_rank import bytes_per_rank
from .save_whole import save_whole
from .train_sharded import train_sharded

__all__ = ["bytes_per_rank", "save_whole", "train_sharded"]

"""The checks of lesson 13: what each rank holds, one file from all of them, a training that is cut, how few GPUs do."""

from .bytes_per_rank import bytes_per_rank
from .fewest_gpus import fewest_gpus
from .save_whole import save_whole
from .train_sharded import train_sharded

__all__ = ["bytes_per_rank", "fewest_gpus", "save_whole", "train_sharded"]

"""The checks of lesson 12: functions called on real ranks, and the rank that parted from the others."""

from .ddp_training import ddp_training
from .evaluate_once import evaluate_once
from .mean_over_ranks import mean_over_ranks
from .odd_rank import odd_rank
from .ring_all_reduce import ring_all_reduce

__all__ = ["ddp_training", "evaluate_once", "mean_over_ranks", "odd_rank", "ring_all_reduce"]

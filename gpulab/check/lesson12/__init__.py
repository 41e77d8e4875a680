"""The checks of lesson 12: the rank that parted from the others, from flight recorders drawn afresh."""

from .odd_rank import odd_rank

__all__ = ["odd_rank"]

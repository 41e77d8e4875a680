"""The checks of lesson 13: what each rank holds of a model, and one file from all of them."""

from .bytes_per_rank import bytes_per_rank
from .save_whole import save_whole

__all__ = ["bytes_per_rank", "save_whole"]

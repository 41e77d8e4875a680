"""The checks of lesson 13: what each rank holds of a model."""

from .bytes_per_rank import bytes_per_rank

__all__ = ["bytes_per_rank"]

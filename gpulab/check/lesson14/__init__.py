"""The checks of lesson 14: a run that goes on to the bit, whole checkpoints, the notice, and how often to save."""

from .atomic_checkpoint import atomic_checkpoint
from .best_interval import best_interval
from .resume_exactly import resume_exactly
from .save_on_notice import save_on_notice

__all__ = ["atomic_checkpoint", "best_interval", "resume_exactly", "save_on_notice"]

"""The checks of lesson 09: how long a step waits for data, a loader for a machine's cores, seeds of workers."""

from .make_loader import make_loader
from .seeded_workers import seeded_workers
from .starvation import starvation

__all__ = ["make_loader", "seeded_workers", "starvation"]

"""`plan`: predict memory and time of a training step on a GPU, from shapes alone.

`planner` answers, `run` runs the step, `ledger` and `holders` say what its memory is for, `where` on which line.
"""

from .planner import plan
from .result import Plan

__all__ = ["Plan", "plan"]

"""`plan`: predict memory and time of a training step on a GPU, from shapes alone.

`planner` answers, `step_run` runs the step, `ledger` and `tensor_roles` break down its memory, `peak_line` finds the
line of the peak.
"""

from .planner import plan
from .result import Plan

__all__ = ["Plan", "plan"]

"""What a training step will take on a GPU, worked out on shapes: `gpulab.plan`.

`planner` answers, `run` runs the step, `ledger` and `holders` say what its memory is for, `where` on which line.
"""

from .planner import plan
from .result import Plan

__all__ = ["Plan", "plan"]

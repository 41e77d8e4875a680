"""A script on several ranks of this machine, from a notebook: `gpulab.distributed.run("train.py", ranks=2)`.

PyTorch's torchrun starts the ranks, or with `warm=True`, for short cells, a server that has imported torch forks them;
here is what a notebook needs around it: a log for each rank, a time limit, an error that names the rank, and that
nothing stays behind. Several machines, and restarts, are torchrun's own affair.
"""

from .result import Rank, RankFailed, Run, TimeLimit
from .running import run

__all__ = ["Rank", "RankFailed", "Run", "TimeLimit", "run"]

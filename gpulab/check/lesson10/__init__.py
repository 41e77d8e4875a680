"""The checks of lesson 10: a bottleneck named from a trace, steps recorded on a schedule, one number for a job."""

from .job_mfu import job_mfu
from .name_bottleneck import name_bottleneck
from .profiled_steps import profiled_steps

__all__ = ["job_mfu", "name_bottleneck", "profiled_steps"]

"""The checks of lesson 11: recompilations found, switches kept by measurement, a launch-bound step as a CUDA graph."""

from .graphed_step import graphed_step
from .graphs_per_call import graphs_per_call
from .keep_switches import keep_switches

__all__ = ["graphed_step", "graphs_per_call", "keep_switches"]

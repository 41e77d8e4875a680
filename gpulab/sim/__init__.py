"""The simulators: `gpulab.sim.NAME(...)` builds one, and being last in the cell shows it.

Each is a file of its own: a pure model, a drawing, controls. Importing this loads no widget library; that
happens when one is displayed in a notebook.
"""

# Imported here, and not on first use: the class would else be hidden by its own module of the same name.
from .accumulation import Accumulation as accumulation
from .allocator import Allocator as allocator
from .allreduce import AllReduce as allreduce
from .architecture import Architecture as architecture
from .launch_queue import LaunchQueue as launch_queue
from .loss_scaling import LossScaling as loss_scaling
from .memory_budget import MemoryBudget as memory_budget
from .number_formats import NumberFormats as number_formats
from .pipeline import Pipeline as pipeline
from .race import Race as race
from .roofline import Roofline as roofline
from .spot import Spot as spot
from .step_memory import StepMemory as step_memory
from .transfers import Transfers as transfers

__all__ = [
    "accumulation",
    "allocator",
    "allreduce",
    "architecture",
    "launch_queue",
    "loss_scaling",
    "memory_budget",
    "number_formats",
    "pipeline",
    "race",
    "roofline",
    "spot",
    "step_memory",
    "transfers",
]

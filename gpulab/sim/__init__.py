"""The simulators: `gpulab.sim.NAME(...)` builds one, and being last in the cell shows it.

Each is a folder of its own: a pure model, a picture, controls; what they share is in `base`. Importing this loads no
widget library; that happens when one is displayed in a notebook.
"""

# Imported here, and not on first use: the class would else be hidden by its own module of the same name.
from .accumulation.controls import Accumulation as accumulation
from .allocator.controls import Allocator as allocator
from .allreduce.controls import AllReduce as allreduce
from .architecture.controls import Architecture as architecture
from .launch_queue.controls import LaunchQueue as launch_queue
from .loss_scaling.controls import LossScaling as loss_scaling
from .memory_budget.controls import MemoryBudget as memory_budget
from .number_formats.controls import NumberFormats as number_formats
from .pipeline.controls import Pipeline as pipeline
from .race.controls import Race as race
from .roofline.controls import Roofline as roofline
from .spot.controls import Spot as spot
from .step_memory.controls import StepMemory as step_memory
from .transfers.controls import Transfers as transfers

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

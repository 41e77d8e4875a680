"""The simulators: `gpulab.sim.NAME(...)` builds one, and being last in the cell shows it.

Each is a file of its own: a pure model, a drawing, controls. Importing this loads no widget library; that
happens when one is displayed in a notebook.
"""

# Imported here, and not on first use: the class would else be hidden by its own module of the same name.
from .accumulation import Accumulation as accumulation
from .allreduce import AllReduce as allreduce
from .architecture import Architecture as architecture
from .loss_scaling import LossScaling as loss_scaling
from .number_formats import NumberFormats as number_formats
from .race import Race as race
from .spot import Spot as spot

__all__ = ["accumulation", "allreduce", "architecture", "loss_scaling", "number_formats", "race", "spot"]

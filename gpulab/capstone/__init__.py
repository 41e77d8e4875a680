"""Makes the capstone's training script: without faults, with chosen ones, or with twelve drawn by a name.

    capstone.script()                    # as lesson 15 has it
    capstone.draw("Ada Lovelace", "mine.py")   # another one for everybody: written to a file, and put into a cell

`gpulab.check.capstone` grades it.
"""

from .drawing import Drawn, draw, script
from .faults import sound

__all__ = ["Drawn", "draw", "script", "sound"]

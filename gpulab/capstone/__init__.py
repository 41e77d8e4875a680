"""The capstone's training script: sound, with chosen faults, or with twelve that are drawn for somebody.

    capstone.script()                    # as lesson 15 has it
    capstone.draw("Ada Lovelace", "mine.py")   # another one for everybody: written to a file, and put into a cell

Nothing here judges a script: that is `gpulab.check.capstone`.
"""

from .drawing import Drawn, draw, script
from .faults import sound

__all__ = ["Drawn", "draw", "script", "sound"]

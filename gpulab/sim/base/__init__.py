"""What all simulators share: the class that joins model, picture and controls, and what they are made of."""

from .controls import Choice, Flag, Limit, Play, Script, Sizes, Slider
from .simulator import Result, Row, Simulator

__all__ = ["Choice", "Flag", "Limit", "Play", "Result", "Row", "Script", "Simulator", "Sizes", "Slider"]

"""Power cap as an energy budget: how far sustained load slows a GPU's clocks.

A driver lowers the clocks when the mean power of the last moments is above the limit. So a short product runs at the
full rate, a long loop of them at the rate that the limit allows, and memory-bound work never reaches it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

WINDOW = 0.05  # seconds over which the limit holds on average: an assumption


class Power(NamedTuple):
    """A board's power limit `watts`, of which it always draws `idle_watts`; its work's energy in picojoules."""

    watts: float
    idle_watts: float
    per_flop_pj: Mapping[str, float]
    per_byte_pj: float


class Budget:
    """The energy, in joules, that a board may still use in the current window."""

    __slots__ = ("at", "full", "idle", "left", "watts")

    def __init__(self, power: Power) -> None:
        self.watts, self.idle = power.watts, power.idle_watts
        self.left = self.full = power.watts * WINDOW
        self.at = 0.0

    def spend(self, start: float, seconds: float, joules: float) -> float:
        """Return the time under the limit for work of `seconds` from `start` on, with `joules` beyond idle."""
        spare = self.watts - self.idle
        left, full = self.left, self.full
        if start > self.at:
            left += (start - self.at) * spare
            if left > full:
                left = full
        left = left + seconds * spare - joules
        if left < 0:
            seconds -= left / spare
            left = 0.0
        self.left = left if left < full else full
        self.at = start + seconds
        return seconds

"""The ground that trackers are tried on: two virtual GPUs, tensors of bytes, and a log of what was allocated when.

What a tracker should have seen is read from the log, whoever reset a counter meanwhile.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from .common import MIB

GPUS = (0, 1)


@dataclass(frozen=True)
class Stretch:
    """What one block held, in MiB, summed over its GPUs."""

    entry: float
    end: float
    peak: float

    @property
    def above(self) -> float:
        return self.peak - self.entry

    @property
    def delta(self) -> float:
        return self.end - self.entry


class Ground:
    """Takes and drops memory, and notes after each the bytes allocated and reserved on both GPUs."""

    def __init__(self) -> None:
        self.log: list[tuple[tuple[int, int], ...]] = []
        self.note()

    def note(self) -> int:
        """Write down what is now; the number of this line in the log."""
        self.log.append(tuple((torch.cuda.memory_allocated(gpu), torch.cuda.memory_reserved(gpu)) for gpu in GPUS))
        return len(self.log) - 1

    def take(self, mib: float, gpu: int = 0) -> torch.Tensor:
        tensor = torch.empty(int(mib * MIB), dtype=torch.uint8, device=f"cuda:{gpu}")
        self.note()
        return tensor

    def spike(self, mib: float, gpu: int = 0) -> None:
        """Take so much and let it go."""
        self.take(mib, gpu)
        self.note()

    def between(self, start: int, end: int, *gpus: int, reserved: bool = False) -> Stretch:
        """What was allocated (or reserved) on these GPUs from one line of the log to another, both included."""
        rows = [[line[gpu][reserved] / MIB for gpu in gpus or (0,)] for line in self.log[start : end + 1]]
        peaks = [max(column) for column in zip(*rows, strict=True)]
        return Stretch(sum(rows[0]), sum(rows[-1]), sum(peaks))


def sizes(count: int, low: int, high: int) -> list[float]:
    """Different numbers of MiB, each a little above a whole one, so that no two ways of counting agree by chance."""
    return [whole + random.randrange(1, 60) / 64 for whole in random.sample(range(low, high), count)]

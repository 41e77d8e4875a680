"""Label numbers "measured" or "virtual", depending on the GPU that answers for torch.cuda.

Other modules call torch.cuda and torch.accelerator, and do not know whether a real GPU answers.
"""

from __future__ import annotations

from typing import Literal

from ..scope import in_force as scope

Numbers = Literal["measured", "virtual"]


def in_force() -> object | None:
    """Return the virtual GPU that answers for torch.cuda now, None where a real one does."""
    return scope.current


def numbers() -> Numbers:
    """Return the label of numbers that torch.cuda gives now."""
    return numbers_of(in_force())


def numbers_of(scope: object | None) -> Numbers:
    """Return the label of numbers that were read while `in_force()` was `scope`."""
    return "measured" if scope is None else "virtual"

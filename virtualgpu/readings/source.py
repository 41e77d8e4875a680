"""Label numbers "measured" or "virtual", depending on the GPU that answers for torch.cuda.

Everything else here talks to torch.cuda and torch.accelerator, and does not know what answers.
"""

from __future__ import annotations

from typing import Literal

from ..scope import in_force as scope

Numbers = Literal["measured", "virtual"]


def in_force() -> object | None:
    """The virtual GPU that answers for torch.cuda now, None where a real one does; equal objects mean the same GPUs."""
    return scope.current


def numbers() -> Numbers:
    """What to write beside a number that torch.cuda gives now."""
    return numbers_of(in_force())


def numbers_of(scope: object | None) -> Numbers:
    """What to write beside a number that was read while `in_force()` was `scope`."""
    return "measured" if scope is None else "virtual"

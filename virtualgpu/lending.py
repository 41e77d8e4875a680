"""Share a running virtual GPU with code that calls `gpulab.setup()`, as `run` does for its script."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .gpu import VirtualGPU

gpu: VirtualGPU | None = None
stays = False  # True: a program that asks for another GPU keeps this one


def lend(lent: VirtualGPU | None, *, keep: bool = False) -> None:
    """Offer `lent` to the program; None takes it back. Without `keep` the program may replace it by one of its own."""
    global gpu, stays
    gpu, stays = lent, lent is not None and keep

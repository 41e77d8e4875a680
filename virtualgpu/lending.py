"""Share a running virtual GPU with code that calls `gpulab.setup()`, as `run` does for its script."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .gpu import VirtualGPU

gpu: VirtualGPU | None = None
stays = False  # whether a program that asks for another one keeps this all the same


def lend(lent: VirtualGPU | None, *, keep: bool = False) -> None:
    """Let the program find `lent`; None takes it back. Without `keep` the program may replace it by one of its own."""
    global gpu, stays
    gpu, stays = lent, lent is not None and keep

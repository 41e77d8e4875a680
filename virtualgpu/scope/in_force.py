"""The virtual GPU in force, and per-thread state of operations on it.

One scope is current at a time, in all threads; an inner one replaces the outer until it ends.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..gpu import VirtualGPU


class _Thread(threading.local):
    inside = 0  # above 0, tensors answer with the device that really holds them
    functional = False  # within a functional collective, whose results are a program's, not buffers
    kernel: Any = None  # of a library's operator, while it runs
    watched = False  # whether its operations pass the dispatch mode


class Chosen(threading.local):
    """A number that each thread chooses for itself: the current GPU of a scope, the current stream of a GPU."""

    number = 0


current: VirtualGPU | None = None
suspended: list[VirtualGPU] = []  # those that are out of force for a while, the outermost first
thread = _Thread()


class Backing:
    """With this in force, what happens is not seen by the virtual GPU: its own work on the tensors behind it."""

    def __enter__(self) -> None:
        thread.inside += 1

    def __exit__(self, *exc: object) -> None:
        thread.inside -= 1


backing = Backing()

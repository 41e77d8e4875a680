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
    functional = False  # within a functional collective, whose results belong to the program and are no buffers
    kernel: Any = None  # kernel of a library's operator, while it runs
    watched = False  # True while its operations pass through the dispatch mode


class Chosen(threading.local):
    """A number that each thread chooses for itself: the current GPU of a scope, the current stream of a GPU."""

    number = 0


current: VirtualGPU | None = None
suspended: list[VirtualGPU] = []  # the outermost first
thread = _Thread()


class Backing:
    """Context manager in which the virtual GPU does not see operations: its own work on backing tensors."""

    def __enter__(self) -> None:
        thread.inside += 1

    def __exit__(self, *exc: object) -> None:
        thread.inside -= 1


backing = Backing()

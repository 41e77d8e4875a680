"""Observe what a program does on a virtual GPU, as it does it: waits, questions, page-locked memory, copies in flight.

`VirtualGPU.timeline` records what takes time on the clock (launches, kernels, copies, waits), to be read afterwards.
Here are the moments at which somebody may want to look at the program itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .gpu import VirtualGPU
    from .operations.copies import UnderWay

# A copy waits in up to three parts, in this order; the last has the copy's name alone.
_PARTS = (": the stream's work", ": staging")


def part_of_copy(wait: str) -> tuple[str, int]:
    """Split the name of a wait into the name of its copy and the number of its part; of another wait the last."""
    part = next((number for number, end in enumerate(_PARTS) if wait.endswith(end)), len(_PARTS))
    return (wait.removesuffix(_PARTS[part]) if part < len(_PARTS) else wait), part


@contextlib.contextmanager
def observe(
    gpu: VirtualGPU,
    *,
    wait: Callable[[str, float], object] | None = None,
    question: Callable[[], object] | None = None,
    pin: Callable[[int], object] | None = None,
    copies: UnderWay | None = None,
) -> Iterator[None]:
    """Call these functions within the block, on the thread of the program and before its call goes on.

    wait(name, seconds): the host waits for work of the GPU; the name begins with the call, such as "synchronize".
    question(): it asks whether work is done (`Event.query`, `Stream.query`) while it is not.
    pin(nbytes): it is about to page-lock that many bytes; an exception raised here is what the program gets.
    copies: an object that hears of each copy of pinned memory for which the host does not wait, and of the host's uses
    of such memory (`UnderWay`); one at a time.

    Raises RuntimeError where another block observes copies already.
    """
    if copies is not None and gpu.under_way is not None:
        raise RuntimeError("copies is given, but this GPU already has an observer of copies")
    lists: list[tuple[list[Callable[..., object]], Callable[..., object] | None]] = [
        (gpu.clock.on_wait, wait),
        (gpu.clock.on_question, question),
        (gpu.on_pin, pin),
    ]
    added = [(functions, function) for functions, function in lists if function is not None]
    for functions, function in added:
        functions.append(function)
    if copies is not None:
        gpu.under_way = copies
    try:
        yield
    finally:
        for functions, function in added:
            functions.remove(function)
        if copies is not None:
            gpu.under_way = None

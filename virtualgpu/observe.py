"""Observe what a program does on a virtual GPU, as it does it: waits, questions, page-locked memory, copies in flight.

`VirtualGPU.timeline` records what takes time on the clock (launches, kernels, copies, waits), to be read afterwards.
Here are the moments at which somebody may want to look at the program itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from .gpu import VirtualGPU
from .operations.copies import UnderWay


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
        raise RuntimeError("copies is given, but another observer hears of the copies of this GPU already")
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

"""Replay a run's allocations in an allocator with other settings or another GPU's memory.

It shows whether the run would have reached the same point there, except that another GPU's kernels may need other
temporary memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..gpus.specs import SPECS
from ..memory.blocks import GONE, HELD, Block
from ..memory.caching import CachingAllocator
from ..memory.out_of_memory import OutOfMemory
from ..memory.settings import Settings
from .report import Tried

MOST = 1 << 22  # events of a record, of 8 bytes each: some seconds to replay
_NO_LIMIT = 1 << 50  # bytes
_TAKE, _FREE, _HOLD, _STREAM, _EMPTY = range(5)
_BITS = 3

Run = tuple[Sequence[int], CachingAllocator]  # a record's events, and their allocator


class Record:
    """The requests to an allocator, in order; `whole` while they are complete.

    They are not after private pools or another limit were used, nor after MOST events.
    """

    def __init__(self) -> None:
        # number << _BITS | kind; the number is a size in bytes, a block's sequence number, or a stream
        self.events = array("q")
        self.whole = True
        self._numbers: dict[Block, int] = {}
        self._taken = self._stream = 0

    def took(self, block: Block, nbytes: int, stream: int) -> None:
        """Record that a block of `nbytes` bytes was allocated."""
        if stream != self._stream:
            self._stream = stream
            self._note(stream, _STREAM)
        self._note(nbytes, _TAKE)
        self._numbers[block] = self._taken
        self._taken += 1

    def freed(self, block: Block) -> None:
        """Record that a block was freed, or is no longer used by another stream."""
        number = self._numbers.pop(block, None)
        if number is not None:
            self._note(number, _FREE)

    def held(self, block: Block) -> None:
        """Record that a block was freed while another stream uses it."""
        if block in self._numbers:
            self._note(self._numbers[block], _HOLD)

    def emptied(self) -> None:
        """Record that the program emptied the cache."""
        self._note(0, _EMPTY)

    def _note(self, number: int, kind: int) -> None:
        if len(self.events) < MOST:
            self.events.append(number << _BITS | kind)
        else:
            self.whole = False


def request_events(nbytes: int, stream: int) -> array[int]:
    """Return the events of one request: the end of a record whose request has failed."""
    return array("q", (stream << _BITS | _STREAM, nbytes << _BITS | _TAKE))


class Replayed(NamedTuple):
    """Result of a replay: True if all requests fit, and the peaks in bytes, `used` with context and cache."""

    fits: bool
    used: int
    allocated: int


def replay(events: Iterable[int], allocator: CachingAllocator) -> Replayed:
    """Repeat the requests on a fresh allocator."""
    taken: list[Block | None] = []
    held: list[Block] = []
    memory, stream, used = allocator.memory, 0, 0

    def settle() -> None:
        for block in held:
            if block.state == HELD:
                allocator.complete(block)
        held.clear()

    allocator.settle = settle
    fits = True
    for event in events:
        number, kind = event >> _BITS, event & (1 << _BITS) - 1
        if kind == _TAKE:
            try:
                taken.append(allocator.allocate(number, stream))
            except OutOfMemory:
                fits = False
                break
            used = max(used, memory.taken_bytes)
        elif kind == _FREE:
            block = taken[number]
            taken[number] = None
            if block is not None and block.state == HELD:
                allocator.complete(block)
            elif block is not None and block.state != GONE:  # as it is where `settle` has completed it
                allocator.free(block)
        elif kind == _HOLD:
            block = taken[number]
            if block is not None:
                allocator.hold(block)
                held.append(block)
        elif kind == _STREAM:
            stream = number
        else:
            allocator.empty_cache()
    return Replayed(fits, used + memory.context_bytes, allocator.memory_stats()["allocated_bytes.all.peak"])


def try_allocators(runs: Sequence[Run], until: str) -> Tried:
    """Find the GPU and the settings under which the records of a run fit; `until`: see `report.Tried`."""
    own = runs[0][1]
    settings, total = own.settings, own.memory.capacity_bytes
    without_limit = _all(runs, _NO_LIMIT, settings)
    allocated, expandable = without_limit.allocated, None
    if not settings.expandable_segments:
        there = _all(runs, total, replace(settings, expandable_segments=True))
        expandable = there.used if there.fits else None
    least = max(total + 1, allocated + own.memory.context_bytes)
    for spec in sorted(SPECS.values(), key=lambda spec: spec.memory_bytes):
        if spec.memory_bytes >= least and (there := _all(runs, spec.memory_bytes, settings)).fits:
            return Tried(until, allocated, there.used, spec.name, settings.expandable_segments, expandable)
    return Tried(until, allocated, without_limit.used, None, settings.expandable_segments, expandable)


def _all(runs: Sequence[Run], nbytes: int, settings: Settings) -> Replayed:
    """Replay each record on a GPU with `nbytes` of memory; return the worst result."""
    fits, used, allocated = True, 0, 0
    for events, own in runs:
        fresh = CachingAllocator(nbytes, settings, context_bytes=own.memory.context_bytes, device=own.device)
        fresh.memory.addresses = type(own.memory.addresses)(own.device)  # type: ignore[call-arg]
        found = replay(events, fresh)
        fits, used, allocated = fits and found.fits, max(used, found.used), max(allocated, found.allocated)
    return Replayed(fits, used, allocated)

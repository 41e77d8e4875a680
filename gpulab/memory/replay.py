"""Replays PyTorch's memory history: allocated and reserved bytes after each event, and how long each block was held.

The history has the requested bytes, but `memory_allocated` counts blocks. So the blocks are followed by the caching
allocator's rules for rounding and splitting: `round_size` and `should_split` in c10/cuda/CUDACachingAllocator.cpp of
PyTorch 2.15. No torch is needed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

UNIT = 512  # blocks are multiples of this
SMALL = 2**20  # of requests up to this size every remainder is split off, of larger ones remainders above it


class Unclear(ValueError):
    """Raised if the history does not fit the blocks: part of it is missing, or the allocator has other settings."""


@dataclass(frozen=True)
class Point:
    """The bytes after one event; `requests` counts the allocations and frees so far, `oom` the bytes of a failed
    one."""

    allocated: int
    reserved: int
    requests: int
    oom: int = 0

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.allocated, self.reserved, self.requests


@dataclass
class Life:
    """A block that was allocated from point `born` until point `freed`, None if it was at the end; `frames` are those
    of the history."""

    size: int
    born: int
    frames: list[dict[str, Any]]
    freed: int | None = None


class Replayed(NamedTuple):
    points: list[Point]
    lives: list[Life]


class Blocks:
    """The allocator's blocks on one GPU, starting with a snapshot."""

    def __init__(self, snapshot: dict[str, Any], device: int) -> None:
        self.allocated = self.reserved = 0
        self.held: dict[int, Life] = {}  # by address
        settings = snapshot.get("allocator_settings", {})
        limit = settings.get("max_split_size", -1)
        self._split_below = limit if limit >= 0 else None
        if any(settings.get("roundup_power2_divisions", {}).values()):
            raise Unclear("roundup_power2_divisions")
        self._starts: list[int] = []
        self._blocks: dict[int, _Block] = {}
        for segment in snapshot["segments"]:
            if segment["device"] == device:
                self._add_segment(segment)

    def _add_segment(self, segment: dict[str, Any]) -> None:
        self.reserved += segment["total_size"]
        expandable = segment.get("is_expandable", False)
        address = segment["address"]
        for block in segment["blocks"]:
            address = block.get("address", address)
            live = block["state"] != "inactive"
            self._put(address, _Block(block["size"], 0 if expandable else segment["address"], live))
            if block["state"] == "active_allocated":
                self.allocated += block["size"]
                self.held[address] = Life(block["size"], 0, block.get("frames", []))
            address += block["size"]

    def size(self, address: int) -> int:
        return self._blocks[address].size

    def apply(self, action: str, address: int, size: int) -> None:
        """Apply one event of the history; raises Unclear."""
        if action == "alloc":
            self._allocate(address, size)
        elif action == "free_requested":
            self.allocated -= self._at(address, live=True).size
        elif action == "free_completed":
            self._at(address, live=True).live = False
            self._merge(address)
        elif action in ("segment_alloc", "segment_map"):
            self.reserved += size
            self._put(address, _Block(size, address if action == "segment_alloc" else 0, False))
            self._merge(address)
        elif action in ("segment_free", "segment_unmap"):
            self.reserved -= size
            self._cut(address, size)

    def _allocate(self, address: int, requested: int) -> None:
        block = self._at(address, live=False)
        size = max(UNIT, -(-requested // UNIT) * UNIT)
        rest = block.size - size
        if rest < 0:
            raise Unclear(f"{requested} bytes in a block of {block.size}")
        if block.segment == 0 or size <= SMALL:
            split = rest >= UNIT
        else:
            split = rest > SMALL and (self._split_below is None or size < self._split_below)
        if split:
            self._put(address + size, _Block(rest, block.segment, False))
            block.size = size
        block.live = True
        self.allocated += block.size

    def _merge(self, address: int) -> None:
        """Join a free block with its free neighbours in the same segment."""
        index = bisect_left(self._starts, address)
        for left in (index, index - 1):
            if 0 <= left < len(self._starts) - 1:
                a, b = self._starts[left], self._starts[left + 1]
                one, other = self._blocks[a], self._blocks[b]
                if not one.live and not other.live and one.segment == other.segment and a + one.size == b:
                    one.size += other.size
                    del self._starts[left + 1], self._blocks[b]

    def _cut(self, address: int, size: int) -> None:
        """Remove a range from the free block that contains it."""
        index = bisect_left(self._starts, address + 1) - 1
        start = self._starts[index] if index >= 0 else -1
        block = self._blocks.get(start)
        if block is None or block.live or address + size > start + block.size:
            raise Unclear(f"a segment at {address} that was not known to be free")
        before, after = address - start, start + block.size - address - size
        del self._starts[index], self._blocks[start]
        if before:
            self._put(start, _Block(before, block.segment, False))
        if after:
            self._put(address + size, _Block(after, block.segment, False))

    def _at(self, address: int, *, live: bool) -> _Block:
        block = self._blocks.get(address)
        if block is None or block.live != live:
            raise Unclear(f"no {'live' if live else 'free'} block at {address}")
        return block

    def _put(self, address: int, block: _Block) -> None:
        insort(self._starts, address)
        self._blocks[address] = block


@dataclass
class _Block:
    size: int
    segment: int  # its address; 0 for expandable segments, whose ranges join
    live: bool


def replay(first: dict[str, Any], events: Iterable[dict[str, Any]], device: int) -> Replayed:
    """Return the points at the snapshot `first` and after each event of GPU `device` since; raises Unclear."""
    blocks = Blocks(first, device)
    requests = 0
    points = [Point(blocks.allocated, blocks.reserved, 0)]
    held = blocks.held
    lives = list(held.values())
    for event in events:
        action, address = event["action"], event.get("addr", 0)
        blocks.apply(action, address, event["size"])
        if action == "alloc":
            held[address] = Life(blocks.size(address), len(points), event.get("frames", []))
            lives.append(held[address])
        elif action == "free_requested":
            held.pop(address).freed = len(points)
        requests += action in ("alloc", "free_requested")
        oom = event["size"] if action == "oom" else 0
        point = Point(blocks.allocated, blocks.reserved, requests, oom)
        if oom or point.counts != points[-1].counts:
            points.append(point)
    return Replayed(points, lives)

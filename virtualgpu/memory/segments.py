"""Segments of the caching allocator: reserved when the cache has no fitting block, released when memory is short.

`caching` manages the blocks within a segment.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable

from .addresses import DeviceMemory
from .blocks import (
    ADDRESS_BITS,
    BIG_REQUEST,
    FREE,
    GONE,
    SMALL_REQUEST,
    SMALL_SEGMENT,
    STEP,
    UNIT,
    UNMAPPED,
    Block,
    MiB,
    Pool,
)
from .expandable import Expandable
from .out_of_memory import OutOfMemory, Shortage
from .private import PrivatePool, PrivatePools
from .settings import Settings
from .statistics import Statistics

Watcher = Callable[[str, int, int, int], None]
_NO_LIMIT = sys.maxsize
_LIFTED = 1 << 50  # bytes


class Segments:
    """Pools of free blocks, one per stream and kind, and the device memory behind them."""

    def __init__(self, memory: DeviceMemory, settings: Settings, device: int) -> None:
        self.device = device
        self.statistics = Statistics()
        self.watch: Watcher | None = None
        self.settle: Callable[[], None] | None = None  # waits until no block is held any more
        self.memory = memory
        self._heads: dict[int, Block] = {}  # a segment's address -> its first block
        self._small: dict[int, Pool] = {}  # stream -> pool
        self._large: dict[int, Pool] = {}
        self.private = PrivatePools()
        self.captures = 0  # captures in progress and active MemPools: nothing is released meanwhile
        self._expandable: dict[Pool, Expandable] = {}
        self._searches = 0  # in large pools, while garbage collection is on: the clock by which blocks age
        self._allowed: int | None = None
        self.go_on_under(settings)

    def go_on_under(self, settings: Settings) -> None:
        """Apply settings from now on; existing segments stay as they are, whole or expandable.

        `inactive_split` is counted by the rules in force, for older segments too.
        """
        self.settings = settings
        self._expands = settings.expandable_segments
        self._large_segment = settings.large_segment_size_mb * MiB
        self._max_split = _NO_LIMIT if settings.max_split_size_mb is None else settings.max_split_size_mb * MiB
        self._max_rounding = settings.max_non_split_rounding_mb * MiB
        self.set_memory_fraction(settings.per_process_memory_fraction)
        for pool in (*self._small.values(), *self._large.values(), *self.private.all()):
            self._rule(pool)

    def set_memory_fraction(self, fraction: float) -> None:
        """Limit reserved memory to this part of the capacity."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction is {fraction}; it must be from 0 to 1")
        self._allowed = int(fraction * self.memory.capacity_bytes) if fraction < 1 else None
        # As in PyTorch, blocks are collected only under a fraction below 1: the threshold is relative to it.
        self._collects = self._allowed is not None and self.settings.garbage_collection_threshold > 0
        self._choosy = self._collects or self._expands or self._max_split < _NO_LIMIT

    def lift_limit(self) -> None:
        """Remove the capacity limit, so that a run can show how much it would need."""
        self.memory.capacity_bytes = _LIFTED
        self._allowed, self._collects = None, False
        for expandable in self._expandable.values():
            expandable.lift_limit()

    def empty_cache(self) -> None:
        """Release every segment without a live block, and every free page of an expandable segment."""
        if self.settle is not None and not self.captures:
            self.settle()
        self.statistics.events["num_sync_all_streams"] += 1
        own = [] if self.captures else [*self._large.values(), *self._small.values()]
        for pool in own + self.private.left():
            self._give_back(pool)

    def let_go(self, id: tuple[int, int]) -> None:
        """Remove a user of a private pool; after the last, release its free segments."""
        private = self.private.release(id)
        if not private.uses:
            for pool in private.pools():
                self._give_back(pool)

    def _give_back(self, pool: Pool) -> None:
        for block in pool.whole():
            self._release(block)
        if pool in self._expandable:
            self._expandable[pool].unmap_free()

    def _new_pool(self, stream: int, small: bool, private: PrivatePool | None = None) -> Pool:
        id = (0, 0) if private is None else private.id
        pool = Pool(self, stream, small, self.statistics.counters(small), id=id)
        self._rule(pool)
        if private is None:
            (self._small if small else self._large)[stream] = pool
        else:
            (private.small if small else private.large)[stream] = pool
        return pool

    def _rule(self, pool: Pool) -> None:
        """Set by the settings how blocks of the pool are split, and how new segments grow."""
        always = pool.small or self._expands
        pool.least_rest = UNIT if always else MiB + 1
        pool.split_below = _NO_LIMIT if always else self._max_split
        if self._expands and pool not in self._expandable:
            page = SMALL_SEGMENT if pool.small else self._large_segment
            self._expandable[pool] = Expandable(
                pool, page, self._large_segment, self.memory, self._heads, self._account
            )

    def _choose(self, pool: Pool, size: int, index: int) -> int:
        """Return the index of the block that the settings allow, from the smallest fitting one on; or their number."""
        blocks = pool.blocks
        none = len(blocks)
        if self._collects and not pool.small:
            self._searches += 1
        if index == none:
            return none
        if self._expands:
            # A block counts for as much as it can grow to, so one before much unmapped room is spared.
            while index + 1 < none and _room(blocks[index + 1]) < _room(blocks[index]):
                index += 1
        found = blocks[index].size
        if size < self._max_split <= found or self._max_split <= size <= found - self._max_rounding:
            return none
        return index

    def _obtain(self, pool: Pool, size: int, nbytes: int) -> int:
        """Put a block of at least `size` from the device into the pool, and return its index.

        Releases cached memory for it in PyTorch's order; raises OutOfMemory.
        """
        if size <= SMALL_REQUEST:
            segment = SMALL_SEGMENT
        elif size < BIG_REQUEST:
            segment = self._large_segment
        else:
            segment = -(-size // STEP) * STEP
        if nbytes >= 1 << 60:  # PyTorch refuses this before the allocator: nothing is released or counted
            raise OutOfMemory(self._shortage(nbytes, segment))
        if self._collects:
            self._collect_garbage()
        block = self._take(pool, size, segment)
        if block is None and self._release_oversize(pool, size):
            block = self._take(pool, size, segment)
        if block is None and not self.captures:
            self.empty_cache()
            self.statistics.events["num_alloc_retries"] += 1
            block = self._take(pool, size, segment)
        if block is None:
            self.statistics.events["num_ooms"] += 1
            raise OutOfMemory(self._shortage(nbytes, segment))
        return bisect_left(pool.keys, block.size << ADDRESS_BITS | block.address)

    def _take(self, pool: Pool, size: int, segment: int) -> Block | None:
        """Add a new segment to the pool, or map as many pages of an expandable one as are needed; return the block."""
        if self._allowed is not None and self.memory.taken_bytes + segment > self._allowed:
            return None
        if self._expands:
            return self._expandable[pool].obtain(size)
        if not self.memory.take(segment):
            return None
        address = self.memory.addresses.reserve(segment, STEP)
        block = self._heads[address] = Block(address, segment, pool, None, None)
        pool.insert(block)
        self._account("segment_alloc", pool, address, segment)
        return block

    def _release(self, block: Block) -> None:
        """Release a whole free segment to the device."""
        block.pool.remove(block)
        block.state = GONE
        del self._heads[block.address]
        self.memory.give(block.size)
        self.memory.addresses.give_back(block.address, block.size)
        self._account("segment_free", block.pool, block.address, block.size)

    def _account(self, event: str, pool: Pool, address: int, size: int) -> None:
        sign = 1 if event in ("segment_alloc", "segment_map") else -1
        self.statistics.add("reserved_bytes", pool.small, sign * size)
        if event in ("segment_alloc", "segment_free"):
            self.statistics.add("segment", pool.small, sign)
            if size >= self._max_split:
                self.statistics.oversize_segments.add(sign)
        self.statistics.events["num_device_alloc" if sign > 0 else "num_device_free"] += 1
        if self.watch is not None:
            self.watch(event, address, size, pool.stream)

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """With max_split_size_mb: release the best fitting oversize block, or the largest ones until they suffice."""
        if self._max_split == _NO_LIMIT or self._expands:
            return False
        needed = max(size, self._max_split)
        blocks, index = pool.blocks, pool.find(needed)
        if index < len(blocks):
            self._release(blocks[index])
            return True
        released = 0
        while released < needed and blocks and blocks[-1].size >= self._max_split:
            released += blocks[-1].size
            self._release(blocks[-1])
        return released >= needed

    def _collect_garbage(self) -> None:
        """Release whole large segments that were idle for longer than the average, until enough are released."""
        assert self._allowed is not None  # implied by _collects
        excess = self.memory.taken_bytes - int(self.settings.garbage_collection_threshold * self._allowed)
        blocks = [block for pool in self._large.values() for block in pool.whole()]
        while excess > 0 and blocks:
            ages = [self._searches - block.idle_since for block in blocks]
            average = sum(ages) / len(ages)
            for block, age in zip(blocks, ages, strict=True):
                if age >= average:
                    excess -= block.size
                    self._release(block)
            blocks = [block for block in blocks if block.state == FREE]

    def _shortage(self, nbytes: int, segment: int) -> Shortage:
        return Shortage(
            device=self.device,
            requested=nbytes,
            tried=segment,
            total=self.memory.capacity_bytes,
            free=self.memory.free_bytes,
            process=self.memory.context_bytes + self.memory.taken_bytes,
            allocated=self.statistics.current("allocated_bytes"),
            reserved=self.statistics.current("reserved_bytes"),
            allowed=self._allowed,
            expandable_segments=self._expands,
            private=sum(block.size for pool in self.private.all() for block in pool.blocks),
        )


def _room(block: Block) -> int:
    following = block.next
    return block.size + (following.size if following is not None and following.state == UNMAPPED else 0)

"""PyTorch's CUDA caching allocator: the same blocks, segments, counts and errors for the same requests.

Bookkeeping only, without torch and without memory behind the addresses. Not thread-safe, and not reentrant from
finalizers: callers hold a lock and queue such calls. Follows PyTorch 2.15, c10/cuda/CUDACachingAllocator.cpp. A block
that another stream still uses (record_stream) is held until the caller completes it.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from . import listing
from .addresses import DeviceMemory
from .blocks import ADDRESS_BITS, FREE, GONE, HELD, LIVE, SMALL_REQUEST, UNIT, Block, Pool
from .private import PrivatePool
from .segments import Segments
from .settings import Settings


class CachingAllocator(Segments):
    """The allocator of one device with `capacity_bytes`, of which `context_bytes` are the CUDA context's.

    `statistics` holds the counts. `watch`, if set, is called with ("segment_alloc" | "segment_free" | "segment_map" |
    "segment_unmap", address, size, stream) whenever memory is taken from the device or given back.
    """

    def __init__(
        self, capacity_bytes: int, settings: Settings | None = None, *, context_bytes: int = 0, device: int = 0
    ) -> None:
        if capacity_bytes <= 0:
            raise ValueError(f"capacity_bytes is {capacity_bytes}; it must be above 0")
        if not 0 <= context_bytes <= capacity_bytes:
            raise ValueError(f"context_bytes is {context_bytes}; it must be from 0 to {capacity_bytes=}")
        super().__init__(DeviceMemory(capacity_bytes, context_bytes, device), settings or Settings(), device)
        self._held = 0

    def go_on_under(self, settings: Settings) -> None:
        super().go_on_under(settings)
        self._divisions = settings.divisions

    def allocate(self, nbytes: int, stream: int = 0, private: PrivatePool | None = None) -> Block | None:
        """Allocate a block, from a private pool if one is given; None for 0 bytes. Raises OutOfMemory."""
        if nbytes <= 0:
            if nbytes < 0:
                raise ValueError(f"nbytes is {nbytes}; it must be 0 or more")
            return None
        size = (nbytes + 511) & -512 if self._divisions is None else _round(nbytes, self._divisions)
        if private is None:
            pools = self._small if size <= SMALL_REQUEST else self._large
        else:
            pools = private.small if size <= SMALL_REQUEST else private.large
        pool = pools.get(stream) or self._new_pool(stream, size <= SMALL_REQUEST, private)

        # Best fit: the smallest block that is large enough, ties by address.
        keys, blocks = pool.keys, pool.blocks
        index = bisect_left(keys, size << ADDRESS_BITS)
        if self._choosy:
            index = self._choose(pool, size, index)
        if index == len(keys):
            index = self._obtain(pool, size, nbytes)
        block, small = blocks[index], pool.small
        (n, n_other, n_both), (b, b_other, b_both), (r, r_other, r_both), (s, _, _) = pool.counters

        # The front is handed out; the rest, if it is large enough, takes its place in the pool.
        rest, following = block.size - size, block.next
        was_split = following is not None or block.prev is not None
        if rest >= pool.least_rest and size < pool.split_below:
            block.size = size
            block.next = tail = Block(block.address + size, rest, pool, block, following)
            if following is not None:
                following.prev = tail
            key = rest << ADDRESS_BITS | tail.address
            if index and keys[index - 1] > key:
                del keys[index], blocks[index]
                pool.insert(tail)
            else:
                keys[index], blocks[index] = key, tail
            if self._expands:
                pass  # free pages can be released, so PyTorch does not count them as split
            elif was_split:
                s.current -= size
                s.freed += size
            else:
                self.statistics.add("inactive_split", small, 1)
                self.statistics.add("inactive_split_bytes", small, rest)
        else:
            del keys[index], blocks[index]
            size += rest
            if was_split and not self._expands:
                self.statistics.add("inactive_split", small, -1)
                s.current -= size
                s.freed += size
        block.state = LIVE
        block.requested = nbytes

        # Statistics.add inlined: calling it would take as long as all of the above.
        n.current = total = n.current + 1
        if total > n.peak:
            n.peak = total
        if (total := total + n_other.current) > n_both.peak:
            n_both.peak = total
        b.current = total = b.current + size
        if total > b.peak:
            b.peak = total
        if (total := total + b_other.current) > b_both.peak:
            b_both.peak = total
        r.current = total = r.current + nbytes
        if total > r.peak:
            r.peak = total
        if (total := total + r_other.current) > r_both.peak:
            r_both.peak = total
        if size >= self._max_split:
            self.statistics.oversize_allocations.add(1)
        if self._held:
            self.statistics.look()
        return block

    def hold(self, block: Block) -> None:
        """Count a block as freed while another stream still uses it: it is not reused until `complete`."""
        (n, _, _), (b, _, _), _, _ = self._owned(block).counters
        block.state = HELD
        self._held += 1
        n.current -= 1
        n.freed += 1
        b.current -= block.size
        b.freed += block.size
        if block.size >= self._max_split:
            self.statistics.oversize_allocations.add(-1)
        self.statistics.hold(block.pool.small, 1, block.size)

    def complete(self, block: Block) -> None:
        """Return a held block to its pool."""
        (n, _, _), (b, _, _), _, _ = block.pool.counters
        if block.state != HELD:
            raise ValueError(f"{block!r} is not held")
        block.state = LIVE
        self._held -= 1
        n.current += 1  # `free` counts it once more
        n.freed -= 1
        b.current += block.size
        b.freed -= block.size
        if block.size >= self._max_split:
            self.statistics.oversize_allocations.current += 1
            self.statistics.oversize_allocations.freed -= 1
        self.statistics.hold(block.pool.small, -1, -block.size)
        self.free(block)

    def _owned(self, block: Block) -> Pool:
        pool = block.pool
        if block.state != LIVE or pool.owner is not self:
            why = "belongs to another allocator" if pool.owner is not self else "has been freed already"
            raise ValueError(f"{block!r} {why}")
        return pool

    def free(self, block: Block | None) -> None:
        """Return a block to its pool, merged with its free neighbours; the handle is invalid from then on."""
        if block is None:
            return
        pool = self._owned(block)
        size, prev, following = block.size, block.prev, block.next
        (n, _, _), (b, _, _), (r, _, _), (s, s_other, s_both) = pool.counters
        n.current -= 1
        n.freed += 1
        b.current -= size
        b.freed += size
        r.current -= block.requested
        r.freed += block.requested
        if size >= self._max_split:
            self.statistics.oversize_allocations.add(-1)

        # A free neighbour absorbs the block; the handle itself is never used again.
        block.state = GONE
        merged: Block | None = None
        joined = joined_bytes = 0
        grown = size
        if prev is not None and prev.state == FREE:
            merged, joined, joined_bytes = prev, 1, prev.size
            if following is not None and following.state == FREE:
                pool.remove(following)
                joined, joined_bytes, grown = 2, joined_bytes + following.size, size + following.size
                following = following.next
        elif following is not None and following.state == FREE:
            merged, joined, joined_bytes = following, 1, following.size
        if merged is None:
            merged = Block(block.address, size, pool, prev, following)
            if following is not None:
                following.prev = merged
            pool.insert(merged)
        else:
            keys, blocks = pool.keys, pool.blocks
            index = bisect_left(keys, merged.size << ADDRESS_BITS | merged.address)
            merged.size += grown
            if merged is prev:
                merged.next = following
                if following is not None:
                    following.prev = merged
            else:
                merged.address = block.address
                merged.prev = prev
            key = merged.size << ADDRESS_BITS | merged.address
            if index + 1 < len(keys) and keys[index + 1] < key:
                del keys[index], blocks[index]
                pool.insert(merged)
            else:
                keys[index] = key
        if merged is not prev:
            if prev is None:
                self._heads[merged.address] = merged
            else:
                prev.next = merged

        if merged.prev is None and merged.next is None:
            merged.idle_since = self._searches
            if joined:
                self.statistics.add("inactive_split", pool.small, -joined)
                s.current -= joined_bytes
                s.freed += joined_bytes
        elif not self._expands:
            if joined != 1:
                self.statistics.add("inactive_split", pool.small, 1 - joined)
            s.current = total = s.current + size
            if total > s.peak:
                s.peak = total
            if (total := total + s_other.current) > s_both.peak:
                s_both.peak = total

    def memory_info(self) -> tuple[int, int]:
        """Return free and total bytes, as cudaMemGetInfo does."""
        return self.memory.free_bytes, self.memory.capacity_bytes

    def memory_stats(self) -> dict[str, int]:
        """Return the statistics of `torch.cuda.memory_stats`."""
        unlimited = self.settings.max_split_size_mb is None
        return self.statistics.flat(max_split_size=-1 if unlimited else self._max_split)

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the segments with their blocks, as in `torch.cuda.memory._snapshot()["segments"]`."""
        return listing.segments(self._heads.values(), device=self.device, expandable=self._expands)


def _round(nbytes: int, divisions: tuple[int, ...]) -> int:
    """Round up to the next of N equal steps between powers of two, N by size; where that is off, to 512."""
    steps = divisions[min(max(nbytes.bit_length() - 21, 0), len(divisions) - 1)]
    if steps <= 1 or nbytes <= UNIT * steps:
        return -(-nbytes // UNIT) * UNIT
    step = (1 << nbytes.bit_length() - 1) // steps
    return -(-nbytes // step) * step

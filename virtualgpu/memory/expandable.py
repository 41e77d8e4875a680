"""expandable_segments:True: one address range per pool, backed by physical pages as it grows.

A page is 2 MiB in the small pool and 20 MiB in the large one. Free pages can be unmapped and keep their addresses;
`segments` decides when.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from operator import attrgetter

from .addresses import DeviceMemory
from .blocks import FREE, GONE, LIVE, UNMAPPED, Block, Pool, link

Account = Callable[[str, Pool, int, int], None]
_by_address = attrgetter("address")


class Expandable:
    """The growing segments of one pool.

    `heads` maps a segment's address to its first block; `account(event, pool, address, size)` is called when pages are
    mapped and unmapped. Segments start at a multiple of `alignment`, itself a multiple of the page.
    """

    def __init__(
        self, pool: Pool, page: int, alignment: int, memory: DeviceMemory, heads: dict[int, Block], account: Account
    ) -> None:
        self._pool = pool
        self._page = page
        self._alignment = alignment
        self.memory = memory
        self._heads = heads
        self._account = account
        self._unmapped: list[Block] = []
        self._first: list[int] = []  # addresses of the segments, which are all of one length
        self.lift_limit()

    def lift_limit(self) -> None:
        """Size new segments for all of the memory, of which there may be more by now.

        An eighth more than the memory, so that pages unmapped in the middle can come back at the end.
        """
        self._length = self._up(self.memory.capacity_bytes + self.memory.capacity_bytes // 8)

    def obtain(self, size: int) -> Block | None:
        """Return a free block of at least `size` in the pool; None if the memory for it runs out."""
        block = self._find(size)
        if block.state == UNMAPPED and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.next
            assert following is not None  # _find saw enough addresses
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following  # which has absorbed `block`
        return block

    def unmap_free(self) -> None:
        """Unmap every page that lies in a free block."""
        for block in list(self._pool.blocks):
            if self._has(block):
                self._unmap(block)

    def _has(self, block: Block) -> bool:
        """Return True if the block lies in one of these segments: the pool may have others, from other settings."""
        return any(first <= block.address < first + self._length for first in self._first)

    def _find(self, size: int) -> Block:
        """Return the first block, free or unmapped, with `size` unallocated addresses from it on; or a new segment."""
        for block in self._unmapped:
            first = block if block.prev is None or block.prev.state == LIVE else block.prev
            found, room = first, 0
            while room < size and found.state != LIVE:
                room += found.size
                if found.next is None:
                    break
                found = found.next
            if room >= size:
                return first
        address = self.memory.addresses.reserve(self._length, self._alignment)
        block = self._heads[address] = Block(address, self._length, self._pool, None, None)
        block.state = UNMAPPED
        self._first.append(address)
        insort(self._unmapped, block, key=_by_address)
        return block

    def _map(self, block: Block, size: int) -> bool:
        """Map the first pages of an unmapped block, and merge them with free neighbours."""
        address, length = block.address, self._up(size)
        if not self.memory.take(length):
            return False
        self._unmapped.remove(block)
        if length < block.size:
            rest = Block(address + length, block.size - length, self._pool, block, block.next)
            rest.state = UNMAPPED
            link(rest)
            insort(self._unmapped, rest, key=_by_address)
            block.size = length
        block.state = FREE
        for neighbour in (block.prev, block.next):
            if neighbour is not None and neighbour.state == FREE:
                self._pool.remove(neighbour)
                self._absorb(block, neighbour)
        self._pool.insert(block)
        self._account("segment_map", self._pool, address, length)
        return True

    def _unmap(self, block: Block) -> None:
        """Unmap the whole pages of a free block; the parts at either side stay free."""
        first, last = self._up(block.address), (block.address + block.size) // self._page * self._page
        if first >= last:
            return
        self._pool.remove(block)
        before, after = first - block.address, block.address + block.size - last
        if before:
            self._split_off(Block(block.address, before, self._pool, block.prev, block))
        if after:
            self._split_off(Block(last, after, self._pool, block, block.next))
        block.address, block.size, block.state = first, last - first, UNMAPPED
        for neighbour in (block.prev, block.next):
            if neighbour is not None and neighbour.state == UNMAPPED:
                self._unmapped.remove(neighbour)
                self._absorb(block, neighbour)
        insort(self._unmapped, block, key=_by_address)
        self.memory.give(last - first)
        self._account("segment_unmap", self._pool, first, last - first)
        if block.prev is None and block.next is None:
            self._unmapped.remove(block)
            self._first.remove(block.address)
            del self._heads[block.address]

    def _split_off(self, part: Block) -> None:
        link(part)
        if part.prev is None:
            self._heads[part.address] = part
        self._pool.insert(part)

    def _absorb(self, block: Block, neighbour: Block) -> None:
        """Join `neighbour` to `block`; neither is in a list."""
        if neighbour is block.prev:
            block.address, block.prev = neighbour.address, neighbour.prev
            if block.prev is None:
                self._heads[block.address] = block
        else:
            block.next = neighbour.next
        block.size += neighbour.size
        neighbour.state, neighbour.prev, neighbour.next = GONE, None, None
        link(block)

    def _up(self, size: int) -> int:
        return -(-size // self._page) * self._page

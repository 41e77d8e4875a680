"""Data structures of the caching allocator: size classes, blocks, and free lists in best-fit order.

`caching` decides when to split, merge or release a block.
"""

from __future__ import annotations

from bisect import bisect_left

from .statistics import Counters

MiB = 1 << 20
UNIT = 512  # every block is a multiple of this
SMALL_REQUEST = MiB  # larger ones go to the large pool
SMALL_SEGMENT = 2 * MiB
BIG_REQUEST = 10 * MiB  # from here a segment is made to measure, in steps of STEP
STEP = 2 * MiB

FREE, LIVE, UNMAPPED, GONE, HELD = range(5)  # the states of a block; held: freed, and another stream still uses it

# Free blocks are sorted by one integer, size before address: one comparison where a pair takes three.
ADDRESS_BITS = 64


class Block:
    """A contiguous part of a segment. One that `allocate` returns is valid until freed, and never returned again."""

    __slots__ = ("address", "idle_since", "next", "pool", "prev", "requested", "size", "state")

    idle_since: int  # count of searches when it was last freed; for whole segments only
    requested: int

    def __init__(self, address: int, size: int, pool: Pool, prev: Block | None, next: Block | None) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.prev = prev
        self.next = next
        self.state = FREE

    @property
    def stream(self) -> int:
        return self.pool.stream

    @property
    def allocated(self) -> bool:
        return self.state == LIVE

    def __repr__(self) -> str:
        state = ("free", "allocated", "unmapped", "gone", "held")[self.state]
        return f"<Block {self.size:,} B at {self.address:#x}, {state}, stream {self.stream}>"


class Pool:
    """Free blocks of one stream and one kind (small or large), smallest first, ties by address."""

    __slots__ = ("blocks", "counters", "id", "keys", "least_rest", "owner", "small", "split_below", "stream")

    least_rest: int  # a remainder of at least this is split off …
    split_below: int  # … if the request is smaller than this

    def __init__(
        self, owner: object, stream: int, small: bool, counters: Counters, *, id: tuple[int, int] = (0, 0)
    ) -> None:
        self.owner = owner
        self.id = id  # of the private pool that it belongs to
        self.counters = counters
        self.stream = stream
        self.small = small
        self.keys: list[int] = []
        self.blocks: list[Block] = []  # in the order of their keys

    def find(self, size: int) -> int:
        """Return the index of the smallest block of at least `size`; the number of blocks if there is none."""
        return bisect_left(self.keys, size << ADDRESS_BITS)

    def insert(self, block: Block) -> None:
        key = block.size << ADDRESS_BITS | block.address
        index = bisect_left(self.keys, key)
        self.keys.insert(index, key)
        self.blocks.insert(index, block)

    def remove(self, block: Block) -> None:
        index = bisect_left(self.keys, block.size << ADDRESS_BITS | block.address)
        del self.keys[index], self.blocks[index]

    def whole(self) -> list[Block]:
        """Return the free blocks that are a whole segment."""
        return [block for block in self.blocks if block.prev is None and block.next is None]


def link(block: Block) -> None:
    """Make the neighbours of `block` point at it."""
    if block.prev is not None:
        block.prev.next = block
    if block.next is not None:
        block.next.prev = block

"""Private memory pools of CUDA graphs and `torch.cuda.MemPool`, whose segments nothing else may use.

A pool lives as long as it has users. Memory cached in it afterwards is released with the rest of the cache, or when
memory runs short (PyTorch 2.15, c10/cuda/CUDACachingAllocator.cpp, releasePool and release_cached_blocks).
"""

from __future__ import annotations

from .blocks import Pool

Id = tuple[int, int]


class PrivatePool:
    """The free blocks of one private pool, by stream. `uses` counts the graphs and MemPools that hold it."""

    __slots__ = ("id", "large", "small", "uses")

    def __init__(self, id: Id) -> None:
        self.id = id
        self.small: dict[int, Pool] = {}
        self.large: dict[int, Pool] = {}
        self.uses = 0

    def pools(self) -> list[Pool]:
        return [*self.large.values(), *self.small.values()]


class PrivatePools:
    """All private pools of one GPU."""

    def __init__(self) -> None:
        self._used: dict[Id, PrivatePool] = {}
        self._left: dict[Id, PrivatePool] = {}  # without users

    def use(self, id: Id) -> PrivatePool:
        """Add a user to the pool with this id, which is created if there is none."""
        pool = self._used.get(id) or self._left.pop(id, None) or PrivatePool(id)
        self._used[id] = pool
        pool.uses += 1
        return pool

    def release(self, id: Id) -> PrivatePool:
        """Remove a user."""
        pool = self._used[id]
        pool.uses -= 1
        if not pool.uses:
            self._left[id] = self._used.pop(id)
        return pool

    def uses(self, id: Id) -> int:
        return self._used[id].uses if id in self._used else 0

    def all(self) -> list[Pool]:
        """Return the free lists of all private pools."""
        return [pool for private in (*self._used.values(), *self._left.values()) for pool in private.pools()]

    def left(self) -> list[Pool]:
        """Return the free lists of private pools without users, which may be released."""
        return [pool for private in self._left.values() for pool in private.pools()]

"""The allocator's counters, under the names of `torch.cuda.memory_stats`.

For speed, `CachingAllocator.allocate` and `free` update the counters of a request in place.
"""

from __future__ import annotations

import functools

# Counted for the small pool, the large pool and both. "active" is allocated memory and held memory: freed while another
# stream still uses it.
_NAMES = (
    "allocation",
    "allocated_bytes",
    "requested_bytes",
    "inactive_split",
    "inactive_split_bytes",
    "segment",
    "reserved_bytes",
)
_SAME = {"active": "allocation", "active_bytes": "allocated_bytes"}
_EVENTS = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free")


class Stat:
    """One counter: current value, peak, and total freed; "allocated" follows from them."""

    __slots__ = ("current", "freed", "offset", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.freed = self.offset = 0

    def add(self, amount: int) -> None:
        """Change the count; a negative amount is freed."""
        self.current += amount
        if amount < 0:
            self.freed -= amount
        elif self.current > self.peak:
            self.peak = self.current


Trio = tuple[Stat, Stat, Stat]
Counters = tuple[Trio, Trio, Trio, Trio]


class Statistics:
    """All counters of one device; `events` holds those that only grow."""

    def __init__(self) -> None:
        # small, large, both; the third keeps only the peak, the rest is the sum
        self._stats = {name: (Stat(), Stat(), Stat()) for name in _NAMES}
        self.oversize_allocations = Stat()
        self.oversize_segments = Stat()
        self.events = dict.fromkeys(_EVENTS, 0)
        # Held: (blocks, bytes) in the small and the large pool, and at the last reset; peaks of active memory.
        self.held, self._held_before = [(0, 0), (0, 0)], [(0, 0), (0, 0)]
        self._active: dict[tuple[str, int], int] = {}

    def hold(self, small: bool, blocks: int, nbytes: int) -> None:
        """Add held blocks of a pool; negative numbers remove them."""
        pool = 0 if small else 1
        self.held[pool] = self.held[pool][0] + blocks, self.held[pool][1] + nbytes

    def look(self) -> None:
        """Update the peaks of active memory, while blocks are held."""
        for kind, name in enumerate(_SAME):
            now = [self._stats[_SAME[name]][pool].current + self.held[pool][kind] for pool in (0, 1)]
            for pool, total in enumerate((*now, sum(now))):
                self._active[name, pool] = max(self._active.get((name, pool), 0), total)

    def add(self, name: str, small: bool, amount: int) -> None:
        """Change the counter `name` of one pool."""
        one, other, both = self._stats[name]
        (one if small else other).add(amount)
        both.peak = max(both.peak, one.current + other.current)

    def current(self, name: str) -> int:
        one, other, _ = self._stats[name]
        return one.current + other.current

    def peak(self, name: str) -> int:
        return self._stats[name][2].peak

    def counters(self, small: bool) -> Counters:
        """Return the counters that every request changes: requests, block bytes, requested bytes, inactive split bytes.

        Each is the Stat of this pool, of the other pool, and of both.
        """
        names = ("allocation", "allocated_bytes", "requested_bytes", "inactive_split_bytes")
        a, b, c, d = (self._stats[name] if small else _swap(self._stats[name]) for name in names)
        return a, b, c, d

    def reset_peak(self) -> None:
        """Set every peak to the current value, as `torch.cuda.reset_peak_memory_stats` does."""
        for one, other, both in self._stats.values():
            both.peak = one.current + other.current
            one.peak, other.peak = one.current, other.current
        for stat in (self.oversize_allocations, self.oversize_segments):
            stat.peak = stat.current
        self._active.clear()
        self.look()

    def reset_accumulated(self) -> None:
        """Start "allocated", "freed" and the events again from 0."""
        oversize = (self.oversize_allocations, self.oversize_segments)
        for stat in (*(stat for trio in self._stats.values() for stat in trio), *oversize):
            stat.freed, stat.offset = 0, stat.current
        self._held_before = list(self.held)
        self.events = dict.fromkeys(_EVENTS, 0)

    def flat(self, max_split_size: int) -> dict[str, int]:
        """Return all counters by the names of `torch.cuda.memory_stats`, sorted."""
        out = {**self.events, "num_oom_rejections": 0, "max_split_size": max_split_size}
        for name in (*self._stats, *_SAME):
            small, large, both = self._stats[_SAME.get(name, name)]
            pools = _values(small), _values(large)
            total = [a + b for a, b in zip(*pools, strict=True)]
            total[1] = both.peak
            if name in _SAME:
                self._add_held(name, *pools, total)
            for pool, values in zip(("small_pool", "large_pool", "all"), (*pools, total), strict=True):
                out.update(zip(_named(f"{name}.{pool}"), values, strict=True))
        out.update(zip(_named("oversize_allocations"), _values(self.oversize_allocations), strict=True))
        out.update(zip(_named("oversize_segments"), _values(self.oversize_segments), strict=True))
        return dict(sorted(out.items()))

    def _add_held(self, name: str, *rows: list[int]) -> None:
        """Add held blocks to [current, peak, allocated, freed] of the small pool, the large pool and both."""
        kind = list(_SAME).index(name)
        held = [self.held[pool][kind] for pool in (0, 1)]
        before = [self._held_before[pool][kind] for pool in (0, 1)]
        for pool, row in enumerate(rows):
            now, then = (held[pool], before[pool]) if pool < 2 else (sum(held), sum(before))
            row[0] += now
            row[1] = max(row[1], self._active.get((name, pool), 0))
            row[3] += then - now


def _swap(trio: Trio) -> Trio:
    return trio[1], trio[0], trio[2]


def _values(stat: Stat) -> list[int]:
    return [stat.current, stat.peak, stat.current + stat.freed - stat.offset, stat.freed]


@functools.cache
def _named(prefix: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.{name}" for name in ("current", "peak", "allocated", "freed"))

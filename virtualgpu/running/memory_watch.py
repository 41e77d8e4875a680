"""Watch a virtual GPU's memory through a run: peaks, and bytes held per source line.

It wraps the allocator, so it sees every block, and the script's resets of peaks do not affect it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from ..memory.out_of_memory import OutOfMemory
from .breakdown import Breakdowns
from .replay import Record
from .report import Breakdown, Memory, Share, Shortage
from .source_lines import Line, Place, SourceLines

if TYPE_CHECKING:
    from ..memory.blocks import Block
    from ..memory.private import PrivatePool
    from ..scope.device import Device
    from .create_graph import CreateGraphCalls
    from .overrun import Overrun

_SHARES = 5
_NOWHERE = ("", 0)
Peak = tuple[int, Place | None, dict[Place, int], int, int]  # bytes, line, holders, recomputed, least free


class MemoryWatch:
    """Watches one virtual GPU until `end`; it must be empty at the start. `breaks_down`: by role and tensor, too."""

    def __init__(
        self,
        device: Device,
        places: SourceLines,
        backwards: CreateGraphCalls | None = None,
        *,
        breaks_down: bool = False,
    ) -> None:
        self.device = device
        self._places, self._backwards = places, backwards
        self._allocator = device.allocator
        self._allocate, self._free = self._allocator.allocate, self._allocator.free
        free, self.total = self._allocator.memory_info()
        self._at_start = self._least_free = free
        self._blocks: dict[Block, Place] = {}
        self._again: set[Block] = set()  # recomputed in backward
        self._waiting: set[Block] = set()  # freed, and another stream still uses them
        self._recomputed = self._recomputed_at_peak = 0
        self._held: Counter[Place] = Counter()
        self.allocated = self.peak = 0
        self.began = 0.0  # the host's time at the first allocation
        self._peak_place: Place | None = None
        self._at_peak: dict[Place, int] | None = {}  # None while memory is at its peak: `_held` is its breakdown
        self._noted: tuple[Breakdown | None, Place | None, dict[Place, int]] = None, None, {}
        self.shortage: Shortage | None = None  # the last of `shortages`
        self.shortages = 0
        self.record = Record()
        self.overrun: Overrun | None = None
        self._breakdowns = Breakdowns(device, self._blocks.get, self._line) if breaks_down else None
        self._in_allocate = False
        allocator: Any = self._allocator
        self._own = {name: getattr(allocator, name) for name in ("hold", "empty_cache", "set_memory_fraction")}
        allocator.allocate, allocator.free = self._see_allocate, self._see_free
        allocator.hold, allocator.empty_cache = self._see_hold, self._see_empty_cache
        allocator.set_memory_fraction = self._see_memory_fraction

    def stepping(self, optimizer: Any) -> None:
        """Note that an optimizer begins a step on this GPU."""
        if self._breakdowns is not None:
            self._breakdowns.begins(optimizer)

    def stepped(self, optimizer: Any) -> None:
        """Note that an optimizer has taken a step on this GPU."""
        if self._breakdowns is not None:
            self._breakdowns.stepped(optimizer)
            self._note(self._breakdowns.highest)
        if self.overrun is not None:
            self.overrun.stepped(optimizer)

    def end(self) -> None:
        """Stop watching."""
        if self._breakdowns is not None:
            self._breakdowns.end()
        allocator: Any = self._allocator
        for name in ("allocate", "free", *self._own):
            delattr(allocator, name)

    # All are called under the device's lock.

    def _see_allocate(self, nbytes: int, stream: int = 0, private: PrivatePool | None = None) -> Block | None:
        self._in_allocate = True
        try:
            block = self._allocate(nbytes, stream, private)
        except OutOfMemory as error:
            self._see_failure(error)
            if self.overrun is None or not self.overrun.failed(self, nbytes, stream):
                raise
            block = self._allocate(nbytes, stream, private)
        finally:
            self._in_allocate = False
        if block is None:
            return None
        self.record.took(block, nbytes, stream)
        if private is not None:
            self.record.whole = False
        place = self._places.here() or _NOWHERE
        if not self.peak:
            self.began = self.device.timer.clock.host
        self._blocks[block] = place
        self._held[place] += block.size
        self.allocated += block.size
        if torch.is_grad_enabled() and torch._C._current_graph_task_id() != -1 and not self._builds_graph():
            self._again.add(block)
            self._recomputed += block.size
        if self.allocated > self.peak:
            self.peak, self._peak_place, self._at_peak = self.allocated, place, None
            self._recomputed_at_peak = self._recomputed
        free, _ = self._allocator.memory_info()
        if free < self._least_free:
            self._least_free = free
        return block

    def _see_free(self, block: Block | None) -> None:
        if block is not None and (block in self._waiting or self._let_go(block)):
            self._waiting.discard(block)
            self.record.freed(block)
        self._free(block)

    def _let_go(self, block: Block) -> bool:
        """Count a block no longer as allocated; False where it never was."""
        place = self._blocks.pop(block, None)
        if place is None:
            return False
        if self._at_peak is None:
            self._at_peak = dict(self._held)
        self._held[place] -= block.size
        self.allocated -= block.size
        if block in self._again:
            self._again.remove(block)
            self._recomputed -= block.size
        return True

    def _builds_graph(self) -> bool:
        return self._backwards is not None and self._backwards.building

    def _see_hold(self, block: Block) -> None:
        self.record.held(block)
        if self._let_go(block):
            self._waiting.add(block)
        self._own["hold"](block)

    def _see_empty_cache(self) -> None:
        if not self._in_allocate:  # the allocator calls it itself where memory is short
            self.record.emptied()
        self._own["empty_cache"]()

    def _see_memory_fraction(self, fraction: float) -> None:
        self.record.whole = False
        self._own["set_memory_fraction"](fraction)

    def _see_failure(self, error: OutOfMemory) -> None:
        known = error.shortage
        place = self._places.here()
        self.shortages += 1
        room = known.total - self._allocator.memory.context_bytes - known.private
        self.shortage = Shortage(
            requested=known.tried,
            free=known.free,
            allocated=known.allocated,
            reserved=known.reserved,
            room=room if known.allowed is None else min(room, known.allowed),
            line=self._line(place),
            shares=self._shares(self._held),
            breakdown=None if self._breakdowns is None else self._breakdowns.ran_out(),
        )

    def _note(self, breakdown: Breakdown | None) -> tuple[Place | None, dict[Place, int]]:
        """Return the line and the holders of this breakdown's peak; a new one is of the latest peak."""
        if breakdown is None or breakdown is not self._noted[0]:
            self._noted = breakdown, self._peak_place, dict(self._held if self._at_peak is None else self._at_peak)
        return self._noted[1:]

    # -- results -----------------------------------------------------------------------------------------------------

    def begin_peak(self) -> Peak:
        """Count peaks from now on; `end_peak` takes what this returns."""
        with self.device.lock:
            self.device.drain()
            at_peak = dict(self._held) if self._at_peak is None else self._at_peak
            outer = self.peak, self._peak_place, at_peak, self._recomputed_at_peak, self._least_free
            self.peak, self._peak_place, self._at_peak = self.allocated, None, None
            self._recomputed_at_peak = self._recomputed
            self._least_free, _ = self._allocator.memory_info()
        return outer

    def end_peak(self, outer: Peak) -> None:
        """Let the peaks of before count again, where they were higher."""
        with self.device.lock:
            if outer[0] > self.peak:
                self.peak, self._peak_place, self._at_peak, self._recomputed_at_peak, _ = outer
            self._least_free = min(self._least_free, outer[-1])

    def memory(self) -> Memory:
        """Return the numbers up to now."""
        with self.device.lock:
            self.device.drain()
            free, _ = self._allocator.memory_info()
            events = self._allocator.statistics.events
            breakdown = None if self._breakdowns is None else self._breakdowns.peak()
            place, holders = self._note(breakdown)
            return Memory(
                total=self.total,
                peak_allocated=self.peak,
                peak_reserved=self._at_start - self._least_free,
                peak_used=self.total - self._least_free,
                end_allocated=self.allocated,
                end_reserved=self._at_start - free,
                retries=events["num_alloc_retries"],
                failures=events["num_ooms"],
                peak_line=self._line(place),
                peak_shares=self._shares(holders),
                recomputed=self._recomputed_at_peak,
                breakdown=breakdown,
            )

    def _shares(self, held: dict[Place, int]) -> tuple[Share, ...]:
        """Return the lines that hold most, the largest first."""
        largest = sorted((item for item in held.items() if item[1] > 0), key=lambda item: -item[1])[:_SHARES]
        return tuple(Share(self._line(place) or Line("PyTorch", 0, ""), nbytes) for place, nbytes in largest)

    def _line(self, place: Place | None) -> Line | None:
        return None if place is None or place == _NOWHERE else self._places.line(place)

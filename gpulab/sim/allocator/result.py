"""Results of the allocator: what is allocated, reserved and out of reach after each command of the script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from virtualgpu.memory.blocks import MiB
from virtualgpu.memory.settings import Settings

from ..base.simulator import Limit, Result, Row
from ..base.words import below, count, percent
from .model import Command, Moment, Run, read, run


def mib(nbytes: int) -> str:
    """`12 MiB`, `1.5 MiB`; from 1 GiB on in GiB, below half a MiB in KiB, below half a KiB in B."""
    if nbytes >= 2**30:
        return f"{nbytes / 2**30:.4g} GiB"
    if nbytes == 0 or nbytes >= MiB // 2:
        return f"{round(nbytes / MiB, 2):g} MiB"
    return f"{round(nbytes / 1024, 1):g} KiB" if nbytes >= 512 else f"{nbytes} B"


EXAMPLES = {
    "fragmentation": "a=60MiB; free a; b=12MiB; c=12MiB; d=60MiB",
    "empty_cache": "a, b, c, d, e, f, g, h=8MiB; free a, c, e, g; empty_cache",
    "segments": "a=1.5MiB; b=1.5MiB; c=11MiB; d=19MiB",
    "small_pool": "a=1KiB; b=512KiB; c=1MiB; d=1.1MiB",
    "merging": "a, b, c=6MiB; free a, c; d=8MiB; free b; e=12MiB",
    "growing": "x=20MiB; free x; x=24MiB; free x; x=28MiB; free x; x=32MiB",
}


@dataclass(frozen=True)
class Memory(Result):
    """The toy GPU's memory after `step` commands of the script."""

    capacity: int  # bytes
    commands: tuple[Command, ...]
    step: int
    expandable: bool
    run: Run

    @property
    def free(self) -> int:
        """Bytes that no tensor has, on the device and in segments."""
        return self.capacity - self.run.now.allocated

    @property
    def cached(self) -> int:
        """Bytes in segments that no tensor has."""
        return self.run.now.reserved - self.run.now.allocated

    @property
    def fragmentation(self) -> float:
        """The share of what is free that no single request can get."""
        return max(0.0, 1 - self.run.largest / self.free) if self.free >= MiB else 0.0

    @property
    def emptied(self) -> bool:
        """Whether the cache was emptied in this step, or right before it fails."""
        place = self.step - bool(self.run.now.error)
        return place > 0 and self.commands[place - 1].text == "empty_cache"

    @property
    def finding(self) -> str:
        now = self.run.now
        if not self.step:
            return f"All {mib(self.capacity)} are the driver’s: PyTorch has taken none yet"
        command, before = self.commands[self.step - 1], self.run.moments[-2]
        if now.error:
            return self._failed(command)
        if command.nbytes is not None:
            return self._allocated(command, command.nbytes, now, before)
        if command.name:
            if not now.block:
                return f"There is nothing to free: {command.name} was never allocated"
            gone = f"free {command.name} gives {mib(now.block)} back to the cache"
            if now.joined > now.block:
                gone += f" ({mib(now.joined)} with what is free beside it)"
            return f"{gone}: {mib(now.allocated)} allocated, still {mib(now.reserved)} reserved"
        if now.given:
            kept = f"; {mib(now.reserved)} stay, in segments that hold a tensor" if now.reserved else ""
            return f"empty_cache gives {mib(now.given)} back to the driver, which PyTorch could have used again{kept}"
        if self.cached:
            many = len(self.run.segments)
            segments = f"each of the {many} segments" if many > 1 else "the segment"
            kept = f"{segments} holds a tensor, and {mib(self.cached)} of free memory stay reserved"
            return f"empty_cache gives nothing back: {kept}"
        return "empty_cache has nothing to give back: every segment is full"

    def _failed(self, command: Command) -> str:
        assert command.nbytes is not None
        if self.free < command.nbytes:
            return f"{command.words} does not fit: only {mib(self.free)} are free in all"
        if self.run.largest >= command.nbytes:
            whole = "a request below 10 MiB that finds no block takes a whole segment"
            return f"{command.words} fails where {mib(self.run.largest)} would fit: {whole}"
        if self.emptied and not self.run.moments[-2].given:
            return f"empty_cache gave nothing back, so {command.words} still does not fit"
        free = f"at most {mib(self.run.largest)} of the {mib(self.free)} free are in one piece"
        return f"{command.words} does not fit: {free}"

    def _allocated(self, command: Command, asked: int, now: Moment, before: Moment) -> str:
        if now.retried:
            gave = f"the allocator gave {mib(now.given)} of its cache back and took {mib(now.taken)}, a slow retry"
            return f"{command.words} found the device full: {gave}"
        if now.taken and self.expandable:
            return f"{command.words} fits: its segment grows by {mib(now.taken)}, old and new in one piece"
        if now.taken:
            rest = now.taken - now.block
            found = f"{command.words} takes {mib(now.taken)} from the driver"
            if rest > 0:
                return f"{found}: {mib(now.block)} for {command.name}, and {mib(rest)} for what comes next"
        else:
            found = f"{command.words} fits into a free block: the driver is not asked"
        if now.block - asked > MiB // 2:
            return f"{found}, and all of the {mib(now.block)} are its own, as a rest of up to 1 MiB is not split off"
        return found

    def rows(self) -> list[Row]:
        now = self.run.now
        done = self.commands[self.step - 1].text if self.step else "nothing yet"
        rows = [
            ("GPU memory", mib(self.capacity), ""),
            (f"step {self.step} of {len(self.commands)}", done, ""),
            ("allocated", mib(now.allocated), "virtual"),
            ("requested", mib(self.run.requested), "virtual"),
            ("reserved", mib(now.reserved), "virtual"),
            ("reserved, peak", mib(self.run.peak), "virtual"),
            ("free in segments", mib(self.cached), "virtual"),
            ("free on the device", mib(self.run.free), "virtual"),
            ("largest request that still fits", mib(self.run.largest), "virtual"),
            ("fragmentation", f"{percent(self.fragmentation)} of what is free is not in the largest piece", "virtual"),
            ("retries with an emptied cache", str(self.run.retries), "virtual"),
            ("out of memory", count(self.run.failures, "time"), "virtual"),
        ]
        for number, segment in enumerate(self.run.segments, 1):
            blocks = ", ".join(f"{piece.name or 'free'} {mib(piece.nbytes)}" for piece in segment.pieces)
            kind = "small" if segment.small else "large"
            rows.append((f"segment {number}, {kind}, {mib(segment.nbytes)}", blocks, "virtual"))
        return rows

    @property
    def error(self) -> str:
        """What Python says of the last command, "" if it went well."""
        return f"torch.OutOfMemoryError: {self.run.now.error}" if self.run.now.error else ""

    def __str__(self) -> str:
        return below(super().__str__(), self.error)

    def describe(self) -> str:
        return "; ".join(filter(None, (super().describe(), self.error)))


def simulate(script: str, step: int, memory: int, max_split: int, expandable: bool) -> Memory:
    """The first `step` commands of `script` on a GPU of `memory` MiB; `max_split` is max_split_size_mb, 0 for off."""
    commands = tuple(read(EXAMPLES.get(script, script)))
    step = min(step, len(commands))
    settings = Settings(max_split_size_mb=max_split or None, expandable_segments=expandable)
    return Memory(memory * MiB, commands, step, expandable, run(commands[:step], memory * MiB, settings))


def limits(values: Mapping[str, Any]) -> dict[str, Limit]:
    """There are as many steps as commands."""
    script = values["script"]
    commands = len(read(EXAMPLES.get(script, script)))
    return {"step": Limit(0, commands, f"the script has {count(commands, 'command')}")}

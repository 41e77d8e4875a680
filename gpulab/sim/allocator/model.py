"""A script of allocations, run on the virtual GPU's own allocator, with what happened at each step.

The GPU is a toy of some hundred MiB without a CUDA context; the allocator is not. What is drawn is in `picture`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from virtualgpu.memory.blocks import FREE, Block, MiB
from virtualgpu.memory.caching import CachingAllocator
from virtualgpu.memory.out_of_memory import OutOfMemory
from virtualgpu.memory.settings import Settings

MOST_COMMANDS = 60
LARGEST_REQUEST = 1 << 40
UNITS = {"B": 1, "KiB": 2**10, "MiB": MiB, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}

_NAMES = r"(?!(?:free|del|empty_cache)\b)[A-Za-z]\w{0,7}(?:\s*,\s*[A-Za-z]\w{0,7})*"
_COMMAND = re.compile(
    rf"(?P<made>{_NAMES})\s*=\s*(?P<number>\d{{1,4}}(?:\.\d{{1,3}})?)\s*(?P<unit>[A-Za-z]+)?"
    rf"|(?:free|del)\s+(?P<freed>{_NAMES})"
    r"|(?P<cache>empty_cache(?:\(\))?)"
)
_KNOWN = "Known: a=12MiB, free a, empty_cache; several names with commas: a, b=8MiB"


@dataclass(frozen=True)
class Command:
    """`nbytes` for the tensor `name`; None frees it, and without a name the cache is emptied."""

    text: str
    name: str = ""
    nbytes: int | None = None

    def __str__(self) -> str:
        return self.text

    @property
    def words(self) -> str:
        """`a = 12 MiB`."""
        return re.sub(r"(?<=\d)(?=[A-Z])", " ", self.text.replace("=", " = "))


def read(text: str) -> list[Command]:
    """The commands in `text`, apart by spaces, lines or ;, one for each name; ValueError says what is wrong."""
    found: list[Command] = []
    living: set[str] = set()
    place = 0
    while rest := text[place:].lstrip(" \t\r\n;"):
        place = len(text) - len(rest)
        match = _COMMAND.match(rest)
        after = rest[match.end() : match.end() + 1] if match else ""
        if not match or after.strip(" \t\r\n;"):
            word = re.split(r"[\s;]", rest)[0]
            raise ValueError(f"{word!r} is no command. {_KNOWN}.")
        for name in re.split(r"\s*,\s*", match["made"] or match["freed"] or ""):
            found.append(_command(match, name, living))
        place += match.end()
    if len(found) > MOST_COMMANDS:
        raise ValueError(f"{len(found)} commands; there may be up to {MOST_COMMANDS}.")
    return found


def _command(match: re.Match[str], name: str, living: set[str]) -> Command:
    if match["cache"]:
        return Command("empty_cache")
    if match["freed"]:
        if name not in living:
            raise ValueError(f"free {name}: nothing is called {name} at that point.")
        living.remove(name)
        return Command(f"free {name}", name)
    if match["unit"] not in UNITS:
        what = f"{match['unit']!r} is no unit" if match["unit"] else "it has no unit"
        raise ValueError(f"{name}={match['number']}{match['unit'] or ''}: {what}. Known: {', '.join(UNITS)}.")
    nbytes = round(float(match["number"]) * UNITS[match["unit"]])
    if not 1 <= nbytes <= LARGEST_REQUEST:
        raise ValueError(f"{name}={match['number']}{match['unit']}: the size must be from 1 B to 1024 GiB.")
    living.add(name)
    return Command(f"{name}={match['number']}{match['unit']}", name, nbytes)


@dataclass(frozen=True)
class Piece:
    """A block of a segment: a tensor's, of which `requested` bytes were asked for, or free (`name` is "")."""

    name: str
    nbytes: int
    requested: int


@dataclass(frozen=True)
class Segment:
    """What was taken from the device in one piece; with expandable segments, a stretch of it that has memory."""

    small: bool
    pieces: tuple[Piece, ...]

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)

    @property
    def used(self) -> int:
        return sum(piece.nbytes for piece in self.pieces if piece.name)


@dataclass(frozen=True)
class Moment:
    """The counts after a step, and what the step did; sizes in bytes."""

    allocated: int
    reserved: int
    taken: int = 0  # from the device in this step
    given: int = 0  # back to the device in this step
    block: int = 0  # what an allocation got, or a `free` gave back
    joined: int = 0  # the free block that a `free` made, its free neighbours among it
    retried: bool = False  # the cache was emptied for it
    error: OutOfMemory | None = None


@dataclass(frozen=True)
class Run:
    """The memory after the last command, and every moment from before the first one on."""

    moments: tuple[Moment, ...]
    segments: tuple[Segment, ...]
    requested: int  # by what is alive
    free: int  # on the device
    retries: int
    failures: int
    peak: int  # reserved
    largest: int  # request that would still be granted

    @property
    def now(self) -> Moment:
        return self.moments[-1]


def run(commands: Sequence[Command], capacity: int, settings: Settings) -> Run:
    """Run the commands on a GPU of `capacity` bytes; one that does not fit fails, and the next ones go on."""
    allocator = CachingAllocator(capacity, settings)
    taken = given = 0

    def watch(event: str, address: int, size: int, stream: int) -> None:
        nonlocal taken, given
        if event in ("segment_alloc", "segment_map"):
            taken += size
        else:
            given += size

    allocator.watch = watch
    count = allocator.statistics.current
    living: dict[str, Block | None] = {}
    moments = [Moment(0, 0)]
    for command in commands:
        taken = given = 0
        retries = allocator.statistics.events["num_alloc_retries"]
        block, joined, error = 0, 0, None
        try:
            block, joined = _step(allocator, command, living)
        except OutOfMemory as caught:
            error = caught
        retried = allocator.statistics.events["num_alloc_retries"] > retries
        moments.append(
            Moment(count("allocated_bytes"), count("reserved_bytes"), taken, given, block, joined, retried, error)
        )
    names = {block.address: name for name, block in living.items() if block}
    segments = []
    for entry in allocator.snapshot():
        found = ((names.get(b["address"], ""), b["size"], b["requested_size"]) for b in entry["blocks"])
        segments.append(Segment(entry["segment_type"] == "small", tuple(Piece(*one) for one in found)))
    events = allocator.statistics.events
    return Run(
        moments=tuple(moments),
        segments=tuple(segments),
        requested=count("requested_bytes"),
        free=allocator.memory.free_bytes,
        retries=events["num_alloc_retries"],
        failures=events["num_ooms"],
        peak=allocator.statistics.peak("reserved_bytes"),
        largest=_largest(allocator, capacity - count("allocated_bytes")),
    )


def _step(allocator: CachingAllocator, command: Command, living: dict[str, Block | None]) -> tuple[int, int]:
    """Do what a command says; the sizes of the block that it got or gave back, and of the free block that this made."""
    if command.nbytes is not None:
        block = allocator.allocate(command.nbytes)
        before = living.get(command.name)
        living[command.name] = block
        allocator.free(before)  # a name given anew: Python makes the new tensor before it drops the old one
        return (block.size if block else 0), 0
    if not command.name:
        allocator.empty_cache()
        return 0, 0
    block = living.pop(command.name, None)  # None where its allocation has failed
    if block is None:
        return 0, 0
    size = block.size
    joined = size + sum(beside.size for beside in (block.prev, block.next) if beside and beside.state == FREE)
    allocator.free(block)
    return size, joined


def _largest(allocator: CachingAllocator, most: int) -> int:
    """The most bytes, in whole MiB, that a request would still get, found by trying: one that fails only empties the
    cache, as the next one would."""
    for nbytes in range(most // MiB * MiB, 0, -MiB):
        with suppress(OutOfMemory):
            allocator.allocate(nbytes)
            return nbytes
    return 0

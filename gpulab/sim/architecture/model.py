"""A kernel on a GPU, clock by clock: blocks come to the SMs in waves, warps of 32 threads take turns on the lanes.

A toy that is exact in itself: each thread has the same few instructions, and a warp waits for the result of one
before the next. It knows nothing of what the instructions are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from virtualgpu.gpus.specs import SHOWN

from ..base.simulator import Limit, Result, Row
from ..base.words import count, many, percent

WARP = 32
INSTRUCTIONS = 4  # of every thread, one after another
MOST_WAVES = 32
MOST_SMS, MOST_LANES = max(gpu.sms for gpu in SHOWN.values()), 4 * WARP
GOLDEN = 0.618034  # spreads the SMs over a round
FRAMES = 257  # of Play; a kernel of more clocks is shown at this many of them
TOY = "toy"
VIRTUAL = "virtual: toy kernel"
# What an SM has room for: resident warps and blocks (CUDA programming guide, technical specifications per compute
# capability); the others have the most.
ROOM = {(7, 5): (32, 16), (8, 6): (48, 16), (8, 9): (48, 24)}
MOST_ROOM = (64, 32)


class Warp(NamedTuple):
    """A warp on an SM: "issuing", "waiting" or "ready", and how much of its wait is over."""

    state: str
    waited: float
    lanes: int  # how many of its 32 threads have an element


class Wave(NamedTuple):
    """Blocks that start together; `resident` of their places, `busy` of the lanes' time."""

    blocks: int
    start: int
    clocks: int
    resident: float
    busy: float


@dataclass(frozen=True)
class Kernel(Result):
    """One kernel over `elements` elements, a thread for each, and the clock at which it is looked at."""

    gpu: str
    sms: int
    lanes: int  # in each SM
    threads: int  # in each block
    room: int  # for warps, in each SM
    wait: int  # clocks
    elements: int
    frame: int
    look: int = 1  # the SM that is seen close up, from 1

    def __post_init__(self) -> None:
        if self.lanes % WARP:
            raise ValueError(f"lanes is {self.lanes}; it must be 32, 64, 96 or 128: a warp has {WARP} threads")

    @property
    def rows_of_lanes(self) -> int:
        """Warps that an SM can issue in one clock."""
        return self.lanes // WARP

    @property
    def all_lanes(self) -> int:
        return self.sms * self.lanes

    @property
    def warps_per_block(self) -> int:
        return math.ceil(self.threads / WARP)

    @cached_property
    def blocks_per_sm(self) -> int:
        """How many fit on an SM at a time."""
        return min(self.room // self.warps_per_block, limits_of(self.gpu)[1])

    @property
    def places(self) -> int:
        """Blocks that fit on the GPU at a time."""
        return self.sms * self.blocks_per_sm

    @property
    def blocks(self) -> int:
        return math.ceil(self.elements / self.threads)

    @property
    def resident(self) -> int:
        """Warps on an SM in a full wave."""
        return self.blocks_per_sm * self.warps_per_block

    @property
    def needed(self) -> int:
        """Resident warps of an SM that hide the wait: while one waits, the others issue."""
        return self.rows_of_lanes * (1 + self.wait)

    @cached_property
    def waves(self) -> tuple[Wave, ...]:
        waves = []
        start, left = 0, self.blocks
        while left:
            blocks = min(left, self.places)
            clocks = INSTRUCTIONS * self.period(math.ceil(blocks / self.sms))
            last = left == blocks
            elements = self.elements - (self.blocks - blocks) * self.threads if last else blocks * self.threads
            busy = elements * INSTRUCTIONS / (self.all_lanes * clocks)
            waves.append(Wave(blocks, start, clocks, blocks / self.places, busy))
            start, left = start + clocks, left - blocks
        return tuple(waves)

    @cached_property
    def clocks(self) -> int:
        return self.waves[-1].start + self.waves[-1].clocks

    @property
    def busy(self) -> float:
        """Share of the lanes' time, first clock to last, that an element is worked on."""
        return self.elements * INSTRUCTIONS / (self.all_lanes * self.clocks)

    @cached_property
    def clock(self) -> int:
        """The one that is looked at."""
        if self.clocks <= FRAMES:
            return self.frame
        return self.frame * (self.clocks - 1) // (FRAMES - 1)

    @cached_property
    def wave(self) -> int:
        """Index of the wave at `clock`."""
        return min(self.clock // self.waves[0].clocks, len(self.waves) - 1)

    def period(self, blocks: int) -> int:
        """Clocks from one instruction of a warp to its next, with so many blocks on its SM.

        At the least its own wait; more where the warps are too many to take their turns meanwhile.
        """
        return max(1 + self.wait, math.ceil(blocks * self.warps_per_block / self.rows_of_lanes))

    def blocks_on(self, sm: int) -> int:
        """Blocks that are on the SM with this index at `clock`: they are dealt out to the SMs in turn."""
        wave = self.waves[self.wave]
        blocks = wave.blocks // self.sms + (sm < wave.blocks % self.sms)
        return blocks if self.clock - wave.start < INSTRUCTIONS * self.period(blocks) else 0

    def warps_on(self, sm: int) -> list[Warp]:
        """Its warps at `clock`, in the order in which they take turns."""
        blocks = self.blocks_on(sm)
        period, since = self.period(blocks), self.clock - self.waves[self.wave].start
        found = []
        for index in range(blocks * self.warps_per_block):
            first = (index // self.rows_of_lanes - self._ahead(sm, period)) % period
            behind = (since - first) % period
            if since >= first and behind <= self.wait:
                state, waited = ("waiting" if behind else "issuing"), behind / (1 + self.wait)
            else:
                state, waited = "ready", 1.0
            found.append(Warp(state, waited, self._lanes(sm, index)))
        return found

    def issuing_on(self, sm: int) -> list[int]:
        """Lanes at work in each row of the SM at `clock`."""
        blocks = self.blocks_on(sm)
        period, since = self.period(blocks), self.clock - self.waves[self.wave].start
        turn = (since + self._ahead(sm, period)) % period * self.rows_of_lanes
        indexes = range(turn, min(turn + self.rows_of_lanes, blocks * self.warps_per_block))
        return [self._lanes(sm, index) for index in indexes]

    @cached_property
    def working(self) -> list[list[int]]:
        """`issuing_on` each SM."""
        return [self.issuing_on(sm) for sm in range(self.sms)]

    def _ahead(self, sm: int, period: int) -> int:
        # SMs know nothing of one another: each is at another point of its round
        return int(sm * GOLDEN % 1 * period)

    def _lanes(self, sm: int, index: int) -> int:
        place, warp = divmod(index, self.warps_per_block)
        block = self.wave * self.places + sm + place * self.sms
        threads = min(self.threads, self.elements - block * self.threads)
        return max(0, min(WARP, threads - WARP * warp))

    @property
    def hidden(self) -> float:
        """Share of the turns on a full SM at which some warp issues."""
        return self.resident / (self.rows_of_lanes * self.period(self.blocks_per_sm))

    @property
    def finding(self) -> str:
        found = f"Lanes are busy {percent(self.busy)} of the time"
        full = self.threads / (WARP * self.warps_per_block)
        spread = self.busy / (full * self.hidden)
        worst = min(full, self.hidden, spread)
        last = self.waves[-1]
        if worst >= 0.995:
            return f"All {self.all_lanes:,} lanes are busy: the warps of each SM hide the wait, and every wave is full"
        if worst == full:
            return f"{found}: blocks of {count(self.threads, 'thread')} leave part of their warps’ lanes empty"
        if worst == self.hidden and self.resident < self.needed:
            return f"{found}: {count(self.resident, 'warp')} on an SM cannot hide the wait"
        if last.blocks == self.places:
            return f"{found}, in {count(len(self.waves), 'full wave')} of blocks"
        wave = "last wave" if len(self.waves) > 1 else "only wave"
        if last.blocks < self.sms:
            return f"{found}: the {wave} leaves {self.sms - last.blocks} of {self.sms} SMs idle"
        return f"{found}: the {wave} of blocks fills {percent(last.resident)} of the GPU"

    def rows(self) -> list[Row]:
        spec, last = SHOWN.get(self.gpu), self.waves[-1]
        cap = limits_of(self.gpu)[0]
        recorded = "recorded: data sheet" if spec else ""
        rows = [
            ("GPU", spec.product if spec else "a toy", recorded),
            ("lanes (“CUDA cores”)", f"{self.sms} SMs × {self.lanes} = {self.all_lanes:,}", recorded),
            ("a block", f"{count(self.threads, 'thread')} = {count(self.warps_per_block, 'warp')} of {WARP}", ""),
            ("resident on an SM", f"{count(self.resident, 'warp')} = {count(self.blocks_per_sm, 'block')}", ""),
            ("occupancy", f"{self.resident} of {cap} warps = {percent(self.resident / cap)}", ""),
            ("warps an SM needs to hide the wait", f"{self.needed} for {count(self.wait, 'clock')}", VIRTUAL),
            ("blocks", f"{self.blocks:,} for {self.places:,} places", ""),
            ("waves", f"{len(self.waves)}, the last with {count(last.blocks, 'block')}", ""),
            ("time", f"{count(self.clocks, 'clock')}", VIRTUAL),
            ("lanes at work, on average", percent(self.busy), VIRTUAL),
            (
                f"at clock {self.clock:,}, in wave {self.wave + 1}",
                f"{many(sum(map(len, self.working)), 'warp')} at work, on {many(sum(map(sum, self.working)), 'lane')}",
                VIRTUAL,
            ),
        ]
        if spec and spec.tflops["fp32"] and spec.tflops["fp16"]:
            fp32, fp16 = spec.tflops["fp32"], spec.tflops["fp16"]
            tensor = f"{fp16:g} TFLOPS = {fp16 / fp32:.2g} × the lanes"
            rows.append(("peak of the lanes, fp32", f"{fp32:g} TFLOPS", recorded))
            return [*rows, ("peak of the tensor cores, fp16", tensor, recorded)]
        clock = clock_ghz(self.gpu)
        peak = f"{2 * self.all_lanes * clock / 1000:.3g} TFLOPS"
        return [*rows, ("peak of the lanes, fp32", peak, f"virtual: at an A100’s {clock:.2f} GHz")]


def limits_of(gpu: str) -> tuple[int, int]:
    """Warps and blocks that an SM of `gpu` has room for."""
    return ROOM.get(SHOWN[gpu].capability, MOST_ROOM) if gpu in SHOWN else MOST_ROOM


def clock_ghz(gpu: str) -> float:
    """The clock at which a GPU has its peak: two operations a lane and clock; the toy has an A100's."""
    spec = SHOWN.get(gpu, SHOWN["A100-80"])
    return (spec.tflops["fp32"] or 0) * 1000 / (2 * spec.fp32_lanes)


def limits(values: Mapping[str, Any]) -> dict[str, Limit]:
    """A preset's SMs, lanes and room; a block that fits on an SM; a tensor of so many waves."""
    gpu, threads = values["gpu"], values["threads"]
    cap = limits_of(gpu)[0]
    warps = math.ceil(threads / WARP)
    room = min(max(values["room"], warps), cap)
    words = f"a block has {count(warps, 'warp')}, and an SM has room for {cap}"
    found = {"room": Limit(warps, cap, words)}
    # a control that a preset holds is given its range back by name
    sms, lanes = values["sms"], values["lanes"]
    found |= {"sms": Limit(1, MOST_SMS, ""), "lanes": Limit(WARP, MOST_LANES, "")}
    if gpu in SHOWN:
        sms = SHOWN[gpu].sms
        lanes = SHOWN[gpu].fp32_lanes // sms
        found["sms"] = Limit(sms, sms, f"{gpu} has {sms} SMs")
        found["lanes"] = Limit(lanes, lanes, f"{gpu} has {lanes} lanes in each SM")
    kernel = Kernel(gpu, sms, max(lanes // WARP, 1) * WARP, threads, room, values["wait"], 1, 0)
    most = MOST_WAVES * kernel.places * threads
    words = f"{MOST_WAVES} waves of {count(kernel.places, 'block')} of {count(threads, 'thread')} are {most:,}"
    found["elements"] = Limit(1, most, words)
    whole = Kernel(gpu, sms, kernel.lanes, threads, room, values["wait"], min(values["elements"], most), 0)
    found["look"] = Limit(1, sms, f"there {'is' if sms == 1 else 'are'} {count(sms, 'SM')}")
    found["frame"] = Limit(0, min(whole.clocks, FRAMES) - 1, f"the kernel takes {count(whole.clocks, 'clock')}")
    return found

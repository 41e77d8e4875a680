"""The same tasks on a CPU and on a GPU: how long each takes, and how far each is at a given time.

A toy: a task is 10 µs of arithmetic on one lane of the CPU, and all tasks are alike. Links and memories are those of
`virtualgpu.clock.rates`; it knows nothing of what a task does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from virtualgpu.clock import rates
from virtualgpu.gpus.specs import SHOWN

from ..base.simulator import Limit, Result, Row
from ..base.words import count, duration, many, percent

WARP = 32
UNITS, UNIT = 2, 16  # a CPU core with AVX-512: its units, and the fp32 lanes of each
CORE_LANES = UNITS * UNIT
TASK = 10e-6  # seconds on one lane of the CPU
CPU_BANDWIDTH = 90e9  # bytes per second, an assumption: two channels of DDR5
TOY, LIKE = "toy", "T4"  # the toy has a T4's link and memory
MOST_TASKS = 1_000_000
MOST_LANES = max(gpu.fp32_lanes for gpu in SHOWN.values())
# Where the plot has points: whole numbers, about evenly spread over its logarithmic axis.
PLACES: tuple[int, ...] = tuple(sorted({round(float(MOST_TASKS) ** (place / 96)) for place in range(97)}))
VIRTUAL = "virtual: toy tasks"


class Phase(NamedTuple):
    """What a side does for a while: "serial", "copy in", "launch", "tasks", "copy out"; times in seconds."""

    name: str
    start: float
    length: float

    @property
    def end(self) -> float:
        return self.start + self.length


@dataclass(frozen=True)
class Side:
    """One of the two, from its start to its end."""

    tasks: int
    lanes: int
    phases: tuple[Phase, ...]

    @cached_property
    def seconds(self) -> float:
        return self.phases[-1].end

    @property
    def rounds(self) -> int:
        return -(-self.tasks // self.lanes)

    def spent(self, *names: str) -> float:
        """Seconds in the phases of these names."""
        return math.fsum(phase.length for phase in self.phases if phase.name in names)

    def phase(self, time: float) -> str:
        """The name of what it does at `time`, "" at the end."""
        return next((phase.name for phase in self.phases if time < phase.end), "")

    def done(self, time: float) -> int:
        """Tasks that are computed at `time`."""
        tasks = next(phase for phase in self.phases if phase.name == "tasks")
        if time >= tasks.end:
            return self.tasks
        rounds = math.floor((time - tasks.start) / tasks.length * self.rounds + 1e-9)
        return min(max(0, rounds) * self.lanes, self.tasks)

    def working(self, time: float) -> int:
        """Lanes that have a task at `time`."""
        return min(self.lanes, self.tasks - self.done(time)) if self.phase(time) == "tasks" else 0


@dataclass(frozen=True)
class Contest(Result):
    """The tasks, the two that race, and the moment at which they are looked at."""

    gpu: str
    tasks: int
    cores: int
    simd: int  # lanes of a core that the program uses
    lanes: int  # of the GPU
    ratio: float  # of the CPU's clock over the GPU's
    kilobytes: int  # that a task reads, and writes; the GPU copies them there and back
    serial: int  # percent of the work that is done by one CPU lane before the rest
    launch: int  # µs of a kernel launch
    time: int  # percent of the slower one's time

    def __post_init__(self) -> None:
        if self.lanes % WARP:
            raise ValueError(f"lanes is {self.lanes}; it must be a multiple of {WARP}: a warp has {WARP} threads")

    @property
    def share(self) -> float:
        """Of the work that no second lane can help with."""
        return self.serial / 100

    @property
    def warps(self) -> int:
        return self.lanes // WARP

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self.time / 100 * max(self.cpu.seconds, self.gpu_side.seconds)

    def side(self, name: str, tasks: int) -> Side:
        """The "cpu", the same cores with a task on each "simd" lane, or the "gpu", at so many tasks."""
        nbytes, found = tasks * self.kilobytes * 1000, [("serial", tasks * TASK * self.share)]  # on the CPU
        lanes = self.lanes if name == "gpu" else self.cores * (CORE_LANES if name == "simd" else self.simd)
        compute = -(-tasks // lanes) * TASK * (1 - self.share)
        if name == "gpu":
            reached = rates.rates_of(LIKE if self.gpu == TOY else self.gpu)
            copy = reached.copy_us * 1e-6 + nbytes / (reached.pinned_gbps * 1e9) if nbytes else 0.0
            work = ("tasks", max(compute * self.ratio, nbytes / reached.memory_rate))
            found += [("copy in", copy), ("launch", self.launch * 1e-6), work, ("copy out", copy)]
        else:
            found.append(("tasks", max(compute, nbytes / CPU_BANDWIDTH)))
        start, phases = 0.0, []
        for phase, length in found:
            if length:
                phases.append(Phase(phase, start, length))
                start += length
        return Side(tasks, lanes, tuple(phases))

    @cached_property
    def cpu(self) -> Side:
        return self.side("cpu", self.tasks)

    @cached_property
    def simd_cpu(self) -> Side:
        return self.side("simd", self.tasks)

    @cached_property
    def gpu_side(self) -> Side:
        return self.side("gpu", self.tasks)

    @property
    def speedup(self) -> float:
        """The CPU's time over the GPU's."""
        return self.cpu.seconds / self.gpu_side.seconds

    @property
    def amdahl(self) -> float:
        """What no number of lanes gets beyond, over one lane of the CPU; inf if nothing is serial."""
        return 1 / self.share if self.share else math.inf

    def over_one_lane(self, tasks: int, side: str) -> float:
        """Speed-up of "cpu", "simd" or "gpu" over one lane of the CPU, for so many tasks."""
        return tasks * TASK / self.side(side, tasks).seconds

    @cached_property
    def curves(self) -> dict[str, list[float]]:
        """`over_one_lane` of each, at each of `PLACES`."""
        return {side: [self.over_one_lane(tasks, side) for tasks in PLACES] for side in ("cpu", "gpu")}

    @cached_property
    def crossover(self) -> int | None:
        """From about so many tasks on the GPU is ahead, up to `MOST_TASKS`; None where it is not ahead in the end."""

        def ahead(tasks: int) -> bool:
            return self.over_one_lane(tasks, "gpu") > self.over_one_lane(tasks, "cpu")

        lead = [gpu > cpu for cpu, gpu in zip(self.curves["cpu"], self.curves["gpu"], strict=True)]
        behind = next((place for place in reversed(range(len(PLACES))) if not lead[place]), -1)
        if behind == len(PLACES) - 1:
            return None
        low, high = PLACES[behind] if behind >= 0 else 0, PLACES[behind + 1]
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if ahead(middle) else (middle, high)
        return high

    @property
    def crossing(self) -> str:
        """`crossover` in words: the GPU is …"""
        if self.crossover is None:
            return "never ahead, up to a million tasks"
        if self.crossover == 1:
            return "ahead from the first task"
        return f"ahead from about {float(f'{self.crossover:.2g}'):,.0f} tasks"

    def doing(self, side: Side) -> str:
        """In words, what the side is at now."""
        name = side.phase(self.now)
        if name == "tasks":
            return f"{side.working(self.now):,} at work"
        serial = "one lane, serial part" if side is self.cpu else "waiting for the CPU"
        return {"serial": serial, "copy in": "copying in", "launch": "launching", "copy out": "copying back"}.get(
            name, "finished"
        )

    @property
    def finding(self) -> str:
        speedup = self.speedup
        found = "CPU and GPU take about as long"
        if speedup >= 1.05:
            found = f"The GPU is {times(speedup)} as fast"
        elif speedup <= 1 / 1.05:
            found = f"The CPU is {times(1 / speedup)} as fast"
        gpu_seconds = self.gpu_side.seconds
        if min(side.spent("serial") / side.seconds for side in (self.cpu, self.gpu_side)) >= 0.5:
            return f"{found}; the serial part holds both below {times(self.amdahl)} one CPU lane"
        if speedup >= 1.05 and self.simd < CORE_LANES:
            slow, fast = ("slow ", "fast ") if self.ratio > 1 else ("", "")
            used = many(self.cpu.lanes, f"{fast}CPU lane")
            return f"The GPU’s {self.lanes:,} {slow}lanes are {times(speedup)} as fast as {used}"
        if speedup >= 1.05:
            return found if self.crossover is None else f"{found}; it is {self.crossing}"
        beside = self.gpu_side.spent("copy in", "launch", "copy out")
        if beside >= self.gpu_side.spent("tasks"):
            part = "nearly all" if beside >= 0.995 * gpu_seconds else percent(beside / gpu_seconds)
            return f"{found}; copies and launch are {part} of the GPU’s time"
        return f"{found}; a lane of the GPU is {self.ratio:g} times slower" if self.ratio > 1 else found

    def rows(self) -> list[Row]:
        cpu, gpu = self.cpu, self.gpu_side
        source = "" if self.gpu == TOY else "recorded: data sheet"
        link = f"virtual: {LIKE}’s link" if self.gpu == TOY else "virtual: its link"
        one = self.tasks * TASK
        limit = f"{times(self.amdahl)}, {self.serial}% is serial" if self.serial else "none, nothing is serial"
        rows = [
            ("tasks", f"{self.tasks:,}", ""),
            ("CPU lanes", f"{count(self.cores, 'core')} × {UNITS} units × {UNIT} = {self.cores * CORE_LANES:,}", ""),
            ("CPU lanes used", f"{count(self.cores, 'core')} × {self.simd} = {cpu.lanes:,}", ""),
            ("GPU lanes", f"{self.lanes:,} = {many(self.warps, 'warp')} of {WARP}", source),
            ("CPU, time", duration(cpu.seconds), VIRTUAL),
            ("CPU with all its lanes, time", duration(self.simd_cpu.seconds), VIRTUAL),
            ("GPU, time", duration(gpu.seconds), VIRTUAL),
            ("of it, copies", duration(gpu.spent("copy in", "copy out")), link),
            ("of it, launch", duration(gpu.spent("launch")), ""),
            ("GPU over CPU", times(self.speedup), VIRTUAL),
            ("CPU over one of its lanes", times(one / cpu.seconds), VIRTUAL),
            ("GPU over one CPU lane", times(one / gpu.seconds), VIRTUAL),
            ("Amdahl’s limit for both", limit, ""),
            ("the GPU is", self.crossing, VIRTUAL),
        ]
        for name, side in (("CPU", cpu), ("GPU", gpu)):
            done = side.done(self.now)
            words = f"{done:,} done = {percent(done / self.tasks)}, {self.doing(side)}"
            rows.append((f"{name} after {duration(self.now)}", words, VIRTUAL))
        return rows


def times(factor: float) -> str:
    """`2.1 ×`, `85 ×`."""
    return f"{factor:,.0f} ×" if factor >= 9.95 else f"{factor:.2g} ×"


def limits(values: Mapping[str, Any]) -> dict[str, Limit]:
    """A preset's lanes; the toy's are free."""
    if values["gpu"] not in SHOWN:
        return {"lanes": Limit(WARP, MOST_LANES, "")}
    lanes = SHOWN[values["gpu"]].fp32_lanes
    return {"lanes": Limit(lanes, lanes, f"{values['gpu']} has {lanes:,} lanes")}

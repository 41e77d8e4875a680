"""The report of a run: dataclasses of plain numbers that JSON can hold.

`report_text` formats it, `hints` derives advice. Sizes are in bytes and times in seconds.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..readings.source import Numbers
from .source_lines import Line
from .target import Ending

FORMAT = "gpulab run, 2"  # docs/virtual_gpu.md says what is in it


@dataclass(frozen=True)
class Share:
    """Bytes allocated from one line of the script and live at a given moment."""

    line: Line
    nbytes: int


@dataclass(frozen=True)
class Tensors:
    """`count` tensors alike, each of `nbytes`: made by an operation, at a line, in a module (the first of them).

    `shape` is None for a kernel's temporary memory and other blocks that are no operation's result.
    """

    nbytes: int
    count: int
    category: str
    shape: tuple[int, ...] | None
    dtype: str
    operation: str
    module: str
    line: Line | None


@dataclass(frozen=True)
class Breakdown:
    """What `allocated` bytes were at a moment: bytes by category, the largest first, and the largest tensors.

    `step` counts the steps of an optimizer, from 1; `phase` is "load", "forward", "backward", "optimizer" or
    "evaluation", in which an `operation` of a `module` then ran; "" where that is not known.
    """

    step: int
    phase: str
    operation: str
    module: str
    allocated: int
    categories: tuple[tuple[str, int], ...]
    largest: tuple[Tensors, ...]


@dataclass(frozen=True)
class Tried:
    """Memory in bytes that a run out of memory would have needed: its allocations, tried in other allocators.

    `until`: how far the run continued over the limit: to the end of the "step", of the script ("end"), or not ("").
    `gpu` is the smallest larger GPU of the table that holds it, None where none does; `used` the peak there, or without
    a limit, with the context and the allocator's cache. `expandable` is the peak with expandable segments on the GPU of
    the run, None where they do not help; `expands`: they were on in the run.
    """

    until: str
    allocated: int
    used: int
    gpu: str | None
    expands: bool
    expandable: int | None


@dataclass(frozen=True)
class Shortage:
    """One allocation that failed, in bytes: the request, and the state of the memory.

    `free` is what the driver had left after PyTorch's allocator had emptied its cache; `room` the most that the
    allocator may reserve. `tried` is set where the run ended with this error and its requests are known completely.
    """

    requested: int
    free: int
    allocated: int
    reserved: int
    room: int
    line: Line | None
    shares: tuple[Share, ...]
    tried: Tried | None = None
    breakdown: Breakdown | None = None

    @property
    def missing(self) -> int:
        """Bytes that the driver lacked."""
        return max(0, self.requested - self.free)

    @property
    def fragmented(self) -> bool:
        """True if there was room for it, but not in one piece."""
        return self.allocated + self.requested <= self.room


@dataclass(frozen=True)
class Memory:
    """The memory of one GPU over the run, in bytes.

    `peak_used` is the driver's: PyTorch's reserve and the context (None where it was not watched). `peak_line` is the
    line at which allocated memory peaked, `peak_shares` the lines that had allocated it; `recomputed` are the bytes of
    it that backward had recomputed for checkpoints. `breakdown` is of a peak at most 1 % lower, in an earlier step.
    """

    total: int
    peak_allocated: int
    peak_reserved: int
    peak_used: int | None
    end_allocated: int
    end_reserved: int
    retries: int
    failures: int
    peak_line: Line | None = None
    peak_shares: tuple[Share, ...] = ()
    recomputed: int = 0
    breakdown: Breakdown | None = None


@dataclass(frozen=True)
class Cycles:
    """Calls of `backward(create_graph=True)`, most of them at `line`, and the bytes that each leaves on average."""

    calls: int
    growth: int
    line: Line | None


@dataclass(frozen=True)
class GpuTime:
    """The modelled time of one virtual GPU: seconds from its first allocation until all was done, and the time of its
    kernels (without collectives, which are in `Steps.between`).

    `waited` is the time the host waited for GPUs, `launch` its average time for a kernel's launch; `flops` are those of
    matrix products, convolutions and attention, which took `flop_seconds`. `source` names the origin of the rates.
    """

    elapsed: float
    busy: float
    waited: float
    launch: float
    kernels: int
    flops: float
    flop_seconds: float
    source: str

    @property
    def launching(self) -> float:
        """The seconds that the host spent on launches."""
        return self.launch * self.kernels


@dataclass(frozen=True)
class Steps:
    """The steps of one `optimizer` ("" for those of a plan without one): their number, and the median seconds from one
    to the next on its GPU's clock.

    `parameters` counts the numbers it optimizes. `busy_share` is the part of the time between the first and
    the last step in which kernels ran, those of collectives too; `growth` the bytes by which allocated memory grew a
    step on average from the third on, 0 where there is no trend, `state_growth` those of the optimizer's own state.

    `waited` are the seconds of each step in `DataLoader.__next__`, `waited_share` their part of the time from the first
    step to the last; loading is timed on this machine, whatever the GPU; None without a DataLoader. `workers` are the
    loader's. `python` are the seconds of a step outside PyTorch's calls, including loading without workers (on this
    machine; None where the clock leaves them out).

    `parts` are the median seconds of a step on the GPU's clock in "data" (it waits for a loader), "forward" (with all
    that has no name), "backward" and "optimizer"; `samples` and `tokens` those of the loader's batches per second,
    where their form tells.
    """

    optimizer: str
    parameters: int
    device: str
    count: int
    median: float | None = None
    busy_share: float | None = None
    growth: int = 0
    state_growth: int = 0
    python: float | None = None
    waited: float | None = None
    waited_share: float | None = None
    workers: int = 0
    between: Between | None = None
    parts: tuple[tuple[str, float], ...] = ()
    samples: float | None = None
    tokens: float | None = None


@dataclass(frozen=True)
class Between:
    """Communication between ranks in a step, averaged over `steps`: `seconds` in which kernels of collectives run,
    those in which no other kernel runs on this GPU (`exposed`), number of collectives, and bytes. In `waited` of the
    `seconds` this rank waits for a later one: the rank that waits least is the late one."""

    steps: int
    seconds: float
    exposed: float
    collectives: float
    nbytes: float
    waited: float = 0.0


@dataclass(frozen=True)
class Alone:
    """The same script on one GPU: the median seconds of a step, or why it is unknown. `skipped_ddp` counts the
    DistributedDataParallel modules, which did nothing there."""

    median: float | None
    why: str = ""
    skipped_ddp: int = 0


@dataclass(frozen=True)
class Gpu:
    """One GPU of the run."""

    index: int
    memory: Memory
    time: GpuTime | None = None
    shortage: Shortage | None = None


@dataclass(frozen=True)
class Planned:
    """What a plan adds to a report: `fits_on` has for each known GPU True if the steps, with the memory that they take
    here, would fit there, False if not, None where only a plan for that GPU can tell.

    `where` is the line at which memory peaks, with that of its forward pass; `largest` the largest batch that fits,
    None where it is not known, after `tried` trials. Both are found on request.
    """

    batch: int
    fits_on: tuple[tuple[str, bool | None], ...]
    where: str = ""
    largest: int | None = None
    tried: int = 0


@dataclass(frozen=True)
class Report:
    """A run: target, ending, GPUs, memory and time. `numbers` applies to all but `host_seconds` and the fields of
    `steps` that are this machine's.

    `gpu` is the name of a virtual GPU such as "T4", or a real one's product name. `rank` is None without torchrun; of
    `imagined` ranks on the topology `joined`, only this one ran.
    In shapes-only mode, `operations` counts shape computations, `remembered` those answered from the cache.
    `steps` are those of optimizers on the GPU, `host_steps` counts those of the others. `ended_at` is the script's line
    at SIGTERM; `waits_in` names the operation in which this rank waited at its end, and for which ranks.
    `skipped_ddp` counts DistributedDataParallel modules that did nothing. `plan` is None for a run.
    """

    name: str
    argv: tuple[str, ...]
    ending: Ending
    gpu: str
    numbers: Numbers
    shapes_only: bool
    gpus: tuple[Gpu, ...]
    steps: tuple[Steps, ...]
    host_seconds: float
    rank: int | None = None
    world_size: int = 1
    imagined: bool = False
    joined: str = ""
    tflops: tuple[tuple[str, float], ...] = ()
    torch: str = ""
    operations: int = 0
    remembered: int = 0
    notes: tuple[str, ...] = ()
    host_steps: int = 0
    alone: Alone | None = None
    cycles: Cycles | None = None
    ended_at: Line | None = None
    waits_in: str = ""
    skipped_ddp: int = 0
    plan: Planned | None = None

    @property
    def scaling(self) -> float | None:
        """Throughput of all ranks over that of one GPU, each with its own batch, where that is known.

        `world_size` would be perfect (weak scaling).
        """
        median = next((steps.median for steps in self.steps), None)
        if self.alone is None or self.alone.median is None or not median:
            return None
        return self.world_size * self.alone.median / median

    @property
    def trained(self) -> bool:
        """True if an optimizer took a step."""
        return bool(self.steps or self.host_steps)

    @property
    def used(self) -> tuple[Gpu, ...]:
        """The GPUs on which memory was requested."""
        return tuple(gpu for gpu in self.gpus if gpu.memory.peak_allocated or gpu.shortage)


def ran_out(report: Report) -> bool:
    """Return True if the run ended out of memory."""
    return report.ending.out_of_memory


def as_json(report: Report, verdict: str, hints: tuple[str, ...]) -> dict[str, Any]:
    """Return the report for JSON, with the sentences that were shown."""
    sentences = {"verdict": verdict, "hints": list(hints)}
    return {"format": FORMAT, **dataclasses.asdict(report), "scaling": report.scaling, **sentences}


def json_path(path: str, rank: int | None) -> Path:
    """Return the path of this rank's report: absolute, with the rank in its name under torchrun."""
    where = Path(path).absolute()  # the script may change the directory
    return where if rank is None else where.with_name(f"{where.stem}.rank{rank}{where.suffix}")

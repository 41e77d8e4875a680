"""Run a training step in shapes-only mode until its memory repeats, and measure it.

The caller chooses the GPU; out of memory passes through as PyTorch raises it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ..clock.timeline import Communication, communication
from ..gpu import VirtualGPU
from ..gpus.specs import Spec
from ..ranks.world import World
from . import tensor_roles
from .ledger import Ledger, Role
from .peak_line import StackRecorder, Where

Step: TypeAlias = Callable[[], Any]
Build: TypeAlias = Callable[[int], Step]

# The first step allocates persistent memory: optimizer state, scales. The second is the first steady one, and a third
# like it shows that it repeats; if it does not, this many steps are tried.
MOST_STEPS = 6


@dataclass(frozen=True)
class StepTime:
    """Times of a step by the virtual GPU's clock, in seconds: in all, and with kernels running."""

    seconds: float
    busy_seconds: float
    communication: Communication


@dataclass(frozen=True)
class Ranks:
    """The imagined ranks of a run, as `VirtualGPU` takes them."""

    ranks: int | None = None
    link: str | None = None
    nodes: int | None = None
    adapters: int | str | None = None


ALONE = Ranks()


@dataclass(frozen=True)
class Measured:
    """Result of a run; sizes in bytes.

    `at_peak` adds up to `peak`, the most allocated in a steady step; `highest` is the most allocated at any time since
    the start of build, `in_use` the most that the driver showed, of which `context` is the CUDA context. `growth`: the
    bytes that a step leaves allocated beyond the last one. In the step, `retries` counts how often the allocator freed
    its cache to find room, and `traffic` is all that was allocated. `steady`: True if a further step was like it.
    `rates`: source of the clock's rates. `skipped_ddp`: number of DistributedDataParallel modules that did nothing.
    """

    at_peak: dict[Role, int]
    peak: int
    highest: int
    in_use: int
    context: int
    steady: bool
    growth: int
    retries: int
    traffic: int
    steps: int
    time: StepTime
    rates: str
    world: World | None
    skipped_ddp: int
    where: Where | None


@dataclass(frozen=True)
class _Record:
    """Measurements of one step; see `Measured`."""

    at_peak: dict[Role, int]
    peak: int
    end: int
    in_use: int
    retries: int
    traffic: int
    moment: Any
    events: tuple[Any, Any]
    busy_seconds: float
    communication: Communication

    @property
    def memory(self) -> tuple[int, int, int]:
        return self.peak, self.end, self.in_use


def measure_step(
    build: Build,
    batch: int,
    spec: Spec,
    *,
    where: bool,
    warned: set[str],
    ranks: Ranks = ALONE,
    skips_ddp: bool = False,
) -> Measured:
    """Run `build(batch)` and its step on one virtual GPU with `spec`, the first of `ranks`.

    With `skips_ddp`, DistributedDataParallel does nothing: the step is that of a script without it. `warned` holds the
    warnings that were given already. Raises TypeError where build returns no function, torch.OutOfMemoryError where it
    does not fit; errors of build and step pass through.
    """
    scope = VirtualGPU(spec.name, compute=False, **dataclasses.asdict(ranks))
    scope.spec, scope.warned, scope.skips_ddp = spec, warned, skips_ddp
    with tensor_roles.existing_objects_protected(), torch.random.fork_rng(devices=[]), scope, _groups_ended():
        free, total = scope.devices[0].allocator.memory_info()
        ledger = Ledger(scope.devices[0], StackRecorder(_call.__code__) if where else None)
        step = build(batch)
        if not callable(step):
            raise TypeError(
                f"build({batch}) must return the step, a function without arguments that does one training step, "
                f"not {step!r:.80} ({type(step).__name__})"
            )
        with tensor_roles.roles_tracked(ledger):
            _call(step)
        records = [_record(step, scope, ledger, where)]
        while len(records) < 2 or (records[-1].memory != records[-2].memory and len(records) < MOST_STEPS - 1):
            records.append(_record(step, scope, ledger, where))
        torch.cuda.synchronize()
        steady = records[-1].memory == records[-2].memory
        chosen = records[-1] if steady else max(records, key=lambda record: record.peak)
        return Measured(
            at_peak=chosen.at_peak,
            peak=chosen.peak,
            highest=ledger.highest,
            in_use=max(ledger.in_use, total - free),
            context=total - free,
            steady=steady,
            growth=min(b.end - a.end for a, b in itertools.pairwise(records)),
            retries=chosen.retries,
            traffic=chosen.traffic,
            steps=1 + len(records),
            time=StepTime(
                chosen.events[0].elapsed_time(chosen.events[1]) / 1e3, chosen.busy_seconds, chosen.communication
            ),
            world=scope.world,
            skipped_ddp=scope.skipped_ddp,
            rates=scope.rates.source,
            where=None if chosen.moment is None else chosen.moment.where(),
        )


@contextlib.contextmanager
def _groups_ended() -> Iterator[None]:
    """Destroy process groups that build has made; existing ones stay."""
    import torch.distributed as dist

    there = dist.is_available() and dist.is_initialized()
    try:
        yield
    finally:
        if dist.is_available() and not there and dist.is_initialized():
            dist.destroy_process_group()


def _record(step: Step, scope: VirtualGPU, ledger: Ledger, where: bool) -> _Record:
    """Run the step and record its memory and time."""
    allocator, clock = scope.devices[0].allocator, scope.clock
    # For the lines of the forward pass; there are no values to check.
    anomalies = torch.autograd.set_detect_anomaly(True, check_nan=False) if where else contextlib.nullcontext()
    events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    retries, busy = allocator.memory_stats()["num_alloc_retries"], clock.busy(0)
    with anomalies, tensor_roles.roles_tracked(ledger), scope.timeline() as timeline:
        ledger.begin()
        events[0].record()
        _call(step)
        events[1].record()
        ledger.settle()
        tensor_roles.assign_roles(ledger)
    return _Record(
        at_peak=ledger.at_the_peak(),
        peak=ledger.peak,
        end=ledger.total,
        in_use=ledger.in_use,
        retries=allocator.memory_stats()["num_alloc_retries"] - retries,
        traffic=ledger.traffic,
        moment=ledger.seen,
        events=events,
        busy_seconds=clock.busy(0) - busy,
        communication=communication(timeline.spans),
    )


def _call(step: Step) -> None:
    step()  # its result is dropped, as a training loop drops it

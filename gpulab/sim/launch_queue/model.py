"""The host launches kernels, the GPU works them off: a few training steps on the virtual GPU's own clock.

Which calls the steps make, and what the clock made of them. It draws nothing, and has no times of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate

from virtualgpu.clock import hosts, rates
from virtualgpu.clock.clock import Clock, DeviceClock, Engine, Span

STEPS = 6
FUSED = 4  # of so many kernels in a row the first is a product and stays, the others become one
MODE_NAMES = {
    "eager": "eager",
    "compile": "torch.compile",
    "graph": "CUDA graph",
    "both": "compile and CUDA graph",
}
MODES = tuple(MODE_NAMES)
# What a kernel does where a GPU is chosen: x + y of two fp32 tensors; two are read, one is written.
SHAPE = (512, 1024)
ADDITION_BYTES = 3 * 4 * SHAPE[0] * SHAPE[1]
GPUS = ("T4", "RTX4090", "L4", "A100-80", "H100", "H200", "B200")


def addition_us(gpu: str) -> int:
    """What adding two tensors of `SHAPE` takes on a GPU, in whole microseconds."""
    reached = rates.rates_of(gpu)
    rate = reached.l2_rate if reached.l2_holds >= ADDITION_BYTES else reached.memory_rate  # again and again
    return round((ADDITION_BYTES / rate + reached.kernel_s) * 1e6)


@dataclass(frozen=True)
class Work:
    """What is launched. Times in microseconds.

    `item`: after how many steps the host reads the loss, 0 for never; `filling`: whether one kernel fills the GPU, else
    a quarter of it; `mode`: one of `MODES`.
    """

    launch: int
    kernel: int
    kernels: int
    item: int
    streams: int
    filling: bool
    mode: str
    gpu: str = "T4"  # whose other rates count

    @cached_property
    def durations(self) -> tuple[float, ...]:
        """Seconds of each kernel of a step, after fusing.

        Of operations on two tensors each reads two and writes one: m of them in a row move 3m tensors, and as one
        kernel m + 2.
        """
        each = self.kernel * 1e-6
        if self.mode not in ("compile", "both"):
            return (each,) * self.kernels
        whole, rest = divmod(self.kernels, FUSED)
        groups = [FUSED] * whole + ([rest] if rest else [])
        return tuple(
            seconds for group in groups for seconds in (each, *([each * (group + 1) / 3] if group > 1 else []))
        )

    @property
    def launches(self) -> int:
        """Launches of a step."""
        return 1 if self.mode in ("graph", "both") else len(self.durations)


@dataclass(frozen=True)
class Run:
    """What happened. Seconds since the first launch began."""

    launches: tuple[tuple[float, float], ...]  # the host's time in each
    kernels: tuple[tuple[float, float], ...]  # as launched; of a CUDA graph all kernels of a stream in one
    streams: tuple[int, ...]  # of each kernel
    steps: tuple[int, ...]  # of each kernel, from 0
    items: tuple[tuple[float, float], ...]  # the host waits for a value
    full: tuple[tuple[float, float], ...]  # the host waits because the launch queue is full
    copies: tuple[tuple[float, float], ...]
    unsynchronised: float  # what a timer reads that stops after the last launch
    end: float  # what it reads after a synchronize

    def behind(self, moment: float) -> float:
        """How much work the GPU has been given and has not done, in seconds until it is."""
        done = max(
            (end for (_, at), (_, end) in zip(self.launches, self.kernels, strict=True) if at <= moment), default=0
        )
        return max(0.0, done - moment)

    @cached_property
    def backlog(self) -> tuple[tuple[float, float], ...]:
        """At the end of each launch, how much work the GPU has before it."""
        ends = accumulate((end for _, end in self.kernels), max)
        return tuple((at, end - at) for (_, at), end in zip(self.launches, ends, strict=True))

    @cached_property
    def most(self) -> float:
        """The most of it."""
        return max(behind for _, behind in self.backlog)


class Apart(Engine):
    """An engine with room for all that comes: kernels of several streams, each a quarter of the GPU."""

    __slots__ = ()

    def take(self, ready: float, seconds: float, now: float) -> float:
        return ready


@lru_cache(maxsize=8)
def run(work: Work) -> Run:
    """`STEPS` steps, each loss after `work.item` of them read with `.item()`; a synchronize at the end."""
    spans: list[Span] = []
    unsynchronised, end = _steps(work, spans)
    return _as_run(spans, unsynchronised, end)


@lru_cache(maxsize=64)
def seconds(work: Work) -> float:
    """How long these steps take, the synchronize included; cheaper than a `run`."""
    return _steps(work, None)[1]


def _steps(work: Work, record: list[Span] | None) -> tuple[float, float]:
    clock = Clock(1, replace(rates.rates_of(work.gpu), host=hosts.host_with_launch_time(float(work.launch))))
    clock.record = record
    gpu = clock.devices[0]
    if not work.filling:
        gpu.compute = Apart()
    for stream in range(1, work.streams):
        gpu.hold(stream, 0.0)
    step = _graph if work.mode in ("graph", "both") else _launched
    for number in range(STEPS):
        step(work, gpu, str(number))
        if work.item and (number + 1) % work.item == 0:
            gpu.copy(0, 8, "to host", pinned=True, wait=True)
    unsynchronised = clock.host
    clock.record = None
    gpu.synchronize()
    return unsynchronised, clock.host


def _launched(work: Work, gpu: DeviceClock, name: str) -> None:
    """One step, kernel by kernel, dealt to the streams, which begin and end the step together."""
    if work.streams > 1:
        begin = gpu.mark(0)
        for stream in range(1, work.streams):
            gpu.hold(stream, begin)
    for index, seconds in enumerate(work.durations):
        gpu.kernel(index % work.streams, seconds, name)
    for stream in range(1, work.streams):
        gpu.hold(0, gpu.mark(stream))


def _graph(work: Work, gpu: DeviceClock, name: str) -> None:
    """One step as one launch; its streams are branches of the graph."""
    for stream in range(1, work.streams):
        gpu.hold(stream, gpu.streams[0])
    launch: float | None = None
    for stream in range(work.streams):
        seconds = sum(work.durations[stream :: work.streams])
        if seconds:
            gpu.kernel(stream, seconds, name, host_seconds=launch)
            launch = 0.0  # the launch is that of the whole graph
    for stream in range(1, work.streams):
        gpu.hold(0, gpu.streams[stream])


def _as_run(spans: list[Span], unsynchronised: float, end: float) -> Run:
    found: dict[str, list[tuple[float, float]]] = {"launch": [], "kernels": [], "item": [], "full": [], "to host": []}
    streams, steps = [], []
    for span in spans:
        kind = span.where
        if kind == "host":
            kind = "full" if "full" in span.name else "item" if "copy" in span.name else "launch"
        elif kind == "kernels":
            streams.append(span.stream)
            steps.append(int(span.name))
        found[kind].append((span.start, span.start + span.seconds))
    # a launch that found the queue full ends, for the clock, after that wait: the wait is shown for itself
    starts = sorted(start for start, _ in found["full"])
    launches = []
    for start, stop in found["launch"]:
        if starts and start <= starts[0] < stop:
            stop = starts.pop(0)
        launches.append((start, stop))
    return Run(
        launches=tuple(launches),
        kernels=tuple(found["kernels"]),
        streams=tuple(streams),
        steps=tuple(steps),
        items=tuple(found["item"]),
        full=tuple(found["full"]),
        copies=tuple(found["to host"]),
        unsynchronised=unsynchronised,
        end=end,
    )

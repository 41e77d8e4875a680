"""Records one call: launches and waits of the host, kernels and copies of one GPU, real or virtual."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from virtualgpu.clock.clock import Span
from virtualgpu.clock.rates import Rates
from virtualgpu.readings import counters
from virtualgpu.readings.counters import DeviceLike, Gpu
from virtualgpu.readings.source import Numbers, numbers_of

from ..calls import check_function, check_result

_CALL = "gpulab.timing call"  # marks the call among the profiler's events
_LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cudaMemcpy", "cudaMemset", "ncclLaunch")
_COPIES = ("Memcpy HtoD", "Memcpy DtoH", "copy to ")


@dataclass(frozen=True)
class Event:
    """Something that takes time: `start_ms` counts from the start of the call; `stream` is None for the host's.

    `nbytes`, `flops` and `bound` ("memory", "compute", "launch", "link" or "ranks") are 0 and "" where unknown.
    """

    kind: Literal["launch", "wait", "kernel", "copy"]
    name: str
    stream: int | None
    start_ms: float
    ms: float
    nbytes: int = 0
    flops: float = 0.0
    bound: str = ""

    @property
    def end_ms(self) -> float:
        return self.start_ms + self.ms


@dataclass(frozen=True)
class Recording:
    """The events of one call, and its `ms` until host and GPU were done with it."""

    events: tuple[Event, ...]
    ms: float
    device: str
    numbers: Numbers

    @property
    def on_gpu(self) -> tuple[Event, ...]:
        return tuple(event for event in self.events if event.stream is not None)

    @property
    def source(self) -> str:
        return "virtual, from its clock" if self.numbers == "virtual" else "measured by torch.profiler"


def record(function: Callable[[], object], device: DeviceLike, who: str) -> Recording:
    """Call `function()` once, with idle GPUs at the start; return what host and GPU did. `who` is named in errors.

    Raises RuntimeError without a CUDA GPU, TypeError for no function without arguments; its exceptions pass through.
    """
    check_function(function, "function", who)
    gpu = counters.one_gpu(device, who, only="cuda")
    for number in range(gpu.counts.device_count()):
        gpu.counts.synchronize(number)
    return _profiled(function, gpu) if gpu.scope is None else _clocked(function, gpu, gpu.scope)


def _clocked(function: Callable[[], object], gpu: Gpu, scope: Any) -> Recording:
    """By the virtual GPU's clock, which records what takes time on it."""
    from virtualgpu.observe import observe

    clock, waits = scope.clock, set[tuple[float, float]]()
    begin = clock.host
    with scope.timeline() as timeline, observe(scope, wait=lambda _, seconds: waits.add((clock.host, seconds))):
        check_result(function(), "function", "record")
    events, end = [], clock.host
    for span in timeline.spans:
        waits_here = span.where == "host" and (span.start, span.seconds) in waits
        if span.where == "range" or (span.device != gpu.number and not waits_here):
            continue
        end = max(end, span.start + span.seconds)
        times = (span.start - begin) * 1e3, span.seconds * 1e3
        if span.where == "host":
            events.append(Event("wait" if waits_here else "launch", span.name, None, *times))
        else:
            kind: Literal["kernel", "copy"] = "kernel" if span.where in ("kernels", "ranks") else "copy"
            bound = _bound(span, clock.rates)
            name = span.name.partition(".")[0]  # without the overload, as the profiler names it
            events.append(Event(kind, name, span.stream, *times, span.nbytes, span.flops, bound))
    return Recording(tuple(events), (end - begin) * 1e3, gpu.name, numbers_of(gpu.scope))


def _bound(span: Span, rates: Rates) -> str:
    """What takes most of the time: the kernel's least time, its traffic, or else its arithmetic."""
    if span.where != "kernels":
        return "ranks" if span.where == "ranks" else "link"
    work = span.seconds - rates.kernel_s
    if work <= rates.kernel_s:
        return "launch"
    return "compute" if span.flops and rates.memory_seconds(span.nbytes) < 0.95 * work else "memory"


def _profiled(function: Callable[[], object], gpu: Gpu) -> Recording:
    """By PyTorch's profiler. A kernel has the name of the operation that launched it, where one did."""
    import torch
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, with_flops=True, acc_events=True) as profiler:
        with record_function(_CALL):
            check_result(function(), "function", "record")
        torch.cuda.synchronize(gpu.number)
    every = [event for event in profiler.events() or () if not event.is_async]
    call = next(e.time_range for e in every if e.name == _CALL and e.device_type == DeviceType.CPU)
    end, events = call.end, []
    launched: dict[tuple[str, float], list[tuple[str, float]]] = defaultdict(list)  # kernel -> operation, its flops
    for event in every:
        times = (event.time_range.start - call.start) / 1e3, event.time_range.elapsed_us() / 1e3
        if event.device_type == DeviceType.CPU:
            for number, kernel in enumerate(event.kernels):
                launched[kernel.name, round(kernel.duration, 2)].append(
                    (event.name.removeprefix("aten::"), 0.0 if number else float(event.flops or 0))
                )
            if call.start <= event.time_range.start < call.end and "Synchronize" in event.name:
                events.append(Event("wait", event.name, None, *times))
            elif event.name.startswith(_LAUNCHES):
                events.append(Event("launch", event.name, None, *times))
    for event in every:
        if (
            event.device_type != DeviceType.CUDA
            or event.device_index != gpu.number
            or getattr(event, "is_user_annotation", False)
        ):
            continue
        end = max(end, event.time_range.end)
        times = (event.time_range.start - call.start) / 1e3, event.time_range.elapsed_us() / 1e3
        by = launched[event.name, round(event.time_range.elapsed_us(), 2)]
        name, flops = by.pop(0) if by else (event.name, 0.0)
        copy = event.name.startswith(_COPIES)
        stream = int(event.device_resource_id)
        events.append(Event("copy" if copy else "kernel", event.name if copy else name, stream, *times, 0, flops))
    return Recording(tuple(events), (end - call.start) / 1e3, gpu.name, numbers_of(gpu.scope))

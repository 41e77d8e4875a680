"""PyTorch's profiler on a virtual GPU: kernels of the virtual clock in its events, tables and trace.

The profiler records what the host does, in this machine's real time. The clock's kernels and copies are added when the
events are read: each belongs to the operation that launched it, found by a mark that is set at the launch. What the
virtual GPU does inside an operation to compute values is left out: no real GPU shows it.

Times are those of the clock, as `time.perf_counter` tells them within a scope: launches and waits are the model's, and
what the host does between operations takes the time that it takes on this machine. An exported trace has one axis, on
which host and GPUs meet: the clock's own, where the host's work between operations counts only if the scope counts it.
"""

from __future__ import annotations

import bisect
import functools
import json
import os
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .. import own_code
from ..clock.clock import Clock, Span
from ..scope.patches import Patches
from ..scope.refusals import warn_once

if TYPE_CHECKING:
    from ..gpu import VirtualGPU

_MARK, _WORK = "gpulab mark ", "gpulab work"  # events of our own: a launch or a wait, and what is done for the GPU
_MEMORY = (
    "profile_memory=True: the profiler's columns of memory are those of this machine's processor, where the virtual "
    "GPU computes its values. What lies on the GPU: gpulab.memory.timeline(), or "
    "torch.cuda.memory._record_memory_history()."
)
_DISPATCH = "PythonDispatchMode"  # the way by which an operation comes to the virtual GPU
_CALLS = {
    "kernels": "cudaLaunchKernel",
    "ranks": "ncclLaunch",
    "to GPU": "cudaMemcpyAsync",
    "to host": "cudaMemcpyAsync",
}


class Axis:
    """From the profiler's time, in µs, to that of the clock.

    `marks` are (profiler's time, seconds of launches and waits, seconds of the host's own). Between two of them it goes
    evenly; before the first and after the last it stands still. The host's own time passes between `operations`, each
    (begin, end): what one takes until it reaches the virtual GPU, and after that, is not the host's.
    """

    def __init__(self, marks: Iterable[tuple[float, float, float]], operations: Sequence[tuple[float, float]]) -> None:
        self.real, self.virtual = list[float](), list[float]()
        begins, ends = sorted(begin for begin, _ in operations), sorted(end for _, end in operations)
        last, modelled_then, own_then = 0.0, 0.0, 0.0
        for at, modelled, own in sorted(marks):
            if self.real:
                begin = min(at, _next(begins, last, at))
                done = bisect.bisect_left(ends, begin)
                self._point(max(last, ends[done - 1] if done else last), modelled_then + own_then)
                if own > own_then:
                    self._point(begin, modelled_then + own)
            self._point(at, modelled + own)
            last, modelled_then, own_then = at, modelled, own

    def _point(self, at: float, seconds: float) -> None:
        self.real.append(at)
        self.virtual.append(1e6 * seconds)

    def __call__(self, at: float) -> float:
        place = bisect.bisect_right(self.real, at)
        if not 0 < place < len(self.real):
            return self.virtual[-1 if place else 0]
        (real, to), (virtual, end) = self.real[place - 1 : place + 1], self.virtual[place - 1 : place + 1]
        return virtual + (at - real) / max(to - real, 1e-9) * (end - virtual)


def _next(numbers: Sequence[float], after: float, otherwise: float) -> float:
    """The first of these, in order, that comes after."""
    place = bisect.bisect_right(numbers, after)
    return numbers[place] if place < len(numbers) else otherwise


class Seen(list[Span]):
    """Spans that a clock records while a profiler runs, each with a mark among the profiler's own events."""

    def __init__(self, clock: Clock, *, operations: bool = True) -> None:
        super().__init__()
        self.clock, self.operations = clock, operations  # True: show the host's operations, not only CUDA calls
        self.at: list[tuple[float, float]] = []  # at each mark the time of launches and waits, and the host's own
        self.marked: dict[int, int] = {}  # the number of a span, by its mark's
        self.waits: dict[int, tuple[int, str]] = {}  # by the mark before a wait: that after it, and its name
        self._outer: Any = None
        self._mine = threading.local()  # this thread's work for the GPU

    # -- while it runs -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        clock: Any = self.clock
        for kept in (self, self.at, self.marked, self.waits):  # of a cycle before: it has been read
            kept.clear()
        self._outer, clock.record = clock.record, self
        enter, leave, wait = clock.enter, clock.leave, clock.wait

        def entered() -> None:
            enter()
            self._end_work()
            self._mark()
            self._mine.work = _event(_WORK)
            self._mine.work.__enter__()

        def left() -> None:
            self._end_work()
            self._mark()
            leave()

        def waited(until: float, name: str = "wait") -> None:
            before = self._mark()
            wait(until, name)
            after = self._mark()
            if (called := _wait_call(name)) is not None:
                self.waits[before] = after, called

        clock.enter, clock.leave, clock.wait = entered, left, waited
        self._mark()

    def stop(self) -> None:
        clock: Any = self.clock
        self._end_work()
        del clock.enter, clock.leave, clock.wait
        clock.record = self._outer
        if self._outer is not None:
            self._outer.extend(self)

    def append(self, span: Span) -> None:
        if span.where in _CALLS:
            self.marked[self._mark()] = len(self)
        super().append(span)

    def _mark(self) -> int:
        number = len(self.at)
        own = self.clock.own
        self.at.append((self.clock.host - (own if self.clock.counts_host else 0.0), own))
        with _event(f"{_MARK}{number}"):
            return number

    def _end_work(self) -> None:
        work, self._mine.work = getattr(self._mine, "work", None), None
        if work is not None:
            work.__exit__(None, None, None)

    # -- when it is read ---------------------------------------------------------------------------------------------

    def among(self, events: Sequence[Any]) -> list[Any]:
        """Return the profiler's `events` without the virtual GPU's own work, and with kernels and copies."""
        from torch._C._autograd import DeviceType
        from torch.autograd.profiler_util import FunctionEvent

        marks = [(e.time_range.start, *self.at[_number(e.name)]) for e in events if e.name.startswith(_MARK)]
        threads: dict[int, list[Any]] = {}
        for event in events:
            threads.setdefault(event.thread, []).append(event)
        kept: list[Any] = []
        for of_thread in threads.values():
            kept += self._of_thread(of_thread)
        axis = Axis(marks, [(e.time_range.start, e.time_range.end) for e in kept if e.scope == 0])
        kept = [event for event in kept if self._shows(event.name)]  # the axis has been told by all of them
        for event in kept:
            event.time_range.start, event.time_range.end = axis(event.time_range.start), axis(event.time_range.end)
        for span in self:
            if span.where not in _CALLS:
                continue
            kept.append(
                FunctionEvent(
                    id=0,
                    name=span.name,
                    thread=span.stream,
                    start_us=span.start * 1e6,
                    end_us=(span.start + span.seconds) * 1e6,
                    device_type=DeviceType.CUDA,
                    device_index=span.device,
                    device_resource_id=span.stream,
                    input_shapes=[],
                    stack=[],
                    use_device="cuda",
                )
            )
        return kept

    def _of_thread(self, events: list[Any]) -> list[Any]:
        """Return the events of one thread that a real GPU's program would have; link launches to their operation."""
        kept, within, work_ends = [], list[Any](), -1.0
        at = {_number(e.name): e.time_range.start for e in events if e.name.startswith(_MARK)}
        for event in sorted(events, key=lambda e: (e.time_range.start, -e.time_range.end)):
            end = event.time_range.end
            while within and within[-1].time_range.end < end:
                within.pop()
            if event.name == _WORK:
                work_ends = max(work_ends, end)
            elif event.name.startswith(_MARK):
                if _number(event.name) in self.waits:
                    after, event.name = self.waits[_number(event.name)]
                    event.trace_name, event.time_range.end = event.name, at.get(after, end)
                    kept.append(event)
                    continue
                span = self._span(event.name)
                if span is not None:
                    event.name = event.trace_name = _CALLS[span.where]
                    kept.append(event)
                    if within:
                        within[-1].append_kernel(span.name, span.device, span.seconds * 1e6)
            elif end > work_ends and event.name != _DISPATCH and not _is_own(event.name):
                event.stack = [line for line in event.stack or [] if not _is_own(line)]
                kept.append(event)
                within.append(event)
        return kept

    def _shows(self, name: str) -> bool:
        """Return True if this recording includes the host's event of this name: calls of CUDA and NCCL always."""
        return self.operations or name.startswith(("cuda", "nccl"))

    def _span(self, mark: str) -> Span | None:
        number = self.marked.get(_number(mark))
        return None if number is None else self[number]

    def save(self, path: str) -> None:
        """Turn the trace at `path`, as the profiler has written it, into one in virtual time with all GPUs in it."""
        with open(path, encoding="utf-8") as file:
            trace = json.load(file)
        trace["traceEvents"] = self._in_virtual_time(trace["traceEvents"])
        trace["gpulab"] = "virtual times, predicted by a model; operations by the host's virtual clock"
        part = f"{path}.part"
        with open(part, "w", encoding="utf-8") as file:
            json.dump(trace, file)
        os.replace(part, path)

    def _in_virtual_time(self, events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        spans = sorted((e for e in events if e.get("ph") == "X"), key=lambda e: (e["ts"], -e["dur"]))
        marks = [(e["ts"], *self.at[_number(e["name"])]) for e in spans if e["name"].startswith(_MARK)]
        if not self.clock.counts_host:  # then the GPUs know nothing of the host's own time
            marks = [(at, modelled, 0.0) for at, modelled, _ in marks]
        own = _MARK, _WORK, _DISPATCH
        operations = [e for e in spans if e.get("cat") == "cpu_op" and not e["name"].startswith(own)]
        axis = Axis(marks, [(e["ts"], e["ts"] + e["dur"]) for e in operations])
        kept: list[dict[str, Any]] = []
        ends: dict[Any, float] = {}
        at = {_number(e["name"]): e["ts"] for e in spans if e["name"].startswith(_MARK)}
        for event in spans:
            start, end, name, thread = (
                event["ts"],
                event["ts"] + event["dur"],
                event["name"],
                (event["pid"], event["tid"]),
            )
            if name == _WORK:
                ends[thread] = max(ends.get(thread, -1.0), end)
                continue
            span = None
            if name.startswith(_MARK) and _number(name) in self.waits:
                after, called = self.waits[_number(name)]
                end = at.get(after, end)
                event |= {"name": called, "cat": "cuda_runtime"}
            elif name.startswith(_MARK):
                span = self._span(name)
                if span is None:
                    continue
                event |= {"name": _CALLS[span.where], "cat": "cuda_runtime"}
            elif end <= ends.get(thread, -1.0) or name == _DISPATCH or _is_own(name) or not self._shows(name):
                continue
            event |= {"ts": axis(start), "dur": axis(end) - axis(start)}
            kept.append(event)
            if span is not None:
                kept += _on_gpu(span, event)
        kept += [e for e in events if e.get("ph") == "M"]
        return kept + _names({(span.device, span.stream) for span in self if span.where in _CALLS})


def _on_gpu(span: Span, launch: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the kernel of this launch, and the arrow to it."""
    number = f"{span.device} {span.stream} {span.start}"
    to = {"pid": f"virtual cuda:{span.device}", "tid": span.stream, "ts": span.start * 1e6}
    about: dict[str, Any] = {"device": span.device, "stream": span.stream}
    if span.flops:
        about["flops"] = span.flops
    if span.nbytes:
        about["bytes"] = span.nbytes
    kind = "kernel" if span.where in ("kernels", "ranks") else "gpu_memcpy"
    arrow = {"id": number, "cat": "ac2g", "name": "ac2g"}
    return [
        {"ph": "X", "cat": kind, "name": span.name, **to, "dur": span.seconds * 1e6, "args": about},
        {"ph": "s", **arrow, "pid": launch["pid"], "tid": launch["tid"], "ts": launch["ts"]},
        {"ph": "f", "bp": "e", **arrow, **to},
    ]


def _names(streams: Iterable[tuple[int, int]]) -> list[dict[str, Any]]:
    found = []
    for device, stream in sorted(streams):
        of = {"ph": "M", "pid": f"virtual cuda:{device}", "tid": stream}
        found.append(of | {"name": "process_name", "args": {"name": f"virtual cuda:{device}"}})
        found.append(of | {"name": "thread_name", "args": {"name": f"stream {stream}"}})
    return found


def _wait_call(name: str) -> str | None:
    """The call of CUDA's that waits so; None where it is a part of another one: of a launch, or of a pageable copy."""
    if name == "event.synchronize":
        return "cudaEventSynchronize"
    if name == "synchronize":
        return "cudaDeviceSynchronize"
    inside = ": staging", ": the stream's work", "queue is full", "barrier", "statistics", "another stream uses"
    return None if name.endswith(inside) else "cudaStreamSynchronize"


def _number(mark: str) -> int:
    return int(mark[len(_MARK) :])


def _event(name: str) -> Any:
    import torch

    return torch._C._profiler._RecordFunctionFast(name)


@functools.cache
def _is_own(name: str) -> bool:
    """Return True if this Python frame, "path(line): function", is ours; its path may begin at a folder of sys.path."""
    file = name.partition("(")[0]
    paths = ((os.path.join(os.path.dirname(folder[:-1]), file), folder) for folder in own_code.folders())
    return any(path.startswith(folder) and os.path.exists(path) for path, folder in paths)


def install(gpu: VirtualGPU, patches: Patches) -> None:
    """Replace the functions that the profiler calls, while `gpu` is in force."""
    from torch.autograd import profiler

    kind: Any = profiler.profile
    own_init, own_start, own_exit = kind.__init__, kind._start_trace, kind.__exit__

    def __init__(self: Any, enabled: bool = True, *, use_device: str | None = None, **kwargs: Any) -> None:
        if use_device != "cuda":
            own_init(self, enabled, use_device=use_device, **kwargs)
            return
        # The CPU's activity also where only CUDA's is asked for: kernels are found by what launches them.
        operations, kwargs["use_cpu"] = kwargs.get("use_cpu", True), True
        if kwargs.get("profile_memory"):
            warn_once(gpu.warned, _MEMORY)
        own_init(self, enabled, use_device=None, **kwargs)
        self.use_device, self._seen = "cuda", Seen(gpu.clock, operations=operations)
        parse, export = self._parse_kineto_results, self.export_chrome_trace

        def _parse_kineto_results(*args: Any, **kwargs: Any) -> list[Any]:
            return self._seen.among(parse(*args, **kwargs))

        def export_chrome_trace(path: Any, *args: Any, **kwargs: Any) -> None:
            export(path, *args, **kwargs)
            self._seen.save(os.fspath(path))

        # Of this one profiler: it is read after the scope's end too.
        self._parse_kineto_results, self.export_chrome_trace = _parse_kineto_results, export_chrome_trace

    def _start_trace(self: Any) -> None:
        own_start(self)
        if hasattr(self, "_seen"):
            self._seen.start()

    def __exit__(self: Any, *error: Any) -> Any:
        result = own_exit(self, *error)
        if hasattr(self, "_seen"):
            self._seen.stop()
        return result

    for name, patched in (("__init__", __init__), ("_start_trace", _start_trace), ("__exit__", __exit__)):
        patches.set(kind, name, patched)

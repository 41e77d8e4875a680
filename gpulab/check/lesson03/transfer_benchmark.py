"""The check of a transfer benchmark: what stands inside the clock, what is left out, and the line through the times.

The timer that the student's function is given looks at each copy, and answers with times on a line drawn afresh.
In one run the times scatter about it, in such a way that least squares, weighted or not, still finds that very line.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...virtual.gpu import VirtualGPU
from ...virtual.operations import copies
from ..base import OPTIMIZERS, Trial, check
from ..wording import is_finite, is_number, show
from .common import COST, PINNED, scope

TOO_LARGE = 10**15  # bytes, more than any address space
_LEFT = 100 * 2**20  # bytes that are free on the GPU in the run that fills it
_HALF = (55_000_000, 60_000_000)  # bytes: one such size fits there, and two do not
NEAR = (1e-2, 5e-3)  # how near the latency and the bandwidth have to come
HALVES = (-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0)  # powers of bytes by which a row may be divided
_NOISE = 0.08  # of a time, at most, in the run whose times scatter
_NAMES = ("ms", "latency_us", "bandwidth_gbps")


class Broken(Exception):
    """Raised by a timer that fails for a reason of its own."""


@dataclass
class Seen:
    """What one call of the timed function did."""

    ops: list[str] = field(default_factory=list)
    copies: list[tuple[int, str, str, bool]] = field(default_factory=list)  # bytes, from, to, pinned
    onto_itself: bool = False
    waits: list[str] = field(default_factory=list)  # that the code asks for, by what for
    allocations: int = 0
    freed: int = 0  # segments of the allocator's that went back to the GPU
    pins: int = 0


class _Ops(TorchDispatchMode):
    """Notes operations, and copies with both ends."""

    def __init__(self, seen: Seen, ends: list[weakref.ref[torch.UntypedStorage]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen, self.ends = seen, ends

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        out = func(*args, **(kwargs or {}))
        self.seen.ops.append(name)
        if name in ("copy_", "_to_copy"):
            into, source = (args[0], args[1]) if name == "copy_" else (out, args[0])
            pinned = (source if into.is_cuda else into).is_pinned() if into.is_cuda or source.is_cuda else False
            self.seen.copies.append((into.nbytes, str(source.device), str(into.device), pinned))
            self.seen.onto_itself |= into.device == source.device and into.data_ptr() == source.data_ptr()
            self.ends += [weakref.ref(tensor.untyped_storage()) for tensor in (into, source)]
        return out


@contextlib.contextmanager
def counted_pins(refused: int = 0) -> Iterator[list[int]]:
    """The bytes of each storage that is pinned within the block; there is no room for one of `refused` bytes."""
    pins: list[int] = []
    own = copies.pin

    def noted(storage: Any, *, copied: bool) -> None:
        if storage.nbytes() == refused:
            raise RuntimeError("CUDA error: out of memory")  # of cudaHostAlloc
        pins.append(storage.nbytes())
        own(storage, copied=copied)

    copies.pin = noted
    try:
        yield pins
    finally:
        copies.pin = own


@contextlib.contextmanager
def asked_waits(gpu: VirtualGPU, names: list[str]) -> Iterator[None]:
    """What the host is told to wait for within the block: a copy that waits by itself is not told to."""
    with contextlib.ExitStack() as undo:
        for timer in gpu.clock.devices:
            synchronize = timer.synchronize

            def noted(stream: int | None = None, synchronize: Any = synchronize) -> None:
                names.append("synchronize")
                synchronize(stream)

            timer.synchronize = noted  # type: ignore[method-assign]
            undo.callback(delattr, timer, "synchronize")
        yield


class LineTimer:
    """A `timer` for the student's function: it looks at what `fn` does, and answers with times on a line."""

    def __init__(self, latency_ms: float, bytes_per_ms: float) -> None:
        self.latency_ms, self.bytes_per_ms = latency_ms, bytes_per_ms
        self.noise: dict[float, float] = {}  # ms, for a number of bytes
        self.seen: list[Seen] = []
        self.ends: list[weakref.ref[torch.UntypedStorage]] = []  # the memory of all sources and destinations
        self.gpu: VirtualGPU | None = None  # that in whose scope it is called

    def ms(self, nbytes: float) -> float:
        return self.latency_ms + nbytes / self.bytes_per_ms + self.noise.get(nbytes, 0.0)

    def scatter(self, sizes: list[int]) -> bool:
        """Let the times for `sizes` scatter; whether only lines through two of them are then far from the right one.

        The noise is at right angles to what a straight line can follow, with weights of 1, and of powers of the bytes
        and of t, of the fourth at most.
        """
        self.noise = {}
        x = torch.tensor(sizes, dtype=torch.float64)
        exact = torch.tensor([self.ms(size) for size in sizes], dtype=torch.float64)
        drawn = torch.tensor([random.choice((-1, 1)) * random.uniform(0.5, 1) for _ in sizes], dtype=torch.float64)
        t = exact
        for _ in range(50):
            rows = torch.stack([*(x**power for power in range(-4, 4)), 1 / t, x / t, 1 / t**2, x / t**2])
            rows = rows * exact  # of the noise as a part of the time
            basis = torch.linalg.qr((rows / rows.norm(dim=1, keepdim=True)).T).Q
            part = drawn - basis @ (basis.T @ drawn)
            t = exact * (1 + _NOISE * part / part.abs().max())
        self.noise = dict(zip(sizes, (t - exact).tolist(), strict=True))
        ordered = sorted(sizes)
        return all(self._fitted(x, t, by) for by in (*(x**half for half in HALVES), t.sqrt(), t)) and all(
            self._off(*pair) for pair in (sizes[:2], sizes[-2:], ordered[:2], ordered[-2:], ordered[:: len(sizes) - 1])
        )

    def _fitted(self, x: torch.Tensor, t: torch.Tensor, by: torch.Tensor) -> bool:
        """Whether least squares, each row divided by `by`, come near enough to the right line."""
        rows = torch.stack([1 / by, x * 1e-6 / by], dim=1)
        latency, slope = torch.linalg.lstsq(rows, (t / by)[:, None]).solution.flatten().tolist()
        return bool(
            abs(slope * 1e-6 * self.bytes_per_ms - 1) < 0.7 * NEAR[1]
            and abs(latency / self.latency_ms - 1) < 0.7 * NEAR[0]
        )

    def _off(self, a: int, b: int) -> bool:
        """Whether the line through these two is far off."""
        slope = (self.ms(b) - self.ms(a)) / (b - a)
        latency = self.ms(a) - slope * a
        return abs(slope * self.bytes_per_ms - 1) > 0.015 or abs(latency / self.latency_ms - 1) > 0.03

    def __call__(self, fn: Callable[[], object]) -> float:
        if not callable(fn):
            raise TypeError("timer wants a function without arguments, such as lambda: there.copy_(here)")
        assert self.gpu is not None
        freed = _stat(_SEGMENTS_FREED)
        for _ in range(2):  # the second is the one that counts, as after a warm-up
            seen, allocated = Seen(), _stat(_ALLOCATIONS)
            with counted_pins() as pins, asked_waits(self.gpu, seen.waits), _Ops(seen, self.ends):
                fn()
            seen.pins = len(pins)
            seen.allocations = _stat(_ALLOCATIONS) - allocated
        seen.freed = _stat(_SEGMENTS_FREED) - freed  # there is something to free in the first call only
        self.seen.append(seen)
        return self.ms(sum(nbytes for nbytes, *_ in seen.copies) or len(self.seen))


_ALLOCATIONS, _SEGMENTS_FREED = "allocation.all.allocated", "segment.all.freed"


def _stat(name: str) -> int:
    """One of the allocator's numbers, of all GPUs together."""
    return sum(int(torch.cuda.memory_stats(i).get(name, 0)) for i in range(torch.cuda.device_count()))


def held() -> int:
    """Bytes on all GPUs together."""
    return sum(map(torch.cuda.memory_allocated, range(torch.cuda.device_count())))


def draw_timer() -> LineTimer:
    return LineTimer(random.uniform(0.004, 0.04), random.uniform(2, 20) * 1e6)


def draw_sizes(count: int) -> list[int]:
    """Different sizes of up to 4 MB, in no order."""
    sizes = {
        round(10 ** random.uniform(4 + step * 2.6 / count, 4 + (step + 0.8) * 2.6 / count)) for step in range(count)
    }
    return random.sample(sorted(sizes), len(sizes))


def draw_scatter() -> tuple[LineTimer, list[int]]:
    """A timer whose times scatter, and its sizes: several of each kind, so that none decides alone."""
    while True:
        timer = draw_timer()
        sizes = {round(random.uniform(*ends) * 1e4) for ends in ((1, 9), (10, 90), (200, 400)) for _ in range(6)}
        mixed = random.sample(sorted(sizes), len(sizes))
        if len(mixed) == 18 and timer.scatter(mixed):
            return timer, mixed


@dataclass(frozen=True)
class Case:
    """One run: what is asked for, and which of the sizes fit. `place` is where a copy goes on this machine of two GPUs,
    whose first is the current one; `refused` a size that cannot be pinned."""

    sizes: list[int]
    fits: list[int]
    pinned: bool
    device: str
    place: str
    refused: int = 0
    timer: LineTimer = field(default_factory=lambda: draw_timer())


def cases() -> list[Case]:
    some, others, more = draw_sizes(4), draw_sizes(5), draw_sizes(2)
    first, last = random.sample(range(*_HALF), 2)
    others = [first, *others, last]  # apart, so that a loop that holds the buffers of two sizes has room
    full = [*others[:3], 120_000_000, *others[3:]]
    timer, many = draw_scatter()
    refused = random.randrange(*_HALF)
    return [
        Case(some, some, True, "cuda:1", "cuda:1"),
        Case(full, others, False, "cuda", "cuda:0"),
        Case([more[0], TOO_LARGE, *more[1:]], more, True, "cpu", "cpu"),
        Case([*many[:4], refused, *many[4:]], many, True, "cuda:0", "cuda:0", refused, timer),
    ]


def explain(error: str) -> str:
    if "CUDA error: out of memory" in error:
        return (
            "the host has no room for page-locked memory of this size: pin_memory() asks for memory too, and belongs "
            "into the try"
        )
    if "Invalid device string" in error:
        return "torch.device('cuda') has no number, and means the current GPU: hand device on as it is"
    if "ZeroDivisionError" in error or "number of data points" in error:
        return "two sizes may be all that fit, and make a line: what estimates its errors needs a third"
    if "out of memory" in error:
        return (
            "a size that does not fit on the GPU is left out, and the benchmark goes on: catch torch.OutOfMemoryError"
        )
    if "allocate memory" in error or "DefaultCPUAllocator" in error or "not enough memory" in error:
        return (
            "the host has no room for this size: its allocator raises a plain RuntimeError, which is to be caught as "
            "well, so that the size is left out"
        )
    if "timer wants a function" in error:
        return "the copy was made before timer could call it: pass a function, timer(lambda: there.copy_(here))"
    return ""


@check(
    lesson=3,
    says="one copy inside the clock, sizes that do not fit left out, latency and bandwidth from the line",
    imports=[OPTIMIZERS],
)
def transfer_benchmark(student: Any, trial: Trial) -> None:
    """Check a function of (sizes, pinned, device, timer) that gives (ms, latency_us, bandwidth_gbps)."""
    trial.function(student, ("sizes", "pinned", "device", "timer"))
    for case in cases():
        timer = case.timer
        with scope(compute=False, count=2) as gpu:
            filler = _fill(gpu) if case.device == "cuda" else None
            before, timer.gpu = held(), gpu
            args = (list(case.sizes), case.pinned, torch.device(case.device), timer)
            with counted_pins(case.refused) as pins:
                got = trial.call(student, *args, explain=explain)
            left = held_since(before)
            if any(end() is not None for end in timer.ends):
                gc.collect()
            buffers = sum(end() is not None for end in timer.ends)
            del filler
        judge_form(trial, got)
        judge_copies(trial, case, timer)
        trial.expect(
            not pins or case.device != "cpu",
            "memory is pinned where there is no GPU",
            expected="ordinary memory, whatever pinned says",
            got="a call of pin_memory",
            likely="without a GPU pin_memory() raises an error: ask device.type first",
            read=PINNED,
        )
        judge_sizes(trial, case, got[0])
        judge_times(trial, case, timer, got[0])
        judge_line(trial, case, timer, got)
        trial.expect(
            left <= 0,
            "memory is still held on the GPU when the function has returned",
            expected="no buffer alive: the next job needs the room",
            got=f"{left:,} bytes more than before",
            likely="buffers are kept in a list, a global or on the function: one for each size, and let it go",
            read=COST,
        )
        trial.expect(
            not buffers,
            "memory is still held on the host when the function has returned",
            expected="no buffer alive: page-locked memory is the scarcest of all",
            got=f"{buffers} buffers still alive",
            likely="the sources are tensors too, and on the CPU both buffers are: none in a list, a global or on the "
            "function",
            read=COST,
        )
    judge_other_errors(student, trial)


def held_since(before: int) -> int:
    """Bytes held on the GPU beyond `before`, when rubbish has been cleared away if need be."""
    if held() > before:
        gc.collect()
    return held() - before


def _fill(gpu: VirtualGPU) -> torch.Tensor:
    """Take all of the GPU's memory but a little."""
    free, _ = torch.cuda.mem_get_info()
    return torch.empty(free - _LEFT, dtype=torch.uint8, device="cuda")


def judge_form(trial: Trial, got: Any) -> None:
    right = isinstance(got, tuple) and len(got) == 3 and isinstance(got[0], dict)
    trial.expect(
        right,
        "the result does not have the form that was asked for",
        expected="a tuple (ms, latency_us, bandwidth_gbps), of which ms is a dict from bytes to milliseconds",
        got=show(got),
        likely="the function ends without a return" if got is None else "",
    )
    for name, value in zip(_NAMES[1:], got[1:], strict=True):
        number = is_number(value)
        trial.expect(
            is_finite(value),
            f"{name} is not a number",
            expected="a float",
            got=show(value),
            likely="a tensor or an array has to become a number: .item() or float()" if not number else "",
        )


def judge_copies(trial: Trial, case: Case, timer: LineTimer) -> None:
    """What the timed functions did."""
    trial.expect(
        bool(timer.seen),
        "the timer was never called",
        expected="timer(fn) for each size that fits",
        got="no call",
        likely="the function took the time by itself: the times to return are those that timer gives",
        read=COST,
    )
    for seen in timer.seen:
        inside = f"inside the clock: {', '.join(dict.fromkeys(seen.ops)) or 'nothing'}"
        made = [name for name in seen.ops if name not in _COPIES_OR_VIEWS]
        on_gpu = case.device != "cpu"
        if not seen.copies:
            trial.fail(
                "nothing is copied inside the clock",
                expected="fn copies once, from the CPU to the device",
                got=inside,
                likely="a tensor that is there already is not copied again by .to(device): the source has to be on the "
                "CPU each time",
                read=COST,
            )
        if seen.pins and on_gpu:
            trial.fail(
                "pinning is inside the clock",
                expected="the source pinned before, once",
                got=inside,
                likely="pinning locks pages and copies the data on the host first: that time is not the transfer's",
                read=PINNED,
            )
        if made:
            trial.fail(
                "the data are made inside the clock",
                expected="one copy, and nothing else",
                got=inside,
                likely="the host's time for making the data would be counted as transfer: make both buffers before",
                read=COST,
            )
        if len(seen.copies) > 1:
            trial.fail(
                "more than one copy is made inside the clock",
                expected="one copy for each call of fn",
                got=f"{len(seen.copies)} copies",
                likely="timer repeats by itself, and gives the time of one call",
                read=COST,
            )
        if seen.allocations or "_to_copy" in seen.ops:
            trial.fail(
                "the destination is made inside the clock",
                expected="a destination that is there before, used again in each run",
                got=inside,
                likely="x.to(device) takes new memory each time: target.copy_(x) copies into what is there",
                read=COST,
            )
        nbytes, origin, to, pinned = seen.copies[0]
        if nbytes not in case.sizes:
            times = min(case.sizes, key=lambda size: abs(nbytes / size - 4))
            four = nbytes == 4 * times
            trial.fail(
                "another number of bytes is copied than was asked for",
                expected="one of the sizes, in bytes",
                got=f"{nbytes:,} bytes",
                likely="a float32 has four bytes: torch.uint8 makes as many elements as bytes"
                if four
                else "a size is a number of bytes as it stands, not of MB or MiB",
                read=COST,
            )
        if (origin, to) != ("cpu", case.place):
            trial.fail(
                "the copy goes another way",
                expected=f"from the CPU to {case.place if on_gpu else 'the CPU, as device says'}",
                got=f"from {origin} to {to}",
                likely="target.copy_(source): the one in front is written"
                if origin != "cpu" and to == "cpu"
                else "the number got lost: hand device on as it is, where “cuda” is the current GPU"
                if origin == "cpu" and to != "cpu"
                else "",
                read=COST,
            )
        if seen.onto_itself:
            trial.fail(
                "the copy goes onto itself",
                expected="two buffers, on the CPU as well",
                got="a source and a destination in the same memory",
                likely="on the CPU source.to(device) gives the source itself: torch.empty makes a destination",
                read=COST,
            )
        if seen.waits:
            trial.fail(
                "the host waits inside the clock",
                expected="one copy, and nothing else",
                got=f"inside the clock: {', '.join(seen.ops)}, {', '.join(dict.fromkeys(seen.waits))}",
                likely="timer itself waits for what it times: a wait of your own is counted in each run",
                read=COST,
            )
        if seen.freed:
            trial.fail(
                "the allocator's memory is given back inside the clock",
                expected="one copy, and nothing else",
                got="memory that went back to the GPU during the call",
                likely="empty_cache() takes its time, and that is none of the copy's: outside of fn, if anywhere",
                read=COST,
            )
        if on_gpu and pinned is not case.pinned:
            trial.fail(
                "pinned=False, and the source is pinned" if pinned else "pinned=True, and the source is pageable",
                expected=f"the source {'in page-locked' if case.pinned else 'in ordinary'} memory",
                got=f"{'pinned' if pinned else 'pageable'} memory",
                likely="pin_memory() gives a new tensor and leaves the old one as it is"
                if case.pinned
                else "the argument pinned is not heeded",
                read=PINNED,
            )


_COPIES_OR_VIEWS = {"copy_", "_to_copy", "detach", "alias", "view", "slice", "narrow", "as_strided"}


def judge_sizes(trial: Trial, case: Case, ms: dict[Any, Any]) -> None:
    got = list(ms)
    if got == case.fits:
        return
    rows = {"expected": f"the keys {show(case.fits)}", "got": show(got), "read": COST}
    missing = [size for size in case.fits if size not in ms]
    extra = [size for size in got if size not in case.sizes]
    unfit = [size for size in got if size in case.sizes and size not in case.fits]
    if unfit:
        trial.fail(
            "a size that does not fit is in the result",
            **rows,
            likely="it is to be left out: a None or nan in its place has to be taken out again by whoever plots it",
        )
    if extra:
        trial.fail(
            "the keys are not the sizes that were asked for",
            **rows,
            likely="the keys are the numbers of bytes as they were given, not in MB and not as text",
        )
    if missing == case.fits[-1:] and case.device != "cpu" and len(case.fits) < len(case.sizes):
        trial.fail(
            "a size that fits by itself is left out",
            **rows,
            likely="the buffers of earlier sizes still hold the memory: make them size by size, and let them go",
        )
    if missing and len(case.fits) < len(case.sizes):
        trial.fail(
            "sizes after the one that did not fit are missing",
            **rows,
            likely="the loop ends at the first that does not fit (break), and smaller ones may follow: continue",
        )
    if missing:
        trial.fail("sizes are missing", **rows, likely="every size that fits is timed, the first and the last too")
    trial.fail("the sizes are in another order", **rows, likely="keep them as they come: there is no need to sort")


def judge_times(trial: Trial, case: Case, timer: LineTimer, ms: dict[Any, Any]) -> None:
    for size, got in ms.items():
        want = timer.ms(size)
        if is_finite(got) and math.isclose(got, want, rel_tol=1e-6):
            continue
        seconds = is_finite(got) and math.isclose(got, want / 1e3, rel_tol=1e-6)
        trial.fail(
            "a time in the dict is not what the timer gave",
            expected=f"{want:.6g} ms for {size:,} bytes",
            got=show(got),
            likely="timer gives milliseconds, and ms holds milliseconds" if seconds else "",
            read=COST,
        )


def judge_line(trial: Trial, case: Case, timer: LineTimer, got: tuple[Any, Any, Any]) -> None:
    _, latency, bandwidth = got
    want_us, want_gbps = timer.latency_ms * 1e3, timer.bytes_per_ms * 1e-6
    big, small = max(case.fits), min(case.fits)
    if timer.noise and not (
        math.isclose(bandwidth, want_gbps, rel_tol=NEAR[1]) and math.isclose(latency, want_us, rel_tol=NEAR[0])
    ):
        trial.fail(
            "the line does not go through all of the times when they scatter",
            expected=f"{want_us:.4g} µs and {want_gbps:.4g} GB/s from {len(case.fits)} sizes, by least squares",
            got=f"{latency:.4g} µs and {bandwidth:.4g} GB/s",
            likely="measured times scatter, and a line through two of them follows their errors: fit it to all of them",
            read=COST,
        )
    if not math.isclose(bandwidth, want_gbps, rel_tol=NEAR[1]):
        effective = [size / timer.ms(size) * 1e-6 for size in case.fits]
        total = sum(case.fits) / sum(map(timer.ms, case.fits)) * 1e-6
        known = {
            want_gbps * 1e9 / 2**30: ("the bandwidth is in GiB/s", "1 GB is 10⁹ bytes; 2**30 is a GiB"),
            want_gbps * 1e3: ("the bandwidth is in MB/s", "bytes per millisecond times 1e-6 are GB/s"),
            want_gbps * 1e9: ("the bandwidth is in bytes per second", "1 GB/s is 10⁹ bytes per second"),
            timer.bytes_per_ms: ("the bandwidth is in bytes per millisecond", "times 1e-6 it is 10⁹ bytes per second"),
            want_gbps * 1e-3: ("the bandwidth is a thousand times too small", "milliseconds were taken for seconds"),
            want_gbps * 8: ("the bandwidth is in Gbit/s", "8 bits to a byte: bandwidths of memory count bytes"),
            1 / want_gbps: ("the slope came back, not the bandwidth", "the slope is time per byte: one over it"),
            1 / timer.bytes_per_ms: ("the slope came back, not the bandwidth", "the slope is ms per byte: one over it"),
            big / timer.ms(big) * 1e-6: ("the bandwidth is bytes ÷ time of the largest copy",
                                         "its latency is still in that time: take the slope of the line"),
            total: ("the bandwidth is all bytes ÷ all times", "all the latencies are in that sum"),
            sum(effective) / len(effective): ("the bandwidth is the mean of bytes ÷ time",
                                              "for small copies that is mostly latency: take the slope of the line"),
            sorted(effective)[len(effective) // 2]: ("the bandwidth is the median of bytes ÷ time",
                                              "for small copies that is mostly latency: take the slope of the line"),
            _through_zero(case.fits, timer): ("the line goes through zero", "without a latency: fit both numbers"),
        }  # fmt: skip
        near = next((text for value, text in known.items() if math.isclose(bandwidth, value, rel_tol=2e-3)), None)
        summary, likely = near or (
            f"the bandwidth is {bandwidth / want_gbps:.3g} times the right one",
            "the times lie on a line exactly: any straight line fitted to time over bytes finds it (not in logarithms)",
        )
        trial.fail(summary, expected=f"{want_gbps:.4g} GB/s", got=f"{bandwidth:.4g}", likely=likely, read=COST)
    if not math.isclose(latency, want_us, rel_tol=NEAR[0]):
        known = {
            want_us * 1e-3: ("the latency is in milliseconds", "the line is fitted to milliseconds: times 1000"),
            want_us * 1e-6: ("the latency is in seconds", "1 s is 10⁶ µs"),
            want_us * 1e3: ("the latency is in nanoseconds", "1 ms is 10³ µs"),
            timer.ms(small) * 1e3: ("the latency is the time of the smallest copy",
                                    "its bytes are in that time too: the latency is where the line meets 0 bytes"),
            timer.ms(small): ("the latency is the time of the smallest copy", "it is where the line meets 0 bytes"),
        }  # fmt: skip
        near = next((text for value, text in known.items() if math.isclose(latency, value, rel_tol=2e-3)), None)
        zero = ("the latency is zero", "a line through zero leaves it out: two numbers are to be fitted")
        summary, likely = near or (
            zero if latency == 0 else (f"the latency is {latency / want_us:.3g} times the right one", "")
        )
        trial.fail(summary, expected=f"{want_us:.4g} µs", got=f"{latency:.4g}", likely=likely, read=COST)


def _through_zero(sizes: list[int], timer: LineTimer) -> float:
    """GB/s of the least-squares line without a latency."""
    slope = sum(size * timer.ms(size) for size in sizes) / sum(size * size for size in sizes)
    return 1e-6 / slope


def judge_other_errors(student: Any, trial: Trial) -> None:
    """A timer that fails for a reason of its own: that is no size that does not fit."""
    for own in (
        Broken("the timer's own error"),
        RuntimeError("the timer's own error: its clock has stopped"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
    ):
        passed: list[bool] = []

        def broken(fn: Any, own: Exception = own) -> float:
            raise own

        def work(broken: Any = broken, own: Exception = own, passed: list[bool] = passed) -> None:
            try:
                student(draw_sizes(3), False, torch.device("cuda", 0), broken)
            except Exception as error:
                if error is own or error.__cause__ is own:
                    passed.append(True)

        with scope(compute=False):
            trial.call(work, explain=explain)
        plain = type(own) is RuntimeError
        trial.expect(
            bool(passed) or "illegal" not in str(own),
            "a kernel's illegal memory access is taken for a size without room",
            expected=f"“{own}”, raised by the timer, reaches the caller",
            got="another end",
            likely="only the making of the buffers can lack room: timer(…) stands outside of the try",
            read=COST,
        )
        trial.expect(
            bool(passed),
            "a RuntimeError that has nothing to do with memory is swallowed"
            if plain
            else "an error that has nothing to do with memory is swallowed",
            expected="an exception of the timer reaches the caller",
            got="another end",
            likely='except RuntimeError takes every such fault for a size that does not fit: look for "memory" in '
            "str(error), or raise again"
            if plain
            else "except Exception, or a bare except, takes every fault for a size that does not fit",
            read=COST,
        )

    def work_elsewhere() -> str:
        try:
            student(draw_sizes(3), False, torch.device("cuda", 1), lambda fn: 1.0)
        except Exception as error:
            return str(error)
        return ""

    with scope(compute=False):
        said = trial.call(work_elsewhere, explain=explain)
    trial.expect(
        "device" in said.lower(),  # “invalid device ordinal”, or what another call says of a GPU that is not there
        "a device that is not there is taken for one without room",
        expected="the error for a second GPU, on a machine with one, reaches the caller",
        got=said.partition("\n")[0] or "no error",
        likely='not every RuntimeError of torch.empty is about room: look for "memory" in str(error), or raise again',
        read=COST,
    )

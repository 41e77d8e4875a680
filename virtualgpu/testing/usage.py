"""What a test can assert of a virtual GPU: peaks of memory, waits of the host, copies, kernels, and what fits."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from ..clock.clock import Clock, Span
from ..gpu import VirtualGPU
from ..observe import observe, part_of_copy
from ..running.memory_watch import MemoryWatch
from ..running.report import Share
from ..running.source_lines import Place, SourceLines
from ..units import duration, mib

_SHOWN = 3
_T = TypeVar("_T")


class Bytes(int):
    """A number of bytes, shown in MiB. `shares` are the lines whose tensors these are, the largest first."""

    shares: tuple[Share, ...] = ()

    def __repr__(self) -> str:
        return mib(self)

    __str__ = __repr__

    def compared(self, op: str, other: float) -> list[str]:
        """Return the lines that pytest shows where a comparison with `other` bytes failed."""
        held = [f"{mib(share.nbytes):>12}  {share.line}" for share in self.shares[:_SHOWN]]
        return [f"{mib(self)} {op} {mib(round(other))}", *(["held by", *held] if held else [])]


@dataclass(frozen=True)
class Wait:
    """The host waited for the GPU: in which call, `seconds` long (virtual), at which line."""

    call: str
    seconds: float
    line: str

    def __str__(self) -> str:
        return f"{self.call} ({duration(self.seconds)}) at {self.line}"


@dataclass(frozen=True)
class Copy:
    """A copy between host and GPU: `way` is "to GPU" or "to host"; `pinned` says whether of page-locked memory."""

    way: str
    nbytes: int
    pinned: bool
    line: str

    def __str__(self) -> str:
        return f"{mib(self.nbytes)} {self.way}, {'pinned' if self.pinned else 'pageable'}, at {self.line}"


@dataclass(frozen=True)
class Kernel:
    """A kernel by the name of its operation, such as "addmm", with its `seconds` (virtual)."""

    name: str
    seconds: float

    def __str__(self) -> str:
        return self.name


class Found(tuple[_T, ...]):
    """A tuple that says what is in it, each once with its number."""

    def __repr__(self) -> str:
        texts = Counter(map(str, self)).most_common()
        shown = [text if count == 1 else f"{count} x {text}" for text, count in texts[:_SHOWN]]
        return f"{len(self)}: [{'; '.join(shown)}{'; …' if len(texts) > _SHOWN else ''}]"

    __str__ = __repr__


@dataclass(frozen=True)
class Fit:
    """Whether a call found enough memory. It is true or false in an `if` or an `assert`, and `why` says why."""

    fits: bool
    why: str

    def __bool__(self) -> bool:
        return self.fits

    def __repr__(self) -> str:
        return self.why


class Usage:
    """What happened in a block, on one GPU; complete when the block has ended.

    peak_memory: bytes of all live tensors at their most, those from before the block too.
    peak_reserved: bytes that PyTorch's allocator held at most.
    host_waits, copies, kernels: tuples of `Wait`, `Copy` and `Kernel`, in their order.
    seconds: of virtual time, until host and GPU were done.

    Reading one of them within the block raises RuntimeError.
    """

    peak_memory: Bytes
    peak_reserved: Bytes
    host_waits: Found[Wait]
    copies: Found[Copy]
    kernels: Found[Kernel]
    seconds: float

    def __getattr__(self, name: str) -> object:
        if name in Usage.__annotations__:
            raise RuntimeError(f"{name} is known only after the block `with virtual_gpu.watch(…)`: read it there")
        raise AttributeError(f"the result of watch() has no {name!r}; it has {', '.join(Usage.__annotations__)}")


class GPUInTest:
    """The virtual GPU of a test. `gpu` is its `virtualgpu.VirtualGPU`, `name` such as "T4"."""

    def __init__(self, gpu: VirtualGPU, places: SourceLines, watches: list[MemoryWatch]) -> None:
        self.gpu, self.name = gpu, gpu.spec.name
        self._places, self._watches = places, watches

    def __repr__(self) -> str:
        return repr(self.gpu)

    @contextlib.contextmanager
    def watch(self, device: int = 0) -> Iterator[Usage]:
        """Record what one GPU and the host do within the block; read it from the `Usage` afterwards.

        The GPU's queue is empty at the start, and waited for at the end, which is no wait of the test. Blocks nest.
        Raises ValueError for a `device` that this test does not have.
        """
        if not 0 <= device < self.gpu.count:
            raise ValueError(f"device is {device!r}; this test has {self.gpu.count}, the first of them 0")
        usage, watch, clock = Usage(), self._watches[device], self.gpu.clock
        waits = _Waits(self._places)
        torch.cuda.synchronize(device)
        began, outer = clock.host, watch.begin_peak()
        try:
            with _recorded(clock, self._places) as spans, observe(self.gpu, wait=waits.add):
                yield usage
            torch.cuda.synchronize(device)
            usage.seconds = clock.host - began
            usage.host_waits = Found(waits.found)
            mine = [(span, line) for span, line in zip(spans, spans.lines, strict=True) if span.device == device]
            usage.copies = Found(
                Copy(span.where, span.nbytes, span.name.endswith("pinned"), self._text(line))
                for span, line in mine
                if span.where in _COPIES
            )
            usage.kernels = Found(
                Kernel(span.name.partition(".")[0], span.seconds)
                for span, _ in mine
                if span.where in ("kernels", "ranks")
            )
            memory = watch.memory()
            usage.peak_memory = Bytes(memory.peak_allocated)
            usage.peak_memory.shares = memory.peak_shares
            usage.peak_reserved = Bytes(memory.peak_reserved)
        finally:
            watch.end_peak(outer)

    def fits(self, function: Callable[[], object]) -> Fit:
        """Call `function()` once; return whether the GPU's memory was enough, and else what was asked for, and where.

        What it returns is dropped. Exceptions other than torch.OutOfMemoryError pass through.
        """
        before = [watch.shortages for watch in self._watches]
        try:
            function()
        except torch.OutOfMemoryError:
            failed = [watch for watch, count in zip(self._watches, before, strict=True) if watch.shortages > count]
            short = failed[-1].shortage if failed else None
            if short is None:
                raise  # raised by the program itself: no allocation failed
            where = f" at {short.line}" if short.line else ""
            why = f"{mib(short.requested)} were asked for{where}, and {mib(short.free)} were free"
            return Fit(False, f"does not fit on a {self.name}: {why} (virtual)")
        return Fit(True, f"fits on a {self.name} (virtual)")

    def _text(self, place: Place | None) -> str:
        return _text(self._places, place)


@contextlib.contextmanager
def in_test(gpu: VirtualGPU, folder: Path) -> Iterator[GPUInTest]:
    """Watch the memory of `gpu` within the block; lines are named from the test's `folder` on."""
    places = SourceLines(str(Path.cwd()), str(folder))
    watches = [MemoryWatch(device, places) for device in gpu.devices]
    try:
        yield GPUInTest(gpu, places, watches)
    finally:
        for watch in watches:
            watch.end()


_COPIES = "to GPU", "to host"


class _Waits:
    """The waits of a block. A copy waits in up to three parts, which count as one."""

    def __init__(self, places: SourceLines) -> None:
        self.found: list[Wait] = []
        self._places = places
        self._last: tuple[str, Place | None, int] = "", None, 0

    def add(self, name: str, seconds: float) -> None:
        call, part = part_of_copy(name)
        place = self._places.here()
        before, self._last = self._last, (call, place, part)
        if before[:2] == (call, place) and before[2] < part:
            seconds += self.found.pop().seconds
        self.found.append(Wait(call, seconds, _text(self._places, place)))


class _Spans(list[Span]):
    """Spans of the clock, and for each copy the line that asked for it."""

    def __init__(self, places: SourceLines) -> None:
        super().__init__()
        self.lines: list[Place | None] = []
        self._places = places

    def append(self, span: Span) -> None:
        super().append(span)
        self.lines.append(self._places.here() if span.where in _COPIES else None)


@contextlib.contextmanager
def _recorded(clock: Clock, places: SourceLines) -> Iterator[_Spans]:
    spans = _Spans(places)
    outer, clock.record = clock.record, spans
    try:
        yield spans
    finally:
        clock.record = outer
        if outer is not None:
            outer.extend(spans)
        if isinstance(outer, _Spans):
            outer.lines.extend(spans.lines)


def _text(places: SourceLines, place: Place | None) -> str:
    return "PyTorch's own" if place is None else str(places.line(place))

"""The operations of one call in a table: how long each kept the GPU, how often, and what it waited for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from virtualgpu.readings.counters import DeviceLike

from .measuring import check_count
from .recording import Event, Recording, record
from .tables import clipped, table


class Operation(NamedTuple):
    """One operation: its kernels or copies, their milliseconds on the GPU, and their share of all of them, 0 to 1.

    `bytes` are those of the GPU's memory (of a copy, over the link), None on a real GPU. `flops` are of products,
    convolutions and attention, else 0. `bound` is what takes most of the time: "memory", "compute", "launch" (a
    kernel's least time), "link" for copies from and to the host, "ranks" for collectives; "" on a real GPU.
    """

    name: str
    calls: int
    ms: float
    share: float
    bytes: int | None
    flops: float
    bound: str


@dataclass(frozen=True, repr=False)
class Operations:
    """The operations of one call, the longest first; it shows the first `top`, and iterates over all."""

    rows: tuple[Operation, ...]
    top: int
    recording: Recording

    @property
    def ms(self) -> float:
        """Milliseconds of all kernels and copies together; some may have run side by side."""
        return sum(row.ms for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Operation]:
        return iter(self.rows)

    def __str__(self) -> str:
        head = f"operations of one call: {self.ms:,.3f} ms on {self.recording.device} ({self.recording.source})"
        shown, rest = self.rows[: self.top], self.rows[self.top :]
        if rest:
            calls, ms = sum(row.calls for row in rest), sum(row.ms for row in rest)
            shown = (*shown, Operation(f"{len(rest)} more", calls, ms, ms / self.ms, None, 0.0, ""))
        virtual = self.recording.numbers == "virtual"
        rows = [_cells(row, virtual) for row in shown]
        names = ["ms", "share", "calls", "GFLOP", *(["MB", "bound by"] if virtual else []), "operation"]
        return f"{head}\n{table(names, rows, numbers=5 if virtual else 4)}" if rows else f"{head}: no kernel was seen"

    __repr__ = __str__


def _cells(row: Operation, virtual: bool) -> list[str]:
    of_memory = [f"{row.bytes / 1e6:,.1f}" if row.bytes else "", row.bound] if virtual else []
    flops = f"{row.flops / 1e9:,.2f}" if row.flops else ""
    return [f"{row.ms:,.3f}", f"{row.share:.1%}", str(row.calls), flops, *of_memory, clipped(row.name, 50)]


def operations(function: Callable[[], object], *, top: int = 10, device: DeviceLike = None) -> Operations:
    """Call `function()` once; return its operations on one GPU, the longest first.

        gpulab.timing.operations(lambda: model(x))
        # ms   share  calls  GFLOP    MB  bound by  operation
        # 5.2  61.0%     12   30.1  88.0  compute   convolution

    Times are in ms on the GPU, without the pauses between kernels. On a virtual GPU the source is its clock, with the
    bytes that a kernel moves, its floating-point operations, and what takes most of its time. On a real one it is
    `torch.profiler`, whose kernels have the name of PyTorch's operation that launched them, or their own where none
    did; it counts the operations of products and convolutions, and knows no bytes. Profile a second call: the first
    one loads kernels and chooses among them.

    `device` is None (the current GPU), a number, a text such as "cuda:1" or a torch.device. What `function` returns is
    dropped; its exceptions pass through. Raises RuntimeError without a CUDA GPU, real or virtual, TypeError if
    `function` cannot be called without arguments, ValueError if `top` is below 1.
    """
    check_count("top", top, 1)
    found = record(function, device, "timing.operations")
    by_name: dict[str, list[Event]] = defaultdict(list)
    for event in found.on_gpu:
        by_name[event.name].append(event)
    total = sum(event.ms for event in found.on_gpu)
    rows = [_row(name, events, total, virtual=found.numbers == "virtual") for name, events in by_name.items()]
    return Operations(tuple(sorted(rows, key=lambda row: -row.ms)), top, found)


def _row(name: str, events: list[Event], total: float, *, virtual: bool) -> Operation:
    bounds: dict[str, float] = defaultdict(float)
    for event in events:
        bounds[event.bound] += event.ms
    ms = sum(event.ms for event in events)
    nbytes = sum(event.nbytes for event in events) if virtual else None
    flops = sum(event.flops for event in events)
    bound = max(bounds, key=lambda name: bounds[name])
    return Operation(name, len(events), ms, ms / total if total else 0.0, nbytes, flops, bound)

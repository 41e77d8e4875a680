"""Finds where a call makes the host wait for the GPU: line by line, with the call that waits."""

from __future__ import annotations

import ast
import contextlib
import linecache
import os
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

from virtualgpu import own_code
from virtualgpu.observe import part_of_copy
from virtualgpu.readings import counters
from virtualgpu.readings.source import Numbers, numbers_of

from ..calls import check_function, check_result
from .tables import clipped, table

_WARNING = "called a synchronizing CUDA operation"


class Sync(NamedTuple):
    """A place where the host waits: "file:line", its text, the call, how often, and how long in all (ms).

    In a notebook the file is "cell". `ms` is None on a real GPU, whose waits PyTorch does not time.
    """

    line: str
    code: str
    call: str
    count: int  # type: ignore[assignment]  # a tuple's own method
    ms: float | None


@dataclass(frozen=True, repr=False)
class Syncs:
    """The waits of one call. `len()` is how often it waited in all; iterating gives a `Sync` for each place."""

    rows: tuple[Sync, ...]
    numbers: Numbers

    def __len__(self) -> int:
        return sum(row.count for row in self.rows)

    def __iter__(self) -> Iterator[Sync]:
        return iter(self.rows)

    @property
    def ms(self) -> float | None:
        """How long the host waited in all; None on a real GPU."""
        return None if self.numbers == "measured" else sum(row.ms or 0.0 for row in self.rows)

    def __str__(self) -> str:
        times = f"{len(self)} time{'' if len(self) == 1 else 's'}"
        took = "" if self.ms is None else f", {self.ms:,.3f} ms in all"
        head = f"the host waited for the GPU {times}{took} ({self.numbers})"
        if not self.rows:
            return head
        names = ["waits", *([] if self.ms is None else ["ms"]), "line", "call", "code"]
        rows = [
            [
                str(row.count),
                *([] if row.ms is None else [f"{row.ms:,.3f}"]),
                row.line,
                clipped(row.call, 40),
                clipped(row.code, 60),
            ]
            for row in self.rows
        ]
        return f"{head}\n{table(names, rows, numbers=len(names) - 3)}"

    __repr__ = __str__


def syncs(function: Callable[[], object]) -> Syncs:
    """Call `function()` once; return where the host waited for a GPU in it, how often, and by which call.

        gpulab.timing.syncs(lambda: train_epoch(loader))
        # waits      ms  line         call     code
        #     8   4.120  train.py:31  .item()  total += loss.item()

    A line is the innermost one outside of PyTorch, Python's library and installed packages. All GPUs of the process
    count, so there is no device to choose. The queue is empty at the start: work from before is not waited for.

    On a virtual GPU the source is its clock: every wait that lasts counts, also `synchronize`, events, the staging of a
    pageable copy, and a full launch queue; `ms` is virtual. On a real one it is PyTorch's
    `torch.cuda.set_sync_debug_mode("warn")`, put back afterwards, which warns of operations that wait: `.item()`,
    `.cpu()`, `nonzero`, copies without `non_blocking`. It does not see `torch.cuda.synchronize()`, waits for events and
    streams, `non_blocking` copies of pageable memory, waits inside libraries, nor a full queue; and it counts waits for
    an idle GPU, too.

    What `function` returns is dropped; its exceptions pass through. Raises RuntimeError without a CUDA GPU, real or
    virtual, TypeError if `function` cannot be called without arguments.
    """
    import torch

    check_function(function, "function", "timing.syncs")
    gpu = counters.one_gpu(None, "timing.syncs", only="cuda")
    for number in range(torch.cuda.device_count()):
        torch.cuda.synchronize(number)
    places = _Places(timed=gpu.scope is not None)
    with _warned(places) if gpu.scope is None else _observed(places, gpu.scope):
        check_result(function(), "function", "measure")
    return Syncs(places.rows(), numbers_of(gpu.scope))


@contextlib.contextmanager
def _observed(places: _Places, scope: Any) -> Iterator[None]:
    from virtualgpu.observe import observe

    with observe(scope, wait=lambda name, seconds: places.add(sys._getframe(1), name, seconds)):
        yield


@contextlib.contextmanager
def _warned(places: _Places) -> Iterator[None]:
    """Note each of PyTorch's warnings where it is given; others go their way."""
    import torch

    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        warnings.filterwarnings("always", message=_WARNING)
        others = warnings.showwarning

        def show(message: Warning | str, *about: Any, **more: Any) -> None:
            if _WARNING in str(message):
                places.add(sys._getframe(1))
            else:
                others(message, *about, **more)

        warnings.showwarning = show
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)


class _Places:
    """Waits by place and call."""

    def __init__(self, *, timed: bool) -> None:
        self._timed = timed
        self._found: dict[tuple[str, int, str], tuple[int, float]] = {}
        self._last: tuple[object, str, int] = (None, "", 0)  # where, which copy, which part of it
        paths = sysconfig.get_paths()
        import torch

        folders = {*(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")), *torch.__path__}
        self._libraries = (*(os.path.join(folder, "") for folder in folders), *own_code.folders(), "<frozen")

    def add(self, frame: FrameType | None, name: str = "", seconds: float = 0.0) -> None:
        while frame is not None and frame.f_code.co_filename.startswith(self._libraries):
            frame = frame.f_back
        copy, part = part_of_copy(name)
        if frame is None:
            where, key = None, ("another thread", 0, name or "PyTorch's own")
        else:
            where = id(frame), frame.f_lasti
            key = frame.f_code.co_filename, frame.f_lineno, _call(frame, copy)
        last, self._last = self._last, (where, copy, part)
        same = bool(name) and last[:2] == (where, copy) and last[2] < part
        count, waited = self._found.get(key, (0, 0.0))
        self._found[key] = count + (not same), waited + seconds

    def rows(self) -> tuple[Sync, ...]:
        return tuple(
            Sync(_shown(file, line), linecache.getline(file, line).strip(), call, count, ms if self._timed else None)
            for (file, line, call), (count, seconds) in self._found.items()
            for ms in [seconds * 1e3]
        )


def _call(frame: FrameType, name: str) -> str:
    """What is called there: ".item()", or the text of what is no call, such as a condition."""
    if name == "the launch queue is full":
        return name
    start, end, left, right = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    if start is None or end is None or left is None or right is None:
        return name
    lines = [linecache.getline(frame.f_code.co_filename, n).encode() for n in range(start, end + 1)]
    lines[-1] = lines[-1][:right]
    lines[0] = lines[0][left:]
    text = b"".join(lines).decode(errors="replace")
    try:
        found = ast.parse(f"({text})", mode="eval").body
    except SyntaxError:
        found = None
    if isinstance(found, ast.Call):
        text = f".{found.func.attr}()" if isinstance(found.func, ast.Attribute) else f"{ast.unparse(found.func)}()"
    return f"{text}, pageable copy" if name == "copy to GPU, pageable" else text or name


def _shown(file: str, line: int) -> str:
    if not line:
        return file
    if os.path.basename(os.path.dirname(file)).startswith("ipykernel_") or file.startswith("<ipython"):
        return f"cell:{line}"
    here = os.path.join(os.getcwd(), "")
    return f"{file.removeprefix(here)}:{line}"

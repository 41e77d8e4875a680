"""Measures the peak and the change of allocated GPU memory over a block of code, with `GPUMemoryTracker`.

Trackers can nest and overlap without losing a peak (see `windows`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from virtualgpu.readings import counters
from virtualgpu.readings.counters import DeviceLike
from virtualgpu.readings.source import Numbers
from virtualgpu.units import MIB

from .windows import Window, lock

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class DeviceMemory:
    """A tracker's values on one GPU, in bytes of allocated memory."""

    device: str
    entry_bytes: int
    peak_bytes: int
    delta_bytes: int

    @property
    def peak_above_entry_bytes(self) -> int:
        return self.peak_bytes - self.entry_bytes


class GPUMemoryTracker:
    """Measures allocated memory between the start and the end of a `with` block, or of a decorated function.

        with GPUMemoryTracker(label="forward") as forward:
            loss = model(x).sum()
        print(forward, forward.peak_memory_mb)

    `device` is None (the GPU that is current at entry), a number, a text such as "cuda:1", a torch.device, or "all".
    The values count what `torch.cuda.memory_allocated` counts: bytes of live tensors, rounded as the allocator rounds.

    - `peak_memory_mb`, `peak_bytes`: the most that was allocated at any moment inside, in absolute numbers;
      `peak_above_entry_bytes` is the same less what was allocated at entry.
    - `memory_delta_mb`, `delta_bytes`: allocated at the end less allocated at entry; negative if memory was freed.
    - The names with `_mb` are in MiB (2**20 bytes), as PyTorch's own messages and nvidia-smi count.
    - `available`: False if there is no such GPU (also for device="cpu"); then every value is 0, without an error.
    - `numbers`: "measured" or "virtual". `devices`: one `DeviceMemory` for each GPU. With device="all" the values above
      are sums over the GPUs; the sum of peaks is what they need together, though they need not peak at one moment.

    Read inside the block, the values are those up to now; before the first entry reading raises RuntimeError. Each
    entry starts anew, so one tracker can be used again and again; entering one that is open raises RuntimeError.
    Trackers may nest and may end in any order. Exceptions, OutOfMemoryError among them, end the measurement and pass
    through. Both ends synchronise, so that a kernel's error shows up where it belongs; the counts themselves do not
    need it, because the allocator keeps its books on the host.

    Limitations:

    - The counter belongs to the process, so allocations of all threads count. What another thread allocates and frees
      within the microseconds between reading a peak and resetting the counter may be missed.
    - Entering resets PyTorch's own peak counter: afterwards `torch.cuda.max_memory_allocated()` counts from there. Your
      own `reset_peak_memory_stats()` inside a tracker works as usual; of the peak before it, open trackers have only
      the value when one was last entered, left or read. Read `tracker.peak_bytes` first to lose nothing.
    - With PYTORCH_ALLOC_CONF=backend:cudaMallocAsync the driver keeps the counts: allocated bytes are not rounded to
      512, several other statistics are 0, and the peak of reserved memory is an upper bound.
    - A tracker whose virtual GPU ends before it does keeps its last reading.
    """

    def __init__(self, device: DeviceLike = None, *, label: str = "") -> None:
        if not isinstance(label, str):
            raise TypeError(f"label must be a text, not {label!r} ({type(label).__name__})")
        if callable(device):
            raise TypeError("GPUMemoryTracker needs its parentheses as a decorator: @GPUMemoryTracker()")
        try:
            self._device = counters.parse_device(device)
        except ValueError as error:
            hint = f" A label is given by name: GPUMemoryTracker(label={device!r})." if isinstance(device, str) else ""
            raise ValueError(f"{error}.{hint}") from None
        self.label = label
        self._windows: tuple[Window, ...] | None = None
        self._open = False

    # -- the block of code -------------------------------------------------------------------------------------------

    def __enter__(self) -> GPUMemoryTracker:
        with lock:
            if self._open:
                raise RuntimeError(f"{self._title()} is already open: use another tracker for a second block")
            self._open, self._windows = True, None
        windows: list[Window] = []
        try:
            gpus = counters.find_gpus(self._device)
            for gpu in gpus:
                gpu.counts.synchronize(gpu.number)
            with lock:
                for gpu in gpus:
                    windows.append(Window(gpu))
        except BaseException:
            for window in windows:
                window.close()
            self._open = False
            raise
        self._windows = tuple(windows)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._open or self._windows is None:
            raise RuntimeError(f"{self._title()} is not open")
        try:
            for window in self._windows:
                window.synchronize(failed=error is not None)
        finally:
            with lock:
                for window in self._windows:
                    window.update()
                    window.close()
            self._open = False

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Decorate: every call is measured, recursive ones too; this tracker holds the call that ended last."""
        if not callable(function):
            raise TypeError(f"GPUMemoryTracker decorates a function, not {function!r}")
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise TypeError(
                f"{function.__name__} is a generator or coroutine function: its body runs after the call; "
                "use `with GPUMemoryTracker():` inside it"
            )

        @functools.wraps(function)
        def measured(*args: P.args, **kwargs: P.kwargs) -> T:
            call = GPUMemoryTracker(self._device, label=self.label)
            try:
                with call:
                    return function(*args, **kwargs)
            finally:
                if not self._open:
                    self._windows = call._windows

        return measured

    def __del__(self) -> None:
        # An interrupted cell can drop an open tracker: its windows must not stay in the table.
        if getattr(self, "_open", False) and self._windows:
            for window in self._windows:
                window.close()

    # -- the values --------------------------------------------------------------------------------------------------

    @property
    def available(self) -> bool:
        """True if there was a GPU at entry; before an entry, if there is one."""
        return bool(counters.find_gpus(self._device) if self._windows is None else self._windows)

    @property
    def numbers(self) -> Numbers | None:
        """The origin of the values: "measured" or "virtual"; None without values."""
        return self._windows[0].numbers if self._windows else None

    @property
    def devices(self) -> tuple[DeviceMemory, ...]:
        """The values of each GPU."""
        return tuple(DeviceMemory(w.name, w.entry, w.peak, w.now - w.entry) for w in self._read())

    @property
    def peak_bytes(self) -> int:
        return sum(window.peak for window in self._read())

    @property
    def peak_above_entry_bytes(self) -> int:
        return sum(window.peak - window.entry for window in self._read())

    @property
    def delta_bytes(self) -> int:
        return sum(window.now - window.entry for window in self._read())

    @property
    def peak_memory_mb(self) -> float:
        """`peak_bytes` in MiB."""
        return self.peak_bytes / MIB

    @property
    def memory_delta_mb(self) -> float:
        """`delta_bytes` in MiB."""
        return self.delta_bytes / MIB

    def _read(self) -> tuple[Window, ...]:
        windows = self._windows
        if windows is None:
            raise RuntimeError(f"{self._title()} has measured nothing yet: use it as `with tracker:`")
        if self._open:
            with lock:
                for window in windows:
                    window.update()
        return windows

    def _title(self) -> str:
        return f"GPUMemoryTracker {self.label!r}" if self.label else "GPUMemoryTracker"

    def __repr__(self) -> str:
        if self._windows is None:
            return f"<{self._title()}: not entered yet>"
        if not self._windows:
            return f"<{self._title()}: no GPU, nothing measured>"
        windows = self._read()
        where = windows[0].name if len(windows) == 1 else f"{len(windows)} GPUs together"
        values = f"peak {self.peak_memory_mb:.2f} MiB, change {self.memory_delta_mb:+.2f} MiB"
        return f"<{self._title()} on {where}: {values}, {self.numbers}{', still open' if self._open else ''}>"

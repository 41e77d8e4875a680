"""One virtual GPU device: spec, allocator behind a lock, random generator, fault state.

`dispatch` allocates on it, and labels on storages free. It knows no operations and no patches.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

from .. import release
from ..clock.clock import DeviceClock
from ..gpus.specs import Spec
from ..memory.blocks import LIVE, Block
from ..memory.caching import CachingAllocator
from ..memory.out_of_memory import OutOfMemory
from ..memory.private import PrivatePool
from ..memory.settings import Settings
from . import gpu_trace, host_memory
from .in_force import Chosen
from .labels import NAME, Label

# Memory that the driver counts for a process before its first tensor. Not published: it depends on the driver, the GPU
# and the kernels that have been loaded.
CONTEXT_BYTES = 300 << 20

DEVICE_ASSERT = (
    "CUDA error: device-side assert triggered\n"
    "Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more"
    " information.\n"
)
NOT_WHILE_CAPTURING = (
    "CUDA error: operation not permitted when stream is capturing\n"
    "Search for `cudaErrorStreamCaptureUnsupported' in"
    " https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.\n"
)
MAY_BE_LATE = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be"
    " incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
)


class Capturing(Protocol):
    """A CUDA graph during its capture on a GPU."""

    def covers(self, stream: int) -> bool:
        """Return True if work queued on this stream now goes into the graph."""

    def forbids(self) -> bool:
        """Return True if this thread may not wait for the GPU now."""

    def break_off(self) -> None:
        """Invalidate the capture, because a forbidden call was made."""


class Observer(Protocol):
    """Receives every block as it is allocated and freed, under the device's lock, and changes nothing."""

    def allocated(self, block: Block) -> None: ...

    def freed(self, block: Block) -> None:
        """Called before the block is given back: its size is still valid."""

    def communicates(self, tensors: list[torch.Tensor]) -> None:
        """Called with the tensors on this device that a collective sends and receives."""

    def took_beside(self, block: Block | None) -> None:
        """Called after `allocated` with a block of temporary memory of a kernel; None for 0 bytes."""


class Device:
    """The GPU with number `index` of a scope."""

    def __init__(self, index: int, spec: Spec, settings: Settings, timer: DeviceClock, *, compute: bool) -> None:
        self.index = index
        self.timer = timer
        self.spec = spec
        self.compute = compute
        self.active = True
        self.name = torch.device("cuda", index)
        self.backing = torch.device("cpu" if compute else "meta")
        self.allocator = CachingAllocator(spec.memory_bytes, settings, context_bytes=CONTEXT_BYTES, device=index)
        self._memory = self.allocator.memory
        self._calls = 0
        self.touched = 0.0  # bytes that kernels have read or written, without L2 hits
        self.loaded: set[str] = set()  # libraries whose kernels are loaded
        # By address: `touched` when it was last accessed, and when it was last written; and the bytes there.
        self.cached: dict[int, tuple[float, float, int]] = {}
        self.moved = 0  # bytes of `touched` that the current operation moved
        # Dead blocks, with the time until which another stream uses them where there is one.
        self.pending: deque[Block | tuple[float, Block] | None] = deque()
        self.held: list[tuple[float, Block]] = []  # freed, and in use until then
        self.allocator.settle = lambda: self._complete(wait=True)
        self.departed: deque[Callable[[], object]] = deque()  # calls to make once these are given back
        self.lock = threading.RLock()
        self._current = Chosen()
        self.generator = torch.Generator()
        self.generator.manual_seed(torch.initial_seed())
        self.keeps_workspaces = False
        self.plans_convolutions = True
        self.release = release.running_release()
        self.workspaces: dict[Any, Label | None] = {}
        self.dropout_state: Label | None = None  # cuDNN's, of its recurrent layers
        self.fault: str | None = None
        self.blocking = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"  # the host waits for every kernel
        self.raw: dict[int, Label] = {}
        self.history: Any = None
        self.observer: Observer | None = None
        self.capture: Capturing | None = None
        self.routes: list[tuple[Callable[[int], bool], PrivatePool]] = []  # condition on the stream -> private pool

    def __repr__(self) -> str:
        return f"<virtual {self.spec.name}, cuda:{self.index}>"

    @property
    def stream(self) -> int:
        """The number of this thread's current stream."""
        return self._current.number

    @stream.setter
    def stream(self, number: int) -> None:
        self._current.number = number

    def drain(self) -> None:
        """Free the blocks that have died since the last call; the caller holds the lock."""
        pending, free = self.pending, self.allocator.free
        while pending:
            died = pending.popleft()
            if died.__class__ is Block and self.history is None and self.observer is None:  # fast path
                if died.state == LIVE:
                    gpu_trace.freed(died)
                    free(died)
                continue
            held = isinstance(died, tuple)
            until, block = died if isinstance(died, tuple) else (0.0, died)
            if block is not None and block.allocated:
                if self.history is not None:
                    self.history.freed(block, completed=not held)
                if self.observer is not None:
                    self.observer.freed(block)
                gpu_trace.freed(block)
                if held:
                    self.allocator.hold(block)
                    self.held.append((until, block))
                else:
                    free(block)
        while self.departed:
            self.departed.popleft()()

    def _complete(self, *, wait: bool = False) -> None:
        """Free held blocks that other streams no longer use, as the caching allocator does at each allocation."""
        if self.allocator.captures or not self.held:
            return
        clock, held = self.timer.clock, self.held
        if wait:
            clock.wait(max(until for until, _ in held), "memory that another stream uses")
        self.held = [(until, block) for until, block in held if until > clock.host]
        for until, block in held:
            if until <= clock.host:
                if self.history is not None:
                    self.history.completed(block)
                self.allocator.complete(block)

    def allocate(self, nbytes: int) -> Label:
        """Allocate a storage of `nbytes`; raises torch.OutOfMemoryError with CUDA's text.

        Values lie in this machine's memory: raises MemoryError where that runs out first.
        """
        memory = self._memory
        with self.lock:
            if self.pending:
                self.drain()
            if self.held:
                self._complete()
            try:
                block = self.allocator.allocate(nbytes, self.stream, self._pool() if self.routes else None)
            except OutOfMemory as error:
                text = str(error)
                if self.history is not None:
                    self.history.out_of_memory(error.shortage)
                failed = torch.OutOfMemoryError(text)
            else:
                if memory.calls != self._calls:
                    self._spend_calls()
                label = Label(self, block, nbytes)
                if nbytes >= host_memory.WORTH_ASKING and self.compute:
                    host_memory.check_room(nbytes, f"the virtual GPU has room for {nbytes / 2**20:,.0f} MiB")
                if self.history is not None and block is not None:
                    self.history.allocated(block)
                if self.observer is not None and block is not None:
                    self.observer.allocated(block)
                gpu_trace.allocated(block)
                return label
        try:
            raise failed
        finally:
            del failed  # breaks a cycle with this frame, which would keep all callers' tensors alive

    def _pool(self) -> PrivatePool | None:
        """Return the private pool that serves this thread's allocations now."""
        stream = self.stream
        return next((pool for covers, pool in reversed(self.routes) if covers(stream)), None)

    def check_capture(self) -> None:
        """Raise torch.AcceleratorError if this thread may not wait for the GPU, since a graph is being captured."""
        if self.capture is not None and self.capture.forbids():
            self.capture.break_off()
            raise torch.AcceleratorError(NOT_WHILE_CAPTURING + ("" if self.blocking else MAY_BE_LATE))

    def later(self, call: Callable[[], object]) -> None:
        """Queue a call that uses the allocator: for finalizers, which may run at any moment, also inside it."""
        self.departed.append(call)
        self.pending.append(None)

    def empty_cache(self) -> None:
        """Release cached memory; the driver waits for all kernels first."""
        with self.lock:
            self.drain()
            if self.fault is not None:
                self.raise_fault()
            self.allocator.empty_cache()
            if self._memory.calls != self._calls:
                self.timer.synchronize()
                self._spend_calls()

    def _spend_calls(self) -> None:
        """Charge the host for new driver calls that take or give back memory."""
        clock = self.timer.clock
        clock.spend((self._memory.calls - self._calls) * clock.rates.malloc_us * 1e-6)
        self._calls = self._memory.calls

    def load(self, library: str) -> None:
        """Charge the host for loading a library's kernels at its first call."""
        if library not in self.loaded:
            self.loaded.add(library)
            clock = self.timer.clock
            clock.spend(clock.rates.first_ms[library] * 1e-3)

    def put(self, storage: Any) -> None:
        """Label a storage that has appeared on this GPU."""
        setattr(storage, NAME, self.allocate(storage.nbytes()))

    def touch(self, sizes: Iterable[int | list[int]]) -> None:
        """Allocate and free a kernel's temporary memory, which counts for peaks and for reserved memory.

        A list among the sizes is a phase: its memory is freed before the next size is allocated. A negative size frees
        the last allocation of that size.
        """
        held: list[Label] = []
        for size in sizes:
            if isinstance(size, list):
                self.touch(size)
            elif size < 0:
                del held[max(place for place, label in enumerate(held) if label.nbytes == -size)]
            else:
                held.append(self.allocate(size))
                if self.observer is not None:
                    self.observer.took_beside(held[-1].block)
        held.clear()

    def fail(self, assertion: str) -> None:
        """Record a failed device-side assert: every synchronization from now on raises it."""
        self.fault = assertion
        if self.blocking:
            self.raise_fault()

    def raise_fault(self) -> None:
        """Raise torch.AcceleratorError if a kernel has failed."""
        if self.fault is not None:
            raise torch.AcceleratorError(DEVICE_ASSERT + ("" if self.blocking else MAY_BE_LATE))

    def is_sound(self) -> bool:
        """Return True; raises torch.AcceleratorError if a kernel has failed, as every query of CUDA's state does."""
        self.raise_fault()
        return True

    def synchronize(self, stream: int | None = None) -> None:
        """Wait for the kernels of one stream or of all; raises torch.AcceleratorError if one of them has failed."""
        self.check_capture()
        self.timer.synchronize(stream)
        if stream is None:
            gpu_trace.host_waits_for_all()
        else:
            gpu_trace.host_waits_for_stream(stream)
        self.raise_fault()

    def close(self) -> None:
        self.active = False
        self.workspaces.clear()
        self.dropout_state = None

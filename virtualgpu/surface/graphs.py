"""CUDA graphs and private memory pools: `torch.cuda.CUDAGraph`, `MemPool`, and their C++ helpers.

`torch.cuda.graph` and `make_graphed_callables` are PyTorch's. The checks are those of PyTorch 2.15, CUDAGraph.cpp.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..clock.graphs import Recording
from ..operations.captured import Capture
from ..scope import in_force
from ..scope.device import MAY_BE_LATE
from ..scope.patches import Patches
from ..scope.refusals import NotMirrored

if TYPE_CHECKING:
    from ..gpu import VirtualGPU
    from ..memory.private import Id
    from ..scope.device import Device

_TYPES = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.\n"
_numbers = itertools.count(1)
_MODES = ("global", "thread_local", "relaxed")


def install(gpu: VirtualGPU, patches: Patches) -> None:
    """Replace the classes and the functions that PyTorch's helpers call."""
    module, memory = torch.cuda.graphs, torch.cuda.memory
    for owner in (torch.cuda, module):
        patches.set(owner, "CUDAGraph", CUDAGraph)
    for owner in (torch._C, module):
        patches.set(owner, "_graph_pool_handle", lambda: (0, next(_numbers)))
        patches.set(owner, "_cuda_isCurrentStreamCapturing", lambda: capturing(gpu))
    patches.set(module.graph, "default_capture_stream", None)
    for owner in (torch.cuda, memory):
        patches.set(owner, "MemPool", MemPool)
    for name, function in {
        "_cuda_beginAllocateToPool": _begin,
        "_cuda_beginAllocateCurrentThreadToPool": _begin,
        "_cuda_endAllocateToPool": _end,
        "_cuda_releasePool": _release,
    }.items():
        for owner in (torch._C, memory):
            patches.set(owner, name, function)
    patches.set(torch._C, "_host_emptyCache", gpu.pinned.empty)


def capturing(gpu: VirtualGPU) -> bool:
    """Return True if work queued on the current stream goes into a graph."""
    device = gpu.device(None)
    return device.capture is not None and device.capture.covers(device.stream)


class CUDAGraph:
    """`torch.cuda.CUDAGraph`."""

    _device: Device | None = None
    _capture: Capture | None = None
    _recording: Recording | None = None
    _pool: Id | None = None
    _ended = _instantiated = False
    _keep_graph: bool
    _retained: list[Id]

    def __new__(cls, keep_graph: bool = False) -> CUDAGraph:
        self = super().__new__(cls)
        self._keep_graph, self._retained = keep_graph, []
        return self

    def __init__(self, keep_graph: bool = False) -> None:
        """All is done in `__new__`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotMirrored(f"CUDAGraph.{name} is not mirrored by the virtual GPU")

    def capture_begin(
        self, pool: Any = None, capture_error_mode: str = "global", check_input_liveness: bool = False
    ) -> None:
        """Start to capture the work queued on the current stream."""
        if self._instantiated:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance."
            )
        if capture_error_mode not in _MODES:
            raise RuntimeError(
                "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got "
                + str(capture_error_mode)
            )
        gpu = in_force.current
        assert gpu is not None
        device = gpu.device(None)
        stream = device.stream
        if stream == 0:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay "
                "them on the default stream.)"
            )
        if device.capture is not None:
            device.check_capture()
        self._pool = (next(_numbers), 0) if pool is None else tuple(getattr(pool, "id", pool))
        self._device, self._recording = device, Recording(stream)
        self._capture = capture = Capture(gpu, device, self._recording, capture_error_mode)
        with device.lock:
            device.drain()
            device.routes.append((capture.covers, device.allocator.private.use(self._pool)))
            device.allocator.captures += 1
        device.capture, device.timer.recording = capture, self._recording
        _capturing[id(capture)] = self

    def capture_end_pre(self) -> None:
        """The stream captures no longer; raises where the capture has failed."""
        device, recording, capture = self._device, self._recording, self._capture
        if device is None or recording is None or capture is None or device.capture is not capture:
            raise RuntimeError("capture_end() called before capture_begin().")
        if device.stream != recording.origin:
            raise RuntimeError("Capture must end on the same stream it began on.")
        capture.broken = capture.broken or bool(recording.loose)
        with device.lock:
            device.drain()
            device.routes = [route for route in device.routes if route[0] != capture.covers]
            device.allocator.captures -= 1
        device.capture = device.timer.recording = None
        _capturing.pop(id(capture), None)
        capture.end()
        if capture.broken:
            late = "" if device.blocking else MAY_BE_LATE
            self._let_go()
            if recording.loose:
                text = "capturing stream has unjoined work\nSearch for `cudaErrorStreamCaptureUnjoined' in "
            else:
                text = (
                    "operation failed due to a previous error during capture\n"
                    "Search for `cudaErrorStreamCaptureInvalidated' in "
                )
            raise torch.AcceleratorError("CUDA error: " + text + _TYPES + late)
        if recording.empty:
            warnings.warn(
                "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong "
                "device or stream.",
                stacklevel=4,
            )
        self._ended = True

    def capture_end_post(self) -> None:
        """Nothing is left to be done."""

    def capture_end(self) -> None:
        """The graph is complete."""
        self.capture_end_pre()
        if not self._keep_graph:
            self.instantiate()
        self.capture_end_post()

    def instantiate(self) -> None:
        """Make it ready to be launched."""
        if not self._ended:
            raise RuntimeError("capture_end() must have been called before calling instantiate")
        if self._instantiated and not self._keep_graph:
            raise RuntimeError("instantiate() is intended to be called by the user only when keep_graph=true")
        self._instantiated = True

    def replay(self) -> None:
        """Launch the graph in the current stream."""
        if not self._ended:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        device, recording, capture = self._device, self._recording, self._capture
        assert device is not None
        assert recording is not None
        assert capture is not None
        self._instantiated = True
        device.raise_fault()
        if device.capture is not None and device.capture.covers(device.stream):
            raise NotMirrored("a CUDA graph within another is not mirrored by the virtual GPU")
        clock = device.timer.clock
        clock.enter()
        device.timer.launch_graph(device.stream, recording)
        capture.run()
        clock.leave()
        if device.blocking:
            device.timer.synchronize(device.stream)

    def reset(self) -> None:
        """Forget the graph; its pool is no longer held."""
        if self._ended:
            self._let_go()
            assert self._device is not None
            with self._device.lock:
                self._device.drain()
        self._ended = self._instantiated = False
        self._capture = None

    def _let_go(self) -> None:
        assert self._device is not None
        for pool in (self._pool, *self._retained):
            assert pool is not None
            self._device.later(partial(self._device.allocator.private.release, pool))
        self._retained = []

    def pool(self) -> Id:
        """The id of its pool, which another graph can share."""
        if not self._ended:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        assert self._pool is not None
        return self._pool

    def pools(self) -> list[Id]:
        """The ids of all pools that it holds."""
        return [self.pool(), *self._retained]

    def _retain_pool(self, pool: Any) -> None:
        assert self._device is not None
        id: Id = tuple(getattr(pool, "id", pool))
        self._device.allocator.private.use(id)
        self._retained.append(id)

    def register_generator_state(self, generator: Any) -> None:
        """A replay draws from every generator anew."""

    def enable_debug_mode(self) -> None:
        """Keep the graph after it is made ready."""
        self._keep_graph = True

    @staticmethod
    def get_currently_capturing_graph() -> CUDAGraph:
        """The graph that the current stream's work goes into."""
        gpu = in_force.current
        assert gpu is not None
        if not capturing(gpu):
            raise RuntimeError("The current stream is not currently capturing.")
        return _capturing[id(gpu.device(None).capture)]

    def __del__(self) -> None:
        if self._ended:
            self._let_go()


_capturing: dict[int, CUDAGraph] = {}


class MemPool:
    """`torch.cuda.MemPool`."""

    def __init__(self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False) -> None:
        if allocator is not None or use_on_oom or no_split:
            raise NotMirrored(
                "a MemPool with an allocator of its own, use_on_oom or no_split is not mirrored by the virtual GPU"
            )
        gpu = in_force.current
        if gpu is None:
            raise RuntimeError("no virtual GPU is in force")
        self._id = (0, next(_numbers))
        self._device = gpu.device(None)
        with self._device.lock:
            self._device.allocator.private.use(self._id)

    @property
    def id(self) -> Id:
        return self._id

    @property
    def allocator(self) -> None:
        return None

    def use_count(self) -> int:
        """Return its number of users."""
        return self._device.allocator.private.uses(self._id)

    def snapshot(self, include_traces: bool = True) -> Any:
        """Its segments."""
        return torch.cuda.memory_snapshot(self._id)

    def __del__(self) -> None:
        device: Device | None = getattr(self, "_device", None)
        if device is not None:
            device.later(partial(device.allocator.let_go, self._id))


def _device(index: int) -> Device:
    gpu = in_force.current
    assert gpu is not None
    return gpu.device(index)


def _begin(index: int, id: Any) -> None:
    """Allocate this thread's memory from a private pool."""
    device, thread = _device(index), threading.get_ident()
    with device.lock:
        private = device.allocator.private.use(tuple(id))
        device.routes.append((lambda stream: threading.get_ident() == thread, private))
        device.allocator.captures += 1  # PyTorch counts it among them


def _end(index: int, id: Any) -> None:
    device = _device(index)
    with device.lock:
        for place in reversed(range(len(device.routes))):
            if device.routes[place][1].id == tuple(id):
                del device.routes[place]
                device.allocator.captures -= 1
                return


def _release(index: int, id: Any) -> None:
    device = _device(index)
    with device.lock:
        device.drain()
        device.allocator.private.release(tuple(id))

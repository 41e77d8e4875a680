"""Streams, events and generators of a virtual GPU.

Values are there when a call returns; the times are those of the device's clock, on which streams order what they are
given.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..operations import copies
from ..scope import gpu_trace, in_force
from ..scope.numbering import current, device_at, device_index, generators, stream_numbers
from ..scope.refusals import NotMirrored
from . import capture_waits

if TYPE_CHECKING:
    from ..clock.clock import DeviceClock

CUDA = 1  # c10::DeviceType::CUDA


_OwnStream: Any = torch.Stream
_OwnGenerator: Any = torch.Generator


class Stream(_OwnStream):  # type: ignore[misc]
    """`torch.cuda.Stream`; tensors allocated under it come from its own pool of memory."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        gpu = in_force.current
        if gpu is None:
            raise RuntimeError("no virtual GPU is in force")
        if "stream_id" not in kwargs:
            index = device_index(device)
            kwargs = {"stream_id": next(stream_numbers), "device_index": index, "device_type": CUDA}
            gpu_trace.stream_made(kwargs["stream_id"])
            if priority < 0:
                gpu.clock.devices[index].urgent.add(kwargs["stream_id"])
        self: Stream = super().__new__(cls, **kwargs)
        self._priority = max(-3, min(0, priority))
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """All is done in `__new__`."""

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority."""
        return 0, -3

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.device_index)

    @property
    def cuda_stream(self) -> int:
        return int(self.stream_id)

    @property
    def priority(self) -> int:
        return int(self._priority)

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_stream)

    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        other = device_at(stream.device_index).timer
        gpu_trace.stream_waits(self.stream_id, stream.stream_id)
        recording = other.recording
        if recording is not None and stream.stream_id in recording.streams:
            capture_waits.wait(device_at(self.device_index), self.stream_id, recording.mark(stream.stream_id))
            return
        capture_waits.check(device_at(self.device_index), self.stream_id)
        device_at(self.device_index).timer.hold(self.stream_id, other.streams.get(stream.stream_id, 0.0))

    def record_event(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        device = device_at(self.device_index)
        return _done(device.timer, device.timer.streams.get(self.stream_id, 0.0)) and device.is_sound()

    def is_capturing(self) -> bool:
        return _captures(device_at(self.device_index).timer, self.stream_id)

    def synchronize(self) -> None:
        device_at(self.device_index).synchronize(self.stream_id)
        copies.waited_unasked()

    def __enter__(self) -> Stream:
        device, chosen = device_at(self.device_index), current().chosen
        self._outer = device.stream, chosen.number
        device.stream, chosen.number = self.stream_id, self.device_index
        return self

    def __exit__(self, *exc: object) -> None:
        device_at(self.device_index).stream, current().chosen.number = self._outer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.stream_id, self.device_index) == (
            other.stream_id,
            other.device_index,
        )

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:{self.device_index} cuda_stream={self.stream_id:#x}>"


class Event:
    """`torch.cuda.Event`."""

    _handle = 0  # CUDA makes the event when it is first recorded

    def __init__(
        self,
        device: Any = None,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        if isinstance(device, bool):  # torch.cuda.Event(True): its first argument is enable_timing
            enable_timing, device = device, None
        self.device = torch.device("cuda", device_index(device))
        self.enable_timing = enable_timing
        self._at: float | None = None
        self._timer: DeviceClock | None = None  # of the GPU that it was recorded on
        self._marks: tuple[Any, int] | None = None  # the capture of a CUDA graph, and its number there

    def record(self, stream: Any = None) -> None:
        """Record the work queued on `stream` (the current one) by now."""
        device = device_at(None if stream is None else stream.device_index)
        self.device, self._timer = device.name, device.timer
        number = device.stream if stream is None else stream.stream_id
        if not self._handle:
            self._handle = next(gpu_trace.events)
            gpu_trace.event_made(self._handle)
        gpu_trace.event_recorded(self._handle, number)
        recording = device.timer.recording
        if recording is not None and number in recording.streams:
            self._at, self._marks = None, (recording, recording.mark(number))
            return
        self._at, self._marks = device.timer.mark(number), None

    def wait(self, stream: Any = None) -> None:
        """Make work queued on `stream` (the current one) from now on wait for this event."""
        device = device_at(None if stream is None else stream.device_index)
        number = device.stream if stream is None else stream.stream_id
        if self._handle:
            gpu_trace.event_awaited(self._handle, number)
        if self._marks is not None and self._marks[0] is device.timer.recording:
            capture_waits.wait(device, number, self._marks[1])
        elif self._at is not None:
            capture_waits.check(device, number)
            device.timer.hold(number, self._at)

    def query(self) -> bool:
        """Return True if the recorded work is done, or if nothing was recorded."""
        done = self._timer is None or self._at is None or _done(self._timer, self._at)
        return done and (in_force.current is None or device_at(self.device.index).is_sound())

    def synchronize(self) -> None:
        """Wait for the recorded work."""
        if in_force.current is not None:
            device_at(self.device.index).check_capture()
        if self._timer is not None and self._at is not None:
            self._timer.clock.wait(self._at, "event.synchronize")
            gpu_trace.host_waits_for_event(self._handle)
        if in_force.current is not None:
            device_at(self.device.index).raise_fault()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to `end_event`, on the device's clock."""
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end_event._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end_event.query()):
            raise ValueError("Both events must be completed before calculating elapsed time.")
        return (end_event._at - self._at) * 1e3

    def ipc_handle(self) -> bytes:
        raise _not_mirrored("events shared between processes are")

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> Event:
        raise _not_mirrored("events shared between processes are")

    def __del__(self) -> None:
        if self._handle:
            gpu_trace.event_gone(self._handle)

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {'recorded' if self._at is not None else 'uninitialized'}>"


class CudaEvent(Event):
    """`torch.cuda.Event`, which takes no device."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        super().__init__(None, enable_timing, blocking, interprocess, external)


class _AnyGenerator(type(_OwnGenerator)):  # type: ignore[misc]
    """Metaclass: PyTorch's own generators are instances of this `torch.Generator`, too."""

    def __instancecheck__(cls, item: Any) -> bool:
        return isinstance(item, _OwnGenerator)


_REAL_STATE = 16  # bytes of a real GPU's state, as checkpoints have it: a seed, and how much was drawn since
_ODD = 0x9E3779B97F4A7C15  # so that other offsets are other seeds; numbers drawn are not a GPU's in any case


class Generator(_OwnGenerator, metaclass=_AnyGenerator):  # type: ignore[misc]
    """`torch.Generator`, which here can be one of a virtual GPU."""

    gpulab_device: torch.device | None  # as it was named; `cuda` is the GPU that is current when it is used

    def __new__(cls, device: Any = "cpu") -> Generator:
        named = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        on_gpu = named.type == "cuda"
        self: Generator = super().__new__(cls, "cpu" if on_gpu else device)
        self.gpulab_device = named if on_gpu else None
        if on_gpu:
            generators[self._cdata] = self
        return self

    def __init__(self, device: Any = "cpu") -> None:
        """All is done in `__new__`."""

    @property
    def device(self) -> torch.device:
        return self.gpulab_device or super().device

    def get_offset(self) -> int:
        if self.gpulab_device is None:
            return int(super().get_offset())
        raise _not_mirrored("the offset of a generator (get_state() has all of it) is")

    def set_offset(self, offset: int) -> Generator:
        if self.gpulab_device is None:
            super().set_offset(offset)
            return self
        raise _not_mirrored("the offset of a generator (set_state() sets all of it) is")

    def set_state(self, new_state: torch.Tensor) -> Generator:
        _on_host(new_state)
        if self.gpulab_device is not None and new_state.numel() == _REAL_STATE:
            seed, offset = (int.from_bytes(bytes(half.tolist()), "little") for half in new_state.view(2, -1))
            self.manual_seed((seed + offset * _ODD) % 2**64)
        else:
            super().set_state(new_state)
        return self

    def clone_state(self) -> Generator:
        """Another generator of the same device, in the same state."""
        other = Generator(self.device)
        other.set_state(self.get_state())
        return other

    def __reduce__(self) -> Any:
        return _generator, (self.device, self.get_state())


def set_rng_state(own: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
    """Set the state of PyTorch's CPU generator, whose set_state cannot be replaced."""

    @functools.wraps(own)
    def set_state(new_state: torch.Tensor) -> None:
        _on_host(new_state)
        own(new_state)

    return set_state


def _on_host(state: torch.Tensor) -> None:
    """A generator's state lies on the host, also that of a GPU."""
    if isinstance(state, torch.Tensor) and state.device.type == "cuda":
        raise TypeError("RNG state must be a torch.ByteTensor")


def _captures(timer: DeviceClock, stream: int) -> bool:
    return timer.recording is not None and stream in timer.recording.streams


def _done(timer: DeviceClock, at: float) -> bool:
    """Return True if the host's clock has reached `at`; always for GPUs that are no longer in force."""
    gpu = in_force.current
    return gpu is None or gpu.clock is not timer.clock or timer.clock.reached(at)


def _generator(device: torch.device, state: torch.Tensor) -> Generator:
    out = Generator(device)
    out.set_state(state)
    return out


def _not_mirrored(what: str) -> Exception:
    return NotMirrored(f"{what} not mirrored by the virtual GPU")

"""Streams, events and generators of a virtual GPU.

They have CUDA's surface and order nothing yet: every operation is finished when its call returns, and an event's time
is the host's.
"""

from __future__ import annotations

import itertools
import time
import weakref
from typing import Any

import torch

from . import state

_numbers = itertools.count(1)
_CUDA = 1  # c10::DeviceType::CUDA


class Stream(torch.Stream):
    """`torch.cuda.Stream`; tensors allocated under it come from its own pool of memory."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        gpu = state.current
        if gpu is None:
            raise RuntimeError("no virtual GPU is in force")
        if "stream_id" not in kwargs:
            index = device_index(device)
            kwargs = {"stream_id": next(_numbers), "device_index": index, "device_type": _CUDA}
        return super().__new__(cls, **kwargs)  # type: ignore[no-any-return]

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.device_index)

    @property
    def cuda_stream(self) -> int:
        return int(self.stream_id)

    @property
    def priority(self) -> int:
        return 0

    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        """All work is done when it is queued."""

    def record_event(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        _device(self.device_index).synchronize()

    def __enter__(self) -> Stream:
        index = self.device_index
        self._outer = (_device(index).stream, state.thread.device)
        _device(index).stream, state.thread.device = self.stream_id, index
        return self

    def __exit__(self, *exc: object) -> None:
        _device(self.device_index).stream, state.thread.device = self._outer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.stream_id, self.device_index) == (other.stream_id, other.device_index)

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:{self.device_index} cuda_stream={self.stream_id:#x}>"


class Event:
    """`torch.cuda.Event`."""

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

    def record(self, stream: Any = None) -> None:
        self._at = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """All work is done when it is queued."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        _device(self.device.index).synchronize()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to `end_event`, on the host's clock."""
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end_event._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._at - self._at) * 1e3

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {'recorded' if self._at is not None else 'uninitialized'}>"


class CudaEvent(Event):
    """`torch.cuda.Event`, which takes no device."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        super().__init__(None, enable_timing, blocking, interprocess, external)


class Generator(torch.Generator):
    """`torch.Generator`, which here can be one of a virtual GPU."""

    gpulab_device: torch.device | None

    def __new__(cls, device: Any = "cpu") -> Generator:
        on_gpu = isinstance(device, int) or torch.device(device).type == "cuda"
        self: Generator = super().__new__(cls, "cpu" if on_gpu else device)
        self.gpulab_device = torch.device("cuda", device_index(device)) if on_gpu else None
        if on_gpu:
            _generators[self._cdata] = self  # type: ignore[attr-defined]
        return self

    def __init__(self, device: Any = "cpu") -> None:
        """All is done in `__new__`."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.gpulab_device or super().device

    def clone_state(self) -> Generator:
        """Another generator of the same device, in the same state."""
        other = Generator(self.device)
        other.set_state(self.get_state())
        return other

    def __reduce__(self) -> Any:
        return _generator, (self.device, self.get_state())


_generators: weakref.WeakValueDictionary[int, Generator] = weakref.WeakValueDictionary()


def generator_device(generator: Any) -> torch.device:
    """Where a generator is. An operation is handed a new Python object for it: the one in C++ says which it is."""
    found = _generators.get(generator._cdata)
    where: torch.device = generator.device if found is None else found.device
    return where


def _generator(device: torch.device, state: torch.Tensor) -> Generator:
    out = Generator(device)
    out.set_state(state)
    return out


def device_index(device: Any) -> int:
    """The number of a GPU as `torch.cuda` takes it: None, 1, "cuda:1" or a torch.device."""
    if device is None:
        return state.thread.device
    if isinstance(device, int):
        return _device(device).index
    device = torch.device(device)
    if device.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return state.thread.device if device.index is None else _device(device.index).index


def _device(index: int) -> Any:
    gpu = state.current
    if gpu is None:
        raise RuntimeError("no virtual GPU is in force")
    return gpu.device(index)

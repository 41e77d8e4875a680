"""Times copies of several sizes between CPU and GPU, and frees the memory that it used."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from virtualgpu.readings import counters
from virtualgpu.readings.counters import DeviceLike, Gpu
from virtualgpu.readings.source import numbers_of
from virtualgpu.units import decimal_size

from .. import timing
from ..timing import Timing
from .results import Copy, Direction, Kind, Pinning, Series, Transfers

if TYPE_CHECKING:
    import torch

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
_MOVED = 2e9  # most bytes to copy of one size
_HOST = 3  # times the size: ordinary memory, pinned memory, and that of a virtual GPU


def measure(
    sizes_bytes: Iterable[float] = SIZES,
    direction: Direction = "h2d",
    *,
    pinned: bool | Literal["both"] = "both",
    repeat: int = 20,
    device: DeviceLike = None,
) -> Transfers:
    """Copy tensors of `sizes_bytes` to the GPU ("h2d"), from it ("d2h") or within it ("d2d"), and time each size.

    `pinned` chooses the host's memory: page-locked (True), ordinary (False) or both in turn; within the GPU it has no
    effect. Each size is copied `repeat` times after a warm-up, large ones less often (about 2 GB in all, at least 3
    times), between existing buffers that have been written; the median counts. The time of pinning is reported
    separately. `device` is None (the current GPU), a number, a text such as "cuda:1" or a torch.device.

    A size without room on the host or on the GPU is left out, with a sentence in `skipped`. The memory is freed at the
    end, with PyTorch's caches, but `torch.cuda.max_memory_allocated()` includes it.

    Raises RuntimeError without a GPU, ValueError and TypeError for sizes, a direction or a device that make no sense.
    """
    sizes = _checked(sizes_bytes)
    if direction not in ("h2d", "d2h", "d2d"):
        raise ValueError(f"direction is {direction!r}; it must be 'h2d' (CPU to GPU), 'd2h' or 'd2d' (within the GPU)")
    if pinned is not True and pinned is not False and pinned != "both":
        raise ValueError(f"pinned is {pinned!r}; it must be True, False or 'both'")
    timing.measuring.check_count("repeat", repeat, 1)
    gpu = _gpu(device)
    hosts: dict[object, tuple[Kind, ...]] = {True: ("pinned",), False: ("pageable",), "both": ("pinned", "pageable")}
    return _Bench(gpu, direction, ("on the GPU",) if direction == "d2d" else hosts[pinned], repeat).run(sizes)


def _checked(sizes_bytes: Iterable[float]) -> list[int]:
    if isinstance(sizes_bytes, (int, float, str)) or not isinstance(sizes_bytes, Iterable):
        raise TypeError(f"sizes_bytes must be several sizes such as (1e6, 1e8), not {sizes_bytes!r}")
    sizes = []
    for value in sizes_bytes:
        whole: Any = int(value) if isinstance(value, float) and value.is_integer() else value
        try:
            nbytes = operator.index(whole)
        except TypeError:
            raise TypeError(f"sizes_bytes holds {value!r}; each size must be a whole number of bytes") from None
        if isinstance(value, bool) or nbytes < 1:
            raise ValueError(f"sizes_bytes holds {value!r}; each size must be a number of bytes above 0")
        sizes.append(nbytes)
    if not sizes:
        raise ValueError("sizes_bytes is empty; give the sizes to copy, such as (1e6, 1e7, 1e8)")
    return sorted(set(sizes))


def _gpu(device: DeviceLike) -> Gpu:
    found = counters.parse_device(device)
    if found == "all":
        raise ValueError('transfers.measure copies to one GPU, so device must not be "all"')
    gpus = counters.find_gpus(found)
    if not gpus:
        named = "" if found is None else f" called {str(found)!r}"
        raise RuntimeError(
            f"transfers.measure copies between CPU and GPU, and there is no GPU{named} here: gpulab.setup() gives you "
            "a virtual one"
        )
    return gpus[0]


class _NoRoom(Exception):
    """Raised with the reason why a size is left out."""


class _Bench:
    """The copies of one call of `measure`."""

    def __init__(self, gpu: Gpu, direction: Direction, kinds: Sequence[Kind], repeat: int) -> None:
        self._gpu, self._direction, self._kinds, self._repeat = gpu, direction, kinds, repeat
        self._copies: dict[Kind, list[Copy]] = {kind: [] for kind in kinds}
        self._pinning: list[Pinning] = []
        self._skipped: list[str] = []
        self._how = ""

    def run(self, sizes: Sequence[int]) -> Transfers:
        try:
            for nbytes in sizes:
                try:
                    self._check_room(nbytes)
                    self._measure(nbytes)
                except _NoRoom as reason:
                    self._skipped.append(f"{decimal_size(nbytes)} left out: {reason}")
        finally:
            _give_back()
        return Transfers(
            direction=self._direction,
            device=self._gpu.name,
            gpu=_product(self._gpu),
            how=self._how,
            numbers=numbers_of(self._gpu.scope),
            series=tuple(Series(kind, tuple(self._copies[kind])) for kind in self._kinds),
            pinning=tuple(self._pinning),
            skipped=tuple(self._skipped),
        )

    def _check_room(self, nbytes: int) -> None:
        if self._direction == "d2d":
            needed, free = 2 * nbytes, _free(self._gpu)
        else:
            needed, free = _HOST * nbytes, _host_free()
            if needed > free:
                raise _NoRoom(
                    f"it needs {decimal_size(needed)} of the host's memory, and {decimal_size(free)} are free"
                )
            needed, free = nbytes, _free(self._gpu)
        if needed > free:
            raise _NoRoom(f"it needs {decimal_size(needed)} of the GPU's memory, and {decimal_size(free)} are free")

    def _measure(self, nbytes: int) -> None:
        """Measure all kinds of one size, or none."""
        found: dict[Kind, Timing] = {}
        there = _made(nbytes, self._gpu.name)
        if self._direction == "d2d":
            found["on the GPU"] = self._time(there, _made(nbytes, self._gpu.name))
        else:
            here = _made(nbytes, "cpu")
            if "pageable" in self._kinds:
                found["pageable"] = self._time(*self._from_to(here, there))
            if "pinned" in self._kinds:
                _empty_host_cache()  # else cached pinned memory is used, at no cost
                with timing.Timer(self._gpu.name) as pinning:
                    here = _allocated(here.pin_memory, "cpu")
                found["pinned"] = self._time(*self._from_to(here, there), non_blocking=True)
                self._pinning.append(Pinning(nbytes, pinning.ms))
        for kind, took in found.items():
            self._how = took.how
            self._copies[kind].append(Copy(nbytes, took))

    def _from_to(self, here: torch.Tensor, there: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (here, there) if self._direction == "h2d" else (there, here)

    def _time(self, source: torch.Tensor, target: torch.Tensor, *, non_blocking: bool = False) -> Timing:
        nbytes = source.nbytes
        return timing.measure(
            lambda: target.copy_(source, non_blocking=non_blocking),
            repeat=min(self._repeat, max(3, int(_MOVED // nbytes))),
            warm_up=3 if nbytes <= 10_000_000 else 1,
            device=self._gpu.name,
        )


def _made(nbytes: int, device: str) -> torch.Tensor:
    """Return a written buffer: an unwritten one has no pages yet."""
    import torch

    return _allocated(lambda: torch.empty(nbytes, dtype=torch.uint8, device=device).fill_(1), device)


def _allocated(make: Any, device: str) -> torch.Tensor:
    import torch

    try:
        tensor: torch.Tensor = make()
    except RuntimeError as error:
        full = ("out of memory", "can't allocate memory", "not enough memory")
        if not isinstance(error, torch.OutOfMemoryError) and not any(words in str(error) for words in full):
            raise
        raise _NoRoom(f"it finds no room in {'the host' if device == 'cpu' else 'the GPU'}'s memory") from None
    return tensor


def _free(gpu: Gpu) -> int:
    """Return the bytes that PyTorch can still allocate on the GPU: the driver's free memory, and its own unused
    cache."""
    ask = gpu.counts.mem_get_info if gpu.type == "cuda" else gpu.counts.get_memory_info
    try:
        free, _ = ask(gpu.number)
    except (RuntimeError, NotImplementedError):  # unknown for some accelerators; then the allocation fails
        return 1 << 62
    return int(free + gpu.counts.memory_reserved(gpu.number) - gpu.counts.memory_allocated(gpu.number))


def _host_free() -> int:
    from ..machine.diagnosis.host import read_memory

    memory = read_memory()
    limit, used = memory.limits.memory, memory.limits.used or 0
    return memory.available if limit is None else min(memory.available, max(0, limit - used))


def _product(gpu: Gpu) -> str:
    import torch

    return str(torch.cuda.get_device_name(gpu.number)) if gpu.type == "cuda" else gpu.type


def _empty_host_cache() -> None:
    import torch

    if hasattr(torch.accelerator, "empty_host_cache"):
        torch.accelerator.empty_host_cache()


def _give_back() -> None:
    import torch

    _empty_host_cache()
    torch.accelerator.empty_cache()

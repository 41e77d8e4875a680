"""Resolve device arguments to GPUs, and read PyTorch's memory counters of each.

Callers that reset a peak must first inform those that still need it (see `gpulab.memory.tracker`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from .source import in_force

if TYPE_CHECKING:
    import torch

DeviceLike: TypeAlias = "torch.device | str | int | None"


class Gpu(NamedTuple):
    """One GPU: number, type, the module with its counters (torch.cuda or torch.accelerator), the virtual GPU in force.

    `nested` says that single counts are best read from torch's nested dictionary of all of them.
    """

    number: int
    type: str
    counts: Any
    scope: object | None
    nested: bool

    @property
    def name(self) -> str:
        return f"{self.type}:{self.number}"


def parse_device(device: Any) -> Any:
    """Parse `device` to a torch.device, "all", or None for the current GPU; it need not exist.

    Raises TypeError for what is no device at all, ValueError for a text that names none.
    """
    import torch

    if device is None or device == "all" or isinstance(device, torch.device):
        return device
    wanted = 'device must be None (the current GPU), "all", a number, a text such as "cuda:1" or a torch.device'
    if isinstance(device, bool) or not isinstance(device, (int, str)):
        raise TypeError(f"{wanted}, not {device!r} ({type(device).__name__})")
    if isinstance(device, int):
        if device < 0:
            raise ValueError(f"{wanted}, not {device!r}: GPUs are counted from 0")
        found = _accelerator()
        return torch.device("cuda" if found is None else found[0], device)
    try:
        return torch.device(device)
    except RuntimeError:
        raise ValueError(f"{wanted}, not {device!r}") from None


def find_gpus(device: Any) -> list[Gpu]:
    """Return the GPUs that a parsed device means now; none where there is no such hardware (the CPU is none).

    Raises ValueError for an index beyond the last GPU.
    """
    found = _accelerator()
    if found is None:
        return []
    type_, counts = found
    # torch.cuda's own function sorts a flat dictionary of every count for each number: 70 µs instead of 11. Where
    # something else stands in its place, that something knows better.
    rest = type_, counts, in_force(), counts.memory_allocated.__module__ == "torch.cuda.memory"
    if device is None:
        return [Gpu(_current(counts), *rest)]
    if device == "all":
        return [Gpu(index, *rest) for index in range(counts.device_count())]
    if device.type != type_:
        return []
    index = _current(counts) if device.index is None else device.index
    count = counts.device_count()
    if index >= count:
        raise ValueError(f"device {device} does not exist: {_range(type_, count)}")
    return [Gpu(index, *rest)]


def one_gpu(device: DeviceLike, who: str, *, only: str = "") -> Gpu:
    """Return the GPU `device`, the current one for None; `who` names the caller in errors.

    Raises RuntimeError without such a GPU, or if it is not of the type `only`; TypeError and ValueError for what names
    no GPU, or several.
    """
    found = parse_device(device)
    if found == "all":
        raise ValueError(f'{who} is for one GPU, so device must not be "all"; call it for each GPU')
    gpus = find_gpus(found)
    if not gpus:
        which = "no GPU" if found is None else f"no GPU {str(found)!r}"
        raise RuntimeError(f"{who} needs a GPU, and there is {which} here: gpulab.setup() gives you a virtual GPU")
    if only and gpus[0].type != only:
        raise RuntimeError(f"{who} needs a GPU of type {only!r}, not {gpus[0].type!r}: PyTorch offers it only there")
    return gpus[0]


def _range(type_: str, count: int) -> str:
    return f"the only GPU is {type_}:0" if count == 1 else f"there are {count} GPUs, {type_}:0 to {type_}:{count - 1}"


def _accelerator() -> tuple[str, Any] | None:
    """Return the GPU's kind and the module with its counters."""
    import torch

    if torch.cuda.is_available():
        return "cuda", torch.cuda
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        return None
    try:
        torch.accelerator.memory_allocated()
    except (RuntimeError, NotImplementedError):  # its allocator keeps no such counts
        return None
    return found.type, torch.accelerator


def _current(counts: Any) -> int:
    ask = getattr(counts, "current_device", None) or counts.current_device_index  # torch.cuda's name, the other's name
    index: int = ask()
    return index


def allocated(gpu: Gpu) -> int:
    """Return the bytes that live tensors hold, as `torch.cuda.memory_allocated` counts them."""
    count: int = _nested(gpu)["current"] if gpu.nested else gpu.counts.memory_allocated(gpu.number)
    return count


def peak_allocated(gpu: Gpu) -> int:
    """Return the largest `allocated` since the peak was last reset."""
    count: int = _nested(gpu)["peak"] if gpu.nested else gpu.counts.max_memory_allocated(gpu.number)
    return count


def allocated_and_peak(gpu: Gpu) -> tuple[int, int]:
    """Return both counts from one query."""
    if gpu.nested:
        counts = _nested(gpu)
        return counts["current"], counts["peak"]
    return gpu.counts.memory_allocated(gpu.number), gpu.counts.max_memory_allocated(gpu.number)


def total_memory(gpu: Gpu) -> int:
    """Return the size of the GPU's memory in bytes."""
    if gpu.type == "cuda":
        return int(gpu.counts.get_device_properties(gpu.number).total_memory)
    return int(gpu.counts.get_memory_info(gpu.number)[1])


def _nested(gpu: Gpu) -> Any:
    import torch

    return torch._C._cuda_memoryStats(gpu.number)["allocated_bytes"]["all"]

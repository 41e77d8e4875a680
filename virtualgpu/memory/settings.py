"""Parse PYTORCH_CUDA_ALLOC_CONF into the caching allocator's settings.

Settings that change allocations and are not mirrored are refused by name; settings without effect on them are accepted
and ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_NO_EFFECT = {  # on device memory
    "graph_capture_record_stream_reuse",
    "pinned_free_catch_all",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
}
_REFUSED = {"expandable_segments_reserve", "expandable_segments_reserve_by_class", "throw_on_cudamalloc_oom"}
_INTERVALS = 16  # of roundup_power2_divisions: below 2 MiB, 2 to 4 MiB, …, from 32 GiB


@dataclass(frozen=True)
class Settings:
    """The settings of PYTORCH_CUDA_ALLOC_CONF, with PyTorch's defaults.

    `roundup_power2_divisions` is one number for all sizes or sixteen, for sizes from 1, 2, 4, … MiB; 0 or 1 is off.
    `per_process_memory_fraction` is a start value for `set_memory_fraction`.
    """

    max_split_size_mb: int | None = None
    max_non_split_rounding_mb: int = 20
    roundup_power2_divisions: int | tuple[int, ...] = 0
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    large_segment_size_mb: int = 20
    per_process_memory_fraction: float = 1.0

    def __post_init__(self) -> None:
        least = self.large_segment_size_mb
        if least <= 10:
            raise _bad("large_segment_size_mb", least, "above 10")
        if self.max_split_size_mb is not None and self.max_split_size_mb < least:
            raise _bad("max_split_size_mb", self.max_split_size_mb, f"at least {least}")
        if self.max_non_split_rounding_mb < least and self.max_non_split_rounding_mb != 20:
            raise _bad("max_non_split_rounding_mb", self.max_non_split_rounding_mb, f"at least {least}")
        if not 0 <= self.garbage_collection_threshold < 1:
            raise _bad("garbage_collection_threshold", self.garbage_collection_threshold, "between 0 and 1")
        if not 0 <= self.per_process_memory_fraction <= 1:
            raise _bad("per_process_memory_fraction", self.per_process_memory_fraction, "from 0 to 1")
        divisions = self.roundup_power2_divisions
        each = (divisions,) if isinstance(divisions, int) else divisions
        if len(each) not in (1, _INTERVALS) or any(n < 0 or n & (n - 1) for n in each):
            raise _bad("roundup_power2_divisions", divisions, f"a power of 2, or {_INTERVALS} of them, 0 for off")

    @classmethod
    def parse(cls, text: str) -> Settings:
        """Parse `text`, such as "max_split_size_mb:128,expandable_segments:True".

        Raises ValueError for a name or value that PyTorch would not take, NotImplementedError for a setting that
        PyTorch knows and this allocator does not mirror.
        """
        given: dict[str, Any] = {}
        # A comma inside brackets belongs to the value.
        for item in re.findall(r"(?:\[[^\]]*\]|[^,])+", re.sub(r"\s", "", text)):
            name, colon, value = item.partition(":")
            if name in _NO_EFFECT or item in ("backend:native", "throw_on_cudamalloc_oom:False"):
                continue
            if name in _REFUSED or item == "backend:cudaMallocAsync":
                raise NotImplementedError(f"the virtual GPU does not mirror {item!r}; leave it out")
            if name not in _READERS:
                raise ValueError(f"{item!r} is not an allocator setting. Known: {', '.join(_READERS)}")
            if not (colon and value):
                raise ValueError(f"{item!r} has no value; write {name}:VALUE")
            given[name] = _READERS[name](name, value)
        return cls(**given)

    @property
    def divisions(self) -> tuple[int, ...] | None:
        """The sixteen numbers of `roundup_power2_divisions`; None where all are off."""
        each = self.roundup_power2_divisions
        each = (each,) * _INTERVALS if isinstance(each, int) else each
        return each if max(each) > 1 else None


def _bad(name: str, value: object, right: str) -> ValueError:
    return ValueError(f"{name} is {value!r}; it must be {right}")


def _whole(name: str, value: str) -> int:
    if not value.isdecimal():
        raise _bad(name, value, "a whole number")
    return int(value)


def _fraction(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise _bad(name, value, "a number") from None


def _threshold(name: str, value: str) -> float:
    number = _fraction(name, value)
    if not number > 0:
        raise _bad(name, value, "between 0 and 1")
    return number


def _truth(name: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise _bad(name, value, "True or False")
    return value == "True"


def _divisions(name: str, value: str) -> int | tuple[int, ...]:
    """Parse N, or [64:8,256:4,>:2]: 8 steps from 64 MiB, 4 from 256 MiB, 2 from 512 MiB.

    As in PyTorch, the first entry also counts for smaller sizes, and sizes between two entries are not rounded.
    """
    if not value.startswith("["):
        steps = _whole(name, value)
        if steps < 1:
            raise _bad(name, value, "a power of 2")
        return steps
    if not value.endswith("]"):
        raise _bad(name, value, "closed by ]")
    each, last = [0] * _INTERVALS, 0
    for number, item in enumerate(value[1:-1].split(",")):
        size, _, text = item.partition(":")
        steps = _whole(name, text)
        if size == ">":
            each[last + 1 :] = [steps] * (_INTERVALS - last - 1)
            continue
        start = _whole(name, size)
        if start < 1 or start & (start - 1):
            raise _bad(name, value, f"a list of MIB:STEPS with powers of 2, which {size!r} is not")
        last = min(start.bit_length() - 1, _INTERVALS - 1)
        if number == 0:
            each[:last] = [steps] * last
        each[last] = steps
    return tuple(each)


_READERS = {
    "max_split_size_mb": _whole,
    "max_non_split_rounding_mb": _whole,
    "roundup_power2_divisions": _divisions,
    "garbage_collection_threshold": _threshold,
    "expandable_segments": _truth,
    "large_segment_size_mb": _whole,
    "per_process_memory_fraction": _fraction,
}

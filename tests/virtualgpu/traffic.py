"""Random requests to an allocator, the same for the same seed, over all sizes at which its rules change.

`drive` speaks to gpulab's allocator here and to PyTorch's own in torch_allocator/record.py.
"""

import hashlib
import json
import random
from collections.abc import Iterator
from typing import Any, Protocol

MiB = 1 << 20
STREAMS = 3
_RANGES = [
    (1, 4096),
    (4096, MiB),
    (MiB - 2000, MiB + 2000),
    (MiB, 10 * MiB),
    (10 * MiB, 40 * MiB),
    (20 * MiB, 200 * MiB),
]
_ROUND = [512, MiB, 2 * MiB, 3 * MiB, 10 * MiB, 12 * MiB, 20 * MiB, 64 * MiB]


class Target(Protocol):
    """An allocator; `allocate` answers with a handle, or with the text of its out-of-memory error."""

    def allocate(self, nbytes: int, stream: int) -> tuple[Any, str | None]: ...
    def free(self, handle: Any) -> None: ...
    def empty_cache(self) -> None: ...
    def set_memory_fraction(self, fraction: float) -> None: ...
    def reset_peak(self) -> None: ...
    def reset_accumulated(self) -> None: ...
    def memory_stats(self) -> dict[str, int]: ...
    def snapshot(self) -> list[dict[str, Any]]: ...


def drive(target: Target, seed: int, count: int, *, errors: list[str]) -> Iterator[int]:
    """Make `count` calls, yielding the number of each; texts of out-of-memory errors are collected in `errors`."""
    rng = random.Random(seed)
    live: dict[int, Any] = {}
    for number in range(count):
        dice = rng.random()
        if live and dice < 0.45:
            target.free(live.pop(rng.choice(list(live))))
        elif dice < 0.452:
            target.empty_cache()
        elif dice < 0.454:
            target.reset_peak()
        elif dice < 0.455:
            target.reset_accumulated()
        elif dice < 0.457:
            target.set_memory_fraction(rng.choice([1.0, 0.9, 0.5]))
        elif dice < 0.459:
            for key in [key for key in live if rng.random() < 0.7]:
                target.free(live.pop(key))
        else:
            nbytes = rng.randint(*rng.choice(_RANGES))
            if rng.random() < 0.3:
                nbytes = rng.choice(_ROUND)
            stream = rng.choices(range(STREAMS), [8, 1, 1])[0]
            handle, error = target.allocate(nbytes, stream)
            if error is None:
                live[number] = handle
            else:
                errors.append(error)
            del handle  # torch frees a tensor when nobody holds it
        yield number


def digest(target: Target, errors: list[str]) -> str:
    """A short hash of every count, of every segment with its blocks, and of the errors so far."""
    # PyTorch leaves the size of the last request in a block that is free again.
    segments = target.snapshot()
    for segment in segments:
        segment["blocks"] = [
            block if block["state"] == "active_allocated" else {**block, "requested_size": 0}
            for block in segment["blocks"]
        ]
    text = json.dumps([sorted(target.memory_stats().items()), segments, errors])
    return hashlib.sha256(text.encode()).hexdigest()[:16]

"""Scratch memory of CUDA reductions: partial sums of thread blocks, and their semaphores.

Follows PyTorch 2.15, ATen/native/cuda/Reduce.cuh, setReduceConfig: with few results and many inputs, the work is split
over blocks that communicate through global memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_MAX_THREADS = 512
_WARP = 32
_MIN_VALUES, _MAX_VALUES = 16, 256  # per thread

# Resident threads per SM (CUDA programming guide, technical specifications per compute capability).
THREADS_PER_SM = {
    (7, 0): 2048,
    (7, 5): 1024,
    (8, 0): 2048,
    (8, 6): 1536,
    (8, 9): 1536,
    (9, 0): 2048,
    (10, 0): 2048,
    (12, 0): 1536,
}


@dataclass(frozen=True)
class Kernel:
    """Compile-time parameters of a reduction: bytes of an accumulator (0: as the input), values per load."""

    accumulates: int = 4
    values: int = 4
    vector: int = 4


def buffers(
    sizes: Sequence[int],
    strides: Sequence[int],
    dims: Sequence[int],
    itemsize: int,
    kernel: Kernel,
    *,
    sms: int,
    threads_per_sm: int,
) -> list[int]:
    """Return the bytes of partial results and of semaphores; nothing where no block waits for another.

    `sizes` and `strides` (in elements) are the input's, `dims` the reduced dimensions, `itemsize` bytes per element.
    """
    reduced = sorted(_coalesce([(strides[d], sizes[d]) for d in dims if sizes[d] != 1]))
    kept = sorted(_coalesce([(strides[d], sizes[d]) for d in range(len(sizes)) if d not in dims and sizes[d] != 1]))
    inputs = _product(size for _, size in reduced)
    outputs = _product(size for _, size in kept)
    if not inputs or not outputs:
        return []
    along = not kept or (bool(reduced) and reduced[0][0] < kept[0][0])
    first, second = (inputs, outputs) if along else (outputs, inputs)
    fastest = (reduced[0][0] if reduced else 1) if along else kept[0][0]
    output_vector = 1
    if fastest == 1:
        if along and first >= 128 and len(reduced) + len(kept) == 1 and kernel.values >= kernel.vector:
            first //= kernel.vector
        elif not along:
            output_vector = _output_vector(reduced, kept)
            first //= output_vector

    most = _MAX_THREADS // output_vector
    width_limit = _last_power(first) if first < most else most
    height_limit = _last_power(second) if second < most else most
    width = min(width_limit, _WARP)
    height = min(height_limit, most // width)
    width = min(width_limit, most // height)

    step_in = width if along else 1
    step_out = 1 if along else width
    split_in_block = False
    values = _up(inputs, step_in)
    if values >= height * 16 or values >= _MAX_VALUES:
        step_in *= height
        split_in_block = True
    else:
        step_out *= height
    grid = _up(outputs // output_vector, step_out)
    target = sms * (threads_per_sm // (width * height))
    values = _up(inputs, step_in)
    if not (split_in_block and values >= _MAX_VALUES and grid <= target):
        return []
    blocks = max(min(_up(target, grid), _up(values, _MIN_VALUES)), _up(values, _MAX_VALUES))
    if blocks <= 1:
        return []
    size = (kernel.accumulates or itemsize) * outputs * blocks
    if not along:
        size *= width * output_vector
    return [size, 4 * grid]


def _coalesce(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge neighbouring dimensions that can be traversed as one, as TensorIterator does."""
    out: list[tuple[int, int]] = []
    for stride, size in sorted(dims):
        if out and out[-1][0] * out[-1][1] == stride:
            out[-1] = (out[-1][0], out[-1][1] * size)
        else:
            out.append((stride, size))
    return out


def _output_vector(reduced: list[tuple[int, int]], kept: list[tuple[int, int]]) -> int:
    vector = 4
    for stride, _ in [*reduced, *kept[1:]]:
        while stride % vector:
            vector //= 2
    while kept[0][1] % vector:
        vector //= 2
    return vector


def _product(sizes: object) -> int:
    out = 1
    for size in sizes:  # type: ignore[attr-defined]
        out *= size
    return out


def _last_power(n: int) -> int:
    return 1 << (max(n, 1).bit_length() - 1)


def _up(a: int, b: int) -> int:
    return -(-a // b)

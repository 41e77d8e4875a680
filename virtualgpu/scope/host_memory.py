"""Check that this machine has the memory for values, before a virtual GPU fills it."""

from __future__ import annotations

WORTH_ASKING = 64 << 20  # bytes: smaller allocations are not checked
_SPARE = 256 << 20


def free_bytes() -> int:
    """Return the bytes that this process can still allocate, by the machine and its control group (containers)."""
    import psutil

    from ..control_groups import read_limits

    available = int(psutil.virtual_memory().available)
    limits = read_limits()
    if limits.memory is None:
        return available
    return min(available, limits.memory - (limits.used or 0))


def check_room(nbytes: int, what: str) -> None:
    """Raise MemoryError, which begins with `what`, where `nbytes` would make the machine swap."""
    left = free_bytes()
    if left < nbytes + _SPARE:
        raise MemoryError(
            f"{what}, but this machine, whose memory holds its values, has only {max(0, left) / 2**20:,.0f} MiB left. "
            "Use a smaller size, or shapes without values: VirtualGPU(..., compute=False), in a script "
            "`python -m gpulab run --shapes-only`."
        )

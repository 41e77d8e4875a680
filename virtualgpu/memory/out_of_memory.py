"""CUDA's out-of-memory error: its numbers, and PyTorch's message.

The text is that of PyTorch 2.15; 2.11 gives the hint about fragmentation even with expandable segments.
"""

from __future__ import annotations

from dataclasses import dataclass

from .blocks import MiB

_FRAGMENTATION = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to"
    " avoid fragmentation.  See documentation for Memory Management "
    " (https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)
_ADDRESS_SPACE = (
    " expandable_segments is enabled. If instead the process is running out of virtual address space (VSZ),"
    " expandable segments may be over-reserving VA (each segment reserves ~9/8 of device memory, times the number of"
    " streams); reduce it via PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve /"
    " expandable_segments_reserve_by_class."
)


@dataclass(frozen=True)
class Shortage:
    """The numbers of one failed allocation, in bytes.

    `requested` is the request, `tried` the segment that it needed; `process` counts the context and all reserved
    memory; `allowed` is None without a memory fraction. PyTorch's text counts free memory in private pools (`private`)
    as allocated.
    """

    device: int
    requested: int
    tried: int
    total: int
    free: int
    process: int
    allocated: int
    reserved: int
    allowed: int | None
    expandable_segments: bool
    private: int = 0

    @property
    def unallocated(self) -> int:
        """Bytes reserved by PyTorch and neither allocated nor in a private pool."""
        return self.reserved - self.allocated - self.private

    def text(self) -> str:
        """Return PyTorch's message."""
        if self.requested >= 1 << 60:
            return "CUDA out of memory. Tried to allocate more than 1EB memory."
        private = ""
        if self.private:
            private = f"with {format_size(self.private)} allocated in private pools (e.g., CUDA Graphs), "
        allowed = "" if self.allowed is None else f"{format_size(self.allowed)} allowed; "
        return (
            f"CUDA out of memory. Tried to allocate {format_size(self.tried)}. GPU {self.device} has a total capacity"
            f" of {format_size(self.total)} of which {format_size(self.free)} is free. Including non-PyTorch memory,"
            f" this process has {format_size(self.process)} memory in use. {allowed}Of the allocated memory"
            f" {format_size(self.allocated + self.private)} is allocated by PyTorch, {private}and"
            f" {format_size(self.unallocated)} is reserved by PyTorch but unallocated."
            f"{_ADDRESS_SPACE if self.expandable_segments else _FRAGMENTATION}"
        )


class OutOfMemory(RuntimeError):
    """An allocation that did not fit; `shortage` holds the numbers."""

    def __init__(self, shortage: Shortage) -> None:
        super().__init__(shortage.text())
        self.shortage = shortage


def format_size(size: int) -> str:
    """Format a size as PyTorch's allocator does: two decimals; each unit applies from just above its size."""
    if size <= 1024:
        return f"{size} bytes"
    if size <= MiB:
        return f"{size / 1024:.2f} KiB"
    if size <= 1024 * MiB:
        return f"{size / MiB:.2f} MiB"
    return f"{size / (1024 * MiB):.2f} GiB"

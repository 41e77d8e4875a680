"""The memory that cudaMalloc and cuMemCreate take from: how much there is, and the addresses it is given.

No address is used twice, and a later segment lies above an earlier one. Where two free blocks fit equally well PyTorch
2.15 takes the one of the older segment, so that is the lower address here; 2.11 takes the lower of CUDA's addresses,
and how CUDA chooses them is not documented.
"""

from __future__ import annotations

_FIRST_ADDRESS = 0x7000_0000_0000
_APART = 2**40  # so that no two GPUs of a process have an address in common, as with CUDA


class DeviceMemory:
    """`capacity_bytes` of memory of the GPU `device`, of which `context_bytes` belong to the CUDA context."""

    def __init__(self, capacity_bytes: int, context_bytes: int, device: int = 0) -> None:
        self.capacity_bytes = capacity_bytes
        self.context_bytes = context_bytes
        self.taken_bytes = 0
        self.calls = 0  # of the driver, to take memory or to give it back
        self._next_address = _FIRST_ADDRESS + device * _APART

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - self.context_bytes - self.taken_bytes

    def take(self, size: int) -> bool:
        """Take physical memory; False when there is not so much."""
        if size > self.free_bytes:
            return False
        self.taken_bytes += size
        self.calls += 1
        return True

    def give(self, size: int) -> None:
        """Give physical memory back."""
        self.taken_bytes -= size
        self.calls += 1

    def reserve(self, size: int, alignment: int) -> int:
        """The first of `size` addresses that nothing else has."""
        address = -(-self._next_address // alignment) * alignment
        self._next_address = address + size
        return address

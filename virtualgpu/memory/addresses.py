"""Device memory behind cudaMalloc and cuMemCreate: its capacity, and the addresses that it hands out.

They decide between two free blocks that fit equally well. PyTorch 2.15 takes the one of the older segment, so later
segments lie above (`Rising`). Up to 2.11 it took the lower of CUDA's addresses, which `Ranges` imitates as seen on an
H100. (PyTorch 2.12 does neither.)
"""

from __future__ import annotations

from bisect import insort
from typing import Protocol

_FIRST_ADDRESS = 0x7000_0000_0000
_APART = 2**40  # so that no two GPUs of a process have an address in common, as with CUDA
_RANGE = 32 << 20


class Addresses(Protocol):
    """Hands out addresses for segments."""

    def reserve(self, size: int, alignment: int) -> int:
        """Return the first of `size` unused addresses."""
        ...

    def give_back(self, address: int, size: int) -> None:
        """Free a range that `reserve` returned."""
        ...

    def covers(self, address: int) -> bool:
        """Return True if this address was ever handed out."""
        ...


class Rising:
    """Each range above the one before, and none twice."""

    def __init__(self, device: int = 0) -> None:
        self._first = self._next = _FIRST_ADDRESS + device * _APART

    def reserve(self, size: int, alignment: int) -> int:
        address = -(-self._next // alignment) * alignment
        self._next = address + size
        return address

    def give_back(self, address: int, size: int) -> None:
        """No address is given twice."""

    def covers(self, address: int) -> bool:
        return self._first <= address < self._next


class Ranges:
    """Addresses as CUDA chooses them, which is not documented: ranges of a multiple of 32 MiB, each below the one
    before, and the lowest free part of them that is large enough.

    This reproduces all 3,000 events of the trace in virtualgpu/recordings/NVIDIA-H100-80GB-HBM3.json.
    """

    def __init__(self, device: int = 0) -> None:
        self._lowest = self._end = _FIRST_ADDRESS + (device + 1) * _APART
        self._free: list[tuple[int, int]] = []  # address, size; no two touch

    def reserve(self, size: int, alignment: int) -> int:
        for place, (start, length) in enumerate(self._free):
            address = -(-start // alignment) * alignment
            if address + size <= start + length:
                del self._free[place]
                break
        else:
            needed = size + alignment if _RANGE % alignment else size
            length = -(-needed // _RANGE) * _RANGE
            self._lowest -= length
            start = self._lowest
            address = -(-start // alignment) * alignment
        for first, last in ((start, address), (address + size, start + length)):
            if first < last:
                self.give_back(first, last - first)
        return address

    def give_back(self, address: int, size: int) -> None:
        insort(self._free, (address, size))
        place = self._free.index((address, size))
        following = self._free[place + 1 : place + 2]
        if following and following[0][0] == address + size:
            size += self._free.pop(place + 1)[1]
        before = self._free[place - 1 : place] if place else []
        if before and sum(before[0]) == address:
            address, size = before[0][0], before[0][1] + size
            place -= 1
            del self._free[place]
        self._free[place] = (address, size)

    def covers(self, address: int) -> bool:
        return self._lowest <= address < self._end


class DeviceMemory:
    """The memory of GPU `device`: `capacity_bytes`, of which `context_bytes` belong to the CUDA context."""

    def __init__(self, capacity_bytes: int, context_bytes: int, device: int = 0) -> None:
        self.capacity_bytes = capacity_bytes
        self.context_bytes = context_bytes
        self.taken_bytes = 0
        self.calls = 0  # of the driver, to take memory or to give it back
        self.addresses: Addresses = Rising(device)

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

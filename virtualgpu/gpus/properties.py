"""`torch.cuda.get_device_properties` for a virtual GPU, limited to values that are published."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from .specs import Spec

# Of CUDA's programming guide, by compute capability: resident threads and KiB of shared memory of a multiprocessor,
# and how many of these KiB one block may ask for.
_MULTIPROCESSOR = {
    (7, 0): (2048, 96, 96), (7, 5): (1024, 64, 64), (8, 0): (2048, 164, 163), (8, 6): (1536, 100, 99),
    (8, 9): (1536, 100, 99), (9, 0): (2048, 228, 227), (10, 0): (2048, 228, 227), (12, 0): (1536, 100, 99),
}  # fmt: skip


class Properties(SimpleNamespace):
    """The attributes of `torch.cuda.get_device_properties`; an unknown one is an AttributeError that says so."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name!r} of a virtual {self.__dict__.get('name', 'GPU')} is not known")

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count}, virtual)"
        )


def device_properties(spec: Spec) -> Properties:
    """Return the properties of a GPU."""
    threads, shared, block = _MULTIPROCESSOR[spec.capability]
    return Properties(
        name=spec.product,
        major=spec.capability[0],
        minor=spec.capability[1],
        total_memory=spec.memory_bytes,
        multi_processor_count=spec.sms,
        max_threads_per_multi_processor=threads,
        max_threads_per_block=1024,
        shared_memory_per_multiprocessor=shared << 10,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=block << 10,
        regs_per_multiprocessor=65536,
        warp_size=32,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName=spec.product,
    )

"""A limit and a peak on PyTorch's own CUDA allocator, which runs here on a driver that answers and does nothing."""

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import re, torch
from gpulab import memory

MIB = 2**20
take = lambda mib: torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
kept = take(40)
print(memory.peak(lambda: take(100)))
for mib in (66, 128, 1000, 3070):
    with memory.limit(mib):
        with memory.limit(mib):
            pass
        x = take(mib - 40)  # all of it, to the byte
        try:
            take(2)
        except torch.OutOfMemoryError as error:
            print(re.search(r"[0-9.]+ .iB allowed", str(error))[0])
        del x
print(torch.cuda.get_per_process_memory_fraction())
"""


def test_pytorchs_own_allocator_keeps_the_limit_to_the_byte(on_torch_cuda):
    assert on_torch_cuda(SCRIPT, "9.0").splitlines() == [
        "peak 140.0 MiB allocated, 100.0 MiB above the start (measured)",
        "66.00 MiB allowed",
        "128.00 MiB allowed",
        "1000.00 MiB allowed",
        "3.00 GiB allowed",
        "1.0",
    ]

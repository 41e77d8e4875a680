"""A limit and a peak on PyTorch's own CUDA allocator, which runs here on a driver that answers and does nothing."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from courselib.patience import HANG_SECONDS

TOOLS = Path(__file__).resolve().parent.parent / "virtualgpu" / "torch_cuda"
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
CAN = (
    sys.platform == "linux" and torch.version.cuda is not None and TORCH >= (2, 15) and shutil.which("gcc") is not None
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CAN, reason="needs Linux, gcc and a CUDA build of torch with the headers of 2.15"),
]

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


def test_pytorchs_own_allocator_keeps_the_limit_to_the_byte(tmp_path):
    sys.path.insert(0, str(TOOLS))
    try:
        import stand_in

        environment = stand_in.environment(stand_in.build(tmp_path), "9.0") | {"OMP_NUM_THREADS": "1"}
    finally:
        sys.path.remove(str(TOOLS))
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "peak 140.0 MiB allocated, 100.0 MiB above the start (measured)",
        "66.00 MiB allowed",
        "128.00 MiB allowed",
        "1000.00 MiB allowed",
        "3.00 GiB allowed",
        "1.0",
    ]

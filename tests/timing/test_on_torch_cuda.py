"""Timers and copies on PyTorch's own CUDA code, which runs here on a driver that answers and does nothing.

Its events are 0 ms apart, so this is about the calls: a real GPU is asked in a way that PyTorch accepts.
"""

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
import torch
from gpulab import timing, transfers

a = torch.empty(64, 64, device="cuda")
took = timing.measure(lambda: a @ a, repeat=3)
print(took)
with timing.Timer() as outer, timing.Timer("cuda:0") as inner:
    a @ a
print(outer.how, outer.numbers, outer.ms, inner.ms, 0 < inner.host_ms < outer.host_ms)
with torch.cuda.stream(torch.cuda.Stream()):
    print(timing.measure(lambda: a @ a, repeat=2))
print(timing.mfu(timing.flops(lambda: a @ a), 1e-6, "fp16"))
for direction in ("h2d", "d2h", "d2d"):
    found = transfers.measure((1000, 2000), direction, repeat=2)
    print(found.route, found.gpu, found.numbers, [len(series.copies) for series in found.series])

def reads():
    for _ in range(3):
        a.sum().item()
    torch.cuda.synchronize()
    a.to("cpu")

found = timing.syncs(reads)
print([(row.call, row.count, row.ms) for row in found], len(found), torch.cuda.get_sync_debug_mode())
"""


def test_a_real_gpu_is_asked_in_pytorchs_own_way(tmp_path):
    sys.path.insert(0, str(TOOLS))
    try:
        import stand_in

        environment = stand_in.environment(stand_in.build(tmp_path), "8.0") | {"OMP_NUM_THREADS": "1"}
    finally:
        sys.path.remove(str(TOOLS))
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-W", "ignore", str(tmp_path / "script.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "0.000 ms, median of 3 runs, all alike (measured, CUDA events)",
        "CUDA events measured 0.0 0.0 True",
        "0.000 ms, median of 2 runs, all alike (measured, CUDA events)",
        "MFU 0.2%: 0.524 of 312 TFLOP/s (measured; NVIDIA A100-SXM4-80GB, fp16, dense)",
        "CPU to cuda:0 NVIDIA A100-SXM4-80GB measured [2, 2]",
        "cuda:0 to CPU NVIDIA A100-SXM4-80GB measured [2, 2]",
        "within cuda:0 NVIDIA A100-SXM4-80GB measured [2]",
        # PyTorch does not warn of synchronize.
        "[('.item()', 3, None), ('.to()', 1, None)] 4 0",
    ]

"""Timers and copies on PyTorch's own CUDA code, which runs here on a driver that answers and does nothing.

Its events are 0 ms apart, so this is about the calls: a real GPU is asked in a way that PyTorch accepts.
"""

import pytest

pytestmark = pytest.mark.slow

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


def test_a_real_gpu_is_asked_in_pytorchs_own_way(on_torch_cuda):
    assert on_torch_cuda(SCRIPT, "8.0").splitlines() == [
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

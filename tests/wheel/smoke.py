"""The package on a CPU-only torch, without torchvision and without a notebook: does it work at all?

Run by tools/smoke_cpu.sh in an environment of its own, which has no pytest; not collected as a test.
"""

import importlib.util

import torch

import gpulab

assert torch.version.cuda is None, f"this torch is not CPU-only: it is built for CUDA {torch.version.cuda}"
for absent in ("torchvision", "jupyterlab", "ipywidgets", "matplotlib"):
    assert importlib.util.find_spec(absent) is None, f"{absent} is installed; the base package must do without"

machine = gpulab.setup("virtual:T4")
assert machine.device == torch.device("cuda", 0), machine
x = torch.randn(64, 64, device="cuda", requires_grad=True)
with torch.autocast("cuda", dtype=torch.float16):
    loss = torch.nn.functional.dropout(x @ x, 0.5).float().sum()
loss.backward()
assert x.grad.is_cuda
assert torch.cuda.memory_allocated() > 0
assert torch.isfinite(x.grad).all().item()

took = gpulab.timing.measure(lambda: x @ x, repeat=3)
assert took.numbers == "virtual", took
assert took.median_ms > 0, took
assert gpulab.transfers.measure((1e5, 1e6), repeat=3).pinned.bandwidth_gbps > 1
assert gpulab.monitor.read()[0].numbers == "virtual"


def build(batch):
    layer = torch.nn.Linear(1000, 1000, device="cuda")
    inputs = torch.randn(batch, 1000, device="cuda")
    return lambda: layer(inputs).sum().backward()


planned = gpulab.plan(build, 100, "A100-80")
assert planned.weights == 4_004_352, planned  # 1000 x 1000 and 1000 numbers of four bytes, in blocks of 512
assert planned.step_ms > 0, planned

digits = gpulab.data.digits()
assert digits.images.shape == (1797, 1, 8, 8), digits.images.shape
assert torch.bincount(digits.labels).shape == (10,), "a digit is missing"

print(f"gpulab {gpulab.__version__} works with torch {torch.__version__}, {len(digits.labels)} digits.")

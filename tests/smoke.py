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

digits = gpulab.data.digits()
assert digits.images.shape == (1797, 1, 8, 8), digits.images.shape
assert torch.bincount(digits.labels).shape == (10,), "a digit is missing"

print(f"gpulab {gpulab.__version__} works with torch {torch.__version__}, {len(digits.labels)} digits.")

"""Making everything on the GPU: a context, a default device, `device=`."""

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    x = torch.randn(4, 8)
    y = torch.tensor([0, 1, 0, 1])
    mask = torch.ones(3, 3).tril().bool()
    steps = torch.arange(4)
    window = torch.hann_window(4)
    grid = torch.linspace(0, 1, 5)
    from_list = torch.as_tensor([1.0, 2.0])
    host = torch.zeros(2, device="cpu")
    assert torch.get_default_device() == torch.device("cuda", 0)
for t in (*model.parameters(), x, y, mask, steps, window, grid, from_list):
    assert t.device == torch.device("cuda:0"), t.device
assert host.device.type == "cpu"
assert torch.zeros(2).device.type == "cpu"
assert model(x).device.type == "cuda"
loss = nn.functional.cross_entropy(model(x), y)
loss.backward()
model = nn.Linear(8, 2, device="cuda", dtype=torch.float16)
assert model.weight.dtype == torch.float16
assert model.weight.is_cuda
with torch.device("meta"):
    big = nn.Linear(1000, 1000)
big.to_empty(device="cuda")
nn.init.zeros_(big.weight)
assert big.weight.device == torch.device("cuda:0")
torch.set_default_device("cuda")
try:
    assert torch.randn(3).is_cuda
    assert nn.LSTM(3, 4).weight_ih_l0.is_cuda
    assert torch.randperm(5).is_cuda
    optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters())
finally:
    torch.set_default_device(None)
assert torch.randn(3).device.type == "cpu"

"""torch.compile around a model: it must run, compiled or not."""

import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
compiled = torch.compile(model) if device.type == "cuda" else model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = torch.randn(4, 8).to(device), torch.randint(0, 2, (4,)).to(device)
losses = []
for _ in range(2):
    loss = nn.functional.cross_entropy(compiled(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert compiled(x).device.type == device.type
if device.type == "cuda":
    twice = torch.compile(lambda t: t * 2, mode="reduce-overhead")
    assert twice(x).is_cuda
    model.compile()
    assert model(x).is_cuda
    assert set(compiled.state_dict()) == {f"_orig_mod.{name}" for name in model.state_dict()}

"""Fine-tuning a frozen half-precision model with low-rank adapters, then merging them."""

import math

import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class LoRA(nn.Module):
    def __init__(self, base, rank=4, alpha=8):
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), alpha / rank
        self.a = nn.Parameter(torch.empty(rank, base.in_features, device=base.weight.device))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))
        with torch.no_grad():
            self.a.copy_(torch.linspace(-1, 1, self.a.numel()).view_as(self.a) / math.sqrt(rank))

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.a.t() @ self.b.t())

    @torch.no_grad()
    def merge(self):
        self.base.weight += (self.scale * self.b @ self.a).to(self.base.weight.dtype)
        return self.base


model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16), nn.LayerNorm(16)).to(device)
for name, module in list(model.named_children()):
    if isinstance(module, nn.Linear):
        setattr(model, name, LoRA(module))
trained = [p for p in model.parameters() if p.requires_grad]
assert {p.device.type for p in trained} == {device.type}
optimizer = torch.optim.AdamW(trained, lr=1e-2)
x, y = torch.randn(8, 16).to(device), torch.randn(8, 16).to(device)
losses = []
for _ in range(3):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
before = model(x)
for name, module in list(model.named_children()):
    if isinstance(module, LoRA):
        setattr(model, name, module.merge())
losses += [(model(x) - before).abs().max().item(), nn.functional.mse_loss(model(x), y).item()]

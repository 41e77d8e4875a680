"""Writes a checkpoint after every epoch, and goes on from the last one."""

import sys
from pathlib import Path

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x):
        return self.layers(x)


folder, epochs = Path(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
x, y = torch.randn(64, 16), torch.randint(0, 4, (64,))
model = Net().to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
start = 0
last = folder / "last.pt"
if last.exists():
    checkpoint = torch.load(last, map_location="cuda")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    start = checkpoint["epoch"]
    print(f"resumed from epoch {start} on {checkpoint['model']['layers.0.weight'].device}")
for epoch in range(start, epochs):
    loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    state = {"epoch": epoch + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "loss": loss.item()}
    torch.save(state, last)
torch.save(model, folder / "whole.pt")
print(f"epoch {epochs}: {loss.item():.4f}")

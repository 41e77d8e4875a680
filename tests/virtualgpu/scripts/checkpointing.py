"""Activation checkpointing: the same gradients, from less memory."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.net = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.net(self.norm(x))


class Model(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.blocks = nn.Sequential(*[Block(64) for _ in range(6)])
        self.how = how

    def forward(self, x):
        if self.how == "sequential":
            return checkpoint_sequential(self.blocks, 3, x, use_reentrant=False)
        for block in self.blocks:
            x = block(x) if self.how == "none" else checkpoint(block, x, use_reentrant=self.how == "reentrant")
        return x


losses, peaks = [], {}
for how in ("none", "plain", "reentrant", "sequential"):
    torch.manual_seed(0)
    model = Model(how).to(device)
    x = torch.randn(256, 64).to(device).requires_grad_(how == "reentrant")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    loss = model(x).square().mean()
    loss.backward()
    if device.type == "cuda":
        peaks[how] = torch.cuda.max_memory_allocated()
    losses += [loss.item(), sum(p.grad.norm().item() for p in model.parameters())]
    del model, loss, x
if peaks:
    print(peaks)
    assert peaks["plain"] < peaks["none"]
    assert peaks["sequential"] < peaks["none"]
    assert peaks["reentrant"] < peaks["none"]

torch.manual_seed(0)
model = Model("plain").to(device)
with torch.autocast(device.type, dtype=torch.bfloat16):
    out = model(torch.randn(8, 64, device=device))
    (out.float().square().mean()).backward()
assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())

dropped = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)).to(device)
x = torch.randn(16, 64, device=device, requires_grad=True)
out = checkpoint(dropped, x, use_reentrant=False)
out.sum().backward()  # the mask of the recomputation must be that of the forward pass

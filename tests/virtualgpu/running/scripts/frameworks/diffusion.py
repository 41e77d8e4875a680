"""A diffusion model: a small U-Net with GroupNorm and attention learns the noise, and a few steps sample from it."""

import copy
import math
import sys

import torch
from torch import nn
from torch.nn import functional as F

precision = sys.argv[1] if len(sys.argv) > 1 else "float32"
device = "cuda" if torch.cuda.is_available() else "cpu"


class Residual(nn.Module):
    def __init__(self, inner, outer, time):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, outer), nn.Conv2d(outer, outer, 3, padding=1)
        self.time = nn.Linear(time, outer)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x, time):
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(y))) + self.skip(x)


class Attention(nn.Module):
    def __init__(self, width, heads=2):
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(8, width)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w).transpose(3, 4).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(b, c, h, w)
        return x + self.out(y)


class UNet(nn.Module):
    def __init__(self, width=16, time=32):
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down1, self.shrink = Residual(width, width, time), nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.down2, self.middle = Residual(width, 2 * width, time), Attention(2 * width)
        self.up2, self.up1 = Residual(2 * width, width, time), Residual(2 * width, width, time)
        self.norm, self.last = nn.GroupNorm(8, width), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x, t):
        half = self.width // 2
        rates = torch.exp(-math.log(10_000) * torch.arange(half, device=x.device) / half)
        angles = t[:, None].float() * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        x = self.down1(self.first(x), time)
        y = self.middle(self.down2(self.shrink(x), time))
        y = F.interpolate(self.up2(y, time), scale_factor=2, mode="nearest")
        return self.last(F.silu(self.norm(self.up1(torch.cat([x, y], dim=1), time))))


torch.manual_seed(0)
steps = 50
kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, steps), dim=0).to(device)
model = UNet().to(device)
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device, enabled=precision == "float16")
losses = []
for _ in range(3):
    images, noise, t = torch.randn(4, 3, 16, 16), torch.randn(4, 3, 16, 16), torch.randint(steps, (4,))
    images, noise, t = images.to(device), noise.to(device), t.to(device)
    share = kept[t][:, None, None, None]
    noisy = share.sqrt() * images + (1 - share).sqrt() * noise
    with torch.autocast(device, getattr(torch, precision), enabled=precision != "float32"):
        loss = F.mse_loss(model(noisy, t).float(), noise)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        for mean, now in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(now, 0.01)
    losses.append(loss.item())

x = torch.randn(2, 3, 16, 16).to(device)
with torch.no_grad():
    for now in reversed(range(steps - 3, steps)):
        before = kept[now - 1]
        noise = average(x, torch.full((2,), now, device=device))
        clean = ((x - (1 - kept[now]).sqrt() * noise) / kept[now].sqrt()).clamp(-1, 1)
        x = before.sqrt() * clean + (1 - before).sqrt() * noise
sample = x.cpu()
print(f"{device}: {losses}, {tuple(sample.shape)}")

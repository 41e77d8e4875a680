"""Segmentation with a small U-Net: skips, transposed convolutions, upsampling, masks, AMP, EMA of the loss."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def block(inside, outside):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(inplace=True),
        nn.Conv2d(outside, outside, 3, padding=1), nn.GroupNorm(2, outside), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.middle = block(3, 8), block(8, 16), block(16, 32)
        self.up2 = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.merge2, self.merge1 = block(32, 16), block(24, 8)
        self.head = nn.Conv2d(8, 4, 1)
        self.register_buffer("mean", torch.tensor([0.5, 0.4, 0.3]).view(1, 3, 1, 1))

    def forward(self, x):
        a = self.down1(x - self.mean)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.middle(F.avg_pool2d(b, 2))
        b = self.merge2(torch.cat([self.up2(c), b], dim=1))
        up = F.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)
        return self.head(self.merge1(torch.cat([up, a], dim=1)))


model = UNet().to(device)
assert model.mean.device.type == device.type
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x, y = torch.rand(2, 3, 16, 16).to(device), torch.randint(0, 4, (2, 16, 16)).to(device)
y[:, :2] = 255
weights = torch.tensor([1.0, 2.0, 1.0, 0.5], device=device)
losses = []
for _ in range(2):
    logits = model(x)
    ce = F.cross_entropy(logits, y, weight=weights, ignore_index=255)
    probs = logits.softmax(1)
    target = F.one_hot(y.clamp(max=3), 4).permute(0, 3, 1, 2).float()
    dice = 1 - (2 * (probs * target).sum((2, 3)) / (probs + target).sum((2, 3))).mean()
    loss = ce + 0.5 * dice
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses += [ce.item(), dice.item()]
with torch.no_grad():
    predicted = model.eval()(x).argmax(1)
    losses.append(F.adaptive_avg_pool2d(logits, 1).sum().item())
    losses.append(F.grid_sample(x, torch.zeros(2, 4, 4, 2, device=device), align_corners=False).sum().item())
    losses.append(F.pixel_shuffle(logits, 2).square().mean().item())
    losses.append(F.unfold(x, 3).abs().sum().item() / 1000)

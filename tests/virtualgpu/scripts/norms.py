"""Networks with BatchNorm, GroupNorm, InstanceNorm and LayerNorm; running statistics move with the model."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
losses = []
for norm in (nn.BatchNorm2d, lambda c: nn.GroupNorm(4, c), lambda c: nn.InstanceNorm2d(c, affine=True)):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), norm(8), nn.ReLU(inplace=True),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), norm(16), nn.SiLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 4),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    x, y = torch.randn(8, 3, 12, 12).to(device), torch.randint(0, 4, (8,)).to(device)
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        losses.append(model(x).square().mean().item())
    model.to(memory_format=torch.channels_last)
    losses.append(model(x.to(memory_format=torch.channels_last)).square().mean().item())
    assert {b.device.type for b in model.buffers()} <= {device.type}
    if device.type == "cuda":
        model.train()
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(x)
        assert out.dtype == torch.float16
        out.float().sum().backward()
losses += [b.float().mean().item() for b in model.buffers()]
synced = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(4))).to(device)
assert isinstance(synced[0], nn.SyncBatchNorm)

"""A running average of the weights: deepcopy, AveragedModel, lerp."""

import copy

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)).to(device)
ema = copy.deepcopy(model).eval().requires_grad_(False)
assert {t.device.type for t in ema.state_dict().values()} == {device.type}
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
swa = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(16, 8).to(device), torch.randint(0, 2, (16,)).to(device)
losses = []
for _ in range(3):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(ema.parameters(), model.parameters(), strict=True):
            slow.lerp_(fast, 0.1)
        for slow, fast in zip(ema.buffers(), model.buffers(), strict=True):
            slow.copy_(fast)
    averaged.update_parameters(model)
    swa.update_parameters(model)
    losses.append(loss.item())
for other in (ema, averaged, swa):
    other.eval()
    with torch.no_grad():
        losses.append(nn.functional.cross_entropy(other(x), y).item())
copied = copy.deepcopy(optimizer.state_dict())
best = {k: v.clone() for k, v in model.state_dict().items()}
model.load_state_dict(best)
loaded = copy.deepcopy(model.state_dict())
assert {t.device.type for t in loaded.values()} == {device.type}
twice = copy.deepcopy([x, x])
assert twice[0] is twice[1]
assert twice[0].device == x.device

"""What the scaler does when gradients overflow: the step is skipped and the scale halved."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**16)
before = model.weight.detach().clone()
x = torch.full((4, 8), 1e3, device="cuda")
with torch.autocast("cuda", dtype=torch.float16):
    loss = (model(x) * 100).square().float().mean()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
assert torch.equal(model.weight, before)
assert scaler.get_scale() == 2.0**15
optimizer.zero_grad()
with torch.autocast("cuda", dtype=torch.float16):
    loss = model(x * 1e-3).float().mean()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
assert not torch.equal(model.weight, before)

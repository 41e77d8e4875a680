"""`ddp.py` as a script for one GPU has it."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
for _ in range(5):
    loss = model(torch.randn(64, 512, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

"""Keeps the loss of every step, with all that it was computed from; and only the GPU's own launches take time."""

import torch
from torch import nn

model = nn.Linear(300, 300).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for _ in range(8):
    loss = model(torch.ones(100, 300, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    history.append(loss + 0 * model.weight.sum())

"""A batch that does not fit."""

import torch
from torch import nn


def activations(model, batch):
    return model(torch.randn(batch, 4096, device="cuda"))


model = nn.Sequential(*(nn.Sequential(nn.Linear(4096, 4096), nn.GELU()) for _ in range(8))).cuda()
out = activations(model, 200_000)
out.sum().backward()

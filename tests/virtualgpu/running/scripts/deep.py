"""A deep network of equal blocks, trained on batches of a DataLoader; under torchrun by DistributedDataParallel."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))

    def forward(self, x):
        return x + self.layers(x)


model = nn.Sequential(*(Block(512) for _ in range(8)), nn.Linear(512, 10)).cuda()
if "RANK" in os.environ:
    torch.distributed.init_process_group("nccl")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(16384, 512), torch.arange(16384) % 10)
for at, (x, y) in enumerate(DataLoader(data, 4096, pin_memory=True)):
    loss = nn.functional.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda(non_blocking=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(at)

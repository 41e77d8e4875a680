"""A deep network of equal blocks, trained on batches of a DataLoader; `--batch N`, and with `ddp` on several ranks."""

import argparse
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


parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4096)
parser.add_argument("--fail", action="store_true", help="where the model gets half a batch")
options = parser.parse_args()
model = nn.Sequential(*(Block(512) for _ in range(8)), nn.Linear(512, 10)).cuda()
if "RANK" in os.environ:
    torch.distributed.init_process_group("nccl")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(4 * options.batch, 512), torch.arange(4 * options.batch) % 10)
for at, (x, y) in enumerate(DataLoader(data, options.batch, pin_memory=True)):
    if options.fail and len(x) < options.batch:
        raise ValueError(f"a batch of {len(x)}")
    loss = nn.functional.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda(non_blocking=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(at)

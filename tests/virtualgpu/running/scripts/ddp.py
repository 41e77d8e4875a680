"""DistributedDataParallel as a script for torchrun has it; says its rank and how many there are."""

import os

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)]).cuda()
model = nn.parallel.DistributedDataParallel(model, device_ids=[local])
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
for _ in range(5):
    loss = model(torch.randn(64, 512, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"rank {dist.get_rank()} of {dist.get_world_size()}")
dist.destroy_process_group()

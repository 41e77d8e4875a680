"""DistributedDataParallel as a script for torchrun has it, or with `plain` the same for one GPU."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

rank, local, plain = 0, int(os.environ.get("LOCAL_RANK", "0")), "plain" in sys.argv
torch.cuda.set_device(local)
model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)]).cuda()
if not plain:
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(model, device_ids=[local])
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
for _ in range(5):
    loss = model(torch.randn(64 * (rank + 1), 512, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if not plain:
    where = f"{torch.cuda.get_device_name()} cuda:{torch.cuda.current_device()}"
    print(f"rank {rank} of {dist.get_world_size()} on {where}\n", end="")
    del model, loss, optimizer
    dist.destroy_process_group()

"""DistributedDataParallel, to be started by torchrun."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(512, 512).cuda(), device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = model(torch.randn(64 * (rank + 1), 512, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(
    f"rank {rank} of {dist.get_world_size()} on {torch.cuda.get_device_name()} cuda:{torch.cuda.current_device()}\n",
    end="",
)
del model, loss, optimizer
dist.destroy_process_group()

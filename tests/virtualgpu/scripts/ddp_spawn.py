"""DistributedDataParallel as `mp.spawn` starts it, with a free port."""

import gc
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def worker(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group(backend="nccl", rank=rank, world_size=world)
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Linear(4, 2).cuda(), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(torch.randn(8, 4, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weights = [torch.empty_like(model.module.weight) for _ in range(world)]
    dist.all_gather(weights, model.module.weight.detach())
    assert torch.equal(*weights)
    print(f"rank {rank}: {dist.get_backend()} on {model.module.weight.device}", flush=True)
    del model  # with it alive, a process of PyTorch over gloo can abort at its end, also without a virtual GPU
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(worker, args=(torch.cuda.device_count(), port), nprocs=torch.cuda.device_count())

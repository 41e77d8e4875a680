"""DistributedDataParallel as torchrun starts it: one process per GPU."""

import contextlib
import gc
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    dataset = TensorDataset(torch.randn(32, 8, generator=generator), torch.randint(0, 3, (32,), generator=generator))
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, pin_memory=on_gpu)
    model = nn.Sequential(nn.Linear(8, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Linear(1024, 3)).to(device)
    if on_gpu:
        held, size = torch.cuda.memory_allocated(), sum(p.nbytes for p in model.parameters())
    ids = [local_rank] if on_gpu else None
    ddp = DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view="view" in sys.argv)
    if on_gpu:  # the buckets of the gradients are as large as the parameters
        while torch.cuda.memory_allocated() - held >= 2 * size:
            time.sleep(0.01)  # a thread of the process group lets go of what was sent, when it comes to it
        assert size <= torch.cuda.memory_allocated() - held
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            with contextlib.nullcontext() if i % 2 else ddp.no_sync():
                loss = nn.functional.cross_entropy(ddp(x), y) / 2
                loss.backward()
            if i % 2:
                nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
        total = torch.stack(losses).mean()
        dist.all_reduce(total, op=dist.ReduceOp.SUM)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / world:.6f}")
    ddp(x).sum().backward()  # an unfinished step, so that the gradients are there
    for parameter in ddp.parameters():
        assert parameter.grad.device == device
        mine = [parameter.detach().clone() for _ in range(world)]
        dist.all_gather(mine, parameter.detach())
        assert torch.equal(mine[0], mine[1])
    if rank == 0:
        saved = ddp.module.state_dict()
        assert {t.device for t in saved.values()} == {device}
    if on_gpu:
        peak = torch.cuda.max_memory_allocated()
        print(f"rank {rank} of {world} on {torch.cuda.get_device_name()} {device}: {peak} bytes")
    dist.barrier()
    del ddp  # with it alive, a process of PyTorch over gloo can abort at its end, also without a virtual GPU
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

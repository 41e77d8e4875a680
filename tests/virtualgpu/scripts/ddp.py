"""DistributedDataParallel as torchrun starts it: one process per GPU."""

import gc
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def collectives(device, rank, world):
    """Each collective once, on tensors of the GPU."""
    assert dist.get_backend() == "nccl"
    assert dist.is_nccl_available()
    assert torch.cuda.current_device() == device.index
    value = torch.full((3,), float(rank + 1), device=device)
    dist.all_reduce(value)
    assert value.device == device
    assert value.tolist() == [3.0] * 3
    dist.all_reduce(mean := torch.tensor(float(rank), device="cuda"), op=dist.ReduceOp.AVG)
    assert mean.item() == 0.5
    sent = torch.arange(4, device=device) * (rank == 0)
    dist.broadcast(sent, src=0)
    assert sent.tolist() == [0, 1, 2, 3]
    parts = [torch.empty(2, device=device) for _ in range(world)]
    dist.all_gather(parts, torch.full((2,), float(rank), device=device))
    assert torch.stack(parts)[:, 0].tolist() == [0.0, 1.0]
    whole = torch.empty(2 * world, device=device)
    dist.all_gather_into_tensor(whole, torch.full((2,), float(rank), device=device))
    assert whole.tolist() == [0.0, 0.0, 1.0, 1.0]
    piece = torch.empty(2, device=device)
    dist.reduce_scatter_tensor(piece, whole)
    assert piece.tolist() == [rank * 2.0] * 2
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    box = ["from 0" if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    assert box == ["from 0"]
    work = dist.all_reduce(torch.ones(1, device=device).half(), async_op=True)
    work.wait()
    dist.barrier()
    dist.barrier(device_ids=[device.index])
    group = dist.new_group([0, 1])
    assert dist.get_backend(group) == "nccl"
    dist.all_reduce(value, group=group)
    refused = ""
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        refused = str(error)
    assert "No backend type associated with device type cpu" in refused


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    rank, world = dist.get_rank(), dist.get_world_size()

    if on_gpu:
        collectives(device, rank, world)

    # Training
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
    scaler = torch.amp.GradScaler(device.type, enabled="amp" in sys.argv)
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            stepping = i % 2 == 1
            with torch.autocast(device.type, dtype=torch.float16, enabled=scaler.is_enabled()):
                if stepping:
                    loss = nn.functional.cross_entropy(ddp(x), y) / 2
                else:
                    with ddp.no_sync():
                        loss = nn.functional.cross_entropy(ddp(x), y) / 2
                        scaler.scale(loss).backward()
            if stepping:
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
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

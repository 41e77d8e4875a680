"""Answers to "the losses of one GPU"."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from gpulab.check.lesson13.sections import SECTIONS

from ..bank import Bank
from ..edits import add, change, drop, move, solution

BANK = Bank("train_sharded", SECTIONS, solution=(13, "train_sharded"))
SOLUTION = BANK.right(solution(13, "train_sharded"))
CLIPS = "norm = nn.utils.clip_grad_norm_(model.parameters(), limit)"
GATHERED = "norm.full_tensor().item()"
LOCAL = "torch.stack([p.grad.to_local().norm() for p in model.parameters()]).norm()"
AVERAGED = "dist.all_reduce(mean, dist.ReduceOp.AVG)"


@BANK.right
def norm_by_hand(model, batches, learning_rate, limit):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cuda", (ranks,))
    device = torch.device("cuda", torch.cuda.current_device())
    for unit in (*model.blocks, model):
        fully_shard(unit, mesh=mesh, reshard_after_forward=True)
    optimizer, told = torch.optim.AdamW(model.parameters(), learning_rate, foreach=False), []
    for x, label in batches:
        mine = slice(rank * len(x) // ranks, (rank + 1) * len(x) // ranks)
        loss = F.cross_entropy(model(x[mine].to(device)), label[mine].to(device), reduction="sum")
        (loss * ranks / len(x)).backward()
        sums = torch.stack([loss.detach() / len(x), torch.zeros_like(loss)])
        for p in model.parameters():
            sums[1] += p.grad.to_local().square().sum()
        dist.all_reduce(sums)
        mean, norm = sums[0].item(), sums[1].sqrt().item()
        for p in model.parameters():
            p.grad.to_local().mul_(min(1, limit / norm))
        optimizer.step()
        optimizer.zero_grad()
        told += [(mean, norm)]
    return told


@BANK.right
def by_samplers(model, batches, learning_rate, limit):
    for unit in [*reversed(model.blocks), model.embed, model.head, model]:
        fully_shard(unit)
    optimizer, losses, norms = torch.optim.AdamW(model.parameters(), lr=learning_rate, fused=True), [], []
    for batch in batches:
        data = TensorDataset(*batch)
        for x, label in DataLoader(data, len(data), sampler=DistributedSampler(data, shuffle=False)):
            model.zero_grad()
            losses.append(F.cross_entropy(model(x.cuda()), label.cuda()))
            losses[-1].backward()
            norms.append(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).full_tensor())
            nn.utils.clip_grads_with_norm_(model.parameters(), limit, norms[-1])
            optimizer.step()
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, [loss.item() for loss in losses])
    return [(sum(of) / len(of), float(norm)) for *of, norm in zip(*everybody, norms, strict=True)]


BANK.variant("item_gathers", change(GATHERED, "norm.item()"))

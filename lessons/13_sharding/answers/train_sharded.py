"""Answers to "the losses of one GPU"."""

import torch
import torch.distributed as dist
from banks.bank import Bank
from banks.edits import add, change, drop, move
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BANK = Bank("train_sharded")
CLIPS = "norm = nn.utils.clip_grad_norm_(model.parameters(), limit)"
GATHERED = "norm.full_tensor().item()"
PART = "x[rank::ranks].cuda(), label[rank::ranks].cuda()"
LOCAL = "torch.stack([p.grad.to_local().norm() for p in model.parameters()]).norm()"


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


BANK.right((
    change(GATHERED, "norm.item()"),
    change("optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)"),
    add("[a.set_modules_to_forward_prefetch([b]) for a, b in zip(model.blocks, model.blocks[1:])]", after="(model)"),
))  # fmt: skip
BANK.mistakes(
    ("the whole model is moved to the GPU before it is sharded",
     "no model.cuda(): fully_shard moves a block from the CPU, and keeps this rank's rows",
     add("model.cuda()", before="for block in")),
    ("the blocks are a single unit, gathered at once",
     "one unit per block: fully_shard(block), in a loop over model.blocks",
     (drop("for block in"), drop("fully_shard(block)"))),
    ("a unit has several blocks", "one unit per block: then two blocks are whole, the running one and the next",
     (change("block in model.blocks:", "i in range(0, len(model.blocks), 2):"),
     change("fully_shard(block)", "fully_shard([*model.blocks[i : i + 2]])"))),
    ("what the forward pass gathers stays until backward",
     "reshard_after_forward=False is for models that fit: without it a block is let go after its forward",
     change("fully_shard(block)", "fully_shard(block, reshard_after_forward=False)")),
    ("in backward several blocks are whole at a time",
     "fully_shard prefetches the next block by itself: set_modules_to_backward_prefetch with more blocks gathers "
     "these too",
     add("for i, b in enumerate(model.blocks): b.set_modules_to_backward_prefetch(model.blocks[:i][:-5:-1])",
     before="optimizer =")),
    ("in backward blocks stay whole until the end",
     "set_reshard_after_backward(False) is for several passes before a step: without it a block is freed after its "
     "gradient",
     add("[block.set_reshard_after_backward(False) for block in model.blocks]", before="optimizer =")),
    ("from the second step on what the forward pass gathers stays until backward",
     "set_reshard_after_forward(False) is for models that fit",
     add("[block.set_reshard_after_forward(False) for block in model.blocks]", after="optimizer.step()")),
    ("from the second step on several blocks are whole as soon as the first one runs",
     "a block may prefetch only the next one: set_modules_to_forward_prefetch([next])",
     add("[b.set_modules_to_forward_prefetch(model.blocks[i + 1 : i + 5]) for i, b in enumerate(model.blocks)]",
     after="optimizer.step()")),
    ("RANK is used as the number of the GPU",
     "on a second machine RANK continues, but GPUs start at 0 again: cuda() moves a tensor to the current GPU",
     change(PART, 'x[rank::ranks].to(f"cuda:{rank}"), label[rank::ranks].to(f"cuda:{rank}")')),
    ("the model is sharded before its blocks", "first the blocks, then the model, which takes what is not sharded yet",
     move("fully_shard(model)", before="for block in")),
    ("the rest of the model is not sharded", "call fully_shard(model) after the blocks, for embed and head",
     drop("fully_shard(model)"), change("fully_shard(model)", "model.cuda()")),
    ("DDP, not fully_shard: the whole model is on each GPU",
     "DDP splits only the work among the ranks, fully_shard the weights too",
     (drop("for block in"), drop("fully_shard(block)"),
     change("fully_shard(model)", "model = nn.parallel.DistributedDataParallel(model.cuda())"),
     change(GATHERED, "norm.item()"))),
    ("the optimizer was made before sharding, and trains nothing",
     "fully_shard replaces the parameters by new ones: shard first", move("optimizer = ", before="for block in")),
    ("every rank computes all of each batch",
     "the same numbers, for N times the work: x[rank::ranks] is this rank's part",
     change(PART, "x.cuda(), label.cuda()")),
    ("every rank takes the same part of a batch", "the part begins at the rank: x[rank::ranks]",
     change(PART, "x[::ranks].cuda(), label[::ranks].cuda()")),
    ("the gradients of all steps so far are added up", "zero_grad before each backward", drop("zero_grad")),
    ("zero_grad is called between backward and step", "it removes the gradients that the step needs",
     move("zero_grad", after="loss.backward()")),
    ("the step uses the gradient unclipped", "call clip_grad_norm_ with the limit between backward and step",
     change("(model.parameters(), limit)", "(model.parameters(), float('inf'))"),
     move("clip_grad_norm_", after="optimizer.step()")),
    ("each rank clips by the norm of its own rows",
     "the ranks would scale by different factors: clip_grad_norm_ of the DTensors uses the norm over all",
     (change(CLIPS,
     f'norm = {LOCAL}\n        [p.grad.mul_((limit / norm).item()) for p in model.parameters() if norm > limit]'),
     change(GATHERED, "norm.item()"))),
    ("the norm is that of this rank's rows",
     "p.grad.to_local() is only a part of the gradient: clip_grad_norm_ returns the norm of all of it",
     (change(CLIPS, f'norm = {LOCAL}\n        nn.utils.clip_grad_norm_(model.parameters(), limit)'),
     change(GATHERED, "norm.item()"))),
    ("the norm is taken after clipping", "clip_grad_norm_ returns the norm as it was before",
     change(GATHERED, "nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()")),
    ("the gradients are divided by the number of ranks once more",
     "fully_shard already averages them in backward: each is that of the whole batch",
     add("[p.grad.div_(ranks) for p in model.parameters()]", after="loss.backward()")),
    ("the loss is that of this rank's samples", "all-reduce it, with ReduceOp.AVG", drop("dist.all_reduce")),
    ("the losses of the ranks are added up", "dist.all_reduce adds by default: use ReduceOp.AVG",
     change(", dist.ReduceOp.AVG", "")),
    ("only rank 0 has the loss of all", "dist.reduce leaves it on one rank only",
     change("dist.all_reduce(mean, dist.ReduceOp.AVG)", "dist.reduce(mean, 0, dist.ReduceOp.AVG)")),
    ("rank 0 alone calls the all-reduce of the loss",
     "all ranks must call a collective, even those that do not use the result",
     change("        dist.all_reduce", "        if rank == 0:\n            dist.all_reduce")),
    ("the norm is a DTensor", "full_tensor() turns it into a plain tensor, item() into a float",
     change(GATHERED, "norm")),
    ("the loss is a tensor", "item() turns it into a float", change("mean.item()", "mean")),
    ("the weights are left whole on every rank",
     "unshard() gathers in place: leave the model as it is after the last step",
     add("[m.unshard() for m in model.modules() if hasattr(m, 'unshard')]", before="return steps")),
    ("the process group is closed", "it belongs to the script, which still evaluates and saves with it",
     add("dist.destroy_process_group()", before="return steps")),
)  # fmt: skip

"""Answers to "from one GPU to all": a training script's body on real ranks."""

import os

import torch
import torch.distributed as dist
from banks.bank import Bank
from banks.edits import add, change, drop
from torch.nn import functional as F

BANK = Bank("ddp_training")
OF_RANK = 'int(os.environ["LOCAL_RANK"])'
WRAPPED = "ddp = DistributedDataParallel(model.to(device), device_ids=[device.index])"
LOADER = "DataLoader(data, batch_size // ranks, sampler=sampler)"
NO_SAMPLER = drop("set_epoch"), drop("sampler = ")
DIVIDED = "(sums[0] / sums[1]).item()"


@BANK.right
def by_hand(model, data, epochs, batch_size, learning_rate, path):
    dist.init_process_group("nccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model.cuda()
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    means = []
    for epoch in range(epochs):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch)).tolist()
        order += order[: -len(order) % ranks]
        told = []
        for first in range(0, len(order), batch_size):
            batch = [data[i] for i in order[first : first + batch_size][rank::ranks]]
            x, label = torch.stack([x for x, _ in batch]).cuda(), torch.tensor([label for _, label in batch]).cuda()
            model.zero_grad()
            loss = F.cross_entropy(model(x), label)
            loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.data -= learning_rate * p.grad / ranks
            told.append((loss.item() * len(batch), len(batch)))
        everybody = [None] * ranks
        dist.all_gather_object(everybody, told)
        told = [pair for one in everybody for pair in one]
        means.append(sum(loss for loss, _ in told) / sum(count for _, count in told))
    if rank == 0:
        torch.save(model.state_dict(), path + ".part")
        os.rename(path + ".part", path)
    dist.barrier()
    dist.destroy_process_group()
    return means


BANK.right(change(", device_ids=[device.index]", ", gradient_as_bucket_view=True"))
BANK.right((drop("sampler = "), drop("loader = "), change("        sampler.set_epoch(epoch)", """\
        torch.manual_seed(epoch)
        order = torch.randperm(len(data)).repeat(2)[: -(-len(data) // ranks) * ranks]
        loader = DataLoader(Subset(data, order[rank::ranks].tolist()), batch_size // ranks)""")))  # fmt: skip
BANK.mistakes(
    ("RANK is used as the number of the GPU",
     "on a second machine RANK continues, but GPUs start at 0 again: LOCAL_RANK", change('"LOCAL_RANK"', '"RANK"')),
    ("all ranks of a machine train on GPU 0",
     "cuda without a number is the current GPU, which is 0 on every rank: torch.cuda.set_device(LOCAL_RANK)",
     change(OF_RANK, "0")),
    ("the sums are on GPU 0, on every rank",
     "that is rank 0's GPU, and NCCL refuses two ranks on one: use this rank's device",
     change("dtype=torch.float64, device=device", 'dtype=torch.float64, device="cuda:0"')),
    ("the process group is Gloo's", "Gloo carries tensors of the host; for GPUs it is slow: backend nccl",
     change('"nccl"', '"gloo"')),
    ("no process group is opened", "torchrun only sets variables: dist.init_process_group makes the ranks meet",
     drop("init_process_group")),
    ("MASTER_PORT is set in the script",
     "torchrun has set it and opened a store there; at another port nothing answers",
     add('os.environ["MASTER_PORT"] = "12355"', before="init_process_group")),
    ("each rank takes batch_size samples a step",
     "N ranks then step with N times the batch: use batch_size // N on each",
     change("batch_size // ranks", "batch_size")),
    ("every rank trains on all samples",
     "an epoch then takes as many steps as N epochs: a DistributedSampler splits the samples",
     (change("sampler=sampler", "shuffle=True"), *NO_SAMPLER)),
    ("shuffle=True stands beside a sampler", "the sampler shuffles already",
     change("sampler=sampler", "shuffle=True, sampler=sampler")),
    ("the sampler drops what the ranks cannot share equally", "without drop_last=True it pads",
     change("DistributedSampler(data)", "DistributedSampler(data, drop_last=True)")),
    ("the short step at the end is left out", "drop_last=True of the DataLoader drops samples in every epoch",
     change("sampler=sampler", "sampler=sampler, drop_last=True")),
    ("the step that is not full comes first",
     "the rest comes at the end of an epoch, as from a DataLoader",
     change("in loader:", "in sorted(loader, key=lambda batch: len(batch[1])):")),
    ("the dataset is sliced",
     "a dataset has a length and data[i], but no slices: use a DataLoader, or Subset(data, indices)",
     change("DistributedSampler(data)", "DistributedSampler(data := data[:])")),
    ("the ranks take their parts from different orders",
     "only parts of one order are disjoint: use the same sampler seed on all ranks",
     change("DistributedSampler(data)", "DistributedSampler(data, seed=rank)")),
    ("the parts of the ranks are not equally long",
     "range(rank, length, N) is right for evaluation; in training pad the parts",
     (change(LOADER, "DataLoader(Subset(data, range(rank, len(data), ranks)), batch_size // ranks, shuffle=True)"),
     *NO_SAMPLER)),
    ("every epoch has the first one's order", "the sampler draws from its seed and the epoch: sampler.set_epoch(epoch)",
     drop("set_epoch")),
    ("the samples come in the dataset's order", "shuffle=False is for an evaluation",
     change("DistributedSampler(data)", "DistributedSampler(data, shuffle=False)")),
    ("the forward pass bypasses DDP",
     "model.module, or the model itself, exchanges nothing in backward(): call the DDP model",
     change("ddp(x", "ddp.module(x")),
    ("each rank trains a model of its own",
     "nothing makes the weights equal or averages the gradients: DistributedDataParallel does both",
     change(WRAPPED, "ddp = model.to(device)")),
    ("the steps are N times as long",
     "the batch is that of one GPU, so keep its learning rate; DDP has divided the gradients by N",
     change("ddp.parameters(), learning_rate", "ddp.parameters(), learning_rate * ranks")),
    ("the steps are an Nth as long", "backward() averages over the ranks already: the loss stays as it is",
     change("loss.backward()", "(loss / ranks).backward()")),
    ("each rank returns the loss of its own samples",
     "nothing was exchanged: an all-reduce gives each rank the sums of all", drop("dist.all_reduce")),
    ("the loss of all ranks is divided by the samples of one", "add up the number of samples over the ranks too",
     change("dist.all_reduce(sums)", "dist.all_reduce(sums[:1])")),
    ("the loss is divided by len(data), though the sampler has padded",
     "some samples were used twice: count those that were used", change(DIVIDED, "(sums[0] / len(data)).item()")),
    ("each step counts equally in the loss, however many samples it has",
     "the last step of an epoch is shorter: the mean loss of a step times its samples",
     (change("loss.detach() * len(label)", "loss.detach()"), change("+= len(label)", "+= 1"))),
    ("only rank 0 has the loss of all", "dist.reduce leaves the sums on one rank only",
     change("dist.all_reduce(sums)", "dist.reduce(sums, 0)")),
    ("only rank 0 calls the all-reduce of the loss",
     "a collective is called by all ranks: print on rank 0, but add up on every one",
     change("dist.all_reduce(sums)", "rank == 0 and dist.all_reduce(sums)")),
    ("the losses are tensors", "item() turns them into floats", change(DIVIDED, "sums[0] / sums[1]")),
    ("all ranks save", "on one machine each cuts off the other's file: if dist.get_rank() == 0:",
     change("if rank == 0:", "if True:")),
    ("LOCAL_RANK 0 saves, on each machine", "one rank of the whole job saves: RANK 0",
     change("if rank == 0:", f'if {OF_RANK} == 0:')),
    ('the names in the file begin with "module."',
     "the state dict of the DDP model has them; model, or ddp.module, has its own",
     change("model.state_dict()", "ddp.state_dict()")),
    ("the file holds the model, not its state dict", "a pickled model needs its class again: model.state_dict()",
     change("model.state_dict()", "model")),
    ("the file has the parameters alone",
     "buffers, such as BatchNorm's running means, belong in it too: model.state_dict()",
     change("model.state_dict()", "dict(model.named_parameters())")),
    ("the process group is left open", "call dist.destroy_process_group() at the end of the script",
     drop("destroy_process_group")),
    ("only rank 0 calls the barrier", "a barrier is a collective: put it after the if, for all ranks",
     add("dist.barrier()", after="torch.save")),
)  # fmt: skip

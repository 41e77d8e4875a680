"""Answers to "each sample once": an evaluation on real ranks."""

import torch
import torch.distributed as dist
from banks.bank import Bank
from banks.edits import add, change, drop
from torch.nn import functional as F

BANK = Bank("evaluate_once")
PART = "part = Subset(data, range(rank, len(data), ranks))"
LOADER = "DataLoader(part, batch_size)"
SET_BACK = "module.training = training"
SAMPLER = "torch.utils.data.distributed.DistributedSampler(data, shuffle=False"


@BANK.right
def chunks_by_hand(model, data, batch_size):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device())
    modes = {name: module.training for name, module in model.named_modules()}
    model.eval()
    mine = range(len(data) * rank // ranks, len(data) * (rank + 1) // ranks)
    told = [0.0, 0, 0]
    with torch.inference_mode():
        for first in range(0, len(mine), batch_size):
            batch = [data[i] for i in mine[first : first + batch_size]]
            label = torch.tensor([label for _, label in batch], device=device)
            logits = model.module(torch.stack([x for x, _ in batch]).to(device))
            told[0] += F.cross_entropy(logits, label).item() * len(batch)
            told[1] += int((logits.argmax(1) == label).sum())
            told[2] += len(batch)
    for name, module in model.named_modules():
        module.training = modes[name]
    everybody = [None] * ranks
    dist.all_gather_object(everybody, told)
    loss, right, count = (sum(one[i] for one in everybody) for i in range(3))
    return loss / count, right / count


BANK.right((change("model.eval()", "its_copy = copy.deepcopy(model.module).eval()"),
           change("model.module(", "its_copy("), add("import copy", before="rank, ranks =")))  # fmt: skip
BANK.right(change("sums[2] += len(label)", "sums[2] = sums[2] + label.numel()"))
BANK.mistakes(
    ("the sampler pads: some samples count twice",
     "DistributedSampler makes all parts equally long by repeating samples; use range(rank, len(data), ranks)",
     change(LOADER, f'DataLoader(data, batch_size, sampler={SAMPLER}))')),
    ("the samples that the ranks cannot share equally are left out",
     "as by drop_last=True of a DistributedSampler, or len(data) // ranks; deal range(rank, len(data), " "ranks)",
     change(LOADER, f'DataLoader(data, batch_size, sampler={SAMPLER}, drop_last=True))'),
     change("range(rank, len(data), ranks)", "range(rank * (len(data) // ranks), (rank + 1) * (len(data) // ranks))")),
    ("the short batch at the end is left out",
     "drop_last=True of a DataLoader is for training, where the next epoch brings other samples",
     change(LOADER, "DataLoader(part, batch_size, drop_last=True)")),
    ("every rank evaluates all samples", "the result is right, but takes as long as on one GPU: split the indices",
     change("range(rank, len(data), ranks)", "range(len(data))")),
    ("rank 0 evaluates all samples, and the others wait",
     "the result is right, but takes as long as on one GPU: split the indices",
     change("range(rank, len(data), ranks)", "range(len(data) if rank == 0 else 0)")),
    ("a rank's whole part goes through the model at once", "batch_size is what fits: pass it to the DataLoader",
     change(LOADER, "DataLoader(part, max(len(part), 1))")),
    ("each batch's mean loss counts once, however many samples it has",
     'reduction="sum", or the mean times the number of samples: the last batch is shorter',
     change('reduction="sum")', 'reduction="mean") * (len(part) / len(range(0, len(part), batch_size)))')),
    ("each rank's accuracy counts equally, however many samples it has",
     "ranks have unequal parts, and some have none: add up right answers and samples, then divide",
     (add("own = sums[1] / sums[2].clamp(min=1)", before="dist.all_reduce"),
     change("    loss, right =", "    dist.all_reduce(own)\n    loss, right ="),
     change("return loss, right", "return loss, (own / ranks).item()"))),
    ("the right answers are divided as if all batches were full", "the last batch is shorter: count len(label)",
     (add("full = torch.tensor(float(-(-len(part) // batch_size) * batch_size), device=device)",
     before="dist.all_reduce"), change("    loss, right =", "    dist.all_reduce(full)\n    loss, right ="),
     change("return loss, right", "return loss, (sums[1] / full).item()"))),
    ("each rank returns the numbers of its own part",
     "nothing was exchanged: an all-reduce gives each rank the sums of all",
     (drop("dist.all_reduce"), change("sums[:2] / sums[2]", "sums[:2] / sums[2].clamp(min=1)"))),
    ("only rank 0 has the sums of all", "dist.reduce leaves the sums on one rank only",
     change("dist.all_reduce(sums)", "dist.reduce(sums, 0)")),
    ("the model is evaluated in training mode",
     "dropout is active, and batch norm learns from the test data: call eval() first", drop("model.eval()")),
    ("the model is left in evaluation mode",
     "training silently continues without dropout: restore each module's mode", change(SET_BACK, "pass")),
    ("all modules are in training mode afterwards",
     "train() also changes a frozen part, or a model that was in evaluation mode: remember each module's mode",
     change(SET_BACK, "module.training = True")),
    ("all modules are in the mode of the whole model afterwards",
     "model.train(mode) changes a frozen part too: remember each module's mode",
     change(SET_BACK, "module.training = modes[0][1]")),
    ("a nested module is in another mode afterwards",
     "train(mode) changes all submodules: remember the mode of each of model.modules()",
     (change("in model.modules()]", "in (model, model.module, *model.module.children())]"),
     change(SET_BACK, "module.train(training)"))),
    ("the dataset is sliced",
     "a dataset has a length and data[i], but no slices: use Subset(data, range(rank, len(data), ranks))",
     change(PART, "part = data[rank::ranks]")),
    ("the sums are on GPU 0, on every rank",
     "that is rank 0's GPU, and NCCL refuses two ranks on one: use the device of the model's parameters",
     change("    dist.all_reduce(sums)", "    sums = sums.to(\"cuda:0\")\n    dist.all_reduce(sums)")),
    ("RANK is used as the number of the GPU",
     "on a second machine RANK continues, but GPUs start at 0 again: use the device of the model's parameters",
     change("next(model.parameters()).device", 'torch.device("cuda", rank)')),
    ("the forward passes record a graph",
     "eval() changes what layers do, not what autograd records: torch.no_grad() does that",
     (change("torch.no_grad()", "torch.enable_grad()"),
     change("sums[0] += F.cross_entropy(logits", "sums[0] += F.cross_entropy(logits.detach()"))),
    ("tensors are returned",
     "item() or tolist() turns them into numbers; tensors kept for a log hold GPU memory",
     change("(sums[:2] / sums[2]).tolist()", "sums[:2] / sums[2]")),
    ("the process group is closed",
     "destroy_process_group() belongs at the end of a script, not of a function called in every epoch",
     add("dist.destroy_process_group()", after="dist.all_reduce")),
    ("the samples go through DDP's own forward pass",
     "DDP broadcasts rank 0's buffers before each batch, but ranks may have unequal numbers of batches: use "
     "model.module", change("model.module(", "model(")),
    ("only rank 0 calls the all-reduce",
     "a collective is called by all ranks: print on rank 0, but add up on every one",
     change("dist.all_reduce(sums)", "rank == 0 and dist.all_reduce(sums)")),
    ("a rank without samples does not call the all-reduce",
     "the others wait for it: it must call it with zeros",
     change("device = next", "if rank >= len(data):\n        return 0.0, 0.0\n    device = next")),
    ("your function left a setting changed", "use it as a context manager",
     change("    with torch.no_grad():", "    torch.set_grad_enabled(False)\n    if True:")),
    ("your function changed its argument model: model.module.0.weight.requires_grad is False, not True",
     "requires_grad_() was used on what the caller owns", change("model.eval()", "model.eval().requires_grad_(False)")),
)  # fmt: skip

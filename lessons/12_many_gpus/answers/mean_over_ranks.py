"""Answers to "one loss for all ranks": the mean over all samples, on real ranks."""

import torch.distributed as dist
from banks.bank import Bank
from banks.edits import add, change, drop

BANK = Bank("mean_over_ranks")
SUMS = "sums[0] / sums[1]"


@BANK.right
def gathers_objects(loss, count):
    all_of_them = [None] * dist.get_world_size()
    dist.all_gather_object(all_of_them, (loss.item() if count else 0.0, count))
    samples = sum(n for _, n in all_of_them)
    return sum(mean * n for mean, n in all_of_them) / samples if samples else float("nan")


BANK.right(change("device=loss.device", 'device="cuda"'))
BANK.right(change("all_reduce(sums)", "all_reduce(sums[:1]), dist.all_reduce(sums[1:])"))
BANK.mistakes(
    ("the ranks' means count equally, however many samples each has",
     "a rank's mean stands for count samples: send the sum, loss · count, and the count",
     (change("* count", "* bool(count)"), change("sums[1] = count", "sums[1] = bool(count)"))),
    ("the sum of the losses is not divided by the number of samples",
     "an all-reduce only adds up: divide by the sum of the counts",
     change(SUMS, "sums[0]")),
    ("the sum of the losses is divided by the number of ranks",
     "the mean is over samples: add up the counts over the ranks too",
     change(SUMS, "sums[0] / dist.get_world_size()")),
    ("the sum of the losses of all ranks is divided by this rank's own number of samples",
     "add up the counts over the ranks too",
     (change(SUMS, "sums[0] / count"), change("if count:", "if count or not (count := float('nan')):"))),
    ("each rank returns the mean over its own samples",
     "nothing was exchanged: an all-reduce gives each rank the sums of all", drop("dist.all_reduce")),
    ("loss itself is multiplied by the number of samples",
     "detach() shares memory with loss: mul_() and *= change both",
     change("loss.detach().double() * count", "loss.detach().mul_(count)")),
    ("loss itself is taken out of the graph",
     "detach_() works on loss; detach() makes another tensor without the graph",
     add("loss.detach_()", before="sums = ")),
    ("the NaN of a rank without samples is added up", "NaN times 0 is NaN: such a rank adds zeros",
     change("if count:", "if True:")),
    ("a rank that has diverged is left out of the mean",
     "its loss is NaN though its count is not 0: nan_to_num, or a test for NaN, hides a failure that must be seen",
     change("if count:", "if not loss.isnan():")),
    ("the mean of no samples is 0",
     "a clamp or an `or 1` in the divisor hides that there were no samples; a 0 looks like a perfect step",
     change(SUMS, "sums[0] / sums[1].clamp(min=1)")),
    ("the sums are in the dtype of the loss",
     "bfloat16 keeps 8 bits: a sum over ranks of loss · count needs more, and so does a count above 256",
     change("dtype=torch.float64", "dtype=loss.dtype")),
    ("what is returned is a tensor, not a float",
     "item() turns it into a number; a tensor kept for a log holds GPU memory",
     (drop("return"), add("return sums[0] / sums[1]", after="dist.all_reduce"))),
    ("only rank 0 has the mean", "dist.reduce leaves the sum on one rank only",
     change("dist.all_reduce(sums)", "dist.reduce(sums, 0)")),
    ("rank 0 alone calls the all-reduce",
     "a collective is called by all ranks: print on rank 0, but add up on every one",
     change("dist.all_reduce(sums)", "dist.get_rank() == 0 and dist.all_reduce(sums)")),
    ("a rank without samples does not call the all-reduce",
     "the others wait for it: it must call it with zeros",
     change("if count:", "if not count:\n        return float('nan')\n    if count:")),
    ("what is added up is on the CPU", "NCCL sends from GPU to GPU: put the tensor on loss.device",
     change(", device=loss.device", "")),
    ("what is added up is on GPU 0, on every rank",
     "that is rank 0's GPU, and NCCL refuses two ranks on one: put the tensor on loss.device",
     change("device=loss.device", 'device="cuda:0"')),
    ("RANK is used as the number of the GPU",
     "on a second machine RANK continues, but GPUs start at 0 again: use loss.device",
     change("device=loss.device", 'device=f"cuda:{dist.get_rank()}"')),
    ("a rank with one sample is left out",
     "one sample counts too; only a rank without any adds nothing: if count",
     change("if count:", "if count > 1:")),
    ("the process group is closed",
     "destroy_process_group() belongs at the end of a script, not of a function called in every step",
     add("dist.destroy_process_group()", after="dist.all_reduce")),
    ("loss itself is added up over the ranks", "all_reduce writes into the tensor that it gets",
     (change("dist.all_reduce(sums)", "dist.all_reduce(loss)"), change(SUMS, "loss / dist.get_world_size()"))),
    ("if no rank has a sample, Python numbers are divided by 0",
     "0/0 is NaN for tensors, an exception for Python numbers", change(f"({SUMS}).item()",
     "sums[0].item() / sums[1].item()")),
)  # fmt: skip

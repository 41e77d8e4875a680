# %% title [markdown]
# # 13 · Exercises: what does not fit on one GPU
#
# Four functions, about 75 minutes. Each is checked on your own code: run the check cell under it as often as you like. It
# draws fresh inputs every time, and when it fails it says what it expected, what came back, and which section of
# [the lecture](../notebooks/13_sharding.ipynb) to read.
#
# A cell that says *not attempted yet* is one you have not written. Everything after it still runs.

# %% setup
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

import gpulab

gpu = gpulab.setup()

# %% bytes-text [markdown]
# ## 1 · Bytes on each rank
#
# **Build** the arithmetic of ZeRO's three stages, down to the single tensor. **Why:** $16/N$ is what you say in a meeting;
# the rank that runs out of memory is the one that holds most, and which one that is depends on how tensors are cut.
#
# 15 minutes · difficulty ●○○
#
# **`bytes_per_rank(shapes, ranks, stage, weights, gradients, state)`**
#
# - `shapes`: of the parameters, tuples of one whole number or more; the first is the number of rows
# - `stage`: of ZeRO: 0 cuts nothing (DDP), 1 the optimizer state, 2 the gradients too, 3 the weights too
# - `weights`: bytes of one weight, as 4; gradients and state likewise, for each number of a parameter
#
# A stage cuts each tensor by rows, as `fully_shard` does: a part has rows / ranks rows, rounded up. The ranks take their
# parts in order, until no row is left: one may get fewer, later ones none. Padding is not counted.

# %% bytes_per_rank tags=["solution"]
def bytes_per_rank(shapes, ranks, stage, weights, gradients, state):
    """Bytes of weights, gradients and optimizer state that each rank holds: a list of
    whole numbers, rank 0 first.
    """
    # TODO: for each tensor, how many rows are this rank's? And which of the three
    # kinds does the stage cut?
    ### BEGIN SOLUTION
    held = [0] * ranks
    for rows, *rest in shapes:
        row = math.prod(rest)
        part = -(-rows // ranks)  # rounded up
        for rank in range(ranks):
            mine = max(0, min(part, rows - rank * part))
            for nbytes, first in ((weights, 3), (gradients, 2), (state, 1)):
                held[rank] += nbytes * row * (mine if stage >= first else rows)
    return held
    ### END SOLUTION

# %% check-bytes tags=["check"]
gpulab.check.bytes_per_rank(bytes_per_rank)

# %% bytes-hints [markdown]
# <details><summary>Hint 1</summary>
#
# First one tensor and one rank: how many rows? 10 rows on 4 ranks are 3, 3, 3 and 1; on 8 ranks 2, 2, 2, 2, 2, 0, 0, 0.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A part has `math.ceil(rows / ranks)` rows. Rank $r$ begins at row `r * part`; what is left from there may be fewer than a
# part, and must not be negative. A row has `math.prod(rest)` numbers, also where nothing follows.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Each kind is cut from its own stage on: the state from 1, the gradients from 2, the weights from 3. Below that stage the
# rank holds all rows.
#
# </details>

# %% bytes-seen-text [markdown]
# And PyTorch's own? Three ranks, of which the last runs here:

# %% bytes-seen tags=["needs-answer"]
with gpulab.VirtualGPU("T4", ranks=3, rank=2, compute=False):
    dist.init_process_group("nccl")
    model = nn.Sequential(nn.Conv2d(3, 10, 3), nn.Flatten(), nn.Linear(160, 7)).cuda()
    shapes = [tuple(p.shape) for p in model.parameters()]
    fully_shard(model)
    rows = [p.to_local().shape[0] for p in model.parameters()]
    seen = sum(4 * p.to_local().numel() for p in model.parameters())
    dist.destroy_process_group()
print("rows of", [shape[0] for shape in shapes], "on the last of three:", rows)
yours = bytes_per_rank(shapes, 3, 3, 4, 0, 0)[2]
print("bytes of weights:", seen, "with fully_shard,", yours, "with yours")

# %% save-text [markdown]
# ## 2 · One file for everybody
#
# **Build** the last line of a training script: the sharded model, whole, in one file. **Why:** DCP's folder is for going
# on; who evaluates, converts or publishes the model wants one file. Two ways that seem right end in a file with a part of
# the rows, or in a hang, and a third in an out-of-memory error, for models that needed sharding.
#
# 20 minutes · difficulty ●●○
#
# The check calls your function on two or three real processes, with the process group open and a model on which
# `fully_shard` has been called. What a rank prints is shown under the result.

# %% save_whole tags=["solution"]
def save_whole(model, path):
    """Save the state dict of model, which fully_shard has cut, as one file at path,
    which rank 0 alone writes.

    Called on all ranks. torch.load(path) gives, on any machine and without a process group, a
    dictionary of whole, plain tensors on the CPU, under the names that it had before it was
    cut. The weights have the values that they have now, all rows of them; so have the buffers,
    which are whole on every rank.
    The model may be too large for one GPU: on no GPU more than one of them is whole at a time,
    beside what lay there. The model stays cut as it is, and the process group open.
    """
    # TODO: go through the state dict. What does each rank call, and what is only rank 0's?
    ### BEGIN SOLUTION
    whole = {}
    for name, value in model.state_dict().items():
        if isinstance(value, DTensor):
            value = value.full_tensor()  # all ranks send their rows
        if dist.get_rank() == 0:
            whole[name] = value.cpu()
    if dist.get_rank() == 0:
        torch.save(whole, path)
    ### END SOLUTION

# %% check-save tags=["check"]
gpulab.check.save_whole(save_whole)

# %% save-hints [markdown]
# <details><summary>Hint 1</summary>
#
# What does `model.state_dict()` hold on this rank: how many rows, and of which type? Buffers are not cut.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `full_tensor()` of a `DTensor` is a collective: each rank calls it for each tensor, in the same order, also those that do
# nothing with the result. What belongs to rank 0 stands under an `if`, after it.
#
# </details>
# <details><summary>Hint 3</summary>
#
# One tensor at a time: gather it, on rank 0 `cpu()` it into a dictionary, and let go of it before the next. Then rank 0
# calls `torch.save`.
#
# </details>

# %% train-text [markdown]
# ## 3 · The losses of one GPU
#
# **Build** the training of a model that no GPU can hold. **Why:** a cut model trains without any error also where the
# optimizer holds the old weights, where each rank clips by a norm of its own, and where all of the model was whole on a GPU
# for a moment. Equal losses and norms show that it is the same training, and the bytes show that it is cut.
#
# 20 minutes · difficulty ●●○
#
# The check calls your function on two or three real processes, on one machine or each on a machine of its own, each with a GPU
# and with the process group open, and compares with one process that has the whole model. What a rank prints is shown under the result.
#
# **`train_sharded(model, batches, learning_rate, limit)`**
#
# - `model`: on the CPU, whole and the same on all ranks: `model.embed`, then the blocks in `model.blocks`, then
#   `model.head`
# - `batches`: a list of (x, label) on the CPU, the same on all ranks; the number of ranks divides the length of each
#
# Called on each rank, with the process group open and this rank's GPU the current one. The model may be too large for
# the GPUs: on none are more than two blocks whole at a time, beside embed and head.
#
# Of each batch every rank takes an equal part, and no sample is taken twice. A step is that of `torch.optim.AdamW` with
# this learning rate, for the mean cross entropy of the batch, with the gradient of the whole model clipped to the norm
# limit. The weights become those that one process with the whole model gets.
#
# `loss` is the mean over all samples of the batch, and `norm` that of the whole gradient, before it is clipped; both are
# the same on every rank. Afterwards each rank has its part of every weight on its GPU, and the process group is open.

# %% train_sharded tags=["solution"]
def train_sharded(model, batches, learning_rate, limit):
    """Cut model and train it, a step for each batch, in order; return a list of (loss, norm),
    floats, one of each step.
    """
    # TODO: cut, then make the optimizer. Which numbers are this rank's alone, and
    # who makes them those of all?
    ### BEGIN SOLUTION
    for block in model.blocks:
        fully_shard(block)  # to this rank's GPU, one block at a time
    fully_shard(model)  # the rest: embed and head
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)  # of the DTensors
    rank, ranks = dist.get_rank(), dist.get_world_size()
    steps = []
    for x, label in batches:
        x, label = x[rank::ranks].cuda(), label[rank::ranks].cuda()
        loss = F.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()  # averages the gradients over the ranks
        norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        steps.append((mean.item(), norm.full_tensor().item()))
    return steps
    ### END SOLUTION

# %% check-train tags=["check"]
gpulab.check.train_sharded(train_sharded)

# %% train-hints [markdown]
# <details><summary>Hint 1</summary>
#
# What lies on the GPU, line by line? `model.cuda()` brings all of it there. `fully_shard(block)` brings one block to this
# rank's GPU and leaves this rank's rows. In which order do the cut and the optimizer come, and why?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `x[rank::ranks]` is this rank's part of a batch. `backward()` averages the gradients over the ranks, and since the parts are
# equal, that is the gradient of the whole batch. `clip_grad_norm_` of the cut parameters takes the norm over all ranks.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Two numbers remain. The loss is that of this rank's part: an all-reduce of `loss.detach()` with `dist.ReduceOp.AVG`. The
# norm that `clip_grad_norm_` returns is a `DTensor`: `full_tensor()`, on all ranks. Then `item()` of both.
#
# </details>

# %% fewest-text [markdown]
# ## 4 · Stretch: as few GPUs as do
#
# **Build** the first decision of a project: how many GPUs, and which cut. **Why:** a machine too many costs every hour of the
# run; one too few is found out at the first step, after the queue. The rule is short, and every part of it turns some decision.
#
# 20 minutes · difficulty ●●○
#
# **`fewest_gpus(parameters, unit, activations, batch, memory, machine, most)`**
#
# The ways, the simplest first (what each changes in a script and asks of the link), with the bytes on each GPU:
#
# - `"ddp"`: 16 bytes for each parameter (fp32, AdamW: 4 + 4 + 8), and the activations of its part of the batch
# - `"zero1"`: the same with the 8 of optimizer state cut into equal parts, one for each rank
# - `"fsdp"`: all 16 cut, its part's activations, and four times one unit, 4 bytes for each of its parameters, whole for
#   a moment: the weights of two units, the gradient of one, and the copy of that which is sent
# - `"tensor"`: all 16 cut, and the activations of the whole batch cut too; no unit is whole. It is the last, although it may
#   send fewer bytes than fsdp: its exchanges hide behind nothing
#
# The arguments:
#
# - `unit`: the most parameters that fsdp gathers at once
# - `activations`: bytes for one sample, batch samples a step on all ranks together. Under the first three a rank has
#   the batch divided by the ranks, and it must divide the batch; `"tensor"` works whatever the batch
# - `memory`: bytes of a GPU, which may be full to the last byte
# - `machine`: GPUs in a machine; `"tensor"` only within one machine

# %% fewest_gpus tags=["solution"]
def fewest_gpus(parameters, unit, activations, batch, memory, machine, most):
    """(ranks, way): the fewest GPUs that train the model, at most `most`, and the first way that
    fits there; None if none of them fits.
    """
    # TODO: from 1 rank upwards: what does each way need, and which of them
    # may be used with so many?
    ### BEGIN SOLUTION
    for ranks in range(1, most + 1):
        shard, own = 16 * parameters / ranks, activations * batch / ranks
        equal = batch % ranks == 0
        ways = (
            ("ddp", equal, 16 * parameters + own),
            ("zero1", equal, 8 * parameters + 8 * parameters / ranks + own),
            ("fsdp", equal, shard + 4 * 4 * unit + own),
            ("tensor", ranks <= machine, shard + own),
        )
        for way, possible, needed in ways:
            if possible and needed <= memory:
                return ranks, way
    return None
    ### END SOLUTION

# %% check-fewest tags=["check"]
gpulab.check.fewest_gpus(fewest_gpus)

# %% fewest-hints [markdown]
# <details><summary>Hint 1</summary>
#
# Two loops: the outer one over the number of ranks, from 1; the inner one over the four ways, in their order. The first that
# fits is the answer.
#
# </details>
# <details><summary>Hint 2</summary>
#
# For each way two questions: may it be used with so many ranks (`batch % ranks == 0` for three of them, `ranks <= machine` for
# the fourth), and do its bytes fit (`<=`)?
#
# </details>
# <details><summary>Hint 3</summary>
#
# With `own = activations * batch / ranks` for all four: `16 * parameters`, `8 * parameters + 8 * parameters / ranks`,
# `16 * parameters / ranks + 16 * unit` and `16 * parameters / ranks`, each plus `own`.
#
# </details>

# %% fewest-seen-text [markdown]
# The three models of the lecture on H100s of 79 GiB, in machines of eight, with checkpointing: 48 samples of 2048 tokens, of which
# each block keeps its input, 4 bytes a number.

# %% fewest-seen tags=["needs-answer"]
for size, width, depth in (("7B", 4096, 32), ("13B", 5120, 40), ("70B", 8192, 86)):
    block = 12 * width**2
    count = depth * block + 2 * 32000 * width
    unit = max(block, 2 * 32000 * width)  # embedding and head are the last unit
    print(size, fewest_gpus(count, unit, 4 * 2048 * width * depth, 48, 79 * 2**30, 8, 256))

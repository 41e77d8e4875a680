# %% title [markdown]
# # 13 · Exercises: what does not fit on one GPU
#
# Four functions, about 75 minutes. A check cell under each tests your code: run it as often as you like. It draws new
# inputs every time, and when it fails it says what it expected, what it got, and which section of
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
# **Build** the arithmetic of ZeRO's three stages, down to single tensors. **Why:** $16/N$ bytes per parameter is a good
# estimate; but the rank that holds most runs out of memory first, and which one that is depends on how tensors are
# sharded.
#
# 15 minutes · difficulty ●○○
#
# **`bytes_per_rank(shapes, ranks, stage, weights, gradients, state)`**
#
# - `shapes`: the parameters' shapes, tuples of at least one whole number; the first is the number of rows
# - `stage`: ZeRO's stage: 0 cuts nothing (DDP), 1 the optimizer state, 2 the gradients too, 3 the weights too
# - `weights`: bytes of one weight, such as 4; `gradients` and `state` likewise, per element of a parameter
#
# A stage cuts each tensor by rows, as `fully_shard` does: a part has rows / ranks rows, rounded up. The ranks take
# their parts in order, until no row is left: one may get fewer, later ones none. Padding does not count.

# %% bytes_per_rank tags=["solution"]
def bytes_per_rank(shapes, ranks, stage, weights, gradients, state):
    """Bytes of weights, gradients and optimizer state that each rank holds: a list of
    whole numbers, rank 0 first.
    """
    # TODO: for each tensor, how many rows does this rank get? And which of the three kinds does the
    # stage cut?
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
# Begin with one tensor and one rank: how many rows? 10 rows on 4 ranks give 3, 3, 3 and 1; on 8 ranks 2, 2, 2, 2, 2, 0,
# 0, 0.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A part has `math.ceil(rows / ranks)` rows. Rank $r$ begins at row `r * part`; what is left from there may be fewer
# than a part, and must not be negative. A row has `math.prod(rest)` elements, which is 1 if there are no further
# dimensions.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Each kind is cut from its own stage on: the state from 1, the gradients from 2, the weights from 3. Below that stage the
# rank holds all rows.
#
# </details>

# %% bytes-seen-text [markdown]
# Compare with PyTorch's own: three ranks, of which the last runs here:

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
# **Build** the last step of a training script: save the sharded model, whole, in one file. **Why:** DCP's folder is for
# resuming; to evaluate, convert or publish a model you want one file. Two ways that look right give a file with only
# some of the rows, or a hang; a third runs out of memory with exactly the models that need sharding.
#
# 20 minutes · difficulty ●●○
#
# The check calls your function on two or three real processes, with an open process group and a model on which
# `fully_shard` has been called. What a rank prints is shown under the result.

# %% save_whole tags=["solution"]
def save_whole(model, path):
    """Save the state dict of model, which fully_shard has sharded, as one file at path, which rank
    0 alone writes.

    All ranks call it. torch.load(path) returns, on any machine and without a process group, a
    dictionary of whole, plain tensors on the CPU, under the names that they had before sharding.
    The weights have their current values, in all rows; so do the buffers, which are whole on every
    rank. The model may be too large for one GPU: on no GPU is more than one weight whole at a time,
    beside what was there before. The model stays sharded, and the process group open.
    """
    # TODO: go through the state dict. What must every rank call, and what only rank 0?
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
# What does `model.state_dict()` hold on this rank: how many rows, and of which type? Buffers are not sharded.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `full_tensor()` of a `DTensor` is a collective: every rank calls it for each tensor, in the same order, even ranks
# that do not use the result. What only rank 0 does goes under an `if`, after it.
#
# </details>
# <details><summary>Hint 3</summary>
#
# One tensor at a time: gather it, copy it on rank 0 into a dictionary with `cpu()`, and release it before the next.
# Then rank 0 calls `torch.save`.
#
# </details>

# %% train-text [markdown]
# ## 3 · The losses of one GPU
#
# **Build** the training of a model that no single GPU can hold. **Why:** a sharded model trains without any error even
# if the optimizer holds the old weights, if each rank clips by its own norm, or if the whole model was on one GPU for a
# moment. Equal losses and norms show that the training is the same, and the bytes show that the model is sharded.
#
# 20 minutes · difficulty ●●○
#
# The check calls your function on two or three real processes, on one machine or each on its own machine, each with a
# GPU and an open process group, and compares with one process that has the whole model. What a rank prints is shown
# under the result.
#
# **`train_sharded(model, batches, learning_rate, limit)`**
#
# - `model`: on the CPU, whole and the same on all ranks: `model.embed`, then the blocks in `model.blocks`, then
#   `model.head`
# - `batches`: a list of (x, label) on the CPU, the same on all ranks; each length is a multiple of the number of ranks
#
# Every rank calls it, with an open process group and its own GPU current. The model may be too large for one GPU: on
# none are more than two blocks whole at a time, beside embed and head.
#
# Of each batch every rank takes an equal part, and no sample is taken twice. Each step is one of `torch.optim.AdamW`
# with this learning rate, for the mean cross-entropy of the batch, with the gradient of the whole model clipped to the
# norm `limit`. The weights become those that one process with the whole model gets.
#
# `loss` is the mean over all samples of the batch, and `norm` that of the whole gradient, before it is clipped; both
# are the same on every rank. Afterwards each rank has its part of every weight on its GPU, and the process group is
# open.

# %% train_sharded tags=["solution"]
def train_sharded(model, batches, learning_rate, limit):
    """Shard model and train it, one step per batch, in order; return a list of (loss, norm),
    floats, one for each step.
    """
    # TODO: shard, then make the optimizer. Which numbers are only this rank's, and what combines
    # them?
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
# What is on the GPU after each line? `model.cuda()` moves the whole model there. `fully_shard(block)` moves one block
# to this rank's GPU and keeps this rank's rows. In which order do sharding and the optimizer come, and why?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `x[rank::ranks]` is this rank's part of a batch. `backward()` averages the gradients over the ranks, and since the
# parts are equal, that is the gradient of the whole batch. `clip_grad_norm_` on the sharded parameters uses the norm
# over all ranks.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Two numbers remain. The loss is that of this rank's part: all-reduce `loss.detach()` with `dist.ReduceOp.AVG`. The
# norm that `clip_grad_norm_` returns is a `DTensor`: call `full_tensor()`, on all ranks. Then `item()` on both.
#
# </details>

# %% fewest-text [markdown]
# ## 4 · Stretch: as few GPUs as do
#
# **Build** the first decision of a project: how many GPUs, and which way to shard. **Why:** a machine too many costs
# money every hour of the run; one too few fails at the first step, after a long wait in the queue. The rule is short,
# and each part of it matters for some models.
#
# 20 minutes · difficulty ●●○
#
# **`fewest_gpus(parameters, unit, activations, batch, memory, machine, most)`**
#
# The ways, simplest first (by how much each changes in a script and asks of the link), with the bytes on each GPU:
#
# - `"ddp"`: 16 bytes per parameter (fp32, AdamW: 4 + 4 + 8), and the activations of its part of the batch
# - `"zero1"`: the same, with the 8 bytes of optimizer state sharded equally over the ranks
# - `"fsdp"`: all 16 sharded, its part's activations, and temporarily four whole units, at 4 bytes per parameter: the
#   weights of two units, the gradient of one, and the copy of that gradient which is sent
# - `"tensor"`: all 16 sharded, and the activations of the whole batch sharded too; no unit is whole. It comes last,
#   although it may send fewer bytes than fsdp, because nothing hides its exchanges
#
# The arguments:
#
# - `unit`: the largest number of parameters that fsdp gathers at once
# - `activations`: bytes for one sample; a step has `batch` samples on all ranks together. In the first three ways each
#   rank takes batch / ranks samples, which must be a whole number; `"tensor"` works with any batch
# - `memory`: bytes of a GPU, all of which may be used
# - `machine`: GPUs in a machine; `"tensor"` only within one machine

# %% fewest_gpus tags=["solution"]
def fewest_gpus(parameters, unit, activations, batch, memory, machine, most):
    """(ranks, way): the fewest GPUs that train the model, at most `most`, and the first way that
    fits there; None if none of them fits.
    """
    # TODO: from 1 rank upwards: what does each way need, and which ways are possible with so many?
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
# For each way ask two questions: is it possible with so many ranks (`batch % ranks == 0` for three of them,
# `ranks <= machine` for the fourth), and do its bytes fit (`<=`)?
#
# </details>
# <details><summary>Hint 3</summary>
#
# With `own = activations * batch / ranks` for all four: `16 * parameters`, `8 * parameters + 8 * parameters / ranks`,
# `16 * parameters / ranks + 16 * unit` and `16 * parameters / ranks`, each plus `own`.
#
# </details>

# %% fewest-seen-text [markdown]
# The three models of the lecture on H100s of 79 GiB, in machines of eight, with checkpointing: 48 samples of 2048
# tokens; each block keeps its input, 4 bytes per element.

# %% fewest-seen tags=["needs-answer"]
for size, width, depth in (("7B", 4096, 32), ("13B", 5120, 40), ("70B", 8192, 86)):
    block = 12 * width**2
    count = depth * block + 2 * 32000 * width
    unit = max(block, 2 * 32000 * width)  # embedding and head are the last unit
    print(size, fewest_gpus(count, unit, 4 * 2048 * width * depth, 48, 79 * 2**30, 8, 256))

# %% title [markdown]
# # 12 · Exercises: many GPUs
#
# Four functions, about 75 minutes. A check cell under each tests your code: run it as often as you like. It draws new
# inputs every time, and when it fails it says what it expected, what it got, and which section of
# [the lecture](../notebooks/12_many_gpus.ipynb) to read.
#
# A cell that says *not attempted yet* is one you have not written. Everything after it still runs.

# %% setup
import os

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

import gpulab

gpu = gpulab.setup()

# %% ddp-text [markdown]
# ## 1 · From one GPU to all
#
# **Rewrite** the script below for many GPUs. **Why:** most scripts need this change, and a script still runs if you
# forget a step of it: the ranks then train separately, on the same samples, in the same order, or with N times the
# batch.
#
# 25 minutes · difficulty ●●○
#
# It works for one GPU; started with `torchrun` as it is, every rank would train by itself on GPU 0:

# %% ddp-one-gpu
def training(model, data, epochs, batch_size, learning_rate, path):
    """Train model on one GPU, and save it: the mean loss of each epoch, a list of floats."""
    device = torch.device("cuda")
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    loader = DataLoader(data, batch_size, shuffle=True)
    losses = []
    for epoch in range(epochs):
        total = torch.zeros((), device=device)
        for x, label in loader:
            label = label.to(device)
            loss = F.cross_entropy(model(x.to(device)), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(label)
        losses.append((total / len(data)).item())
    torch.save(model.state_dict(), path)
    return losses

# %% ddp-check-text [markdown]
# The check calls your function on two or three real processes, each with a virtual GPU, and with the environment
# variables that `torchrun` sets: on one machine, or each on its own machine. No process group is open yet. What a rank
# prints is shown under the result.
#
# **`ddp_training(model, data, epochs, batch_size, learning_rate, path)`**
#
# - `model`: on the CPU, with different weights on every rank
# - `data`: a dataset of (x, label), a tensor on the CPU and an int, the same on every rank
# - `batch_size`: the samples of a step on all ranks together, a multiple of N: each rank takes an Nth of them
# - `learning_rate`: of SGD, right for this `batch_size`
# - `path`: where rank 0 alone saves the state dict, under the same names as in model
#
# It opens the process group, with NCCL, and closes it at the end. Each rank uses the GPU of its LOCAL_RANK, and no
# other.
#
# Every epoch draws every sample, in a different order each time, and no more of them twice than the ranks need for
# equal parts. In every step all ranks take equally many; the last step of an epoch may have fewer.
#
# Afterwards model has, on every rank, the weights that one process has after the same steps from rank 0's weights, to
# 1e-5. Samples that are drawn twice count twice.

# %% ddp_training tags=["solution"]
def ddp_training(model, data, epochs, batch_size, learning_rate, path):
    """Train model on the GPUs of all N ranks: the mean loss of each epoch over the samples of all
    ranks, a list of floats, the same on every rank. It is the body of a script that torchrun has
    started; all ranks call it.
    """
    # TODO: device and group, DDP around the model, a sampler, one loss for all ranks, one rank that
    # saves
    ### BEGIN SOLUTION
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ddp = DistributedDataParallel(model.to(device), device_ids=[device.index])
    optimizer = torch.optim.SGD(ddp.parameters(), learning_rate)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size // ranks, sampler=sampler)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        sums = torch.zeros(2, dtype=torch.float64, device=device)  # of the losses, of the samples
        for x, label in loader:
            label = label.to(device)
            loss = F.cross_entropy(ddp(x.to(device)), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sums[0] += loss.detach() * len(label)
            sums[1] += len(label)
        dist.all_reduce(sums)
        losses.append((sums[0] / sums[1]).item())
    if rank == 0:
        torch.save(model.state_dict(), path)
    dist.destroy_process_group()
    return losses
    ### END SOLUTION

# %% check-ddp tags=["check"]
gpulab.check.ddp_training(ddp_training)

# %% ddp-hints [markdown]
# <details><summary>Hint 1</summary>
#
# Go through `training` line by line, and ask: does every rank do this, with its own part, or one rank alone? Where must
# the ranks agree, and which collective makes them agree?
#
# </details>
# <details><summary>Hint 2</summary>
#
# First the device of `LOCAL_RANK` and the group; then `DistributedDataParallel` around the model on its GPU. A
# `DistributedSampler` replaces `shuffle=True`, and a rank's batch is an Nth. Three things come at the end: combine N
# losses into one, save on one rank, and close the group.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Call the DDP model for the forward pass, because only it exchanges gradients; save the state dict of `model`, whose
# names have no `module.` in front. Each epoch begins with `sampler.set_epoch(epoch)`. Each rank adds up its losses
# times their samples, and its samples: all-reduce both, on every rank, then divide.
#
# </details>

# %% mean-text [markdown]
# ## 2 · One loss for all ranks
#
# **Build** the function that computes the loss to print: that of the step, over the samples of all ranks. **Why:** each
# rank's own loss covers only its part; a mean of the ranks' means gives a rank's samples the more weight, the fewer it
# has; and `backward()` still needs the loss that is printed.
#
# 10 minutes · difficulty ●●○
#
# The check calls your function on two or three real processes, on one machine or each on its own machine, each with a
# virtual GPU and an open process group. What a rank prints is shown under the result.

# %% mean_over_ranks tags=["solution"]
def mean_over_ranks(loss, count):
    """The mean loss over the samples of all ranks, a float, the same on every rank. All ranks call
    it.

    loss   the mean over this rank's samples, of shape (), in float32 or bfloat16, on this rank's
           GPU, which is the current one; NaN where it has no sample
    count  how many samples those are, an int; it differs between ranks

    A rank without a sample adds nothing; if no rank has one, the mean is NaN. It is also NaN if a
    rank that has samples has diverged: its NaN stays. The sums are exact to 1e-6, even in bfloat16.
    loss is not changed: backward() comes next. Nothing is put on another rank's GPU. The process
    group stays open.
    """
    # TODO: which two sums over all ranks give the mean?
    ### BEGIN SOLUTION
    sums = torch.zeros(2, dtype=torch.float64, device=loss.device)
    if count:
        sums[0] = loss.detach().double() * count
        sums[1] = count
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()
    ### END SOLUTION

# %% check-mean tags=["check"]
gpulab.check.mean_over_ranks(mean_over_ranks)

# %% mean-hints [markdown]
# <details><summary>Hint 1</summary>
#
# Two ranks: 100 samples of mean 1, and 20 of mean 7. What is the mean over all 120, and which two numbers must each
# rank send for that?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `dist.all_reduce` writes its result into the tensor that you pass. So pass a tensor of your own, on the device that
# the group's backend sends from. And NaN times 0 is NaN.
#
# </details>
# <details><summary>Hint 3</summary>
#
# One tensor of two numbers in float64, on `loss.device`: `loss.detach() * count` and `count`, zeros if count is 0.
# Every rank calls `dist.all_reduce` on it, even one that has nothing to add; then divide.
#
# </details>

# %% evaluate-text [markdown]
# ## 3 · Each sample once
#
# **Build** an evaluation that uses all ranks, and is still exact. **Why:** the sampler for training pads; DDP's forward
# pass broadcasts buffers and waits for ranks that have nothing left; and a model left in evaluation mode silently
# continues training without its dropout.
#
# 15 minutes · difficulty ●●○
#
# As above, the ranks are on one machine, or each on its own machine.
#
# **`evaluate_once(model, data, batch_size)`**
#
# - `model`: in `DistributedDataParallel`, on this rank's GPU, the current one; it returns logits, (batch, classes)
# - `data`: a dataset of (x, label), a tensor on the CPU and an int, the same on every rank; at least one sample
# - `batch_size`: the most samples that go through the model at once
#
# Every sample goes through the model of one rank, once, and no rank takes more than its share, rounded up: there may be
# fewer samples than ranks. The loss is the mean cross-entropy over the samples of all ranks, the accuracy the fraction
# of them whose largest logit is that of the label.
#
# All this happens in evaluation mode, and without a graph; afterwards each module is in its former mode. Nothing is put
# on another rank's GPU. The process group stays open.

# %% evaluate_once tags=["solution"]
def evaluate_once(model, data, batch_size):
    """(loss, accuracy) over data, two floats, the same on every rank. All ranks call it."""
    # TODO: split without padding, evaluate the plain module, add up sums and the count over the
    # ranks, divide once
    ### BEGIN SOLUTION
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = next(model.parameters()).device
    part = Subset(data, range(rank, len(data), ranks))
    # of the losses, of the right answers, of the samples
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    with torch.no_grad():
        for x, label in DataLoader(part, batch_size):
            label = label.to(device)
            logits = model.module(x.to(device))
            sums[0] += F.cross_entropy(logits, label, reduction="sum")
            sums[1] += (logits.argmax(dim=1) == label).sum()
            sums[2] += len(label)
    for module, training in modes:
        module.training = training
    dist.all_reduce(sums)
    loss, right = (sums[:2] / sums[2]).tolist()
    return loss, right
    ### END SOLUTION

# %% check-evaluate tags=["check"]
gpulab.check.evaluate_once(evaluate_once)

# %% evaluate-hints [markdown]
# <details><summary>Hint 1</summary>
#
# Three questions: which indices does this rank get, so that none is missing and none counted twice? Which numbers are
# sent? And which collectives does each rank call, if one of them has nothing to evaluate?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `Subset(data, range(rank, len(data), ranks))`; sums and a count, not means; and `model.module`, whose forward pass calls
# no collective.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `cross_entropy(…, reduction="sum")`. A frozen part may already be in evaluation mode: remember
# `(module, module.training)` for all of `model.modules()`, and restore the attribute. All-reduce three numbers in
# float64 once; then divide.
#
# </details>

# %% ring-text [markdown]
# ## 4 · Stretch: a ring of your own
#
# **Build** an all-reduce out of sends and receives, for tensors whose length the number of ranks need not divide.
# **Why:** the lecture's ring uses equal pieces in one process; pieces of different lengths expose every off-by-one
# error, and real processes expose a ring that deadlocks in send.
#
# 25 minutes · difficulty ●●●
#
# The check runs it on two to four real processes, with tensors on the CPU and Gloo, whose `send` returns when the other
# rank has received the message. With Gloo `isend`, `recv`, then `wait` is enough. NCCL runs sends and receives as
# kernels, one after the other: there both directions must start together, with `dist.batch_isend_irecv`.

# %% ring_all_reduce tags=["solution"]
def ring_all_reduce(x):
    """Add up x over all ranks: afterwards afterwards x itself holds the sum, on each of them. All
    ranks call it.

    x   a contiguous tensor, of the same shape and dtype on every rank; its dtype can hold the sums
        exactly

    It may have any number of elements, even fewer than there are ranks. Nothing is called but sends
    and receives, and no rank of N sends more than 2(N − 1) pieces of an Nth of the elements,
    rounded up.
    """
    # TODO: N pieces, N − 1 hops that add up, N − 1 hops that pass the sums on; send without
    # waiting, receive, then wait
    ### BEGIN SOLUTION
    rank, ranks = dist.get_rank(), dist.get_world_size()
    flat = x.view(-1)
    ends = [flat.numel() * i // ranks for i in range(ranks + 1)]
    pieces = [flat[ends[i] : ends[i + 1]] for i in range(ranks)]
    for hop in range(2 * (ranks - 1)):
        going, coming = pieces[(rank - hop) % ranks], pieces[(rank - hop - 1) % ranks]
        inbox = torch.empty_like(coming)
        sent = dist.isend(going, (rank + 1) % ranks)
        dist.recv(inbox, (rank - 1) % ranks)
        sent.wait()
        if hop < ranks - 1:
            coming += inbox
        else:
            coming.copy_(inbox)
    ### END SOLUTION

# %% check-ring tags=["check"]
gpulab.check.ring_all_reduce(ring_all_reduce)

# %% ring-hints [markdown]
# <details><summary>Hint 1</summary>
#
# First on paper: three ranks, three pieces. In hop 0 rank r sends piece r to rank r + 1, and gets piece r − 1, which it
# adds to its own. Which piece does it send in hop 1? After which hop does it have a piece that is complete?
#
# </details>
# <details><summary>Hint 2</summary>
#
# The ends of the pieces: `numel * i // ranks` for i from 0 to N. Some pieces may be empty. A slice of `x.view(-1)`
# shares x's memory: writing to it changes x.
#
# </details>
# <details><summary>Hint 3</summary>
#
# In hop h send piece (rank − h) % N and get piece (rank − h − 1) % N: add it in the first N − 1 hops, copy it in the next
# N − 1. `request = dist.isend(…)`, then `dist.recv(…)`, then `request.wait()`.
#
# </details>

# %% done [markdown]
# ## Done?
#
# The cell below shows what is recorded. Next: [the map of the course](../notebooks/00_start_here.ipynb).

# %% progress tags=["host-dependent"]
gpulab.progress()

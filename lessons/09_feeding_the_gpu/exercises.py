# %% title [markdown]
# # 09 · Exercises: feeding the GPU
#
# Each function is checked on your own code: run the check cell under it as often as you like. It draws fresh inputs every
# time, and when it fails it says what it expected, what came back, and which section of
# [the lecture](../notebooks/09_feeding_the_gpu.ipynb) to read.
#
# A cell that says *not attempted yet* is one you have not written. Everything after it still runs.

# %% setup
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, Subset, get_worker_info

import gpulab

gpu = gpulab.setup()

# %% starvation-text [markdown]
# ## 1 · How long a step waits
#
# **Build** the measurement of a loop that waits for each step: how much of it is waiting for the batch. **Why:** a loop
# that starts its clock inside `for batch in loader:` never sees the loading. What it times is the copy, and in front of
# that, if nothing waits for the step, the rest of the step before: it acquits a slow loader, and accuses a fast one.
#
# 20 minutes · difficulty ●●○
#
# The check plays your function on a virtual GPU, with a loader and a step whose times are known to it.
#
# With the GPU waited for after every step, no batch is fetched while it works. That is what makes the two times add up.
# For a loop without such a wait, and a loader without workers, this is an upper bound: there the host loads while the GPU
# computes, and what the loader costs is shown by the same steps on one batch. Workers go on during the step.
#
# **`starvation(loader, step, batches, warm_up)`**
#
# - `waiting`: the time in which the next batch is fetched, in seconds; the mean of all timed steps
# - `stepping`: the time of step, from its call until the GPU is done; their mean as well, in seconds
# - `share`: the part of waiting in all that time, from 0 to 1
#
# The arguments:
#
# - `loader`: gives batches of any kind, `None` too; it need not have a length
# - `step`: `step(batch)` queues the work of a training step on the current GPU, in any of its streams
# - `batches`: how many steps are timed; fewer, if the loader ends before
# - `warm_up`: how many steps go before them and are not timed
#
# `loader` is started once. Starting the loader is no waiting, nor is its end; nor is work that was queued before the
# call. No batch is taken that does not go into step, and each goes into it as it is, when the step before it is done. A
# clock of the host, if one is read, is `time.perf_counter`. ValueError that names `warm_up` if no step can be timed.
# Afterwards nobody holds the iterator of loader, so that its workers have ended. An exception of loader or step reaches
# the caller.

# %% starvation tags=["solution"]
def starvation(loader, step, batches, warm_up):
    """How long training steps wait for their batches: (waiting, stepping, share), three floats."""
    # TODO: fetch with next(), step, wait for the GPU; a clock read before and after each;
    # sums of what is not warm-up
    ### BEGIN SOLUTION
    times = []  # (waiting, stepping) of each step
    iterator = iter(loader)
    torch.cuda.synchronize()
    while len(times) < warm_up + batches:
        start = time.perf_counter()
        try:
            batch = next(iterator)
        except StopIteration:
            break
        fetched = time.perf_counter()
        step(batch)
        torch.cuda.synchronize()
        times.append((fetched - start, time.perf_counter() - fetched))
    timed = times[warm_up:]
    if not timed:
        there = f"warm_up is {warm_up}, and there were {len(times)} batches"
        raise ValueError(f"no step can be timed: {there}")
    waiting = sum(wait for wait, _ in timed)
    stepping = sum(work for _, work in timed)
    return waiting / len(timed), stepping / len(timed), waiting / (waiting + stepping)
    ### END SOLUTION

# %% check-starvation tags=["check"]
gpulab.check.starvation(starvation)

# %% starvation-hints [markdown]
# <details><summary>Hint 1</summary>
#
# What does `for batch in loader:` do before its first line, and before every other? Write the loop without `for`, so that
# there is a line for the fetch alone, with a clock before and after it.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `iterator = iter(loader)` starts the workers; `next(iterator)` is the wait, and raises `StopIteration` when the loader has
# no more. `step(batch)` returns when its work is queued: what must come before its clock is stopped?
#
# </details>
# <details><summary>Hint 3</summary>
#
# Keep a list of pairs, one for each step, and cut the first `warm_up` off at the end. The GPU may be at work when the
# function is called: wait for it once before the loop. The fetch that ends in `StopIteration` goes into no pair; and if
# no pair is left, there is nothing to divide by.
#
# </details>

# %% loader-text [markdown]
# ## 2 · A loader for this machine
#
# **Build** the function that makes every loader of a training script, on one GPU or on eight. **Why:** most of its
# arguments exclude one another, or are right for training and wrong for evaluation; each mistake here is an exception on
# somebody else's machine, or an epoch without a batch, or a test set in which samples count twice.
#
# 25 minutes · difficulty ●●○
#
# How many cores a process may use is what `len(os.sched_getaffinity(0))` says on Linux, unless a container has a smaller
# quota; here it is an argument. (The lecture's `workers_for` counts by the same rule.) The check looks at the loaders of all ranks and at what they give. It starts no workers.
#
# **`make_loader(dataset, batch_size, cores, ranks=1, rank=0, train=True)`**
#
# - `dataset`: has a length and takes an index from 0 on; not empty
# - `cores`: the processor cores that all ranks of this machine have together; a whole number from 1 on
# - `ranks`: how many processes train together, all on this machine; no process group is open yet
# - `rank`: which of them this is, from 0 on
# - `train`: whether it is for training, or for evaluation
#
# Each rank has an equal part of the cores, rounded down. One of these is for the rank's own process, and each other one
# for a worker; there may be none. Workers, if there are any, live on from epoch to epoch. Memory is pinned where there
# is an accelerator, and only there. Before each epoch the caller calls `loader.sampler.set_epoch(epoch)`, if the
# sampler has such a method.
#
# For training each epoch deals out all samples in another order: to each rank equally many, and none twice but the few
# that make the parts equal, rounded up. All batches are full, and samples that fill none are left out; but where a
# rank's part is smaller than a batch, it is one batch.
#
# For evaluation every sample is given to one rank, once, in the order of the dataset; no rank has more than its part,
# rounded up, and one may have none.

# %% make_loader tags=["solution"]
def make_loader(dataset, batch_size, cores, ranks=1, rank=0, train=True):
    """The DataLoader of this rank, in batches of batch_size samples."""
    # TODO: the workers; a sampler where ranks train; a Subset where they evaluate; when
    # is the last batch dropped?
    ### BEGIN SOLUTION
    sampler = None
    if train and ranks > 1:
        sampler = DistributedSampler(dataset, num_replicas=ranks, rank=rank)
    elif not train:
        dataset = Subset(dataset, range(rank, len(dataset), ranks))
    part = len(dataset) if sampler is None else len(sampler)
    workers = max(cores // ranks - 1, 0)
    return DataLoader(
        dataset,
        batch_size,
        shuffle=train and sampler is None,
        sampler=sampler,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=torch.accelerator.is_available(),
        drop_last=train and part >= batch_size,
    )
    ### END SOLUTION

# %% check-loader tags=["check"]
gpulab.check.make_loader(make_loader)

# %% loader-hints [markdown]
# <details><summary>Hint 1</summary>
#
# Four questions, one after the other: which samples are this rank's; in which order; how many workers; what becomes of the
# last batch? Training and evaluation answer three of them differently.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `DistributedSampler` shuffles, and pads so that all ranks have equally many: right for training, and wrong for a test
# set. For that, `Subset(dataset, range(rank, len(dataset), ranks))`. A loader takes `shuffle=True` or a sampler, not both;
# and `persistent_workers=True` only with workers.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Without a process group the sampler must be told `num_replicas` and `rank`. Workers: `cores // ranks - 1`, and not below 0.
# `drop_last` only for training, and only if the rank's own part, `len(sampler)`, holds a batch at all. Pinned:
# `torch.accelerator.is_available()`.
#
# </details>

# %% seeds-text [markdown]
# ## 3 · Chance that can be repeated
#
# **Build** a loader whose random augmentations differ from worker to worker and from epoch to epoch, and are the same
# again when the run is repeated. **Why:** a worker is a copy of the process, random generators and all. PyTorch gives each
# worker its own seed for `torch`, for Python's `random` and, since version 1.9, for NumPy's global generator; it knows
# nothing of a generator that the dataset has made for itself, as NumPy recommends. All workers then draw the same
# "random" crops, and again in the next epoch; no error, no warning, less augmentation than was paid for.
#
# 20 minutes · difficulty ●●●
#
# The check plays the workers without processes: with PyTorch's own seeds, and with memory that is a copy, as a forked
# worker's is.
#
# **`seeded_workers(dataset, batch_size, workers, seed)`**
#
# - `dataset`: its `__getitem__` draws from torch's, NumPy's and Python's global generators, and from its attribute rng,
#   a `numpy.random.Generator`
# - `batch_size`: samples in a batch
# - `workers`: how many workers there are, at least one
# - `seed`: a whole number from 0 to `2**32` - 1
#
# Each epoch gives every sample once, in another order. No two workers draw the same numbers from one generator, and no
# worker draws in an epoch what was drawn in one before.
#
# A second loader of this seed gives the same batches with the same numbers, epoch by epoch, whatever has been drawn
# before; with another seed both order and numbers are others.
#
# In the process itself no generator is seeded and nothing is drawn: neither from the global ones nor from
# `dataset.rng`.

# %% seeded_workers tags=["solution"]
def seeded_workers(dataset, batch_size, workers, seed):
    """A DataLoader whose workers draw different numbers, and the same again in a second run."""
    # TODO: a generator from which PyTorch takes order and seeds; a worker_init_fn for
    # what PyTorch does not know of
    ### BEGIN SOLUTION
    def seed_rng(worker):
        info = get_worker_info()
        info.dataset.rng = np.random.default_rng(info.seed)

    return DataLoader(
        dataset,
        batch_size,
        shuffle=True,
        num_workers=workers,
        worker_init_fn=seed_rng,
        generator=torch.Generator().manual_seed(seed),
    )
    ### END SOLUTION

# %% check-seeds tags=["check"]
gpulab.check.seeded_workers(seeded_workers)

# %% seeds-text-after [markdown]
# `seed_rng` is defined inside another function, which is right where workers are forked. Where they are spawned (macOS,
# Windows, and on Linux from Python 3.14 on, whose default is *forkserver*) the function travels by pickle, and so it
# stands at the top level of a module, as the dataset's class does.
#
# Why 32 bits: `manual_seed` takes 64, but torch's generator on the CPU begins with the lower 32 of them. `5` and
# `5 + 2**32` are one seed.

# %% seeds-hints [markdown]
# <details><summary>Hint 1</summary>
#
# Two things are missing from a plain `DataLoader(dataset, …, shuffle=True, num_workers=workers)`. Where do its order and
# its workers' seeds come from? And which of the four generators has nobody seeded in the worker?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `generator=` of the loader: a `torch.Generator` of your own. From it come the order, and for every epoch a number;
# worker i's seed is that number + i. `worker_init_fn(i)` runs in the worker, after PyTorch has seeded.
#
# </details>
# <details><summary>Hint 3</summary>
#
# In the worker, `torch.utils.data.get_worker_info()` has `.dataset`, which is the worker's own copy, and `.seed`. A seed
# that you compute from `seed` and the worker's number alone is the same in every epoch.
#
# </details>

# %% done [markdown]
# ## Done?
#
# The cell below shows what is recorded. Next: [the map of the course](../notebooks/00_start_here.ipynb).

# %% progress tags=["host-dependent"]
gpulab.progress()

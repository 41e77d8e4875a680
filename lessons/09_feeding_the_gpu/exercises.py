# %% title [markdown]
# # 09 · Exercises: feeding the GPU
#
# Three functions, about 65 minutes. A check cell under each tests your code: run it as often as you like. It draws new
# inputs every time, and when it fails it says what it expected, what it got, and which section of
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
# **Build** a function that measures how much of a training loop's time is waiting for the batch, in a loop that waits
# for each step. **Why:** a clock that starts inside `for batch in loader:` never sees the loading. It times the copy,
# and before that, if nothing waits for the step, the rest of the previous step: so a slow loader looks innocent, and a
# fast one guilty.
#
# 20 minutes · difficulty ●●○
#
# The check runs your function on a virtual GPU, with a loader and a step whose times it knows.
#
# Because the host waits for the GPU after every step, it fetches no batch while the GPU works, and so the two times add
# up. For a loop without such a wait, and a loader without workers, the result is an upper bound: there the host loads
# while the GPU computes, and a comparison with the same steps on one batch shows what the loader costs. Workers
# continue loading during the step.
#
# **`starvation(loader, step, batches, warm_up)`**
#
# - `waiting`: the time it takes to fetch the next batch, in seconds; the mean of all timed steps
# - `stepping`: the time of step, from its call until the GPU has finished; also the mean, in seconds
# - `share`: the fraction of the total time that is waiting, from 0 to 1
#
# The arguments:
#
# - `loader`: yields batches of any kind, even `None`; it need not have a length
# - `step`: `step(batch)` queues the work of a training step on the current GPU, in any of its streams
# - `batches`: how many steps are timed; fewer, if the loader ends earlier
# - `warm_up`: how many steps run before them and are not timed
#
# The function starts `loader` once. Starting the loader does not count as waiting, nor does its end; nor does work that
# was queued before the call. Every batch taken goes into step unchanged, when the step before it has finished. A clock
# of the host, if one is read, is `time.perf_counter`. The function raises a ValueError that names `warm_up` if no step
# can be timed. Afterwards nothing refers to the loader's iterator, so that its workers have ended. An exception of
# loader or step reaches the caller.

# %% starvation tags=["solution"]
def starvation(loader, step, batches, warm_up):
    """How long training steps wait for their batches: (waiting, stepping, share), three floats."""
    # TODO: fetch with next(), step, wait for the GPU; read the clock before and after each; add up
    # all but the warm-up
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
# What does `for batch in loader:` do before each pass through its body? Write the loop without `for`, so that a line of
# its own fetches the batch, and read the clock before and after it.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `iterator = iter(loader)` starts the workers; `next(iterator)` is the wait, and raises `StopIteration` when the loader
# has no more. `step(batch)` returns when its work is queued: what must happen before you stop the clock?
#
# </details>
# <details><summary>Hint 3</summary>
#
# Keep a list of pairs, one per step, and drop the first `warm_up` at the end. The GPU may be busy when the function is
# called: wait for it once before the loop. The fetch that ends in `StopIteration` does not count; and if no pair is
# left, there is nothing to divide by.
#
# </details>

# %% loader-text [markdown]
# ## 2 · A loader for this machine
#
# **Build** the function that makes every loader of a training script, on one GPU or on eight. **Why:** many of its
# arguments exclude one another, or are right for training and wrong for evaluation; a mistake here means an exception
# on somebody else's machine, an epoch without a batch, or a test set in which samples count twice.
#
# 25 minutes · difficulty ●●○
#
# On Linux `len(os.sched_getaffinity(0))` is the number of cores that a process may use, unless a container has a
# smaller quota; here it is an argument. (The lecture's `workers_for` follows the same rule.) The check inspects the
# loaders of all ranks and the batches that they yield. It starts no workers.
#
# **`make_loader(dataset, batch_size, cores, ranks=1, rank=0, train=True)`**
#
# - `dataset`: has a length and takes indices from 0; it is not empty
# - `cores`: the processor cores that all ranks of this machine have together; a whole number, at least 1
# - `ranks`: how many processes train together, all on this machine; there is no process group yet
# - `rank`: which of them this is, from 0
# - `train`: whether the loader is for training or for evaluation
#
# Each rank has an equal part of the cores, rounded down. One of these is for the rank's own process, and each other
# core for a worker; there may be no workers. Workers, if there are any, stay alive from epoch to epoch. Memory is
# pinned if there is an accelerator, and only then. Before each epoch the caller calls
# `loader.sampler.set_epoch(epoch)`, if the sampler has such a method.
#
# For training each epoch distributes all samples in a new order: equally many to each rank, and none twice except the
# few that round the parts up to equal size. All batches are full, and samples that do not fill one are left out; but a
# rank's part that is smaller than a batch makes one batch.
#
# For evaluation every sample goes to one rank, once, in the order of the dataset; no rank has more than its part,
# rounded up, and some may have none.

# %% make_loader tags=["solution"]
def make_loader(dataset, batch_size, cores, ranks=1, rank=0, train=True):
    """The DataLoader of this rank, in batches of batch_size samples."""
    # TODO: the workers; a sampler if ranks train; a Subset if they evaluate; when is the last batch
    # dropped?
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
# Answer four questions in turn: which samples does this rank get, in which order, with how many workers, and what
# happens to the last batch? Three of the answers differ between training and evaluation.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `DistributedSampler` shuffles, and pads so that all ranks have equally many: right for training, wrong for a test set.
# For the latter, `Subset(dataset, range(rank, len(dataset), ranks))`. A loader takes `shuffle=True` or a sampler, not
# both; and `persistent_workers=True` only with workers.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Without a process group you must pass `num_replicas` and `rank` to the sampler. Workers: `cores // ranks - 1`, and not
# below 0. `drop_last` only for training, and only if the rank's own part, `len(sampler)`, holds a batch at all. Pinned:
# `torch.accelerator.is_available()`.
#
# </details>

# %% seeds-text [markdown]
# ## 3 · Chance that can be repeated
#
# **Build** a loader whose random augmentations differ between workers and between epochs, but are the same when the run
# is repeated. **Why:** a worker is a copy of the process, including its random generators. PyTorch gives each worker
# its own seed for `torch`, for Python's `random` and, since version 1.9, for NumPy's global generator; it does not know
# of a generator that the dataset has made for itself, as NumPy recommends. All workers then draw the same "random"
# crops, and the same again in the next epoch: no error, no warning, but less augmentation than you think.
#
# 20 minutes · difficulty ●●●
#
# The check simulates the workers without processes: with PyTorch's own seeds, and with copied memory, like a forked
# worker's.
#
# **`seeded_workers(dataset, batch_size, workers, seed)`**
#
# - `dataset`: its `__getitem__` draws from torch's, NumPy's and Python's global generators, and from its attribute rng,
#   a `numpy.random.Generator`
# - `batch_size`: samples in a batch
# - `workers`: how many workers there are, at least one
# - `seed`: a whole number from 0 to `2**32` - 1
#
# Each epoch yields every sample once, in a new order. No two workers draw the same numbers from one generator, and no
# worker draws numbers that were drawn in an earlier epoch.
#
# A second loader with this seed yields the same batches with the same numbers, epoch by epoch, whatever has been drawn
# before; with another seed both order and numbers differ.
#
# In the process itself no generator is seeded, and none is drawn from: neither the global ones nor `dataset.rng`.

# %% seeded_workers tags=["solution"]
def seeded_workers(dataset, batch_size, workers, seed):
    """A DataLoader whose workers draw different numbers, and the same again in a second run."""
    # TODO: a generator from which PyTorch takes order and seeds; a worker_init_fn for the generator
    # that PyTorch does not know
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
# `seed_rng` is defined inside another function, which works if workers are forked. If they are started by *spawn*
# (macOS, Windows) or *forkserver* (Linux from Python 3.14 on), the function is pickled, so it must be at the top level
# of a module, like the dataset's class.
#
# Why 32 bits: `manual_seed` takes 64, but torch's CPU generator uses only the lower 32. `5` and `5 + 2**32` are the
# same seed.

# %% seeds-hints [markdown]
# <details><summary>Hint 1</summary>
#
# Two things are missing from a plain `DataLoader(dataset, …, shuffle=True, num_workers=workers)`. Where do its order
# and its workers' seeds come from? And which of the four generators is not seeded in the worker?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Pass a `torch.Generator` of your own as the loader's `generator=`. It determines the order, and a base seed for every
# epoch; worker i's seed is that base seed + i. `worker_init_fn(i)` runs in the worker, after PyTorch has seeded.
#
# </details>
# <details><summary>Hint 3</summary>
#
# In the worker, `torch.utils.data.get_worker_info()` has `.dataset`, which is the worker's own copy, and `.seed`. A
# seed computed only from `seed` and the worker's number is the same in every epoch.
#
# </details>

# %% done [markdown]
# ## Done?
#
# The cell below shows what is recorded. Next: [the map of the course](../notebooks/00_start_here.ipynb).

# %% progress tags=["host-dependent"]
gpulab.progress()

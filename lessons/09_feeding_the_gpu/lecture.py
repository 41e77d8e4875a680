# %% title [markdown]
# # 09 · Feeding the GPU
#
# **Promise:** you find out whether your GPU waits for data, by how much, and what of the loader to change.
#
# After this lesson you can
#
# 1. **measure** what a step waits for its data, and see why the usual loop prints almost nothing;
# 2. **choose** the number of workers from the work in a sample, the GPU's step and the cores that you may use;
# 3. **say** what workers cost: memory, shared memory, start-up, and what each start method needs;
# 4. **keep** random numbers and streamed data right when several workers draw them;
# 5. **do without** a loader where the data fit on the GPU.
#
# | time | before this | runs on |
# |---|---|---|
# | 60 minutes, and as long for the exercises | `03_moving_data`; a `Dataset` of your own | any machine |

# %% setup-text [markdown]
# Loading is the host's work, so its times are *measured*, on your processor, files and workers. What a GPU would take for
# a step is *virtual* where you have none. The 320 JPEG files, in the size of photographs, are drawn at the first call,
# which takes some seconds, and then lie in your cache folder.

# %% setup
import time
import warnings

import torch
import torchvision
from PIL import Image
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, Subset, TensorDataset

import gpulab

gpu = gpulab.setup()
torch.set_num_threads(1)  # as in each worker of a loader, so that the two can be compared
files = gpulab.data.photographs()

# %% setup-folder
import os
import sys
import tempfile

start, folder = os.getcwd(), tempfile.TemporaryDirectory()
os.chdir(folder.name)
sys.path.insert(0, folder.name)  # workers find there what this notebook writes
width, height = Image.open(files[0]).size
print(f"{len(files)} files of {width} × {height} pixels in {len({f.parent for f in files})} classes")

# %% photos-text [markdown]
# The data set is an ordinary one: open, decode, cut out and resize at random, mirror at random, normalise. It is written
# to a module, and not left in the notebook, for a reason that comes with *Start methods*.

# %% photos-write
# %%writefile photos.py
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision.transforms import v2


class Photos(Dataset):
    def __init__(self, files):
        self.files = files
        self.augment = v2.Compose([v2.ToImage(), v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.2] * 3)])

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        return self.augment(Image.open(self.files[i]).convert("RGB")), int(self.files[i].parent.name)

# %% question-text [markdown]
# ## A question worth asking
#
# “If data time exceeds compute time, the GPU is starved.” Good advice, and tutorials print a loop for it. Here it is, on
# our files:

# %% question-run tags=["host-dependent"]
from photos import Photos

photos, data_ms = Photos(files), []
loader = DataLoader(photos, batch_size=32, shuffle=True)
for images, labels in loader:
    begin = time.perf_counter()
    images, labels = images.to(gpu.device), labels.to(gpu.device)
    data_ms.append(1e3 * (time.perf_counter() - begin))
    # … the step, timed in the same way
print(f"data time: {sum(data_ms) / len(data_ms):.1f} ms a batch ({gpu.numbers})")

# %% question-predict
wait_guess = gpulab.predict("How long does the loop really wait for a batch of 32 files?", unit="ms")

# %% question-answer tags=["host-dependent"]
waits = []
with gpulab.without_gpu():  # no virtual GPU: the processor alone is timed
    batches = iter(loader)
    for _ in range(5):
        begin = time.perf_counter()
        images, labels = next(batches)
        waits.append(1e3 * (time.perf_counter() - begin))
wait_guess.compare(round(sum(waits) / 5), "measured")

# %% question-explain [markdown]
# The loop's clock starts when the batch is there. All the decoding happened one line earlier, inside `for`, where
# Python calls `next(iterator)`; what was timed is the copy. (Without a GPU it times nothing: 0.01 ms.) The advice is right
# and its measurement is wrong: take the iterator in your own hands, and time `next`.

# %% starve-text [markdown]
# ## Who waits: one loader, two GPUs
#
# Whether that is too slow depends on the GPU. A step of a ResNet-50 with 32 images, in fp32 as many scripts still run it
# (on an H100 convolutions then use TF32), takes:

# %% starve-step
def resnet_step(batch):
    model = torchvision.models.resnet50(num_classes=4).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    labels = torch.randint(4, (batch,), device="cuda")

    def step():
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return step


step_ms = {name: gpulab.plan(resnet_step, batch=32, gpu=name).step_ms for name in ("T4", "H100")}
print(", ".join(f"{name} {ms:.0f} ms" for name, ms in step_ms.items()), "(virtual)")

# %% starve-play-text [markdown]
# Now the two clocks meet. A virtual GPU computes on your processor, and would take it from the loader. So the loop below
# *plays* the GPU: it sleeps for as long as that GPU takes, and leaves the cores to the loader. (A real loop's launches take
# a part of one.) With a GPU of your own, put your step and `torch.accelerator.synchronize()` in place of the sleep.

# %% starve-feed
def make_loader(workers, **options):
    order = RandomSampler(photos, num_samples=32 * 100)  # 100 batches, whatever the number of files
    return DataLoader(photos, batch_size=32, sampler=order, num_workers=workers, **options)


def feed(loader, gpu_ms, batches=8):
    """ms that each step waits in next(), on average, once the batches that were loaded ahead are used up."""
    waits, skip = [], 1 + loader.num_workers * (loader.prefetch_factor or 0)
    with gpulab.without_gpu():
        iterator = iter(loader)
        for _ in range(skip + batches):
            begin = time.perf_counter()
            batch = next(iterator)
            waits.append(1e3 * (time.perf_counter() - begin))
            time.sleep(gpu_ms / 1e3)  # the step, and a wait for its end
    return sum(waits[skip:]) / batches

# %% starve-predict
share_guess = gpulab.predict("No workers. What share of the time does the H100 wait for data?", unit="%")

# %% starve-run tags=["host-dependent"]
alone = {name: feed(make_loader(0), ms) for name, ms in step_ms.items()}
for name, waited in alone.items():
    share = waited / (waited + step_ms[name])
    took = f"{waited:3.0f} ms (measured) for each step of {step_ms[name]:3.0f} ms (virtual)"
    print(f"{name:<4} waits {took}: {share:.0%} of the time")
share_guess.compare(round(100 * share), "measured")

# %% starve-explain [markdown]
# The same loader, the same milliseconds. **A faster GPU makes the loader's fault larger**, and so does everything that
# shortens the step. *Recorded* on an RTX 4090 (ResNet-50, batch 256): mixed precision made the step about 90 % faster,
# and the training hardly at all.
#
# One reservation. This loop waits for each step, as one with a `loss.item()` does, so that computing and loading add up. A
# loop that never waits loads the next batch while the GPU computes; its time in `next` is an upper bound of what the GPU
# waits. One comparison needs no clock inside the loop: the same steps on *one batch, again and again*.

# %% workers-text [markdown]
# ## Workers
#
# `num_workers=2` starts two processes. The main process gives each a list of indices, worker after worker; each loads whole
# batches, and puts them into shared memory. The loop gets them in order, also when a later one is ready first (unless it
# says `in_order=False`). So workers load while the GPU computes, and side by side. If a batch takes $t$ on one core, and $n$ workers have a core each, a
# step takes the longer of two times:
#
# $$\text{step} = \max(\text{compute},\; t / n)$$
#
# Enough workers are therefore $t$ / compute, rounded up. How many may you have? Not `os.cpu_count()`: that is the machine's.

# %% workers-cores tags=["host-dependent"]
import math

from virtualgpu.control_groups import read_limits

# Python 3.13 has os.process_cpu_count() for this
affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
quota = read_limits().processors  # Docker's --cpus, Kubernetes' limits.cpu
print(f"the machine has {os.cpu_count()} logical processors, this process may run on {affinity}")
print("quota:", "none" if quota is None else f"{quota:g} processors' worth of time", "(measured)")
for name, ms in step_ms.items():
    print(f"{name}: num_workers={math.ceil(alone[name] / ms)} would do, with a core each")

# %% workers-limits [markdown]
# Three limits hold at once. **Affinity** (`taskset`, SLURM, a cpuset) says on which processors you may run. A **quota** says
# how much of their time you get; `sched_getaffinity` does not show it, and neither does PyTorch, whose warning about too
# many workers looks at affinity alone. And the **ranks** of this machine (lesson 12) share what there is: each has
# a loader, with workers of its own.

# %% share-turn-text [markdown]
# **Your turn** · 3 minutes. How many workers may each rank have? The line below is the one that tutorials print.

# %% share-turn tags=["your-turn"]
def workers_for(cores, quota, ranks):
    """Workers of one rank's loader, at least 1, so that those of all ranks have a core each.

    cores: on which this process may run; quota: processors' worth of time, or None;
    ranks: on this machine, from torch.cuda.device_count(): 0 without a GPU.
    """
    # TODO: the quota counts too, and somebody will run it without a GPU
    ### BEGIN SOLUTION
    available = cores if quota is None else min(cores, int(quota))
    return max(1, available // max(1, ranks))
    ### INSTEAD OF
    # return cores // ranks
    ### END SOLUTION


gpulab.turn.workers_for(workers_for)

# %% sweep-text [markdown]
# A formula is a guess, so sweep. Beyond the cores, workers share them. Run it twice: whatever else this machine does is in
# the numbers.

# %% sweep-run tags=["host-dependent"]
def swept(name, numbers):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch's, of more workers than processors
        return {n: feed(make_loader(n), step_ms[name]) for n in numbers}


waited = {"T4": {0: alone["T4"]} | swept("T4", [2]), "H100": {0: alone["H100"]} | swept("H100", [1, 2, 4])}
for name, by_workers in waited.items():
    for n, ms in by_workers.items():
        images_s = 1e3 * 32 / (ms + step_ms[name])
        print(f"{name:<4} num_workers={n}: waits {ms:3.0f} ms a step (measured), {images_s:3.0f} images/s")

# %% sweep-plot tags=["host-dependent"]
import matplotlib.pyplot as plt

gpulab.style.use()
figure, axes = plt.subplots(figsize=(7.5, 3.4))
rows = [(f"{name}, {n} workers", step_ms[name], ms) for name, by in waited.items() for n, ms in by.items()]
names, steps, waits = zip(*rows)
axes.barh(names, steps, color="#0072B2", label="computes (virtual)")
axes.barh(names, waits, left=steps, color="#E69F00", label="waits for data (measured)")
axes.invert_yaxis()
axes.set_xlabel("ms a step")
shares = [waited[name][2] / (waited[name][2] + step_ms[name]) for name in ("T4", "H100")]
axes.set_title("With 2 workers the T4 waits {:.0%}, the H100 {:.0%}".format(*shares))
axes.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.4, -0.2))
gpulab.style.show(figure, alt="Bars of a step's time for T4 and H100 with several numbers of workers. The T4's are mostly computing, and with "
    "two workers nearly all of it; the H100's are mostly waiting, whatever the number of workers on this machine.")

# %% sweep-explain [markdown]
# In the saved run two workers are nearly enough for the T4, and nothing that this machine has feeds the H100. For that one
# it is no question of settings: the work must become less, or be done elsewhere (*Less work in each sample*).
#
# So the loops that print `num_workers=4`, `min(8, cores)`, `cpu_count()` and `cores // GPUs` are all guesses, and the last
# is the best: an upper limit where nothing else runs. Take the smallest number after which the wait is gone. More cost memory.

# %% simulator-text [markdown]
# ### See it run
#
# The simulator opens on an H100 with four workers whose batches take unequal times. Try this:
#
# 1. Raise *num_workers* until the GPU computes all the time. Is it what the formula says?
# 2. Set *Spread of loading* to 0, then to 100 %. What does *prefetch_factor* buy in each case?
# 3. Choose *persistent_workers*, and look at the first batch of the second epoch.

# %% simulator
gpulab.sim.pipeline(gpu="H100", load=87, spread=80, workers=4, compute=25, batch=18, pinned=True, non_blocking=True)

# %% ahead-text [markdown]
# ## Ahead of the loop: prefetching, persistent workers, pinning
#
# Workers do not wait to be asked: they begin at `iter(loader)`, before the loop has taken anything. How far ahead of it
# do they go? A sampler that counts tells.

# %% ahead-predict
ahead_guess = gpulab.predict("2 workers, batches of 32: how many indices are drawn when the loop has taken nothing yet?")

# %% ahead-run
class Counted(torch.utils.data.SequentialSampler):
    drawn = 0

    def __iter__(self):
        for i in super().__iter__():
            self.drawn += 1
            yield i


digits = TensorDataset(*gpulab.data.digits("train"))
counted = Counted(digits)  # samplers run in the main process
iterator = iter(DataLoader(digits, batch_size=32, sampler=counted, num_workers=2))
told = "Each worker gets prefetch_factor batches to load, 2 by default, and one more whenever the loop takes one."
ahead_guess.compare(counted.drawn, because=told)
next(iterator)
print("after the first batch:", counted.drawn)
del iterator  # its workers end

# %% ahead-explain [markdown]
# What is loaded ahead evens out slow batches, and is the memory that a loader takes. (A loop that breaks off has it
# loaded for nothing.)
#
# At the end of an epoch the workers end too, and the next one starts new ones, with everything that your data set opens
# or caches in them. `persistent_workers=True` keeps them. How long the loop waits for its first batch:

# %% persistent-run tags=["host-dependent"]
for persistent in (False, True):
    loader, first = DataLoader(digits, batch_size=32, num_workers=2, persistent_workers=persistent), []
    for epoch in range(3):
        with gpulab.without_gpu():
            begin = time.perf_counter()
            for i, _ in enumerate(loader):
                if i == 0:
                    first.append(1e3 * (time.perf_counter() - begin))
    told = ", ".join(f"{ms:.0f}" for ms in first)
    print(f"persistent_workers={persistent!s:<5}: first batch of each epoch after {told} ms (measured)")

# %% persistent-explain [markdown]
# The third option, `pin_memory=True`, has a thread of the *main* process copy each finished batch into page-locked memory, so
# that `.to(device, non_blocking=True)` need not wait: lesson 03 measures it. It makes no batch come sooner. Workers return
# CPU tensors, and never touch the GPU.

# %% start-text [markdown]
# ## Start methods: fork, forkserver, spawn
#
# A **fork** copies the running process, with your notebook's classes and your data in it. **Spawn** starts a new Python, which
# imports what it needs and gets the data set *pickled*. Windows and macOS spawn. Linux forks, and from Python 3.14 on uses
# **forkserver**, which pickles too. Pickling names a class by its module; a class of your notebook's has none that a new
# Python could import. That is why `Photos` lives in `photos.py`. In a script, `if __name__ == "__main__":` must stand before
# the training, or each worker would begin one of its own.

# %% start-run tags=["host-dependent"]
import pickle

for method in [m for m in ("fork", "spawn") if m in torch.multiprocessing.get_all_start_methods()]:
    with gpulab.without_gpu():
        begin = time.perf_counter()
        next(iter(DataLoader(photos, batch_size=4, num_workers=1, multiprocessing_context=method)))
        print(f"{method}: a worker's first 4 images after {time.perf_counter() - begin:.1f} s (measured)")

with warnings.catch_warnings(), gpulab.without_gpu():
    warnings.simplefilter("ignore")
    try:
        iter(DataLoader(photos, collate_fn=lambda batch: batch, num_workers=1, multiprocessing_context="spawn"))
    except (AttributeError, pickle.PicklingError) as error:  # which of them, depends on the Python
        print(f"a lambda, spawned: {str(error).split(' at ')[0]} …")

# %% start-explain [markdown]
# A new Python imports torch and torchvision first, for each worker and, without `persistent_workers`, in each epoch. Fork is
# quick, because parent and child share their memory until one of them writes. But the child has the parent's *state* without
# its threads: a lock that one of them held stays locked, and an open GPU is none. A worker that touches the GPU says `Cannot re-initialize CUDA in forked subprocess`.

# %% memory-text [markdown]
# ## What N workers cost
#
# **Host memory.** After a fork, pages are shared until somebody writes (*copy-on-write*). Python writes when it only reads:
# each object has a reference count, and it stands in the object. So a worker that walks through a list of a million paths
# copies it, page by page, and an epoch later N workers hold N lists. It looks like a leak. With spawn they hold N from the
# beginning. An array is one object with one count:

# %% memory-write
# %%writefile table.py
import psutil
from torch.utils.data import Dataset


class Table(Dataset):
    """Reads 10,000 of its rows for each index; a sample is this process's own memory, in MiB."""
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows) // 10_000

    def __getitem__(self, i):
        for row in range(i * 10_000, (i + 1) * 10_000):
            self.rows[row]
        return psutil.Process().memory_full_info().uss / 2**20

# %% memory-run tags=["host-dependent"]
import numpy as np
from table import Table

paths = [f"train/{i % 1000:04d}/image_{i:08d}.jpg" for i in range(500_000)]
for name, rows in (("list of str", paths), ("NumPy array", np.array(paths, dtype="S"))):
    own = list(DataLoader(Table(rows), batch_size=None, num_workers=1))
    print(f"{name}: the worker's own memory: {own[0]:.0f} MiB, after an epoch {own[-1]:.0f} (measured)")

# %% memory-shared [markdown]
# **Shared memory.** Finished batches wait in `/dev/shm`. Docker gives it 64 MiB unless told otherwise:

# %% memory-batch
for dtype, nbytes in (("float32", 4), ("uint8", 1)):
    mib = 32 * 3 * 224 * 224 * nbytes / 2**20
    print(f"32 images in {dtype:<7}: {mib:4.1f} MiB; 4 workers × 2 batches ahead: {8 * mib:5.1f} MiB")

# %% memory-explain [markdown]
# The message is `DataLoader worker (pid 325) is killed by signal: Bus error. It is possible that dataloader's workers are out of
# shared memory`; the repair `docker run --shm-size=8g` (or `--ipc=host`). And half a repair is in the table: send uint8, and
# convert and normalise on the GPU, in a line. That is a quarter of the bytes in shared memory, in the pinning and on the bus.
#
# None of this is *GPU* memory. A better loader does not cure an OutOfMemoryError.

# %% seeds-text [markdown]
# ## Random numbers of workers
#
# PyTorch seeds each worker's `random`, `torch` and `numpy.random` with a number of its own when it starts. What it cannot
# know is a generator that your data set made in its constructor: every worker has a copy.

# %% seeds-write
# %%writefile noisy.py
import random
from torch.utils.data import Dataset


class Noisy(Dataset):
    """Draws each sample from a generator of its own."""
    def __init__(self):
        self.dice = random.Random(0)

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return self.dice.random()

# %% seeds-predict
noise_guess = gpulab.predict("8 samples, 2 workers, one sample at a time, two epochs: how many different numbers among the 16?")

# %% seeds-run
from noisy import Noisy

loader = DataLoader(Noisy(), batch_size=None, num_workers=2)
epochs = [list(loader), list(loader)]
for numbers in epochs:
    print([round(x, 3) for x in numbers])
told = "Both workers draw the same numbers, and the second epoch draws them again: its workers are new copies."
noise_guess.compare(len(set(epochs[0] + epochs[1])), because=told)

# %% seeds-explain [markdown]
# So of an augmentation that “is random” there are fewer versions, and the training says nothing. Draw from the global
# generators, or seed your own in `worker_init_fn`, from `get_worker_info().seed`.
#
# Across **ranks** the global ones repeat too: with the same `torch.manual_seed(0)` on all, worker 0 of each rank gets the
# same seed. Add the rank.

# %% stream-text [markdown]
# ## Streams: an iterable data set
#
# A data set that is read in order (a log, a tar archive) is an `IterableDataset`: no indices, only `__iter__`. Then nobody
# deals out work, and each worker iterates over everything:

# %% stream-write
# %%writefile lines.py
from torch.utils.data import IterableDataset


class Lines(IterableDataset):
    def __iter__(self):
        return iter(range(5))

# %% stream-run
from lines import Lines

for workers in (0, 2):
    print(f"num_workers={workers}:", [int(line) for line in DataLoader(Lines(), batch_size=None, num_workers=workers)])

# %% stream-turn-text [markdown]
# **Your turn** · 3 minutes. Each worker asks who it is, and takes its part. `get_worker_info()` has `.id` and `.num_workers`, and
# is `None` in the main process.

# %% stream-turn tags=["your-turn"]
import itertools
from torch.utils.data import get_worker_info


def my_part(lines):
    """What this worker is to read: no line twice over all workers, none missing. lines is any iterable."""
    # TODO: all of it in the main process, else every num_workers-th line
    ### BEGIN SOLUTION
    info = get_worker_info()
    if info is None:
        return lines
    return itertools.islice(lines, info.id, None, info.num_workers)
    ### INSTEAD OF
    # return lines
    ### END SOLUTION


gpulab.turn.my_part(my_part)

# %% stream-explain [markdown]
# With ranks, worker `id` of rank `r` is number `r * num_workers + id` of `ranks * num_workers`. Every worker still *reads* all
# lines here, and drops most. With files the part is a share of the files: **shards**, tar
# archives of some 100 MB (WebDataset), many more of them than workers × ranks. They are read in order, which disks and
# network storage like, where a million small files cost a look-up each. Shuffling then means the order of shards, and a
# buffer.

# %% less-text [markdown]
# ## Less work in each sample
#
# Before more workers: what does a sample take, and which part of it?

# %% less-run tags=["host-dependent"]
import pathlib
import timeit


def ms_of(call, times=20):
    with gpulab.without_gpu():
        return 1e3 * min(timeit.repeat(call, number=1, repeat=times))  # the least disturbed


small = pathlib.Path("small/0/00000.jpg")
small.parent.mkdir(parents=True, exist_ok=True)
Image.open(files[0]).resize((341, 256)).save(small, quality=90)
for name, file in (("1024 × 768", files[0]), ("341 × 256", small)):
    decoded, whole = ms_of(lambda: Image.open(file).convert("RGB")), ms_of(lambda: Photos([file])[0])
    print(f"{name:>10}: read and decode {decoded:.1f} ms, all of it {whole:.1f} (measured, the file in memory)")

# %% less-explain [markdown]
# Most of the time goes to pixels that the crop to 224 throws away. Resizing the files **once** buys more here than any
# number of workers. Further steps, in outline:
#
# - **Cache** what does not change: decoded images as uint8 in one memory-mapped array. No decoding, and many times the disk.
#   Cache before the random part, never after it.
# - **Decode on the GPU**: `torchcodec.decoders.decode_jpeg(..., device="cuda")` (torchvision's decoders are deprecated since
#   0.29), or NVIDIA's DALI for the whole chain. It takes GPU time, which pays where cores are few.
# - **Augment batches on the GPU**: `torchvision.transforms.v2` takes tensors on any device. (One random choice then holds for
#   the whole batch.)

# %% gpu-text [markdown]
# ## Small data: no loader at all
#
# “Load the whole data set to the GPU” says one page, “never” says another. The question is its size: the digits are
# 384 kB. A loader fetches 1500 samples one by one and stacks them; on the GPU an epoch is one permutation and an index.

# %% gpu-predict
question = "An epoch over the digits in batches of 64, on the CPU: the loader takes how many times as long as indexing?"
epoch_guess = gpulab.predict(question, unit="times")

# %% gpu-run tags=["host-dependent"]
images, labels = gpulab.data.digits("train")
loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)


def indexed():
    return [(images[rows], labels[rows]) for rows in torch.randperm(len(images)).split(64)]


by_loader, by_index = ms_of(lambda: list(loader), 5), ms_of(indexed, 5)
print(f"an epoch: loader {by_loader:.1f} ms, indexing {by_index:.2f} ms (measured, on the CPU)")
epoch_guess.compare(round(by_loader / by_index), "measured")

# %% gpu-turn-text [markdown]
# **Your turn** · 3 minutes. The same on the GPU: a generator of batches in random order. Nothing may cross the bus, so the
# permutation is made where the data are. The code below keeps the order.

# %% gpu-turn tags=["your-turn"]
def gpu_batches(images, labels, batch):
    """One epoch: each sample once, in an order that is drawn anew at each call; the last batch may be shorter."""
    # TODO: shuffle, on images.device
    ### BEGIN SOLUTION
    order = torch.randperm(len(images), device=images.device)
    for rows in order.split(batch):
        yield images[rows], labels[rows]
    ### INSTEAD OF
    # for start in range(0, len(images), batch):
    #     yield images[start : start + batch], labels[start : start + batch]
    ### END SOLUTION


gpulab.turn.gpu_batches(gpu_batches)

# %% report-text [markdown]
# ## In your own script
#
# `python -m gpulab run train.py` runs a script unchanged and reports what it took. If it uses a `DataLoader`, a line says how
# long a step waits for data:

# %% report-write
# %%writefile train.py
import pathlib
import sys
import torch
import torchvision
from torch.utils.data import DataLoader
from photos import Photos

if __name__ == "__main__":  # workers that are spawned import this file
    loader = DataLoader(Photos(sorted(pathlib.Path(sys.argv[1]).glob("*/*.jpg"))), batch_size=32, shuffle=True)
    model = torchvision.models.resnet18(num_classes=4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# %% report-run tags=["host-dependent"]
import subprocess

command = [sys.executable, "-m", "gpulab", "run", "--gpu", "H100", "--shapes-only"]
run = subprocess.run([*command, "train.py", files[0].parents[1]], capture_output=True, text=True, check=True)
print(*(line for line in run.stderr.splitlines() if line.split()[:1] in (["gpulab"], ["steps"], ["waited"])), sep="\n")

# %% report-explain [markdown]
# Loading takes what it takes on this machine, the rest of a step the time of a virtual H100; the share is of both together. With
# `--gpu real` all of it is measured.

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “Data time above compute time: the GPU is starved.” | Right, if `next` is timed. The loop that is printed for it times the copy. | *A question worth asking* |
# | “`num_workers`: 4”; “`min(8, cores)`”; “`cpu_count()`”; “cores // GPUs” | Guesses. Work in a batch over the step's time, at most affinity and quota over ranks; then sweep. | *Workers* |
# | “More workers are faster.” | Up to the cores; each costs memory and start-up. | *Workers*, *What N workers cost* |
# | “A more efficient DataLoader helps against out of memory.” | Wrong: it works in the host's memory. | *What N workers cost* |
# | “`drop_last=True`, it helps BatchNorm.” | It spares a tiny last batch. With fewer samples than a batch there is none at all. | *Common mistakes* |
# | “Put the whole data set on the GPU”; “never do” | If it fits beside the training, do: no loader, no copies. | *Small data* |
# | “NumPy's random numbers repeat in all workers.” | So it was before PyTorch 1.9. Today a generator of your own does. | *Random numbers of workers* |
# | “`pin_memory=True` speeds up loading.” | Only the copy; no batch comes sooner. Without a GPU it warns. | *Ahead of the loop*, *Common mistakes* |

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **`shuffle` and a sampler.** A factory for loaders that always passes `shuffle=True` cannot be used with DDP:

# %% mistake-shuffle tags=["raises-exception"]
sampler = DistributedSampler(digits, num_replicas=2, rank=0)
DataLoader(digits, batch_size=32, shuffle=True, sampler=sampler)

# %% mistake-shuffle-repair [markdown]
# Take the sampler as an argument, and pass `shuffle=sampler is None`. The sampler shuffles, and needs `set_epoch` (lesson 12).
#
# **A data set without a transform.** It returns pictures of PIL, and nobody has said how to stack those:

# %% mistake-collate tags=["raises-exception"]
fake = torchvision.datasets.FakeData(size=8, transform=None)
next(iter(DataLoader(fake, batch_size=4)))

# %% mistake-collate-repair [markdown]
# Pass the transform (the page that prints this builds one and forgets it), or a `collate_fn`.
#
# **Cores over GPUs, on a machine without one.** It is in a checklist, and so in many configurations:

# %% mistake-zero tags=["raises-exception"]
gpus = 0  # torch.cuda.device_count(), where there is none
num_workers = affinity // gpus

# %% mistake-quiet [markdown]
# **Two that say little.** `drop_last` on a set smaller than a batch trains for no step, without a word, and `pin_memory=True`
# on a machine without a GPU only warns:

# %% mistake-quiet-run
few = DataLoader(Subset(digits, range(20)), batch_size=32, drop_last=True)
print("batches:", len(few), "· steps made:", sum(1 for _ in few))

# %% mistake-pin tags=["host-dependent"]
with warnings.catch_warnings(record=True) as caught, gpulab.without_gpu():
    warnings.simplefilter("always")
    iter(DataLoader(digits, batch_size=32, pin_memory=True))
print(*(warning.message for warning in caught) if caught else ("no warning: this machine has a GPU",))

# %% mistake-benchmark-text [markdown]
# **A benchmark that flatters.** It is printed to compare loaders. Find three faults before you read on.

# %% mistake-benchmark tags=["host-dependent"]
import itertools


def benchmark_dataloader(loader, n_batches=20):
    begin = time.perf_counter()
    for i, batch in enumerate(loader):
        if i == n_batches:
            break
    return 1e3 * (time.perf_counter() - begin) / n_batches


loader = DataLoader(Subset(photos, range(64)), batch_size=16)
with gpulab.without_gpu():
    print(f"as printed: {benchmark_dataloader(loader):.0f} ms a batch,", end=" ")
    begin, got = time.perf_counter(), sum(1 for _ in itertools.islice(loader, 20))
    print(f"over the {got} batches that came: {1e3 * (time.perf_counter() - begin) / got:.0f} ms (measured)")

# %% mistake-benchmark-repair [markdown]
# It divides by 20 although the loader has four batches. Where there are more, it fetches a 21st and throws it away. And with
# workers it counts their start. Take `itertools.islice`, count what came, and leave out the first batches, as `feed` does.

# %% tidy
os.chdir(start)
folder.cleanup()  # with the modules that this notebook wrote

# %% quiz-text [markdown]
# ## Quick check
#
# Choose with the arrow keys, answer with Tab and Enter. Every option has its reason.

# %% quiz
gpulab.quiz(9)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. Time `next(iterator)`, not what comes after it; and compare with the same steps on one batch.
# 2. A step takes the longer of computing and loading ÷ workers. A faster GPU, or mixed precision, moves the wait to the loader.
# 3. Workers: the fewest that end the wait, at most affinity and quota over the ranks of the machine.
# 4. Each worker is a process: its own copy of lists, generators and streams; batches pass through shared memory.
# 5. Before more workers, less work: resize once, cache before the random part, send uint8; or keep small data on the GPU.
#
# **For the checklist:** the wait measured · workers from a sweep · `persistent_workers=True` · `pin_memory=True` with a GPU ·
# no own generator unseeded in workers · streams split by worker and rank · a sampler instead of `shuffle` with DDP.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/09_feeding_the_gpu.ipynb) of this lesson, then [the map of the course](00_start_here.ipynb).
#
# ## References
#
# - PyTorch documentation, `torch.utils.data`: *Single- and Multi-process Data Loading*, *Platform-specific behaviors*,
#   *Randomness in multi-process data loading*, *Memory Pinning*. Python documentation, `multiprocessing`: *Contexts and start methods*.
# - Mohan et al., *Analyzing and Mitigating Data Stalls in DNN Training*, arXiv 2007.06775: the comparison with cached and with
#   repeated data. *ResNet-50 on an RTX 4090*, Proc. SPIE 13184, 2024: mixed precision, and DALI.
# - pytorch/pytorch#13246 (memory of workers and Python lists), #5040 (shared memory), #46867 (the warning about workers).
# - torchvision documentation, *Decoding and Encoding images*; TorchCodec 0.16, release notes. WebDataset; NVIDIA DALI.

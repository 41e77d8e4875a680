# %% title [markdown]
# # 09 · Feeding the GPU
#
# **Promise:** you find out whether your GPU waits for data, and you change the loader only if it does.
#
# After this lesson you can **measure** what the loader costs, without blaming the wrong part · **choose** the number of
# workers · **say** what a worker costs, and which random numbers it draws · **do without** a loader.
#
# | time | before this | runs on |
# |---|---|---|
# | 60 minutes, and 65 for the exercises | `03_moving_data`; a `Dataset` of your own | any machine |

# %% question-text [markdown]
# ## A question worth asking
#
# “If data time exceeds compute time, the GPU is starved.” The advice is popular, and so is the loop below that goes
# with it. We give it batches that are *ready*: a list, with nothing to read or decode. The network is a ResNet-50.

# %% question-code
import statistics
import time

import gpulab
import torch
import torchvision
from torch.nn import functional as F


def training():
    model = torchvision.models.resnet50(num_classes=4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(images, labels):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


# %% question-clocked
def clocked(batches, wait=False):
    # a T4 that keeps shapes only; the host takes its real time; for your own GPU leave it out
    data_ms, step_ms = [], []
    with gpulab.VirtualGPU("T4", compute=False, counts_host=True):
        step = training()
        for images, labels in batches:
            begin = time.perf_counter()
            images, labels = images.to("cuda"), labels.to("cuda")
            there = time.perf_counter()
            step(images, labels)
            if wait:
                torch.cuda.synchronize()
            data_ms.append(1e3 * (there - begin))
            step_ms.append(1e3 * (time.perf_counter() - there))
    return statistics.median(data_ms), statistics.median(step_ms)


# %% question-predict
data_guess = gpulab.predict("A step takes a T4 240 ms, a copy 3. What is the data time?", unit="ms")

# %% question-answer tags=["host-dependent"]
ready = [(torch.randn(32, 3, 224, 224), torch.randint(4, (32,)))] * 8
data, step_time = clocked(ready)
print(f"data {data:.1f} ms, step {step_time:.1f} ms (virtual)")
why = "Memory that is not pinned: .to() waits until the step before it is done on the GPU."
data_guess.compare(round(data), "virtual", because=why)

# %% question-explain [markdown]
# According to this loop the GPU is badly starved. But there is no loader at all. What did the GPU do meanwhile?


# %% lanes-run tags=["host-dependent"]
def train(batches):
    for images, labels in batches:
        step(images.to("cuda"), labels.to("cuda"))


with gpulab.VirtualGPU("T4", compute=False, counts_host=True):
    step = training()
    train(ready[:2])  # the first step loads libraries
    gpulab.timing.timeline(lambda: train(ready[:3])).show()

# %% lanes-explain [markdown]
# It computed all the time. The upper lane is the host: it launches a step within milliseconds, and then waits inside
# `.to()` for the GPU. A loop that blames this wait on the loader is wrong.
#
# “You forgot to synchronize”, somebody will say. So let us wait after each step. And let us add a loader with work to
# do: it decodes JPEG files, crops them at random and mirrors them. (The first call makes the files, in some seconds.
# They are smooth, so they decode faster than photographs of their size.)

# %% setup
gpu = gpulab.setup()
torch.set_num_threads(1)  # as in each worker of a loader

# %% photos
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torchvision.transforms import v2

files = gpulab.data.photographs()  # 320 files of 1024 × 768 pixels
augment = v2.Compose([v2.ToImage(), v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(),
                      v2.ToDtype(torch.float32, scale=True)])
photos = torchvision.datasets.ImageFolder(files[0].parents[1], augment)

# %% accused-run tags=["host-dependent"]
for name, batches in (("ready", ready), ("files", DataLoader(photos, 32, shuffle=True))):
    for wait in (False, True):
        data, step_time = clocked(batches, wait)
        print(f"{name:<5} {wait=!s:<5} data {data:5.1f} ms, step {step_time:5.1f} ms (virtual)")

# %% accused-explain [markdown]
# With a wait, the data time is the copy alone, for the list and for the loader that reads files. So this loop overlooks
# a slow loader. Files are read and decoded one line earlier: in `for`, where Python calls `next(iterator)` and no clock
# runs. **What you blame depends on where the timers stand.**
#
# (On a GPU that finishes each step before the host has launched all of it, no copy has to wait. There the first row
# shows the copy, too.)

# %% measure-text [markdown]
# ## Three numbers, and no clock inside
#
# A timer around `next` sees the loading. But loading costs nothing while the GPU still computes, and that timer counts
# it all the same. With a wait after each step it is right, but only for a loop with these waits. So take three runs of
# some 50 steps. Put *one* clock around each run, call `torch.cuda.synchronize()` before you start and before you read
# it, and leave the first steps out:
#
# 1. **the loader alone**: `for batch in loader: pass`;
# 2. **the step alone**: the same steps on one batch, copied from the host again each time;
# 3. **both together**: your loop as it is.
#
# The third minus the second is what the loader costs. We begin with the step, on two GPUs in fp32 (the H100's
# convolutions use TF32):


# %% measure-step
def build(batch):
    step = training()
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    labels = torch.randint(4, (batch,), device="cuda")
    return lambda: step(images, labels)


step_ms = {name: gpulab.plan(build, 32, name).step_ms for name in ("T4", "H100")}
print("ms a step:", {name: round(ms) for name, ms in step_ms.items()}, "(virtual)")

# %% measure-text-fed [markdown]
# A virtual GPU needs your processor, and would take it from the loader. So `fed` only imitates a GPU: it notes when a
# step will be done, and the loop waits until then, as `.to()` would. (It leaves out launches, which need a core, too.)
# With a GPU of your own, put your `.to()` and step there.


# %% measure-fed tags=["host-dependent"]
def fed(loader, gpu_ms, batches=8):  # ms from batch to batch
    done, skip = 0.0, 1 + loader.num_workers * (loader.prefetch_factor or 0)
    with gpulab.without_gpu():
        for number, _ in enumerate(loader):
            time.sleep(max(0.0, done - time.perf_counter()))  # the step before
            done = time.perf_counter() + gpu_ms / 1e3
            if number == skip:
                began = done
            if number == skip + batches:
                return 1e3 * (done - began) / batches


order = RandomSampler(photos, num_samples=3200)
alone = fed(DataLoader(photos, 32, sampler=order), 0)
print(f"the loader alone, no workers: {alone:.0f} ms a batch (measured)")

# %% measure-predict
together_guess = gpulab.predict("The T4, no workers: ms from batch to batch?", unit="ms")

# %% measure-run tags=["host-dependent"]
together = {name: fed(DataLoader(photos, 32, sampler=order), ms) for name, ms in step_ms.items()}
for name, ms in together.items():
    print(f"{name}: {ms:.0f} ms with the loader, {step_ms[name]:.0f} ms on one batch")
why = "The host loads the next batch while the GPU computes: the longer of the two times counts."
together_guess.compare(round(together["T4"]), "measured", because=why)

# %% measure-explain [markdown]
# The verdict depends on the GPU. On two idle cores the loader takes about 130 ms (recorded):
#
# ![The T4 computes all the time, the H100 seldom; with a wait the times add up.](../docs/pictures/loader_and_gpu.svg)
#
# **The faster the GPU, the more a slow loader costs**; so does everything that
# shortens the step. *Recorded* on an RTX 4090 (ResNet-50, batch 256): mixed precision made the step about 90 % faster,
# and the training hardly at all.
#
# In a loop that waits in each step, by `loss.item()` or a `synchronize`, the two times add up. The cure is to remove
# the wait, or to load in other processes.

# %% verdict-turn-text [markdown]
# **Your turn** · 4 minutes. Four trainings, in ms a batch. What would you change first: `"step"` (the GPU computes all
# the time), `"loader"` (it is too slow), or `"overlap"` (the two run one after the other)?
#
# | | loader alone | step alone | together | the loop of the opening |
# |---|---|---|---|---|
# | A | 20 | 50 | 51 | data 48, step 3 |
# | B | 90 | 50 | 92 | data 2, step 6 |
# | C | 40 | 50 | 90 | data 2, step 48 |
# | D | 300 | 40 | 301 | data 2, step 39 |


# %% verdict-turn tags=["your-turn"]
def change_first():
    ### BEGIN SOLUTION
    return ["step", "loader", "overlap", "loader"]
    ### INSTEAD OF
    # return [None, None, None, None]
    ### END SOLUTION


gpulab.turn.change_first(change_first)

# %% workers-text [markdown]
# ## Workers
#
# `num_workers=2` starts two processes. The main process gives each in turn the indices of a batch. A worker loads whole
# batches, and puts them into shared memory; the loop gets them in order. So workers load in parallel, while the GPU
# computes. If a batch takes $t$ on one core, and $n$ workers have a core each, then
#
# $$\text{step} = \max(\text{compute},\; t / n)$$
#
# and $t$ / compute workers, rounded up, are enough. How many may you have?

# %% workers-cores tags=["host-dependent"]
import os

from virtualgpu.control_groups import read_limits

# Python 3.13 has os.process_cpu_count() for this
affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
quota = read_limits().processors  # Docker's --cpus, Kubernetes' limits.cpu
print(f"{os.cpu_count()} processors, {affinity} for this process, quota {quota} (measured)")

# %% workers-limits [markdown]
# Three limits hold at once. **Affinity** (`taskset`, SLURM, a cpuset) says on which processors you may run. A **quota**
# says how much of their time you get. `sched_getaffinity` does not show it, and PyTorch's warning about too many
# workers ignores it. And the **ranks** of this machine (lesson 12), one process for each GPU, share what there is. Each
# rank has a loader, with workers of its own, and needs a core for itself, to launch kernels.

# %% share-turn-text [markdown]
# **Your turn** · 3 minutes. How many workers may each rank have, with a core for each worker and one for the rank? It
# may be 0. `quota` is None or a number of processors; `ranks` is `torch.cuda.device_count()`, 0 without a GPU. The line
# below is the one that tutorials print.


# %% share-turn tags=["your-turn"]
def workers_for(cores, quota, ranks):
    ### BEGIN SOLUTION
    available = cores if quota is None else min(cores, int(quota))
    return max(0, available // max(1, ranks) - 1)
    ### INSTEAD OF
    # return cores // ranks
    ### END SOLUTION


gpulab.turn.workers_for(workers_for)

# %% sweep-text [markdown]
# A formula is a guess, so sweep:

# %% sweep-run tags=["host-dependent"]
import warnings

warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than processors
gaps = {"T4, no workers": together["T4"], "H100, no workers": together["H100"]}
for workers in (1, 2, 4):
    loader = DataLoader(photos, 32, sampler=order, num_workers=workers)
    gaps[f"H100, {workers} workers"] = fed(loader, step_ms["H100"])

# %% sweep-plot tags=["host-dependent"]
import matplotlib.pyplot as plt

gpulab.style.use()
figure, axes = plt.subplots(figsize=(7.2, 2.9))
steps = [step_ms[name.split(",")[0]] for name in gaps]
axes.barh([*gaps], [*gaps.values()], label="waits for data (measured)")
axes.barh([*gaps], steps, label="computes (virtual)")
axes.invert_yaxis()
axes.set(xlabel="ms from batch to batch", title=f"The same loader on two GPUs, {affinity} cores")
axes.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.4, -0.25))
gpulab.style.show(figure, alt="Bars: a part of each time the GPU computes, the rest it waits.")

# %% sweep-explain [markdown]
# In a loop without waits one worker is hardly faster than none: one core loads, either way. Two are nearly twice as
# fast if two cores are idle. More workers than cores bring nothing. Where all cores together are too slow, each sample
# must take less work.
#
# So `num_workers=4`, `min(8, cores)`, `cpu_count()` and `cores // GPUs` are guesses. Take the smallest number with
# which the wait is gone.
#
# **Is it the cores at all?** Decoding uses the processor; waiting for a disk or for cloud storage does not. Compare
# `time.process_time()` with the clock over some samples. Or run a second epoch: if it is much faster, the first one
# came from the disk and the second from the page cache. With slow storage, more workers than cores do help.
#
# The opposite fault is too many threads. PyTorch gives each worker one (`torch.set_num_threads(1)`), but OpenCV and
# NumPy's BLAS start one for each core, in *every* worker. Set `cv2.setNumThreads(0)` and `OMP_NUM_THREADS=1`.

# %% simulator-text [markdown]
# ### See it run
#
# The simulator opens on an H100 with four workers whose batches take unequal times.
#
# 1. Raise *num_workers* until the GPU computes all the time. Is it the formula's number?
# 2. Set *Spread of loading* to 0, then to 100 %. What does *prefetch_factor* buy in each case?
# 3. Choose *persistent_workers*. What does the second epoch gain?

# %% simulator
pinned = {"pinned": True, "non_blocking": True}
gpulab.sim.pipeline(gpu="H100", load=87, spread=80, workers=4, compute=25, batch=18, **pinned)

# %% ahead-text [markdown]
# ## Ahead of the loop: prefetching, persistent workers, pinning
#
# Workers begin at `iter(loader)`, before the loop has taken anything. How far do they go? The sampler here is an
# iterator, so its next number tells how many are drawn.

# %% ahead-predict
ahead_guess = gpulab.predict("2 workers, batches of 32: how many indices are drawn by then?")

# %% ahead-run
digits = TensorDataset(*gpulab.data.digits("train"))
indices = iter(range(len(digits)))  # samplers run in the main process
iterator = iter(DataLoader(digits, batch_size=32, sampler=indices, num_workers=2))
why = "Each worker gets prefetch_factor batches, 2 by default; then one for each that is taken."
ahead_guess.compare(next(indices), because=why)

# %% ahead-explain [markdown]
# Batches loaded ahead even out slow ones, and take host memory.
#
# At the end of an epoch the workers end too, with everything that the data set opened or cached in them, and the next
# epoch starts new ones. `persistent_workers=True` keeps them.
#
# `pin_memory=True` copies each finished batch into page-locked memory, so that `.to(device, non_blocking=True)` need not
# wait for the step before (lesson 03). With workers a thread of the main process does it, without workers it happens
# inside `next`. No batch comes sooner.

# %% start-text [markdown]
# ## Start methods: fork, forkserver, spawn
#
# A **fork** copies the running process, with your notebook's classes and your data in it. **Spawn** starts a new
# Python, which imports what it needs and gets the data set *pickled*. Windows and macOS spawn. Linux forks, and from
# Python 3.14 on uses **forkserver**, which pickles too.
#
# Pickling names a class by its module, so a new Python cannot find a class of your notebook, nor a lambda. That is why
# the two data sets below go to a file. In a script, `if __name__ == "__main__":` must stand before the training, or
# each spawned worker would begin one of its own.

# %% start-folder
import sys
import tempfile

start, folder = os.getcwd(), tempfile.TemporaryDirectory()
os.chdir(folder.name)
sys.path.insert(0, folder.name)  # workers find there what this notebook writes

# %% start-write
# %%writefile sets.py
import random
import psutil

class Table:  # reads 10,000 of its rows for a sample; gives this process's own memory, in MiB
    def __init__(self, rows):
        self.rows = rows
    def __getitem__(self, i):
        read = self.rows[i * 10_000 : (i + 1) * 10_000]
        return psutil.Process().memory_full_info().uss / 2**20

class Noisy:  # draws each sample from a generator of its own
    def __init__(self):
        self.dice = random.Random(0)
    def __getitem__(self, i):
        return self.dice.random()

# %% start-explain [markdown]
# A forked worker has the parent's *state* without its threads. A lock that one of them held stays locked, and if the
# parent has used CUDA, the worker cannot (`Cannot re-initialize CUDA in forked subprocess`). A spawned worker can, but
# should not: each would hold a few hundred MiB of GPU memory for its CUDA context. Return CPU tensors.

# %% memory-text [markdown]
# ## What N workers cost
#
# **Host memory.** After a fork, pages are shared until somebody writes (*copy-on-write*). Python writes even when it
# only reads, since each object contains its reference count. An array is one object with one count. Here a worker reads
# half a million paths:

# %% memory-run tags=["host-dependent"]
import numpy as np
from sets import Noisy, Table

paths = [f"train/{i % 1000:04d}/image_{i:08d}.jpg" for i in range(500_000)]
array, own = np.array(paths, "S"), {}
for name, rows in (("fork, list", paths), ("fork, array", array), ("spawn, list", paths)):
    method = name.split(",")[0]
    if method in torch.multiprocessing.get_all_start_methods():
        options = {"sampler": range(50), "num_workers": 1, "multiprocessing_context": method}
        began = time.monotonic()
        iterator = iter(DataLoader(Table(rows), None, **options))
        own[name] = [next(iterator)]
        print(f"{name}: the first sample after {time.monotonic() - began:.1f} s (measured)")
        own[name] += iterator

# %% memory-plot tags=["host-dependent"]
figure, axes = plt.subplots(figsize=(7.2, 2.7))
for name, mib in own.items():
    axes.plot(range(10, 501, 10), mib, label=f"{name}: {mib[0]:.0f} → {mib[-1]:.0f} MiB")
axes.set(yscale="log", xlabel="thousand paths read", ylabel="MiB (measured)")
axes.set_title("A forked worker copies the list that it only reads")
axes.legend()
told = "A worker's memory. Forked: a list grows, an array stays. Spawned: large from the start."
gpulab.style.show(figure, alt=told)

# %% memory-explain [markdown]
# With fork, N workers hold N lists after an epoch, which looks like a leak. The array helps with fork only: spawn and
# forkserver pickle a copy for each worker. And a spawned worker takes some 300 MiB *before any data*, for a Python with
# torch, and seconds to start, in each epoch unless workers are persistent.
#
# **Shared memory.** Finished batches wait in `/dev/shm`. 32 images in float32 are 18.4 MiB, and four workers with two
# batches ahead 147 MiB (computed); Docker gives 64 MiB by default. The message is `unable to allocate shared
# memory(shm) for file </torch_…>: No space left on device (28)`, in older versions `DataLoader worker (pid 325) is
# killed by signal: Bus error. It is possible that dataloader's workers are out of shared
# memory`. Repair it with `docker run --shm-size=8g`, or `--ipc=host`. It also helps to send uint8, a quarter of the
# bytes, and convert on the GPU.
#
# None of this is *GPU* memory. A better loader does not cure an OutOfMemoryError.

# %% seeds-text [markdown]
# ## Random numbers of workers
#
# PyTorch seeds each worker's `random`, `torch` and `numpy.random` with a number of its own. It cannot seed a generator
# that your data set made in its constructor, as `Noisy` does: every worker has a copy.

# %% seeds-predict
noise_guess = gpulab.predict("8 samples, 2 workers, two epochs: how many different numbers?")

# %% seeds-run
loader = DataLoader(Noisy(), None, sampler=range(8), num_workers=2)
epochs = [list(loader), list(loader)]
for numbers in epochs:
    print([round(x, 3) for x in numbers])
why = "Both workers draw the same, and in the second epoch again: its workers are new copies."
noise_guess.compare(len(set(epochs[0] + epochs[1])), because=why)

# %% seeds-explain [markdown]
# So a “random” augmentation has fewer versions, and nothing tells you. Draw from the global generators, or seed your
# own in `worker_init_fn`, from `get_worker_info().seed`.
#
# Across **ranks** the global generators repeat, too: with the same `torch.manual_seed(0)` on all, worker 0 of each rank
# gets the same seed. Add the rank to it.

# %% stream-text [markdown]
# ## Streams: an iterable data set
#
# A data set that is read in order (a log, a tar archive) is an `IterableDataset`: no indices, only `__iter__`. Then no
# sampler divides the work, and each worker iterates over everything. With two workers each line comes twice.
#
# **Your turn** · 3 minutes. Give each worker its own part. `get_worker_info()` has `.id` and `.num_workers`, and is
# `None` in the main process. `lines` is any iterable.

# %% stream-turn tags=["your-turn"]
from torch.utils.data import get_worker_info


def my_part(lines):
    ### BEGIN SOLUTION
    info = get_worker_info()
    if info is None:
        return lines
    return (line for i, line in enumerate(lines) if i % info.num_workers == info.id)
    ### INSTEAD OF
    # return lines
    ### END SOLUTION


gpulab.turn.my_part(my_part)

# %% stream-explain [markdown]
# With ranks, worker `id` of rank `r` is number `r * num_workers + id`:
#
# ![Of 12 lines each of four workers keeps every fourth.](../docs/pictures/stream_parts.svg)
#
# It is better to give each worker a share of the files: **shards**, tar archives of
# some 100 MB (WebDataset), many more of them than workers × ranks. Storage is fast at long reads; a million small files
# cost a look-up each.
#
# Parts of a stream are seldom equal. A rank that has fewer batches ends first, and the others **hang** in the
# all-reduce of a step that it never makes. Let all ranks stop after the same number of batches (lesson 12).

# %% less-text [markdown]
# ## Less work in each sample
#
# How long does a sample take, and which part takes most? In the second row, the JPEG decoder itself halves width and
# height. In the third, the file was resized before.


# %% less-run tags=["host-dependent"]
import timeit

from PIL import Image


def decoded(file, size):
    image = Image.open(file)
    image.draft("RGB", size)
    return image.convert("RGB")


def ms_of(call, times=20):
    with gpulab.without_gpu():
        return 1e3 * min(timeit.repeat(call, number=1, repeat=times))  # the least disturbed


# %% less-table tags=["host-dependent"]
decoded(files[0], (1024, 768)).resize((341, 256)).save("small.jpg", quality=90)
for case in ((files[0], (1024, 768)), (files[0], (341, 256)), ("small.jpg", (341, 256))):
    decode = ms_of(lambda c=case: decoded(*c))
    whole = ms_of(lambda c=case: augment(decoded(*c)))
    print(f"{decoded(*case).size}: decode {decode:.1f} ms, all of it {whole:.1f} ms (measured)")

# %% less-explain [markdown]
# Most of the time goes to pixels that the resize to 224 averages away. `draft` is one line, and saves a large part of
# it. But RandomResizedCrop cuts out 8 to 100 % of the area. From 1024 × 768 pixels, every crop has more pixels than 224
# × 224. From 512 × 384, a fifth have fewer and are enlarged, from 341 × 256 more than half (computed). So the
# augmentation changes: check the accuracy. Further steps:
#
# - **Cache** what does not change: decoded images as uint8 in one memory-mapped array. Before the random part, never
#   after it.
# - **Decode on the GPU**: `torchcodec.decoders.decode_jpeg(..., device="cuda")` (torchcodec 0.16), or NVIDIA's DALI for
#   the whole chain. It takes GPU time, which pays where cores are few.
# - **Augment on the GPU**: `torchvision.transforms.v2` takes tensors on any device; one random choice holds for the batch.

# %% gpu-text [markdown]
# ## Small data: no loader at all
#
# “Load the whole data set to the GPU” says one page, “never” another. The question is its size: the digits are 384 kB.
# A loader fetches 1500 samples one by one and stacks them. Indexing cuts one permutation into batches.

# %% gpu-predict
epoch_guess = gpulab.predict("An epoch on the CPU: how much longer is the loader?", unit="times")

# %% gpu-run tags=["host-dependent"]
images, labels = digits.tensors
batched = BatchSampler(RandomSampler(digits), 64, drop_last=False)
epochs = {
    "loader": lambda: list(DataLoader(digits, batch_size=64, shuffle=True)),
    "loader, batch_size=None": lambda: list(DataLoader(digits, batch_size=None, sampler=batched)),
    "index": lambda: [(images[i], labels[i]) for i in torch.randperm(1500).split(64)],
}
ms = {name: round(ms_of(call, 5), 2) for name, call in epochs.items()}
print("ms an epoch:", ms, "(measured)")
epoch_guess.compare(round(ms["loader"] / ms["index"]), "measured")

# %% gpu-turn-text [markdown]
# Fetching one by one takes most of the time. With `batch_size=None` and a `BatchSampler` the data set gets all the
# indices of a batch at once. (Your own data set may define `__getitems__(indices)` for that; then keep `batch_size`.)
#
# **Your turn** · 3 minutes. Do it without a loader, on the GPU. Write a generator of batches in random order, with each
# sample once and a new order at each call. Nothing may cross the bus.


# %% gpu-turn tags=["your-turn"]
def gpu_batches(images, labels, batch):
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
# `python -m gpulab run --gpu H100 --shapes-only train.py` runs a script unchanged, and reports how long a step waits in
# `DataLoader`'s `next`: loading is measured, the GPU virtual. With `--gpu real` all of it is measured.

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “Data time above compute time: the GPU is starved.” | The printed loop blames a loader that does nothing, and overlooks a slow one. Compare with steps on one batch. | *A question worth asking*, *Three numbers* |
# | “`num_workers`: 4”; “`min(8, cores)`”; “`cpu_count()`”; “cores // GPUs” | Guesses. Divide loading by the step's time, within affinity, quota and ranks; then sweep. | *Workers* |
# | “A better DataLoader helps against out of memory.” | It works in the host's memory. | *What N workers cost* |
# | “Arrays in place of lists: workers no longer copy.” | With fork. Spawn and forkserver pickle a copy each. | *What N workers cost* |
# | “`drop_last=True` helps BatchNorm.” | It spares BatchNorm a tiny last batch. A set smaller than a batch gives none, without a warning. | *Common mistakes* |
# | “NumPy's random numbers repeat in all workers.” | They did before PyTorch 1.9. Today those of your own generator do. | *Random numbers* |

# %% mistakes-text [markdown]
# ## Common mistakes
#
# - **`shuffle=True` and a sampler**: `ValueError: sampler option is mutually exclusive with shuffle`. A factory for
#   loaders that always shuffles cannot be used with DDP. Pass `shuffle=sampler is None`; the sampler needs `set_epoch`.
# - **`drop_last=True` on a set smaller than a batch** trains for no step, and says nothing.
# - **`pin_memory=True` without a GPU** only warns.
# - **A benchmark that flatters**, printed to compare loaders. Find three faults before you read on:
#
# ```python
# begin = time.perf_counter()
# for i, batch in enumerate(loader):
#     if i == 20:
#         break
# return (time.perf_counter() - begin) / 20
# ```
#
# If the loader has four batches, their time is divided by 20. If it has more, a 21st is fetched and not counted. And
# the time includes the start of the workers. `fed` leaves the first batches out, and divides by those it timed.

# %% tidy
os.chdir(start)
folder.cleanup()  # with the module that this notebook wrote

# %% quiz-text [markdown]
# ## Quick check

# %% quiz
gpulab.quiz(9)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. What you blame depends on where the timers stand. Compare your loop with the same steps on one batch, without a
#    clock inside.
# 2. Without waits, a step takes the longer of computing and loading ÷ workers. A faster step moves the wait to the
#    loader.
# 3. Use the fewest workers that end the wait, at most affinity or quota ÷ ranks, less one.
# 4. Each worker is a process with generators and memory of its own: fork copies a page when it is written, spawn copies
#    everything.
# 5. Before more workers, less work: `draft` or resize, cache before the random part, uint8; small data on the GPU.
#
# **For the checklist:** the three numbers · workers from a sweep · `persistent_workers=True` · `pin_memory=True` with a
# GPU · one thread in each worker · no generator of your own with one seed for all · streams split by worker and rank,
# equally many batches · a sampler instead of `shuffle` with DDP.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/09_feeding_the_gpu.ipynb) of this lesson, then [the map of the course](00_start_here.ipynb).
#
# ## References
#
# - PyTorch documentation, `torch.utils.data`; Python documentation, `multiprocessing`: *Contexts and start methods*.
# - Mohan et al., *Analyzing and Mitigating Data Stalls in DNN Training*, arXiv 2007.06775: the comparison with cached
#   data. *ResNet-50 on an RTX 4090*, Proc. SPIE 13184, 2024.
# - pytorch/pytorch#13246 (memory of workers), #5040 (shared memory).

# %% title [markdown]
# # 12 · Many GPUs
#
# **Promise:** one script, on one process or on N, with the same result; and you know what travels between the GPUs, and
# what to look at when the job stops.
#
# After this lesson you can **turn** a script for one GPU into one for N · **count** the bytes that travel, and **see**
# what of it hides behind backward · **deal out** data so that every sample counts alike · **find** the rank that hangs
# or has drifted away · **measure** how far a job scales.
#
# | time | before this | runs on |
# |---|---|---|
# | 60 minutes, and 75 for the exercises | lessons 02 and 08 (`no_sync`) | any machine |

# %% setup
import matplotlib.pyplot as plt

import gpulab

gpu = gpulab.setup()

# %% question-text [markdown]
# ## A question worth asking
#
# Hugging Face trained GPT-2 for 200 steps, three times on the same two GPUs. The two lower bars are the same script;
# in the last one the GPUs may not read each other's memory.

# %% question-plot
gpulab.style.use()
figure, axes = plt.subplots(figsize=(7.2, 1.7))
bars = axes.barh(["DDP, no peer-to-peer", "DDP", "DataParallel"], [131.4, 101.9, 110.6])
axes.bar_label(bars, padding=4)
axes.set(xlim=(0, 150), xlabel="seconds (recorded, two TITAN RTX)", title="Same GPUs, 29 % slower")
gpulab.style.show(figure, alt="Seconds: DataParallel 110.6, DDP 101.9, without peer-to-peer 131.4")

# %% question-ask [markdown]
# So what travels between the GPUs, and when does it cost time? Try it with a GPT of 75 million parameters, without a
# mask, and with its input as target: good for bytes and times, not for language.

# %% imports
import functools
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

# %% model
class SmallGPT(nn.Module):
    def __init__(self, width=1024, depth=4, words=12000):
        super().__init__()
        block = nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, batch_first=True)
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))

# %% build
def ddp(model, **options):
    dist.init_process_group("nccl")
    return DistributedDataParallel(model, **options)


def build(batch, wrap=ddp, **options):
    model = wrap(SmallGPT().cuda(), **options)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(12000, (batch, 512), device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step

# %% parallel-text [markdown]
# The oldest way to a second GPU is one line: `model = nn.DataParallel(model)`. *One* process cuts each batch in two,
# and gathers the results. DDP, this lesson's way, has one process for each GPU. On two virtual A100s, joined by
# NVLink:

# %% question-predict
parallel_guess = gpulab.predict("DataParallel, batch 128: how many times GPU 1's memory does GPU 0 use?")

# %% question-run tags=["host-dependent"]
for batch in (8, 128):
    one = gpulab.plan(lambda batch: build(batch, nn.Sequential), batch, "A100-80")
    two = gpulab.plan(build, batch // 2, "A100-80", ranks=2)
    with gpulab.VirtualGPU("A100-80", count=2, compute=False):
        took = gpulab.timing.measure(build(batch, nn.DataParallel), repeat=3, warm_up=2)
        first, second = (torch.cuda.max_memory_allocated(i) for i in range(2))
    three = f"one GPU {one.step_ms:.0f}, DataParallel {took.median_ms:.0f}, DDP {two.step_ms:.0f}"
    print(f"batch {batch:3} in all, ms a step: {three} (virtual)")
why = "The optimizer's state and the loss are on GPU 0 alone, and all logits are gathered there."
parallel_guess.compare(round(first / second, 1), "virtual", because=why)

# %% question-answer [markdown]
# With batch 8, DataParallel is slower than one GPU. In every step its one process copies the weights to GPU 1,
# launches the kernels of both GPUs from threads that share one Python interpreter, gathers the logits on GPU 0, and
# adds up the gradients there. DDP also gains less at batch 8: launching takes more of the step, and no second GPU
# shortens it.

# %% ddp-text [markdown]
# ## One script, N processes
#
# **DistributedDataParallel** (DDP) takes N processes. Each is a **rank**: number `RANK` of `WORLD_SIZE` in the job,
# `LOCAL_RANK` on its machine.
#
# ![Two machines, two ranks each, with a GPU and all weights.](../docs/pictures/processes.svg)
#
# During `backward()` the ranks average their gradients, so all make the same step.
#
# `gpulab.distributed.run` starts a script on real processes of this machine, as `torchrun` does. With two real GPUs
# each rank takes one, and NCCL carries what they send. Otherwise each has a virtual GPU, and gloo carries it.

# %% launch-setup
folder = tempfile.TemporaryDirectory()
os.chdir(folder.name)
where = {} if torch.cuda.device_count() > 1 else {"GPULAB_GPU": "virtual:T4"}
launch = functools.partial(gpulab.distributed.run, warm=True, env=where)

# %% train-write
# %%writefile train.py
import os
import torch
from torch import distributed as dist, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import gpulab

gpulab.setup()  # a virtual GPU where there is no real one; without gpulab leave it out
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # the local rank, not the rank
torch.cuda.set_device(device)  # before the group is made
dist.init_process_group("nccl", device_id=device)  # the ranks find each other

# %% train-write-model
# %%writefile -a train.py
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
model = DistributedDataParallel(model, device_ids=[device.index])  # all take rank 0's weights
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
data = TensorDataset(*gpulab.data.digits("train"))
sampler = DistributedSampler(data, seed=0)  # this rank's part of the indices
loader = DataLoader(data, batch_size=300 // dist.get_world_size(), sampler=sampler)

# %% train-write-loop
# %%writefile -a train.py
for epoch in range(2):
    sampler.set_epoch(epoch)  # another order in each epoch
    total = torch.zeros((), device=device)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()  # the gradients are averaged over the ranks while it runs
        optimizer.step()
        total += loss.detach() / len(loader)
    dist.all_reduce(total, dist.ReduceOp.AVG)  # right because all batches have one size
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {total.item():.4f}")
dist.destroy_process_group()

# %% train-run
for ranks in (1, 2):
    print(f"{ranks} process(es):", launch("train.py", ranks).ranks[0].output.splitlines()[-2:])

# %% train-explain [markdown]
# The loss is the same to rounding (with dropout or BatchNorm it would not be). Four things made it so: equal weights at
# the start (DDP sends rank 0's), different data on each rank, averaged gradients, and a batch of 300 *in all*. With
# `batch_size=300` on each rank it would be 600.
#
# With `device_id` NCCL connects at once, so a broken link shows here and not later. If a rank is slow on purpose, set
# `timeout=datetime.timedelta(minutes=30)`; NCCL's default is 10 minutes.

# %% ring-text [markdown]
# ## What travels: an all-reduce by hand
#
# The exchange is called **all-reduce**: each rank brings a tensor, each gets the sum. In the naive way all send to
# rank 0, which adds up and sends the sum back: its link carries N−1 tensors each way, while the others wait.
#
# A **ring** cuts the tensor into N pieces. In one *hop* every rank gives a piece to its right neighbour and takes one
# from its left. After N−1 hops each rank has the sum of one piece; N−1 more hops pass the sums on to all.

# %% ring-predict
ring_guess = gpulab.predict("4 ranks, a tensor of 4 MB: how much does each send?", unit="MB")

# %% ring-run
ranks, sent = 4, 0
tensors = [torch.arange(1e6) % 100 + rank for rank in range(ranks)]  # each rank's
wanted = sum(tensors)
pieces = [tensor.chunk(ranks) for tensor in tensors]
for hop in range(2 * (ranks - 1)):
    going = [pieces[rank][(rank - hop) % ranks].clone() for rank in range(ranks)]  # all at once
    for rank, piece in enumerate(going):
        there = pieces[(rank + 1) % ranks][(rank - hop) % ranks]
        there.copy_(there + piece if hop < ranks - 1 else piece)  # add up, then bring round
    sent += going[0].nbytes / 1e6
print("every rank has the sum:", all(torch.equal(tensor, wanted) for tensor in tensors))
ring_guess.compare(sent, because="6 hops with a quarter each: 2 (N − 1)/N of the tensor.")

# %% ring-explain [markdown]
# The price is 2(N−1) hops, each with its latency. So NCCL uses trees for small tensors on many ranks, and lets the
# switch add up where it can. Real ranks hand over a piece with `dist.batch_isend_irecv`, which starts both directions
# at once. If all called `send` first and then `recv`, NCCL could hang: a tensor that fits into no buffer waits until
# the neighbour receives.

# %% buckets-text [markdown]
# ## Buckets: sending while backward computes
#
# Gradients appear one by one, the last layer's first. DDP collects them in **buckets** (25 MiB, the first one
# smaller), and starts the all-reduce of a bucket as soon as it is full, while backward goes on. Here is a step of the
# GPT as one of two ranks sees it; the other is imagined, and equal:

# %% buckets-run
with gpulab.VirtualGPU("A100-80", ranks=2, link="pcie4", compute=False):
    step = build(8)
    step()  # DDP orders its buckets in the first backward
    step()
    gpulab.timing.timeline(step).show()

# %% buckets-explain [markdown]
# Stream 1 is the exchange. Most of it overlaps with backward. Only what comes after the last gradient is **exposed**:
# the optimizer has to wait for it. What hides costs little, but not nothing: NCCL's kernels take multiprocessors and
# bandwidth from backward, which the virtual GPU leaves out.
#
# In a real job the slowest rank, the **straggler**, sets the pace: it has a hot GPU, a slow disk, a longer sentence. A
# collective's kernel starts on the early rank, and spins until the last one has come:
#
# ![Rank 0 has computed early: its NCCL kernel starts, spins and sends. Rank 1 is late: its NCCL kernel only sends. Both
# end together.](../docs/pictures/straggler.svg)
#
# So the early ranks look busy with NCCL, and the straggler is the rank with the **shortest** NCCL kernels.
#
# Buckets are a second copy of the gradients. `gradient_as_bucket_view=True` makes `.grad` a view of the bucket, and
# saves the copy:

# %% view-run
viewing = functools.partial(build, gradient_as_bucket_view=True)
for batch in (1, 8):
    copy, view = (gpulab.plan(make, batch, "A100-80", ranks=2) for make in (build, viewing))
    peaks = f"peak {copy.peak_allocated / 2**20:.0f} → {view.peak_allocated / 2**20:.0f} MiB"
    print(f"batch {batch}: {peaks}, step {copy.step_ms:.1f} → {view.step_ms:.1f} ms (virtual)")

# %% view-explain [markdown]
# The step is shorter in both cases. The peak falls only where it is at the end of backward or in the optimizer's step,
# as with batch 1.

# %% links-text [markdown]
# ## Links: when two GPUs are slower than one
#
# The link decides how much hides. Here is the same GPT with 8 samples on each of two A100s, joined by NVLink; by PCIe
# 4.0; by PCIe *without peer-to-peer*, so that each byte goes through host memory, as between consumer cards; or, in
# two machines, by an office network of 10 Gb/s. Each gradient has 4 bytes.

# %% links-predict
link_guess = gpulab.predict("Over 10 Gb/s Ethernet: how much is exposed?", unit="ms")

# %% links-run
ethernet = {"nodes": 2, "adapters": "10G"}
links = {"NVLink": {}, "PCIe 4.0": {"link": "pcie4"}, "no peer-to-peer": {"link": "pcie4-host"}}
for name, link in (links | {"10 Gb/s Ethernet": ethernet}).items():
    plan = gpulab.plan(build, 8, "A100-80", ranks=2, **link)
    took = f"step {plan.step_ms:5.1f} ms, exposed {plan.exposed_ms:5.1f}"
    print(f"{name:<16} {took}: the work of {plan.scaling:.2f} GPUs (virtual)")
why = "A ring of two sends all of it once: 300 MB at 1.25 GB/s are 240 ms, and backward is short."
link_guess.compare(round(plan.exposed_ms), "virtual", because=why)

# %% links-explain [markdown]
# “The work of” compares with the plain script on one GPU. Even over NVLink it is less than 2, since DDP copies each
# gradient into its bucket and back. This explains the opening: without peer-to-peer more of it is exposed.
#
# To expose less, give each rank more samples, accumulate (one exchange per window) or send 16 bits:
# `model.register_comm_hook(None, default_hooks.bf16_compress_hook)` from `torch.distributed.algorithms.ddp_comm_hooks`
# halves the bytes and rounds the gradients.
#
# `nvidia-smi topo -m` says how your GPUs are linked. On a DGX A100 (recorded, shortened, NVIDIA/nccl#1505):
#
# ```
#         GPU0    GPU2    NIC0    NIC2    CPU Affinity     NUMA Affinity
# GPU0     X      NV12    PXB     SYS     48-63,176-191    3
# GPU2    NV12     X      SYS     PXB     16-31,144-159    1
# ```
#
# `NV12` is twelve NVLinks. The others are ways over PCIe, the nearest first: `PIX`, `PXB` (switches), `PHB` (a host
# bridge), `NODE` (several host bridges of one NUMA node), `SYS` (from one NUMA node to another). `PHB` says nothing
# about peer-to-peer: ask `nvidia-smi topo -p2p rw`.
#
# A **NUMA** node is a part of the processors with its own memory and adapters. If a process on another node feeds GPU
# 0, each batch crosses between nodes. Bind it (`numactl --cpunodebind=3 --membind=3`, newer
# `torchrun --numa-binding=node`).

# %% simulator-text [markdown]
# ### See it move
#
# The simulator opens on eight GPUs without peer-to-peer: the ring takes longer than backward.
#
# 1. Raise *Forward + backward* until the ring hides, as a larger batch on each GPU does.
# 2. Set the bucket to “one for all”, then to 1 MiB. What does each cost?
# 3. Allow peer-to-peer again.

# %% simulator
gpulab.sim.allreduce(peer=False)

# %% data-text [markdown]
# ## Data: who gets which sample
#
# `DistributedSampler` gives each rank its part of the indices.

# %% data-predict
samples_guess = gpulab.predict("In one epoch over 1797 digits, 4 ranks draw how many in all?")

# %% data-run
from torch.utils.data import DistributedSampler

parts = [list(DistributedSampler(range(1797), 4, rank, shuffle=False)) for rank in range(4)]
for rank, part in enumerate(parts):
    print(f"rank {rank}: {len(part)} samples: {part[:3]} … {part[-2:]}")
samples_guess.compare(sum(map(len, parts)), because="It pads, so that all make as many steps.")

# %% data-explain [markdown]
# It deals samples out like cards, and fills up the last round from the beginning:
#
# ![Rank 0 gets samples 0, 3, 6; rank 1 gets 1, 4 and again 0; rank 2 gets 2, 5 and again
# 1.](../docs/pictures/dealing.svg)
#
# In an **evaluation** the repeats are wrong: deal without padding, and add up sums and counts.
#
# ```python
# part = Subset(data, range(rank, len(data), ranks))  # no sample twice, none missing
# sums = torch.zeros(3, dtype=torch.float64, device=device)  # NCCL sends from the GPU only
# ...                                                 # add up the loss, right answers, samples
# dist.all_reduce(sums)                               # then divide, once
# ```
#
# Use the plain module there (`model.module`, in `eval()`): ranks may have unequal numbers of batches.

# %% deal-turn-text [markdown]
# **Your turn** · 3 minutes. Deal by hand what `DistributedSampler(range(length), ranks, rank, shuffle=False)` deals. This
# function cuts chunks, and leaves some samples out. `length` is at least `ranks`.

# %% deal-turn tags=["your-turn"]
def indices_of(rank, ranks, length):
    ### BEGIN SOLUTION
    padded = list(range(length))
    padded += padded[: -length % ranks]
    return padded[rank::ranks]
    ### INSTEAD OF
    # each = length // ranks
    # return list(range(rank * each, (rank + 1) * each))
    ### END SOLUTION


gpulab.turn.dealt_indices(indices_of)

# %% share-turn-text [markdown]
# **Unequal counts.** DDP averages *ranks*, not samples. Say that rank 0 has 100 samples in a step and rank 1 has 20: a
# sample of rank 1 weighs five times as much, and nothing fails. The same happens to tokens when sentences differ in
# length.
#
# **Your turn** · 3 minutes. `losses` has the loss of each sample of this rank; all ranks together have `total`
# samples. Return the loss for which DDP's average is the gradient of the mean over *all* samples.

# %% share-turn tags=["your-turn"]
def fair_loss(losses, total, ranks):
    ### BEGIN SOLUTION
    return losses.sum() * ranks / total
    ### INSTEAD OF
    # return losses.mean()
    ### END SOLUTION


gpulab.turn.fair_loss(fair_loss)

# %% batch-text [markdown]
# `total` comes from an all-reduce of the counts. Four more things change with N:
#
# - **The effective batch** is `batch_size` × accumulation × ranks. The learning rate and the schedule follow it, as in
#   lesson 08: an epoch has N times fewer updates.
# - **Uneven inputs**: a rank with one batch more waits until the timeout. The sampler and `drop_last` avoid it.
#   Otherwise `with model.join():` has ranks that are done take part in the others' exchanges.
# - **BatchNorm** normalises with *its rank's* samples. With few on each, call
#   `nn.SyncBatchNorm.convert_sync_batchnorm(model)` before DDP: it sends more.
# - **Seeds**: one seed on all ranks draws the same dropout masks and augmentations on all. Add the rank to it after the
#   model is built.

# %% launch-text [markdown]
# ## Launching
#
# | you write | what it does |
# |---|---|
# | `torchrun --standalone --nproc-per-node=8 train.py` | 8 ranks on this machine |
# | `torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=host1:29400 train.py` | the same line on both machines; they meet (*rendezvous*) at `host1` |
# | `--log-dir=logs --redirects=3` | a file for what each rank prints |
#
# `torchrun` sets `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`, and ends all ranks (or starts
# them again) when one fails. It sets `OMP_NUM_THREADS=1`, so that 8 ranks do not start 8 × 64 threads. Raise it to
# cores ÷ ranks if the host computes. The other launcher, `torch.multiprocessing.spawn`, is called in the script
# itself: use one of the two. Both together make N × N processes, N of which claim to be rank 0.
#
# **Rank-0 work** is printing, logging, the final save (all ranks would write over one file). It is *not* anything with a
# collective in it: a metric that reduces, `model(x)` through DDP, saving a sharded model. Where others need its result,
# `dist.barrier()` follows.
#
# **Accelerate** (Hugging Face) writes all this for you: `accelerator.prepare(model, optimizer, loader)`,
# `accelerator.backward(loss)`, `accelerator.gather_for_metrics(…)`, which drops the padding. `prepare` shards the
# loader itself, and steps a prepared schedule N times an update.

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **Ranks that disagree.** Rank 0 alone validates, and a metric in it reduces:

# %% hangs-write
# %%writefile hangs.py
import torch
from torch import distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1000))  # the gradients
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(1))  # a metric, in the validation
dist.broadcast(torch.ones(1000), 0)  # a learning rate

# %% hangs-stop tags=["raises-exception", "host-dependent"]
launch("hangs.py", timeout=4)

# %% hangs-explain [markdown]
# ![Collective 1 is an all-reduce on both ranks, collective 2 an all-reduce on rank 0 and a broadcast on rank
# 1.](../docs/pictures/parted.svg)
#
# Nothing fails: each waits for the other. (Where shapes happen to fit, two different collectives meet, and the numbers
# are silently wrong.) The stacks of *all* ranks show where; on a cluster `py-spy dump --pid` prints them. To find a
# hang, let each rank compare its call with the others' before it begins:

# %% hangs-compare tags=["raises-exception", "host-dependent"]
launch("hangs.py", env=where | {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})

# %% recorder-text [markdown]
# `DETAIL` is slow. The **flight recorder** has been on by default since PyTorch 2.15: it keeps the last 2000
# collectives of each rank (in older versions, set `TORCH_FR_BUFFER_SIZE=2000`). With `TORCH_NCCL_DUMP_ON_TIMEOUT=1`,
# the default of newer versions, NCCL's watchdog writes it to a file when a collective times out. `torchfrtrace`
# compares the files.
#
# **Your turn** · 4 minutes. The table has the last collective in each rank's dump, for five jobs of four ranks.
# **Which rank has parted from the others, and at which number?** Ranks part at the first number that one of them calls
# differently, or that some wait in and another has not called. A rank that is only behind has not parted: a
# broadcast's source is done once it has sent.
#
# | job | rank 0 | rank 1 | rank 2 | rank 3 |
# |---|---|---|---|---|
# | a | 7 all_reduce WAITS | 7 all_reduce WAITS | 6 broadcast done | 7 all_reduce WAITS |
# | b | 8 all_reduce done | 9 barrier WAITS | 8 all_reduce done | 8 all_reduce done |
# | c | 4 all_reduce 8 × 3 done | 4 all_reduce 8 × 3 done | 4 all_reduce 8 × 3 done | 4 all_reduce 3 × 8 done |
# | d | 6 broadcast done | 5 all_reduce done | 5 all_reduce done | 6 broadcast done |
# | e | 3 all_reduce WAITS | 3 all_reduce WAITS | no dump | 3 all_reduce WAITS |

# %% parted-turn tags=["your-turn"]
def odd_ranks():
    # (rank, number) in place of each "?", or None where nobody has parted
    ### BEGIN SOLUTION
    return {"a": (2, 7), "b": (1, 9), "c": (3, 4), "d": None, "e": (2, 3)}
    ### INSTEAD OF
    # return {"a": "?", "b": "?", "c": "?", "d": "?", "e": "?"}
    ### END SOLUTION


gpulab.turn.odd_ranks(odd_ranks)

# %% unused-text [markdown]
# **A parameter without a gradient.** Its bucket never fills, and the next step fails:

# %% unused-write
# %%writefile unused.py
import torch
from torch import distributed as dist, nn
from torch.nn.parallel import DistributedDataParallel


class Heads(nn.Sequential):
    def forward(self, x):
        return self[0](x)  # the second layer is not used


dist.init_process_group("gloo")
model = DistributedDataParallel(Heads(nn.Linear(8, 8), nn.Linear(8, 8)))
for _ in range(2):
    model(torch.ones(2, 8)).sum().backward()

# %% unused-run tags=["raises-exception", "host-dependent"]
launch("unused.py", env=where | {"TORCH_DISTRIBUTED_DEBUG": "INFO"})

# %% loud-text [markdown]
# `INFO` added the line with the names. Take the layer out, or set `find_unused_parameters=True`: it searches the graph
# in each step, and sends one more all-reduce. (With `DETAIL`, DDP on gloo crashes in PyTorch 2.15: SIGSEGV.) More messages:
#
# | message | cause | repair |
# |---|---|---|
# | `EADDRINUSE, message: address already in use` | a port in the script, and another job has it | leave the port to `torchrun` |
# | `Connection closed by peer` (gloo), `NCCL error: remote process exited`, or only `Watchdog caught collective operation timeout` | another rank died, or had fewer batches | find the *first* rank that failed; equal numbers of batches |
# | `rank 1 was killed by SIGKILL`, `exitcode: -9` | mostly the host's memory was full | fewer workers |
# | `invalid device ordinal` | `cuda:{rank}` on the second machine | `LOCAL_RANK` |
#
# **Past DDP** goes `model.module(x)`:
#
# ![model(x) goes through DDP, and gradients are exchanged; model.module(x) goes past it.](../docs/pictures/past_ddp.svg)
#
# A checkpoint that only rank 0 loads after wrapping does the same harm: DDP never sends the weights again. A checksum
# of gradients or weights finds both:

# %% silent-write
# %%writefile silent.py
import torch
from torch import distributed as dist, nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(8, 1))
model.module(torch.full((3, 8), 1.0 + dist.get_rank())).sum().backward()
checksum = sum(p.grad.double().sum().item() for p in model.parameters())
checksums = [None] * dist.get_world_size()
dist.all_gather_object(checksums, checksum)
print("the gradients' checksum on each rank:", checksums)

# %% silent-run
print(launch("silent.py").ranks[0].output)

# %% window-turn-text [markdown]
# **Accumulating without `no_sync`** exchanges the gradients after each micro-batch.
#
# **Your turn** · 3 minutes. Make it one exchange for the whole window. `model` is in DDP, `window` is a list of (x, y)
# of one size.

# %% window-turn tags=["your-turn"]
def accumulate(model, window):
    ### BEGIN SOLUTION
    with model.no_sync():
        for x, y in window[:-1]:
            loss = F.cross_entropy(model(x), y) / len(window)
            loss.backward()
    x, y = window[-1]
    loss = F.cross_entropy(model(x), y) / len(window)
    loss.backward()
    ### INSTEAD OF
    # for x, y in window:
    #     loss = F.cross_entropy(model(x), y) / len(window)
    #     loss.backward()
    ### END SOLUTION


gpulab.turn.one_exchange(accumulate)

# %% scaling-text [markdown]
# ## Scaling: weak and strong
#
# **Weak** scaling keeps each rank's batch, so the total grows. **Strong** scaling keeps the total, so each rank's
# batch shrinks. Here is weak scaling on one and two processes of this machine's CPU, each with one thread. The step is
# timed with its exchange, and in `no_sync`, without it:

# %% scaling-write
# %%writefile speed.py
import contextlib
import time
import torch
from torch import distributed as dist, nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)))
batch = torch.randn(1024, 256)
for context in (model.no_sync, contextlib.nullcontext, model.no_sync):  # the first one warms up
    with context():
        start = time.perf_counter()  # on a GPU synchronize() before both readings
        for _ in range(20):
            model(batch).square().mean().backward()
        print((time.perf_counter() - start) / 20 * 1e3)

# %% scaling-measured tags=["host-dependent"]
for ranks in (1, 2):
    _, full, quiet = map(float, launch("speed.py", ranks).ranks[0].output.split())
    print(f"{ranks} process(es): step {full:.0f} ms, without the exchange {quiet:.0f} (measured)")

# %% scaling-virtual-text [markdown]
# Two processes do the work of 2 × (step with one ÷ step with two). Where they share caches, memory and cores, their
# step is longer even without the exchange. The rest of the difference is **exposed communication** and DDP's copies.
# On GPUs, `NCCL_DEBUG=INFO` says which links and which algorithm NCCL has taken, and `nccl-tests` (`all_reduce_perf`)
# what they reach without your script.
#
# The same GPT on 8 and 64 virtual A100s, eight in a machine:

# %% scaling-virtual
for ranks in (8, 64):
    weak, strong = (gpulab.plan(build, n, "A100-80", ranks=ranks) for n in (64, 64 // ranks))
    print(f"{ranks:2} ranks: weak, 64 on each: {weak.scaling:4.1f} × one GPU", end=" · ")
    print(f"strong, 64 in all: {weak.alone_ms / strong.step_ms:4.1f} × (virtual)")

# %% scaling-explain [markdown]
# Weak scaling is nearly linear while the exchange hides. Strong scaling is not: with few samples the kernels are short,
# and the host's launches and the exchange remain.
#
# The virtual numbers are too good. With ResNet-50, NVIDIA's 8 GPUs did the work of 7.7 in fp32 and TF32, in mixed
# precision of 6.9 (V100) and 6.7 (A100; recorded). Those runs also read and decode thousands of images a second, and
# each step waits for its slowest rank. So measure yours: samples per second on 1, 2, 4, 8 GPUs.

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “DDP scales linearly.” | Weak scaling comes near where the exchange hides. Strong scaling does not. | *Scaling* |
# | “DDP is 2–3× faster than DP.” | There is no such number: it depends on model, batch and link. | *A question worth asking* |
# | “DP communicates through CPU memory.” | Only where GPUs cannot reach each other. | *Links* |
# | “The batch must be a multiple of the number of GPUs.” | DP cuts 7 into 4 and 3; DDP has a batch for each rank. | *Data* |
# | “`DistributedSampler` gives each rank a non-overlapping chunk.” | Every Nth sample, padded with repeated ones. | *Data* |
# | “Every backward exchanges gradients, by IPC.” | Not under `no_sync`, and over the best link that NCCL finds. | *Buckets* |

# %% quiz-text [markdown]
# ## Quick check

# %% quiz
gpulab.quiz(12)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. DDP: one process for each GPU, equal weights, different data, averaged gradients: the same result to rounding.
# 2. A ring sends 2(N−1)/N of the gradients from each rank. What hides behind backward costs little; the link decides
#    how much hides.
# 3. DDP averages ranks. With unequal counts, weigh: `losses.sum() * ranks / total`. An evaluation adds up sums and counts.
# 4. Every rank makes the same collectives in the same order. If one does not, the job hangs or, worse, the numbers are
#    wrong.
# 5. Look at all ranks: stacks, flight recorder, a checksum; the rank with the shortest NCCL kernels is late.
#
# **For the checklist:** `torchrun`, and no `spawn` · `LOCAL_RANK`, set before the group · `set_epoch` · no collective in
# rank-0 work · one rank saves · `no_sync` when accumulating · `gradient_as_bucket_view=True`.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/12_many_gpus.ipynb). Then [the map of the course](00_start_here.ipynb): lesson 13 shards
# what does not fit on one GPU.
#
# ## References
#
# - PyTorch documentation: `DistributedDataParallel`, *Distributed Data Parallel* (notes), `torchrun (Elastic Launch)`,
#   *DDP Communication Hooks*, *Flight Recorder for Debugging Stuck Jobs*.
# - Li et al., *PyTorch Distributed*, arXiv 2006.15704 (buckets).
# - The opening: Hugging Face, *Efficient Training on Multiple GPUs*. Scaling: NVIDIA, DeepLearningExamples, ResNet-50.

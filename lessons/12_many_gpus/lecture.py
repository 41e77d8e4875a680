# %% title [markdown]
# # 12 · Many GPUs
#
# **Promise:** one script, on one process or on N, with the same result; and you know what travels between the GPUs, and
# what to look at when it stops.
#
# After this lesson you can
#
# 1. **turn** a script for one GPU into one that `torchrun` starts on N, with the loss equal to rounding;
# 2. **count** the bytes that an all-reduce sends, and **see** which part of it hides behind backward;
# 3. **deal out** data so that nothing is missing, and count nothing twice in an evaluation;
# 4. **find** which rank hangs, which one has drifted away, and where;
# 5. **say** how far a job scales, and which link decides it.
#
# | time | before this | runs on |
# |---|---|---|
# | 60 minutes, and 75 for the exercises | `02_devices`, `08_accumulation` (its `no_sync`) | any machine |

# %% setup-text [markdown]
# The processes of this lesson are real: `gpulab.distributed.run` starts a script on several of them, as `torchrun` does.
# With two real GPUs each takes one, and NCCL carries what they send; else each has a *virtual* GPU, and gloo carries it
# over this machine's loopback. Machines that you do not have are virtual and say so. The scripts live in a temporary
# folder.

# %% setup
import functools
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import gpulab

gpu = gpulab.setup()

# %% setup-launch
folder = tempfile.TemporaryDirectory()
os.chdir(folder.name)
where = {} if torch.cuda.device_count() > 1 else {"GPULAB_GPU": "virtual:T4"}  # each rank wants a GPU of its own
where["TORCH_FR_BUFFER_SIZE"] = "200"  # the flight recorder, for later
launch = functools.partial(gpulab.distributed.run, warm=True, env=where)  # warm: ranks start in a moment

# %% model
class SmallGPT(nn.Module):
    def __init__(self, width=256, depth=4, words=5000):
        super().__init__()
        block = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True)
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))


def train_step(model, optimizer, tokens):
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %% question-text [markdown]
# ## A question worth asking
#
# The oldest way to a second GPU is one line: `model = nn.DataParallel(model)`. It splits each batch over the GPUs of the
# machine and gathers the results. Here is a small GPT on one virtual A100, and wrapped so on two, joined by NVLink.

# %% question-predict
parallel_guess = gpulab.predict("Batch 64 with DataParallel: GPU 0 holds how many times as much memory as GPU 1?")

# %% question-run tags=["host-dependent"]
def step_on(count, batch):
    """ms of a training step, and the peak MiB of each GPU."""
    with gpulab.VirtualGPU("A100-80", count=count, compute=False):
        model = SmallGPT().cuda()
        model = nn.DataParallel(model) if count > 1 else model
        optimizer = torch.optim.AdamW(model.parameters())
        tokens = torch.randint(5000, (batch, 256), device="cuda")
        took = gpulab.timing.measure(lambda: train_step(model, optimizer, tokens), repeat=3, warm_up=2)
        return took.median_ms, [torch.cuda.max_memory_allocated(i) / 2**20 for i in range(count)]


for batch in (8, 64):
    (one, alone), (two, both) = step_on(1, batch), step_on(2, batch)
    print(f"batch {batch:2}: one GPU {one:2.0f} ms, {alone[0]:4.0f} MiB · two {two:2.0f} ms, {both[0]:4.0f} and {both[1]:3.0f} MiB (virtual)")
told = "Weights, optimizer and loss live on GPU 0 alone; the logits are gathered there."
parallel_guess.compare(round(both[0] / both[1], 1), "virtual", because=told)

# %% question-answer [markdown]
# Two GPUs are *slower* with the small batch, 1.6 times as fast with the large one. DataParallel is one process. In
# every step it copies the weights from GPU 0 to the others, cuts the batch there, runs the copies in threads that share
# one Python interpreter, gathers the logits on GPU 0, and adds up the gradients there, and nothing of it overlaps. (The
# threads meet by chance, so the 24 may be another for you.)
#
# Three descriptions of this go round. “Through CPU memory” is right where GPUs cannot reach each other directly
# (consumer cards), and wrong with NVLink. “Gathers on GPU 0” is right. “Synchronises gradients” is the other one, DDP.

# %% ddp-text [markdown]
# ## One script, N processes
#
# **DistributedDataParallel** (DDP) has one process for each GPU. Each is a **rank**: number `RANK` of `WORLD_SIZE` in the
# whole job, `LOCAL_RANK` on its machine. Each holds all weights and takes its own part of every batch. During
# `backward()` the ranks average their gradients, so that all make the same step. The whole script, in two cells:

# %% train-write
# %%writefile train.py
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import gpulab

gpulab.setup()  # this rank's virtual GPU, where there is no real one; without gpulab leave it out
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # the local rank, not the rank
torch.cuda.set_device(device)  # before the group is made
dist.init_process_group("nccl")  # the ranks find each other
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
model = DistributedDataParallel(model, device_ids=[device.index])  # everybody takes rank 0's weights

# %% train-write-loop
# %%writefile -a train.py
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
data = TensorDataset(*gpulab.data.digits("train"))
sampler = DistributedSampler(data, seed=0)  # this rank's part of the indices
loader = DataLoader(data, batch_size=300 // dist.get_world_size(), sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)  # another order in each epoch
    total = torch.zeros((), device=device)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()  # the gradients are averaged over the ranks while it runs
        optimizer.step()
        total += loss.detach()
    dist.all_reduce(total, dist.ReduceOp.AVG)  # right because all batches have one size
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {total.item() / len(loader):.7f}")
dist.destroy_process_group()

# %% train-run
def losses(run):
    return torch.tensor([float(line.split()[-1]) for line in run.ranks[0].output.splitlines() if "loss" in line])


alone, pair = launch("train.py", ranks=1), launch("train.py", ranks=2)
for epoch, (a, b) in enumerate(zip(losses(alone), losses(pair), strict=True)):
    print(f"epoch {epoch}: loss {a:.2f} on one process, {b:.2f} on two")
print("same to 1e-5:", torch.allclose(losses(alone), losses(pair), rtol=0, atol=1e-5))

# %% train-explain [markdown]
# The same script, and the same loss to rounding: the mean over two halves adds in another order than the mean over the
# whole, as in lesson 08. Four things made it true: equal weights at the start (DDP sends rank 0's), different data on
# each rank, averaged gradients, and a batch of 300 *in all*. With `batch_size=300` on each rank the script would have
# trained with 600.

# %% ring-text [markdown]
# ## What travels: an all-reduce by hand
#
# The exchange is called **all-reduce**: each rank brings a tensor, each gets the sum. The naive way sends everything to
# rank 0, which adds and sends it back. A **ring** cuts the tensor into N pieces; every rank gives one piece to its right
# neighbour and takes one from its left, all at once. After N−1 hops each rank has the sum of one piece; N−1 hops more
# bring the sums round.

# %% ring-predict
ring_guess = gpulab.predict("Ring of 4 ranks, a tensor of 4 MB: how much does each rank send?", unit="MB")

# %% ring-write
# %%writefile ring.py
import torch
import torch.distributed as dist


def naive(x, send):
    rank, others = dist.get_rank(), range(1, dist.get_world_size())
    parts = [torch.empty_like(x) for _ in others]
    if rank:
        send(x, 0).wait()
        dist.recv(x, 0)
    else:
        for other, part in zip(others, parts):
            dist.recv(part, other)
            x += part
        for other in others:
            send(x, other).wait()

# %% ring-write-ring
# %%writefile -a ring.py


def ring(x, send):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pieces, inbox = x.chunk(ranks), torch.empty_like(x.chunk(ranks)[0])
    for hop in range(2 * (ranks - 1)):
        ours, next_one = pieces[(rank - hop) % ranks], pieces[(rank - hop - 1) % ranks]
        going = send(ours, (rank + 1) % ranks)
        dist.recv(inbox, (rank - 1) % ranks)
        going.wait()
        if hop < ranks - 1:
            next_one += inbox  # the first round adds up
        else:
            next_one.copy_(inbox)  # the second brings the sums

# %% ring-write-main
# %%writefile -a ring.py


dist.init_process_group("gloo")
for way in (naive, ring):
    sent = []

    def send(tensor, to):
        sent.append(tensor.nbytes)
        return dist.isend(tensor, to)

    x = torch.arange(1e6) % 100 + dist.get_rank()
    wanted = x.clone()
    dist.all_reduce(wanted)
    way(x, send)
    print(f"{way.__name__}: right {torch.equal(x, wanted)}, sent {sum(sent) / 1e6:g} MB")
dist.destroy_process_group()

# %% ring-run
run = launch("ring.py", ranks=4)
for rank in run.ranks[:2]:
    print(f"rank {rank.rank} · " + " · ".join(rank.output.splitlines()))
told = "2 (N − 1)/N of the tensor, never more than twice for any number of ranks."
ring_guess.compare(float(run.ranks[0].output.split()[-2]), because=told)

# %% ring-explain [markdown]
# In the naive way the links of rank 0 carry N−1 times the tensor each way while the others wait. The ring's price is
# 2(N−1) hops, each with its latency; so NCCL takes trees for small tensors on many ranks, and lets the switch add where
# it can.

# %% buckets-text [markdown]
# ## Buckets: sending while backward computes
#
# Gradients appear one by one, the last layer's first. DDP collects them in **buckets** (25 MiB, the first one smaller)
# and starts the all-reduce of a bucket as soon as it is full, while backward goes on. Two real ranks, each with a virtual
# A100 on PCIe 4.0, write what they do when; the two files become one. The second time rank 1 gets half as many samples again: a **straggler**.

# %% buckets-write
# %%writefile step.py
import sys
import torch
from torch import distributed as dist, nn
from torch.nn.parallel import DistributedDataParallel
import gpulab

with gpulab.VirtualGPU("A100-80", count=2, link="pcie4", compute=False):  # shapes only
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank := dist.get_rank())
    block = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
    model = nn.TransformerEncoder(block, 5, enable_nested_tensor=False).cuda()
    model = DistributedDataParallel(model, device_ids=[rank])
    batch = torch.randn(int(sys.argv[1 + rank]), 512, 1024, device="cuda")
    for _ in range(3):  # the file of the last step stays
        with gpulab.timing.trace(f"step{rank}.json"):
            model(batch).square().mean().backward()
            torch.cuda.synchronize()
    dist.destroy_process_group()

# %% buckets-run
def traced(*batches):
    """What ran on the GPU of each rank: (rank, lane, start and length in ms)."""
    launch("step.py", args=[str(n) for n in batches])
    file = gpulab.timing.merge_traces(["step0.json", "step1.json"], "step.json")
    events = json.loads(file.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    shown = [e for e in events if e.get("cat") in ("kernels", "ranks")]
    first = min(e["ts"] for e in shown)
    return [(names[e["pid"]][:6], e["cat"], (e["ts"] - first) / 1e3, e["dur"] / 1e3) for e in shown]


even, straggling = traced(2, 2), traced(2, 3)
for name, spans in (("even", even), ("straggler", straggling)):
    print(f"{name:<9} {max(start + length for *_, start, length in spans):4.1f} ms (virtual)")

# %% buckets-plot
import matplotlib.pyplot as plt

gpulab.style.use()
figure, both = plt.subplots(2, 1, figsize=(8, 4.4), sharex=True)
lanes = [("rank 0", "kernels"), ("rank 0", "ranks"), ("rank 1", "kernels"), ("rank 1", "ranks")]
for axes, spans, title in zip(both, (even, straggling), ("Even: most buckets hide", "Straggler: rank 0 waits in its all-reduces, rank 1 is late")):
    for row, lane in enumerate(lanes):
        bars = [(start, length) for *of, start, length in spans if tuple(of) == lane]
        axes.broken_barh(bars, (row - 0.4, 0.8), color="#E69F00" if row % 2 else "#0072B2")
    axes.set_yticks(range(4), ["0 computes", "0 all-reduce", "1 computes", "1 all-reduce"])
    axes.invert_yaxis()
    axes.set_title(title)
both[1].set_xlabel("ms (virtual, forward and backward of one step)")
gpulab.style.show(figure, alt="Lanes of two ranks over one step, twice. All-reduces of both ranks stand at the same times, "
    "most of them under backward's kernels, the last after it. With the straggler rank 0's kernels end early, and its "
    "all-reduces are long: they begin before rank 1's, which are short, and end with them.")

# %% buckets-explain [markdown]
# Blue is compute, orange the exchange. An all-reduce's kernel starts with its own rank and spins until the last one has
# come; all end together. Most of it lies under backward; only what comes after the last gradient is **exposed** and costs
# time. Below, rank 1 is late: *its* kernels are the short ones, and the step of both is as long as its own. In a real job
# the slowest of 64 ranks sets the pace: a hot GPU, a slow disk, a longer sentence.
#
# Buckets cost memory: each gradient is copied into its bucket and back. `gradient_as_bucket_view=True` makes `.grad` a
# view of the bucket, and the copies are gone.

# %% view-run
for view in (False, True):
    with gpulab.VirtualGPU("A100-80", ranks=8, compute=False):  # this process is one rank of eight; the others are imagined
        dist.init_process_group("nccl")
        model = DistributedDataParallel(SmallGPT().cuda(), gradient_as_bucket_view=view)
        weights = sum(p.nbytes for p in model.parameters()) / 2**20
        model(torch.randint(5000, (8, 256), device="cuda")).sum().backward()
        torch._C._cuda_clearCublasWorkspaces()  # up to PyTorch 2.14 they stay
        held = torch.cuda.memory_allocated() / 2**20
        print(f"gradient_as_bucket_view={view!s:<5}: weights {weights:.1f} MiB, allocated after backward {held:5.1f} MiB (virtual)")
        dist.destroy_process_group()

# %% links-text [markdown]
# ## Links: when two GPUs are slower than one
#
# What a link carries decides whether the exchange hides. Below, a GPT of 75 million parameters with 8 samples on each
# rank, under autocast, on two A100s: joined by NVLink; by PCIe 4.0; by PCIe where the GPUs may not reach each other (*no
# peer-to-peer*: each byte goes through host memory, as between consumer cards); and in two machines with an office
# network. How much of the work of one GPU without DDP do two do?

# %% links-predict
link_guess = gpulab.predict("Over 10 Gb/s Ethernet: by how much does the exchange lengthen the step?", unit="ms")

# %% links-run
def build(batch, **options):
    dist.init_process_group("nccl")
    model = DistributedDataParallel(SmallGPT(1024, 4, 12000).cuda(), **options)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(12000, (batch, 512), device="cuda")
    return lambda: train_step(torch.autocast("cuda", torch.bfloat16)(model), optimizer, tokens)


for name, batch, link in (
    ("NVLink, 1 sample on each", 1, {}),
    ("NVLink, 64 on each", 64, {}),
    ("NVLink", 8, {}),
    ("PCIe 4.0", 8, {"link": "pcie4"}),
    ("PCIe 4.0, no peer-to-peer", 8, {"link": "pcie4-host"}),
    ("10 Gb/s Ethernet", 8, {"nodes": 2, "adapters": "10G"}),
):
    plan = gpulab.plan(build, batch, gpu="A100-80", ranks=2, **link)
    worth = 2 * plan.alone_ms / plan.step_ms
    print(f"{name:<26} step {plan.step_ms:5.1f} ms, {plan.exposed_ms:5.1f} exposed: the work of {worth:.2f} (virtual)")
link_guess.compare(round(plan.exposed_ms), "virtual", because="75 million gradients of 4 bytes go at 1.25 GB/s.")

# %% links-explain [markdown]
# Even over NVLink two are not 2: DDP's copies into buckets take time. *Recorded* by Hugging Face on two TITAN RTX:
# GPT-2 took 101.9 s with DDP over NVLink, 131.4 s with `NCCL_P2P_DISABLE=1`, and 110.6 s with DataParallel, which had
# kept peer-to-peer.
#
# `nvidia-smi topo -m` says what your machine has. Recorded, a DGX A100 (NVIDIA/nccl#1505), most columns left out:
#
# ```
#         GPU0    GPU2    NIC0    NIC2    CPU Affinity     NUMA Affinity
# GPU0     X      NV12    PXB     SYS     48-63,176-191    3
# GPU2    NV12     X      SYS     PXB     16-31,144-159    1
# ```
#
# `NV12`: twelve NVLinks. Then by distance: `PIX`, `PXB` (PCIe switches), `PHB` (through the processor's PCIe root),
# `NODE`, `SYS` (across to the other processor). Two RTX 5090s show `PHB`, and `nvidia-smi topo -p2p rw` says `GNS`: GPU not
# supported, no peer-to-peer.
#
# The right columns are **NUMA**: memory and adapters belong to one processor. A process that feeds GPU 0 from the other
# processor's memory crosses the link between them with every batch. Bind it (`numactl --cpunodebind=3 --membind=3`; newer
# `torchrun` has `--numa-binding=node`), and give each rank its share of the cores.

# %% simulator-text [markdown]
# ### See it move
#
# The simulator opens on 8 GPUs without peer-to-peer: the ring is longer than backward. Try this:
#
# 1. Raise *Forward + backward* until the ring hides. That is what a larger batch on each GPU does.
# 2. Set the bucket to “one for all gradients”, then to 1 MiB. What does each cost?
# 3. Allow peer-to-peer again, and compare with DataParallel.

# %% simulator
gpulab.sim.allreduce(peer=False)

# %% data-text [markdown]
# ## Data: who gets which sample
#
# `DistributedSampler` gives each rank its part of the indices. The digits are 1797 samples.

# %% data-predict
samples_guess = gpulab.predict("In one epoch over 1797 digits, 4 ranks together draw how many samples?")

# %% data-run
from torch.utils.data import DistributedSampler

parts = [list(DistributedSampler(range(1797), num_replicas=4, rank=rank, shuffle=False)) for rank in range(4)]
for rank, part in enumerate(parts):
    print(f"rank {rank}: {len(part)} samples: {part[:3]} … {part[-2:]}")
samples_guess.compare(sum(len(part) for part in parts), because="It pads from the start: all ranks make as many steps.")
sampler = DistributedSampler(range(1797), num_replicas=4, rank=0)
first, second = list(sampler), list(sampler)
sampler.set_epoch(1)
print("without set_epoch the second epoch has the first one's order:", first == second, "· with it:", first == list(sampler))

# %% data-explain [markdown]
# It does not cut the data into equal chunks: it deals them out like cards, every fourth to the same rank. In training
# nobody notices the padding. In an **evaluation** it is wrong: deal without it, and add up sums and counts, not means:
#
# ```python
# part = Subset(data, range(rank, len(data), ranks))    # no sample twice, none missing
# found = torch.tensor([loss_sum, correct, len(part)])  # on each rank
# dist.all_reduce(found)                                # then divide, once
# ```
#
# Use the plain module there (`model.module`, in `eval()`): ranks may have unequal numbers of batches.

# %% deal-turn-text [markdown]
# **Your turn** · 3 minutes. Deal by hand what `DistributedSampler(range(length), ranks, rank, shuffle=False)` deals. The
# function below cuts chunks, and leaves some samples out.

# %% deal-turn tags=["your-turn"]
def indices_of(rank, ranks, length):
    """The indices that this rank gets, a list as long as every other rank's; length is at least ranks."""
    # TODO: every ranks-th index, and none left out
    ### BEGIN SOLUTION
    padded = list(range(length))
    padded += padded[: -length % ranks]
    return padded[rank::ranks]
    ### INSTEAD OF
    # each = length // ranks
    # return list(range(rank * each, (rank + 1) * each))
    ### END SOLUTION


gpulab.turn.dealt_indices(indices_of)

# %% batch-text [markdown]
# - **The effective batch** is `batch_size` × accumulation × ranks, and the learning rate goes with it: as in lesson 08, in
#   proportion for SGD with warm-up. The schedule counts updates, of which an epoch has N times fewer.
# - **Uneven inputs**: where one rank has more batches, the others are gone when it calls for the next all-reduce. Sampler
#   and `drop_last` avoid it; else `with model.join():` lets ranks that are done answer for the rest (*Common mistakes*).
# - **BatchNorm** normalises with *its rank's* samples, and rank 0's running statistics are sent to all. With few samples
#   a rank, `nn.SyncBatchNorm`, which sends more.
# - **Seeds**: the same seed on every rank draws the same dropout masks and augmentations on all. Seed with the rank
#   *after* the model is built; DDP has equal weights anyway. The sampler's seed stays common.

# %% across-write
# %%writefile across.py
import os
import torch
import torch.distributed as dist
from torch import nn
import gpulab

gpulab.setup()
torch.cuda.set_device(device := torch.device("cuda", int(os.environ["LOCAL_RANK"])))
dist.init_process_group("nccl")
for name, seed in (("common", 0), ("rank's", dist.get_rank())):
    torch.manual_seed(seed)
    masks = [torch.empty(1000, device=device) for _ in range(2)]
    dist.all_gather(masks, nn.functional.dropout(torch.ones(1000, device=device)))
    print(f"{name} seed: the same mask on both ranks: {torch.equal(*masks)}")
x = torch.linspace(0, 1, 64, device=device)[:, None] + dist.get_rank()  # rank 1 has larger numbers
for norm in (nn.BatchNorm1d(1), nn.SyncBatchNorm(1)):
    print(f"{type(norm).__name__}: rank 0's mean afterwards is {norm.to(device)(x).mean().item():z.2f}")
dist.destroy_process_group()

# %% across-run
print("\n".join(launch("across.py").ranks[0].output.splitlines()[-4:]))

# %% launch-text [markdown]
# ## Launching
#
# | you write | what it does |
# |---|---|
# | `torchrun --standalone --nproc-per-node=8 train.py` | 8 ranks on this machine, at a free port |
# | `torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=host1:29400 train.py` | the same line on both machines; they meet (*rendezvous*) at `host1` |
# | `--log-dir=logs --redirects=3` | a file for what each rank prints |
#
# `torchrun` sets `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`, and restarts or ends all when one
# fails. It sets `OMP_NUM_THREADS=1`, so that 8 ranks do not start 8 × 64 threads: raise it to cores ÷ ranks if the host
# computes. Here it is, for real:

# %% launch-write
# %%writefile hello.py
import os

names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "OMP_NUM_THREADS")
print(" · ".join(f"{name}={os.environ[name]}" for name in names))

# %% launch-run
torchrun = [sys.executable, "-m", "torch.distributed.run"]  # the command `torchrun`, whatever the PATH
options = ["--standalone", "--nproc-per-node=2", "--log-dir=logs", "--redirects=3"]
plain = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
subprocess.run([*torchrun, *options, "hello.py"], env=plain, capture_output=True, check=True)
for log in sorted(pathlib.Path("logs").rglob("stdout.log")):
    print(pathlib.Path(*log.parts[-3:]), "|", log.read_text().strip())

# %% spawn-text [markdown]
# The other launcher is `torch.multiprocessing.spawn`, in the script itself. One of the two, not both: a tutorial that
# you may meet prints a script with `mp.spawn`, to be started with `torchrun`. Run it and see.

# %% spawn-write
# %%writefile both.py
import os
import torch.distributed as dist
import torch.multiprocessing as mp


def main(rank, ranks):
    print(f"torchrun's rank {os.environ['RANK']} has spawned a rank {rank} of {ranks}", flush=True)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    dist.barrier()


if __name__ == "__main__":
    mp.spawn(main, args=(2,), nprocs=2)

# %% spawn-run tags=["host-dependent"]
try:
    run, ended = launch("both.py", timeout=7), "it finished"
except (gpulab.distributed.TimeLimit, gpulab.distributed.RankFailed) as error:
    run, ended = error.run, type(error).__name__
print(*sorted(line for rank in run.ranks for line in rank.output.splitlines() if line.startswith("torchrun's")), sep="\n")
print("how it ended this time:", ended)

# %% spawn-explain [markdown]
# Four processes, and two of them claim to be rank 0. Who meets whom is chance: sometimes two pairs find each other and
# train as if alone, on the same data; sometimes one waits for ever, or fails (`RankFailed`). With `torchrun`,
# the script takes its rank from the environment and spawns nothing.
#
# **Rank-0 work** is printing, logging, the final save; a download is `LOCAL_RANK` 0's, on each machine. *Not* rank-0 work: anything with a collective in it (a
# metric that reduces, `model(x)` through DDP, saving a sharded model), since the others do not join it. Where others need
# its result, `dist.barrier()` follows.
#
# **Accelerate** (Hugging Face) writes this for you: `accelerator.prepare(model, optimizer, loader)`,
# `accelerator.backward(loss)`, `accelerator.gather_for_metrics(…)`, which drops the padding. Underneath is DDP, with the
# same ranks and hangs. Mind two things: `prepare` shards the loader itself, and steps a prepared schedule N times an
# update.

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **A rank dies.** The system kills it, out of memory. What do you see, and what of it is the cause?

# %% dies-write
# %%writefile dies.py
import os
import signal
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(5):
    if dist.get_rank() == 1 and step == 2:
        os.kill(os.getpid(), signal.SIGKILL)  # as the out-of-memory killer does
    dist.all_reduce(torch.ones(1000))

# %% dies-run tags=["raises-exception"]
launch("dies.py")

# %% hangs-text [markdown]
# With `torchrun` look for the *first* rank that failed; the others only lost their connection.
#
# **Ranks that disagree.** Rank 0 alone validates, and a metric in it reduces. Nothing fails: each waits for the other. Two
# tools tell where. Stacks of all ranks (`run` collects them; on a cluster `py-spy dump --pid`), and the **flight
# recorder**, which keeps the last collectives of each rank. It is on with `TORCH_FR_BUFFER_SIZE=200`; with NCCL and
# `TORCH_NCCL_DUMP_ON_TIMEOUT=1` the watchdog writes it to a file when a collective times out. gloo has no watchdog, so
# here each rank prints it by a timer.

# %% hangs-write
# %%writefile hangs.py
import pickle
import threading
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace  # private; see the text


def record():
    for entry in pickle.loads(_dump_fr_trace())["entries"][-2:]:
        print(f"collective {entry['collective_seq_id']}", entry["profiling_name"], "done" if entry["retired"] else "WAITS", flush=True)


dist.init_process_group("gloo")
threading.Timer(1.5, record).start()
for step in range(2):
    dist.all_reduce(torch.ones(1000))  # the gradients
    if dist.get_rank() == 0 and step == 1:
        dist.all_reduce(torch.ones(1000))  # a metric, in the validation
    dist.broadcast(torch.ones(1000), 0)  # a learning rate

# %% hangs-run tags=["raises-exception", "host-dependent"]
launch("hangs.py", timeout=4)

# %% hangs-explain [markdown]
# Number 4 is an all-reduce on rank 0 and a broadcast on rank 1: there they parted. The stacks name both lines.
# `torchfrtrace` compares the dumps of hundreds of ranks. Do not count on a hang: where shapes happen to fit, two
# different collectives meet, and the numbers are wrong without a word.

# %% parted-turn-text [markdown]
# **Your turn** · 4 minutes. Five jobs of four ranks, and the last collective in each rank's dump. The rank that waits is
# mostly not the one that is wrong: **which rank has parted from the others, and at which number?** Ranks part at the first
# number that one of them calls differently from the others, or that some wait in and another has not called. A rank
# that is only behind has not parted: the source of a broadcast has sent, and is done before the others come.
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
    # TODO: (rank, number) in place of each "?", or None where nobody has parted
    ### BEGIN SOLUTION
    return {"a": (2, 7), "b": (1, 9), "c": (3, 4), "d": None, "e": (2, 3)}
    ### INSTEAD OF
    # return {"a": "?", "b": "?", "c": "?", "d": "?", "e": "?"}
    ### END SOLUTION


gpulab.turn.odd_ranks(odd_ranks)

# %% loud-text [markdown]
# Three mistakes that are loud, and a global rank taken for a device on the second machine of two:

# %% loud-write
# %%writefile loud.py
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.used(x)

# %% loud-write-main
# %%writefile -a loud.py


mistake = sys.argv[1]
if mistake == "port":  # a number in the script
    dist.TCPStore("127.0.0.1", int(sys.argv[2]), is_master=True)
dist.init_process_group("gloo")
model = DistributedDataParallel(Heads() if mistake == "unused" else nn.Linear(8, 8))
with model.join(enable=mistake == "joined"):
    for _ in range(2 + (mistake in ("uneven", "joined")) * dist.get_rank()):  # rank 1 has one batch more
        model(torch.ones(2, 8)).sum().backward()

# %% loud-run
def told(mistake, *args):
    """The first words of what the rank that failed first says."""
    try:
        launch("loud.py", args=[mistake, *args])
    except gpulab.distributed.RankFailed as error:
        return error.rank.exception


with socket.create_server(("127.0.0.1", 0)) as taken:
    print("port   ·", told("port", str(taken.getsockname()[1])).rpartition("name: ")[2])
print("unused ·", told("unused")[:89], "…")
print("uneven ·", told("uneven").partition("] ")[2][:25], "… · with join():", told("joined") or "no error")
with gpulab.VirtualGPU("A100-80", ranks=16, rank=9):
    try:
        torch.cuda.set_device(9)
    except RuntimeError as error:
        print("device ·", str(error).splitlines()[0])

# %% loud-explain [markdown]
# | message | cause | repair |
# |---|---|---|
# | `EADDRINUSE` | a fixed port, and another job has it (NCCL says the same: ranks meet before it starts) | leave the port to `torchrun` |
# | `Expected to have finished reduction …` | a parameter got no gradient | take it out, or `find_unused_parameters=True` |
# | `Connection closed by peer` | rank 0 was done (NCCL is silent until its timeout, 10 minutes) | equal numbers of batches, or `model.join()` |
# | `invalid device ordinal` | `cuda:{rank}` on the second machine | `LOCAL_RANK` |
#
# `find_unused_parameters=True` searches the graph in each step, sends one more all-reduce (what was used, anywhere), and keeps
# the buckets' first order: a repair and no default (PyTorch warns where it has found nothing unused). The silent mistakes
# are worse: the result is wrong, and nothing fails.

# %% silent-write
# %%writefile silent.py
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def same_on_all_ranks(numbers):
    total = torch.stack([n.double().sum() for n in numbers]).sum()
    low, high = total.clone(), total.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return bool(low == high)

# %% silent-write-model
# %%writefile -a silent.py


dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(nn.Linear(8, 1))
x = torch.full((3, 8), 1.0 + rank)
model.module(x).sum().backward()
print("gradients, through model.module: same", same_on_all_ranks([p.grad for p in model.parameters()]))
if rank == 0:
    torch.nn.init.ones_(model.module.weight)  # a checkpoint, loaded on rank 0 and after DDP
model(x).sum().backward()
print("weights, loaded on rank 0 alone: same", same_on_all_ranks([p.detach() for p in model.parameters()]))

# %% silent-write-loss
# %%writefile -a silent.py
losses = torch.ones(100) if rank == 0 else torch.full((20,), 7.0)  # 100 samples here, 20 there
mean = losses.mean()
dist.all_reduce(mean)
both = torch.stack([losses.sum(), torch.tensor(float(len(losses)))])
dist.all_reduce(both)
print(f"loss: mean of the ranks' means {mean / 2:.1f}, over all samples {both[0] / both[1]:.1f}")

# %% silent-write-save
# %%writefile -a silent.py
if rank == 0:
    torch.save(model.state_dict(), "model.pt")
dist.barrier()
if rank == 1:
    with open("model.pt", "r+b") as file:
        file.truncate(500)  # as while rank 1 is in the middle of saving to the same file
dist.barrier()
try:
    torch.load("model.pt")
    print("model.pt: readable")
except (OSError, RuntimeError):
    print("model.pt: damaged")

# %% silent-run
print(launch("silent.py").ranks[0].output)

# %% silent-explain [markdown]
# - **`model.module(x)`** goes past DDP: no exchange, each rank trains alone. So does a checkpoint that only rank 0 loads
#   after wrapping: DDP sends gradients, never the weights again. **A checksum**, compared over the ranks now and then,
#   finds both.
# - **A mean of means** weighs ranks, not samples.
# - **All ranks save** to one path: each cuts off the other's file. Save `if rank == 0:`, under a temporary name, then
#   rename.
#
# **Accumulating without `no_sync`** exchanges the gradients after each micro-batch, where once per window is enough.

# %% window-turn-text [markdown]
# **Your turn** · 3 minutes. Make it one exchange for the whole window.

# %% window-turn tags=["your-turn"]
import contextlib


def accumulate(model, window):
    """The gradient of the window's mean loss in .grad; model is in DDP, window a list of equal (x, y)."""
    # TODO: only the last micro-batch exchanges; contextlib.nullcontext() is a context that does nothing
    ### BEGIN SOLUTION
    for i, (x, y) in enumerate(window):
        last = i == len(window) - 1
        with contextlib.nullcontext() if last else model.no_sync():
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
# **Weak** scaling keeps the batch of each rank, so that the batch in all grows. **Strong** scaling keeps the batch in all
# and cuts it smaller. Measured here, on one and two processes of the CPU:

# %% scaling-write
# %%writefile speed.py
import sys
import time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)))
batch = torch.randn(int(sys.argv[1]), 256)
for step in range(24):
    if step == 4:  # warm
        dist.barrier()
        start = time.perf_counter()
    model.zero_grad()
    model(batch).square().mean().backward()
print(f"{20 * len(batch) * dist.get_world_size() / (time.perf_counter() - start):.0f}")

# %% scaling-measured tags=["host-dependent"]
alone, weak, strong = (
    int(launch("speed.py", ranks, args=[batch]).ranks[0].output) for ranks, batch in ((1, "1024"), (2, "1024"), (2, "512"))
)
print(f"weak, 1024 samples on each: {weak / alone:.2f} × one process (measured)")
print(f"strong, 1024 samples in all: {strong / alone:.2f} × one process (measured)")

# %% scaling-virtual-text [markdown]
# The same on 8 and 64 virtual A100s, the GPT from above:

# %% scaling-virtual
for ranks in (8, 64):
    weak, strong = (gpulab.plan(build, batch=n, gpu="A100-80", ranks=ranks) for n in (64, 64 // ranks))
    print(f"{ranks:2} ranks: weak, 64 on each: {ranks * weak.alone_ms / weak.step_ms:4.1f} × one GPU", end=" · ")
    print(f"strong, 64 in all: {weak.alone_ms / strong.step_ms:4.1f} × (virtual)")

# %% scaling-explain [markdown]
# Weak scaling is nearly linear while the exchange hides. Strong scaling is not: with one sample a rank the kernels
# are short, the host's launches and the exchange remain.
#
# The virtual number is too good. *Recorded* by NVIDIA for ResNet-50 on 8 GPUs: 7.7 times one GPU in fp32 and TF32, but
# 6.9 in mixed precision on V100s; ours says 7.9 and 7.4. The recorded runs also read and decode up to 16,600 images a
# second on one machine, and each step waits for its slowest rank. So measure yours: samples per second on 1, 2, 4, 8.

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “DDP scales linearly.” | Weak scaling comes near where the exchange hides: 7.7 and 6.9 of 8 recorded. Strong scaling does not. | *Scaling* |
# | “DDP is 2–3× faster than DP.” | No such number: it depends on model, batch and link. | next cell |
# | “DP communicates through CPU memory.” | Only where GPUs cannot reach each other. | *A question worth asking* |
# | “DP for beginners and prototypes.” | DDP, on one machine too: DP can be slower than one GPU. | *A question worth asking* |
# | “The batch must be a multiple of the number of GPUs.” | Not required; DP may leave a GPU idle, DDP has a batch for each rank. | next cell |
# | “`DistributedSampler` gives each rank an equal, non-overlapping chunk.” | Every Nth sample, padded with repeated ones. | *Data* |
# | “Every backward exchanges gradients, by IPC.” | But under `no_sync`; in buckets; IPC, NVLink or a network, as NCCL finds. | *Buckets*, *Common mistakes* |
# | “Start it with `spawn`, or with `torchrun`; the device is `cuda:{rank}`.” | One of the two; `LOCAL_RANK`. | *Launching*, *Common mistakes* |

# %% web-run tags=["host-dependent"]
def ddp_step_on(batch):
    """ms of a step of two ranks with DDP; batch is that of both."""
    with gpulab.VirtualGPU("A100-80", ranks=2, compute=False):
        dist.init_process_group("nccl")
        model = DistributedDataParallel(SmallGPT().cuda())
        optimizer = torch.optim.AdamW(model.parameters())
        tokens = torch.randint(5000, (batch // 2, 256), device="cuda")
        took = gpulab.timing.measure(lambda: train_step(model, optimizer, tokens), repeat=3, warm_up=2)
        dist.destroy_process_group()
        return took.median_ms


for batch in (8, 64):
    print(f"batch {batch:2} on two GPUs: DataParallel {step_on(2, batch)[0]:2.0f} ms, DDP {ddp_step_on(batch):2.0f} ms (virtual)")
print("7 samples on 2 GPUs:", [len(part) for part in torch.arange(7).chunk(2)], end=" · ")
print("5 samples on 4 GPUs:", [len(part) for part in torch.arange(5).chunk(4)])

# %% quiz-text [markdown]
# ## Quick check
#
# Choose with the arrow keys, answer with Tab and Enter. Every option has its reason.

# %% quiz
gpulab.quiz(12)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. DDP: one process for each GPU, equal weights, different data, averaged gradients: the same result to rounding.
# 2. A ring all-reduce sends 2(N−1)/N of the gradients from each rank. What hides behind backward costs little; the link decides.
# 3. The sampler pads and needs `set_epoch`; an evaluation deals without padding and adds up sums and counts.
# 4. Every rank makes the same collectives in the same order. A rank that does not is a hang, or worse, a wrong number.
# 5. Look at all ranks: stacks, flight recorder, a checksum of the weights.
#
# **For the checklist:** `torchrun`, and no `spawn` · `LOCAL_RANK`, set before the group · `set_epoch` · no collective in
# rank-0 work · one rank saves · `no_sync` when accumulating · `gradient_as_bucket_view=True`.

# %% next [markdown]
# ## What next
#
# DDP holds everything on every GPU. Lesson 13 shards what does not fit. Then [the map of the
# course](00_start_here.ipynb).
#
# ## References
#
# - PyTorch documentation: `DistributedDataParallel`, *Distributed Data Parallel* (notes), `torchrun (Elastic Launch)`,
#   `torch.utils.data.distributed.DistributedSampler`, *Flight Recorder for Debugging Stuck Jobs*.
# - Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, arXiv 2006.15704 (buckets).
#   Patarasuk and Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*, 2009 (ring).
# - Hugging Face, *Efficient Training on Multiple GPUs* (DP and DDP on two TITAN RTX); *Accelerate*, documentation.
# - NVIDIA, DeepLearningExamples, ResNet-50 for PyTorch (scaling). NVIDIA/nccl#1505 and noonghunna/club-3090#1229
#   (`nvidia-smi topo`). Goyal et al., arXiv 1706.02677 (learning rate).

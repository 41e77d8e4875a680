# %% title [markdown]
# # 13 · What does not fit on one GPU
#
# **Promise:** you can say how many bytes of a model lie on each of N GPUs, shard it so that it fits, and know what that
# sends.
#
# After this lesson you can **compute** the bytes on each rank of DDP, ZeRO and FSDP · **shard** a model with
# `fully_shard`, and fill it with weights · **save** it on two ranks and load it on three · **plan** a 70B · **choose**
# between data, tensor and pipeline parallelism.
#
# | time | before this | runs on |
# |---|---|---|
# | 55 minutes, and 75 for the exercises | `04_memory`, `06_less_memory`, `12_many_gpus` | any machine |

# %% question-text [markdown]
# ## A question worth asking
#
# Take a GPT with 6.7 billion parameters, trained with AdamW in fp32. Each parameter needs four numbers of 4 bytes: its
# weight, its gradient, and two averages of AdamW. Reserve all these on one virtual H100:

# %% question-alone
import gpulab
import torch

gpu = gpulab.setup()
with gpulab.VirtualGPU("H100", compute=False):
    try:
        four = [torch.empty(6_700_000_000, device="cuda") for _ in range(4)]
    except torch.OutOfMemoryError as error:
        print(str(error).partition(" If reserved")[0])

# %% question-eight [markdown]
# A machine with eight H100s has 633 GiB. Does the model train there, with the DDP of lesson 12?

# %% question-predict
copies_guess = gpulab.predict("Weights, gradients, averages on each GPU under DDP?", unit="GiB")

# %% imports
import functools
import math

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

# %% model
class SmallGPT(nn.Module):  # of lesson 12, good for bytes and times: its target is its input
    def __init__(self, width, depth, words=32000):
        super().__init__()
        block = nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, batch_first=True)
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))

# %% question-ways
SIZES = {"0.7B": (2048, 12), "7B": (4096, 32), "13B": (5120, 40), "70B": (8192, 86)}


def ddp(model):
    return DistributedDataParallel(model.to_empty(device="cuda"), gradient_as_bucket_view=True)


def by_block(model, **options):
    for block in model.blocks.layers:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model.to_empty(device="cuda")

# %% question-build
def build(batch, wrap, size, length=512, optimizer=torch.optim.AdamW):
    dist.init_process_group("nccl")
    with torch.device("meta"):  # shapes without memory
        model = SmallGPT(*SIZES[size])
    model = wrap(model)  # and on the GPU; a real script would set the weights now
    parameters = list(model.parameters())  # grouped: DTensor prepares small fused updates faster
    groups = [{"params": parameters[i : i + 12]} for i in range(0, len(parameters), 12)]
    stepper = optimizer(groups, fused=True)
    tokens = torch.randint(32000, (batch, length), device="cuda")

    def step():
        stepper.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        stepper.step()

    return step

# %% question-run
for wrap in (ddp, by_block):
    with gpulab.VirtualGPU("B200", ranks=8, compute=False):  # 178 GiB; seven ranks are imagined
        step = build(1, wrap, "7B")
        step()
        print(f"{wrap.__name__}: peak {gpulab.memory.peak(step).bytes / 2**30:.1f} GiB (virtual)")
copies_guess.compare(round(6.7e9 * 16 / 2**30), "computed", because="Each has a full copy.")

# %% question-answer [markdown]
# With DDP the ranks share the work, not the memory. **Sharding** cuts what they hold. Each rank keeps an eighth of every
# tensor, and gathers the rest while it is needed. The training is the same, and an H100 has some 60 GiB left for
# activations.

# %% bytes-text [markdown]
# ## Where the bytes go
#
# The ZeRO paper shards in three stages: the optimizer's state (1), gradients too (2), weights too (3). It counts 2
# bytes for a 16-bit weight, 2 for its gradient, and 12 for Adam with an fp32 copy of the weight. PyTorch's usual way
# has fp32 weights, 4 + 4 + 8, and casts them for the computation. Both make 16 bytes, but once sharded they differ.

# %% bytes-predict
stage_guess = gpulab.predict("7.5B, 64 ranks, 4 + 4 + 8, stage 1: how much on each?", unit="GB")

# %% bytes-table
paper, fp32 = 7.5 * (2 + 2 + 12 / 64), 7.5 * (4 + 4 + 8 / 64)
print(f"stage 1 on 64 ranks: 2 + 2 + 12 {paper:.1f} GB, 4 + 4 + 8 {fp32:.1f} GB")
stage_guess.compare(round(fp32, 1), "computed", because="8 of the 16 bytes are state, not 12.")

# %% bytes-explain [markdown]
# The first number is the paper's; the second saves two thirds as much. So when you read “ZeRO-2 needs …”, ask which
# bytes it counts. With fp32 weights, on one of 8 ranks:
#
# ![Bytes for each parameter on one of 8 ranks, weights, gradients, Adam's state: DDP 4, 4, 8; ZeRO-1 4, 4, 1; ZeRO-2 4,
# ½, 1; ZeRO-3 and FSDP ½, ½, 1.](../docs/pictures/zero_stages.svg)
#
# In PyTorch, stage 1 is `ZeroRedundancyOptimizer` from `torch.distributed.optim`. Stage 3 is `fully_shard` (**FSDP2**).
# We look at a smaller GPT after two steps:

# %% held-run
def held(wrap, optimizer=torch.optim.AdamW):  # bytes a parameter on one of 8 ranks
    with gpulab.VirtualGPU("H100", ranks=8, compute=False):
        step = build(1, wrap, "0.7B", optimizer=optimizer)
        step()
        step()
        return torch.cuda.memory_allocated() / 735e6


zero1 = functools.partial(ZeroRedundancyOptimizer, optimizer_class=torch.optim.AdamW)
print(f"DDP: 16 bytes a parameter computed, {held(ddp):.0f} held (virtual)")
print(f"ZeRO-1: 9 computed, {held(ddp, zero1):.0f} held")
print(f"FSDP: 2 computed, {held(by_block):.0f} held")

# %% held-explain [markdown]
# The formula holds. With ZeRO-1 it holds on average: `ZeroRedundancyOptimizer` deals out *whole* tensors, so some ranks
# have more and some less.
#
# What does sharding cost? An all-reduce is a reduce-scatter, which gives each rank its part of the sum, and an
# all-gather, which passes the parts to all (lesson 12). FSDP also reduce-scatters the gradients. But it gathers the
# weights: before forward, and again before backward.

# %% passes-predict
passes_guess = gpulab.predict("All in fp32: how many times what DDP sends does FSDP send?")

# %% passes-run
passes_guess.compare(3 / 2, "computed", because="Three passes over the model; DDP makes two.")

# %% passes-explain [markdown]
# (In FSDP the outermost unit stays gathered until backward, which saves a little.)
#
# - **ZeRO-1** in PyTorch makes three passes too: DDP's all-reduce, and then each rank broadcasts its new weights. (The
#   paper's makes two.)
# - **`reshard_after_forward=False`** keeps the gathered weights until backward: two passes, as with DDP. State and
#   gradients stay cut as in stage 3, but from forward to backward each rank has all the weights, as in stage 2.
# - **bf16** halves the gathers. In bytes a parameter, FSDP with gradients in fp32 sends 2 + 2 + 4, as much as DDP in fp32.
#   But DDP may send bf16, too (lesson 12), and then only half of that.
#
# Whether this takes time depends on how much is hidden.

# %% units-text [markdown]
# ## Gather, compute, let go
#
# Each call of `fully_shard` makes a **unit**. Its weights are gathered before its forward and let go after it; in
# backward this happens again, and then its gradients are reduce-scattered. So the units decide memory and time. Here
# is the 0.7B on one of eight A100s joined by PCIe: first as a single unit, then with a unit for each block. It
# computes in bf16.

# %% units-make
bf16 = MixedPrecisionPolicy(torch.bfloat16, torch.float32)  # compute in bf16, reduce in fp32
blocks = functools.partial(by_block, mp_policy=bf16)


def one_unit(model):
    return fully_shard(model, mp_policy=bf16).to_empty(device="cuda")

# %% units-timeline
for wrap in (one_unit, blocks):
    with gpulab.VirtualGPU("A100-80", ranks=8, link="pcie4", compute=False):
        step = build(12, wrap, "0.7B")
        step()
        print(f"peak {gpulab.memory.peak(step).bytes / 2**30:.1f} GiB (virtual)")
        gpulab.timing.timeline(step).show()

# %% units-explain [markdown]
# Here stream 0 computes, 1 and 2 gather, 3 scatters gradients; NCCL's kernels count as kernels. With one unit, nothing
# computes until all weights are there. With a unit for each block, FSDP asks for the next block's weights while this
# one computes (**prefetch**), so two blocks are whole at a time. Now with a smaller batch and another link:

# %% units-run
made = functools.partial(build, wrap=blocks, size="0.7B")
for batch, link in ((12, "pcie4"), (4, "pcie4"), (12, "nvswitch-a100")):
    plan = gpulab.plan(made, batch, "A100-80", ranks=8, link=link)
    times = f"step {plan.step_ms:.0f} ms, exposed {plan.exposed_ms:.0f}"
    print(f"by block, batch {batch}, {link}: {times} (virtual)")

# %% units-result [markdown]
# **Exposed** is what no kernel hides. Over PCIe it is more than a third of the step, even by block. With a small batch
# it is most of the step. Over NVLink nearly everything hides. So “FSDP is slow” is a sentence about a link and a
# batch. (What hides still takes multiprocessors and bandwidth from the kernels. The virtual GPU leaves that out.)
#
# A unit for each *layer* would gather many small pieces, which wastes the link. So: **one `fully_shard` for each
# block, then one for the rest.**
#
# **Tied embeddings** (`head.weight = embed.weight`) must be in the same unit. As parts of the rest they are.
# `fully_shard([model.embed, model.head])` makes them a unit of their own.

# %% cut-turn-text [markdown]
# **Your turn** · 3 minutes. The function below makes the model one unit. Make each block a unit, and the rest another.

# %% cut-turn tags=["your-turn"]
def cut_by_block(model):  # its blocks are in model.blocks.layers
    ### BEGIN SOLUTION
    for block in model.blocks.layers:
        fully_shard(block)
    fully_shard(model)
    ### INSTEAD OF
    # fully_shard(model)
    ### END SOLUTION


gpulab.turn.a_unit_per_block(cut_by_block)

# %% practice-text [markdown]
# ## `fully_shard` in practice
#
# Here is a whole script on two real processes, with DDP, then with FSDP. `job.py` has what every script needs,
# `train.py` shards and trains.

# %% launch-setup
import os
import tempfile

folder = tempfile.TemporaryDirectory()
os.chdir(folder.name)
where = {} if torch.cuda.device_count() > 1 else {"GPULAB_GPU": "virtual:T4"}
launch = functools.partial(gpulab.distributed.run, warm=True, env=where)

# %% practice-write
# %%writefile job.py
import os
import torch
from torch import distributed as dist, nn
import gpulab

gpulab.setup()  # a virtual GPU where there is no real one; without gpulab leave it out
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
torch.manual_seed(0)  # equal weights on all ranks
blocks = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)]
model = nn.Sequential(nn.Flatten(), *blocks, nn.Linear(64, 10))
mine = slice(dist.get_rank(), 300, dist.get_world_size())
x, y = (tensor[mine].to(device) for tensor in gpulab.data.digits("train"))

# %% practice-write-train
# %%writefile train.py
import sys
from job import blocks, device, model, nn, torch, x, y
from torch.distributed.fsdp import fully_shard

if sys.argv[1] == "ddp":
    model = nn.parallel.DistributedDataParallel(model.to(device))
else:
    for block in blocks:
        fully_shard(block)  # to this rank's GPU, one block at a time
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())  # after fully_shard

# %% practice-write-step
# %%writefile -a train.py


def step():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()
    return norm.item() if sys.argv[1] == "ddp" else norm.full_tensor().item()


norms = [round(step(), 4) for _ in range(int(sys.argv[2]))]
print(f"norms {norms}, {torch.cuda.memory_allocated() / 2**20:.1f} MiB stay")

# %% practice-run
for way in ("ddp", "fsdp"):
    print(way, launch("train.py", args=[way, "3"]).ranks[0].output.splitlines()[-1])

# %% practice-explain [markdown]
# The norms agree: it is the same training. More than half of the bytes are gone, since DDP also holds its buckets.
#
# - **Parameters are DTensors.** `weight.shape` is that of the whole, `weight.to_local()` this rank's rows, and
#   `weight.full_tensor()` gathers them: a collective, so every rank calls it. The norm is a DTensor, too.
# - **The optimizer comes after `fully_shard`**, which puts new parameters in place of the old.
# - **Order**: compile or checkpoint the block, then `fully_shard` it, then the rest.
# - **Mixed precision** is a policy, not autocast, as `bf16` above.
# - **Accumulating without exchange**, `model.set_requires_gradient_sync(False)`, keeps *whole* gradients on every rank, 4
#   bytes a parameter. The gathers remain. So the test of lesson 12, a step in `no_sync`, does not show all of FSDP's
#   exposed time. A profile does: look for times in which only NCCL's kernels run.
# - **HSDP** shards within a machine and copies across machines:
#   `fully_shard(…, mesh=init_device_mesh("cuda", (machines, 8), mesh_dim_names=("copy", "shard")))`.
# - **FSDP1**, the class `FullyShardedDataParallel` with `auto_wrap_policy`, is what older code uses.

# %% fill-text [markdown]
# ### Weights for a model that no host can hold
#
# Above, every process built the whole model. A 70B would take 280 GB of host memory, on each of 8 ranks. So build under
# `torch.device("meta")`, shard, and call `to_empty(device="cuda")`. Now the weights hold whatever lay in memory. Set
# them:
#
# - **New weights**: `model.apply(init)`. A loop that calls `reset_parameters()` forgets some: `nn.MultiheadAttention`,
#   in our GPT too, has only `_reset_parameters`. So fill everything with NaN first. What is still NaN afterwards was
#   forgotten.
# - **Pretrained weights**: rank 0 reads the file, and `set_model_state_dict` from
#   `torch.distributed.checkpoint.state_dict` sends each rank its rows.
# - **Buffers with `persistent=False`**, such as the angles of rotary embeddings, are in no file. Compute them again.
#
# **Your turn** · 4 minutes. `model` is built on meta and sharded. `weights` is the whole state dict on rank 0, and
# `{}` on the others. Two things are wrong: `load_state_dict` fails on DTensors, and nothing sets `model.angles`, which
# is not persistent, to `model.compute_angles()`.

# %% fill-turn tags=["your-turn"]
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict


def fill(model, weights):
    model.to_empty(device="cuda")
    ### BEGIN SOLUTION
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, weights, options=options)
    model.angles.copy_(model.compute_angles())
    ### INSTEAD OF
    # model.load_state_dict(weights)
    ### END SOLUTION


gpulab.turn.filled_from_rank_0(fill)

# %% save-text [markdown]
# ## Saved on two, loaded on one and on three
#
# `torch.save(model.state_dict())` would write this rank's rows. `torch.distributed.checkpoint` (**DCP**) lets each
# rank write its part, and cuts anew when it loads:
#
# ![Twelve rows in the files of two ranks; one rank reads both files; of three ranks, rank 1 reads both.](../docs/pictures/resharded.svg)
#
# Here two ranks make two steps and save; then one rank loads and
# makes the third step, and so do three:

# %% save-write
# %%writefile keep.py
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from train import model, optimizer, step, sys

weights, state = get_state_dict(model, optimizer)  # plain names, DTensors
both = {"model": weights, "optimizer": state}
if sys.argv[3] == "save":
    dcp.save(both, checkpoint_id="kept")
else:
    dcp.load(both, checkpoint_id="kept")  # into what is there
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
print(f"norm of the third step {step():.4f}")

# %% save-run
for way, ranks, steps in (("save", 2, "2"), ("load", 1, "0"), ("load", 3, "0")):
    run = launch("keep.py", ranks, args=["fsdp", steps, way])
    print(f"{way} on {ranks}:", run.ranks[0].output.splitlines()[-1])

# %% save-explain [markdown]
# The folder has a file from each rank that saved, and `.metadata`, which says which rows are where. To write one file
# for everybody, `get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))`
# gathers tensor by tensor into rank 0's host memory. It is a collective: all ranks call it, rank 0 writes.

# %% plan-text [markdown]
# ## A 7B, a 13B and a 70B planned
#
# Ask before you rent: what does each rank hold, does it fit, what does a token cost? State is $16/N$ bytes a
# parameter. The rest is activations (with checkpointing, those of one block and the input of each), and what is whole
# for a moment: the weights of two units, the gradient of one, and the copy of it that is sent.

# %% plan-predict
fewest_guess = gpulab.predict("The state of the 70B on H100s, each full to four fifths: how many?")

# %% plan-table
for size, (width, depth) in SIZES.items():
    gb = 16 * (depth * 12 * width**2 + 2 * 32000 * width) / 1e9  # the rest is below 0.1 %
    fewest = {name: math.ceil(gb / (0.8 * room)) for name, room in (("H100", 80), ("B200", 180))}
    print(f"{size}: {gb:.0f} GB of state, GPUs: {fewest} (computed)")
fewest_guess.compare(fewest["H100"], "computed", because="1,116 GB, 64 on each GPU.")

# %% plan-run
from torch.utils.checkpoint import checkpoint


def recomputing(model):
    for block in model.blocks.layers:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return blocks(model)


for size, kind, room in (("13B", "A100-80", 79), ("70B", "B200", 178)):
    with gpulab.VirtualGPU(kind, ranks=8, compute=False):
        step = build(2, recomputing, size, length=2048)
        took = gpulab.timing.measure(step, repeat=1, warm_up=1).median_ms
        peak = torch.cuda.max_memory_allocated() / 2**30
    hours = 1e9 / (2 * 2048) * took / 1e3 / 3600  # for a billion tokens
    print(f"{size} on 8 × {kind}: {peak:.0f} of {room} GiB, {hours:.0f} GPU-hours (virtual)")

# %% plan-explain [markdown]
# The hours are those of *this recipe*: no data, no stragglers, no failures, and attention without a mask. *Recorded*, on
# A100s with 80 GB: LLaMA-1 13B took 135 GPU-hours a billion tokens, Llama 2 13B took 184. One is below the virtual value,
# one above.
#
# Which remedy helps depends on what fills the memory, and each has its price. This is the order of the
# [checklist](../docs/cheatsheet.md) where you have several GPUs anyway:
#
# 1. **Checkpointing** (lesson 06), for activations: about a third more arithmetic, on one GPU too.
# 2. **Sharding**, for the state: one more pass over the link, hidden where link and batch allow it.
# 3. **Offload** (`CPUOffloadPolicy`): state and update on the host. Each step moves the shard three times over PCIe: for a
#    70B on 8 ranks 105 GB, some 4 s (computed, 25 GB/s).
# 4. **LoRA** (lesson 06): another result, and often cheaper than offloading.
# 5. **More GPUs**: the state falls as $1/N$; a rank's batch, or the time, falls too.

# %% simulator-text [markdown]
# ### See it move
#
# The simulator opens on a 7B on 8 ranks under ZeRO-1, bf16 with an fp32 copy (2 + 2 + 12).
#
# 1. Go through the stages. Which saves most, and what does “a rank sends” say?
# 2. Change the precision to fp32. How much less does ZeRO-1 save now, and why?
# 3. Find the smallest number of ranks with which ZeRO-3 fits on 40 GB, and raise the sequence until it does not.

# %% simulator
gpulab.sim.memory_budget(model="llama_7b", ranks=8, parallel="zero1")

# %% tensor-text [markdown]
# ## Other cuts: tensor, sequence, pipeline
#
# FSDP cuts what is *kept*; each rank still computes whole layers. **Tensor parallelism** cuts the computation. Each
# rank has some of the hidden units of an MLP: their part of the first matrix, and of the second. Nothing is gathered;
# one all-reduce of the *activations* completes the layer.
#
# **Your turn** · 4 minutes. Compute one rank's part of `relu(x @ up.T) @ down.T`. The check adds up the parts of all ranks.

# %% tensor-turn tags=["your-turn"]
def mlp_part(x, up, down, rank, ranks):  # up is (hidden, width), down (width, hidden)
    ### BEGIN SOLUTION
    each = up.shape[0] // ranks
    mine = slice(rank * each, (rank + 1) * each)
    return torch.relu(x @ up[mine].T) @ down[:, mine].T
    ### INSTEAD OF
    # return torch.relu(x @ up.T) @ down.T
    ### END SOLUTION


gpulab.turn.summand_of_mlp(mlp_part)

# %% tensor-explain [markdown]
# If each rank had some of the *inputs* of the first matrix, the ReLU would need the sum already. PyTorch calls the
# first cut `ColwiseParallel`, although it takes rows: `nn.Linear` keeps its matrix transposed. Here are eight MLPs on
# eight H100s, under FSDP (one sample on each GPU) and cut this way (the same eight samples on all):

# %% tensor-make
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def mlps(samples, tensor):
    dist.init_process_group("nccl")
    mesh = dist.init_device_mesh("cuda", (8,))
    parts = [(nn.Linear(4096, 16384), nn.GELU(), nn.Linear(16384, 4096)) for _ in range(8)]
    model = nn.Sequential(*[nn.Sequential(*part) for part in parts]).to("cuda", torch.bfloat16)
    if tensor:
        parallelize_module(model, mesh, {"*.0": ColwiseParallel(), "*.2": RowwiseParallel()})
    else:
        for part in (*model, model):
            fully_shard(part)
    x = torch.randn(2048 * samples, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    return lambda: model(x).sum().backward()

# %% tensor-run
for name, tensor in (("FSDP", False), ("tensor", True)):
    plan = gpulab.plan(functools.partial(mlps, tensor=tensor), 8 if tensor else 1, "H100", ranks=8)
    sent = f"{plan.sent / 1e9:.1f} GB in collectives, {plan.communication_ms:4.1f} ms"
    print(f"{name:<6} {sent}, of which exposed {plan.exposed_ms:4.1f} (virtual, NVLink)")

# %% tensor-result [markdown]
# Here tensor parallelism has a third of the bytes in its collectives (an all-reduce moves each of them twice), and its
# link works half as long. Yet it waits longer: the next kernel needs the sum. More samples make it worse. A
# transformer block has four such sums a step (attention and MLP, forward and backward). So tensor parallelism stays
# within NVLink. **Sequence parallelism** splits each all-reduce into reduce-scatter and all-gather, the same bytes,
# and keeps norms and dropout cut along the sequence between them: fewer activations.
#
# **Pipeline parallelism** puts layers on different ranks. Only activations go from one to the next, which is little.
# But a rank waits until the first part of the batch arrives, and again for the last gradient: this is the **bubble**.
# With more parts, each is smaller and arrives sooner:
#
# ![Two ranks, four parts. Under GPipe all forwards come first, then all backwards. Under 1F1B each rank alternates. Both
# take equally long.](../docs/pictures/pipeline_schedules.svg)
#
# With $P$ ranks and $M$ parts a step takes $(M + P - 1)/M$ of the time without a bubble.

# %% pipeline-predict
bubble_guess = gpulab.predict("2 ranks, 8 parts: the bubble, in per cent of the work?", unit="%")

# %% pipeline-run
bubble_guess.compare(100 / 8, "computed", because="(P − 1)/M: one part's time of eight.")

# %% pipeline-explain [markdown]
# A real step is longer still: small parts compute less efficiently, and stages are seldom equally long. GPipe runs all
# forwards first, so it keeps the activations of all $M$ parts. **1F1B** begins the backward of a part as soon as it
# can: its bubble is the same, but rank 0 keeps the activations of only $P$ parts. In PyTorch: `PipelineStage`,
# `ScheduleGPipe` and `Schedule1F1B` of `torch.distributed.pipelining`.

# %% choose-text [markdown]
# ### Which one
#
# | | cuts | sends, for each block and step | needs | take it when |
# |---|---|---|---|---|
# | DDP | the batch | gradients, all-reduced, mostly hidden | a link that hides them | model, state and activations fit |
# | FSDP | the batch, and what is kept | weights twice, gradients once | NVLink, or a batch that hides it | the state does not fit: the first choice |
# | tensor | matrices | activations four times, not hidden | NVLink | a layer does not fit, or there are more GPUs than samples |
# | sequence | activations between the matrices | the same bytes as tensor | NVLink | with tensor |
# | pipeline | layers | activations once each way, small | many parts | several machines with a slow link |
#
# They combine: tensor within a machine, FSDP or pipeline across (a `DeviceMesh` with two dimensions). Expert and context
# parallelism cut experts and the sequence of attention; they are beyond this course.

# %% mistakes-text [markdown]
# ## Common mistakes
#
# The worst one raises no error, even on a single rank. The gradient here is 2 everywhere:

# %% mistakes-optimizer
with gpulab.VirtualGPU("T4", ranks=1):
    dist.init_process_group("nccl")
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    fully_shard(model)
    before = model.weight.full_tensor().clone()
    model(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
    print("change of the weights:", (model.weight.full_tensor() - before).tolist()[0])

# %% mistakes-explain [markdown]
# | mistake | what comes of it | repair |
# |---|---|---|
# | the optimizer made before `fully_shard` | nothing trains: it holds the old parameters, and keeps them in memory | `fully_shard` first |
# | a unit whose `forward` nobody calls, such as `attention.out_proj` | `aten.addmm.default got mixed torch.Tensor and DTensor`: the hook that gathers never ran | units are blocks that are called |
# | tied weights in two units | `Parameter 'head.weight' is shared with a parameter already managed by another FSDP group` | one unit for both |
# | `torch.save(model.state_dict())` on rank 0 | a file with a part of the rows | DCP, or the full state dict, on all ranks |
# | `get_rank()` or a collective before the process group | `Default process group has not been initialized` | `set_device`, then `init_process_group`, then the model |
# | `model.cuda()` before `fully_shard` | the whole model on each GPU: out of memory at the start | the meta device |
# | `full_tensor()`, clipping or a save on rank 0 alone | a hang (lesson 12) | all ranks call it, rank 0 prints |

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “FSDP is the open-source equivalent of ZeRO-3.” | The same idea; but DeepSpeed's ZeRO is open source too. | *Where the bytes go* |
# | “Wrap with FSDP and an auto-wrap policy.” | That is FSDP1. Today use `fully_shard`, block by block. | *`fully_shard` in practice* |
# | “Eight GPUs have eight times the memory.” | With DDP not one byte more for the model. | *A question worth asking* |
# | “ZeRO-1 is free: it sends no more than DDP.” | True of the paper's. PyTorch's sends half as much again, and deals whole tensors. | *Where the bytes go* |
# | “FSDP is slower, it communicates 50 % more.” | 50 % more bytes in one precision. What is exposed depends on link and batch. | *Gather, compute, let go* |
# | “Out of memory: use model parallelism, or a smaller model.” | First see what fills it: checkpoint activations, shard state; only then cut layers. | *A 7B, a 13B and a 70B planned* |
# | “Use FSDP when the model does not fit.” | Also when it fits, but its optimizer's state does not. | *A 7B, a 13B and a 70B planned* |

# %% quiz-text [markdown]
# ## Quick check

# %% quiz
gpulab.quiz(13)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. DDP shares work, sharding shares memory: 16 bytes a parameter become $16/N$.
# 2. The peak is the shard, up to four whole units (weights of two, a gradient and its copy), and activations. So make
#    a unit for each block, and one for the rest.
# 3. FSDP sends the weights twice and the gradients once. NVLink or a large batch hides most of it; PCIe with a small one
#    does not.
# 4. Shard, then make the optimizer. Build on the meta device, then set all weights and buffers. Save by DCP: any
#    number of ranks can load it.
# 5. Plan before renting: state by arithmetic, the peak by `gpulab.plan`.
#
# **For the checklist:** `fully_shard` per block, then the rest · meta device, then initialise · a precision policy in place of
# autocast · DCP for checkpoints · collectives on all ranks.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/13_sharding.ipynb), then [lesson 14](14_long_runs.ipynb): a job on 64 GPUs is interrupted before
# it is done. Or look at [the map of the course](00_start_here.ipynb).
#
# ## References
#
# - Rajbhandari et al., *ZeRO*, arXiv 1910.02054 (the table). Zhao et al., *PyTorch FSDP*, arXiv 2304.11277.
# - PyTorch documentation: `fully_shard`, *Distributed Checkpoint*, *Tensor Parallelism*, *Pipeline Parallelism*.
# - Shoeybi et al., *Megatron-LM*, arXiv 1909.08053 (tensor). Korthikanti et al., arXiv 2205.05198 (sequence). Huang et al.,
#   *GPipe*, arXiv 1811.06965; Narayanan et al., *PipeDream*, arXiv 1806.03377 (1F1B).
# - GPU-hours: Touvron et al., *LLaMA*, arXiv 2302.13971; *Llama 2*, arXiv 2307.09288.

# %% title [markdown]
# # 13 · What does not fit on one GPU
#
# **Promise:** you can say how many bytes of a model lie on each of N GPUs, cut it so that it fits, and know what the cut
# sends.
#
# After this lesson you can
#
# 1. **compute** the bytes per rank of DDP, of the three ZeRO stages and of FSDP, and see them;
# 2. **shard** a model with `fully_shard`, block by block, with the losses and norms of DDP;
# 3. **save** on two ranks and load on one or three;
# 4. **plan** a 7B, a 13B and a 70B: which GPUs, how many, at what cost;
# 5. **choose** between data, tensor, sequence and pipeline parallelism, and say what each sends.
#
# | time | before this | runs on |
# |---|---|---|
# | 60 minutes, and 75 for the exercises | `04_memory`, `06_less_memory`, `12_many_gpus` | any machine |

# %% setup-text [markdown]
# As in lesson 12, scripts run in real processes, each with a virtual GPU where there are not two real ones. Machines with
# 8 or 64 GPUs are virtual, their other ranks imagined: equal to the one that runs here.

# %% setup
import functools
import os
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import gpulab

gpu = gpulab.setup()

# %% setup-launch
folder = tempfile.TemporaryDirectory()
os.chdir(folder.name)
where = {} if torch.cuda.device_count() > 1 else {"GPULAB_GPU": "virtual:T4"}
launch = functools.partial(gpulab.distributed.run, warm=True, env=where)

# %% model
class SmallGPT(nn.Module):  # of lesson 12; not so small with these sizes
    def __init__(self, width=1024, depth=16, words=32000):
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


# %% sizes
SIZES = {"0.3B": (1536, 8), "7B": (4096, 32), "13B": (5120, 40), "70B": (8192, 86)}  # width and depth
bf16 = MixedPrecisionPolicy(torch.bfloat16, torch.float32)  # gather and compute in bf16, reduce in fp32

# %% question-text [markdown]
# ## A question worth asking
#
# A GPT with 6.7 billion parameters, trained with AdamW in fp32: lesson 04 counts 16 bytes for each, more than any
# H100 has. A machine with eight of them has 632 GiB. Does the model train there with the DDP of lesson 12?

# %% question-predict
copies_guess = gpulab.predict("Weights, gradients and optimizer state on each of the 8 GPUs under DDP:", unit="GiB")

# %% question-make
def made(way, size, **options):
    """A model on this rank's GPU, whole under DDP or sharded, and its optimizer."""
    with torch.device("meta"):  # shapes without memory: nothing is allocated before the cut
        model = SmallGPT(*SIZES[size])
    if way == "fsdp":
        for block in model.blocks.layers:
            fully_shard(block, **options)
        fully_shard(model, **options)
    model.to_empty(device="cuda")  # here a real script sets the weights; bytes do not ask for them
    if way != "fsdp":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if way == "zero1":
        return model, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW)
    return model, torch.optim.AdamW(model.parameters(), fused=True)

# %% question-run
for way in ("ddp", "fsdp"):
    with gpulab.VirtualGPU("H100", ranks=8, compute=False):
        dist.init_process_group("nccl")
        try:
            model, optimizer = made(way, "7B")
            for _ in range(2):
                train_step(model, optimizer, torch.randint(32000, (1, 512), device="cuda"))
            print(f"{way}: peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB (virtual)")
        except torch.OutOfMemoryError as error:
            print(f"{way}: {str(error).partition('. Of')[0]} (virtual)")
        dist.destroy_process_group()
told = "DDP keeps a full copy on each GPU: its ranks share the work, not the memory."
copies_guess.compare(round(6.7 * 16 * 1e9 / 2**30), "computed", because=told)

# %% question-answer [markdown]
# **Sharding** cuts what the ranks hold: each rank keeps an eighth of every tensor, and gathers the rest for the moment
# in which it is used. Nothing else has changed, and some 60 GiB are left for activations.

# %% bytes-text [markdown]
# ## Where the bytes go
#
# The paper that gave it a name, ZeRO, cuts in three stages: optimizer state (1), gradients too (2), weights too (3). It counts
# 2 bytes for a bf16 weight, 2 for its gradient, 12 for Adam with an fp32 copy of the weight. PyTorch's usual way has fp32
# weights, 4 + 4 + 8, and casts for the computation. Both are 16, and not the same thing once they are cut.

# %% bytes-predict
stage_guess = gpulab.predict("7.5 billion parameters on 64 ranks, ZeRO stage 1 with fp32 weights, 4 + 4 + 8:", unit="GB")

# %% bytes-table
def zero(stage, ranks, weights, gradients, state):
    """Bytes a parameter on each rank."""
    parts = zip((weights, gradients, state), (3, 2, 1))  # a part, and the stage that cuts it
    return sum(nbytes / (ranks if stage >= first else 1) for nbytes, first in parts)


for stage in range(4):
    paper, fp32 = (7.5 * zero(stage, 64, *parts) for parts in ((2, 2, 12), (4, 4, 8)))
    print(f"stage {stage}: 2 + 2 + 12 {paper:6.1f} GB, 4 + 4 + 8 {fp32:6.1f} GB")
told = "Stage 1 saves two thirds of what it saves the paper: less of the 16 bytes is state."
stage_guess.compare(round(7.5 * zero(1, 64, 4, 4, 8), 1), "computed", because=told)

# %% bytes-explain [markdown]
# The first column is the paper's, to the digit (120, 31.4, 16.6, 1.9). So ask of every “ZeRO-2 needs …” which precision
# it means; DeepSpeed's own estimator counts a third way, with the largest layer on top.
#
# In PyTorch, stage 1 is `ZeroRedundancyOptimizer`. Stages 2 and 3 are one function, `fully_shard` (**FSDP2**): gradients and
# state are always cut, and `reshard_after_forward=False` keeps the weights whole from forward to backward. Seen, on a
# smaller GPT with hardly any data:

# %% seen-run
def seen(way, ranks, **options):
    """Bytes a parameter on one rank, after a step and at its peak; and how often it sends all weights."""
    with gpulab.VirtualGPU("H100", ranks=ranks, compute=False) as one:
        dist.init_process_group("nccl")
        model, optimizer = made(way, "0.3B", **options)
        count, tokens = sum(p.numel() for p in model.parameters()), torch.randint(32000, (1, 16), device="cuda")
        for _ in range(2 if way == "fsdp" else 3):  # DDP arranges its buckets in the second
            torch.cuda.reset_peak_memory_stats()
            with one.timeline() as timeline:
                train_step(model, optimizer, tokens)
        spans = [s for s in timeline.spans if s.where == "ranks"]
        sent = sum(s.nbytes * (2 if "all_reduce" in s.name else 1) for s in spans) * (ranks - 1) / ranks
        dist.destroy_process_group()
        torch._C._cuda_clearCublasWorkspaces()  # up to PyTorch 2.14 they stay, and are no parameter's
        return torch.cuda.memory_allocated() / count, torch.cuda.max_memory_allocated() / count, sent / 4 / count

# %% seen-table
WAYS = {
    "DDP": ("ddp", {}, 0),
    "ZeRO-1": ("zero1", {}, 1),
    "FSDP2, weights kept": ("fsdp", {"reshard_after_forward": False}, 3),
    "FSDP2": ("fsdp", {}, 3),
    "FSDP2, bf16": ("fsdp", {"mp_policy": bf16}, 3),
}
print("bytes a parameter (virtual)    formula  after a step   peak  times the weights sent")
for ranks in (8, 64):
    for name, (way, options, stage) in WAYS.items():
        after, peak, sent = seen(way, ranks, **options)
        print(f"{ranks:2} ranks, {name:<20} {zero(stage, ranks, 4, 4, 8):9.2f} {after:13.2f} {peak:6.2f} {sent:8.1f}")

# %% seen-explain [markdown]
# After a step the formula holds. Where it does not, there is a reason:
#
# - **ZeRO-1 on 64 ranks** has more than it computes: `ZeroRedundancyOptimizer` deals out whole tensors, and this rank has the
#   largest.
# - **The peak** of FSDP is that of its largest unit, the part that is gathered at once: here embedding and head, a third of
#   this model. **Weights kept** means all of them, 4 bytes each, between forward and backward.
# - **What is sent.** DDP: an all-reduce, two passes. FSDP gathers the weights for forward and for backward and scatters the
#   gradients: up to three passes (the outermost unit stays, and saves one). Kept weights make it two. In bf16 the gathers are
#   half as large. PyTorch's ZeRO-1 is DDP's all-reduce and then a broadcast of the new weights; the paper's sends no more
#   than DDP.

# %% units-text [markdown]
# ## Gather, compute, let go
#
# Each call of `fully_shard` makes a **unit**: before its forward its weights are gathered, after it they are let go, in
# backward the same again, and its gradients are scattered. Units decide memory and time. Below, one step of one of eight A100s
# joined by PCIe, cut in three ways: as one unit; by block; and by block without **prefetch**, which asks for the next
# block's weights while this one computes.

# %% units-predict
unit_guess = gpulab.predict("The model as a single unit: its peak is how many times that of one unit per block?")

# %% units-make
def sharded(by_block, prefetch=True):
    model = SmallGPT(2048, 12).cuda()
    for block in model.blocks.layers if by_block else ():
        fully_shard(block, mp_policy=bf16)
        if not prefetch:
            block.set_modules_to_backward_prefetch([block])  # itself, and so nothing
    return fully_shard(model, mp_policy=bf16)


# %% units-run
def step_of(**cut):
    """What runs in one step of one rank, and its peak in GiB."""
    with gpulab.VirtualGPU("A100-80", ranks=8, link="pcie4", compute=False) as one:
        dist.init_process_group("nccl")
        model = sharded(**cut)
        optimizer, tokens = torch.optim.SGD(model.parameters()), torch.randint(32000, (12, 512), device="cuda")
        for _ in range(2):
            torch.cuda.reset_peak_memory_stats()
            with one.timeline() as timeline:
                train_step(model, optimizer, tokens)
                torch.cuda.synchronize()
        dist.destroy_process_group()
        spans = sorted((s for s in timeline.spans if s.where in ("kernels", "ranks")), key=lambda s: s.start)
        return spans, torch.cuda.max_memory_allocated() / 2**30

# %% units-measure
cuts = {
    "one unit": step_of(by_block=False),
    "a unit per block, no prefetch": step_of(by_block=True, prefetch=False),
    "a unit per block": step_of(by_block=True),
}

# %% units-plot
import matplotlib.pyplot as plt

gpulab.style.use()
figure, panels = plt.subplots(3, 1, figsize=(8, 4.6), sharex=True)
for axes, (name, (spans, peak)) in zip(panels, cuts.items()):
    for row, (lane, color) in enumerate((("kernels", "#0072B2"), ("ranks", "#E69F00"))):
        bars = [(1e3 * (s.start - spans[0].start), 1e3 * s.seconds) for s in spans if s.where == lane]
        axes.broken_barh(bars, (row - 0.4, 0.8), color=color)
    axes.set_yticks((0, 1), ("computes", "gathers, scatters"))
    took = 1e3 * (max(s.start + s.seconds for s in spans) - spans[0].start)
    axes.set_title(f"{name}: {took:.0f} ms, peak {peak:.1f} GiB")
panels[-1].set_xlabel("ms (virtual, one step of one rank)")
gpulab.style.show(figure, alt="One step, three cuts. One unit: the first gather stands alone before any kernel. By block, "
    "gathers lie under kernels; without prefetch, backward's kernels have a gap at every block.")
told = "As one unit everything is gathered before the first kernel runs; by block, two blocks are whole."
unit_guess.compare(round(cuts["one unit"][1] / cuts["a unit per block"][1], 1), "virtual", because=told)

# %% units-explain [markdown]
# One unit is FSDP in name. By block, gathers hide under kernels, if somebody asks for them in time: without prefetch
# the step is as long as before. A unit per layer would gather often and little, which wastes the link. So: **one
# `fully_shard` for each block, then one for the rest.** The first gather and the last scatter hide behind nothing; a
# larger batch makes them a smaller part. (With 4 samples in place of 12 the kernels are too short to hide the link, and
# all three cuts take about as long.)

# %% cut-turn-text [markdown]
# **Your turn** · 3 minutes. The function below cuts the model as one unit. Make it a unit for each block, and the rest.

# %% cut-turn tags=["your-turn"]
def cut_by_block(model):
    """Shard model, a SmallGPT with its layers in model.blocks.layers, so that one block at a time is gathered."""
    # TODO: the blocks first, each a unit; what is left, embedding and head, is the last
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
# One script, on two real ranks, one way after the other: DDP, ZeRO-1, FSDP with its weights kept, FSDP; gradients clipped
# by their norm; and where its arguments ask for it, checkpointing, `torch.compile` and accumulation.

# %% practice-write
# %%writefile train.py
import os
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
import gpulab

gpulab.setup()
ways, extras = sys.argv[1].split(","), sys.argv[2:]
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
x, y = (tensor.to(device) for tensor in gpulab.data.digits("train"))

# %% practice-write-model
# %%writefile -a train.py


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x):
        if "checkpoint" in extras:
            return x + checkpoint(self.inner, x, use_reentrant=False)
        return x + self.inner(x)

# %% practice-write-cut
# %%writefile -a train.py


def made(way):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), *[Block() for _ in range(4)], nn.Linear(64, 10)).to(device)
    if way in ("ddp", "zero1"):
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        options = {"reshard_after_forward": False} if way == "kept" else {}
        for block in model[1:-1]:
            if "compile" in extras:
                block.compile(backend="eager")  # finds graph breaks; without backend= it makes kernels
            fully_shard(block, **options)
        fully_shard(model, **options)
    if way == "zero1":
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    return model, torch.optim.AdamW(model.parameters())  # after the cut

# %% practice-write-step
# %%writefile -a train.py


def train_step(model, optimizer, number):
    total = torch.zeros((), device=device)
    for part in range(parts):
        mine = slice(300 * number + rank + ranks * part, 300 * (number + 1), ranks * parts)
        if parts > 1:
            model.set_requires_gradient_sync(part == parts - 1)  # FSDP's no_sync
        loss = nn.functional.cross_entropy(model(x[mine]), y[mine]) / parts
        loss.backward()
        total += loss.detach()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(total, dist.ReduceOp.AVG)
    return total, norm.full_tensor() if isinstance(norm, DTensor) else norm

# %% practice-write-loop
# %%writefile -a train.py


rank, ranks, parts = dist.get_rank(), dist.get_world_size(), 2 if "accumulate" in extras else 1
for way in ways:
    before = torch.cuda.memory_allocated()
    model, optimizer = made(way)
    for number in range(3):
        torch.cuda.reset_peak_memory_stats()
        loss, norm = train_step(model, optimizer, number)
        torch._C._cuda_clearCublasWorkspaces()  # as above: the first way's would stay
        stay, peak = torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before
        print("told", way, loss.item(), norm.item(), stay, peak)
    del model, optimizer, loss, norm

# %% practice-run
def told(*args):
    """For each way on rank 0: losses and norms of three steps; MiB that stay after the last, and at its peak."""
    lines = [line.split()[1:] for line in launch("train.py", args=args).ranks[0].output.splitlines() if line.startswith("told")]
    ways = {way: [[float(n) for n in numbers] for name, *numbers in lines if name == way] for way, *_ in lines}
    return {way: (torch.tensor(steps)[:, :2], *(n / 2**20 for n in steps[-1][2:])) for way, steps in ways.items()}


EXTRAS = ["checkpoint", "compile", "accumulate"]
found = told("ddp,zero1,kept,fsdp") | {f"fsdp, {' '.join(EXTRAS)}": told("fsdp", *EXTRAS)["fsdp"]}
print(f"MiB on rank 0 of two real ranks ({'virtual' if where else 'measured'})    stay   peak   losses and norms of DDP")
for way, (numbers, stay, peak) in found.items():
    print(f"{way:<45} {stay:6.2f} {peak:6.2f}   {torch.allclose(numbers, found['ddp'][0], rtol=1e-4)}")

# %% practice-explain [markdown]
# - **Parameters are DTensors**: `weight.shape` is that of the whole, `weight.to_local()` this rank's rows, and
#   `weight.full_tensor()` gathers all of them: a collective. The norm that clipping returns is a DTensor too, of all ranks.
# - **On real ranks as on imagined ones**: of DDP's 16 bytes a parameter ZeRO-1 has 12, half of Adam's state. FSDP has half of
#   weights and state, 6, and gradients only until `zero_grad`; DDP holds its buckets. Kept weights show in the peak alone.
# - **The optimizer comes after the cut**, since `fully_shard` puts new parameters in place of the old.
# - **Order**: compile or checkpoint the block, then `fully_shard` it, then the rest.
# - **Mixed precision** is a policy, not autocast: `MixedPrecisionPolicy(param_dtype=torch.bfloat16,
#   reduce_dtype=torch.float32)` gathers and computes in bf16, sums and updates in fp32.
# - **Accumulating without exchange** (`set_requires_gradient_sync(False)`) keeps the gradients *whole* on every rank, 4 bytes
#   a parameter. Where that does not fit, exchange each time.

# %% practice-more [markdown]
# - **Meta device**: build under `torch.device("meta")`, shard, `to_empty(device="cuda")`, then *initialise*, by
#   `reset_parameters()` of each module or from a checkpoint. Each rank then draws its own part; the numbers are others than those of
#   a model that was made whole.
# - **FSDP1**, the class `FullyShardedDataParallel` with `auto_wrap_policy`, is what older code uses. It flattens a unit's
#   parameters into one; `fully_shard` cuts each by rows.

# %% save-text [markdown]
# ## Saved on two, loaded on one and on three
#
# `torch.save(model.state_dict())` would write this rank's rows. `torch.distributed.checkpoint` (DCP) lets each rank write its
# part, side by side, and cuts anew when it loads.

# %% save-write
# %%writefile keep.py
import os
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
import gpulab

gpulab.setup()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
x, y = (tensor[:300].to(device) for tensor in gpulab.data.digits("train"))

# %% save-write-keep
# %%writefile -a keep.py
model = fully_shard(nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    if step == 2:  # the state as plain names and DTensors
        weights, state = get_state_dict(model, optimizer)
        if sys.argv[1] == "save":
            dcp.save({"model": weights, "optimizer": state}, checkpoint_id="kept")
        else:
            dcp.load({"model": weights, "optimizer": state}, checkpoint_id="kept")  # into what is there
            set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())

# %% save-run
for way, ranks in (("save", 2), ("load", 1), ("load", 3)):
    loss = float(launch("keep.py", ranks, args=[way]).ranks[0].output.split()[-1])
    print(f"{way} on {ranks}: loss two steps later {loss:.4f}")
print(sorted(os.listdir("kept")))

# %% save-explain [markdown]
# The same loss, on any number of ranks: the file of metadata says which rows lie where. For a single file for everybody,
# `get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))` gathers tensor by tensor
# into rank 0's host memory. It is a collective: all ranks call it, rank 0 writes.

# %% plan-text [markdown]
# ## A 7B, a 13B and a 70B planned
#
# Before anything is rented: what does each rank hold, does it fit, what does a token cost? State is $16/N$ bytes a
# parameter; what remains is activations, one block's worth and an input for each block with checkpointing, and what is whole
# for a moment: the weights of two units, the gradient of one, and the copy of it that is sent.

# %% plan-predict
cost_guess = gpulab.predict("GPU-hours for a billion tokens: a 70B on 8 B200s costs how many times a 7B on 8 H100s?")

# %% plan-make
from torch.utils.checkpoint import checkpoint


def build(batch, size, length=2048):
    dist.init_process_group("nccl")
    with torch.device("meta"):
        model = SmallGPT(*SIZES[size])
    for block in model.blocks.layers:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
        fully_shard(block, mp_policy=bf16)
    fully_shard(model, mp_policy=bf16)
    model.to_empty(device="cuda")
    # A group a unit: what DTensor looks up before its first fused update takes time with the square of a group's tensors.
    groups = [{"params": list(unit.parameters())} for unit in (model.embed, *model.blocks.layers, model.head)]
    optimizer = torch.optim.AdamW(groups, fused=True)
    tokens = torch.randint(32000, (batch, length), device="cuda")
    return lambda: train_step(model, optimizer, tokens)

# %% plan-run
hours = {}
for size, kind, ranks in (("7B", "H100", 8), ("13B", "A100-80", 8), ("70B", "B200", 8)):
    plan = gpulab.plan(functools.partial(build, size=size), batch=2, gpu=kind, ranks=ranks)
    width, depth = SIZES[size]
    count = depth * 12 * width**2 + 2 * 32000 * width  # matrices; biases and norms are less than a thousandth
    state = (plan.weights + plan.gradients + plan.optimizer_state) / 2**30
    per_second = 2 * 2048 / plan.step_ms * 1e3
    hours[size] = 1e9 / per_second / 3600
    print(f"{size} on {ranks} × {kind}: state {16 * count / ranks / 2**30:.1f} GiB computed, {state:.1f} planned; "
          f"peak {plan.peak_allocated / 2**30:.1f} of {plan.memory / 2**30:.0f}")
    print(f"    a billion tokens: {hours[size]:,.0f} GPU-hours (virtual)")
cost_guess.compare(round(hours["70B"] / hours["7B"], 1), "virtual")

# %% plan-table
print("GPUs that the state alone needs, four fifths of each (computed)")
kinds = {"RTX4090": 24, "A100-40": 40, "H100": 80, "B200": 180}  # GB
print(" " * 5 + "".join(f"{name:>10}" for name in kinds))
for size, (width, depth) in SIZES.items():
    count = depth * 12 * width**2 + 2 * 32000 * width
    print(f"{size:<5}" + "".join(f"{-(-16 * count // (0.8e9 * memory)):10.0f}" for memory in kinds.values()))
shard = 4 * 69.8e9 / 8 / 1e9
print(f"70B on 8 ranks, offloaded: {3 * shard:.0f} GB over PCIe in a step of each, {3 * shard / 25:.1f} s at 25 GB/s")

# %% plan-explain [markdown]
# Plan and arithmetic agree on the state; the peak asks for the plan. The virtual costs are lower bounds: no data, no
# stragglers, no failures. What fills the memory says which remedy helps, and each has its price; in the order of the
# [checklist](../docs/cheatsheet.md), where several GPUs are there anyway:
#
# 1. **Checkpointing** (lesson 06), for activations: about a third more arithmetic, on one GPU too.
# 2. **Sharding**, for the state: one more pass over the link, mostly hidden, for all but $1/N$ of it.
# 3. **Offload** (`CPUOffloadPolicy`): state and update on the host. Every step moves the shard three times across PCIe, and the
#    host's memory bandwidth sets the update's pace. For fine-tuning with few GPUs.
# 4. **LoRA** (lesson 06): another result, and often cheaper than offloading.
# 5. **More GPUs**: the state falls as $1/N$; a rank's batch, or the time, falls too.

# %% simulator-text [markdown]
# ### See it move
#
# The simulator opens on a 7B on 8 ranks under ZeRO-1, bf16 with an fp32 copy (2 + 2 + 12). Try this:
#
# 1. Go through the stages. Which part gives most, and what does “sent per step” say?
# 2. Change the precision to fp32. How much less does ZeRO-1 save now, and why?
# 3. Find the smallest number of ranks with which ZeRO-3 fits on 40 GB, and raise the sequence until it does not.

# %% simulator
gpulab.sim.memory_budget(model="llama_7b", ranks=8, parallel="zero1")

# %% tensor-text [markdown]
# ## Other cuts: tensor, sequence, pipeline
#
# FSDP cuts what is *kept*; each rank still computes whole layers. **Tensor parallelism** cuts the computation: of an MLP's
# first matrix each rank has some output rows, of the second the same columns as inputs. No rank ever holds the whole, and
# one all-reduce of the *activations* completes the layer.

# %% tensor-turn-text [markdown]
# **Your turn** · 4 minutes. Compute one rank's part of `relu(x @ up.T) @ down.T`. The check adds up the parts of all ranks.

# %% tensor-turn tags=["your-turn"]
def mlp_part(x, up, down, rank, ranks):
    """This rank's summand; up is (hidden, width), down (width, hidden), and ranks divides hidden."""
    # TODO: a rank takes hidden // ranks of the hidden units: which rows of up, and which columns of down?
    ### BEGIN SOLUTION
    each = up.shape[0] // ranks
    mine = slice(rank * each, (rank + 1) * each)
    return torch.relu(x @ up[mine].T) @ down[:, mine].T
    ### INSTEAD OF
    # return torch.relu(x @ up.T) @ down.T
    ### END SOLUTION


gpulab.turn.summand_of_mlp(mlp_part)

# %% tensor-write
# %%writefile tensor.py
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)  # the same numbers on both
x, up, down = torch.randn(16, 64), torch.randn(256, 64), torch.randn(64, 256)
mine = slice(256 * rank // ranks, 256 * (rank + 1) // ranks)
part = torch.relu(x @ up[mine].T) @ down[:, mine].T  # half the rows, half the columns
dist.all_reduce(part)
whole = torch.relu(x @ up.T) @ down.T
print("equal to the whole layer:", torch.allclose(part, whole, rtol=1e-4, atol=1e-3))
print(f"sent: {part.nbytes / 1024:g} KiB of activations; the weights are {(up.nbytes + down.nbytes) / 1024:g} KiB")
dist.destroy_process_group()

# %% tensor-run
print(launch("tensor.py").ranks[0].output)

# %% tensor-explain [markdown]
# Cut by columns first and the ReLU in between would need the sum already: rows first, then columns, one exchange.
# PyTorch does it with `parallelize_module`, `ColwiseParallel` and `RowwiseParallel`. Four such exchanges a transformer
# block and step (attention and MLP, forward and backward) stand in the way of the next kernel, so it stays within NVLink.
# **Sequence parallelism** splits each all-reduce into reduce-scatter and all-gather, the same bytes, and keeps norms
# and dropout cut along the sequence between them: fewer activations.
#
# **Pipeline parallelism** puts layers on different ranks; activations go from one to the next, little to send. But a rank
# waits until the first part of the batch arrives, and again for the first gradient to come back: the **bubble**. Cut
# into more parts, the batch is on its way to all ranks sooner.

# %% pipeline-predict
bubble_guess = gpulab.predict("Two ranks, the batch in 8 parts: by what percentage does the bubble lengthen a step?", unit="%")

# %% pipeline-write
# %%writefile pipeline.py
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
import gpulab

with gpulab.VirtualGPU("A100-80", count=2, compute=False):
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank := dist.get_rank())
    block = nn.TransformerEncoderLayer(2048, 32, 8192, batch_first=True)
    layers = nn.Sequential(nn.TransformerEncoder(block, 2, enable_nested_tensor=False)).cuda()
    x = torch.randn(64, 512, 2048, device="cuda")
    stage = PipelineStage(layers, rank, 2, torch.device("cuda", rank))
    kind = ScheduleGPipe if sys.argv[1] == "GPipe" else Schedule1F1B
    schedule = kind(stage, int(sys.argv[2]), loss_fn=lambda out, wanted: (out - wanted).square().mean())

# %% pipeline-write-step
# %%writefile -a pipeline.py
    for _ in range(2):
        dist.barrier()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        schedule.step(*([x] if rank == 0 else []), **({"target": x} if rank == 1 else {}))
        end.record()
        torch.cuda.synchronize()
    print(f"step {start.elapsed_time(end)} {torch.cuda.max_memory_allocated() / 2**30}")
    dist.destroy_process_group()

# %% pipeline-run
steps = {}
for kind, parts in (("GPipe", 1), ("GPipe", 2), ("GPipe", 8), ("1F1B", 8)):
    run = launch("pipeline.py", args=[kind, str(parts)], env={})
    ms, peak = map(float, run.ranks[0].output.split()[-2:])
    steps[kind, parts] = ms
    ideal = steps["GPipe", 1] / 2  # with one part the ranks take turns: each works half of it
    print(f"{kind:<5} parts {parts}: {ms:5.0f} ms, {ms / ideal:.2f} times the work (formula {(parts + 1) / parts:.2f}), "
          f"peak of rank 0 {peak:4.1f} GiB (virtual)")
told = "(M + P − 1)/M of the time; the virtual step is longer, since small parts compute less efficiently and are sent."
bubble_guess.compare(100 / 8, "computed", because=told)

# %% pipeline-explain [markdown]
# With $P$ ranks and $M$ parts, GPipe runs all forwards and then all backwards, so that the activations
# of all $M$ parts lie there; **1F1B** begins the backward of a part as soon as it can: the same bubble, and on rank 0 the
# activations of $P$ parts.

# %% choose-text [markdown]
# ### Which one
#
# | | cuts | sends, for each block and step | needs | take it when |
# |---|---|---|---|---|
# | DDP | the batch | gradients, all-reduced, hidden | any link that hides them | model, state and activations fit |
# | FSDP | and what is kept | weights twice, gradients once, mostly hidden | NVLink, or a batch that hides it | the state does not fit: the first choice |
# | tensor | matrices | activations four times, not hidden | NVLink | a layer does not fit, or the batch of a rank would be below one |
# | sequence | and what lies between them | the same bytes | NVLink | with tensor |
# | pipeline | layers | activations once each way, small | little; many parts | several machines with a slow link |
#
# They combine: tensor within a machine, FSDP or pipeline across (a `DeviceMesh` with two dimensions). **Hybrid sharding**
# (HSDP) shards within a machine and copies across. Expert and context parallelism cut experts and the sequence of
# attention; they are beyond this course.

# %% mistakes-text [markdown]
# ## Common mistakes
#
# Four of them, on two ranks of which one is imagined. What do you expect of each?

# %% mistakes-run
def told(attempt):
    """What comes of it: a word, or the first sentence of the exception."""
    with gpulab.VirtualGPU("T4", ranks=2), warnings.catch_warnings(action="ignore"):  # of the rank that is imagined
        try:
            return attempt()
        except (RuntimeError, ValueError, ImportError) as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

# %% mistakes-optimizer
def optimizer_first():
    dist.init_process_group("nccl")
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    fully_shard(model)
    before = model.weight.full_tensor().clone()
    model(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
    return f"weights changed by the step: {not torch.equal(before, model.weight.full_tensor())}"

# %% mistakes-more
def unit_that_is_not_called():
    dist.init_process_group("nccl")
    attention = nn.MultiheadAttention(64, 1).cuda()
    fully_shard(attention.out_proj)  # attention reads its weight, and does not call it
    return attention(*[torch.ones(2, 64, device="cuda")] * 3)


def saved_as_usual():
    dist.init_process_group("nccl")
    model = fully_shard(nn.Linear(8, 8).cuda())
    weight = model.state_dict()["weight"]
    return f"a {type(weight).__name__} of shape {tuple(weight.shape)}, of which this rank has {tuple(weight.to_local().shape)}"

# %% mistakes-told
def without_a_group():
    return torch.distributed.fsdp.FullyShardedDataParallel(nn.Linear(8, 8))


for attempt in (optimizer_first, unit_that_is_not_called, saved_as_usual, without_a_group):
    print(f"{attempt.__name__}: {told(attempt)}")

# %% mistakes-explain [markdown]
# | mistake | what comes of it | repair |
# |---|---|---|
# | the optimizer made before the cut | nothing trains, and nothing fails: it holds the old parameters, and keeps them in memory | `fully_shard` first |
# | a unit whose `forward` nobody calls | `mixed torch.Tensor and DTensor`: hooks gather, and none ran | units are blocks that are called |
# | `torch.save(model.state_dict())` on rank 0 | a file with a part of the rows, loadable on that rank of as many | DCP, or the full state dict, on all ranks |
# | no process group | the error above | `init_process_group` first, `set_device` before it |
# | `model.cuda()` before the cut | the whole model on each GPU: out of memory at the start | the meta device |
# | `to_empty` and no initialisation | training begins with what lay in memory | `reset_parameters`, or a checkpoint |
# | a weight's `full_tensor()`, clipping or a save on rank 0 alone | a hang (lesson 12) | all ranks call it, rank 0 prints |

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “FSDP is the open-source equivalent of ZeRO-3.” | The same idea; but DeepSpeed's ZeRO is open source too, and FSDP also does stage 2. | *Where the bytes go* |
# | “Wrap with FSDP and an auto-wrap policy.” | FSDP1. Today `fully_shard`, block by block. | *`fully_shard` in practice* |
# | “Eight GPUs have eight times the memory.” | With DDP not one byte more for the model. | *A question worth asking* |
# | “ZeRO-1 is free: it sends no more than DDP.” | In the paper. PyTorch's sends half as much again, and deals whole tensors. | *Where the bytes go* |
# | “FSDP is slower, it communicates 50 % more.” | 50 % more bytes in one precision; in bf16 fewer than fp32 DDP, and mostly hidden. | *Where the bytes go*, *Gather* |
# | “`from torch_distributed_zero_redundancy_optimizer import …`” | No such module: `torch.distributed.optim`. | *Setup* |
# | “Out of memory: use model parallelism, or a smaller model.” | First what fills it: checkpoint activations, shard state; then cut layers. | *Planned* |
# | “Use FSDP when the model does not fit.” | Also when it does, and its optimizer state does not. | *Planned* |

# %% quiz-text [markdown]
# ## Quick check
#
# Choose with the arrow keys, answer with Tab and Enter. Every option has its reason.

# %% quiz
gpulab.quiz(13)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. DDP shares work, sharding shares memory: 16 bytes a parameter become $16/N$.
# 2. The peak is the shard, up to four whole units (weights of two, a gradient and its copy), and activations; so a unit for
#    each block, and one for the rest.
# 3. FSDP sends the weights twice and the gradients once. Prefetch hides it; a slow link or a small batch does not let it.
# 4. Cut, then make the optimizer. Save by DCP: any number of ranks loads it.
# 5. Plan before renting: state by arithmetic, the peak by `gpulab.plan`.
#
# **For the checklist:** `fully_shard` per block, then the rest · meta device, then initialise · a precision policy in place of
# autocast · DCP for checkpoints · collectives on all ranks.

# %% next [markdown]
# ## What next
#
# A job on 64 GPUs is interrupted before it is done: [lesson 14](14_long_runs.ipynb) makes it survive that. Or look at [the
# map of the course](00_start_here.ipynb).
#
# ## References
#
# - Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*, arXiv 1910.02054 (the table).
#   DeepSpeed, documentation of the ZeRO estimators.
# - PyTorch documentation: `torch.distributed.fsdp.fully_shard`, `ZeroRedundancyOptimizer`, *Distributed Checkpoint*, *Tensor
#   Parallelism*, *Pipeline Parallelism*; Zhao et al., *PyTorch FSDP*, arXiv 2304.11277.
# - Shoeybi et al., *Megatron-LM*, arXiv 1909.08053 (tensor). Korthikanti et al., arXiv 2205.05198 (sequence). Huang et al.,
#   *GPipe*, arXiv 1811.06965; Narayanan et al., *PipeDream*, arXiv 1806.03377 (1F1B).

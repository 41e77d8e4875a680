# %% title [markdown]
# # 04 · Memory
#
# **Promise:** you account for every megabyte on a GPU. You say which of four numbers you are reading, what a training
# step holds at its fullest moment, and which line of your code put it there.
#
# After this lesson you can
#
# 1. **tell apart** allocated, reserved and peak memory and the driver's number, and say when each of them falls;
# 2. **predict** the bytes of weights, gradients, optimizer state, activations and logits before you run anything;
# 3. **explain** why 11 MiB take 12, 9 MiB take 20, and free memory is not always usable;
# 4. **measure** the memory of a stretch of code, nested and failing stretches included;
# 5. **record** a training step and name the lines that hold its peak.
#
# | time | before this | runs on |
# |---|---|---|
# | 75 minutes, and 100 for the exercises | `00_start_here`; lesson 02 helps | any machine |

# %% setup-text [markdown]
# Every number below is *measured* (on your GPU), *virtual* (what the course's model of a GPU says it would show),
# *recorded* (from somebody's GPU, with the source) or *computed* (arithmetic). Run the notebook from the top: it counts
# what is on the GPU, and what earlier cells left there counts too.

# %% setup
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import gpulab

gpu = gpulab.setup()
device = gpu.device
MIB, GIB = 2**20, 2**30

# %% question-text [markdown]
# ## A question worth asking
#
# A float32 number has 4 bytes. You put a single one on an empty GPU. How much memory is gone?
#
# That depends on whom you ask. Write down two numbers before you run the cell: the bytes that PyTorch will say are
# *allocated*, and the MiB that it will have *reserved*.

# %% question-predict
allocated_guess = gpulab.predict("One float32 on the GPU: how many bytes are allocated?", unit="bytes")
reserved_guess = gpulab.predict("And how many MiB does PyTorch reserve for it?", unit="MiB")

# %% question-run
one = torch.ones(1, device=device)
free, total = torch.cuda.mem_get_info()
print("the number itself:", one.nbytes, "bytes")
allocated_guess.compare(torch.cuda.memory_allocated(), gpu.numbers)
reserved_guess.compare(torch.cuda.memory_reserved() / MIB, gpu.numbers)
print(f"the driver says that {(total - free) / MIB:,.0f} MiB of the GPU are in use ({gpu.numbers})")

# %% question-answer [markdown]
# Four answers, and all of them are right: 4 bytes of numbers; 512 bytes, because PyTorch hands out memory in units of
# 512; 2 MiB, because it fetches memory from the driver in larger pieces and keeps the rest for later; and what the
# driver counts, which is all that and the *CUDA context*: the GPU's own page tables, stacks and kernels for your
# process, and what other processes have on a GPU that you share. (On the virtual T4 the context is an assumption,
# 300 MiB. An H200 had 518, and 700 with the kernels of PyTorch, cuBLAS and cuDNN: recorded.)
#
# Most confusion about GPU memory is a confusion of these numbers. Take them apart first; then find out what fills them.

# %% four-text [markdown]
# ## Four numbers for one GPU
#
# Three parties keep books on the same memory: your tensors, PyTorch's *caching allocator* between you and the driver,
# and the driver. The fourth number is a high-water mark.
#
# | number | ask for it | it counts | it falls |
# |---|---|---|---|
# | allocated | `torch.cuda.memory_allocated()` | blocks that live tensors hold, in this process | when the last reference to a tensor goes |
# | reserved | `torch.cuda.memory_reserved()` | all that PyTorch holds, in use or free | by `empty_cache()`, or when memory runs out |
# | peak | `torch.cuda.max_memory_allocated()` | the most that was allocated since the last reset | by `reset_peak_memory_stats()` only |
# | the driver's | `torch.cuda.mem_get_info()`, `nvidia-smi` | the whole GPU: reserved, contexts, libraries, other processes | when PyTorch or another process gives memory back |
#
# Watch them over six lines of code.

# %% four-books
def books(label):
    """Print the four numbers of the current GPU, in MiB."""
    free, total = torch.cuda.mem_get_info()
    numbers = [torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.max_memory_allocated()]
    print(f"{label:<30}" + "".join(f"{n / MIB:>11,.1f}" for n in [*numbers, total - free]))


def hold(mib):
    """A tensor of so many MiB."""
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device=device)


# %% four-predict
driver_guess = gpulab.predict("x has 100 MiB, y 200. After `del y`: how many MiB less does the driver count?", unit="MiB")

# %% four-run
print(f"MiB, {gpu.numbers:<25}" + "".join(f"{name:>11}" for name in ("allocated", "reserved", "peak", "driver")))
books("at the start")
x, y = hold(100), hold(200)
books("x = 100 MiB, y = 200 MiB")
before = torch.cuda.mem_get_info()[0]
del y
books("del y")
driver_guess.compare((torch.cuda.mem_get_info()[0] - before) / MIB, gpu.numbers)
torch.cuda.empty_cache()
books("torch.cuda.empty_cache()")
torch.cuda.reset_peak_memory_stats()
books("reset_peak_memory_stats()")

# %% four-explain [markdown]
# Read it column by column:
#
# - `del y` lowers *allocated* at once, and nothing else. The block is in PyTorch's cache, ready for the next tensor. To
#   the driver, and to everybody else on this GPU, it is taken.
# - `empty_cache()` gives cached memory back to the driver. *Allocated* does not move: **it frees no tensor.** Printing
#   `memory_allocated()` before and after it, as some tutorials do, shows the same number twice.
# - The *peak* remembers y until you reset it, and then it is what is allocated now, not zero. A loop that
#   reports a peak per epoch and never resets it reports the worst epoch so far.
#
# What crashes a job is the driver's number reaching the total. What you can *act on* is allocated.

# %% driver-text [markdown]
# So what is in the driver's number that is not in yours? Subtract. On the virtual T4 the difference is the assumed
# context and nothing else, on a real GPU it has several parts: the context, with the kernels that were loaded
# so far (PyTorch asks for lazy loading, which in its own measurement took the context from 667 to 287 MB: recorded);
# memory that libraries such as NCCL take without PyTorch; and **other processes**, your own forgotten notebooks first
# among them. `nvidia-smi` lists those, and so does `torch.cuda.list_gpu_processes()`.

# %% driver-run
free, total = torch.cuda.mem_get_info()
rest = total - free - torch.cuda.memory_reserved()
print(f"in use by the driver's count {(total - free) / MIB:>9,.1f} MiB ({gpu.numbers})")
print(f"of it reserved by PyTorch    {torch.cuda.memory_reserved() / MIB:>9,.1f} MiB ({gpu.numbers})")
print(f"context, libraries, others   {rest / MIB:>9,.1f} MiB ({gpu.numbers})")
print(f"the GPU: {total:,} bytes = {total / 1e9:.2f} GB = {total / GIB:.2f} GiB = {total / MIB:,.0f} MiB")

# %% units-text [markdown]
# The last line is worth a look. **GB** is 10⁹ bytes, **GiB** 2³⁰: 7.4 % apart. **MB** and **MiB** are 4.9 % apart.
# Model sizes count GB, PyTorch's messages GiB and MiB, `nvidia-smi` MiB. The “GB” of memory that NVIDIA sells are nearly GiB: an
# A100 of 80 GB has 85.1 × 10⁹ bytes, 79.3 GiB, and a T4 would have 15.7 GiB of its 16 if ECC did not take a sixteenth
# (computed from recorded sizes; lesson 02). This course divides by 2²⁰ and writes MiB.
#
# One more thing about “the last reference”. A tensor is a view of a *storage*, and the storage is what holds memory.
# Keep one row, and you keep the matrix:

# %% view-run
matrix = hold(100).view(100, MIB)
row = matrix[0]
start = torch.cuda.memory_allocated()
del matrix
print(f"del matrix frees {(start - torch.cuda.memory_allocated()) / MIB:.0f} MiB ({gpu.numbers})")
row = row.clone()
print(f"row = row.clone() leaves {(start - torch.cuda.memory_allocated()) / MIB:.0f} MiB less ({gpu.numbers})")
del row, x, one

# %% view-explain [markdown]
# A second name, a list, a closure do the same: `del` removes a *name*, and memory goes with the last one. Lesson 05
# hunts such references.

# %% buckets-text [markdown]
# ## Four buckets, and the logits
#
# A training step fills the GPU with four kinds of tensors:
#
# | bucket | bytes | alive |
# |---|---|---|
# | weights, and buffers such as BatchNorm's statistics | 4 per float32 number | always |
# | gradients | as the weights | from backward to `zero_grad()` |
# | optimizer state | Adam two numbers per weight, momentum one, plain SGD none | from the first `step()` on |
# | activations: what the forward pass keeps for backward | grows with the batch | from forward to backward |
#
# The first three depend on the model alone, the last on model and batch. For language models one activation deserves a
# name of its own: the **logits**, one number per token *and word of the vocabulary*. Here is a small GPT with GPT-2's
# vocabulary.

# %% gpt-block
class Block(nn.Module):
    """One layer of a transformer: attention, then a two-layer network, each added to its input."""

    def __init__(self, width, heads=4):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, -1))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


# %% gpt
VOCABULARY, TOKENS, WIDTH = 50_257, 64, 64


class GPT(nn.Module):
    """Token and position embeddings, some blocks, and a head that shares the token embedding's weights."""

    def __init__(self, layers=4, width=WIDTH, tokens=TOKENS):
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(Block(width, heads=max(4, width // 64)) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.token.weight

    def forward(self, ids):
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


# %% buckets-predict
logits_guess = gpulab.predict("4 sequences of 64 tokens: the logits weigh how many times the weights?", unit="times")

# %% buckets-count
def bucket_bytes(model, optimizer):
    """Bytes of weights and buffers, of gradients, and of the optimizer's state on the GPU."""
    weights = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    state = sum(t.nbytes for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t) and t.is_cuda)
    return {"weights": weights, "gradients": gradients, "optimizer state": state}


def fresh():
    model = GPT().to(device)
    return model, torch.optim.AdamW(model.parameters())


# %% buckets-run
model, optimizer = fresh()
ids = torch.randint(VOCABULARY, (4, TOKENS + 1), device=device)
inputs, targets = ids[:, :-1], ids[:, 1:]
logits = model(inputs)
F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
optimizer.step()
buckets = bucket_bytes(model, optimizer) | {"logits": logits.nbytes}
for name, size in buckets.items():
    print(f"{name:<16} {size / MIB:>6.1f} MiB ({gpu.numbers})")
logits_guess.compare(buckets["logits"] / buckets["weights"], gpu.numbers)
del logits
optimizer.zero_grad()

# %% buckets-explain [markdown]
# Logits are tokens × vocabulary, the embedding is width × vocabulary. The vocabulary cancels, and 256 tokens / 64 = 4 is
# left, less the little that the blocks weigh. So **logits outweigh the embedding as soon as the batch has more tokens
# than the model is wide.** Llama 3 with its 128,256 words and 8192 tokens has 4.2 GB of float32 logits (computed).
#
# Three details that counting by hand gets wrong. *Shared weights count once*: `parameters()` gives the tied embedding
# once. *Buffers count*, and are not in `parameters()`. *Adam has two moments* (and a step counter per weight, which
# stays on the CPU).
#
# Does mixed precision halve these buckets?

# %% amp-run
with torch.autocast(device.type, dtype=torch.float16):
    loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
loss.backward()
under_amp = bucket_bytes(model, optimizer)
print("the same bytes under autocast:", all(under_amp[name] == buckets[name] for name in under_amp))
print("gradients are", {p.grad.dtype for p in model.parameters()})
del loss
optimizer.zero_grad()

# %% amp-explain [markdown]
# Not a byte. Under autocast, weights, gradients and Adam's moments stay float32; only what operations compute in between
# is 16 bit (lesson 07). (Without a gradient scaler these gradients may be useless. Their size is right.)
#
# ### The fullest moment
#
# The buckets are not all full at the same time, so their sum is not the peak. When is the step at its fullest? You have
# weights, Adam's state and logits in the table above: predict.

# %% peak-predict
peak_guess = gpulab.predict("The peak of one such step?", unit="MiB")

# %% peak-run
def step():
    loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def peak_of(function):
    """The most that is allocated while the function runs, in MiB."""
    torch.cuda.reset_peak_memory_stats()
    function()
    return torch.cuda.max_memory_allocated() / MIB


before = torch.cuda.memory_allocated() / MIB
peak = peak_of(step)
peak_guess.compare(round(peak, 1), gpu.numbers)
print(f"above what was there before it: {peak - before:.1f} MiB, {(peak - before) * MIB / buckets['logits']:.2f} times the logits")

# %% peak-explain [markdown]
# More than three times the logits, on top of weights and Adam's state. The moment is the beginning of backward, when
# **three tensors of the logits' size** are alive: the log-probabilities that `cross_entropy` kept, their gradient, and
# the gradient of the logits, which is being made from it. Gradients of weights do not exist yet.
#
# (Up to PyTorch 2.14 something else is there before the step: cuBLAS keeps its workspaces, 17 MiB on most GPUs, 65 on an
# H200, recorded with 2.11. They are in the peak.)
#
# This model is narrow, and its vocabulary is not. What are the three in a real one? Three sizes, 1024 tokens, shapes only:

# %% share-run
def logits_share(layers, width, tokens=1024):
    """Three tensors of the logits' size, as a part of what backward's peak has above the weights."""
    with gpulab.VirtualGPU("H200", compute=False), torch.device("cuda"):
        model, ids = GPT(layers, width, tokens), torch.zeros(1, tokens, dtype=torch.long)
        weights = torch.cuda.memory_allocated()
        F.cross_entropy(model(ids)[0], ids[0]).backward()
        return 3 * tokens * VOCABULARY * 4 / (torch.cuda.max_memory_allocated() - weights)


for name, layers, width in (("this one, longer", 4, 64), ("GPT-2 small", 12, 768), ("GPT-2 XL", 48, 1600)):
    share = logits_share(layers, width)
    print(f"{name:<17} {layers:>2} layers, width {width:>5}: {share:>4.0%} are the three of the logits (virtual H200)")

# %% share-explain [markdown]
# Each token costs 12 bytes for each word of the vocabulary, and some 66 for each layer and unit of width (in this block,
# float32). Where layers × width is less than about a fifth of the vocabulary, the logits weigh more; GPT-2 small is the even
# case, and in larger models the layers decide.
#
# Now a change that looks like nothing. The next function gives the logits a name, as most training loops do:

# %% named-run
def named_step():
    logits = model(inputs)  # the name lives until the function returns
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


more = peak_of(named_step) - peak
print(f"a name for the logits: {more:.1f} MiB more at the peak ({gpu.numbers})")
print("that is their size:", round(more * MIB / buckets["logits"], 1) == 1)

# %% named-explain [markdown]
# A fourth tensor of that size. `cross_entropy` does not need the logits for its backward pass, so they would be gone.
# The name keeps them. Write `loss = criterion(model(x), y)`, or `del logits` before `backward()`. (PyTorch 2.15's
# `F.linear_cross_entropy` with its `options` goes further: it computes the loss piece by piece, and the logits never
# exist as a whole.)
#
# How does the picture change with the batch? `gpulab.plan` runs a step on shapes alone, on a virtual GPU, and sorts its
# peak into buckets. Without a name it plans for the GPU of this notebook (for a T4, if it does not know yours). Where that is
# real, you see a prediction beside a measurement.

# %% plan-run
def build(batch):
    """What `gpulab.plan` wants: everything set up, and a function that does one step."""
    model = GPT().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(VOCABULARY, (batch, TOKENS + 1), device="cuda")

    def step():
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


plans = {batch: gpulab.plan(build, batch, gpu="T4") for batch in (1, 2, 4, 8, 16)}
mine = gpulab.plan(build, batch=4)
off = mine.peak_allocated / MIB / peak - 1
print(f"predicted {mine.peak_allocated / MIB:.1f} MiB (virtual {mine.gpu}), here {peak:.1f} MiB ({gpu.numbers}): {off:+.1%}")

# %% plan-plot
gpulab.style.use()
figure, axes = plt.subplots(figsize=(7.2, 3.8))
left = np.zeros(len(plans))
names = [name for name in plans[1].categories if any(getattr(p, name) > MIB / 2 for p in plans.values())]
for name, hatch in zip(names, ("", "//", "", "..", "", "xx"), strict=False):
    sizes = np.array([getattr(p, name) / MIB for p in plans.values()])
    axes.barh([str(b) for b in plans], sizes, left=left, label=name.replace("_", " "), hatch=hatch, edgecolor="white")
    left += sizes
axes.set(xlabel="MiB allocated at the peak of a step (virtual T4)", ylabel="sequences in the batch")
axes.set_title("What grows with the batch soon outweighs what does not")
axes.invert_yaxis()
axes.legend(loc="upper right")
gpulab.style.show(
    figure,
    alt="Stacked bars of the peak memory of a step for batches of 1, 2, 4, 8 and 16 sequences. Weights and optimizer "
    "state stay the same; activations and temporaries double with every bar and are most of it from batch 2 on.",
)

# %% plan-explain [markdown]
# At this moment of the step there are no gradients of weights. The *activations* are mostly the log-probabilities, the
# *temporaries* the two gradients of the same size. Weights and Adam's state do not change with the batch, so the largest
# batch that fits is a question about the rest. (The two numbers above may differ by 1 %, where both are virtual as well: the
# allocator of the notebook has another history. More below.)

# %% seven-text [markdown]
# ## Seven billion parameters
#
# The arithmetic that everybody should be able to do in their head: float32 training with Adam takes 4 bytes for the
# weight, 4 for its gradient, 8 for the two moments. **16 bytes per parameter**, before the first activation.

# %% seven-run
for billions in (0.124, 1, 7, 70):
    weights, gradients, moments = (factor * billions for factor in (4, 4, 8))
    total = weights + gradients + moments
    print(
        f"{billions:>6} billion parameters: weights {weights:>6.1f} GB, with gradients and Adam {total:>7.1f} GB"
        f" = {total * 1e9 / GIB:>7.1f} GiB (computed)"
    )

# %% seven-turn-text [markdown]
# **Your turn** · 3 minutes. In fine-tuning some layers are *frozen*: `p.requires_grad` is False, backward makes no
# gradient for them, and Adam gets the other parameters only. How many bytes do weights, gradients and moments have then?
# Moments and gradients have their weight's dtype, here float32 or bf16, and `p.nbytes` knows it.

# %% seven-turn tags=["your-turn"]
def held_bytes(model):
    """Bytes of weights, gradients and Adam's moments after a step; the gradients are still there."""
    # TODO: two sums over model.parameters(), and what is returned
    ### BEGIN SOLUTION
    weights = sum(p.nbytes for p in model.parameters())
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    return weights + 3 * trained
    ### END SOLUTION


gpulab.turn.held_bytes(held_bytes)

# %% seven-explain [markdown]
# So “a 7B model needs 28 GB” is true of its float32 weights; training holds 112 GB, and activations come on top. 16-bit
# weights beside a float32 master copy, as large training runs have them, change the parts and not the sum: 2 + 2 + 4 +
# 4 + 4 is 16 again.
#
# Is 112 GB then the peak? You need no such GPU to find out. The scope below has shapes and no values, so a model of
# Llama's size trains on a laptop. Its 6.74 billion parameters make 107.8 GB by the rule. The batch is one sequence of
# 2048 tokens.

# %% llama
class Layer(nn.Module):
    """A layer of Llama's shape."""

    def __init__(self, width=4096, hidden=11008):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (project(y).unflatten(-1, (32, -1)).transpose(1, 2) for project in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


# %% llama-predict
adam_guess = gpulab.predict("The peak of a training step of this model with torch.optim.AdamW?", unit="GB")

# %% llama-run
def llama_step(**options):
    """Allocated bytes after each stage of the first step, and the peak within `optimizer.step()`."""
    with gpulab.VirtualGPU("B200", compute=False):
        with torch.device("cuda"):
            layers, ends = [Layer() for _ in range(32)], (nn.RMSNorm(4096), nn.Linear(4096, 32_000, bias=False))
            model, ids = nn.Sequential(nn.Embedding(32_000, 4096), *layers, *ends), torch.randint(32_000, (2048,))
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        stages = {"weights": torch.cuda.memory_allocated()}
        loss = F.cross_entropy(model(ids[None])[0], ids)
        stages["after forward"] = torch.cuda.memory_allocated()
        loss.backward()
        stages["after backward"] = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        optimizer.step()
        stages["after optimizer.step()"] = torch.cuda.memory_allocated()
        return stages, torch.cuda.max_memory_allocated()


# %% llama-show
stages, in_step = llama_step()
for name, size in stages.items():
    print(f"{name:<24} {size / 1e9:>6.1f} GB (virtual B200)")
adam_guess.compare(round(in_step / 1e9, 1), "virtual")
print(f"peak of step() with fused=True: {llama_step(fused=True)[1] / 1e9:.1f} GB (virtual B200)")

# %% llama-explain [markdown]
# The rule gives what is *held*: weights, gradients and moments, to a digit. The peak is 27 GB higher, and it is not the
# activations': backward has released them. On a GPU, Adam by default handles all parameters together (`foreach`), and
# its intermediate result is as large as all the weights. **So the default optimizer needs 20 bytes per parameter for a
# moment.** `fused=True` does the whole update in one kernel per group of tensors and needs nothing beside its state.
#
# ### Which GPU would do?
#
# The simulator opens on this model in float32. It counts a fused optimizer. Try this:
#
# 1. Set *Optimizer* to SGD. Which bar loses how much? Which GPUs come into reach?
# 2. Back to Adam. Move *Batch per rank* to 4: the peak moves from the end of backward to its beginning. Why?
# 3. Choose *GPT-2 small* with batch 8 and compare its logits with its weights.

# %% llama-simulator
gpulab.sim.memory_budget(precision="fp32")

# %% kept-text [markdown]
# ## What the forward pass keeps
#
# Weights and moments are easy to count; for activations, look into autograd. Each operation keeps what its derivative
# needs. The hook below sees every tensor that autograd keeps. Several operations may keep the same storage: count it once.

# %% kept-hook
def kept_for_backward(function):
    """The result of the function, and {storage: bytes} of what autograd keeps for its backward pass."""
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = function()
    return result, kept


# %% kept-table
x = torch.randn(512, 2048, device=device, requires_grad=True)  # 4 MiB
labels = torch.zeros(512, dtype=torch.long, device=device)
operations = {
    "x + 1": lambda: x + 1, "x * x": lambda: x * x, "x.exp()": lambda: x.exp(), "relu": lambda: x.relu(),
    "gelu": lambda: F.gelu(x), "dropout": lambda: F.dropout(x), "layer_norm": lambda: F.layer_norm(x, (2048,)),
    "max_pool2d": lambda: F.max_pool2d(x[None], 2), "cross_entropy": lambda: F.cross_entropy(x, labels),
}  # fmt: skip
print(f"kept for backward ({gpu.numbers}), of an x of 4 MiB:")
for name, operation in operations.items():
    result, kept = kept_for_backward(operation)
    mine = kept.pop(x.untyped_storage().data_ptr(), 0)
    new = sum(kept.values())
    output = new - kept.pop(result.untyped_storage().data_ptr(), 0) != new
    print(f"{name:<14} keeps {mine / MIB:.0f} MiB of input, {new / MIB:.2f} MiB else{', its output' if output else ''}")

# %% kept-explain [markdown]
# Some entries repay a thought:
#
# - An addition keeps **nothing**: its derivative is 1, whatever x was. That is why counting outputs of layers, as many
#   estimates do, goes wrong.
# - `relu` keeps its *output*, `gelu` its *input*. In `Linear → ReLU → Linear` the output is also what the second layer
#   keeps: one storage for both. In `Linear → GELU → Linear` there are two.
# - Dropout's mask takes one byte per element, not one bit. Max pooling keeps its input and an 8-byte index per output.
# - `cross_entropy` keeps log-probabilities, as large as the logits: you have met them.

# %% gelu-predict
gelu_guess = gpulab.predict("Linear(64, 4096), activation, Linear(4096, 64): GELU keeps how many times what ReLU keeps?", unit="times")

# %% gelu-run
def kept_by_network(activation):
    """Bytes that the forward pass of a two-layer network keeps, without its weights."""
    network = nn.Sequential(nn.Linear(64, 4096), activation, nn.Linear(4096, 64)).to(device)
    weights = {p.untyped_storage().data_ptr() for p in network.parameters()}
    batch = torch.randn(256, 64, device=device)
    _, kept = kept_for_backward(lambda: network(batch))
    return sum(size for storage, size in kept.items() if storage not in weights)


relu, gelu = kept_by_network(nn.ReLU()), kept_by_network(nn.GELU())
print(f"ReLU {relu / MIB:.2f} MiB, GELU {gelu / MIB:.2f} MiB ({gpu.numbers})")
gelu_guess.compare(round(gelu / relu, 2), gpu.numbers)

# %% forward-text [markdown]
# ### Measuring it with the counters
#
# The hook counts what autograd keeps. `memory_allocated()` before and after the forward pass counts what is really
# there: outputs, too, and rounding.
#
# Which of these three settings saves memory: `eval()`, `no_grad()`, both?

# %% forward-run
def forward_cost(model, batch):
    """What a forward pass adds in MiB: held with its output, left without, at the peak."""
    model(batch)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    output = model(batch)
    held, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    del output
    return [(n - before) / MIB for n in (held, torch.cuda.memory_allocated(), peak)]


network = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 16)).to(device)
batch = torch.randn(512, 512, device=device)
rows = {"train()": forward_cost(network, batch), "eval()": forward_cost(network.eval(), batch)}
with torch.no_grad():
    rows["eval(), no_grad()"] = forward_cost(network, batch)
for name, (held, left, peak) in rows.items():
    print(f"{name:<18} held {held:>5.2f} MiB, after del output {left:.2f} MiB, peak {peak:>5.2f} MiB ({gpu.numbers})")

# %% forward-explain [markdown]
# `eval()` saves **nothing** here: it changes what dropout and BatchNorm compute and has nothing to do with autograd.
# `no_grad()`, or `inference_mode()`, is what keeps autograd from keeping.
#
# Such a measurement is easily spoilt. What each line is for (click one, or choose with the arrow keys):

# %% forward-lines
gpulab.annotated(forward_cost, {
    3: "To warm up: some versions keep a library's workspace from the first call on.",
    "reset_peak": "Else the peak may be that of an earlier cell. It becomes what is allocated now, not zero.",
    "output = model(batch)": "The output holds the graph, and the graph holds the activations. Without the name, held "
    "would be close to nothing.",
    "held, peak": "The peak also has what was given back on the way: a workspace, and under no_grad() a layer's input.",
    "del output": "The only name, so with the output go its graph and all activations.",
})

# %% allocator-text [markdown]
# ## The caching allocator
#
# Why does PyTorch not ask the driver for each tensor? Because `cudaMalloc` takes long (the model assumes 100 µs) and `cudaFree`
# waits for the GPU to finish its work, while a small kernel takes a few microseconds. So the allocator takes *segments* from the driver, cuts *blocks*
# from them, and keeps both. Predict: a tensor of 9 MiB, from an empty cache.

# %% allocator-predict
nine_guess = gpulab.predict("A tensor of 9 MiB: how many MiB does PyTorch reserve?", unit="MiB")

# %% allocator-run
def taken(mib):
    """What a tensor of so many MiB adds to requested, allocated and reserved memory, in MiB, from an empty cache."""
    torch.cuda.empty_cache()
    names = ("requested_bytes.all.current", "allocated_bytes.all.current", "reserved_bytes.all.current")
    before = torch.cuda.memory_stats()
    tensor = hold(mib)
    after = torch.cuda.memory_stats()
    return [(after[name] - before[name]) / MIB for name in names]


del x, labels, result, network, batch, model, optimizer  # an empty cache needs an empty GPU
torch._C._cuda_clearCublasWorkspaces()  # which up to PyTorch 2.14 stay, and hold a segment
print(f"MiB ({gpu.numbers}): requested, allocated, reserved")
for mib in (1.5, 9, 10, 11, 19, 20, 21):
    print("{:>20g} {:>10g} {:>9g}".format(*taken(mib)))
nine_guess.compare(taken(9)[2], gpu.numbers)

# %% allocator-explain [markdown]
# 9 MiB reserve 20, and 10 MiB reserve 10. The rules behind the table:
#
# 1. Sizes are rounded up to 512 bytes. Up to 1 MiB they come from the *small pool*, in segments of 2 MiB; above, from
#    the large pool.
# 2. Between 1 and 10 MiB a new segment has 20 MiB. From 10 MiB on it is the tensor's own, rounded up to 2 MiB.
# 3. What is left of a block is split off, but in the large pool only if it is **more than 1 MiB**. 11 MiB get a segment of
#    12; the rest of 1 MiB is not split off, so all 12 count as *allocated*. That is why allocated can exceed what
#    your tensors have, by far more than 512 bytes. `requested_bytes` has the plain sum.
# 4. A request takes the *smallest free block that is large enough*, among those of its stream; only if there is none,
#    a new segment. Freed blocks merge with free neighbours, within their segment.

# %% fragment-text [markdown]
# ### Free and not usable
#
# Is the gap between reserved and allocated always yours to use? Two things can go wrong. A block is no use to a
# request that is larger, and two free blocks in different segments never become one. And a segment goes back to the
# driver only when *no* block in it is live. In the next cell a tensor of 500 MiB is freed, and then something small
# takes its place.

# %% fragment-predict
back_guess = gpulab.predict("A 2 MiB tensor in the freed 500 MiB: how many MiB does empty_cache() give back?", unit="MiB")

# %% fragment-run
torch.cuda.empty_cache()
large = hold(500)
del large
small = hold(2)  # the smallest free block that is large enough: the 500 MiB
reserved = torch.cuda.memory_reserved()
torch.cuda.empty_cache()
back_guess.compare((reserved - torch.cuda.memory_reserved()) / MIB, gpu.numbers)
print("of torch.cuda.memory_summary():")
lines = torch.cuda.memory_summary(abbreviated=True).splitlines()
wanted = ("Metric", "Allocated memory", "Requested", "GPU reserved memory", "Non-releasable memory")
print("\n".join(line for line in lines if any(word in line for word in wanted)))

# %% fragment-explain [markdown]
# 2 MiB pin 500. They are *usable* (by requests up to 498 MiB, in this process), and not *returnable*. The line
# *Non-releasable memory* of `memory_summary()` counts such memory: free, in segments with a live block. Its
# other lines are those you know; the table's columns are now, peak, and all that was ever allocated and freed.
#
# So the gap between reserved and allocated is a cache: not a leak, and not always usable. Worry when *reserved* keeps
# growing while *allocated* repeats (fragmentation), or when another process wants the memory.

# %% reuse-text [markdown]
# ### What the cache is good for
#
# A training step asks for the same sizes again and again. By rule 4 it gets the same blocks, and after the first steps
# the driver is not asked any more. Count the calls, with and without an `empty_cache()` in each step:

# %% reuse-run
def driver_calls(step, times=4):
    """How often each step made PyTorch take memory from the driver."""
    calls = []
    for _ in range(times):
        before = torch.cuda.memory_stats()["num_device_alloc"]
        step()
        calls.append(torch.cuda.memory_stats()["num_device_alloc"] - before)
    return calls


def emptying_step():
    step()
    torch.cuda.empty_cache()


del small
torch.cuda.empty_cache()
model, optimizer = fresh()
print(f"plain steps:                  {driver_calls(step)} calls of cudaMalloc ({gpu.numbers})")
print(f"with empty_cache() each time: {driver_calls(emptying_step)} calls of cudaMalloc ({gpu.numbers})")

# %% allocator-simulator-text [markdown]
# ### See it move
#
# The simulator opens on a request of 60 MiB that fails with 76 MiB free. Step back and forth, then try this:
#
# 1. Which command put the two tensors where they do harm? Which order of the same commands would have worked?
# 2. Tick *expandable_segments*. What does the failing request do now?
# 3. Choose the script *empty_cache*: half of the tensors are freed, and nothing comes back. How many tensors would you
#    have to free for one segment?

# %% allocator-simulator
gpulab.sim.allocator()

# %% tracker-text [markdown]
# ## A tracker of your own
#
# You will want to write `with tracker:` around a stretch of code, and read its peak and its change afterwards. The recipe
# fits in three lines: reset, run, read. The exercise is to write one that is never wrong. This one is wrong in four
# ways.

# %% tracker-naive
from contextlib import contextmanager


@contextmanager
def naive():
    """A tracker as it is often printed: result["peak"] in MiB."""
    result = {}
    torch.cuda.reset_peak_memory_stats()
    yield result
    result["peak"] = torch.cuda.max_memory_allocated() / MIB


# %% tracker-predict
base = torch.cuda.memory_allocated() / MIB
outer_guess = gpulab.predict("Outer block: 300 MiB for a moment, then an inner block with 50. What does the outer one report, above what was there?", unit="MiB")

# %% tracker-nested
with naive() as outer:
    hold(300)  # nobody keeps it: taken and given back at once
    with naive() as inner:
        hold(50)
outer_guess.compare(round(outer["peak"] - base), gpu.numbers)

with gpulab.GPUMemoryTracker() as outer:
    hold(300)
    with gpulab.GPUMemoryTracker() as inner:
        hold(50)
print(f"gpulab.GPUMemoryTracker: outer {outer.peak_above_entry_bytes / MIB:.0f} MiB,", end=" ")
print(f"inner {inner.peak_above_entry_bytes / MIB:.0f} MiB above what was there ({gpu.numbers})")

# %% tracker-nested-explain [markdown]
# **Nesting.** There is one peak counter per GPU, and the inner block's reset wiped the outer's 300 MiB. Whoever resets
# must first see to it that every open tracker has noted the peak so far. And what an inner block reaches, the outer one
# has reached too.
#
# **Absolute or relative.** After a reset the peak is *what is allocated now*, not zero. Peak and peak above entry are
# both useful; a tracker says which it gives. The *change* may be negative: code that frees memory is no error, and a
# change clamped at zero hides it.
#
# **Exceptions.** What becomes of the result when the code inside fails, as code that runs out of memory does?

# %% tracker-exception
try:
    with naive() as failed:
        hold(40)
        raise ValueError("something went wrong inside")
except ValueError as error:
    print("ValueError:", error, "· result:", failed)

# %% tracker-exception-explain [markdown]
# Nothing was recorded: the line after `yield` never ran. In a class, `__exit__` is called in both cases. It must finish its
# work first, and return `False` (or nothing): returning `True` *swallows* the exception.
#
# **Which GPU.** `memory_allocated()` without an argument means the *current* GPU. Decide the device when the block
# begins, and pass it to every call; code inside may change the current one.
#
# **No GPU.** `memory_allocated()` answers 0 then, and `reset_peak_memory_stats()` raises (see *Common mistakes*). The
# functions of the same name in `torch.accelerator` are quiet, in PyTorch 2.15 all of them.
#
# **Used again.** A second entry begins anew; entering one that is open is a mistake worth an error.
#
# Must it synchronise, as a timer must (lesson 03)? Not for the numbers: the allocator keeps its books on the *host*, when
# your line runs. It helps to report an asynchronous error where it belongs.

# %% watch-text [markdown]
# ## Watch a step
#
# A peak is one number; the cause is a story over time. PyTorch writes it down: `_record_memory_history()` notes every
# allocation and every free, with the Python line. The underscore means that the function may change; it has been the
# documented way since 2023. The cell records one step and notes where its phases begin.

# %% watch-record
begins, index = {}, torch.cuda.current_device()
fixed = bucket_bytes(model, optimizer)


def mark(phase):
    """Note how many events the history has when a phase begins."""
    begins[phase] = len(torch.cuda.memory._snapshot()["device_traces"][index])


torch.cuda.memory._record_memory_history(stacks="python")
mark("forward")
loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
mark("backward")
loss.backward()
mark("optimizer")
gradients = [p.grad.untyped_storage().data_ptr() for p in model.parameters()]

# %% watch-record-end
optimizer.step()
optimizer.zero_grad()
del loss
snapshot = torch.cuda.memory._snapshot()
torch.cuda.memory._record_memory_history(enabled=None)  # stop, and forget
events = snapshot["device_traces"][index]
print("events:", len(events), "· kinds:", sorted({event["action"] for event in events}))

# %% watch-replay-text [markdown]
# Each event has an address and a size. Add them up again, and you have the curve; ask in which phase a block was
# allocated, and you have the categories. (A gradient is the last block that was put at a gradient's address before
# the optimizer began.)

# %% watch-replay
KINDS = ("gradients", "logits' size", "forward", "backward", "optimizer")


def replay(events):
    """Live bytes of each kind after every allocation and free."""
    last = {e["addr"]: i for i, e in enumerate(events[: begins["optimizer"]]) if e["action"] == "alloc"}
    of_gradients = {last[address] for address in gradients}
    live, now, curve = {}, dict.fromkeys(KINDS, 0), []
    for i, event in enumerate(events):
        address, size = event["addr"], event["size"]
        if event["action"] == "alloc":
            kind = max((phase for phase in begins if begins[phase] <= i), key=begins.get)
            kind = "gradients" if i in of_gradients else "logits' size" if size >= buckets["logits"] else kind
            live[address], now[kind] = (kind, size), now[kind] + size
        elif event["action"] == "free_completed" and address in live:
            kind, size = live.pop(address)
            now[kind] -= size
        curve.append([now[kind] / MIB for kind in KINDS])
    return np.array(curve).T


# %% watch-plot
curve = replay(events)
steady = [np.full(curve.shape[1], fixed[name] / MIB) for name in ("weights", "optimizer state")]
colors = [getattr(gpulab.style, c) for c in ("BLUE", "GREEN", "ORANGE", "YELLOW", "PURPLE", "VERMILLION", "SKY")]
labels = ["weights", "Adam's state", "gradients", "tensors of the logits' size", "forward pass"]
labels += ["backward, in passing", "optimizer, in passing"]
figure, axes = plt.subplots(figsize=(8, 4.2))
axes.stackplot(range(curve.shape[1]), *steady, *curve, colors=colors, labels=labels, step="post")
for phase, begin in begins.items():
    axes.axvline(begin, color=gpulab.style.INK, linewidth=1)
    axes.text(begin, axes.get_ylim()[1], f" {phase}", va="top")
axes.set(xlabel="allocations and frees, in order", ylabel=f"MiB allocated ({gpu.numbers})")
axes.set_title("The step is fullest as backward begins: three times the logits", pad=14)
axes.legend(loc="upper center", fontsize=9)
gpulab.style.show(
    figure,
    alt="Memory over one training step by category. It rises slowly in the forward pass, jumps to its peak of about "
    "three tensors of the logits' size where backward begins, falls, and ends with gradients beside weights and state.",
)

# %% watch-explain [markdown]
# The whole lesson in one picture. Weights and Adam's state lie at the bottom, from before the step until after it. The
# forward pass climbs layer by layer and ends with logits and log-probabilities. Backward begins with the three tensors
# you know. What it then carries *in passing* down the layers is the head's part of the tied weights' gradient, which
# waits to be added to the embedding's; thin spikes, from PyTorch 2.15 on, are cuBLAS's workspaces. The optimizer's bump is
# `foreach`, as large as the weights. `zero_grad()` ends the step where it began: gradients that become `None`, the default, are
# freed.
#
# The history also knows the *lines*. Which lines of code hold the peak?

# %% lines-run
import linecache
from collections import Counter
from pathlib import Path


def line_of(event):
    """The first line of the stack that is not PyTorch's own."""
    for frame in event["frames"]:
        if not Path(frame["filename"]).is_relative_to(Path(torch.__file__).parent):
            return linecache.getline(frame["filename"], frame["line"]).strip()
    return "(no Python line: from the thread of autograd)"


live, most, held = {}, 0, Counter()
for event in events:
    if event["action"] == "alloc":
        live[event["addr"]] = event
    elif event["action"] == "free_completed":
        live.pop(event["addr"], None)
    if sum(e["size"] for e in live.values()) > most:
        most, at_peak = sum(e["size"] for e in live.values()), list(live.values())

# %% lines-show
for event in at_peak:
    held[line_of(event)] += event["size"]
for line, size in held.most_common(5):
    print(f"{size / MIB:>6.1f} MiB  {line[:95]}")

# %% lines-explain [markdown]
# (Computed from the sizes in the history. On a real GPU, backward runs in a thread of autograd's, so what it allocates
# has no Python line.) A history can be *looked* at too. `torch.cuda.memory._dump_snapshot("s.pickle")`
# writes it while it is on; the viewer at <https://docs.pytorch.org/memory_viz> draws every block with its stack, in
# your browser and without uploading anything. `python -m torch.cuda._memory_viz trace_plot s.pickle -o s.html` makes a
# page to pass on. Record a few steps, not an epoch: the history has no limit unless you give it `max_entries`.

# %% lines-turn-text [markdown]
# **Your turn** · 3 minutes. This step also reports the accuracy, and at its peak it has four tensors of the logits' size.
# Change it, so that it has three, returns the same number, and runs the model once.

# %% lines-turn tags=["your-turn"]
def scored_step(model, optimizer, inputs, targets):
    """One step on flat targets; returns the accuracy that the model had before it."""
    logits = model(inputs).flatten(0, 1)
    loss = F.cross_entropy(logits, targets)
    # TODO: what must be done with the logits before the peak?
    ### BEGIN SOLUTION
    accuracy = (logits.argmax(-1) == targets).float().mean()
    del logits
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return accuracy
    ### INSTEAD OF
    # loss.backward()
    # optimizer.step()
    # optimizer.zero_grad()
    # return (logits.argmax(-1) == targets).float().mean()
    ### END SOLUTION


gpulab.turn.lean_step(scored_step)

# %% log-text [markdown]
# ### While training
#
# In daily work you log two numbers per epoch: what is allocated *between* steps, and the peak *since the last look*.

# %% log-memory
def log_memory(label):
    """Print allocated, peak and reserved memory of every GPU in MiB, and begin a new peak."""
    if not torch.cuda.is_available():
        print(f"{label}: no GPU")
        return
    for i in range(torch.cuda.device_count()):
        counts = torch.cuda.memory_allocated(i), torch.cuda.max_memory_allocated(i), torch.cuda.memory_reserved(i)
        allocated, peak, reserved = (f"{n / MIB:,.1f}" for n in counts)
        print(f"{label}, cuda:{i}: allocated {allocated}, peak {peak}, reserved {reserved} MiB")
        torch.cuda.reset_peak_memory_stats(i)


# %% log-predict
step_guess = gpulab.predict("A fresh model, four equal steps: in which one is the peak highest for the first time?")

# %% log-run
model, optimizer = fresh()
torch.cuda.reset_peak_memory_stats()
log_memory(f"before training ({gpu.numbers})")
peaks = []
for number in range(1, 5):
    step()
    peaks.append(torch.cuda.max_memory_allocated())
    log_memory(f"step {number}")
step_guess.compare(1 + peaks.index(max(peaks)), gpu.numbers)

# %% log-explain [markdown]
# The second. Adam makes its moments in its first `step()`, after the peak has passed. A job that survives step 1 can run
# out of memory in step 2: a test of one step proves little. Is that always so? Try networks of several kinds and sizes, again
# with shapes only, and ask which phase is the fullest:

# %% where-run
import torchvision


def peak_and_reset():
    peak = torch.cuda.max_memory_allocated() / MIB
    torch.cuda.reset_peak_memory_stats()
    return peak


def tokens(*shape):
    return lambda: torch.zeros(shape, dtype=torch.long)


# %% where-phases
def phases(network, batch, steps=2):
    """For each step the peaks of forward, backward and optimizer.step(), in MiB."""
    with gpulab.VirtualGPU("H200", compute=False):
        with torch.device("cuda"):
            model, x, found = network(), batch(), []
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(steps):
            peak_and_reset()
            logits = model(x).flatten(0, -2)
            loss = F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device="cuda"))
            del logits
            found.append({"forward": peak_and_reset()})
            loss.backward()
            found[-1]["backward"] = peak_and_reset()
            optimizer.step()
            found[-1]["step()"] = peak_and_reset()
            optimizer.zero_grad()
        return found

# %% where-show
cases = {
    "MLP, 8192 rows": (lambda: nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 2048)), lambda: torch.randn(8192, 512)),
    "ResNet-50, 1 image": (torchvision.models.resnet50, lambda: torch.randn(1, 3, 224, 224)),
    "ResNet-50, 64 images": (torchvision.models.resnet50, lambda: torch.randn(64, 3, 224, 224)),
    "GPT-2 small, 1 × 128": (lambda: GPT(12, 768, 128), tokens(1, 128)),
    "GPT-2 small, 4 × 1024": (lambda: GPT(12, 768, 1024), tokens(4, 1024)),
}
for name, case in cases.items():
    first, second = phases(*case)
    fullest, top = max(second, key=second.get), max(first.values())
    higher = round(max(second.values()) / top - 1, 2) + 0.0
    print(f"{name:<22} fullest in {fullest:<9} {second[fullest]:>7,.0f} MiB, step 2 against step 1 {higher:+.0%} (virtual H200)")

# %% where-explain [markdown]
# What decides is activations against parameters. As backward begins there are weights, moments and activations; in `step()` weights,
# moments, gradients and (with `foreach`) temporaries, 8 bytes per parameter in place of the activations. Where the activations
# are more, backward is fullest, and step 2 more than step 1 by the moments. Where they are less, as with one image, with few
# tokens, or with the seven billion parameters above, `step()` is, and step 1 shows it already.
#
# From then on every line is the same, and this is what you look for in a log: **allocated between steps must
# repeat.** If it climbs, something keeps tensors (lesson 05). If only reserved climbs, it is fragmentation, or batches of
# new sizes.
#
# `gpulab.memory` has such helpers ready for notebooks: `print_gpu_memory(label)`, `log_memory(label)` for the `logging`
# module, and `timeline()`, which draws allocated and reserved memory of a block with your marks in it.

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “`nvidia-smi` shows more because it counts PyTorch's cache.” | Incomplete. Also the CUDA context, libraries, and every other process. | *Four numbers for one GPU* |
# | “Call `empty_cache()` to free memory”, with `memory_allocated()` printed before and after. | Wrong number: allocated does not move. It returns cached memory to the driver. | *Four numbers for one GPU* |
# | “`empty_cache()` between epochs keeps memory low.” | It makes PyTorch ask the driver again, and the peak is the same. | *The caching allocator* |
# | “`empty_cache()` fixes out-of-memory errors.” | Misleading: before it gives up, the allocator empties its cache itself. | next cell, lesson 05 |
# | “A 7B model needs 28 GB; Adam adds twice that.” | True in float32. With gradients 112 GB are held; the default optimizer's step takes 28 GB more for a moment, and then there are activations. | *Seven billion parameters* |
# | “Reserved minus allocated is wasted.” | It is a cache, used again at the next step. Some of it may be in pieces. | *The caching allocator* |
# | “Allocated memory is what your tensors use.” | Rounded up: 512 bytes for 4, 12 MiB for 11. | *A question worth asking*, *The caching allocator* |
# | “`zero_grad(set_to_none=True)` saves memory.” | True, and the default. | *Watch a step* |
# | “`eval()` saves memory.” | No: `no_grad()` or `inference_mode()` does. | *What the forward pass keeps* |
# | “Memory should be near the GPU's maximum.” | Reserved goes there by itself and says little; a full GPU can be a slow one. | *The caching allocator* |

# %% web-retry
with gpulab.VirtualGPU("T4", compute=False):
    pieces = [torch.empty(GIB, dtype=torch.uint8, device="cuda") for _ in range(14)]
    del pieces
    print(f"cached: {torch.cuda.memory_reserved() / GIB:.0f} GiB in segments of 1 GiB, none of them in use (virtual T4)")
    whole = torch.empty(10 * GIB, dtype=torch.uint8, device="cuda")
    retries = torch.cuda.memory_stats()["num_alloc_retries"]
    print(f"10 GiB in one piece: granted, after {retries} retry with an emptied cache (virtual T4)")
    del whole

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **A name that does not exist.** Older texts start the memory viewer as `python -m torch.cuda.memory_viz`. The module
# has an underscore:

# %% mistake-viz tags=["raises-exception"]
import importlib

importlib.import_module("torch.cuda.memory_viz")

# %% mistake-viz-repair
from torch.cuda import _memory_viz

page = _memory_viz.trace_plot(snapshot)
print("a page that draws the recorded step:", page.lstrip().startswith("<!DOCTYPE html>"))

# %% mistake-device-text [markdown]
# **The wrong GPU.** Without an argument the functions mean the *current* GPU. A tensor on the second one is invisible:

# %% mistake-device
with gpulab.VirtualGPU("T4", count=2):
    second = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda:1")
    print(f"memory_allocated():         {torch.cuda.memory_allocated() / MIB:>5.0f} MiB (virtual)")
    print(f"memory_allocated('cuda:1'): {torch.cuda.memory_allocated('cuda:1') / MIB:>5.0f} MiB (virtual)")
    del second

# %% mistake-cpu-text [markdown]
# **Monitoring code on a machine without a GPU.** Some functions answer 0, which looks like a measurement. Others raise,
# and not always with a helpful message. The cell asks a Python that sees no GPU:

# %% mistake-cpu tags=["host-dependent"]
import os
import subprocess
import sys

ask = """
import torch
for module in (torch.cuda, torch.cuda.memory, torch.accelerator):
    for name in ("memory_allocated", "empty_cache", "reset_peak_memory_stats", "memory_summary", "current_device",
                 "_record_memory_history"):
        if hasattr(module, name) and not (module is torch.cuda.memory and name[0] != "_"):
            try:
                print(f"{module.__name__}.{name}():", getattr(module, name)())
            except Exception as error:
                print(f"{module.__name__}.{name}(): {type(error).__name__}: {str(error)[:50]}")
"""
blind = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
print(subprocess.run([sys.executable, "-c", ask], env=blind, capture_output=True, text=True, check=True).stdout)

# %% mistake-cpu-repair [markdown]
# Ask `torch.cuda.is_available()` first and say “no GPU” in the log, as `log_memory` above does. Or use
# `torch.accelerator`, whose functions work with other makers' GPUs, and are quiet without one (in PyTorch 2.11 all but
# `reset_peak_memory_stats`).
#
# **A hook that leaks.** The hook in *What the forward pass keeps* returns `tensor.detach()`. Many examples return the
# tensor. Where an operation keeps its own output, the output then holds a graph that holds the output: a cycle through
# C++, which no garbage collector finds.

# %% mistake-hook
x = torch.randn(4 * MIB // 4, device=device, requires_grad=True)
for name, pack in (("returns tensor.detach()", lambda t: t.detach()), ("returns the tensor", lambda t: t)):
    before = torch.cuda.memory_allocated()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = x.exp()
    del output
    left = torch.cuda.memory_allocated() - before
    print(f"the hook {name:<24} after del output {left / MIB:.0f} MiB are left ({gpu.numbers})")

# %% mistake-hook-repair [markdown]
# Only a backward pass would free it. PyTorch's documentation warns of it.
#
# **A peak that belongs to somebody else.** Loading a checkpoint, evaluating, building the model: whatever ran before has
# left its peak. Compare two variants without a reset between them, and the second is never better than the first:

# %% mistake-peak
torch.cuda.reset_peak_memory_stats()
named_step()
first = torch.cuda.max_memory_allocated()
step()
print("the leaner step, without a reset: the same peak:", torch.cuda.max_memory_allocated() == first)
print(f"with a reset {(first / MIB - peak_of(step)):.1f} MiB less ({gpu.numbers})")

# %% mistake-gb-text [markdown]
# **GB that are none.** The same number, as five snippets print it. Only one unit agrees with `nvidia-smi`, and two of
# the labels are wrong:

# %% mistake-gb
reserved = torch.cuda.memory_reserved()
labels = [("/ 1e9", 1e9, "GB"), ("/ 1024**3", 1024**3, "GB"), ("/ 1024**3", 1024**3, "GiB")]
labels += [("/ 1024**2", 1024**2, "MB"), ("/ 1024**2", 1024**2, "MiB")]
for code, unit, label in labels:
    right = {"GB": 1e9, "MB": 1e6, "GiB": 2**30, "MiB": 2**20}[label] == unit
    print(f"{code:<10} {reserved / unit:>9.3f} {label:<4} {'' if right else 'wrong label'}")

# %% mistake-more [markdown]
# **Output thrown away.** `model(x)` without a name, then the counter: the activations are gone before you look.
#
# **Reserved reported as need.** Reserved depends on the order of everything that ran before. Report peak allocated, and
# for “will it fit” peak reserved plus the context.
#
# **“GPU utilization” that prints memory.** A full GPU may be idle. Utilisation is a counter of its own (lesson 10).

# %% quiz-text [markdown]
# ## Quick check
#
# Choose with the arrow keys, answer with Tab and Enter. Every option has its reason.

# %% quiz
gpulab.quiz(4)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. Four numbers: allocated is your tensors, reserved is PyTorch's, the peak is a memory until you reset it, the driver's
#    counts everybody. `empty_cache()` moves only the second, and with it the fourth.
# 2. Float32 training with Adam holds 16 bytes per parameter, and the default step needs 20 for a moment. Autocast does
#    not change that.
# 3. Activations are what derivatives need. In a language model count the logits, three times over: where layers × width is
#    small against the vocabulary, they are most of it. Do not give them a name.
# 4. Allocated is rounded. From 1 to 10 MiB a segment has 20; a small live block pins a large segment.
# 5. The peak is at the beginning of backward where activations outweigh 8 bytes per parameter (Adam), else in `step()`.
#    Measure two steps. Between steps, allocated must repeat.
#
# **For the checklist:** log allocated and peak per epoch, with a reset · every number with its unit and its GPU · one
# snapshot before guessing · two steps before “it fits”.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/04_memory.ipynb): a profiler of the forward pass, the tracker, the buckets of a model, and
# a game of golf against the allocator. Then lesson 05: from `OutOfMemoryError` to a running job.
#
# ## References
#
# - PyTorch documentation: *CUDA semantics*, “Memory management”; *Understanding CUDA Memory Usage*;
#   `torch.cuda.memory_stats`; `torch.autograd.graph.saved_tensors_hooks`; `torch.nn.functional.linear_cross_entropy`.
# - PyTorch source, `c10/cuda/CUDACachingAllocator.cpp`, version 2.15: sizes of segments, rounding, splitting, retries.
# - PyTorch pull request 86509 (lazy loading of kernels: a context of 287 MB instead of 667, recorded there).
#   NVIDIA, *CUDA Programming Guide*, “Lazy Loading”.
# - Rajbhandari et al., *ZeRO*, arXiv 1910.02054 (16 bytes per parameter). Korthikanti et al., *Reducing Activation
#   Recomputation in Large Transformer Models*, arXiv 2205.05198. Touvron et al., *LLaMA*, arXiv 2302.13971 (the shapes
#   of the 7B model). *The Llama 3 Herd of Models*, arXiv 2407.21783 (its vocabulary).

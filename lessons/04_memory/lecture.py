# %% title [markdown]
# # 04 · Memory
#
# **Promise:** you account for every megabyte on a GPU: what holds it, when it goes, and which line put it there.
#
# After this lesson you can **tell apart** the four numbers of GPU memory · **predict** weights, gradients, optimizer
# state, activations and logits · **explain** why free memory is not always usable · **find** the fullest moment of a
# training step, and its cause.
#
# | time | before this | runs on |
# |---|---|---|
# | 60 minutes, and 100 for the exercises | `00_start_here`; lesson 02 helps | any machine |

# %% setup
import matplotlib.pyplot as plt
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

import gpulab

gpu = gpulab.setup()
device, MIB = gpu.device, 2**20

# %% question-text [markdown]
# ## A question worth asking
#
# A float32 number has 4 bytes. You put a single one on an empty GPU. How much memory is gone? Guess what PyTorch will
# call *allocated*.

# %% question-predict
one_guess = gpulab.predict("One float32 on the GPU: how many bytes are allocated?", unit="bytes")

# %% question-run
one = torch.ones(1, device=device)
allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
print(f"tensor {one.nbytes}, allocated {allocated}, reserved {reserved:,} bytes ({gpu.numbers})")
one_guess.compare(allocated, gpu.numbers, because="Memory is handed out in units of 512 bytes.")

# %% question-picture [markdown]
# ![The driver's number has all processes and the CUDA context; in it is what PyTorch reserved; in that the blocks of live tensors; in one the tensor.](../docs/pictures/four_numbers.svg)

# %% question-answer [markdown]
# All four are right. PyTorch fetches memory from the driver in larger pieces than you ask for, and keeps the rest for
# later: *reserved*. The driver also counts what other processes hold, and the **CUDA context**: kernels, page tables
# and stacks of your process. The virtual T4's context of 300 MiB is an assumption; an H200's had 518 MiB (recorded).

# %% four-text [markdown]
# ## Four numbers for one GPU
#
# PyTorch also keeps a high-water mark of *allocated*, the *peak*. Watch four numbers over a few lines of code, in this
# order: allocated, peak, reserved, the driver's.

# %% four-books
def books(label):
    free, total = torch.cuda.mem_get_info()
    allocated, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    numbers = [allocated, peak, torch.cuda.memory_reserved(), total - free]
    print(label, [round(n / MIB, 1) for n in numbers], f"MiB ({gpu.numbers})")


def hold(mib):
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device=device)

# %% four-run
x, y = hold(100), hold(200)
books("x = 100 MiB, y = 200 MiB")
del y
books("del y")
torch.cuda.empty_cache()
books("empty_cache()")
del x

# %% four-explain [markdown]
# | number | ask for it | it counts | it falls |
# |---|---|---|---|
# | allocated | `torch.cuda.memory_allocated()` | blocks of live tensors, in this process | when the last reference to a tensor goes |
# | peak | `torch.cuda.max_memory_allocated()` | the most that was allocated since the last reset | by `reset_peak_memory_stats()`, to what is allocated now |
# | reserved | `torch.cuda.memory_reserved()` | all that PyTorch holds, in use or cached | by `empty_cache()`, or when memory runs out |
# | driver's | `torch.cuda.mem_get_info()`, `nvidia-smi` | the whole GPU, all processes | when a process gives memory back |
#
# `del y` lowers *allocated* and nothing else: the block goes to PyTorch's cache. `empty_cache()` gives cached memory
# back to the driver. **It frees no tensor**, so *allocated* does not move. A request fails when no cached block is
# large enough and the driver has too little left. What helps then is to lower *allocated*.

# %% units-text [markdown]
# The driver's number without *reserved* is the context, memory of libraries such as NCCL, and **other processes**,
# often your own forgotten notebooks; `nvidia-smi` lists them.
#
# **GB** is 10⁹ bytes, **GiB** is 2³⁰: 7.4 % more. Model sizes are given in GB, PyTorch's messages use GiB and MiB,
# `nvidia-smi` MiB. This course divides by 2²⁰ and writes MiB.
#
# **Your turn** · 2 minutes. A tensor is a view of a *storage*, and the storage holds the memory. Here a row of 1 MiB
# keeps a matrix of 100 MiB alive. Two lines reduce *reserved* to what the row needs, while the row stays alive.

# %% row-turn tags=["your-turn"]
def lean_row():
    """The first row of a matrix, on the GPU; PyTorch keeps nothing else."""
    row = torch.ones(100, 2**18, device="cuda")[0]
    # TODO: two lines
    ### BEGIN SOLUTION
    row = row.clone()
    torch.cuda.empty_cache()
    ### END SOLUTION
    return row


gpulab.turn.lean_row(lean_row)

# %% buckets-text [markdown]
# ## Four buckets, and the logits
#
# A training step fills the GPU with four kinds of tensors:
#
# | bucket | bytes |
# |---|---|
# | weights, and buffers such as BatchNorm's statistics | 4 per float32 number |
# | gradients | as the weights |
# | optimizer state | Adam two numbers per weight, momentum one, plain SGD none |
# | activations: what the forward pass keeps for backward | grows with the batch |
#
# ![Two steps. Weights are always there, gradients from backward to zero_grad, optimizer state from the first step on, activations from forward to backward.](../docs/pictures/buckets_in_steps.svg)
#
# In a language model one tensor deserves its own name: the **logits**, one number for each token *and each word of
# the vocabulary*. Here is a small GPT with GPT-2's vocabulary. Its head uses the weights of the token embedding, and
# it has no position embeddings.

# %% gpt
VOCABULARY, TOKENS = 50_257, 64


class GPT(nn.Module):
    def __init__(self, layers=4, width=64, heads=4):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        return self.blocks(self.token(ids), mask, is_causal=True) @ self.token.weight.T

# %% buckets-predict
logits_guess = gpulab.predict(
    "4 texts of 64 tokens, width 64: how many times as large as the weights are the logits?", unit="times"
)

# %% buckets-count
def bucket_bytes(model, optimizer):
    state = [t for s in optimizer.state.values() for t in s.values()]
    return {
        "weights": sum(t.nbytes for t in [*model.parameters(), *model.buffers()]),
        "gradients": sum(p.grad.nbytes for p in model.parameters() if p.grad is not None),
        "optimizer state": sum(t.nbytes for t in state if t.is_cuda),
    }

# %% buckets-run
model = GPT().to(device)
optimizer = torch.optim.AdamW(model.parameters())
ids = torch.randint(VOCABULARY, (4, TOKENS + 1), device=device)
inputs, targets = ids[:, :-1], ids[:, 1:].flatten()
logits = model(inputs)
F.cross_entropy(logits.flatten(0, 1), targets).backward()
optimizer.step()
buckets = bucket_bytes(model, optimizer) | {"logits": logits.nbytes}
for name, size in buckets.items():
    print(f"{name:<16} {size / MIB:>6.1f} MiB ({gpu.numbers})")
ratio = round(buckets["logits"] / buckets["weights"], 1)
logits_guess.compare(ratio, gpu.numbers, because="256 tokens ÷ width 64, less the blocks.")
del logits
optimizer.zero_grad()

# %% buckets-explain [markdown]
# **In the same dtype, the logits are larger than the embedding as soon as the batch has more tokens than the model
# has dimensions.** Llama 3 has 128,256 words: 8192 tokens make 4.2 GB of float32 logits (computed).
#
# Shared weights count once, and `parameters()` gives them once. Buffers are not in
# `parameters()`. Adam also has a step counter per tensor, by default on the CPU.

# %% amp-explain [markdown]
# Does mixed precision halve these buckets? Under `torch.autocast`, weights, gradients and Adam's moments stay
# float32. What operations compute in between can have 16 bits, the logits among them (lesson 07).
#
# ### The fullest moment
#
# The buckets are not all full at the same time, so their sum is not the peak. When in the step is memory fullest?
# Which tensors are as large as the logits, and which of them exist together?

# %% peak-predict
peak_guess = gpulab.predict(
    "By how many times the size of the logits does a step's peak exceed its start?", unit="times"
)

# %% peak-run
def step():
    loss = F.cross_entropy(model(inputs).flatten(0, 1), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


step()
lean = gpulab.memory.peak(step)
print(f"{lean}\nabove the start: {lean.above / buckets['logits']:.2f} times the logits")
ratio = round(lean.above / buckets["logits"], 1)
peak_guess.compare(ratio, gpu.numbers, because="As backward begins, three are alive: "
    "log-probabilities, their gradient, and from it the gradient of the logits.")  # fmt: skip

# %% named-explain [markdown]
# `cross_entropy` does not need the logits for its backward pass. Most training loops give them a name all the same, and
# then a fourth such tensor is alive at the peak. Write `loss = criterion(model(x), y)`, or `del logits` before
# `backward()`.
#
# This model is narrow, and its vocabulary is large. In GPT-2 small, 8 texts of 1024 tokens make four tensors of 1.5
# GiB, half of a peak of 12.4 GiB (virtual: the simulator below, whose step gives the logits a name). The other
# activations grow with depth and width, the logits do not: the larger the model, the smaller the logits' share.

# %% seven-text [markdown]
# ## Seven billion parameters
#
# Float32 training with Adam takes 4 bytes for the weight, 4 for its gradient, 8 for the two moments: **16 bytes per
# parameter**, before the first activation.

# %% seven-turn-text [markdown]
# **Your turn** · 3 minutes. In fine-tuning some layers are *frozen*: `p.requires_grad` is False, backward makes no
# gradient for them, and Adam gets the other parameters only. How many bytes do weights, gradients and moments take
# then? Gradients and moments have their weight's dtype, here float32 or bf16; `p.nbytes` takes that into account.

# %% seven-turn tags=["your-turn"]
def held_bytes(model):
    """Bytes of weights, gradients and Adam's moments, after a step and before zero_grad()."""
    # TODO: two sums over model.parameters(), and what is returned
    ### BEGIN SOLUTION
    weights = sum(p.nbytes for p in model.parameters())
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    return weights + 3 * trained
    ### END SOLUTION


gpulab.turn.held_bytes(held_bytes)

# %% seven-explain [markdown]
# So “a 7B model needs 28 GB” is true of its float32 weights. Training holds 112 GB (computed). ZeRO's recipe for
# mixed precision, 16-bit weights and gradients beside a float32 copy, comes to 2 + 2 + 4 + 4 + 4 = 16 as well; with
# float32 gradients it is 18.
#
# `optimizer.step()` needs memory of its own, too. Measure the second one, when the moments exist:

# %% seven-step
parameters = sum(p.numel() for p in model.parameters())
for options in ({}, {"fused": True}):
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    step()  # makes the moments
    F.cross_entropy(model(inputs).flatten(0, 1), targets).backward()
    extra = gpulab.memory.peak(optimizer.step).above / parameters
    print(f"AdamW {options}: {extra:.1f} bytes per parameter more ({gpu.numbers})")
    optimizer.zero_grad()

# %% seven-step-explain [markdown]
# On a GPU, AdamW by default handles many parameters together (`foreach`), and their intermediate results are as large
# as the weights: **20 bytes per parameter for a moment.** `fused=True` needs nothing extra: at 7 billion parameters
# 112 GB instead of 140 (computed).
#
# ### Which GPU would do?
#
# The simulator opens on 7 billion parameters and a fused Adam. Set *Optimizer* to SGD: which bar loses how much? Back
# to Adam, move *Batch per rank* to 4: the peak moves. Where, and why?

# %% seven-simulator
gpulab.sim.memory_budget(precision="fp32")

# %% kept-text [markdown]
# ## What the forward pass keeps
#
# Weights are easy to count. For activations, look into autograd: each operation keeps what its derivative needs. The hook
# `torch.autograd.graph.saved_tensors_hooks` sees every tensor that autograd keeps, and
# `memory.activation_bytes` adds them up, without weights and inputs.

# %% kept-lines [markdown]
# What do single operations keep of a tensor of 4 MiB?

# %% kept-table
x = torch.randn(512, 2048, device=device, requires_grad=True)  # 4 MiB
for operation in (torch.neg, torch.relu, F.gelu, F.dropout):
    found = gpulab.memory.activation_bytes(operation, x)
    print(f"{operation.__name__:<8} {found} ({gpu.numbers})")

# %% kept-explain [markdown]
# A negation keeps **nothing**: its derivative is −1, whatever x was. That is why counting the outputs of layers goes wrong.
# `relu` keeps its output, `gelu` its input. Dropout keeps a mask of one byte per element.
#
# A linear layer keeps its input, for the gradient of its weights. Put one behind the activation:

# %% gelu-predict
gelu_guess = gpulab.predict(
    "Linear(64, 4096), activation, Linear(4096, 64): GELU keeps how many times what ReLU keeps?",
    unit="times",
)

# %% gelu-run
rows, found = torch.randn(256, 64, device=device), {}
for activation in (nn.ReLU(), nn.GELU()):
    network = nn.Sequential(nn.Linear(64, 4096), activation, nn.Linear(4096, 64)).to(device)
    found[str(activation)[:4]] = gpulab.memory.activation_bytes(network, rows).total
ratio = found["GELU"] / found["ReLU"]
gelu_guess.compare(ratio, gpu.numbers, because="The second layer keeps its input: "
    "ReLU's output is the same storage. GELU keeps its own input beside it.")  # fmt: skip

# %% allocator-text [markdown]
# ## The caching allocator
#
# PyTorch does not ask the driver for each tensor. `cudaMalloc` takes long compared with a small kernel, and
# `cudaFree` waits for the GPU. So the allocator takes *segments* from the driver, cuts *blocks* from them, and keeps
# both.

# %% allocator-predict
nine_guess = gpulab.predict(
    "The cache is empty. A tensor of 9 MiB: how many MiB does PyTorch reserve?", unit="MiB"
)

# %% allocator-table
del x, one, network, rows, model, optimizer  # an empty cache needs an empty GPU
torch._C._cuda_clearCublasWorkspaces()  # up to PyTorch 2.14 they stay, and hold a segment
grown = {}
for mib in (1.5, 9, 10, 11, 19, 21):
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    tensor = hold(mib)
    allocated = (torch.cuda.memory_allocated() - before[0]) / MIB
    grown[mib] = (torch.cuda.memory_reserved() - before[1]) / MIB
    print(f"{mib} MiB: allocated {allocated:g}, reserved {grown[mib]:g} ({gpu.numbers})")
    del tensor
nine_guess.compare(grown[9], gpu.numbers, because="A tensor of more than 1 and less than 10 MiB "
    "gets a segment of 20 MiB. The rest waits for the next ones.")  # fmt: skip

# %% allocator-explain [markdown]
# These are the rules behind the table (PyTorch's defaults):
#
# 1. Sizes are rounded up to 512 bytes. Up to 1 MiB they come from the *small pool*, in segments of 2 MiB; above, from the
#    large pool.
# 2. From 10 MiB on, a tensor gets a segment of its own, rounded up to 2 MiB. Smaller ones of the large pool share.
# 3. What is left of a block is split off; in the large pool only if it is **more than 1 MiB**. So all 12 MiB of the
#    segment for 11 count as *allocated*.
# 4. A request takes the *smallest free block that is large enough*, among those of its stream and pool. Free neighbours
#    within one segment merge.

# %% fragment-text [markdown]
# ### Free and not usable
#
# A free block is no use to a larger request, and free blocks in different segments never become one. And
# `empty_cache()` gives back a segment only if *no* block in it is live. Below, 500 MiB are freed, and something small
# takes their place. `memory_snapshot()` knows all segments and blocks.

# %% fragment-run
torch.cuda.empty_cache()
a, b, large = hold(6), hold(5), hold(500)
del a, large
small = hold(20)  # the smallest free block that is large enough: the 500 MiB
print(f"reserved {torch.cuda.memory_reserved() / MIB:.0f} MiB", end=", ")
torch.cuda.empty_cache()
print(f"after empty_cache() {torch.cuda.memory_reserved() / MIB:.0f} MiB ({gpu.numbers})")

# %% fragment-plot
figure, axes = plt.subplots(figsize=(7.2, 2.2))
for segment in torch.cuda.memory_snapshot():
    left, name = 0, f"segment of {segment['total_size'] / MIB:.0f} MiB"
    for block in segment["blocks"]:
        size = 100 * block["size"] / segment["total_size"]
        color = gpulab.style.ORANGE if block["state"] == "active_allocated" else "white"
        axes.barh(name, size, left=left, color=color, edgecolor="black")
        left += size
axes.set(xlabel=f"% of the segment ({gpu.numbers})")
axes.set_title("One live block (orange) keeps its whole segment")
gpulab.style.show(figure, alt="Segments as bars of blocks: small live ones, large free ones")

# %% fragment-explain [markdown]
# A tensor of 20 MiB keeps a segment of 500. The free blocks are *usable*, by requests that are small enough, in this
# process. They are not *returnable*: `memory_summary()` counts them as *Non-releasable memory*. So the gap between
# reserved and allocated is a cache. Worry when *reserved* keeps growing while *allocated* does not, or when another
# process wants the memory.

# %% sizes-text [markdown]
# **Your turn** · 2 minutes. Choose four sizes in MiB, all different and together 19 or more. Allocated one after the
# other on an empty GPU, they must reserve exactly 20 MiB.

# %% sizes-turn tags=["your-turn"]
def four_sizes():
    ### BEGIN SOLUTION
    return [9.5, 4.5, 3.5, 2]
    ### INSTEAD OF
    # return [0.5, 9, 8, 3]
    ### END SOLUTION


gpulab.turn.four_sizes(four_sizes)

# %% reuse-text [markdown]
# ### What the cache is good for
#
# With batches of one shape, each step asks for the same sizes and gets the same blocks. After the first steps PyTorch
# need not ask the driver any more; *While training* below counts it.

# %% allocator-simulator-text [markdown]
# ### See it move
#
# The simulator opens on a request of 60 MiB that fails with 76 MiB free. Step back and forth. Which order of the same
# commands would have worked? Then tick *expandable_segments*: what does the failing request do now?

# %% allocator-simulator
gpulab.sim.allocator()

# %% tracker-text [markdown]
# ## A tracker of your own
#
# `memory.peak(f)` measures a call. For a stretch of code you want `with tracker:`. Its recipe has three lines: reset,
# run, read. Exercise 3 is to write one that is never wrong:
#
# | it must hold | because |
# |---|---|
# | when nested | a reset wipes the peak for all: before it, every open tracker must note the peak |
# | absolute and relative | after a reset the peak is what is allocated *now*, not zero; a change may be negative |
# | after an exception | `__exit__` notes the result and returns False: True would swallow the error |
# | on one GPU | no argument means the *current* GPU, which the code inside may change |
# | without a GPU | `memory_allocated()` says 0; `reset_peak_memory_stats()`, `_record_memory_history()` raise |
# | when used again | it begins anew; entering it while it is open is an error |

# %% watch-text [markdown]
# ## Watch a step
#
# A peak is one number. To find its cause, look at memory over time. PyTorch can record every allocation and free,
# with the line of Python. `memory.timeline()` draws that record. Point at a band to see its size and its line.

# %% watch-record
del b, small
model = GPT().to(device)
optimizer = torch.optim.AdamW(model.parameters())
step()
with gpulab.memory.timeline() as told:
    told.mark("forward")
    loss = F.cross_entropy(model(inputs).flatten(0, 1), targets)
    told.mark("backward")
    loss.backward()
    told.mark("optimizer")
    optimizer.step()
    optimizer.zero_grad()
    del loss
told

# %% watch-explain [markdown]
# Weights and Adam's state lie at the bottom all the time. The forward pass climbs layer by layer and ends with the
# logits. Backward begins with the three tensors you know; that is the peak. The optimizer's bump is `foreach`'s
# temporary. `zero_grad()` ends the step where it began: gradients become `None`, the default, and are freed.
#
# PyTorch's own viewer shows the same record. Call `torch.cuda.memory._record_memory_history()`, run a step, and write it
# by `torch.cuda.memory._dump_snapshot("step.pickle")`. The leading underscores say that these functions may change.

# %% watch-viewer-text [markdown]
# Drop the file on <https://docs.pytorch.org/memory_viz>; it stays in your browser. Or make a page to pass on:
# `python -m torch.cuda._memory_viz trace_plot step.pickle -o step.html`. (The module's name has an underscore; older
# texts leave it out.) On a real GPU, backward runs in a thread of autograd's, so its blocks may have no Python line.
#
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

# %% log-predict
step_guess = gpulab.predict("A fresh model, four steps: which one first reaches the highest peak?")

# %% log-run
del model, optimizer
torch.cuda.empty_cache()
model = GPT().to(device)
optimizer = torch.optim.AdamW(model.parameters())
peaks, before = [], torch.cuda.memory_stats()["num_device_alloc"]
for number in range(1, 5):
    torch.cuda.reset_peak_memory_stats()
    step()
    peaks.append(torch.cuda.max_memory_allocated())
    calls = torch.cuda.memory_stats()["num_device_alloc"] - before
    print(f"step {number}: peak {peaks[-1] / MIB:.1f} MiB, cudaMalloc so far {calls}", end=", ")
    print(f"allocated {torch.cuda.memory_allocated() / MIB:.1f} MiB ({gpu.numbers})")
step_guess.compare(1 + peaks.index(max(peaks)), gpu.numbers, because="Adam makes its moments "
    "in its first step(), after the peak. From step 2 on they lie beneath it.")  # fmt: skip

# %% log-explain [markdown]
# A job that survives its first step can still run out of memory. From step 2 on **allocated between steps must stay
# the same.** If it climbs, something keeps tensors (lesson 05). If only reserved climbs, suspect fragmentation or new
# batch sizes.
#
# Is memory always fullest as backward begins? Try a ResNet-50 with one image and with many, and a VGG-16:

# %% where-run
def job(batch):
    model = torchvision.models.get_model(name).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(batch, 3, 224, 224, device="cuda")

    def step():
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


for name, n in ("resnet50", 1), ("resnet50", 32), ("vgg16", 12):
    p = gpulab.plan(job, n, "T4", where=True)
    print(f"{name}, batch {n}: {p.peak_allocated / MIB:,.0f} MiB (virtual), {p.where.line.source}")

# %% where-explain [markdown]
# It depends on what weighs more. In backward there are activations; in `step()` there are gradients and `foreach`'s
# temporaries in their place, together 8 bytes per parameter. Roughly, the larger of the two decides. VGG-16 is an
# exception, since most weights are in its last layers: its 832 MiB of activations (virtual) are less than 8 bytes per
# parameter, 1,056 MiB (computed), and yet its peak is in backward. Ask `plan`.

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “`nvidia-smi` shows more because it counts PyTorch's cache.” | Incomplete: also the context, libraries, and every other process. | *Four numbers for one GPU* |
# | “Call `empty_cache()` to free memory.” | It frees no tensor; it returns cached memory to the driver. | *Four numbers for one GPU* |
# | “`empty_cache()` between epochs keeps memory low.” | The peak of allocated memory is the same, and PyTorch has to ask the driver again. | *While training* |
# | “A 7B model needs 28 GB; Adam adds twice that.” | True in float32. With gradients 112 GB are held; the default step takes 28 GB more for a moment, and there are activations. | *Seven billion parameters* |
# | “Reserved minus allocated is wasted.” | It is a cache, for the next step. Some of it may be in pieces. | *The caching allocator* |
# | “Allocated memory is what your tensors use.” | It is more, rounded up: 512 bytes for 4, 12 MiB for 11. | *The caching allocator* |
# | “`eval()` saves memory.” | No: `no_grad()` or `inference_mode()` does. | lesson 05 |

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **A peak that belongs to somebody else.** Whatever ran before has left its peak. Without a reset between two variants,
# the second never looks better than the first.
#
# **The wrong GPU.** Without an argument the functions mean the *current* GPU. What lies on `cuda:1` needs
# `memory_allocated("cuda:1")`.
#
# **GB where GiB is meant.** Bytes divided by `1024**3` are GiB, and by `1e9` GB. Only MiB agree with `nvidia-smi`.
#
# **Reserved memory reported as the need.** It depends on all that ran before. Report the peak of allocated memory.
#
# **“GPU utilization” that prints memory.** A full GPU may be idle. Utilisation is another counter (lesson 10).

# %% quiz-text [markdown]
# ## Quick check
#
# Choose with the arrow keys, answer with Tab and Enter. Every option has its reason.

# %% quiz
gpulab.quiz(4)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. Allocated is your tensors, reserved is PyTorch's, the peak stays until you reset it, the driver's number counts
#    everybody. `empty_cache()` lowers reserved, and with it the driver's number.
# 2. Float32 training with Adam holds 16 bytes per parameter, and the default step needs 20 for a moment. Autocast does
#    not change that.
# 3. Activations are what derivatives need. In a language model count three tensors of the logits' size, and do not
#    give the logits a name.
# 4. Allocated is rounded up, and a small live block keeps a large segment.
# 5. The peak is mostly at the beginning of backward or in `step()`: with the default AdamW, activations against 8
#    bytes per parameter roughly decide. Ask `plan`. Measure two steps. Between steps, allocated must stay the same.
#
# ## What next
#
# The [exercises](../exercises/04_memory.ipynb): a profiler of the forward pass, the tracker, the buckets of a model, and
# a game of golf against the allocator. Then lesson 05: from `OutOfMemoryError` to a running job.

# %% references [markdown]
# ## References
#
# - PyTorch documentation: *CUDA semantics*, “Memory management”; *Understanding CUDA Memory Usage*. Source:
#   `c10/cuda/CUDACachingAllocator.cpp`.
# - Rajbhandari et al., *ZeRO*, arXiv 1910.02054. *The Llama 3 Herd of Models*, arXiv 2407.21783.

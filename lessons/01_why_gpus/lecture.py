# %% title [markdown]
# # 01 · Why GPUs
#
# **Promise:** you say when a GPU helps, by how much, and why, from two numbers of the work and two
# of the machine.
#
# After this lesson you can
#
# 1. **compare** a CPU and a GPU in lanes, operations per second and bytes per second;
# 2. **explain** why a GPU wants so many threads, and what a warp, an SM and a tensor core are;
# 3. **count** the operations and bytes of a layer, and say which of the two it waits for;
# 4. **predict** the speed-up of a whole job, and the size below which the CPU wins.
#
# | time | before this | runs on |
# |---|---|---|
# | 60 minutes, and 40 for the exercises | `00_start_here`; you know what a matrix product is | any machine |

# %% question-text [markdown]
# ## A question worth asking
#
# Two machines run 708 image models: a GPU, an RTX 3090, and a CPU with 14 cores, an i9-10940X. The
# GPU is always faster. For one model it is only 11 times faster.

# %% timm-predict
import gpulab

most_guess = gpulab.predict("And at most: how many times as fast is the GPU?", unit="times")

# %% timm-run
import matplotlib.pyplot as plt

gpulab.style.use()
slow = "infer-fp32-nchw-pt240-cpu-i9_10940x-dynamo"
fast = "infer-amp-nchw-pt240-cu124-rtx3090"
gains = gpulab.data.gains(slow, fast, equal_batch=False)
ratios = sorted(gain.ratio for gain in gains)
figure, axes = plt.subplots(figsize=(7.2, 2.6))
axes.hist(ratios, bins=[10 * 2 ** (step / 4) for step in range(21)])
axes.set(xscale="log", xlabel="GPU's images per second / CPU's (recorded)", ylabel="models")
axes.set_xticks([10, 20, 40, 80, 160, 320], [10, 20, 40, 80, 160, 320])
axes.set_title(f"{ratios[0]:.0f} to {ratios[-1]:.0f} times, half of them below {ratios[353]:.0f}")
gpulab.style.show(figure, alt="Histogram of the GPU's gain for 708 models: most lie from 28 to 76.")
why = "No single number is the speed-up of two machines."
most_guess.compare(round(ratios[-1]), "recorded", because=why)

# %% timm-explain [markdown]
# On the same two machines, the gains differ by a factor of 27. The setting matters as well: here
# the GPU ran in AMP, with up to 1024 images in a batch, and the CPU in fp32, one image at a time.

# %% setup
import torch
from torch import nn
from torch.nn import functional as F

gpu = gpulab.setup()


def microseconds(function, repeat=20 if gpu.numbers == "measured" else 2):
    """Median time of a call on the GPU, in µs."""
    return gpulab.timing.measure(function, repeat=repeat, warm_up=1).median_ms * 1000


# %% question-relu-text [markdown]
# What decides the gain? Start with a simple operation. A popular page explains it like this: a ReLU
# over 524,288 numbers is 524,288 independent operations. An A100 has 6912 cores, so it needs 76
# rounds. Here is the same calculation for your GPU, and the ReLU itself.

# %% question-predict
relu_guess = gpulab.predict("How long does this ReLU over 1024 × 512 numbers take?", unit="µs")

# %% question-run
properties = torch.cuda.get_device_properties(gpu.device)
lanes = 64 if gpu.capability in ((7, 0), (7, 5), (8, 0)) else 128  # in one multiprocessor
cores = properties.multi_processor_count * lanes
x = torch.randn(1024, 512, device=gpu.device)
rounds = -(-x.numel() // cores)
print(f"{x.numel():,} numbers / {cores:,} cores: {rounds} rounds")
print(f"at 1.5 GHz and one clock each: {rounds / 1.5 / 1000:.2f} µs (computed)")
why = "The cores are not what it waits for."
relu_guess.compare(round(microseconds(x.relu), 1), gpu.numbers, because=why)

# %% question-answer [markdown]
# The calculated time is far too short. What does the ReLU wait for? Change one thing at a time:
# first the arithmetic, then the bytes. `gelu` takes some twenty instructions for a number, `relu`
# takes one. The tensor is larger now, 128 MiB, so that starting the work counts little.

# %% question-gelu
big = torch.randn(2**25, device=gpu.device)
half = big.half()  # the same numbers in 16 bits
calls = {
    "relu": lambda: torch.relu(big),
    "gelu": lambda: F.gelu(big),
    "relu, 16 bits": lambda: torch.relu(half),
}
for name, call in calls.items():
    print(f"{name:<13} {microseconds(call):>5.0f} µs ({gpu.numbers})")

# %% question-verdict [markdown]
# More arithmetic costs next to nothing, and half of the *bytes* take about half of the time. An
# elementwise operation on a large tensor waits for memory: 128 MiB come in, 128 MiB go out.
#
# A T4's cores do 4 × 10¹² instructions a second, so twenty for each of 2²⁵ numbers take 168 µs
# (computed). Its memory, rated at 320 GB/s, needs at least 839 µs.
#
# This is the key to the lesson: **a GPU is two machines. One computes, one moves bytes. You have to
# know which of them you are waiting for.**

# %% half-turn-text [markdown]
# **Your turn** · 2 minutes. Change one line, so that `prepare(big).relu()` takes half of the time
# and still gives as many results.

# %% half-turn tags=["your-turn"]
def prepare(x):
    ### BEGIN SOLUTION
    return x.half()
    ### INSTEAD OF
    # return x  # TODO: what does its ReLU wait for?
    ### END SOLUTION


gpulab.turn.half_the_time(prepare)

# %% lanes-text [markdown]
# ## Few fast cores, many slow lanes
#
# A CPU is built to finish *one* thread fast. It spends most of its area on caches, branch
# prediction and control. A GPU is built for the throughput of *many* threads, and spends that area
# on arithmetic.
#
# | | CPU | GPU |
# |---|---|---|
# | goal | latency of one thread | throughput of all threads |
# | cores | 8 to 192, each strong | 20 to 190 streaming multiprocessors (SMs), each wide |
# | clock | 4 to 6 GHz (servers: 2 to 5) | 1.4 to 2.6 GHz |
# | waiting for memory | avoided by caches | hidden by running other threads |
# | memory | up to terabytes, 50 to 850 GB/s | 8 to 288 GB, 250 to 8000 GB/s |
# | suits | serial code, branches, I/O | the same arithmetic on much data |
#
# “6912 cores against 24” compares two different things. A “CUDA core” is one arithmetic **lane**:
# it does one multiply-add in a clock, and fetches no instructions of its own. A CPU has such lanes
# too, in its vector units.

# %% lanes-run
# cores (or SMs), fp32 lanes in each, GHz, memory in GB/s: recorded, from data sheets
machines = {
    "8-core CPU": (8, 2 * 16, 4.0, 90),  # two AVX-512 units of 16 lanes in each core
    "i9-14900K": (8, 2 * 8, 5.6, 90),  # its eight performance cores, AVX2
    "T4": (40, 64, 1.59, 320),
    "A100-80": (108, 64, 1.41, 2039),
    "RTX 4090": (128, 128, 2.52, 1008),
    "H100": (132, 128, 1.98, 3350),
}
print("             lanes  fp32 TFLOP/s  × CPU   GB/s  × CPU  (computed)")
for name, (cores, lanes, clock, memory) in machines.items():
    peak = 2 * cores * lanes * clock / 1000  # a multiply-add is two operations
    gain = f"{peak / 2.048:>6.1f}  {memory:>5}  {memory / 90:>5.1f}"
    print(f"{name:<11} {cores * lanes:>6,}  {peak:>12.1f} {gain}")

# %% lanes-explain [markdown]
# The small CPU has 256 lanes, at almost three times the clock of an A100, which has 27 times the
# lanes. The A100's arithmetic is 9.5 times as fast, its memory 23 times. Work in fp32 that uses
# both machines equally well gains between 9.5 and 23 times.
#
# Larger claims compare something else as well: two formats, two batch sizes, or a CPU that used one
# lane of one core. [Which GPU?](../docs/cards.md) has the same columns for all GPUs of the course.

# %% warps-text [markdown]
# ## Warps: 32 threads, one instruction
#
# You write a GPU program for one thread: “read my number, change it, write it”. The hardware runs
# the threads in **warps** of 32. All threads of a warp get the same instruction at the same time
# (*single instruction, multiple threads*, SIMT).
#
# At a branch, a warp whose threads disagree runs both sides, each time with the other threads
# switched off:
#
# ![All 32 threads of a warp agree: one side runs. Five disagree: both sides run, one after the other.](../docs/pictures/warp.svg)
#
# In the toy below, each side takes 10 clocks. First none of its 1024 threads branches, then every
# 32nd.

# %% warps-predict
branch_guess = gpulab.predict("Every 32nd thread branches: how many times as slow?", unit="times")

# %% warps-run
def warp_clocks(takes_branch, cost=10):
    """Clocks of all warps together for an if/else whose sides cost `cost` clocks each."""
    warps = takes_branch.view(-1, 32)
    enter_if = warps.any(dim=1).sum()
    enter_else = (~warps).any(dim=1).sum()
    return int(cost * (enter_if + enter_else))


thread = torch.arange(1024)
none = warp_clocks(thread < 0)
some = warp_clocks(thread % 32 == 0)
print(f"none: {none} clocks, every 32nd thread: {some} clocks (computed)")
why = "Each warp has one thread that disagrees, so each runs both sides."
branch_guess.compare(some / none, "computed", because=why)

# %% masks-turn-text [markdown]
# **Your turn** · 3 minutes. Write two masks of 1024 threads in which exactly half of the threads
# take the branch. The first must cost as little as no branch at all, the second as much as
# possible.

# %% masks-turn tags=["your-turn"]
def masks(thread):  # thread is torch.arange(1024)
    ### BEGIN SOLUTION
    cheap = thread < 512
    expensive = thread % 2 == 0
    return cheap, expensive
    ### INSTEAD OF
    # cheap = thread < 0  # TODO: 512 of 1024
    # expensive = thread < 0  # TODO: 512 of 1024
    # return cheap, expensive
    ### END SOLUTION


gpulab.turn.two_masks(masks)

# %% masks-after [markdown]
# What counts is whether threads of one warp disagree, not how many take the branch. In PyTorch,
# `torch.where(mask, f(x), g(x))` likewise computes both `f` and `g` for all elements.

# %% latency-text [markdown]
# ### Hiding latency
#
# An A100 takes 330 ns to fetch a number that is in no cache (recorded), a CPU typically 90 ns. The
# GPU's memory answers *later*, but delivers more at once. It reaches 2 TB/s only if very many
# requests are on their way. **Little's law** says how many bytes:
#
# $$\text{bytes in flight} = \text{bandwidth} \times \text{latency}$$
#
# ![Little's law as two pipes: the A100's is 2039 GB/s wide and 330 ns long and holds 673 kB, the CPU's is 90 GB/s wide and 90 ns long and holds 8 kB.](../docs/pictures/bytes_in_flight.svg)

# %% latency-explain [markdown]
# For the A100 that is 673 kB: 168,000 threads that wait for 4 bytes each, three quarters of the
# threads that it has room for (computed). So its SMs keep up to 64 warps **resident** (a T4's 32,
# an RTX 4090's 48), each with its registers in place. While one warp waits, another runs, and the
# switch costs nothing.
#
# Small work cannot be fast: an operation that moves less than 673 kB never fills this pipe.
#
# ### See it move
#
# This toy GPU has 4 SMs with 32 lanes each. 8 warps in an SM are too few to hide a wait of 31
# clocks. Warps come to an SM in *blocks*; the blocks that the GPU has room for at once are a
# *wave*.
#
# 1. Set *Room for warps in an SM* to 16, then to 32. When are the lanes busy, and why just there?
# 2. Add a few elements (an arrow key). What does the last, almost empty wave cost?

# %% simulator-architecture
gpulab.sim.architecture(wait=31, room=8, elements=8192, frame=40)

# %% parts-text [markdown]
# ## What a GPU is made of
#
# ![Data paths of an A100 to scale: registers to lanes 117 TB/s, L1 and shared memory 19.5, L2 7.2, HBM 2.0, PCIe 0.03.](../docs/pictures/gpu_memories.svg)
#
# | part | on an A100 (recorded) | what it is for |
# |---|---|---|
# | SM | 108 | the GPU's core: issues warps, holds their registers |
# | FP32 lane (“CUDA core”) | 64 in an SM | one multiply-add in a clock |
# | tensor core | 4 in an SM | a product of small matrices in one instruction |
# | registers | 256 KiB in an SM | the numbers of the resident threads |
# | L1 and shared memory | 192 KB in an SM | numbers that the threads of a block use again |
# | L2 cache | 40 MB | shared by all SMs |
# | HBM | 80 GB at 2039 GB/s | all tensors live here |
#
# The farther from the lanes, the narrower the path. HBM (*high-bandwidth memory*) is stacked beside
# the chip, in the same package.
#
# A **tensor core** does one thing: it multiplies small matrices and adds, in fp16, bf16, TF32 or
# narrower formats (on some GPUs in fp64 too). How much do a product and a ReLU gain?

# %% tensor-run
with gpulab.VirtualGPU("A100-80", compute=False):
    full = torch.randn(4096, 4096, device="cuda")
    half = full.half()
    for name, function in (("product", lambda x: x @ x), ("ReLU", torch.relu)):
        fp32 = microseconds(lambda f=function: f(full), repeat=2)
        fp16 = microseconds(lambda f=function: f(half), repeat=2)
        print(f"{name:<7} {fp32:>5.0f} µs, in fp16 {fp16:>4.0f}: {fp32 / fp16:.1f} × (virtual)")

# %% tensor-explain [markdown]
# The product gains from tensor cores, the ReLU only from fewer bytes. By data sheets, 16-bit tensor
# cores are twice (RTX 4090) to thirty times (B200) as fast as fp32 lanes.

# %% roofline-text [markdown]
# ## Operations per byte, and the roof
#
# Two numbers describe the work: its floating-point operations (**FLOPs**; a multiply-add is two)
# and the **bytes** it moves to and from memory. Their ratio is the **arithmetic intensity**. The
# machine has the same ratio, peak rate over bandwidth, called its **balance**. Work with an
# intensity above the balance is bound by arithmetic, work below it by memory:
#
# $$\text{time} \;\ge\; \max\left(\frac{\text{FLOPs}}{\text{peak rate}},\; \frac{\text{bytes}}{\text{bandwidth}}\right)$$
#
# A product of two $n \times n$ matrices does $2n^3$ operations on $3n^2$ numbers: **each number is
# used many times once it is there**. A ReLU uses it once. In fp16 a T4 has a balance of 203
# operations per byte, an A100 of 153, an H100 of 295 (computed from data sheets). From which size
# on does a product exceed these?

# %% roofline-intensity
def product_cost(rows, depth, columns, width=2):
    """FLOPs and bytes of (rows, depth) @ (depth, columns), `width` bytes a number."""
    nbytes = width * (rows * depth + depth * columns + rows * columns)
    return 2 * rows * depth * columns, nbytes


for n in (64, 512, 4096):
    flops, nbytes = product_cost(n, n, n)
    print(f"{n:>4} × {n:<4} product     {flops / nbytes:>5.0f} operations per byte (computed)")

# %% roofline-counter-text [markdown]
# PyTorch counts the FLOPs of products, convolutions and attention for you, and none for a ReLU,
# which takes time all the same. A layer of 1024 inputs and outputs does 1,048,576 multiply-adds for
# each row.

# %% roofline-counter
from torch.utils.flop_counter import FlopCounterMode

layer = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU())
with FlopCounterMode(display=False) as counter:
    layer(torch.randn(1, 1024))
print(f"{counter.get_total_flops():,} FLOPs for one row (computed)")

# %% roofline-rows-text [markdown]
# For one row, a layer reads each weight and uses it once. For 64 rows it does 64 times as much
# arithmetic on the same weights. Here is a layer of a language model, 4096 × 4096 in fp16:

# %% roofline-rows-predict
rows_guess = gpulab.predict("64 rows in place of 1: how many times as long?", unit="times")

# %% roofline-rows
weight = torch.randn(4096, 4096, device=gpu.device, dtype=torch.float16)
took = {}
for rows in (1, 8, 64, 256):
    inputs = torch.randn(rows, 4096, device=gpu.device, dtype=torch.float16)
    took[rows] = microseconds(lambda x=inputs: x @ weight)
    flops, nbytes = product_cost(rows, 4096, 4096)
    print(f"{rows:>3} rows: {flops / nbytes:>4.0f} FLOPs/byte, {took[rows]:.0f} µs ({gpu.numbers})")
why = "Either way the weights are read once, and the arithmetic is done meanwhile."
rows_guess.compare(round(took[64] / took[1], 2), gpu.numbers, because=why)

# %% roofline-gpt-text [markdown]
# Does that hold for a network? Here are the twelve layers of a small GPT on a virtual T4, with one
# new token in each of several texts. (Attention to earlier tokens is left out: its bytes grow with
# the number of texts.)

# %% roofline-gpt
with gpulab.VirtualGPU("T4", compute=False), torch.no_grad():
    layer = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, batch_first=True)
    gpt = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).cuda().half()
    for texts in (1, 8, 64, 1024):
        x = torch.randn(texts, 1, 768, device="cuda", dtype=torch.float16)
        gpt(x)
        ms = gpulab.timing.operations(lambda x=x: gpt(x)).ms
        print(f"{texts:>4} texts: {ms:>5.2f} ms, {1000 * ms / texts:>6.1f} µs a text (virtual)")

# %% roofline-gpt-explain [markdown]
# A batch costs little until its intensity comes near the balance. This is one reason why training
# uses batches, and why a server that writes one token at a time answers many users together. (These
# are the GPU's own times. With launches from Python one text takes three times as long; more texts
# still cost little.)
#
# ### See it move
#
# The roofline draws both limits on logarithmic axes: a slope for memory, a flat roof for
# arithmetic. It opens on the layer above with one row, on a T4.
#
# 1. Raise *Rows* until the product reaches the flat roof. Where does the slope end?
# 2. Go back to one row and take an H100. How much do 15 times the arithmetic and 10 times the
#    bandwidth help?
# 3. Choose GELU. Is there a size at which it reaches the roof?

# %% simulator-roofline
gpulab.sim.roofline(rows=1)

# %% waits-turn-text [markdown]
# **Your turn** · 4 minutes. What does each of these operations wait for on a T4 (fp16, 65 TFLOP/s,
# 320 GB/s, 5 µs for a launch): `"arithmetic"`, `"memory"` or `"launch"`? The longest of the three
# times decides.

# %% waits-turn tags=["your-turn"]
def waits_for():
    # TODO: a word in place of each None
    ### BEGIN SOLUTION
    return {
        "relu of 64 Mi numbers": "memory",
        "relu of 1,000 numbers": "launch",
        "4096 × 4096 product": "arithmetic",
        "1 row × 4096 × 4096": "memory",
        "softmax of 4096 × 4096": "memory",
        "3 × 3 convolution": "arithmetic",  # 64 images of 56 × 56, 256 to 256 channels
    }
    ### INSTEAD OF
    # return {
    #     "relu of 64 Mi numbers": None,
    #     "relu of 1,000 numbers": None,
    #     "4096 × 4096 product": None,
    #     "1 row × 4096 × 4096": None,
    #     "softmax of 4096 × 4096": None,
    #     "3 × 3 convolution": None,  # 64 images of 56 × 56, 256 to 256 channels
    # }
    ### END SOLUTION


gpulab.turn.what_waits(waits_for)

# %% network-text [markdown]
# ## A real network under the roof
#
# In a layer of BERT, matrix products do 99.8 % of the operations. Normalisations and elementwise
# operations do the rest. Ivanov and others measured a training step on a V100.

# %% network-predict
network_guess = gpulab.predict("What share of the time is not matrix products?", unit="per cent")

# %% network-recorded
why = "The other operations do little arithmetic, and wait for memory."
network_guess.compare(25.5 + 13.5, "recorded", because=why)

# %% network-resnet-text [markdown]
# | kind of operation | FLOPs | time (recorded) |
# |---|---:|---:|
# | matrix products | 99.80 % | 61.0 % |
# | normalisations: softmax, layer norm | 0.17 % | 25.5 % |
# | elementwise: bias, dropout, activation | 0.03 % | 13.5 % |
#
# And a convolutional network? One forward pass of ResNet-50, 64 images in bf16, on a virtual A100.
# `timing.operations` lists what ran on the GPU:

# %% network-run
import torchvision

with gpulab.VirtualGPU("A100-80", compute=False), torch.no_grad():
    network = torchvision.models.resnet50().to("cuda", torch.bfloat16)
    network = network.to(memory_format=torch.channels_last)
    images = torch.randn(64, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    images = images.to(memory_format=torch.channels_last)
    network(images)
    print(gpulab.timing.operations(lambda: network(images), top=4))

# %% network-explain [markdown]
# Convolutions do practically all of the arithmetic, on this GPU in two fifths of the time.
# Batch norms, additions and ReLUs take the rest, and wait for memory. FLOPs alone do not tell the time of a
# network.
#
# Later lessons measure the remedies: **fuse** elementwise operations, so that the bytes move once
# (11); use 16 bits, so that there are fewer (07); keep attention's intermediate results on the chip
# (06).

# %% amdahl-text [markdown]
# ## Amdahl: the part that does not get faster
#
# A GPU speeds up one part of the job. If that part takes a share $p$ of the time and becomes $k$
# times as fast, then the whole job gains
#
# $$\text{speed-up} = \frac{1}{(1 - p) + p / k} \;\le\; \frac{1}{1 - p}$$
#
# Take a step with 30 % loading and 70 % computing, and a GPU that computes 10 times as fast:

# %% amdahl-run
def speedup(share, factor):
    return 1 / (1 - share + share / factor)


for share, factor in ((0.70, 10), (0.95, 8), (0.95, float("inf")), (0.99, 100)):
    print(f"{share:.0%} of it {factor:>3} × as fast: {speedup(share, factor):>4.1f} × (computed)")

# %% amdahl-explain [markdown]
# A GPU ten times as fast makes this step less than three times as fast. There are two ways out.
# **Overlap**: load while the GPU computes, so that only the longer of the two times counts (lesson
# 09). **Grow the problem**: a larger model computes more on the same data (Gustafson's law).

# %% small-text [markdown]
# ## When the CPU wins
#
# Three costs do not shrink with a faster GPU. Each kernel must be **launched** (5 to 15 µs from
# Python), data must **cross the bus**, and a small problem leaves most lanes **idle**.
#
# Give the CPU every advantage: it reaches its data sheet's peak at any size. A virtual A100 runs
# the same matrix product and the same ReLU. *There and back* means that data and result belong on
# the host.

# %% small-run
sizes = [2**i for i in range(4, 12)]
gains = {"product, data on the GPU": [], "product, there and back": [], "ReLU, there and back": []}
with gpulab.VirtualGPU("A100-80"):
    for n in sizes:
        host, there = torch.randn(n, n), torch.randn(n, n, device="cuda")
        gpu_times = (
            microseconds(lambda: there @ there, repeat=2),
            microseconds(lambda: (host.cuda() @ host.cuda()).cpu(), repeat=2),
            microseconds(lambda: host.cuda().relu().cpu(), repeat=2),
        )
        product = 1 + max(2 * n**3 / 2.05e6, 12 * n**2 / 90e3)  # CPU: 2.05 TFLOP/s, 90 GB/s, in µs
        relu = 1 + 8 * n**2 / 90e3
        for values, cpu, took in zip(gains.values(), (product, product, relu), gpu_times):
            values.append(cpu / took)

# %% small-plot
figure, axes = plt.subplots(figsize=(7.2, 3.4))
for (name, values), style in zip(gains.items(), ("o-", "s--", "^:")):
    axes.plot(sizes, values, style, label=name)
    ahead = [n for n, gain in zip(sizes, values) if gain > 1]
    print(f"{name:<25} GPU ahead from n = {min(ahead, default='none')} (virtual)")
axes.axhline(1, color="black", linewidth=1)
axes.set_xscale("log", base=2)
axes.set(yscale="log", xlabel="n, for n × n numbers", ylabel="CPU's time / A100's")
axes.set_xticks(sizes, sizes)
axes.set_title("A large product pays for its way to the GPU, a ReLU does not")
axes.legend()
gpulab.style.show(figure, alt="Products rise from far below 1 to about 9, a ReLU stays below 1.")

# %% small-explain [markdown]
# A product's arithmetic grows with $n^3$ and its bytes with $n^2$, so at some size it pays for its
# trip. The ReLU's bytes cross the bus twice, and PCIe 4 moves 32 GB/s where this CPU reads its own
# memory at 90. How fast the GPU is does not matter there. So leave on the GPU what is there.
#
# ### One step on two GPUs
#
# A small network on tabular data: 16 inputs, 32 hidden units, 32 rows in a batch, trained with SGD.
# An H100 has 8 times the fp32 arithmetic of a T4, and 10 times its bandwidth. `gpulab.plan` runs a
# training step on shapes alone, on either of them.

# %% tiny-predict
tiny_guess = gpulab.predict("How many times as fast as on a T4 is an H100's step?", unit="times")

# %% tiny-build
def training(model, x, y, loss):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

    return step


def tiny(batch):
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).to("cuda")
    x, y = torch.randn(batch, 16, device="cuda"), torch.randn(batch, 1, device="cuda")
    return training(model, x, y, F.mse_loss)

# %% tiny-run
t4, h100 = (gpulab.plan(tiny, 32, name).step_ms for name in ("T4", "H100"))
print(f"T4 {t4:.2f} ms, H100 {h100:.2f} ms a step (virtual)")
why = "Both wait for the host, which launches one small kernel after another."
tiny_guess.compare(round(t4 / h100, 2), "virtual", because=why)

# %% tiny-resnet-text [markdown]
# A larger network behaves the same way while its batch is small. Here is a training step of
# ResNet-18:

# %% tiny-resnet
def resnet(batch):
    model = torchvision.models.resnet18().to("cuda")
    x = torch.randn(batch, 3, 224, 224, device="cuda")
    y = torch.randint(1000, (batch,), device="cuda")
    return training(model, x, y, F.cross_entropy)


for batch in (1, 8, 64):
    t4, h100 = (gpulab.plan(resnet, batch, name).step_ms for name in ("T4", "H100"))
    print(f"batch {batch:>2}: T4 {t4:>5.1f}, H100 {h100:>4.1f} ms: {t4 / h100:>4.1f} × (virtual)")

# %% tiny-explain [markdown]
# With one image both GPUs wait for the **host**: Python, the dispatcher, autograd and the optimizer
# take longer for a kernel than the GPU does. The H100 still waits at eight images. (The virtual
# host was fitted to published runs of BERT and OPT.) At 64 the H100 also gains from TF32, PyTorch's
# default in convolutions.
#
# An IEEE study measured such a case (Nishanth et al. 2022, an Intel i5 against a GTX 1650): CNNs
# ran 8.8 times as fast on the GPU, RNNs 4.9 times, and **a plain network 1.2 times as fast on the
# CPU**. Try such contests in the [race simulator](simulators.ipynb).

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict |
# |---|---|
# | “10 to 50 times faster”, “10 to 100 times” | Not a property of GPUs. For 708 image models 11 to 311 (recorded; GPU in AMP and batches, CPU in fp32 and single images). Below 1 for small work. |
# | “A CPU has 24 cores, a GPU 6912.” | A CUDA core is a lane. In lanes a desktop CPU has hundreds. |
# | “95 % parallel makes 20 times.” | The limit for infinitely many workers. With 8: 5.9. |
# | “Most operations are limited by bandwidth.” | True by number in the ResNet-50 and the BERT layer above. |
# | “Tensor cores are 12 times CUDA cores.” | V100 against P100. On one chip 2 to 30, for products and convolutions. |
# | “A CPU would train GPT-4 for 35,000 years.” | Those are the years of *one A100* at its fp32 peak. At 1 TFLOP/s the reported 2.15 × 10²⁵ operations (unofficial) take 681,000. |

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **Expecting a GPU to make a loop fast.** Each pass of this loop launches two kernels for a single
# number:

# %% mistake-gpu-loop
x = torch.randn(1000, device=gpu.device)
y = torch.empty_like(x)


def one_by_one():
    for i in range(1000):
        y[i] = x[i].clamp(min=0)


slow, fast = microseconds(one_by_one), microseconds(lambda: x.clamp(min=0))
print(f"1000 numbers one by one: {slow:,.0f} µs, at once: {fast:,.0f} µs ({gpu.numbers})")

# %% mistakes-more [markdown]
# **Peaks that are not yours.** The H100's data sheet says 1979 TFLOP/s in fp16, “with sparsity”.
# Dense it is 989.5, and in fp32 67.
#
# **Timing without waiting.** PyTorch returns before the GPU is done. A stopwatch then shows the
# launch (lesson 03).

# %% quiz-text [markdown]
# ## Quick check

# %% quiz
gpulab.quiz(1)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. A GPU is two machines: one computes, one moves bytes. Divide FLOPs by the peak and bytes by the bandwidth. The
#    longer time decides, unless the launch takes longer still.
# 2. A CUDA core is a lane, an SM is a core, a warp is 32 threads with one instruction. Other warps hide
#    latency, so small work cannot be fast.
# 3. Large matrix products suit a GPU because each number is used many times. A large elementwise operation
#    uses it once, and waits for memory.
# 4. What the GPU does not speed up sets the limit: loading, launches, copies, bytes between
#    products.
# 5. The CPU can win on small work, on cheap work with data on the host, and on tiny networks. Of
#    any speed-up, ask for model, format and batch on both sides.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/01_why_gpus.ipynb): count a layer, find a crossover. Then [the map of
# the course](00_start_here.ipynb).
#
# ## References
#
# - Williams, Waterman, Patterson, *Roofline*, CACM 52(4), 2009.
# - NVIDIA, *GPU Performance Background User's Guide*; *A100 Tensor Core GPU Architecture* (whitepaper).
# - Luo et al., *Benchmarking and Dissecting the Nvidia Hopper GPU Architecture*, arXiv 2402.13499 (latencies).
# - Ivanov et al., *Data Movement Is All You Need*, arXiv 2007.00072 (the BERT table).
# - Nishanth et al., *Performance of CPUs and GPUs on Deep Learning Models for Heterogeneous Datasets*, IEEE, 2022.
# - R. Wightman, *PyTorch Image Models*, folder `results` (Apache-2.0), PyTorch 2.4.

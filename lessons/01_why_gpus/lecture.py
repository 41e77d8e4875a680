# %% title [markdown]
# # 01 · Why GPUs
#
# **Promise:** you say when a GPU helps, by how much, and why, from two numbers of the work and two of the machine.
#
# After this lesson you can
#
# 1. **compare** a CPU and a GPU in the same units: lanes, operations per second, bytes per second;
# 2. **explain** why a GPU wants a hundred thousand threads, and what a warp, an SM and a tensor core are;
# 3. **count** the operations and bytes of a layer, and say which of the two it waits for;
# 4. **predict** the speed-up of a whole job with Amdahl's law, and the size below which the CPU wins;
# 5. **judge** a claim such as “10 to 100 times faster”.
#
# | time | before this | runs on |
# |---|---|---|
# | 65 minutes, and 40 for the exercises | `00_start_here`; you know what a matrix product is | any machine |

# %% setup-text [markdown]
# The first cell prints what the numbers in this notebook are. *Measured* is timed here, *virtual* is what a model of a
# GPU says, *recorded* comes from a data sheet or a paper, *computed* is arithmetic that you can follow. Lesson 03 is
# about timing; until then `gpulab.timing.measure` reads the GPU's own clock for you.

# %% setup
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import gpulab

gpu = gpulab.setup()


def microseconds(function, repeat=20 if gpu.numbers == "measured" else 2):
    """Median time of a call on the GPU, in µs; a virtual GPU takes the same time at every call, until it is warm."""
    return gpulab.timing.measure(function, repeat=repeat, warm_up=1).median_ms * 1000


# %% question-text [markdown]
# ## A question worth asking
#
# A popular page explains the GPU like this. A ReLU over a tensor of 524,288 numbers is 524,288 independent operations. An
# A100 has 6912 cores. So it needs 524,288 / 6912 ≈ 76 parallel batches, and is done.
#
# The division is right. If that were the whole story, and a core did one operation in a clock of 0.7 ns, the ReLU would
# take 54 ns. The next cell does the same sum for the GPU of this notebook, and then runs the ReLU. How long does it take?

# %% question-predict
relu_guess = gpulab.predict("How long does a ReLU over 1024 × 512 numbers take on this GPU?", unit="µs")

# %% question-run
properties = torch.cuda.get_device_properties(gpu.device)
fp32_lanes = {(7, 0): 64, (7, 5): 64, (8, 0): 64}.get(gpu.capability, 128)  # in one multiprocessor
cores = properties.multi_processor_count * fp32_lanes

x = torch.randn(1024, 512, device=gpu.device)
batches = math.ceil(x.numel() / cores)
print(f"{x.numel():,} numbers / {cores:,} cores: {batches} batches; at 1.5 GHz {batches / 1.5:.0f} ns (computed)")
relu_guess.compare(round(microseconds(x.relu), 1), gpu.numbers)

# %% question-answer [markdown]
# Far too optimistic, on the virtual T4 by more than a hundred times. So the cores are not what the ReLU waits for. Find out what is, with an experiment that changes one thing at a time.
#
# First change the arithmetic. `gelu` computes an error function where `relu` needs one comparison: some twenty
# instructions for each number in place of one. The tensor is larger now, 64 MiB, so that starting the work counts little.

# %% question-gelu-predict
gelu_guess = gpulab.predict("How many times as long as the ReLU does a GELU take?", unit="times")

# %% question-gelu
big = torch.randn(2**24, device=gpu.device)
times = {
    "relu": microseconds(lambda: torch.relu(big)),
    "sin": microseconds(lambda: torch.sin(big)),
    "gelu": microseconds(lambda: F.gelu(big)),
}
half = big.half()
times["relu, 16 bits"] = microseconds(lambda: torch.relu(half))
for name, time in times.items():
    print(f"{name:<13} {time:>5.0f} µs ({gpu.numbers})")
gelu_guess.compare(round(times["gelu"] / times["relu"], 2), gpu.numbers)

# %% question-verdict [markdown]
# The arithmetic does not matter, and halving the *bytes* halves the time. An elementwise operation waits for memory: 64
# MiB come in, 64 MiB go out, and the time is these bytes over the memory's bandwidth. The cores have time for dozens of
# instructions while they wait. (A GPU with terabytes a second is done so soon that starting the work counts again: there 16
# bits save less than half.)
#
# (The virtual clock follows that rule, so check it from outside. A T4's lanes do 4 × 10¹² instructions a second: twenty
# for each of 2²⁴ numbers take 82 µs. Its memory, rated at 320 GB/s, needs 419 µs at the least. Memory wins by five.)
#
# This is the key to the whole lesson: **a GPU is two machines, one that computes and one that moves bytes, and you
# have to know which of them you are using.**

# %% lanes-text [markdown]
# ## Few fast cores, many slow lanes
#
# A CPU is built to finish *one* thread soon: it guesses branches, reorders instructions, and spends most of its area on
# caches and control. A GPU is built to finish *many* threads soon, whenever each of them is done, and spends that area
# on arithmetic.
#
# | | CPU | GPU |
# |---|---|---|
# | goal | latency: one thread, soon | throughput: all threads, soon |
# | cores | 8 to 192, each strong | 28 to 170 multiprocessors (SMs), each wide |
# | clock | 4 to 6 GHz (servers: 2 to 5) | 1.4 to 2.6 GHz |
# | waiting for memory | avoided by caches, up to 1 GB of L3 | hidden by running other threads |
# | its memory | up to terabytes of DDR, 50 to 600 GB/s | 12 to 288 GB of GDDR or HBM, 300 to 8000 GB/s |
# | control | branch prediction, out of order | 32 threads share one instruction |
# | suits | serial code, branches, I/O | the same arithmetic on much data |
#
# “6912 cores against 24” compares two different things. A “CUDA core” is one arithmetic lane. It fetches no
# instructions of its own. A CPU has such lanes too, in its vector units.

# %% lanes-predict
lanes_guess = gpulab.predict("Counted the NVIDIA way, how many “cores” has a CPU with 8 cores and AVX-512?")

# %% lanes-run
# cores (or SMs), fp32 lanes in each, clock in GHz, memory bandwidth in GB/s: recorded, from data sheets
machines = {
    "8-core CPU": (8, 2 * 16, 4.0, 90),  # two vector units of 16 lanes (AMD's Zen 5, say), DDR5-5600
    "i9-14900K": (8, 2 * 8, 5.6, 90),  # its performance cores
    "T4": (40, 64, 1.59, 320),
    "A100-80": (108, 64, 1.41, 2039),
    "RTX4090": (128, 128, 2.52, 1008),
    "H100": (132, 128, 1.98, 3350),
}
lanes_guess.compare(8 * 2 * 16, "computed")
print("              lanes   fp32 TFLOP/s   (× CPU)    GB/s   (× CPU)")
for name, (sms, lanes, clock, memory) in machines.items():
    peak = 2 * sms * lanes * clock / 1000  # a multiply-add in one lane is two operations (computed)
    print(f"{name:<11} {sms * lanes:>7,} {peak:>14.1f} {peak / 2.048:>9.1f} {memory:>7,} {memory / 90:>9.1f}")

# %% lanes-explain [markdown]
# 256 lanes, at almost three times the clock. An A100 has 27 times the lanes and a third of the clock: its arithmetic is 9.5
# times as fast, its memory 23 times. Work that uses both machines equally well, and both in fp32, gains what lies between such
# ratios. Comparisons that you read are not of that kind: the GPU multiplies on tensor cores (under AMP, and in
# convolutions by default, as TF32), and the CPU may be used badly. So look at recorded ones. These are the published
# inference speeds of the image models of `timm`, both with PyTorch 2.4: an RTX 3090 in AMP (fp16), eager, in batches of up
# to 1024 images, and a CPU of 14 cores (Intel i9-10940X) in fp32, compiled, *one image at a time*.

# %% lanes-timm
import matplotlib.pyplot as plt

gpulab.style.use()
slow, fast = "infer-fp32-nchw-pt240-cpu-i9_10940x-dynamo", "infer-amp-nchw-pt240-cu124-rtx3090"
ratios = sorted(gain.ratio for gain in gpulab.data.gains(slow, fast, equal_batch=False))
low, median, high = (ratios[round(share * (len(ratios) - 1))] for share in (0.1, 0.5, 0.9))
print(f"{len(ratios)} models: 10 % below {low:.0f} times, half below {median:.0f}, 90 % below {high:.0f} (recorded)")
print(f"the least {ratios[0]:.0f} times, the most {ratios[-1]:.0f} (recorded)")
figure, axes = plt.subplots(figsize=(7.2, 3))
axes.hist(ratios, bins=[10 * 2 ** (step / 4) for step in range(21)])
axes.set(xscale="log", xlabel="GPU's images per second / CPU's (recorded)", ylabel="models")
axes.set_xticks([10, 20, 40, 80, 160, 320], [10, 20, 40, 80, 160, 320])
axes.set_title(f"How many times as fast: {low:.0f} to {high:.0f} for four models in five")
gpulab.style.show(figure, alt="Histogram of the GPU's speed over the CPU's for some seven hundred image models, on a logarithmic axis "
    "from 10 to 320: most lie between 28 and 76, with a tail to 311.")

# %% lanes-timm-explain [markdown]
# No single number is “the” speed-up: between models the same two machines differ by a factor of 27. Another setting gives
# another picture, too: the CPU in larger batches, the GPU in fp32, another CPU. When you read “1000 times faster”, ask what the CPU
# did: often it used one lane.
#
# The same formula tells what a real desktop part can do. The eight performance cores of an i9-14900K (two units of 8
# lanes, AVX2, at most 5.6 GHz together) come to 1.4 TFLOP/s before its sixteen efficiency cores are counted. The
# “about 1 TFLOPS” that you read is low.
#
# What does the machine under this notebook reach? Products of matrices come closest to a peak:

# %% lanes-host tags=["host-dependent"]
import torch.utils.benchmark as benchmark

a = torch.randn(1024, 1024)
timer = benchmark.Timer("a @ a", globals={"a": a}, num_threads=torch.get_num_threads())
seconds = min(timer.timeit(1).mean for _ in range(5))
print(f"this machine, {torch.get_num_threads()} threads: {2 * 1024**3 / seconds / 1e9:.0f} GFLOP/s in fp32 (measured)")

# %% warps-text [markdown]
# ## Warps: 32 threads, one instruction
#
# You write a GPU program for one thread: “read my number, change it, write it”. The hardware takes the threads in
# **warps** of 32. A warp has one instruction at a time for all its threads: *single instruction, multiple
# threads*, SIMT. It is what a CPU's vector unit does (SIMD), in another dress: the programmer sees threads, and the hardware
# makes vectors of them.
#
# The difference shows at a branch. If some threads of a warp take the `if` and others the `else`, the warp runs **both**,
# each with the other threads masked out. Here is that rule as a function: a toy of 1024 threads, where either side of the
# branch takes 10 clocks.

# %% warps-predict
branch_guess = gpulab.predict("One thread in 32 takes the branch. The warps need how many times as long as if none did?")

# %% warps-run
def warp_clocks(takes_branch, cost=10):
    """Clocks that all warps need together for an if/else whose sides cost `cost` clocks each."""
    warps = takes_branch.view(-1, 32)
    enter_if = warps.any(dim=1).sum()
    enter_else = (~warps).any(dim=1).sum()
    return int(cost * (enter_if + enter_else))


thread = torch.arange(1024)
cases = {"none": thread < 0, "every 32nd": thread % 32 == 0, "every other": thread % 2 == 0, "first half": thread < 512}
for name, takes_branch in cases.items():
    print(f"{name:<11} {takes_branch.sum():>4} of 1024 take the branch: {warp_clocks(takes_branch)} clocks (computed)")
branch_guess.compare(warp_clocks(cases["every 32nd"]) / warp_clocks(cases["none"]), "computed")

# %% warps-explain [markdown]
# Three per cent of the threads double the time, and half of them, if they sit in the same warps, cost nothing. What counts
# is not how many threads branch but whether **threads of one warp disagree**. (Since Volta each thread has its own program
# counter, so that threads of a warp can wait for each other. The two sides are still run one after the other.)
#
# In PyTorch you write no threads, and meet the same rule one level up: `torch.where(mask, f(x), g(x))` computes both `f`
# and `g` for all elements. And a loop over elements in Python is not a thread for each of them but a kernel for each
# (see *Common mistakes*).

# %% latency-text [markdown]
# ## Hiding latency: why it takes a hundred thousand threads
#
# A number that is not in a cache takes an A100 466 clocks to fetch, 330 ns (recorded, Luo et al.). A CPU with DDR5
# typically needs about 90 ns. The GPU's memory is *slower* to answer. It is only wider.
#
# How can a memory that takes 330 ns to answer deliver 2 TB/s? By having very many requests on their way. **Little's law**,
# from the theory of queues, says how many:
#
# $$\text{bytes in flight} = \text{bandwidth} \times \text{latency}$$
#
# It holds for a supermarket too: ten customers a minute who stay twenty minutes each are 200 customers in the shop.

# %% latency-predict
flight_guess = gpulab.predict("How many threads must wait for a 4-byte number each, to keep an A100's memory busy?")

# %% latency-run
def in_flight(gigabytes_per_second, nanoseconds):
    """Bytes that must be on their way all the time."""
    return gigabytes_per_second * nanoseconds


a100, cpu = in_flight(2039, 466 / 1.41), in_flight(90, 90)
print(f"A100: {a100:>9,.0f} bytes in flight, {a100 / 108:>5,.0f} for each of 108 SMs (computed)")
print(f"CPU:  {cpu:>9,.0f} bytes in flight, {cpu / 8:>5,.0f} for each of 8 cores: {cpu / 8 / 64:.0f} cache lines of 64 bytes")
print(f"an A100 has room for {108 * 2048:,} threads; of them must wait: {a100 / 4 / (108 * 2048):.0%}")
flight_guess.compare(round(a100 / 4, -3), "computed")

# %% latency-explain [markdown]
# Some 170,000 threads, three quarters of all that an A100 has room for. This is why an SM keeps up to 64 warps **resident**,
# each with its registers in place: switching to another warp costs nothing, so while one waits, another issues. A CPU
# core hides its few requests by running ahead within one thread; a GPU hides thousands by having other threads.
#
# Two consequences you will meet. A tensor smaller than these 674 kB cannot keep this memory busy (the 2 MiB at the top of
# this page are only just enough), so the small operations of a network run at a fraction of its bandwidth. And “the GPU
# needs a large batch” has one of its reasons here. (Good kernels let a thread fetch 16 bytes or several numbers at once,
# and then need fewer threads. The bytes stay.)

# %% simulator-architecture-text [markdown]
# ### See it move
#
# A toy GPU of 4 SMs with 32 lanes each. It opens where the wait is longer than the warps can hide: 8 warps in turns,
# and each waits 31 clocks. Press Play, and then:
#
# 1. Set *Room for warps in an SM* to 16, then to 32. When do the lanes stop being idle, and why just there?
# 2. Add one element. What does the last, almost empty wave of blocks cost?
# 3. Set *Threads per block* to 40. Why is a block of 40 threads two warps, and what do the other 24 lanes do?

# %% simulator-architecture
gpulab.sim.architecture(wait=31, room=8, elements=8192, frame=40)

# %% parts-text [markdown]
# ## What a GPU is made of
#
# | part | on an A100 (recorded) | what it is for |
# |---|---|---|
# | SM (streaming multiprocessor) | 108 | the GPU's core: issues warps, holds their registers |
# | FP32 lane (“CUDA core”) | 64 in an SM | one multiply-add in a clock |
# | tensor core | 4 in an SM | a product of small matrices in one instruction |
# | registers | 256 KiB in an SM | the numbers of the resident threads |
# | L1 and shared memory | 192 KB in an SM, at most 164 KB of it shared memory | numbers that a block uses again |
# | L2 cache | 40 MB | shared by all SMs |
# | HBM2e | 80 GB at 2039 GB/s | all tensors live here |
#
# HBM (*high-bandwidth memory*) is stacked beside the chip, in the same package, and not on the chip. The A100 has HBM2 (40
# GB, 1555 GB/s) or HBM2e (80 GB); HBM3 came with the H100 (SXM).
#
# A tensor core does one thing: it multiplies small matrices and adds, in fp16, bf16, TF32 or less (in an A100 and an H100 in
# fp64 too). How much is that worth?

# %% tensor-predict
tensor_guess = gpulab.predict("fp16 in place of fp32, on this GPU: how many times as fast is a matrix product?", unit="times")

# %% tensor-run
full = torch.randn(2048, 2048, device=gpu.device)
half = full.half()
product = {d.dtype: microseconds(lambda d=d: d @ d) for d in (full, half)}
relu = {d.dtype: microseconds(lambda d=d: torch.relu(d)) for d in (full, half)}
for name, took in (("product", product), ("ReLU", relu)):
    gain = took[torch.float32] / took[torch.float16]
    print(f"{name:<8} fp32 {took[torch.float32]:>6.0f} µs, fp16 {took[torch.float16]:>4.0f} µs: {gain:.1f} × ({gpu.numbers})")
tensor_guess.compare(round(product[torch.float32] / product[torch.float16], 1), gpu.numbers)

# dense peaks: tensor cores in fp16 (summed in fp32) and lanes in fp32: recorded, from data sheets
sheets = {name: gpulab.sim.roofline(gpu=name).result.spec for name in ("RTX4090", "L4", "T4", "V100-16", "H100", "A100-80", "B200")}
for name, sheet in sheets.items():
    tensor, lanes = sheet.tflops["fp16"], sheet.tflops["fp32"]
    print(f"{name:<8} {tensor:>5g} / {lanes:>4g} TFLOP/s: tensor cores {tensor / lanes:>4.1f} × the lanes of the same chip (computed)")

# %% tensor-explain [markdown]
# From twice (RTX 4090) over four times (L4, which is a data-centre card) to thirty times (B200), and only for products of
# matrices. The ReLU's gain comes from its bytes, of which there are half as many. (On a large card it gains next to nothing
# at this size: starting it takes longer than its bytes.) The “12 times” that you read compares a V100's tensor cores with the
# fp32 lanes of its *predecessor*, the P100: 125 / 10.6.
#
# Note what this does to the balance. From the P100 (21.2 TFLOP/s in fp16, 732 GB/s) to the H100 (989, 3350) the rate of
# products grew by a factor of 47, the memory's bandwidth by less than five. What was bound by arithmetic yesterday waits
# for memory today.

# %% roofline-text [markdown]
# ## Operations per byte, and the roof
#
# Two numbers describe the work: its floating-point operations (**FLOPs**; a multiply-add is two) and the **bytes** it moves
# to and from memory. Their ratio is the **arithmetic intensity**. The machine has the same ratio, its peak rate over its
# bandwidth, called its *balance*. Work whose intensity is above the balance is bound by arithmetic, below it by memory:
#
# $$\text{time} \;\ge\; \max\left(\frac{\text{FLOPs}}{\text{peak rate}},\; \frac{\text{bytes}}{\text{bandwidth}}\right)$$
#
# Two machines side by side: the longer one decides. This is why a GPU suits matrix products. A product of two
# $n \times n$ matrices does $2n^3$ operations on $3n^2$ numbers: **each number is used $n$ times once it is there**. A
# ReLU uses it once.

# %% roofline-intensity
def product_cost(rows, depth, columns, width=2):
    """FLOPs and bytes of (rows, depth) @ (depth, columns), each matrix moved once, `width` bytes a number."""
    return 2 * rows * depth * columns, width * (rows * depth + depth * columns + rows * columns)


for name in ("T4", "A100-80", "H100"):
    roofs = gpulab.sim.roofline(gpu=name, dtype="fp16").result
    sheet, reached = roofs.sheet_balance, roofs.balance
    print(f"balance of the {name:<8} {sheet:>5.0f} operations per byte by its data sheet (computed), {reached:.0f} as reached (virtual)")
for n in (64, 512, 4096):
    flops, nbytes = product_cost(n, n, n)
    print(f"{n:>4} × {n:<4} product     {flops / nbytes:>8.0f} operations per byte")
print(f"ReLU in fp16          {1 / (2 * 2):>8} operations per byte")

# %% roofline-counter-text [markdown]
# You need not count by hand what PyTorch counts for you. `FlopCounterMode` watches products, convolutions and attention.
# A layer of 1024 inputs and 1024 outputs is 1,048,576 multiply-adds for each row:

# %% roofline-counter
layer = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU())
with FlopCounterMode(display=False) as counter:
    layer(torch.randn(1, 1024))
print(f"{counter.get_total_flops():,} FLOPs, {counter.get_total_flops() // 2:,} multiply-adds (computed)")
print("modules with a count:", [name for name in counter.get_flop_counts() if name.startswith("Sequential.")])

# %% roofline-rows-text [markdown]
# For one row, this layer does two operations for every weight of four bytes that it reads: the worst case for a GPU.
# With 64 rows it does 64 times as much arithmetic on the same weights. A layer of a language model, 4096 × 4096 in fp16:

# %% roofline-rows-predict
rows_guess = gpulab.predict("64 rows in place of 1: how many times as long does the layer take?", unit="times")

# %% roofline-rows
weight = torch.randn(4096, 4096, device=gpu.device, dtype=torch.float16)
took = {}
for rows in (1, 8, 64, 256):
    inputs = torch.randn(rows, 4096, device=gpu.device, dtype=torch.float16)
    took[rows] = microseconds(lambda x=inputs: x @ weight)
    flops, nbytes = product_cost(rows, 4096, 4096)
    rate = flops / took[rows] / 1e6
    print(f"{rows:>3} rows: intensity {flops / nbytes:>4.0f}, {took[rows]:>4.0f} µs, {rate:>5.1f} TFLOP/s ({gpu.numbers})")
rows_guess.compare(round(took[64] / took[1], 2), gpu.numbers)

# %% roofline-rows-explain [markdown]
# 63 of the 64 rows are nearly free. Reading the weights takes the time, and the arithmetic hides behind it until the
# intensity comes near the balance. It is why training uses batches, why a chat model that makes one token at a time uses less
# than a hundredth of its GPU's arithmetic, and why servers wait to answer several users at once.
#
# ### See it move
#
# The roofline draws both limits on logarithmic axes: a slope for memory, a flat roof for arithmetic, dashed by the data
# sheet and drawn through as the model says they are reached. The simulator opens on the layer above with one row, on a T4.
#
# 1. Raise *Rows* until the product reaches the flat roof. Where does the slope end, and which number is that?
# 2. Go back to one row and take an H100. What has 15 times the arithmetic bought? And 10 times the bandwidth?
# 3. Choose GELU. Is there a size at which it reaches the roof?

# %% simulator-roofline
gpulab.sim.roofline(rows=1)

# %% waits-turn-text [markdown]
# **Your turn** · 4 minutes. Each of the three limits has another remedy, and two of them are wasted on any one operation. What
# does each of these six wait for on a T4 (fp16, 65 TFLOP/s, 320 GB/s, 5 µs a launch): `"arithmetic"`, `"memory"` or
# `"launch"`? They go on side by side, so the longest of the three times decides.

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
# A ResNet-50 has 53 convolutions, which do practically all of its arithmetic, and between them batch norms, ReLUs and the
# additions that close its blocks. One forward pass of a training step, 64 images in bf16, on a virtual A100. Only shapes
# are run, so it takes a moment here. The class below sees every operation of PyTorch, also those that belong to no module, such
# as the `+` of a block.

# %% network-predict
network_guess = gpulab.predict("What share of the forward pass's time do the convolutions take?", unit="per cent")

# %% network-watch
import torchvision
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

BY_HAND = {"native_batch_norm": 8, "relu_": 1, "add_": 1, "max_pool2d_with_indices": 9}  # operations per number
NAMES = {"convolution": "convolutions", "native_batch_norm": "batch norms", "relu_": "ReLUs", "add_": "additions"}

# %% network-class
class Operations(TorchDispatchMode):
    """Notes name, FLOPs, bytes and two events of every operation in its block."""

    rows = ()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name, begin, end = operation.overloadpacket.__name__, *(torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        result = operation(*args, **(kwargs or {}))
        end.record()
        count = flop_registry.get(operation.overloadpacket)
        by_hand = BY_HAND[name] * args[0].numel() if name in BY_HAND else 0
        flops = count(*args, out_val=result) if count else by_hand
        nbytes = sum(t.nbytes for t in tree_leaves((args, result)) if isinstance(t, torch.Tensor))
        self.rows = (*self.rows, (name, flops, nbytes, begin, end))
        return result


# %% network-run
with gpulab.VirtualGPU("A100-80", compute=False, host=0.01), torch.no_grad():  # a host that is never waited for
    network = torchvision.models.resnet50().to("cuda", torch.bfloat16, memory_format=torch.channels_last)
    images = torch.randn(64, 3, 224, 224, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    network(images)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    with Operations() as watch:
        network(images)
    end.record()
    torch.cuda.synchronize()
    layers = [(name, flops, nbytes, b.elapsed_time(e) / 1000) for name, flops, nbytes, b, e in watch.rows]
    total_time = begin.elapsed_time(end) / 1000
layers = [row for row in layers if row[2] > 2**10]  # not the counters of the batch norms, which are a number each

# %% network-shares
total_flops, share = sum(row[1] for row in layers), {}
for kind, label in NAMES.items():
    rows = [row for row in layers if row[0] == kind]
    share[kind] = sum(row[3] for row in rows) / total_time
    part = sum(row[1] for row in rows) / total_flops
    print(f"{len(rows):>2} {label:<12} {part:>5.1%} of the operations, {share[kind]:>4.0%} of the time (virtual A100)")
print(f"all the rest {'':<25} {1 - sum(share.values()):>4.0%} of the time (virtual A100)")
network_guess.compare(round(100 * share["convolution"]), "virtual")

# %% network-plot
peak, bandwidth = 312e12, 2039e9
ridge = peak / bandwidth
bound = sum(row[1] / row[2] < ridge for row in layers if row[0] == "convolution")
figure, axes = plt.subplots(figsize=(7.2, 4))
axes.plot([0.1, ridge, 3000], [0.1 * bandwidth / 1e12, peak / 1e12, peak / 1e12], "k-", label="data sheet (recorded)")
for (kind, label), marker in zip(NAMES.items(), "os^v"):
    points = [(flops / nbytes, flops / seconds / 1e12) for name, flops, nbytes, seconds in layers if name == kind]
    axes.plot(*zip(*points), marker, label=f"{label} (virtual)", alpha=0.7)
axes.set(xscale="log", yscale="log", xlabel="intensity: operations per byte", ylabel="TFLOP/s")
axes.set_title(f"ResNet-50 on an A100: {bound} of 53 convolutions, and all else\nthat is drawn, lie left of the ridge: memory decides")
axes.legend()
gpulab.style.show(figure, alt="Roofline of an A100 with the operations of ResNet-50: additions, ReLUs and batch norms lie low on the "
    "slope of the memory, convolutions spread around the ridge at 153 operations per byte.")

# %% network-explain [markdown]
# Nearly 99 % of the operations take two fifths of the time. A network is not its FLOPs, and “most operations
# wait for memory” is true of the very networks that GPUs are sold for.
#
# A measurement of another network says the same (recorded; Ivanov et al., a BERT encoder layer in training, on a V100):
#
# | kind of operation | share of FLOPs | share of the time |
# |---|---:|---:|
# | matrix products | 99.80 % | 61.0 % |
# | normalisations: softmax, layer norm | 0.17 % | 25.5 % |
# | elementwise: bias, dropout, activation | 0.03 % | 13.5 % |
#
# (The virtual clock knows the A100's 40 MB of L2: what was written a moment ago and is small enough is read from there, as
# most tensors of the last two stages are. The host is taken to be ideal here. With the usual one this pass takes as long; but
# two events around every operation keep the host so busy that the GPU waits for it, and shares would be hard to see.)
#
# It is also where the remedies come from that later lessons measure: **fuse** elementwise operations, so that the bytes move
# once (lesson 11); use 16 bits, so that there are fewer (07); keep what attention computes on the chip (06).

# %% amdahl-text [markdown]
# ## Amdahl: the part that does not get faster
#
# A GPU speeds up a part of the job. If it takes over a share $p$ of the time, and does that part $k$ times as fast, then for
# the whole
#
# $$\text{speed-up} = \frac{1}{(1 - p) + p / k} \;\le\; \frac{1}{1 - p}$$
#
# whatever $k$ is. For $p = 95\,\%$ the limit is 20. People quote it as if it were the result; with 8 workers you are
# nowhere near.

# %% amdahl-predict
amdahl_guess = gpulab.predict("A step is 30 % loading, then 70 % GPU. With a GPU 10 times as fast, how many times as fast is the step?")

# %% amdahl-run
def speedup(share, factor):
    """Of the whole job, when `share` of its time becomes `factor` times as fast."""
    return 1 / (1 - share + share / factor)


for share_, factor in ((0.95, 8), (0.95, 100), (0.95, math.inf), (0.99, 100)):
    print(f"{share_:.0%} of the time, {factor:>3} times as fast: {speedup(share_, factor):>5.1f} × for the whole (computed)")
amdahl_guess.compare(round(speedup(0.7, 10), 2), "computed")

# %% amdahl-explain [markdown]
# 2.7 times, from a GPU ten times as fast. Two ways out, and both get lessons. **Overlap**: if loading happens *beside* the
# GPU's work, times no longer add up and the longer one counts (lesson 09). **Grow the problem**: the law holds for a fixed
# job. With a larger model or batch the parallel share itself grows, and a hundred GPUs can be worth having (Gustafson's
# law).
#
# Within one network Amdahl is at work too: tensor cores made the products fast, so what remains is the rest, as in the
# picture above.

# %% small-text [markdown]
# ## When the CPU wins
#
# Three costs are there before the first operation runs, and none of them depends on how fast the GPU is: each kernel must
# be **launched** (a line of Python takes the model's host 15 µs for it, and a good one 5), data must **cross the bus**, and a small problem leaves most
# lanes **idle**.
#
# So give the CPU every advantage. The function below is an eight-core CPU that reaches all of its data sheet at any size.
# Against it run a matrix product and a ReLU on a virtual A100: data on the host, result wanted on the host.

# %% small-run
def cpu_microseconds(flops, nbytes):
    """An ideal CPU: 2.05 TFLOP/s, 90 GB/s, 1 µs for a call (computed)."""
    return 1 + max(flops / 2.05e6, nbytes / 90e3)


sizes = [2**i for i in range(4, 12)]
ratios = {"product, data on the GPU": [], "product, there and back": [], "ReLU, there and back": []}
with gpulab.VirtualGPU("A100-80"):
    for n in sizes:
        host, there = torch.randn(n, n), torch.randn(n, n, device="cuda")
        product, relu = cpu_microseconds(2 * n**3, 12 * n**2), cpu_microseconds(n**2, 8 * n**2)
        on_gpu = microseconds(lambda there=there: there @ there, repeat=2)
        there_and_back = microseconds(lambda host=host: (host.to("cuda") @ host.to("cuda")).cpu(), repeat=2)
        relu_and_back = microseconds(lambda host=host: host.to("cuda").relu().cpu(), repeat=2)
        for values, ratio in zip(ratios.values(), (product / on_gpu, product / there_and_back, relu / relu_and_back)):
            values.append(ratio)

# %% small-plot
figure, axes = plt.subplots(figsize=(7.2, 3.8))
for (name, values), style in zip(ratios.items(), ("o-", "s--", "^:"), strict=True):
    axes.plot(sizes, values, style, label=name)
    ahead = next((n for n, ratio in zip(sizes, values) if ratio > 1), None)
    print(f"{name:<25}", f"the A100 is ahead from n = {ahead}" if ahead else "the CPU is ahead at every size", "(virtual)")
axes.axhline(1, color="black", linewidth=1)
axes.set_xscale("log", base=2)
axes.set(yscale="log", xlabel="n, for n × n numbers", ylabel="CPU's time (computed) / A100's (virtual)")
axes.set_xticks(sizes, sizes)
axes.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
axes.set_title("A large product pays the way to the GPU, a ReLU does not")
axes.legend()
gpulab.style.show(figure, alt="How many times as fast as an ideal CPU a virtual A100 is, against the size of a matrix, both axes "
    "logarithmic. The product rises from far below 1 to about 9, later where data is copied; the ReLU stays below 1.")

# %% small-explain [markdown]
# A GPU pays from where the time it saves exceeds the time it costs. The product crosses over because its arithmetic
# grows with $n^3$ and its bytes with $n^2$. The ReLU's bytes must cross the bus and come back, while the CPU reads and
# writes them in its own memory at 90 GB/s. How fast the GPU is does not matter in that race, **only the link against the CPU's
# memory**:

# %% small-links
for link, one_way in (("PCIe 3", 16), ("PCIe 4", 32), ("PCIe 5", 64), ("NVLink-C2C", 450)):  # x16: recorded, data sheets
    sign = [">" if rate > 90 else "<" for rate in (one_way, 2 * one_way)]
    print(f"{link:<10} there, then back: {one_way:>3} GB/s {sign[0]} 90; both at once: {2 * one_way:>3} GB/s {sign[1]} 90 (computed)")

# %% small-links-explain [markdown]
# Over PCIe 5, with one piece going back while the next comes, even a ReLU could win against *this* CPU, narrowly and at peak
# rates; a server's memory of 300 GB/s and more is out of reach again. So what is on the GPU stays there. (NVLink-C2C joins the CPU
# and the GPU of a Grace Hopper. Apple's share one memory, and nothing crosses.)
#
# That was an ideal CPU. Here is yours, timed in a process of its own (a virtual GPU watches every operation of this one, which
# takes time on the CPU), against the GPU of this notebook, there and back:

# %% small-host tags=["host-dependent"]
import inspect
import subprocess
import sys

sizes_and_calls = {16: 5000, 128: 500, 1024: 2}
code = f"""
import timeit, torch
torch.set_num_threads({torch.get_num_threads()})
for n, calls in {sizes_and_calls}.items():
    a = torch.randn(n, n)
    print(min(timeit.repeat(lambda: a @ a, number=calls, repeat=5)) / calls * 1e6)
"""
cpu_times = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
for n, cpu_time in zip(sizes_and_calls, cpu_times):
    host = torch.randn(n, n)
    there_and_back = microseconds(lambda host=host: (host.to(gpu.device) @ host.to(gpu.device)).cpu())
    print(f"n = {n:>4}: CPU {float(cpu_time):>8,.0f} µs (measured), the GPU and back {there_and_back:>6,.0f} µs ({gpu.numbers})")

# %% tiny-text [markdown]
# ### A network that a faster GPU does not speed up
#
# A small network on tabular data, 16 inputs, 32 hidden units, 32 rows a batch: what a GPU is asked to do surprisingly often.
# An H100 has 8 times the fp32 arithmetic of a T4, and 10 times its bandwidth. `gpulab.plan` runs a training step on the shapes
# alone, on either.

# %% tiny-predict
tiny_guess = gpulab.predict("How many times as fast as on a T4 is this training step on an H100?", unit="times")

# %% tiny-run
def build(batch, device="cuda"):
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(batch, 16, device=device), torch.randn(batch, 1, device=device)

    def step():
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()

    return step


plans = {(name, batch): gpulab.plan(build, batch, name) for name in ("T4", "H100") for batch in (32, 2**19)}
for (name, batch), plan in plans.items():
    print(f"{name:<4} batch {batch:>7,}: {plan.step_ms:>7.3f} ms a step (virtual)")
tiny_guess.compare(round(plans["T4", 32].step_ms / plans["H100", 32].step_ms, 2), "virtual")

# %% tiny-kernels
import json
import tempfile

with tempfile.TemporaryDirectory() as folder, gpulab.VirtualGPU("H100"):
    step = build(32)
    step()
    with gpulab.timing.trace(f"{folder}/step.json") as path:
        step()
    kernels = sum(event.get("cat") == "kernels" for event in json.loads(path.read_text())["traceEvents"])
took = 1000 * plans["H100", 32].step_ms
print(f"{kernels} kernels in a step of {took:.0f} µs: the host takes {took / kernels:.0f} µs for each (virtual)")
print("forward and backward of BERT and OPT where they wait for the host: 32 and 34 µs for each (recorded)")

# %% tiny-host tags=["host-dependent"]
code = f"""
import inspect, timeit, torch
from torch import nn
from torch.nn import functional as F
{inspect.getsource(build)}
step = build(32, "cpu")
step()
print(min(timeit.repeat(step, number=100, repeat=5)) / 100 * 1e6)
"""
took = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
print(f"the same step on this CPU, in a process of its own: {float(took):.0f} µs (measured)")

# %% tiny-explain [markdown]
# Not at all. The step is a queue of thirteen small kernels, and its time is that of the **host**, which launches them one by
# one: Python, the dispatcher, autograd and the optimizer take longer for each than either GPU does. Your CPU runs the same
# Python and the same autograd, and has nothing to launch: that is why it is ahead of both, if it is not a very slow one. With
# half a million rows in a batch the same code is nine times as fast on the H100 as on the T4 (virtual).
#
# Hosts differ as much as GPUs do. The virtual GPU has a named one, “server”, with costs of its own for an operation that Python
# calls, one that autograd runs, a cast, a tensor of an optimizer. It was chosen after published training passes in which the
# GPU waits (recorded: BERT on an A100, OPT on an L40S). `VirtualGPU("T4", host=1)` takes one that is three times as fast.

# %% tiny-study [markdown]
# That is what a much-quoted IEEE study measured (Nishanth et al. 2022, an Intel i5 against a GTX 1650): CNNs 8.8 times
# as fast on the GPU, RNNs 4.9 times, and **a plain network 1.2 times faster on the CPU**. The web made “4.9 to 8.8 times for
# CNNs” of it, and left the last line out.

# %% race-text [markdown]
# ### See it move
#
# The race opens as it is usually shown: eight CPU cores, each on *one* lane, against 256 GPU lanes.
#
# 1. Let the cores use all their lanes (*Lanes used in a core*: 32). Who wins now, and by how much?
# 2. Take an A100 and 100,000 tasks. The CPU still wins. Now set *Data of a task* to 0. What was in the way?
# 3. Set *Serial share* to 5 %, then take an H100. What do its 10,000 more lanes bring?

# %% simulator-race
gpulab.sim.race()

# %% cards-text [markdown]
# ## Which GPU?
#
# There is no faster GPU, only a faster one for your work. Three operations at sizes that fill the machine, on five
# cards: a product in fp32, the same in fp16, and a GELU, which moves 512 MiB. TF32 stays off, as it is by default for products.

# %% cards-predict
cards_guess = gpulab.predict("How many times as fast as an A100 is an RTX 4090 at the fp32 product?", unit="times")

# %% cards-run
table = {}
for name in ("T4", "L4", "RTX4090", "A100-80", "H100"):
    with gpulab.VirtualGPU(name, compute=False):
        a, large = torch.randn(4096, 4096, device="cuda"), torch.randn(2**26, device="cuda")
        h = a.half()
        table[name] = [microseconds(f, repeat=2) / 1000 for f in (lambda: a @ a, lambda: h @ h, lambda: F.gelu(large))]
print("            fp32 product   fp16 product        GELU")
for name, row in table.items():
    print(f"{name:<10}", *(f"{time:>11.2f} ms" for time in row), " (virtual)")
cards_guess.compare(round(table["A100-80"][0] / table["RTX4090"][0], 2), "virtual")

# %% cards-sheet
print("              fp32    fp16   memory                link to another GPU   fp64 (recorded)")
for name in table:
    roofs = gpulab.sim.roofline(gpu=name).result
    sheet, link = roofs.spec, roofs.spec.gpu_link
    between = f"{link.name}, {link.both_ways_gbps:.0f} GB/s" if link else "none"
    fp64 = f"1/{roofs.rates.tflops['fp32'] / roofs.rates.tflops['fp64']:.0f} of fp32"
    rates = f"{sheet.tflops['fp32']:>5g} {sheet.tflops['fp16']:>5g} TFLOP/s"
    print(f"{name:<10} {rates}, {sheet.memory_gb} GB at {sheet.bandwidth_gbps:>4.0f} GB/s   {between:<21} {fp64}")

# %% cards-explain [markdown]
# A gaming card beats the A100 by almost three in plain fp32, and loses by one and a half to two where tensor cores or memory
# decide. By the data sheets it would be four: but since Ampere half of a gaming card's fp32 lanes share their port with
# whole-number arithmetic, and products reach two thirds of that peak (recorded). An L4, nearly five years younger than a
# T4, has 3.7 times its fp32 arithmetic on paper and 2.6 times here, for 72 W do not keep its lanes busy. Its bandwidth
# is slightly less, and it comes closer to it.
#
# “Data-centre card” is no property: of the four in the table two, A100 and H100, have what is said of all of them, 80 GB,
# NVLink, and fp64 at half of the fp32 rate. T4 and L4 have none of the three; what they have is a low power draw. (Gaming cards
# since the 40 series have no direct copies from card to card either.) For one card, one model that fits, and fp32 or fp16, a
# gaming card is a fair choice.

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “A ReLU over 524,288 numbers needs 76 batches on 6912 cores.” | The division is right (75.9), the model is not: it waits for memory. | *A question worth asking* |
# | “A CPU has 24 cores, a GPU 6912.” | A CUDA core is a lane. In lanes a desktop CPU has hundreds. | *Few fast cores, many slow lanes* |
# | “A desktop CPU does about 1 TFLOPS; 8 to 24 cores, 64 MB of cache; a GPU runs at 1 to 2 GHz.” | Low or outdated: 1.4 from eight cores; 192 cores and over 1 GB of L3 in servers; 2.5 GHz in gaming cards. | *Few fast cores, many slow lanes* |
# | “10 to 50 times faster”, “10 to 100 times”, “4.9 to 8.8 times” | None is a property of GPUs. For 708 image models on one pair of machines 11 to 311, half of them below 44 (recorded); below 1 for small work. | *Few fast cores*, *When the CPU wins* |
# | “An IEEE study: CNNs 4.9 to 8.8 times.” | Misquoted: CNN 8.8, RNN 4.9, and the plain network 1.2 times faster on the CPU. | *When the CPU wins* |
# | “95 % parallel makes 20 times.” | The limit, for infinitely many workers. With 8: 5.9. | *Amdahl* |
# | “Deep learning is over 99 % parallel.” | In operations. In time, loading, launches and copies count too. | *Amdahl*, *When the CPU wins* |
# | “Most operations are limited by bandwidth.” | True of a ResNet-50 (virtual) and of a BERT layer (recorded). | *A real network under the roof* |
# | “Tensor cores are 12 times CUDA cores.” | V100 against P100. On the same chip: 2 (RTX 4090) to 30 (B200). | *What a GPU is made of* |

# %% web-more-text [markdown]
# More of them, on the machines themselves and on GPT-4:
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “The A100 has HBM3 on the chip.” | HBM2 or HBM2e, in the package. HBM3 came with the H100. | *What a GPU is made of* |
# | “2 TB/s” beside a picture of an RTX 4090 | That is an A100's; a 4090 has 1008 GB/s, and no HBM. | *Few fast cores*, *Which GPU?* |
# | “A layer of 1024 × 1024 is 1,048,576 multiply-adds.” | True, for each row: 2,097,152 FLOPs. | *Operations per byte* |
# | “A CPU would train GPT-4 for 35,000 years.” | Those are the years of *one A100* in fp32. | next cell |
# | “25,000 A100s, 90 days.” | Consistent at a third of the peak; the figures are unofficial. | next cell |
# | “The H100 made GPT-4 possible.” | The same reports say A100. Its training ended in August 2022, before the H100 shipped. | text |
# | “Data-centre cards are faster.” | The large ones, at what tensor cores and memory decide; a T4 or an L4 is not. | *Which GPU?* |
#
# GPT-4 is said to have taken 2.15 × 10²⁵ operations. A year has 3.16 × 10⁷ seconds. Whose years are the 35,000?

# %% web-gpt-predict
years_guess = gpulab.predict("How many years would a CPU of 1 TFLOP/s take?", unit="years")

# %% web-gpt
operations, year = 2.15e25, 365.25 * 24 * 3600
print(f"one A100 at its fp32 peak of 19.5 TFLOP/s:  {operations / 19.5e12 / year:>9,.0f} years (computed)")
print(f"one A100 at its bf16 peak of 312 TFLOP/s:   {operations / 312e12 / year:>9,.0f} years (computed)")
done = 25_000 * 90 * 24 * 3600 * 312e12 * 0.35
print(f"25,000 A100s, 90 days, 35 % of that peak: {done:.2e} operations (computed)")
years_guess.compare(round(operations / 1e12 / year), "computed")

# %% web-history [markdown]
# How did it come to this? In 2007 CUDA made the lanes of a graphics card programmable in C. In 2012 AlexNet, 60 million
# parameters, was trained in five to six days on two GTX 580 with 3 GB each, and was so far ahead that everyone bought
# GPUs. In 2014 cuDNN gave all frameworks the same fast convolutions. In 2017 the V100 brought tensor cores. Since then
# chips have grown where networks spend their operations, and networks have grown into what chips do well.

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **Comparing with a CPU that is asleep.** A Python loop uses one lane of one core, and most of that for Python. Compared
# with it, the CPU's own vector code is “a GPU”:

# %% mistake-loop tags=["host-dependent"]
numbers = torch.randn(1_000_000)
as_list = numbers.tolist()
timer = benchmark.Timer("[v if v > 0 else 0.0 for v in values]", globals={"values": as_list})
loop = min(timer.timeit(1).mean for _ in range(3))
timer = benchmark.Timer("values.relu()", globals={"values": numbers})
vector = min(timer.timeit(20).mean for _ in range(3))
print(f"Python loop {loop * 1e6:,.0f} µs, one core with vectors {vector * 1e6:,.0f} µs: {loop / vector:,.0f} × (measured)")

# %% mistake-gpu-loop-text [markdown]
# **Expecting a GPU to make a loop fast.** Each pass of this loop is two kernels for a single number, so the GPU is used at
# one lane, and each pass costs two launches:

# %% mistake-gpu-loop
x = torch.randn(1000, device=gpu.device)
y = torch.empty_like(x)


def one_by_one():
    for i in range(1000):
        y[i] = x[i].clamp(min=0)


slow, fast = microseconds(one_by_one), microseconds(lambda: x.clamp(min=0))
print(f"1000 numbers one by one: {slow:,.0f} µs, at once: {fast:,.0f} µs ({gpu.numbers})")
print("more than 100 times slower:", slow > 100 * fast)

# %% mistake-flops-text [markdown]
# **Reading FLOPs as time.** A counter that leaves out what has no products calls half of a network free. Both models
# below have the same count:

# %% mistake-flops
lean = nn.Sequential(nn.Linear(256, 256), nn.ReLU())
rich = nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU(), nn.Dropout(0.1), nn.Softmax(-1))
batch = torch.randn(16384, 256, device=gpu.device)
for name, model in (("linear, ReLU", lean.to(gpu.device)), ("linear and four more", rich.to(gpu.device))):
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(batch)
    with torch.no_grad():
        took = microseconds(lambda model=model: model(batch))
    print(f"{name:<21} {counter.get_total_flops():,} FLOPs (computed), {took:>6.0f} µs ({gpu.numbers})")

# %% mistakes-more [markdown]
# **Peaks that are not yours.** The data sheet of an H100 says 1979 TFLOP/s in fp16, “with sparsity”: half of the weights
# must be zero in a fixed pattern. Dense, it is 989.5. Do you multiply in fp32? Then it is 67. Always ask for which format, dense,
# and accumulated in what.
#
# **Timing on zeros.** Products of zeros flip fewer transistors, need less power, and let the clock stay up: 894 TFLOP/s on zeros
# against 769 to 798 on random numbers, the same 8192³ product on the same H200 (recorded). Time on data like yours.
#
# **Timing without waiting.** PyTorch returns before the GPU is done, and a stopwatch then shows the launch. Some benchmarks of
# “1000 times faster” are nothing else. Lesson 03 takes that apart.

# %% quiz-text [markdown]
# ## Quick check
#
# Choose with the arrow keys, answer with Tab and Enter. Every option has its reason.

# %% quiz
gpulab.quiz(1)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. A GPU is two machines: one computes, one moves bytes. Divide FLOPs by the peak, bytes by the bandwidth: the longer
#    time decides.
# 2. A CUDA core is a lane, an SM is a core, a warp is 32 threads with one instruction. Latency is hidden by other warps, so
#    small work cannot be fast.
# 3. Matrix products suit a GPU because each number is used many times once it is there. An elementwise operation uses it
#    once, and waits for memory.
# 4. The part that stays sets the limit: loading, launches, copies, and the bytes between the products.
# 5. The CPU can win on small work, on work for the host's data that is not worth its trip, and on tiny networks. Large
#    networks ran 11 to 311 times as fast on one GPU as on one CPU (recorded): ask for model, format, batch and CPU.
#
# **For the checklist:** intensity against balance before you optimise · largest batch that is useful · data stays on the
# GPU · peaks dense, in your format · the CPU in a comparison uses all its lanes.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/01_why_gpus.ipynb): count a layer, find a crossover. Then
# [the map of the course](00_start_here.ipynb).
#
# ## References
#
# - Williams, Waterman, Patterson, *Roofline: An Insightful Visual Performance Model*, CACM 52(4), 2009. NVIDIA, *GPU Performance
#   Background User's Guide*; *CUDA C++ Programming Guide*, “SIMT Architecture”; *A100 Tensor Core GPU Architecture* (whitepaper).
# - Luo et al., *Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking*, arXiv 2402.13499 (latencies).
# - Ivanov et al., *Data Movement Is All You Need*, arXiv 2007.00072 (the BERT table).
# - Nishanth et al., *Performance of CPUs and GPUs on Deep Learning Models for Heterogeneous Datasets*, IEEE, 2022.
# - R. Wightman, *PyTorch Image Models*, folder `results` (Apache-2.0). Hugging Face, *transformers* documentation, SDPA training
#   tables of BERT and OPT on an A100 (17 ms for some 530 kernels of BERT-base, counted here).
# - Amdahl 1967; Gustafson, *Reevaluating Amdahl's Law*, CACM 31(5), 1988. Krizhevsky et al., *ImageNet Classification with Deep
#   Convolutional Neural Networks*, 2012. OpenAI, *GPT-4 System Card*, 2023 (end of training).
# - Peaks, lanes, bandwidths: NVIDIA's data sheets of T4, V100, A100, H100, L4; Ada whitepaper. GPT-4's operations and machines:
#   unofficial, as reported in 2023.

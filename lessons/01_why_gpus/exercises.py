# %% title [markdown]
# # 01 · Exercises: why GPUs
#
# Two functions and a question, about 40 minutes. A check cell under each function tests your code: run it as often as
# you like. It draws new inputs every time, and when it fails it says what it expected, what it got, and which section
# of [the lecture](../notebooks/01_why_gpus.ipynb) to read.
#
# A cell that says *not attempted yet* is one you have not written. Everything after it still runs.

# %% setup
import math

import torch
from torch import nn

import gpulab

gpu = gpulab.setup()

# %% cost-text [markdown]
# ## 1 · What a layer costs
#
# **Build** a function that counts the operations and the bytes of a layer. **Why:** these two numbers decide how fast it
# can be, on any machine, before you have run it.
#
# 20 minutes · difficulty ●●○

# %% cost-predict
cost_guess = gpulab.predict(
    "A convolution, 64 to 128 channels, 3 × 3, on one 56 × 56 image: how many FLOPs?", unit="MFLOP"
)


# %% layer_cost tags=["solution"]
def layer_cost(layer, x):
    """FLOPs and bytes of one forward pass of `layer` on `x`.

    layer  an nn.Linear, or an nn.Conv2d with any kernel, stride, padding (in numbers), dilation and
           groups; with or without a bias, frozen or not
    x      its input: (..., in_features) for Linear, (N, C, H, W) for Conv2d; any floating dtype,
           the same as the layer's. It may be on the device "meta", which has shapes and no values

    FLOPs: a multiply-add is two. The additions of the bias do not count (PyTorch's own counter
    leaves them out, too). Bytes: input, weight, bias and output are moved once each, in their
    dtype. Returns (flops, nbytes), two whole numbers. Neither layer nor x is changed.
    """
    # TODO: find the shape of the output, and how many multiply-adds each of its elements takes
    ### BEGIN SOLUTION
    with torch.no_grad():
        out = layer(x)
    # A Linear's weight is (out, in), a Conv2d's (out, in / groups, height, width):
    # one row makes one number.
    flops = 2 * out.numel() * layer.weight[0].numel()
    nbytes = sum(tensor.nbytes for tensor in (x, *layer.parameters(), out))
    return flops, nbytes
    ### END SOLUTION

# %% check-cost tags=["check"]
gpulab.check.layer_cost(layer_cost)

# %% cost-hints [markdown]
# <details><summary>Hint 1</summary>
#
# How many elements does the output have? Each of them is a sum of products. Of how many products?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `layer.weight.shape` is (out_features, in_features) for a Linear, and (out_channels, in_channels / groups, height,
# width) for a Conv2d. One row of it makes one element of the output. To get the output's shape you may run the layer,
# also on `"meta"`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `tensor.numel()` counts elements, `tensor.nbytes` bytes. Four tensors are moved, or three if the bias is `None`;
# `layer.parameters()` leaves it out then.
#
# </details>

# %% cost-compare tags=["needs-answer"]
convolution = nn.Conv2d(64, 128, 3, padding=1, device="meta")
flops, nbytes = layer_cost(convolution, torch.empty(1, 64, 56, 56, device="meta"))
cost_guess.compare(round(flops / 1e6), "computed")
print(f"{nbytes / 1e6:.2f} MB are moved, {flops / nbytes:.0f} operations per byte (computed)")

# %% amdahl-text [markdown]
# ## 2 · What the whole job gains, and how long it must be
#
# **Build** Amdahl's law with an overhead, and solve it for the crossover point. **Why:** it tells you whether a GPU
# pays off before you rent one.
#
# 15 minutes · difficulty ●●○
#
# **`amdahl(seconds, share, factor, overhead)`**
#
# - `seconds`: what the job takes on the CPU, more than 0
# - `share`: the part of that time that the GPU can take over, from 0 to 1
# - `factor`: how many times as fast the GPU does that part, more than 0; below 1 it is slower. `math.inf`, an
#   infinitely fast GPU, comes only with a share below 1
# - `overhead`: seconds that the GPU adds (start-up, copies): 0 or more, the same for a job of any length
#
# Returns (speedup, crossover):
#
# - `speedup`: the job's time on the CPU over its time with the GPU
# - `crossover`: jobs that take longer than this many seconds on the CPU are faster with the GPU, at the same share,
#   factor and overhead. 0 if all jobs are, `math.inf` if none is

# %% amdahl-predict
job_guess = gpulab.predict(
    "80 % of a 10 s job runs 20 times as fast, and copies take 1 s. How many times as fast is it?"
)


# %% amdahl tags=["solution"]
def amdahl(seconds, share, factor, overhead):
    """The speedup of a whole job by a GPU, and how long a job must be to gain."""
    # TODO: the time with the GPU has three parts; the crossover is where it
    # equals the time on the CPU
    ### BEGIN SOLUTION
    with_gpu = seconds * (1 - share) + seconds * share / factor + overhead
    saved = share * (1 - 1 / factor)  # in each second of the job
    crossover = overhead / saved if saved > 0 else math.inf
    return seconds / with_gpu, crossover
    ### END SOLUTION

# %% check-amdahl tags=["check"]
gpulab.check.amdahl(amdahl)

# %% amdahl-hints [markdown]
# <details><summary>Hint 1</summary>
#
# Add up times, never speeds: what stays on the CPU, what moved to the GPU, and the overhead.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Write $p$ for the share, $k$ for the factor, $c$ for the overhead. At the crossover a job of $t$ seconds takes $t$ on either
# side: $t = t\,(1 - p) + t\,p / k + c$. How much of $t$ is left when you bring it to one side?
#
# </details>
# <details><summary>Hint 3</summary>
#
# Each second of the job saves $p\,(1 - 1/k)$ seconds, and these savings must first make up for the overhead. What does
# it mean if a second saves nothing, or less than nothing?
#
# </details>

# %% amdahl-compare tags=["needs-answer"]
speedup, crossover = amdahl(10, 0.8, 20, 1)
job_guess.compare(round(speedup, 2), "computed")
print(f"a job of less than {crossover:.2f} s is better off without the GPU (computed)")

# %% try-text [markdown]
# Your `layer_cost` shows why a language model writes slowly and reads fast. These are four of the layers in a block of
# an 8-billion-parameter model (4096 wide, in bf16): first for a single token, as in writing, then for 2048 tokens, as
# in reading a prompt. The GPU is an H100: 989 TFLOP/s, 3350 GB/s, 5 µs for a launch (recorded, recorded, assumed).

# %% try-it tags=["needs-answer"]
like = {"bias": False, "device": "meta", "dtype": torch.bfloat16}
block = {
    "query": nn.Linear(4096, 4096, **like),
    "key": nn.Linear(4096, 1024, **like),
    "up": nn.Linear(4096, 14336, **like),
    "down": nn.Linear(14336, 4096, **like),
}
for tokens in (1, 2048):
    for name, layer in block.items():
        x = torch.empty(tokens, layer.in_features, device="meta", dtype=torch.bfloat16)
        flops, nbytes = layer_cost(layer, x)
        took, what = max(
            (flops / 989e6, "arithmetic"), (nbytes / 3350e3, "memory"), (5, "its launch")
        )
        print(f"{tokens:>4} tokens, {name:<6} {took:>6.1f} µs, bound by {what} (computed)")

# %% question-text [markdown]
# ## 3 · A question to end with
#
# A CPU has a higher clock rate, a larger cache, and no launch to pay for. Why do matrix products still suit GPUs?

# %% clock-question
gpulab.quiz(1, "clock")

# %% done [markdown]
# ## Done?
#
# The cell below shows what is recorded. Next: [the map of the course](../notebooks/00_start_here.ipynb).

# %% progress tags=["host-dependent"]
gpulab.progress()

# %% title [markdown]
# # 11 · Faster steps
#
# **Promise:** you know the switches that make a step faster, what each one costs and when it hurts; you turn them one
# at a time, and believe no gain that is smaller than the noise.
#
# After this lesson you can **say** which switches can help a step at all · **capture** a step as a CUDA graph, and feed
# it · **count** graph breaks and recompilations, and **compute** when compiling pays · **tell** when layout, autotuning
# and sizes matter.
#
# | time | before this | runs on |
# |---|---|---|
# | 60 minutes, and 70 for the exercises | `03_moving_data` (the launch queue), `07_mixed_precision` | any machine |

# %% setup
import matplotlib.pyplot as plt

import gpulab

gpu = gpulab.setup()

# %% question-text [markdown]
# ## A question worth asking
#
# Lesson 06 opened with a GPT-2 that somebody trained on one A100 (S. Raschka, *LLMs-from-scratch*). Here is the whole
# series but for one switch: what each gained over the one before.

# %% question-series
gains = {  # per cent over the step before (recorded)
    "mask on the fly": 0, "TF32": 121, "fused AdamW": 3, "pinned memory": 0, "bf16 weights": 60,
    "PyTorch's norm, GELU": 21, "FlashAttention": 66, "torch.compile": 22, "larger batch": 12,
}

# %% question-plot
gpulab.style.use()
here = ("fused AdamW", "torch.compile", "larger batch")
colours = [gpulab.style.BLUE if name in here else gpulab.style.MUTED for name in gains]
figure, axes = plt.subplots(figsize=(7.2, 2.9))
axes.bar_label(axes.barh(list(gains), list(gains.values()), color=colours), fmt="%d %%", padding=3)
axes.set(xlabel="gain, % (recorded, A100)", xlim=(0, 140), title="Blue: the switches of this lesson")
axes.invert_yaxis()
gpulab.style.show(figure, alt=f"Bars of the gain of nine switches, per cent: {gains}")

# %% question-ask [markdown]
# The missing one came between `torch.compile` and the larger batch, and it is odd: the vocabulary grew from 50,257 to
# 50,304, by 47 words that occur in no text. The model became larger, and nothing else changed.

# %% question-predict
vocabulary_guess = gpulab.predict("47 useless words more: the training is faster by", unit="%")

# %% question-run
why = "Why? Under “Numbers and shapes”. A minus would have meant slower: more words, more work."
vocabulary_guess.compare(14, "recorded", because=why)

# %% question-answer [markdown]
# In all, the training became 11 times as fast (recorded). Three switches of ten made most of it, and two did nothing.
# TF32 and bf16 belong to lesson 07; norm, GELU and FlashAttention (`F.scaled_dot_product_attention`) to lesson 06. The
# blue ones and the 47 words follow here.
#
# A gain belongs to a network, a batch, a GPU *and the switches before it*: faster arithmetic gains nothing while the
# step waits for the host. So first ask what a switch can save at all.

# %% waits-text [markdown]
# ## First find out who waits
#
# A step takes about as long as the slower of two: the **host**, which launches kernels, and the kernels, each of which
# waits for **memory** or **arithmetic**. Take a small transformer on an H200 with a slow host. In float32 a step takes
# 17.8 ms, and kernels run for 14.3 of them. Autocast to bf16 makes the kernels 3.6 times as fast: they now need 4.0 ms
# (recorded).

# %% waits-predict
bf16_guess = gpulab.predict("The step in bf16", unit="ms")

# %% waits-run
why = "The host needs that long to launch the step: autocast's casts are launches too."
bf16_guess.compare(21.4, "recorded", because=why)

# %% waits-answer [markdown]
# Kernels run for 19 % of that. With ResNet-50 and 256 images they run for 99 % of a step, in bf16 too (recorded, same
# machine).
#
# | the step waits for | you see | what can help |
# |---|---|---|
# | data | the loader costs time | lesson 09; nothing below |
# | the host | kernels run for half of the step or less; a larger batch costs no time | larger batch, fused optimizer, CUDA graph, `compile`, fewer waits |
# | memory | norms, activations, additions; low FLOP/s | `compile` (fusion), 16 bits, layout |
# | arithmetic | products and convolutions | TF32 or bf16, sizes, autotuning |
#
# Try a **larger batch** first, until kernels fill the step. Beyond that it costs memory and gains little. It also
# changes the training (lesson 08).
#
# This lesson uses two networks: a ResNet-18, and a small GPT without its mask (we only time it).

# %% imports
import statistics

import torch
import torch._inductor.utils
import torchvision
from torch import nn
from torch.nn import functional as F

torch._logging.set_logs(all=40)  # errors alone; the compiler's warnings are quoted in the text

# %% models
def resnet(n):
    return torchvision.models.resnet18(), torch.randn(n, 3, 224, 224), torch.zeros(n, dtype=torch.long)


def gpt(n):
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    blocks = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(5000, 256), blocks, nn.Linear(256, 5000))
    tokens = torch.randint(5000, (n, 256))
    return model, tokens, tokens.flatten()

# %% training
def training(model, x, y, half=True, **options):
    optimizer = torch.optim.AdamW(model.parameters(), **options)

    def step():
        optimizer.zero_grad()
        # a CUDA graph may not keep autocast's cache of casts
        with torch.autocast(x.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            loss = F.cross_entropy(model(x).flatten(0, -2), y)
        loss.backward()
        optimizer.step()

    return step


def on_gpu(job, n, **options):
    with torch.device("cuda"):
        return training(*job(n), **options)

# %% waits-lanes
with gpulab.VirtualGPU("A100-80", compute=False):
    step = on_gpu(resnet, 2)
    step()  # the first step loads libraries
    gpulab.timing.timeline(step).show()

# %% launches-text [markdown]
# ## Fewer launches
#
# With two images the GPU waits for the next launch most of the time. (A host faster than the virtual one leaves
# shorter gaps.)
#
# **The optimizer.** ResNet-18 has 62 parameter tensors. AdamW can go through them in a Python loop; it can do each of
# its operations for all tensors at once (`foreach`, the default on a GPU); or it can do everything in a few kernels
# (`fused`):

# %% launches-optimizer
for options in ({"foreach": False}, {"foreach": True}, {"fused": True}):
    plan = gpulab.plan(lambda n: on_gpu(resnet, n, **options), 2, "A100-80")
    print(f"{options!s:<18} {plan.step_ms:4.1f} ms a step (virtual)")

# %% launches-graph-text [markdown]
# `fused=True` costs nothing; only the last digits differ.
#
# **A CUDA graph** goes further: it records the launches of a whole step once, and *replays* them with one call. Before
# the capture, a few ordinary steps on a side stream do all that happens only once. These steps train; the capture
# itself computes nothing. AdamW's step counter has to be on the GPU: `capturable=True`.

# %% launches-graph
def captured(step):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph

# %% launches-graph-run
options = {"fused": True, "capturable": True}
for job, batch in ((resnet, 2), (resnet, 128), (gpt, 2)):
    eager = gpulab.plan(lambda n: on_gpu(job, n, **options), batch, "A100-80").step_ms
    replay = gpulab.plan(lambda n: captured(on_gpu(job, n, **options)).replay, batch, "A100-80").step_ms
    print(f"{job.__name__:<6} batch {batch:>3}: {eager:4.1f} ms → {replay:4.1f} ms, {eager / replay:.1f} × (virtual)")

# %% launches-graph-explain [markdown]
# A graph gains much where the host set the pace, and nothing elsewhere. (On a real GPU short gaps between kernels
# remain.)
#
# The price: the graph keeps its memory, since every address is fixed. Shapes cannot change. No Python runs, so there
# is no `if` on a value, no `print`, no `.item()`. Dropout still draws new numbers in each replay: the GPU's generator
# is part of the graph. `torch.cuda.make_graphed_callables(model, (x,))` captures a model without its optimizer.
#
# A graph reads its input *where it lay at capture*.
#
# **Your turn** · 3 minutes. The function below gives the same result for every batch. Repair it.

# %% replay-turn tags=["your-turn"]
def replayed(graph, x, y, batches):
    # a replay computes y from what lies in x; wanted: the result for each batch, in a list
    ### BEGIN SOLUTION
    results = []
    for batch in batches:
        x.copy_(batch)
        graph.replay()
        results.append(y.clone())
    return results
    ### INSTEAD OF
    # results = []
    # for batch in batches:
    #     x = batch
    #     graph.replay()
    #     results.append(y)
    # return results
    ### END SOLUTION


gpulab.turn.replayed_batches(replayed)

# %% rate-text [markdown]
# ### What else is frozen
#
# SGD moves a weight by learning rate × gradient. Below, the gradient is 1 and the learning rate 1. The step is captured;
# then a scheduler multiplies the learning rate by 0.001, and the graph is replayed. By how much does the weight move?

# %% rate-predict
rate_guess = gpulab.predict("The weight moves by")

# %% rate-run
def moved_by_a_replay(rate, **options):
    weight = nn.Parameter(torch.zeros(1, device="cuda"))
    optimizer = torch.optim.SGD([weight], rate, **options)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.001)
    weight.grad = torch.ones_like(weight)
    graph = captured(optimizer.step)
    scheduler.step()
    before = weight.item()
    graph.replay()
    return before - weight.item()

# %% rate-answer
with gpulab.VirtualGPU("A100-80"):
    with_number = moved_by_a_replay(1.0)
    tensor = torch.tensor(1.0, device="cuda")
    print(f"the rate as a tensor: {moved_by_a_replay(tensor, fused=True):.3f} (virtual)")
why = "The launch was recorded with this number. The scheduler changes another, which nobody reads."
rate_guess.compare(with_number, "virtual", because=why)

# %% rate-explain [markdown]
# There is no error. Make the learning rate a **tensor on the GPU** before the capture: PyTorch's schedulers fill it in
# place, and the graph reads it. (Adam and AdamW take one with `capturable=True`; SGD needs `fused=True`.) Every other
# number that changes is frozen too, such as a loss's weight.
#
# **Your turn** · 2 minutes. The optimizer's learning rates are tensors, and its step is captured. `set_rate` has no
# effect on the replays. Repair it.

# %% rate-turn tags=["your-turn"]
def set_rate(optimizer, rate):
    ### BEGIN SOLUTION
    for group in optimizer.param_groups:
        group["lr"].fill_(rate)
    ### INSTEAD OF
    # for group in optimizer.param_groups:
    #     group["lr"] = rate
    ### END SOLUTION


gpulab.turn.set_rate(set_rate)

# %% simulator-text [markdown]
# ### See it move
#
# The simulator opens on a launch-bound step: 40 kernels of 3 µs, 15 µs to launch each, compiled. Try this:
#
# 1. Compare the modes below the lanes: does compiling or the graph gain more here?
# 2. Set *Kernel time* to 100 µs. Which mode has become useless?
# 3. Back to 3 µs, choose *CUDA graph*, and set *loss.item()* to *every step*. What does a wait cost when launches are
#    cheap?

# %% simulator
gpulab.sim.launch_queue(kernel=3, launch=15, kernels=40, mode="compile")

# %% waits-sync-text [markdown]
# **Fewer waits** cost nothing. At `loss.item()`, or a progress bar that shows the loss, the host stops launching until
# the GPU is done, and then the GPU waits for the host (lesson 03). Read the loss every 50 steps.

# %% compile-text [markdown]
# ## torch.compile: one graph, or several
#
# `torch.compile(model)` does three things when the model is first called. **Dynamo** runs through your Python and
# writes down the tensor operations as a graph, with **guards**: the conditions under which it is valid (shapes,
# dtypes, values of Python numbers). **AOTAutograd** adds the backward graph. **Inductor** *fuses*: it writes kernels
# that do many operations while the data are in registers, in Triton for a GPU, in C++ for a CPU.
#
# Where Dynamo cannot go on, the graph **breaks**: the part so far is compiled, Python runs the line, a new graph
# begins. Nothing fuses over a break. To count the graphs, pass a *backend*: a function that is given each one.

# %% compile-count
graphs = []


def counting(graph, example_inputs):
    graphs.append(graph)
    return graph.forward  # runs the graph as it is


def count(function, *cases, **options):
    graphs.clear()
    with gpulab.without_gpu():
        compiled = torch.compile(function, backend=counting, **options)
        for case in cases:
            compiled(case)
    return len(graphs)

# %% compile-breaks
def with_branch(x):
    return x * 2 if x.sum() > 0 else x


print("an if on a value:", count(with_branch, torch.ones(4)), "graphs")
for job in (resnet, gpt):
    print(f"{job.__name__}:", count(*job(2)[:2]), "graph")

# %% compile-fullgraph-text [markdown]
# Both networks are one graph as they are. An `.item()`, a `print` or a logger breaks a graph, too. With `fullgraph=True` a
# break is an error that says where (`Unsupported: Data-dependent branching`).

# %% one-graph-turn-text [markdown]
# **Your turn** · 4 minutes. This function shortens a vector that is too long, as gradient clipping does. Make it one graph.

# %% one-graph-turn tags=["your-turn"]
def shortened(x, limit):
    ### BEGIN SOLUTION
    return x * (limit / x.norm()).clamp(max=1)
    ### INSTEAD OF
    # norm = x.norm()
    # if norm > limit:
    #     x = x * (limit / norm)
    # return x
    ### END SOLUTION


gpulab.turn.one_graph(shortened)

# %% recompile-text [markdown]
# ## Recompilations
#
# When a guard fails, the function is compiled again for the new case, and both versions are kept. Training on
# sentences meets a new length in nearly every batch.

# %% recompile-predict
recompile_guess = gpulab.predict("A compiled softmax meets the lengths 2, 3, … 11. How often is it compiled?")

# %% recompile-run
lengths = [torch.ones(n) for n in range(2, 12)]
why = "For the length 2, then for any length, as a symbol: dynamic shapes. (0 and 1 stay apart.)"
recompile_guess.compare(count(lambda x: x.softmax(0), *lengths), "computed", because=why)

# %% recompile-repair [markdown]
# With `dynamic=False` each length is compiled separately, up to a limit. *Whatever needs a ninth version runs
# uncompiled*, and only a warning says so: `torch._dynamo hit config.recompile_limit (8)`. Two usual causes:
#
# - **An int in an attribute** (or a global), such as a counter of calls, has a guard on its value. Make it a tensor (a
#   buffer), or take it out of `forward`. An int *argument*, and a float anywhere, become symbols at the second value.
# - **A Python loop** such as `for i in range(x.shape[0])` is unrolled, so each length needs a graph of its own.
#
# `TORCH_LOGS="recompiles,graph_breaks"` prints the guard that failed.
#
# ## What compiling buys, and when it pays
#
# Now compile with Inductor, for this machine's processor or your GPU: first a GELU written out, of nine
# operations, then a block of ResNet-18, whose convolutions stay library calls.
#
# ![As written: nine kernels that each read and write memory. Fused: one.](../docs/pictures/fusion.svg)

# %% inductor-define
def gelu(x, bias):
    h = x + bias
    return 0.5 * h * (1 + torch.tanh(0.79788456 * (h + 0.044715 * h**3)))


def compile_and_time(function, *args):
    compiled = torch.compile(function)
    first = gpulab.timing.measure(lambda: compiled(*args), repeat=1, warm_up=0).median_ms
    before, after = (gpulab.timing.measure(lambda: f(*args)).median_ms for f in (function, compiled))
    print(f"compiled in {first / 1e3:4.1f} s, {before:5.2f} ms → {after:5.2f} ms a call (measured)")

# %% inductor-go tags=["host-dependent"]
with gpulab.without_gpu(), torch.no_grad(), torch._inductor.utils.fresh_cache():
    where = "cuda" if torch.cuda.is_available() else "cpu"
    more = 16 if where == "cuda" else 1  # with as little as a CPU gets, a GPU would wait for launches
    block = torchvision.models.resnet18().layer2[1].eval().to(where)
    try:
        compile_and_time(gelu, torch.randn(more * 2048, 1024, device=where), torch.randn(1024, device=where))
        compile_and_time(block, torch.randn(more * 4, 128, 14, 14, device=where))
    except torch._inductor.exc.InductorError as error:
        print("no kernel:", str(error).splitlines()[0])

# %% inductor-explain [markdown]
# The gain depends on what you compile. It is large where the time goes into many small operations: into their memory
# traffic or, with little data on a GPU, into their launches. In *inference* on an RTX 4090, the median of 635 image
# models became 1.61 times as fast; two became slower, one down to 0.41 of its speed (recorded). In *training* the
# GPT-2 of the opening gained 22 %.
#
# **Memory** can go either way. The compiler chooses what to keep for backward:

# %% inductor-kept
x, bias = torch.randn(2048, 1024, requires_grad=True), torch.randn(1024, requires_grad=True)
with gpulab.without_gpu():
    traced = torch.compile(gelu, backend="aot_eager_decomp_partition")  # graphs, but no kernels
    for name, function in (("as written", gelu), ("compiled", traced)):
        print(f"{name}:", gpulab.memory.activation_bytes(function, x, bias))

# %% inductor-price [markdown]
# A quarter is left. In the GPT-2 of the opening, reserved memory *rose* from 5.90 to 6.19 GiB (recorded).
#
# **The price**: seconds to minutes, in every run (kernels are kept on disk, but graphs are traced again) and for every
# recompilation. A model of equal blocks starts sooner if you compile the *block*: after `for block in blocks:
# block.compile()` all blocks share one compilation.
#
# **Modes.** `"reduce-overhead"` adds CUDA graphs: for small batches of fixed shapes. Each call overwrites the last
# result (`accessing tensor output of CUDAGraphs that has been overwritten`), so clone it. `"max-autotune"` also tries
# several kernels for each product: for long runs of fixed shapes.
#
# **Your turn** · 2 minutes. From how many steps on does compiling pay? There are two mistakes below.

# %% break-even-turn tags=["your-turn"]
def break_even(compile_s, before_ms, after_ms):
    # steps from which on a run takes less time in all; infinity where it never does
    ### BEGIN SOLUTION
    saved = before_ms - after_ms
    return 1000 * compile_s / saved if saved > 0 else float("inf")
    ### INSTEAD OF
    # return compile_s / (before_ms - after_ms)
    ### END SOLUTION


gpulab.turn.break_even(break_even)

# %% layout-text [markdown]
# ## Layout: channels_last
#
# A batch of images has the shape (N, C, H, W), and lies in memory plane by plane. Tensor cores want all channels of a
# pixel side by side, so cuDNN often copies images before and after a convolution. `channels_last` stores pixel by
# pixel, and saves these copies. Shape and values stay; the strides change:
#
# ```python
# model = model.to(memory_format=torch.channels_last)
# images = images.to(memory_format=torch.channels_last)
# ```

# %% layout-predict
layout_guess = gpulab.predict("Of 100 image models, trained on an RTX 3090: how many get slower with channels_last?")

# %% layout-recorded
planes, pixels = "train-amp-nchw-pt112-cu113-rtx3090", "train-amp-nhwc-pt112-cu113-rtx3090"
ratios = sorted(gain.ratio for gain in gpulab.data.gains(planes, pixels))
slower = sum(ratio < 1 for ratio in ratios)
why = "Mostly networks of grouped convolutions, whose kernels were slow in that layout (PyTorch 1.12)."
layout_guess.compare(round(100 * slower / len(ratios)), "recorded", because=why)

# %% layout-plot
figure, axes = plt.subplots(figsize=(7.2, 2.8))
axes.hist(ratios, bins=40)
axes.set(xlabel="speed with channels_last / speed without (recorded)", ylabel="models")
axes.set_title(f"{slower} of {len(ratios)} slower, median {statistics.median(ratios):.2f}, worst {ratios[0]:.2f}")
gpulab.style.show(figure, alt="A histogram with a peak at 1, a hump to 1.5 and a tail down to 0.2.")

# %% layout-explain [markdown]
# The slowest model takes five times as long. The peak at 1 is mostly vision transformers, which have hardly a
# convolution. Is that still so? Here is the gain by `channels_last` of single layers, forward and backward, PyTorch
# 2.11, on an H100 and an H200, for 64 images of 256 channels and 56 × 56 pixels (recorded):
#
# | layer | fp32 | bf16 |
# |---|---|---|
# | 3 × 3 convolution | 1.34, 1.23 | 1.48, 1.39 |
# | grouped, 3 × 3 | 1.26, 1.20 | 1.81, 1.80 |
# | depthwise, 7 × 7 | 0.53, 0.53 | 4.46, 4.58 |
# | ReLU | 0.98, 1.02 | 0.85, 1.27 |
#
# A ReLU does the same work in both layouts, so its row shows the noise: up to a quarter. Beyond that noise, grouped
# convolutions now gain in bf16, and 7 × 7 depthwise in float32 loses. A rule measured in 2022 is about the libraries
# of 2022.

# %% layout-cudnn [markdown]
# **Autotuning.** cuDNN is on from the start. `torch.backends.cudnn.benchmark = True` is another switch: for every new
# shape cuDNN *tries* its algorithms and keeps the fastest. WaveGlow then trained 1.41 times as fast, YOLOv5 as fast as
# before (recorded: NVIDIA/waveglow#172, ultralytics/yolov5#3620). The first call of a convolution of a new shape took
# an H200 14 ms without it and 938 ms with it (medians of 12 shapes each, recorded). So turn it on where shapes are
# fixed, and off where they vary. The choice, and with it the last digits, may differ from run to run.

# %% numbers-text [markdown]
# ## Numbers and shapes
#
# **TF32** (lesson 07) drops digits of each factor, and saves no memory. On an H100 (recorded):
#
# | ms | fp32 | TF32 | bf16 (autocast) |
# |---|---|---|---|
# | a product of 4096³ | 2.68 | 0.37 | 0.19 |
# | a training step of GPT-2, 8 × 1024 tokens | 169 | 68 | 38 |
#
# The product gains a factor of 7, the step 2.5, since a step is not all products. What does `"medium"` add?

# %% numbers-tf32
for precision in ("medium", "high", "highest"):  # the last is the default
    torch.set_float32_matmul_precision(precision)
    print(f"{precision:<8} on NVIDIA GPUs: {torch.backends.cuda.matmul.fp32_precision}")

# %% numbers-tf32-explain [markdown]
# Nothing: on NVIDIA's GPUs it sets what `"high"` sets. It is no “simplified AMP”: activations stay in 32 bits.
#
# **Alignment** explains the 47 words. Take `a @ b` in bf16, with `a` of shape (m, k) and `b` of shape (k, n), and all
# three sizes 4096. Now make *one* of them 4097.

# %% numbers-predict
alignment_guess = gpulab.predict("For how many of m, k and n does 4097 more than double the time?")

# %% numbers-alignment
rows = gpulab.data.recorded("H100")["products"]
ms = {tuple(row["mnk"]): row["ms"] for row in rows if row["precision"] == "bf16"}
sizes = {"m": (4097, 4096, 4096), "k": (4096, 4096, 4097), "n": (4096, 4097, 4096)}
times = {name: round(ms[mnk] / ms[4096, 4096, 4096], 2) for name, mnk in sizes.items()}
print("time with 4097 / time with 4096:", times, "(recorded, H100)")
why = "k is the length of a's rows in memory, n that of b's and of the result's."
alignment_guess.compare(sum(ratio > 2 for ratio in times.values()), "recorded", because=why)

# %% numbers-alignment-explain [markdown]
# Tensor cores are fed in packets of 16 bytes: 8 numbers of 16 bits, 4 of TF32, 16 of fp8. A row that is not whole
# packets needs slower kernels. How much slower depends on the GPU; the H100's fast kernels take nothing else. A
# multiple of 8 is the minimum, not the best: 4104 still cost 23 % more as k and 11 % as n. (Kernels work in tiles of
# 64 to 256; memory, in lines of 128 bytes.) **Make widths and the vocabulary multiples of 64 or 128.**
#
# **The number of rows** is rounded up to whole tiles. An A100 has 108 SMs. If a product has 108 tiles, all run at
# once, in one *wave*; a 109th waits for a second wave. The virtual A100 has tiles of 128 × 128 here:

# %% numbers-waves
tiles = range(80, 240, 4)
with gpulab.VirtualGPU("A100-80", compute=False):
    b = torch.ones(4096, 128, device="cuda").half()
    rows = [torch.ones(128 * n, 4096, device="cuda").half() for n in tiles]
    took = [gpulab.timing.measure(lambda: a @ b, repeat=1, warm_up=1).median_ms for a in rows]
figure, axes = plt.subplots(figsize=(7.2, 2.5))
axes.plot(tiles, took, "o-")
axes.set(xlabel="tiles of 128 rows", ylabel="ms (virtual A100)", ylim=(0, None))
axes.set_title("One tile more than 108, or 216, is another wave")
gpulab.style.show(figure, alt="The time of a product over its tiles: flat, with steps up after 108 and 216.")

# %% numbers-rows-explain [markdown]
# Real libraries choose among tile sizes, so real steps are lower: m = 4097 cost the H100 6 % in bf16, 34 % in TF32. A
# batch size is a number of rows: it needs no power of two. A sequence length is one too, but where attention writes
# its table (lesson 06) it is the length of a row.

# %% determinism-text [markdown]
# ## The same bits twice
#
# A sum of floats depends on the order, and atomic additions by many threads have no fixed order.
# `torch.use_deterministic_algorithms(True)` chooses operations with a fixed order, and raises where there is none
# (`put_ does not have a deterministic implementation`). With seeds, the same machine and the same versions give the
# same bits. It costs speed; `torch.utils.deterministic.fill_uninitialized_memory = False` gives a part back.

# %% table-text [markdown]
# ## Your decision table
#
# Now time each switch alone, on your GPU or else this machine's processor. Machines drift: they warm up, others use
# them. So **take turns**: one step of each, and again. Include the baseline twice: what it “gains” against itself is
# noise. On a GPU, add `small(half=True)`. (A processor without 16-bit instructions took 20 times as long, measured.)

# %% table-define
def small(half=False, layout=torch.contiguous_format, **options):
    model = torchvision.models.resnet18().to(where, memory_format=layout)
    images = torch.randn(8, 3, 64, 64, device=where).to(memory_format=layout)
    return training(model, images, torch.zeros(8, dtype=torch.long, device=where), half, **options)


with gpulab.without_gpu():
    steps = {"nothing": small(), "nothing, again": small(), "fused AdamW": small(fused=True)}
    steps["channels_last"] = small(layout=torch.channels_last)

# %% table-run tags=["host-dependent"]
times = {name: [] for name in steps}
with gpulab.without_gpu():
    for turn in range(10):
        for name, step in steps.items():
            times[name].append(gpulab.timing.measure(step, repeat=1, warm_up=0).median_ms)
for name in steps:
    ratios = sorted(a / b for a, b in zip(times["nothing"][2:], times[name][2:]))  # two to warm up
    print(f"{name:<15} {statistics.median(ratios):.2f} ×, from {ratios[0]:.2f} to {ratios[-1]:.2f} (measured)")

# %% table-fill [markdown]
# Keep a switch if its median lies above the whole range of *nothing, again*, and its price is worth it. A gain inside
# that range may be noise. More turns only widen it: time more steps (`repeat`) in each turn.
#
# | switch | what it can save | price | gain |
# |---|---|---|---|
# | larger batch | launches, half-empty kernels | memory; learning rate | |
# | `fused=True` | launches, memory traffic | last digits | |
# | bf16 or TF32 | arithmetic, traffic | digits | |
# | `torch.compile` | memory traffic, launches | seconds, recompilations | |
# | CUDA graph | launches | memory; fixed shapes, addresses, numbers | |
# | `channels_last` | copies around convolutions | `view`; some layers slower | |
# | `cudnn.benchmark` | a better algorithm | each new shape; other bits | |
# | sizes in 64s | slow kernels | some parameters | |

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “Open cuDNN for speed.” | It is on. `benchmark` autotunes, and is slow for each new shape. | *Layout* |
# | “Dimensions in multiples of 8; odd ones idle warps.” | Rows must be whole 16-byte packets. Multiples of 64 are better. | *Numbers and shapes* |
# | “Batches in powers of two.” | A batch counts rows: whole tiles and waves matter. | *Numbers and shapes* |
# | “`'medium'` enables TF32, a simplified AMP.” | TF32, on NVIDIA's GPUs. It saves no memory. | *Numbers and shapes* |
# | “`torch.compile` doubles the speed.” | Median 1.6 in inference, 1.2 in training a GPT-2. | *What compiling buys* |

# %% mistakes-text [markdown]
# ## Common mistakes
#
# - **A wait inside a capture**, such as `loss.item()`. You see `CUDA error: operation failed due to a previous error during
#   capture`. The error before it tells why: `operation not permitted when stream is capturing`.
# - **A checkpoint of the wrapper**: `Unexpected key(s) in state_dict: "_orig_mod.weight"`. `torch.compile(model)` is another
#   module around yours; `model.compile()` works in place.
# - **`view` after `channels_last`**: `view size is not compatible with input tensor's size and stride`. `flatten` and
#   `reshape` copy where they must.
# - **No compiler.** Inductor needs `g++`, `clang++` or Visual C++ for a CPU, Triton for a GPU. It fails at the first *call*:
#   `InvalidCxxCompiler: No working C++ compiler found`.
# - **The first call in the mean.** It includes compiling. So does the first call with each new shape.
# - **A smaller last batch, `eval()`, `no_grad`** may each cause a compilation: `drop_last=True` in training.

# %% quiz-text [markdown]
# ## Quick check

# %% quiz
gpulab.quiz(11)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. Ask who waits. Fewer launches help where the host sets the pace; faster kernels help where it does not.
# 2. A gain belongs to a network, a batch and a GPU. Take turns with the baseline, and time that twice.
# 3. `torch.compile`: count graphs and recompilations first; it pays after (compile time ÷ time saved a step) steps.
# 4. A CUDA graph freezes addresses *and numbers*: copy in, clone out, and make the learning rate a tensor.
# 5. Make rows multiples of 16 bytes, and widths multiples of 64.
#
# **For the checklist:** `fused=True` · `fullgraph=True` once, to find breaks · `TORCH_LOGS=recompiles` · `channels_last`
# measured · `cudnn.benchmark` for fixed shapes only · vocabulary a multiple of 64 · no `.item()` in the step.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/11_faster_steps.ipynb). Then [lesson 12](12_many_gpus.ipynb), or [the map of the
# course](00_start_here.ipynb).
#
# ## References
#
# - PyTorch documentation: *torch.compiler*, *CUDA semantics* (CUDA graphs), *Reproducibility*, *Regional compilation*.
# - Ansel et al., *PyTorch 2*, ASPLOS 2024. S. Raschka, *LLMs-from-scratch*, ch05. R. Wightman, *pytorch-image-models*.
# - NVIDIA, *Matrix Multiplication Background User's Guide* (alignment, tiles, waves).

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
# series: ten switches, one after the other, and what each one gained over the step before.

# %% question-series
speeds = {  # tokens per second after each switch (recorded)
    "as written": 12525, "mask on the fly": 12526, "TF32": 27648, "fused AdamW": 28399,
    "pinned memory": 28402, "bf16 weights": 45486, "PyTorch's norm, GELU": 55256,
    "FlashAttention": 91901, "torch.compile": 112046, "47 words more": 127345,
    "larger batch": 142156,
}
names, after = list(speeds), list(speeds.values())
gains = {name: 100 * (b / a - 1) for name, a, b in zip(names[1:], after, after[1:])}

# %% question-plot
gpulab.style.use()
shown = gains | {"47 words more": 0}  # that one is the question
here = ("fused AdamW", "torch.compile", "47 words more", "larger batch")
colours = [gpulab.style.BLUE if name in here else gpulab.style.MUTED for name in shown]
figure, axes = plt.subplots(figsize=(7.2, 3.1))
bars = axes.barh(list(shown), list(shown.values()), color=colours)
labels = ["?" if name == "47 words more" else f"{gain:.0f} %" for name, gain in shown.items()]
axes.bar_label(bars, labels, padding=3)
axes.set(xlabel="gain over the step before, % (recorded, A100)", xlim=(0, 140))
axes.set_title("Blue: the switches of this lesson")
axes.invert_yaxis()
described = ", ".join(f"{name} {label}" for name, label in zip(shown, labels))
gpulab.style.show(figure, alt=f"Bars of the gain of ten switches: {described}")

# %% question-ask [markdown]
# The ninth is odd: the vocabulary grew from 50,257 to 50,304, by 47 words that occur in no text. The model became
# larger, and nothing else changed.

# %% question-predict
vocabulary_guess = gpulab.predict("47 useless words more: the training is faster by", unit="%")

# %% question-run
why = "Why? Under “Numbers and shapes”. A minus would have meant slower: more words, more work."
vocabulary_guess.compare(round(gains["47 words more"]), "recorded", because=why)

# %% question-answer [markdown]
# In all, the training became 11 times as fast (recorded). Three switches of ten made most of it, and two did nothing. TF32
# and bf16 are lesson 07's, pinned memory is lesson 03's; norm, GELU and FlashAttention are lesson 06's
# (`F.scaled_dot_product_attention`). The blue ones follow here.
#
# On your model it will be others. A gain belongs to a network, a batch, a GPU *and the switches before it*: faster
# arithmetic gains nothing while the step waits for the host. So turn one switch at a time, and ask first what it can
# save at all.

# %% waits-text [markdown]
# ## First find out who waits
#
# A step takes about as long as the slowest of three: the **host**, which launches kernels; the GPU's **memory**; its
# **arithmetic**. Take a small transformer on an H200 whose host is slow. In float32 a step takes 17.8 ms, and kernels
# run for 14.3 of them. Autocast to bf16 makes the kernels 3.6 times as fast: they now need 4.0 ms (recorded). And the
# step?

# %% waits-predict
bf16_guess = gpulab.predict("The step in bf16", unit="ms")

# %% waits-run
steps = {(row["model"], row["batch"], row["mode"]): row for row in gpulab.data.recorded("H200")["steps"]}
print("ms a step, and of kernels (recorded, H200)")
for job in (("encoder", 16), ("resnet18", 64), ("resnet50", 256)):
    for mode in ("fp32", "amp_bf16"):
        row = steps[(*job, mode)]
        share = row["kernels_ms"] / row["step_ms"]
        print(f"{job[0]:<9}{job[1]:>4} {mode:<9}{row['step_ms']:6.1f}{row['kernels_ms']:7.1f}  {share:4.0%}")
why = """The host needs that long to launch the step, and autocast's casts are launches too. It was
nearly the slowest of the three before."""
bf16_guess.compare(round(steps["encoder", 16, "amp_bf16"]["step_ms"], 1), "recorded", because=why)

# %% waits-answer [markdown]
# | the step waits for | you see | what can help |
# |---|---|---|
# | data | the loader costs time | lesson 09; nothing below |
# | the host | kernels run for half of the step; a larger batch costs no time | larger batch, fused optimizer, CUDA graph, `compile`, fewer waits |
# | memory | norms, activations, additions; low FLOP/s | `compile` (fusion), 16 bits, layout |
# | arithmetic | products and convolutions | TF32 or bf16, sizes, autotuning |
#
# A **larger batch** is the first switch, until kernels fill the step. Then it costs memory and gains little. It also changes
# the training (lesson 08).
#
# Two networks go through this lesson, a ResNet-18 and a small GPT (without its mask: we only time it).

# %% imports
import logging
import math
import os
import statistics
import tempfile
import time

import torch
import torchvision
from torch import nn
from torch.nn import functional as F

torch._logging.set_logs(all=logging.ERROR)  # the compiler's warnings are quoted in the text
folder = tempfile.TemporaryDirectory()
os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder.name  # so that a first compilation is a first one

# %% models
def resnet(n):
    return torchvision.models.resnet18(), torch.randn(n, 3, 224, 224), torch.zeros(n, dtype=torch.long)


def gpt(n, words=5000, width=256, depth=4, length=256):
    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True)
    blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
    tokens = torch.randint(words, (n, length))
    return nn.Sequential(nn.Embedding(words, width), blocks, nn.Linear(width, words)), tokens, tokens.flatten()

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


def on_gpu(job, n, *sizes, **options):
    with torch.device("cuda"):
        return training(*job(n, *sizes), **options)

# %% waits-lanes
with gpulab.VirtualGPU("A100-80", compute=False):
    step = on_gpu(resnet, 2)
    step()
    gpulab.timing.timeline(step).show()

# %% launches-text [markdown]
# ## Fewer launches
#
# With two images the GPU has next to nothing to do, and waits for the next launch. (The virtual host is of the slower
# kind, lesson 03. A faster one shortens the white between the kernels.)
#
# **The optimizer.** ResNet-18 has 62 parameter tensors. AdamW can go through them in a Python loop; it can do each of
# its operations for all tensors at once (`foreach`, the default on a GPU); or it does everything in one or two kernels:

# %% launches-optimizer
for options in ({"foreach": False}, {"foreach": True}, {"fused": True}):
    plan = gpulab.plan(lambda n: on_gpu(resnet, n, **options), 2, "A100-80")
    print(f"{options!s:<18} {plan.step_ms:4.1f} ms a step (virtual)")

# %% launches-graph-text [markdown]
# `fused=True` costs nothing but last digits, which round differently.
#
# **A CUDA graph** goes to the end of that road: it records the launches of a whole step once, and *replays* them with
# one call. Before the capture, a few ordinary steps on a side stream do all that is lazy. They train; the capture
# itself computes nothing. The optimizer's step counter has to live on the GPU: `capturable=True`.

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
def whole(job, n):
    return on_gpu(job, n, fused=True, capturable=True)


for job, batch in ((resnet, 2), (resnet, 128), (gpt, 2)):
    eager = gpulab.plan(lambda n: whole(job, n), batch, "A100-80").step_ms
    replay = gpulab.plan(lambda n: captured(whole(job, n)).replay, batch, "A100-80").step_ms
    print(f"{job.__name__:<6} batch {batch:>3}: {eager:4.1f} ms → {replay:4.1f} ms, {eager / replay:.1f} × (virtual)")

# %% launches-graph-explain [markdown]
# Much where the host was the brake, nothing where it was not. (On a real GPU short gaps between kernels remain; the
# model leaves them out.)
#
# The price: the step keeps its memory between steps, since every address is fixed. Shapes never change. No Python
# runs, so there is no `if` on a value, no `print`, no `.item()`. Dropout still draws new numbers in each replay: the
# GPU's generator is part of the graph. To capture a model's forward and backward alone, without the optimizer, there is
# `torch.cuda.make_graphed_callables(model, (x,))`.
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

    def step():
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()

    graph = captured(step)
    scheduler.step()
    before = weight.item()
    graph.replay()
    return before - weight.item()

# %% rate-answer
with gpulab.VirtualGPU("A100-80"):
    with_number = moved_by_a_replay(1.0)
    with_tensor = moved_by_a_replay(torch.tensor(1.0, device="cuda"), fused=True)
print(f"the learning rate as a tensor: {with_tensor:.3f} (virtual)")
why = """The number went into the launch as an argument, and the replay repeats it. The scheduler
changed a Python number that nobody reads any more."""
rate_guess.compare(with_number, "virtual", because=why)

# %% rate-explain [markdown]
# Nothing tells you: the loss goes on as if there were no schedule. Make the learning rate a **tensor on the GPU** before the
# capture. PyTorch's schedulers fill it in place, and the graph reads it. (Adam and AdamW take a tensor with
# `capturable=True`; SGD needs `fused=True`.) All other numbers that change are frozen too: a momentum, a loss's weight.
#
# **Your turn** · 2 minutes. A schedule of your own. The optimizer was made with tensors as learning rates, then the step
# was captured. The function below has no effect on the replays. Repair it.

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
# 1. Compare the modes below the lanes: which gains more here, and what does the other one add?
# 2. *Kernel time* to 100 µs. Which of the two has become useless?
# 3. Back to 3 µs and *CUDA graph*; then read the loss *every step*. What does a wait cost when launches are cheap?

# %% simulator
gpulab.sim.launch_queue(kernel=3, launch=15, kernels=40, mode="compile")

# %% waits-sync-text [markdown]
# **Fewer waits** are the cheapest of these switches. With `loss.item()`, or a progress bar that shows the loss, the host stops
# launching until the GPU is done, and then the GPU waits for the host (lesson 03). Read the loss every 50 steps.

# %% compile-text [markdown]
# ## torch.compile: one graph, or several
#
# `torch.compile(model)` does three things when the model is first called. **Dynamo** runs through your Python and
# writes down the tensor operations as a graph, with **guards**: what must hold for it to be valid (shapes, dtypes,
# values of Python numbers). **AOTAutograd** adds the backward graph. **Inductor** *fuses*: it writes kernels that do
# many operations while the data are in registers, in Triton for a GPU, in C++ for a CPU.
#
# Where Dynamo cannot go on, the graph **breaks**: the part so far is compiled, Python runs the line, a new graph
# begins. Nothing fuses over a break. You can count without compiling: a *backend* is a function that is given each
# graph.

# %% compile-count
graphs = []


def counting(graph, example_inputs):
    graphs.append(graph)
    return graph.forward  # runs the graph as it is


def count(function, *cases, **options):
    torch.compiler.reset()
    graphs.clear()
    with gpulab.without_gpu():
        compiled = torch.compile(function, backend=counting, **options)
        for case in cases:
            compiled(case)
    return len(graphs)

# %% compile-breaks
def with_branch(x):
    if x.sum() > 0:
        x = x * 2
    return x


print("x.sum().item():  ", count(lambda x: x.relu() * x.sum().item(), torch.ones(4)), "graphs")
print("an if on a value:", count(with_branch, torch.ones(4)), "graphs")
for job in (resnet, gpt):
    model, x, _ = job(2)
    print(f"{job.__name__}:", count(model, x), "graph")

# %% compile-fullgraph-text [markdown]
# Both networks are one graph as they are. With `fullgraph=True` a break is an error that says where:

# %% compile-fullgraph
try:
    count(with_branch, torch.ones(4), fullgraph=True)
except torch._dynamo.exc.Unsupported as error:
    print(type(error).__name__, "·", str(error).splitlines()[0])

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
# When a guard fails, the function is compiled again for the new case, and both versions are kept. A training on sentences
# meets a new length in nearly every batch.

# %% recompile-predict
recompile_guess = gpulab.predict("A compiled softmax meets the lengths 2, 3, … 11. How often is it compiled?")

# %% recompile-run
def softmax(x):
    return x.softmax(0)


def row_by_row(x):
    return sum(x[i] for i in range(x.shape[0]))


lengths = [torch.ones(n) for n in range(2, 12)]
print("ten lengths, dynamic=False:", count(softmax, *lengths, dynamic=False), "times")
print("ten lengths, a Python loop over them:", count(row_by_row, *lengths), "times")
why = """Once for the length 2. When another one comes, once more for any length, as a symbol in the
graph: dynamic shapes. (0 and 1 stay apart.)"""
recompile_guess.compare(count(softmax, *lengths), "computed", because=why)

# %% recompile-explain [markdown]
# In the second row each length is a graph of its own, since Dynamo unrolls the loop. Eight is the limit
# (`recompile_limit`). After that *whatever needs a ninth version runs uncompiled*, and only a warning says so:
# `torch._dynamo hit config.recompile_limit (8)`.
#
# Python numbers are guarded as well. Here a factor takes ten values:

# %% recompile-numbers
class Scaled(nn.Module):
    def forward(self, x):
        return x * self.factor


with gpulab.without_gpu():
    for kind in (int, float):
        torch.compiler.reset()
        graphs.clear()
        model = Scaled()
        model.compile(backend=counting)
        for number in range(2, 12):
            model.factor = kind(number)
            model(torch.ones(3))
        print(f"ten values of one attribute, {kind.__name__}: {len(graphs)} times")

# %% recompile-repair [markdown]
# An **int in an attribute** (or a global), such as a counter of calls, is held at its value: each value is a compilation. As
# an argument it becomes a symbol, like a length, and a float does so everywhere. Make the counter a tensor (a buffer), or
# take it out of `forward`. In a job, `TORCH_LOGS="recompiles,graph_breaks"` prints the guard that failed.
# `torch._dynamo.mark_dynamic(x, 0)` says beforehand which dimension varies.
#
# ## What compiling buys, and when it pays
#
# Now with Inductor, for this machine's processor or your GPU. First a GELU written out: eight operations that each read and
# write everything, and that become one kernel. Then a block of ResNet-18, whose convolutions stay calls of a library.

# %% inductor-define
def gelu(x, bias):
    h = x + bias
    return 0.5 * h * (1 + torch.tanh(0.79788456 * (h + 0.044715 * h**3)))


def compile_and_time(function, *args):
    compiled, start = torch.compile(function), time.perf_counter()
    compiled(*args)
    took = time.perf_counter() - start
    before, after = (gpulab.timing.measure(lambda: f(*args), repeat=7).median_ms for f in (function, compiled))
    print(f"compiled in {took:4.1f} s, {before:5.2f} ms → {after:5.2f} ms a call (measured)")

# %% inductor-go tags=["host-dependent"]
with gpulab.without_gpu(), torch.no_grad():
    where = "cuda" if torch.cuda.is_available() else "cpu"
    more = 16 if where == "cuda" else 1  # with as little as a CPU gets, a GPU would wait for launches
    block = torchvision.models.resnet18().layer2[1].eval().to(where)
    try:
        compile_and_time(gelu, torch.randn(more * 2048, 1024, device=where), torch.randn(1024, device=where))
        compile_and_time(block, torch.randn(more * 4, 128, 14, 14, device=where))
    except torch._inductor.exc.InductorError as error:
        print("no kernel:", str(error).splitlines()[0])

# %% inductor-explain [markdown]
# One switch, one machine, two verdicts. On the CPU where this page was built, the first became several times as fast, and the
# second gained next to nothing. On a GPU, too, compiling gains where the time goes into many small operations: into what
# they read and write, or, with little data, into their launches.
#
# **Memory** can go either way. The compiler chooses what backward keeps, and what it computes again:

# %% inductor-kept
x, bias = torch.randn(2048, 1024, requires_grad=True), torch.randn(1024, requires_grad=True)
with gpulab.without_gpu():
    fused_gelu = torch.compile(gelu, backend="aot_eager_decomp_partition")  # graphs, but no kernels
    print("as written:", gpulab.memory.activation_bytes(gelu, x, bias))
    print("compiled:  ", gpulab.memory.activation_bytes(fused_gelu, x, bias))

# %% inductor-price [markdown]
# A quarter in all; in the GPT-2 of the opening, reserved memory *rose* from 5.90 to 6.19 GiB (recorded).
#
# **The price**: seconds to minutes in every run (kernels are kept on disk, graphs are traced again) and with every
# recompilation, and errors that point into code you have not written. A model of equal blocks starts sooner if you
# compile the *block*: `for block in blocks: block.compile()`. All blocks then share one compilation.
#
# **Modes.** `"reduce-overhead"` puts CUDA graphs round the compiled parts: for small batches, with their fixed addresses. The
# next call overwrites a result (`accessing tensor output of CUDAGraphs that has been overwritten`), so clone it.
# `"max-autotune"` also tries several kernels for each product: minutes of compiling, for long runs of fixed shapes.
#
# **Your turn** · 2 minutes. From how many steps on does compiling pay? There are two mistakes below.

# %% break-even-turn tags=["your-turn"]
def break_even(compile_s, before_ms, after_ms):
    # steps from which on a run takes less time in all; math.inf where it never does
    ### BEGIN SOLUTION
    saved = before_ms - after_ms
    return 1000 * compile_s / saved if saved > 0 else math.inf
    ### INSTEAD OF
    # return compile_s / (before_ms - after_ms)
    ### END SOLUTION


gpulab.turn.break_even(break_even)

# %% layout-text [markdown]
# ## Layout: channels_last
#
# A batch of images has the shape (N, C, H, W), and lies in memory plane by plane. Tensor cores want all channels of a pixel
# side by side, so cuDNN often copies images before and after a convolution. `channels_last` keeps the shape, stores pixel
# by pixel, and saves these copies. The model needs it too: `model.to(memory_format=torch.channels_last)`.

# %% layout-run
images = torch.randn(8, 64, 56, 56)
last = images.to(memory_format=torch.channels_last)
print("shape ", tuple(images.shape), "→", tuple(last.shape), "· equal:", torch.equal(images, last))
print("stride", images.stride(), "→", last.stride())

# %% layout-predict
layout_guess = gpulab.predict("Of 100 image models, trained on an RTX 3090: how many get slower with channels_last?")

# %% layout-recorded
pairs = {
    "channels_last, training, RTX 3090": ("train-amp-nchw-pt112-cu113-rtx3090", "train-amp-nhwc-pt112-cu113-rtx3090"),
    "torch.compile, inference, RTX 4090": ("infer-amp-nchw-pt291-cu128-4090", "infer-amp-nchw-pt291-cu128-4090-dynamo"),
}
found = {}
for name, pair in pairs.items():  # of equal batches
    ratios = found[name] = sorted(gain.ratio for gain in gpulab.data.gains(*pair))
    slower = sum(ratio < 1 for ratio in ratios)
    median = statistics.median(ratios)
    print(f"{name}: {slower} of {len(ratios)} slower, median {median:.2f} ×, worst {ratios[0]:.2f} × (recorded)")
ratios = found["channels_last, training, RTX 3090"]
why = "Mostly networks of grouped convolutions, whose kernels were slow in that layout (PyTorch 1.12)."
layout_guess.compare(round(100 * sum(r < 1 for r in ratios) / len(ratios)), "recorded", because=why)

# %% layout-plot
figure, both = plt.subplots(2, 1, figsize=(7.2, 4.2), sharex=True)
edges = [0.2 * 2 ** (step / 8) for step in range(49)]
for axes, (name, ratios) in zip(both, found.items()):
    axes.hist(ratios, bins=edges)
    axes.axvline(1, color=gpulab.style.MUTED, linewidth=1)
    axes.set(xscale="log", ylabel="models", title=name)
both[1].set_xticks([0.25, 0.5, 1, 2, 4, 8], ["0.25", "0.5", "1", "2", "4", "8"])
both[1].minorticks_off()
both[1].set_xlabel("speed with the switch / speed without (recorded)")
gpulab.style.show(figure, alt="Two histograms of the gain over some 400 and 600 image models, on a logarithmic axis. "
    "channels_last has a peak at 1 and a tail down to 0.2; torch.compile spreads from 1 to 3 round 1.6.")

# %% layout-explain [markdown]
# The slowest model of the upper picture takes five times as long. The peak at 1 is mostly vision transformers, which have hardly a
# convolution. The lower picture is of inference; in *training* the opening's GPT-2 gained 1.22.
#
# Is that still so? One layer each, forward and backward, with PyTorch 2.11, on an H100 and an H200; 64 images of 256
# channels and 56 × 56 pixels. Gain by `channels_last` (recorded):
#
# | layer | fp32 | bf16 |
# |---|---|---|
# | 3 × 3 convolution | 1.34, 1.23 | 1.48, 1.39 |
# | grouped, 3 × 3 | 1.26, 1.20 | 1.81, 1.80 |
# | depthwise, 3 × 3 | 3.13, 3.67 | 3.97, 3.63 |
# | depthwise, 7 × 7 | 0.53, 0.53 | 4.46, 4.58 |
# | ReLU | 0.98, 1.02 | 0.85, 1.27 |
#
# A ReLU does not care for the layout, so its row is the noise: up to a quarter. Beyond it, grouped convolutions now win in
# bf16, and the slow case is another one: 7 × 7 depthwise in float32. A rule that was measured in 2022 is a rule about the
# libraries of 2022.

# %% layout-cudnn [markdown]
# **Autotuning.** cuDNN is on from the start. `torch.backends.cudnn.benchmark = True` is another thing: for every new shape
# cuDNN *tries* its algorithms and keeps the fastest. With fixed shapes, WaveGlow trained 1.41 times as fast, YOLOv5 on a GTX
# 1080 just as fast as before (recorded: NVIDIA/waveglow#172, ultralytics/yolov5#3620). The first call of a convolution of
# a new shape, forward and backward, took an H200 14 ms without it and 938 ms with it (medians of 12 shapes each, recorded).
# So: on where shapes are fixed, off where they vary. The choice, and with it the last digits, may differ from run to
# run.

# %% numbers-text [markdown]
# ## Numbers and shapes
#
# **TF32** (lesson 07) is one line for products; convolutions have it on. It costs digits of each factor, and saves no byte.
# On an H100 (recorded):
#
# | ms | fp32 | TF32 | bf16 (autocast) |
# |---|---|---|---|
# | a product of 4096³ | 2.68 | 0.37 | 0.19 |
# | a training step of GPT-2, 8 × 1024 tokens | 169 | 68 | 38 |
#
# The product gains a factor of 7, the step 2.5: the rest of a step is no product. And `"medium"`?

# %% numbers-tf32
for precision in ("medium", "high", "highest"):  # the last is the default
    torch.set_float32_matmul_precision(precision)
    gpus, cpus = torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision
    print(f"{precision:<8} on NVIDIA GPUs: {gpus:<5} on CPUs, in oneDNN: {cpus}")

# %% numbers-tf32-explain [markdown]
# On NVIDIA's GPUs it sets what `"high"` sets. It is no “simplified AMP”: activations stay in 32 bits.
#
# **Alignment** is the secret of the 47 words. Take `a @ b` in bf16, with `a` of (m, k) and `b` of (k, n), all 4096. Now make
# *one* of the three 4097.

# %% numbers-predict
alignment_guess = gpulab.predict("For how many of m, k and n does 4097 more than double the time?")

# %% numbers-alignment
rows = gpulab.data.recorded("H100")["products"]
ms = {(row["precision"], *row["mnk"]): row["ms"] for row in rows}
sizes = {
    "m = 4097": (4097, 4096, 4096), "k = 4097": (4096, 4096, 4097), "n = 4097": (4096, 4097, 4096),
    "k = 4104": (4096, 4096, 4104), "n = 4104": (4096, 4104, 4096),
}
times = {name: ms["bf16", *mnk] / ms["bf16", 4096, 4096, 4096] for name, mnk in sizes.items()}
for name, ratio in times.items():
    print(f"{name}: {ratio:.2f} × the time with 4096 (recorded, H100)")
why = "k is the length of a's rows in memory, n that of b's and of the result's."
alignment_guess.compare(sum(times[f"{name} = 4097"] > 2 for name in "mkn"), "recorded", because=why)

# %% numbers-alignment-explain [markdown]
# Tensor cores are fed in packets of 16 bytes: 8 numbers of 16 bits, 4 of TF32, 16 of fp8. A row of another length takes
# slower kernels. How much slower depends on the GPU; this one's fast kernels take nothing else. A multiple of 8 is the least, and not
# the best: 4104 still costs 11 and 23 %, because kernels work in tiles of 64 to 256. **Make widths and the
# vocabulary multiples of 64 or 128.** The whole step of the opening, on a virtual A100:

# %% numbers-gpt2
step_ms = {}
for words in (50257, 50304):
    plan = gpulab.plan(lambda n: on_gpu(gpt, n, words, 768, 12, 1024, fused=True), 4, "A100-80")
    step_ms[words] = plan.step_ms
print(f"{step_ms[50257] / step_ms[50304]:.2f} × (virtual), {1 + gains['47 words more'] / 100:.2f} × (recorded)")

# %% numbers-rows-text [markdown]
# **The number of rows** counts by whole tiles. An A100 has 108 SMs. If a product has 108 tiles, they run at once, one
# *wave*; the 109th waits for a second wave. The virtual A100 has tiles of 128 × 128 here:

# %% numbers-waves
def product_ms(m):
    a, b = torch.ones(m, 4096, device="cuda").half(), torch.ones(4096, 128, device="cuda").half()
    return gpulab.timing.measure(lambda: a @ b, repeat=1, warm_up=1).median_ms


with gpulab.VirtualGPU("A100-80", compute=False):
    tiles = range(80, 240, 4)
    took = [product_ms(128 * n) for n in tiles]
figure, axes = plt.subplots(figsize=(7.2, 2.6))
axes.plot(tiles, took, "o-")
axes.set(xlabel="tiles of 128 rows", ylabel="ms (virtual A100)", ylim=(0, None))
axes.set_title("One tile more than 108 is a second wave")
gpulab.style.show(figure, alt="The time of a product over its tiles: flat, with a step up after 108 and after 216.")

# %% numbers-rows-explain [markdown]
# Real libraries choose among several tiles, so real steps are lower. A batch is a number of rows: it needs no power of two.
# (m = 4097 cost the H100 6 % in bf16 and 34 % in TF32.) A sequence length is a number of rows in most products, but a row
# length where attention writes its table (lesson 06).

# %% determinism-text [markdown]
# ## The same bits twice
#
# Sums of floats depend on the order, and atomic additions of many threads have none. `use_deterministic_algorithms` takes
# operations with a fixed order, and raises where there is none:

# %% determinism-run
torch.use_deterministic_algorithms(True)
try:
    index = torch.tensor([1, 1], device=gpu.device)
    torch.zeros(4, device=gpu.device).put_(index, torch.ones(2, device=gpu.device))
except RuntimeError as error:
    print("RuntimeError ·", str(error)[:44], "…")
torch.use_deterministic_algorithms(False)

# %% determinism-price [markdown]
# With seeds and without `cudnn.benchmark` you get the same bits on the same machine with the same versions, not elsewhere.
# The mode also *fills* every `torch.empty`; `torch.utils.deterministic.fill_uninitialized_memory = False` takes that price
# back (0.206 → 0.181 s a step of YOLO26x on a B200, recorded: ultralytics#26181). Use it to hunt a bug.

# %% table-text [markdown]
# ## Your decision table
#
# Each switch alone, on your GPU or else this machine's processor. Machines drift: they warm up, others use them. So take **turns**:
# one step of each, and again. And have the baseline twice. What it “gains” against itself is the noise.

# %% table-define
def small(n=8, layout=torch.contiguous_format):
    model = torchvision.models.resnet18().to(where, memory_format=layout)
    images = torch.randn(n, 3, 64, 64, device=where).to(memory_format=layout)
    return model, images, torch.zeros(n, dtype=torch.long, device=where)


with gpulab.without_gpu():
    steps = {
        "nothing": training(*small(), half=False),
        "nothing, again": training(*small(), half=False),
        "fused AdamW": training(*small(), half=False, fused=True),
        "channels_last": training(*small(layout=torch.channels_last), half=False),
        "bf16 autocast": training(*small()),
    }

# %% table-run tags=["host-dependent"]
times = {name: [] for name in steps}
with gpulab.without_gpu():
    for turn in range(8):
        for name, step in steps.items():
            ms = gpulab.timing.measure(step, repeat=1, warm_up=0).median_ms
            if turn > 0:  # the first one warms up
                times[name].append(ms)
print(f"ResNet-18, batch 8, on {where}: {statistics.median(times['nothing']):.1f} ms (measured)")
for name in list(steps)[1:]:
    ratios = sorted(before / ms for before, ms in zip(times["nothing"], times[name]))
    print(f"{name:<15} {statistics.median(ratios):.2f} ×, from {ratios[0]:.2f} to {ratios[-1]:.2f} (measured)")

# %% table-fill [markdown]
# Keep a switch if its median lies outside the whole range of *nothing, again*, and its price is worth it. A gain inside is
# noise: more turns may tell.
#
# | switch | what it can save | price | measured gain | keep? |
# |---|---|---|---|---|
# | larger batch | launches, half-empty kernels | memory; learning rate | | |
# | fewer `.item()` | waits | a later loss curve | | |
# | `fused=True` | launches, memory traffic | last digits | | |
# | bf16 or TF32 | arithmetic, traffic | digits | | |
# | `torch.compile` | memory traffic, launches | seconds, recompilations | | |
# | CUDA graph, `reduce-overhead` | launches | memory; fixed shapes, addresses, numbers | | |
# | `channels_last` | copies round convolutions | `view`; some layers slower | | |
# | `cudnn.benchmark` | a better algorithm | each new shape; other bits | | |
# | sizes in 64s | slow kernels | some parameters | | |

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “Open cuDNN for speed.” | It is on. `benchmark` autotunes convolutions, and is slow for each new shape. | *Layout* |
# | “Dimensions in multiples of 8; odd ones idle warps.” | Rows of 16 bytes at least, for the packets. Multiples of 64 are better. | *Numbers and shapes* |
# | “Batches in powers of two.” | A batch counts rows: whole tiles and waves matter. | *Numbers and shapes* |
# | “The first iteration compiles kernels.” | Some libraries do; it also loads code, makes handles, takes memory, autotunes. Leave it out of the mean. | lesson 03 |
# | “`'medium'` enables TF32, a simplified AMP.” | The first half is right on NVIDIA's GPUs. No memory is saved. | *Numbers and shapes* |
# | “`torch.compile` doubles the speed.” | Median 1.6 in inference, 1.2 in training a GPT-2. | *Layout* |
# | “8 hours untuned, 2 tuned.” | Possible: 11 times, recorded; three switches of ten made most of it. | *A question worth asking* |

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **A wait inside a capture.** CUDA refuses it, and then the whole capture. The second message is the one you see; the
# first tells why:

# %% mistake-capture
with gpulab.VirtualGPU("T4"):
    x = torch.ones(4, device="cuda")
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            x.sum().item()
    except RuntimeError as error:
        print("seen: ", str(error).splitlines()[0])
        print("first:", str(error.__context__).splitlines()[0])

# %% mistake-names-text [markdown]
# **A checkpoint of the wrapper.** `torch.compile(model)` is another module round yours, and its names have a prefix.
# `model.compile()` works in place, and the names stay:

# %% mistake-names
print(list(torch.compile(nn.Linear(2, 2)).state_dict()))  # Unexpected key(s) in state_dict

# %% mistake-view-text [markdown]
# **`view` after `channels_last`.** `flatten` and `reshape` copy where they must; `view` never copies:

# %% mistake-view tags=["raises-exception"]
last.view(8, -1)

# %% mistake-more [markdown]
# Some more:
#
# - **No compiler.** For a CPU Inductor needs `g++`, `clang++` or Visual C++, for a GPU Triton. It fails at the first
#   *call*: `InvalidCxxCompiler: No working C++ compiler found`, on Windows `Compiler: cl is not found`.
# - **The first call in the mean.** It holds the compilation. Leave out the first steps, and those of each new shape.
# - **A smaller last batch, `eval()`, `no_grad`** are a compilation each: `drop_last=True` in training.
# - **Two switches at once.** One gains, one loses, and you keep both.

# %% quiz-text [markdown]
# ## Quick check

# %% quiz
gpulab.quiz(11)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. Ask who waits. Fewer launches help where the host is the brake; faster kernels help where it is not.
# 2. A gain belongs to a network, a batch and a GPU. Turn one switch at a time, in turns with the baseline, and the baseline
#    twice.
# 3. `torch.compile`: count graphs and recompilations first; it pays after compile time ÷ saved time steps.
# 4. A CUDA graph freezes addresses *and numbers*: copy in, clone out, and make the learning rate a tensor.
# 5. Rows of 16 bytes at least; widths in 64s.
#
# **For the checklist:** warm up, then measure in turns · `fused=True` · `fullgraph=True` once, to find breaks ·
# `TORCH_LOGS=recompiles` · `channels_last` measured · `cudnn.benchmark` for fixed shapes only · vocabulary a multiple of 64 ·
# no `.item()` in the step.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/11_faster_steps.ipynb): recompilations found, switches decided by measurement, a step as a
# CUDA graph. Then [lesson 12](12_many_gpus.ipynb), which takes more GPUs, or [the map of the course](00_start_here.ipynb).
#
# ## References
#
# - PyTorch documentation: *torch.compiler* (graph breaks, recompilations, dynamic shapes; regional compilation), *CUDA
#   semantics* (CUDA graphs), *Reproducibility*, `torch.backends.cudnn`.
# - Ansel et al., *PyTorch 2: Faster Machine Learning Through Dynamic Python Bytecode Transformation and Graph
#   Compilation*, ASPLOS 2024.
# - S. Raschka, *LLMs-from-scratch*, ch05, “10_llm-training-speed”. R. Wightman, *pytorch-image-models*, `results`.
# - NVIDIA, *Matrix Multiplication Background User's Guide* (alignment, tiles, waves).

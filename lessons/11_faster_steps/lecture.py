# %% title [markdown]
# # 11 · Faster steps
#
# **Promise:** you know the switches that make a step faster, what each one costs and when it hurts; and you turn them one
# at a time, with a measurement.
#
# After this lesson you can
#
# 1. **say** what a step waits for, and **choose** the switches that can help;
# 2. **capture** a step as a CUDA graph, and **feed** it new batches;
# 3. **count** the graph breaks and recompilations of a compiled model, and **reckon** when compiling pays;
# 4. **explain** what layout, alignment, TF32 and autotuning change, and on which network each is a loss;
# 5. **price** a run that gives the same bits twice.
#
# | time | before this | runs on |
# |---|---|---|
# | 60 minutes | `03_moving_data` (the launch queue), `07_mixed_precision` | any machine |

# %% setup-text [markdown]
# Where a cell opens a `VirtualGPU`, its numbers are virtual on every machine. The virtual GPU does not guess what a compiler
# fuses or what cuDNN chooses: there you see *recorded* numbers, and what this machine's processor (or your GPU) takes,
# *measured*.

# %% setup
import logging
import os
import statistics
import tempfile
import time

import matplotlib.pyplot as plt
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

import gpulab

gpu = gpulab.setup()
gpulab.style.use()
torch._logging.set_logs(all=logging.ERROR)  # the compiler's warnings are quoted in the text
folder = tempfile.TemporaryDirectory()
os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder.name  # so that a first compilation is a first one

# %% models
class SmallGPT(nn.Module):
    def __init__(self, width=256, depth=4, words=5000):
        super().__init__()
        block = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True)
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))


# %% question-text [markdown]
# ## A question worth asking
#
# Somebody trained a GPT-2 on an A100, turned ten switches, one after the other, and wrote down the tokens per second after
# each (S. Raschka, *LLMs-from-scratch*). The ninth is odd: the vocabulary grew from 50,257 to 50,304, by 47 words that
# occur in no text. The model became larger, and nothing else changed.

# %% question-predict
vocabulary_guess = gpulab.predict("47 useless words more: by how much does the training speed change? (slower: below 0)", unit="%")

# %% question-run
speeds = {
    "as written": 12525, "mask on the fly": 12526, "TF32": 27648, "fused AdamW": 28399, "pinned memory": 28402,
    "bf16": 45486, "PyTorch's norm, GELU": 55256, "FlashAttention": 91901, "torch.compile": 112046,
    "47 words more": 127345, "larger batch": 142156,
}  # tokens per second on an A100, recorded
names, tokens = list(speeds), list(speeds.values())
gains = {name: 100 * (after / before - 1) for name, before, after in zip(names[1:], tokens, tokens[1:])}
figure, axes = plt.subplots(figsize=(7.6, 3.4))
axes.bar_label(axes.barh(list(gains), list(gains.values())), fmt="%.0f %%", padding=3)
axes.set(xlabel="gain over the step before, % (recorded, A100)", xlim=(0, 140))
axes.invert_yaxis()
axes.set_title(f"{tokens[-1] / tokens[0]:.0f} times as fast in all; three of ten did next to nothing", loc="right")
gpulab.style.show(figure, alt="Bars of the gain of ten switches: TF32 121 %, FlashAttention 66 %, bf16 60 %, torch.compile 22 %, "
    "PyTorch's own layers 21 %, 47 words 14 %, larger batch 12 %, fused AdamW 3 %, mask and pinned memory 0.")
vocabulary_guess.compare(round(gains["47 words more"]), "recorded", because="Why? Under “Alignment”, further down.")

# %% question-answer [markdown]
# Nothing for pinned memory, a factor of 11 in all. You will read of a tax: “8 hours untuned, 2
# tuned.” The factor is possible; three of the ten switches made most of it, and on your model it would be others.
# A gain belongs to a network, a batch, a GPU *and the switches before it*: faster arithmetic would have gained nothing
# had the step waited for the host.
#
# So this lesson turns each switch alone. First: what can it save at all?

# %% waits-text [markdown]
# ## First find out who waits
#
# A step takes as long as the slowest of three: the **host**, which launches kernels; the GPU's **memory**; its
# **arithmetic**. Two networks, a ResNet-18 on photographs and the small GPT on 256 tokens, in bf16 on a virtual A100.
# Beside the step's time stands the share in which a kernel runs at all.

# %% waits-define
def resnet(n):
    return torchvision.models.resnet18(), torch.randn(n, 3, 224, 224), torch.zeros(n, dtype=torch.long)


def gpt(n, width=256, depth=4, words=5000, length=256):
    tokens = torch.randint(words, (n, length))
    return SmallGPT(width, depth, words), tokens, tokens.flatten()


def training(model, inputs, labels, half=True, **options):
    """A training step with AdamW, as a function; without autocast's cache of casts, which no CUDA graph may keep."""
    optimizer = torch.optim.AdamW(model.parameters(), **options)

    def step():
        optimizer.zero_grad()
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            loss = F.cross_entropy(model(inputs).flatten(0, -2), labels)
        loss.backward()
        optimizer.step()

    return step


# %% waits-measure
def on_a100(build, *args, **options):
    """Milliseconds of a training step on a virtual A100, and the share of it in which a kernel runs."""
    with gpulab.VirtualGPU("A100-80", compute=False) as card:
        with torch.device("cuda"):
            step = training(*build(*args), **options)
        took = gpulab.timing.measure(step, repeat=2, warm_up=2).median_ms
        with card.timeline() as timeline:
            step()
            torch.cuda.synchronize()
    kernels = sum(span.seconds for span in timeline.spans if span.where == "kernels")
    return took, 1e3 * kernels / took


# %% waits-run
for build in (resnet, gpt):
    for n in (2, 32, 128):
        took, share = on_a100(build, n)
        print(f"{build.__name__:<6} batch {n:>3}: {took:4.1f} ms, kernels {share:4.0%}, {n / took * 1e3:6,.0f} samples/s (virtual)")

# %% waits-answer [markdown]
# Sixteen times the work in the same time: with 2 images the GPU works for a fifth of the step, and waits for launches in
# the rest. (Hosts differ; the virtual one is of the slower kind, lesson 03.) A **larger batch** is therefore the first
# switch, until kernels fill the step; then it costs memory and gains little. It also changes the training (lesson 08).
#
# | the step waits for | you see | what can help |
# |---|---|---|
# | data | the loader's time | lesson 09; nothing below |
# | the host | kernels run for half of the step; a larger batch costs nothing | larger batch, fused optimizer, CUDA graph, `compile`, fewer waits |
# | memory | norms, activations, additions; low FLOP/s | `compile` (fusion), 16 bits, layout |
# | arithmetic | products and convolutions | TF32 or bf16, alignment, autotuning |

# %% launches-text [markdown]
# ## Fewer launches
#
# **The optimizer.** ResNet-18 has 62 parameter tensors. AdamW can go through them in a Python loop (`foreach=False`), do each
# of its dozen operations for all tensors in a few kernels (`foreach`, the default on a GPU), or do everything in one or two (`fused=True`).

# %% launches-optimizer
for options in ({"foreach": False}, {"foreach": True}, {"fused": True}):
    with gpulab.VirtualGPU("A100-80", compute=False) as card:
        parameters = list(torchvision.models.resnet18().cuda().parameters())
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer = torch.optim.AdamW(parameters, **options)
        optimizer.step()  # makes the moments
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with card.timeline() as timeline:
            optimizer.step()
        kernels = sum(span.where == "kernels" for span in timeline.spans)
        extra = (torch.cuda.max_memory_allocated() - before) / 2**20
        took = gpulab.timing.measure(optimizer.step, repeat=3).median_ms
    print(f"{options!s:<18} {kernels:>3} kernels, {took:4.1f} ms, {extra:4.1f} MiB for a moment (virtual)")

# %% launches-graph-text [markdown]
# `fused` has no price but last digits that round differently.
#
# **A CUDA graph** goes to the end of that road: it records the launches of a whole step once, and *replays* them with one
# call. Capture needs a few ordinary steps first, on a side stream, so that everything lazy is done (they train; the capture
# itself runs nothing); and an optimizer whose step counter lives on the GPU (`capturable=True`).

# %% launches-graph
def captured(step):
    """The step as a CUDA graph."""
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
for build, n in ((resnet, 2), (resnet, 32), (resnet, 128), (gpt, 2), (gpt, 32), (gpt, 128)):
    with gpulab.VirtualGPU("A100-80", compute=False):
        with torch.device("cuda"):
            step = training(*build(n), fused=True, capturable=True)
        eager = gpulab.timing.measure(step, repeat=2, warm_up=2).median_ms
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved() / 2**20
        graph = captured(step)
        replay = gpulab.timing.measure(graph.replay, repeat=2, warm_up=1).median_ms
        torch.cuda.empty_cache()
        own = torch.cuda.memory_reserved() / 2**20 - before
    print(f"{build.__name__:<6} batch {n:>3}: {eager:4.1f} ms → {replay:4.1f}, {eager / replay:3.1f} ×, keeps {own:5,.0f} MiB (virtual)")

# %% launches-graph-explain [markdown]
# A factor of six to eight where the model's host was the brake, nothing where it was not. (A faster host gains less; and on
# a real GPU short gaps between kernels remain, which the model leaves out.) The price: all memory of the step is kept between steps, since every address is
# fixed; shapes never change; and no Python runs, so no `if` on a value, no `print`, no `.item()`.
#
# Fixed addresses are also the classical mistake: a graph reads its input *where it lay at capture*.
#
# **Your turn** · 3 minutes. The function below gives the same result for every batch. Repair it.

# %% replay-turn tags=["your-turn"]
def replayed(graph, x, y, batches):
    """The result for each batch, in a list; a replay computes y from what lies in x."""
    # TODO: what is wrong with each of the two assignments?
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

# %% simulator-text [markdown]
# ### See it move
#
# The simulator opens on a launch-bound step: 40 kernels of 3 µs, 15 µs to launch each, compiled. Try this:
#
# 1. Compare the four modes below the lanes: which gains more here, and what does the other one add?
# 2. *Kernel time* to 100 µs. Which of the two has become useless?
# 3. Back to 3 µs and *CUDA graph*; then read the loss *every step*. What does a wait cost when launches are cheap?

# %% simulator
gpulab.sim.launch_queue(kernel=3, launch=15, kernels=40, mode="compile")

# %% waits-sync-text [markdown]
# **Fewer waits** are the cheapest of these. A `loss.item()`, a progress bar with the loss in it: the host stops launching
# until the GPU is done, and then the GPU waits for the host (lesson 03). It costs most where the two are nearly even,
# since neither hides the other any more:

# %% waits-sync
def ten_steps(step, wait):
    for _ in range(10):
        step()
        if wait:
            torch.cuda.synchronize()  # as loss.item() does


for n in (2, 32, 128):
    with gpulab.VirtualGPU("A100-80", compute=False):
        with torch.device("cuda"):
            step = training(*resnet(n), fused=True)
        free, waits = (gpulab.timing.measure(lambda: ten_steps(step, wait), repeat=1, warm_up=1).median_ms for wait in (False, True))
    print(f"batch {n:>3}: a wait in every step costs {100 * (waits / free - 1):2.0f} % (virtual)")

# %% compile-text [markdown]
# ## torch.compile: one graph, or several
#
# `torch.compile(model)` does three things when the model is first called. **Dynamo** runs through your Python and writes down the tensor
# operations as a graph, with **guards**: what must hold for it to be valid (shapes, dtypes, values of Python numbers).
# **AOTAutograd** adds the backward graph. **Inductor** *fuses*: it writes kernels that do many operations while the data are in
# registers, in Triton for a GPU, in C++ for a CPU.
#
# Where Dynamo cannot go on, the graph **breaks**: the part so far is compiled, Python runs the line, a new graph
# begins. Nothing fuses over a break. You can count without compiling: a *backend* is a function that is given each graph.
# (`backend="eager"` is the same without the list.)

# %% compile-count
graphs = []


def counting(graph, inputs):
    """A backend that makes no kernels: it keeps the graph, and runs it as it is."""
    graphs.append(graph)
    return graph.forward


def graphs_of(function, *args, **options):
    """How many graphs a call makes."""
    graphs.clear()
    with gpulab.without_gpu():
        torch.compile(function, backend=counting, **options)(*args)
    return len(graphs)


# %% compile-breaks
def with_print(x):
    x = x.relu()
    print("  (printed by Python)")
    return x + 1


def with_branch(x):
    if x.sum() > 0:
        x = x * 2
    return x


with gpulab.without_gpu():
    x = torch.ones(4)
    print("x.relu() * x.sum().item():", graphs_of(lambda x: x.relu() * x.sum().item(), x), "graphs")
    print("a print:", graphs_of(with_print, x), "graphs")
    print("an if on a value:", graphs_of(with_branch, x), "graphs")
    print("ResNet-18:", graphs_of(torchvision.models.resnet18(), torch.randn(2, 3, 64, 64)), "graph")
    print("small GPT:", graphs_of(SmallGPT(64, 2, 500), torch.randint(500, (2, 16))), "graph")

# %% compile-fullgraph-text [markdown]
# Both real networks are one graph as they are. With `fullgraph=True` a break is an error that says where, and what to do.
# (It also takes the number of an `.item()` into the graph as an unknown, so that alone is no error then.)

# %% compile-fullgraph
try:
    with gpulab.without_gpu():
        torch.compile(with_branch, backend="eager", fullgraph=True)(torch.ones(4))
except torch._dynamo.exc.Unsupported as error:
    said = [line.strip() for line in str(error).splitlines()]
    print(*[line for line in said if line.startswith(("Data-dep", "Hint: Use", "if x"))], sep="\n")

# %% one-graph-turn-text [markdown]
# **Your turn** · 4 minutes. This function shortens a vector that is too long, as gradient clipping does. Make it one graph.

# %% one-graph-turn tags=["your-turn"]
def shortened(x, limit):
    """x, shortened to the norm `limit` where it is longer."""
    # TODO: the same without an if
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
# When a guard fails, the function is compiled again, for the new case, and both are kept. A training on sentences meets a new
# length in nearly every batch.

# %% recompile-predict
recompile_guess = gpulab.predict("A compiled function meets the lengths 2, 3, 4, … 11. How often is it compiled?")

# %% recompile-run
def compilations(cases, **options):
    """How often softmax is compiled for one call after the other."""
    graphs.clear()
    with gpulab.without_gpu():
        torch.compiler.reset()
        compiled = torch.compile(lambda x: x.softmax(0), backend=counting, **options)
        for case in cases:
            compiled(case)
    return len(graphs)


lengths = [torch.ones(n) for n in range(2, 12)]
told = """For the length 2, and when another one comes, for any length, as a symbol in the graph: dynamic shapes. 0 and 1
stay apart."""
recompile_guess.compare(compilations(lengths), "computed", because=told)
for options in ({}, {"dynamic": True}, {"dynamic": False}):
    print(f"ten lengths, {options or 'as it is'}: compiled {compilations(lengths, **options)} times")
kinds = [torch.ones(4), torch.ones(4, 4), torch.ones(4, dtype=torch.double), torch.ones(4, requires_grad=True)]
print("ranks, dtypes, requires_grad:", compilations(kinds), "times for", len(kinds), "tensors")

# %% recompile-explain [markdown]
# Kernels for **dynamic shapes** can be a little slower, since they serve all lengths;
# `torch._dynamo.mark_dynamic(x, 0)` says beforehand which dimension varies.
#
# With `dynamic=False` each length is a compilation, and after eight (`recompile_limit`) PyTorch gives up: the eight stay,
# and *whatever needs a ninth runs uncompiled*. Only a warning says so: `torch._dynamo hit config.recompile_limit (8)`. The
# usual cause is not a shape but a Python number that changes, such as a counter in the module. Ask for the reason:

# %% recompile-reason
class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


with gpulab.without_gpu():
    compiled = torch.compile(Counts(), backend="eager")
    compiled(torch.ones(3))
    try:
        with torch.compiler.set_stance("fail_on_recompile"):
            compiled(torch.ones(3))
    except RuntimeError as error:
        print("…", str(error).split("failure(s):")[1].split(" #")[0].strip(), "…")

# %% recompile-repair [markdown]
# The guard holds `calls` at 0, and it is 1 now. Make it a tensor (a buffer), or take it out of `forward`. In a job,
# `TORCH_LOGS="recompiles,graph_breaks"` prints all of this.
#
# ## What compiling buys, and when it pays
#
# Now with Inductor, for this machine's processor (or your GPU). The first candidate is a GELU written out: eight operations
# that each read and write everything, and which become one kernel. The second is a block of ResNet-18, whose convolutions
# are calls of a library, before and after.

# %% inductor-run tags=["host-dependent"]
def compile_and_time(function, *args):
    """Seconds until the first call returns, and ms of a call before and after."""
    compiled, start = torch.compile(function), time.perf_counter()
    compiled(*args)
    took = time.perf_counter() - start
    before, after = (gpulab.timing.measure(lambda: f(*args), repeat=7).median_ms for f in (function, compiled))
    pays = f"pays after {1e3 * took / (before - after):,.0f} calls" if after < 0.95 * before else "does not pay"
    print(f"compiled in {took:4.1f} s, {before:5.2f} ms → {after:5.2f} ms: {pays} (measured)")


def gelu(x, bias):
    h = x + bias
    return 0.5 * h * (1 + torch.tanh(0.79788456 * (h + 0.044715 * h**3)))


# %% inductor-go tags=["host-dependent"]
with gpulab.without_gpu(), torch.no_grad():
    where = "cuda" if torch.cuda.is_available() else "cpu"
    more = 16 if where == "cuda" else 1  # with as little as a CPU gets, a GPU would wait for launches
    candidates = {
        "GELU": (gelu, torch.randn(more * 2048, 1024, device=where), torch.randn(1024, device=where)),
        "ResNet": (torchvision.models.resnet18().layer2[1].eval().to(where), torch.randn(more * 4, 128, 14, 14, device=where)),
    }
    for name, (function, *args) in candidates.items():
        print(f"{name:<6}", end=" ")
        try:
            compile_and_time(function, *args)
        except torch._inductor.exc.InductorError as error:
            print("no kernel:", str(error).splitlines()[0])

# %% inductor-explain [markdown]
# One switch, one machine: where this page was built, on a CPU, it made the first several times as fast, and did next to
# nothing for the second. On a GPU, too, it gains where the time goes into many small operations: into what they read and
# write, as here, or, with little data, into their launches.
#
# **The price**: seconds to minutes, in every run (kernels are kept on disk, graphs are traced again) and with every
# recompilation. Memory: in the GPT-2 above reserved rose from 5.90 to 6.19 GiB (recorded). And errors that point into
# code you have not written.
#
# **`mode="reduce-overhead"`** puts CUDA graphs round the compiled parts: for small batches, with their fixed addresses. There
# the next call overwrites a result (`accessing tensor output of CUDAGraphs that has been overwritten`): clone it.

# %% break-even-turn-text [markdown]
# **Your turn** · 2 minutes. From how many steps on does compiling pay? There are two mistakes below.

# %% break-even-turn tags=["your-turn"]
import math


def break_even(compile_s, before_ms, after_ms):
    """Steps from which on a run with compilation takes less time in all; math.inf where it never does."""
    # TODO: mind the units, and a step that did not get faster
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
# An image batch has the shape (N, C, H, W) and lies in memory plane by plane. Tensor cores want all channels of a pixel side
# by side, so cuDNN often copies images round a convolution. `channels_last` keeps the shape, stores pixels, and saves the copies:

# %% layout-run
images = torch.randn(8, 64, 56, 56)
last = images.to(memory_format=torch.channels_last)  # and the model: model.to(memory_format=torch.channels_last)
print("shape ", tuple(images.shape), "→", tuple(last.shape), "· equal:", torch.equal(images, last))
print("stride", images.stride(), "→", last.stride())

# %% layout-predict
layout_guess = gpulab.predict("Of 100 image models, trained on an RTX 3090: how many get slower with channels_last?")

# %% layout-recorded
settings = {
    "channels_last, training (RTX 3090)": ("train-amp-nchw-pt112-cu113-rtx3090", "train-amp-nhwc-pt112-cu113-rtx3090"),
    "torch.compile, inference (RTX 4090)": ("infer-amp-nchw-pt291-cu128-4090", "infer-amp-nchw-pt291-cu128-4090-dynamo"),
}
found = {name: sorted(gpulab.data.gains(*pair), key=lambda gain: gain.ratio) for name, pair in settings.items()}
for name, models in found.items():  # of equal batches
    low, median, high = (models[round(share * (len(models) - 1))].ratio for share in (0.1, 0.5, 0.9))
    slower = sum(gain.ratio < 1 for gain in models)
    print(f"{name}: {len(models)} models, {slower} slower (recorded)")
    print(f"    median {median:.2f} ×, four in five from {low:.2f} to {high:.2f}")
    if "last" in name:
        print("    among the slowest:", ", ".join(gain.model for gain in models[1:24:4]))
        told = "Mostly networks of grouped convolutions, whose kernels were slow in that layout (PyTorch 1.12, AMP)."
        layout_guess.compare(round(100 * slower / len(models)), "recorded", because=told)

# %% layout-plot
figure, both = plt.subplots(2, 1, figsize=(7.2, 4.4), sharex=True)
edges = [0.2 * 2 ** (step / 8) for step in range(49)]
titles = ("channels_last: a gain in the median, a loss for some", "torch.compile: 1.6 times as fast in the median, hardly a loss")
for axes, models, title in zip(both, found.values(), titles):
    axes.hist([gain.ratio for gain in models], bins=edges)
    axes.axvline(1, color=gpulab.style.MUTED, linewidth=1)
    axes.set(xscale="log", ylabel="models", title=title)
both[1].set_xticks([0.25, 0.5, 1, 2, 4, 8], ["0.25", "0.5", "1", "2", "4", "8"])
both[1].minorticks_off()
both[1].set_xlabel("speed with the switch / speed without (recorded)")
gpulab.style.show(figure, alt="Two histograms of the gain over some 400 and 600 image models on a logarithmic axis. channels_last "
    "has a peak at 1, a hump to 1.5 and a tail down to 0.2; torch.compile spreads from 1 to 3 round 1.6, with a tail to 11.")

# %% layout-explain [markdown]
# Some got slower by a factor of three. Look at the names: RegNets, NFNets, ResNeSts. The peak at 1 is mostly vision
# transformers, which have hardly a convolution. In inference with PyTorch 2.4 the median was 1.07, and one in eight
# slower. The price is small: one line for the model, one for each batch, and a `view` that relies on the old order
# fails (*Common mistakes*).
#
# Is that still so? The same question layer by layer: 64 images of 256 channels and 56 × 56 pixels, forward and backward, on
# two GPUs with PyTorch 2.11. The last row, a ReLU, does not care for the layout:

# %% layout-layers
ms = {}
for name in ("H100", "H200"):
    for row in gpulab.data.recorded(name)["layers"]:
        if row["train"]:
            ms[name, row["name"], row["mode"]] = row["both_ms"]
columns = [(name, mode) for mode in ("fp32", "amp_bf16") for name in ("H100", "H200")]
print(f"{'gain by channels_last (recorded)':<34}" + "".join(f"{mode[-4:] + ' ' + name:>11}" for name, mode in columns))
for layer in ("conv1x1", "conv3x3", "grouped32_3x3", "depthwise3x3", "depthwise7x7", "batch_norm", "relu"):
    both = [ms[name, layer, mode] / ms[name, f"{layer}_channels_last", mode] for name, mode in columns]
    print(f"  {layer:<32}" + "".join(f"{gain:>11.2f}" for gain in both))

# %% layout-layers-explain [markdown]
# So far do such numbers scatter: by a quarter. Beyond that, grouped convolutions win by now, and the slow case is
# another one: 7 × 7 depthwise in fp32. A good part of the gain is not the convolution's: with channels first **a batch norm
# gives each channel to one block**, so that a layer of 64 channels keeps 64 of 132 SMs busy, and a depthwise convolution in
# fp32 or bf16 is PyTorch's own kernel, not cuDNN's. (Seen with CUDA 13 and cuDNN 9.19; a 1 × 1 convolution of 7 × 7 pixels,
# or with stride 2, turns its images in there too.) A rule that was measured in 2022 is a rule about the libraries of 2022.
#
# **Autotuning.** cuDNN itself is on from the start. `cudnn.benchmark` is another thing: for every new shape it *tries* the
# convolution algorithms and keeps the fastest.

# %% layout-cudnn
print("cudnn.enabled:", torch.backends.cudnn.enabled, "· cudnn.benchmark:", torch.backends.cudnn.benchmark)
recorded = {  # seconds per iteration, without and with benchmark
    "WaveGlow, fixed shapes (NVIDIA/waveglow#172)": (2.00, 1.42),
    "YOLOv5, GTX 1080, fixed shapes (ultralytics/yolov5#3620)": (0.016, 0.016),
}
for name, (off, on) in recorded.items():
    print(f"{name}: {off / on:.2f} × (recorded)")
print(f"ResNet-50, P40, with benchmark: 0.023 s at a fixed size, {2.3 / 0.023:.0f} × that at many a new size (pytorch#2759, recorded)")
for on in (False, True):
    rows = [row for row in gpulab.data.recorded("H200")["new_shapes"] if row["benchmark"] == on]
    first, later = (statistics.median(row["forward_ms"][turn] + row["backward_ms"][turn] for row in rows) for turn in (0, 1))
    print(f"H200, {len(rows)} convolutions of new shapes, benchmark {on!s:<5}: {first:4.0f} ms, the second time {later:.1f} ms (medians, recorded)")

# %% layout-cudnn-explain [markdown]
# A layer of a new shape is slow in any case: cuDNN plans it, and code of kernels is loaded. With `benchmark` it took nearly
# a second there, forward and backward. So: on where shapes are fixed, off where they vary; the choice, and with it the
# last digits, may differ from run to run.

# %% numbers-text [markdown]
# ## Numbers and shapes
#
# **TF32** (lesson 07) is one line, `torch.set_float32_matmul_precision("high")`, for products; convolutions have it on. It costs
# digits of each factor, and saves no byte. A GPT of GPT-2's size, on 4 × 1024 tokens:

# %% numbers-tf32
def gpt2_ms(words=50304, half=False, precision="highest"):
    torch.set_float32_matmul_precision(precision)
    took, _ = on_a100(gpt, 4, 768, 12, words, 1024, half=half, fused=True)
    torch.set_float32_matmul_precision("highest")  # the default
    return took


fp32, tf32, bf16 = gpt2_ms(), gpt2_ms(precision="high"), gpt2_ms(half=True)
print(f"fp32 {fp32:.0f} ms, TF32 {tf32:.0f} ms, bf16 {bf16:.0f} ms (virtual)")
torch.manual_seed(0)
a, b = torch.randn(512, 512), torch.randn(512, 512)
exact = a.double() @ b.double()
for name, bits in (("TF32", 13), ("bf16", 16)):  # how many of the 32 bits are dropped
    short = [((x.view(torch.int32) + (1 << bits - 1)) >> bits << bits).view(torch.float32) for x in (a, b)]
    error = ((short[0] @ short[1] - exact).norm() / exact.norm()).item()
    print(f"{name}: a product of 512 × 512 is off by {error:.1e} of its size (computed)")

# %% numbers-tf32-explain [markdown]
# TF32 takes a fifth of the time, says the model; recorded above was 2.2 times the speed, in a GPT with attention and norms
# written out: TF32 speeds up products only. `"medium"` permits bf16 inside float32 products, where there is a fast way: the
# larger error, and still no saved memory. It is no “simplified AMP”.
#
# **Alignment** is the secret of the 47 words. Take 16-bit matrices `a @ b` with `a` of (m, k) and `b` of (k, n), all 4096.
# Now make *one* of the three 4097.

# %% numbers-predict
alignment_guess = gpulab.predict("For how many of m, k and n does 4097 make the product much slower?")

# %% numbers-alignment
def product_ms(m=4096, k=4096, n=4096):
    a, b = torch.ones(m, k, dtype=torch.half, device="cuda"), torch.ones(k, n, dtype=torch.half, device="cuda")
    return gpulab.timing.measure(lambda: a @ b, repeat=2, warm_up=2).median_ms


with gpulab.VirtualGPU("A100-80", compute=False):
    plain = product_ms()
    odd = {name: product_ms(**{name: 4097}) / plain for name in "mkn"}
    print("4097:", ", ".join(f"{name} {ratio:.2f} ×" for name, ratio in odd.items()), "the time (virtual)")
    wide = {n: product_ms(k=n, n=n) / plain for n in (4098, 4100, 4104, 4128)}
    print("k and n:", ", ".join(f"{n}: {ratio:.2f} ×" for n, ratio in wide.items()), "(virtual)")
h100 = {(row["precision"], *row["mnk"]): row["ms"] for row in gpulab.data.recorded("H100")["products"]}
sizes = {"m": (4097, 4096, 4096), "k": (4096, 4096, 4097), "n": (4096, 4097, 4096)}
real = {name: h100["bf16", *mnk] / h100["bf16", 4096, 4096, 4096] for name, mnk in sizes.items()}
words = h100["bf16", 8192, 50257, 768] / h100["bf16", 8192, 50304, 768]
print("On an H100:", ", ".join(f"{name} {ratio:.2f} ×" for name, ratio in real.items()), "(recorded)")
print(f"There 50,257 words in place of 50,304 make the last product take {words:.1f} times as long (recorded)")
alignment_guess.compare(sum(ratio > 1.2 for ratio in odd.values()), "virtual", because="k and n are lengths of rows in memory.")
ratio = gpt2_ms(50257, half=True) / gpt2_ms(50304, half=True)
print(f"a whole GPT-2 step: 50,257 words take {ratio:.2f} times as long as 50,304 (virtual; {1 + gains['47 words more'] / 100:.2f} recorded)")

# %% numbers-alignment-explain [markdown]
# Tensor cores are fed in packets of 16 bytes, so rows that begin anywhere take slower kernels. How much slower hangs on
# the GPU: for the A100 it is the model's assumption; the H100's own kernels take nothing else, and those of the
# generation before step in. So the rule is *rows of 16 bytes or a multiple*: 8 numbers of 16 bits, 4 of TF32, 16 of
# fp8. 4104 is nearly as good as 4096. Multiples of 64 fill the kernels' tiles, too; powers of two do nothing more. “Odd
# dimensions idle warps” is not the reason: that is at most the last warp of a row. Pad what you choose (vocabulary,
# widths), not the batch.

# %% determinism-text [markdown]
# ## The same bits twice
#
# Float addition depends on the order, and atomic additions of a thousand threads have none:

# %% determinism-order
large, small = torch.tensor(1e8), torch.tensor(1.0)
print("(1e8 + 1) − 1e8 =", ((large + small) - large).item(), "· (1e8 − 1e8) + 1 =", ((large - large) + small).item())

# %% determinism-explain [markdown]
# `torch.use_deterministic_algorithms(True)` takes operations whose order is fixed, cuDNN's too, and raises where there is
# none (on a GPU: backward of `ctc_loss` and `grid_sample`, for example). PyTorch up to 2.9 also demanded
# `CUBLAS_WORKSPACE_CONFIG=:4096:8`. Add seeds, and `cudnn.benchmark = False`. It promises the same bits on the same
# machine with the same versions, not elsewhere.

# %% determinism-run tags=["host-dependent"]
with gpulab.without_gpu():
    torch.use_deterministic_algorithms(True)
    try:
        torch.zeros(4, device=where).put_(torch.tensor([1, 1], device=where), torch.ones(2, device=where))
    except RuntimeError as error:
        print("RuntimeError ·", str(error)[:72], "…")
    for fill in (True, False):
        torch.utils.deterministic.fill_uninitialized_memory = fill
        took = gpulab.timing.measure(lambda: torch.empty(2**22, device=where)).median_ms
        print(f"fill_uninitialized_memory={fill!s:<5}: torch.empty of 16 MiB takes {1e3 * took:6.1f} µs (measured)")
    torch.utils.deterministic.fill_uninitialized_memory = True  # the default
    torch.use_deterministic_algorithms(False)

# %% determinism-price [markdown]
# A part of the price is mostly paid for nothing: in this mode every `torch.empty` is *filled*, in case a program reads what
# nobody wrote. Recorded, YOLO26x on a B200: 0.206 s a step with the filling, 0.181 without, with identical bits
# (ultralytics#26181). For Megatron-LM a tax of 15 % fell to 2 % (#6253). Switch the mode on to hunt a bug or to compare
# two versions.

# %% table-text [markdown]
# ## Your decision table
#
# Each switch alone, against one baseline, after a warm-up, on your GPU or else this machine's processor. The first row is
# the baseline *against itself*: a gain of that size is none.

# %% table-define
def try_switch(n=8, layout=torch.contiguous_format, half=False, flag=None, **options):
    """Milliseconds per image of training ResNet-18 with some switch."""
    torch.manual_seed(0)
    model = torchvision.models.resnet18().to(where, memory_format=layout)
    images = torch.randn(n, 3, 64, 64, device=where).to(memory_format=layout)
    step = training(model, images, torch.zeros(n, dtype=torch.long, device=where), half=half, **options)
    if flag:
        flag(True)
    took = gpulab.timing.measure(step, repeat=20 if where == "cuda" else 3, warm_up=1).median_ms / n
    if flag:
        flag(False)
    return took


def autotune(on):
    torch.backends.cudnn.benchmark = on


# %% table-run tags=["host-dependent"]
switches = {
    "nothing, again": {}, "fused AdamW": {"fused": True}, "loop AdamW": {"foreach": False},
    "channels_last": {"layout": torch.channels_last}, "bf16 autocast": {"half": True}, "batch 16": {"n": 16},
    "deterministic": {"flag": torch.use_deterministic_algorithms},
}
with gpulab.without_gpu():
    if where == "cuda":
        switches["cudnn.benchmark"] = {"flag": autotune}
    try_switch()  # warms up what all of them share
    baseline = try_switch()
    print(f"ResNet-18, batch 8, on {where}: {baseline:.2f} ms an image (measured)")
    for name, options in switches.items():
        print(f"{name:<16} {baseline / try_switch(**options):4.2f} × as fast (measured)")

# %% table-fill [markdown]
# Fill this table for your job. Keep what gains more than the noise and is worth its price.
#
# | switch | what it can save | price | measured gain | keep? |
# |---|---|---|---|---|
# | larger batch | launches, half-empty kernels | memory; learning rate | | |
# | fewer `.item()` | waits | a later loss curve | | |
# | `fused=True` | launches, memory traffic | none | | |
# | bf16 or TF32 | arithmetic, traffic | digits | | |
# | `torch.compile` | memory traffic, launches | seconds, recompilations | | |
# | CUDA graph, `reduce-overhead` | launches | memory, fixed shapes and addresses | | |
# | `channels_last` | copies round convolutions | `view`; some layers slower | | |
# | `cudnn.benchmark` | a better algorithm | each new shape; other bits | | |
# | rows of 16 bytes | slow kernels | some parameters | | |
# | determinism off | slower algorithms, filling | other bits | | |

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “Open cuDNN for speed.” | It is on. `benchmark` autotunes convolutions, and hurts with new shapes. | *Layout* |
# | “Dimensions in multiples of 8, or 32; odd ones idle warps.” | Rows of 16 bytes; the number of rows does not matter. | *Numbers and shapes* |
# | “Batches in powers of two.” | Not needed: in the model 100 and 127 images are as fast as 128. | next cell |
# | “The first iteration compiles kernels.” | Not in eager mode: it loads them, makes handles, takes memory, autotunes. | next cell |
# | “`'medium'` enables TF32, a simplified AMP.” | bf16 inside products where fast; no memory, no convolutions. | *Numbers and shapes* |
# | “`torch.compile` doubles the speed.” | Median 1.6 in inference, 1.2 in training a GPT-2. | *What compiling buys*, *Layout* |
# | “`channels_last` makes CNNs faster.” | Median 1.12; one in five slower. | *Layout* |
# | “8 hours untuned, 2 tuned.” | Possible: 11 times, recorded; three switches of ten made most of it. | *A question worth asking* |

# %% web-batches
for n in (96, 100, 127, 128, 129, 144):
    took, _ = on_a100(resnet, n)
    print(f"batch {n:>3}: {1e3 * n / took:6,.0f} images/s (virtual)")

# %% web-first tags=["host-dependent"]
with gpulab.without_gpu():
    layer, photo = nn.Conv2d(3, 48, 5).to(where), torch.randn(4, 3, 96, 96, device=where)
    calls = [gpulab.timing.measure(lambda: layer(photo), repeat=1, warm_up=0).median_ms for _ in range(4)]
print("a convolution, calls 1 to 4:", ", ".join(f"{took:.2f}" for took in calls), "ms (measured); nothing was compiled")

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
# **A checkpoint of the wrapper.** `torch.compile(model)` is another module round yours, and the names in its state have a prefix:

# %% mistake-names
with gpulab.without_gpu():
    model = nn.Linear(2, 2)
    wrapped = torch.compile(model, backend="eager")
    try:
        nn.Linear(2, 2).load_state_dict(wrapped.state_dict())
    except RuntimeError as error:
        print(str(error).splitlines()[-1].strip())
    model.compile(backend="eager")  # in place: the names stay
    print("model.compile():", list(model.state_dict()))

# %% mistake-view-text [markdown]
# **`view` after `channels_last`.** `flatten` and `reshape` copy where they must; `view` never copies:

# %% mistake-view tags=["raises-exception"]
with gpulab.without_gpu():
    last.view(8, -1)

# %% mistake-compiler-text [markdown]
# **No compiler.** Inductor needs one for the CPU: `g++` or `clang++` on Linux, Xcode's command-line tools on a Mac, Visual
# C++ in the PATH on Windows (there: `Compiler: cl is not found`). For a GPU it needs Triton. It fails at the first *call*:

# %% mistake-compiler tags=["host-dependent"]
import torch._inductor.config as settings

with gpulab.without_gpu(), settings.patch({"cpp.cxx": (None, "no-such-compiler")}):
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(4))
    except torch._inductor.exc.InductorError as error:
        print(str(error).splitlines()[0])

# %% mistake-more [markdown]
# Some that nothing reports:
#
# - **The first call in the mean.** It holds the compilation. Leave out the first steps, and those of each new shape.
# - **A smaller last batch, `eval()`, `no_grad`** are a compilation each: `drop_last=True` in training.
# - **Two switches at once.** One gains, one loses, and you keep both.

# %% quiz-text [markdown]
# ## Quick check
#
# Choose with the arrow keys, answer with Tab and Enter. Every option has its reason.

# %% quiz
gpulab.quiz(11)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. Ask who waits. Fewer launches help where the host is the brake; faster kernels help where it is not.
# 2. A gain belongs to a network, a batch and a GPU. channels_last makes one model in five slower; turn one switch at a
#    time, against the noise.
# 3. `torch.compile`: count graphs and recompilations first; it pays after compile time ÷ saved time steps.
# 4. A CUDA graph has fixed addresses: copy in, clone out.
# 5. Rows of 16 bytes. Determinism costs time, and a part of it can be had back.
#
# **For the checklist:** warm up, then measure · `fused=True` · `fullgraph=True` once, to find breaks · `TORCH_LOGS=recompiles` ·
# `channels_last` measured · `cudnn.benchmark` for fixed shapes only · vocabulary a multiple of 64 · no `.item()` in the step.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/11_faster_steps.ipynb): recompilations found, switches decided by measurement, a step as a
# CUDA graph. Then [lesson 12](12_many_gpus.ipynb), which takes more GPUs, or [the map of the course](00_start_here.ipynb).
#
# ## References
#
# - PyTorch documentation: *torch.compiler* (programming model: graph breaks, recompilations, dynamic shapes), *CUDA
#   semantics* (CUDA graphs), *Reproducibility*, `torch.use_deterministic_algorithms`, `torch.backends.cudnn`; tutorial *Channels
#   Last Memory Format*. pytorch/pytorch#161749 (cuBLAS's workspace), #2759 (autotuning).
# - Ansel et al., *PyTorch 2: Faster Machine Learning Through Dynamic Python Bytecode Transformation and Graph
#   Compilation*, ASPLOS 2024.
# - S. Raschka, *LLMs-from-scratch*, ch05, “10_llm-training-speed”. R. Wightman, *pytorch-image-models*, `results`.
# - NVIDIA, *Matrix Multiplication Background User's Guide* (alignment, tiles). NVIDIA/waveglow#172, ultralytics/yolov5#3620,
#   ultralytics/ultralytics#26181, NVIDIA/Megatron-LM#6253.

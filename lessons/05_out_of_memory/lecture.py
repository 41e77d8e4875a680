# %% title [markdown]
# # 05 · Out of memory
#
# **Promise:** from `OutOfMemoryError` to its cause, and from there to a running job, with the cheapest remedy first.
#
# After this lesson you can
#
# 1. **read** an out-of-memory message number by number, and **say** which of five causes it shows;
# 2. **find** who keeps a tensor alive: a list, a graph, a traceback, a notebook's output;
# 3. **tell** a leak from what only looks like one, in bytes;
# 4. **search** for the largest batch, and leave nothing behind;
# 5. **order** the remedies by what they cost.
#
# | time | before this | runs on |
# |---|---|---|
# | 70 minutes, and as long for the exercises | `04_memory`: allocated, reserved, peak | any machine |

# %% setup-text [markdown]
# Running out is quick when the GPU is small. So this lesson makes yours small: `set_per_process_memory_fraction` lets
# PyTorch take 128 MiB of it and no more. It works the same on a large GPU that you share, and it is the way to ask
# “would this run on a smaller one?”. Where a lesson needs a whole GPU, it opens a virtual one that keeps shapes only,
# and says so.

# %% setup
import collections
import gc
import textwrap
import traceback

import torch
from torch import nn
from torch.nn import functional as F

import gpulab

gpu = gpulab.setup()
device, MIB = gpu.device, 2**20

# %% small
def small_gpu(mib):
    """Let PyTorch take at most this much of the GPU, beside the workspaces that some versions of it keep."""
    layer = nn.Linear(64, 64, device=device)
    layer(torch.ones(64, 64, device=device)).sum().backward()  # now the workspaces are there
    del layer
    torch.cuda.empty_cache()
    kept = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction((mib * MIB + kept[0]) / total, device)
    return kept


def alive():
    """MiB in live tensors on the GPU."""
    return (torch.cuda.memory_allocated(device) - kept_allocated) / MIB


def make_model(width=96, depth=12):
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 10)).to(device)


kept_reserved, kept_allocated = small_gpu(128)

# %% question-text [markdown]
# ## A question worth asking
#
# A batch does not fit, so the program tries half of it, and half of that. The function below does what one would write
# first. In a fresh kernel, batch 8,000 of this model fits.
#
# With which batch does the search end, if it begins at 65,536?

# %% question-predict
batch_guess = gpulab.predict("Which batch size does retry_inside(65536) end with?")

# %% question-run
model = make_model()


def attempt(batch):
    """The forward and backward pass of one batch."""
    x = torch.randn(batch, 96, device=device)
    model(x).logsumexp(1).mean().backward()
    model.zero_grad()


def retry_inside(batch):
    try:
        attempt(batch)
        return batch
    except torch.OutOfMemoryError:
        print(f"batch {batch:>5} does not fit; {alive():6.2f} MiB in live tensors")
        return retry_inside(batch // 2) if batch > 1 else 0


batch_guess.compare(retry_inside(65_536), gpu.numbers)
print(f"afterwards: {alive():.2f} MiB in live tensors ({gpu.numbers})")

# %% question-answer [markdown]
# It ends far below 8,000, although nearly all of the memory is free again afterwards. Read the right column: the live
# tensors never get fewer. The failed attempts are not gone. The first one fills the GPU, and all others die of it.
#
# Who holds them? Not you: every variable of `attempt` is local. The answer is in the section after next, and it is the
# reason why many home-made batch searches find far too little. First, what does the error itself say?

# %% message-text [markdown]
# ## The message, number by number
#
# The message is an account of the GPU's memory at the moment of failure. Here is one in full: eight
# transformer layers, trained on a whole virtual T4 with a batch that is too large. Shapes only, so it runs anywhere.

# %% message-run
with gpulab.VirtualGPU("T4", compute=False):
    with torch.device("cuda"):
        network = nn.Sequential(*[nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True) for _ in range(8)])
    try:
        network(torch.empty(32, 1024, 1024, device="cuda")).sum().backward()
    except torch.OutOfMemoryError as error:
        message = str(error)
print(textwrap.fill(message.partition("  See")[0], 110))

# %% message-parts [markdown]
# | number in the message | what it is | what it is often taken for |
# |---|---|---|
# | Tried to allocate | the memory PyTorch wanted from the driver for **one** tensor | what the job needs in all |
# | total capacity | the GPU | – |
# | is free | what the driver has left, for every process | what PyTorch has left |
# | this process has … in use | context + all that PyTorch has reserved | live tensors |
# | Process 16497 has … in use | another process; **in a container also yours**, under its number outside | always another one's |
# | allowed (only with a limit) | the most that PyTorch may reserve | – |
# | allocated by PyTorch | live tensors, rounded up to blocks; private pools | – |
# | with … in private pools | of it, what is free for CUDA graphs and for nothing else | tensors of yours |
# | reserved but unallocated | PyTorch's cache: free pieces inside its segments | a leak; or: memory you can count on |
#
# Two sums tie them together. *Capacity = free + this process + other processes*. *This process = context + allocated +
# reserved but unallocated*. Whatever is left over in the first is somebody else's.

# %% message-sums
import re


def figures(text, words):
    """The figures in these words, in MiB; # stands for number and unit."""
    found = re.findall(words.replace("#", r"([\d.]+) (bytes|KiB|MiB|GiB)"), text)
    return [float(size) * {"bytes": 1 / MIB, "KiB": 1 / 1024, "MiB": 1, "GiB": 1024}[unit] for size, unit in found]


parts = {"capacity": "capacity of #", "free": "of which # is free", "process": "this process has # memory",
         "allocated": "# is allocated by", "cached": "# is reserved by PyTorch but"}
numbers = {name: figures(message, words)[0] for name, words in parts.items()}
left_over = numbers["capacity"] - numbers["free"] - numbers["process"]
context = numbers["process"] - numbers["allocated"] - numbers["cached"]
print(f"other processes: {left_over:4.0f} MiB (virtual, from rounded figures: 0 within ±10)")
print(f"CUDA context:    {context:4.0f} MiB (virtual, from rounded figures)")

# %% container-text [markdown]
# The driver knows processes by the host's numbers. In a container yours has another number inside than outside, so
# PyTorch does not recognise it, and there is no “this process”. Colab, Kaggle and most clusters are containers. Such a
# message, recorded on an 80 GB GPU:

# %% container-run
recorded = """Tried to allocate 594.00 MiB. GPU 0 has a total capacity of 79.33 GiB of which 508.44 MiB is free. \
Process 62912 has 494.00 MiB memory in use. Process 113443 has 78.33 GiB memory in use. Of the allocated memory \
74.24 GiB is allocated by PyTorch, with 57.88 MiB allocated in private pools (e.g., CUDA Graphs), and 185.89 MiB is \
reserved by PyTorch but unallocated."""
reserved = figures(recorded, "# is allocated by")[0] + figures(recorded, "# is reserved by PyTorch but")[0]
for number, size in zip(re.findall(r"Process (\d+)", recorded), figures(recorded, r"Process \d+ has # memory"), strict=True):
    print(f"process {number} has {size:7,.0f} MiB, as much as PyTorch has reserved: {size >= reserved} (recorded)")

# %% container-explain [markdown]
# Yours is the one that has at least what PyTorch has reserved; of several, the smallest. The other is somebody else's, and
# 494 MiB is all that ending it would bring. Three more forms:
#
# - **No process at all**, where the driver's library is missing (Jetson); or **17179869184.00 GiB**, which is “unknown”,
#   under Windows and WSL. Then the message cannot tell yours from others': ask `nvidia-smi`.
# - **Another last sentence** (PyTorch 2.15). “expandable_segments is enabled”: what is cached lies in the way of live tensors, and the
#   setting helps no further. “exceeds the expandable-segment reserve”: a limit that you have set.
# - **No message.** Under Windows, since driver 536.40, a full GPU spills into the host's memory. Nothing is raised, the
#   step takes many times as long, and PyTorch may count more allocated than the GPU has. The driver's setting is called
#   *CUDA – Sysmem Fallback Policy*: “Prefer No Sysmem Fallback” brings the error back.

# %% tried-text [markdown]
# ### “Tried to allocate” is a segment
#
# PyTorch asks the driver for *segments* and cuts tensors out of them. The message names the segment it could not get.
# How large is that for a tensor of 3 MiB?

# %% tried-predict
tried_guess = gpulab.predict("A 3 MiB tensor does not fit. What does the message say was tried?", unit="MiB")

# %% tried-run
def tried(mib):
    """What the message names when one more tensor of this size does not fit."""
    kept = []
    try:
        while True:
            kept.append(torch.empty(int(mib * MIB), dtype=torch.uint8, device=device))
    except torch.OutOfMemoryError as error:
        return str(error).split("Tried to allocate ")[1].split(". GPU")[0]


for mib in (0.5, 1, 3, 9, 11, 19, 25):
    print(f"a tensor of {mib:>4} MiB: tried to allocate {tried(mib)} ({gpu.numbers})")
tried_guess.compare(float(tried(3).split()[0]), gpu.numbers)

# %% tried-explain [markdown]
# Up to 1 MiB the segment is 2 MiB; below 10 MiB it is 20 MiB; from there on it is the size itself, rounded up to 2 MiB.
# So “Tried to allocate 20.00 MiB”, the most quoted out-of-memory line there is, says next to nothing about the tensor:
# it has between 1 and 10 MiB (or 18 to 20). What it does say: **the GPU is full to the last 20 MiB**. The line at which
# it broke is not the culprit, only the one that came next.
#
# A large number is the opposite case. Then this one tensor is worth a look:

# %% shape-run
prediction = torch.randn(8_000, 1, device=device)
target = torch.randn(8_000, device=device)
try:
    loss = (prediction - target).square().mean()
except torch.OutOfMemoryError as error:
    print(f"{prediction.nbytes / 1024:.0f} KiB and {target.nbytes / 1024:.0f} KiB went in.", str(error).split(" GPU")[0])

# %% shape-explain [markdown]
# Shapes (8000, 1) and (8000,) broadcast to (8000, 8000). With a smaller batch this bug does not crash; it trains on a
# wrong loss. An out-of-memory error is sometimes the first one to tell you of a shape.
#
# ### Which cause is it?
#
# Read the message in this order, and stop at the first line that holds:
#
# | you see | cause | remedy |
# |---|---|---|
# | tried > capacity (or > allowed) | one request is too large | look at its shape; then the batch |
# | free ≥ tried, and “allowed” is there; or “exceeds the … reserve” | a limit on this process | raise the limit |
# | free > tried, and neither | the message does not tell | its last sentence, the line that raised it |
# | cached ≥ tried, and expandable segments are not on | fragmentation | expandable segments |
# | nobody's share is told, and it may be what is missing | the message does not tell | `nvidia-smi` |
# | others hold what is missing | another process | `nvidia-smi`; end it, or take another GPU |
# | none of these: allocated ≈ all | live tensors fill the GPU | find garbage; then fewer bytes per step |
#
# Free and cached do not add up: one is the driver's, the other lies in pieces between live tensors. And what is cached
# *here* could not be given back: PyTorch has tried (see *What `empty_cache` does*). If it is only a little more than
# was tried, it buys you only that little.

# %% holders-text [markdown]
# ## Who keeps a tensor alive
#
# A tensor's memory goes back to PyTorch's cache at the moment when the last reference to it goes. There is no garbage to
# collect on the GPU. (Python objects that refer to each other in a circle wait for `gc.collect()`; a tensor marked with
# `record_stream` waits for that stream, lesson 03.) So where tensors are what fills the GPU, the question is: *who holds a
# reference?*
#
# While an `except` block runs, Python holds the exception; the exception holds its traceback; the traceback holds the
# frame of every function on the way; and a frame holds the function's variables. Ask it:

# %% holders-run
def who_holds(error):
    """Print the tensors among the variables of the functions that a traceback goes through."""
    for frame, _line in traceback.walk_tb(error.__traceback__):
        for name, value in frame.f_locals.items():
            if isinstance(value, torch.Tensor) and frame.f_code.co_name in ("attempt", "forward"):
                graph = "no graph" if value.grad_fn is None else f"with a graph: {value.grad_fn.name()}"
                print(f"{frame.f_code.co_qualname}: {name}, {value.nbytes / MIB:.0f} MiB, {graph}")


try:
    attempt(65_536)
except torch.OutOfMemoryError as error:
    who_holds(error)
    print(f"in live tensors: {alive():.0f} MiB ({gpu.numbers})")
print(f"after the except block: {alive():.1f} MiB ({gpu.numbers})")

# %% holders-explain [markdown]
# Two tensors (`input` is the same one twice), and most of the memory is in neither: `input` has a graph, and the graph
# keeps what every layer before it saved for backward. All of it goes when the `except` block ends, and not a moment
# earlier. Hence the rule, which PyTorch's own FAQ gives too: **in `except`, only take a note; recover after the block.**

# %% outside-run
def retry_outside(batch):
    while batch:
        try:
            attempt(batch)
            return batch
        except torch.OutOfMemoryError:
            pass  # the block must end before the next attempt
        batch //= 2
    return 0


print("largest batch found by halving:", retry_outside(65_536), f"({gpu.numbers})")

# %% notebook-text [markdown]
# ### What a notebook keeps
#
# IPython keeps the last uncaught error for its debugger (`sys.last_traceback`), and with it the frames. So after this
# cell the failed attempt stays, though the cell is over:

# %% notebook-error tags=["raises-exception"]
attempt(65_536)

# %% notebook-after
gc.collect()
torch.cuda.empty_cache()
print(f"in live tensors, after gc.collect() and empty_cache(): {alive():.0f} MiB ({gpu.numbers})")
print("does batch 4096 fit now?", retry_outside(4096) == 4096)

# %% notebook-repair-text [markdown]
# This is why a notebook that once ran out of memory seems to stay out of memory, and why “restart the kernel” is such
# popular advice. Any other error takes the place of the old one; what is left are reference cycles, which
# `gc.collect()` breaks:

# %% notebook-repair tags=["raises-exception"]
raise RuntimeError("an error without tensors, to take the place of the last one")

# %% notebook-repaired
gc.collect()
print(f"in live tensors: {alive():.1f} MiB ({gpu.numbers})")
print("does batch 4096 fit now?", retry_outside(4096) == 4096)

# %% out-text [markdown]
# The second keeper is the output history. A cell that ends with a tensor stores it in `Out`, in `_`, and under a name
# such as `_23`. Deleting your own name does not touch these:

# %% out-run
features = torch.ones(10, MIB, device=device)
features

# %% out-del
del features
print(f"40 MiB deleted, {alive():.1f} MiB in live tensors ({gpu.numbers})")

# %% out-xdel
features = _  # what the last output showed
get_ipython().run_line_magic("xdel", "features")  # as a line of its own: %xdel features
print(f"after %xdel features: {alive():.1f} MiB ({gpu.numbers})")

# %% out-explain [markdown]
# `%xdel` finds every name that IPython has for an object. (`%reset -f out` promises as much; with IPython 9 one hidden
# reference stays.) Better not to store it at all: end the line with a semicolon, or print what you want to see.

# %% cache-text [markdown]
# ## What `empty_cache` does
#
# It gives back to the driver the segments in which no tensor lives (of an expandable segment, the pages). That is all.
# Below, two tensors are alive.

# %% cache-predict
cache_guess = gpulab.predict("How much allocated memory does empty_cache() free while both are alive?", unit="MiB")

# %% cache-run
def state(what):
    allocated = torch.cuda.memory_allocated(device) - kept_allocated
    reserved = torch.cuda.memory_reserved(device) - kept_allocated
    print(f"{what:<28} allocated {allocated / MIB:5.1f} MiB, reserved {reserved / MIB:5.1f} MiB ({gpu.numbers})")
    return allocated


torch.cuda.empty_cache()
first, second = (torch.empty(40 * MIB, dtype=torch.uint8, device=device) for _ in range(2))
before = state("two tensors of 40 MiB")
torch.cuda.empty_cache()
cache_guess.compare((before - state("empty_cache()")) / MIB, gpu.numbers)
del second
state("del second")
torch.cuda.empty_cache()
freed = state("empty_cache()")

# %% cache-explain [markdown]
# `del` lowers *allocated*, `empty_cache` lowers *reserved*. Tutorials that print `memory_allocated()` after
# `empty_cache()` print the same number twice.
#
# Does it help against an out-of-memory error? PyTorch empties its cache **by itself** before it gives up: when the
# driver has nothing left, it releases every segment that is free and asks again. It counts these retries.

# %% retry-run
torch.cuda.empty_cache()
pieces = [torch.empty(20 * MIB, dtype=torch.uint8, device=device) for _ in range(4)]
del pieces
state("80 MiB cached in 4 pieces")
retries = torch.cuda.memory_stats(device)["num_alloc_retries"]
whole = torch.empty(80 * MIB, dtype=torch.uint8, device=device)  # no piece is large enough, and the limit is near
state("80 MiB in one piece")
print("the cache was emptied for it, times:", torch.cuda.memory_stats(device)["num_alloc_retries"] - retries)
try:
    torch.empty(40 * MIB, dtype=torch.uint8, device=device)
except torch.OutOfMemoryError:
    torch.cuda.empty_cache()
    print("40 MiB more do not fit; after empty_cache() free in the limit:", end=" ")
    print(f"{128 - (torch.cuda.memory_reserved(device) - kept_reserved) / MIB:.0f} MiB ({gpu.numbers})")
del first, whole

# %% retry-explain [markdown]
# So at the moment of the error `empty_cache` has been tried already, and calling it in an `except` block changes nothing
# about it. After every step it adds cost: the next one must take its memory from the driver again. (How much, a virtual
# GPU cannot find out: the model assumes 100 µs for each segment taken or given back, and this step is short.)

# %% cache-cost
def step_time(clean):
    """Milliseconds of four training steps on the GPU's clock."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    attempt(512)
    torch.cuda.synchronize()
    start.record()
    for _ in range(4):
        attempt(512)
        if clean:
            torch.cuda.empty_cache()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


plain, cleaned = step_time(False), step_time(True)
print(f"with empty_cache() after every step: {cleaned / plain:.2f} times as long ({gpu.numbers})")

# %% cache-verdict [markdown]
# It has honest uses. Another process, or a library that does not use PyTorch's allocator, needs the memory. You want to
# read `nvidia-smi`. Or one program runs jobs of different sizes one after the other: then, *between* them, while nothing
# is alive, it does what it cannot do later. *The largest batch that fits* shows such a case.

# %% leaks-text [markdown]
# ## Leaks that are, and leaks that are not
#
# “`losses.append(loss)` leaks the whole graph” is in many tutorials. Does it? The cell trains 5 steps and keeps
# each loss, with its graph, in a list. One step saves 12 layers × 2048 × 96 numbers for backward: 9.4 MB (computed).

# %% leaks-predict
leak_guess = gpulab.predict("What does each step of that loop add to the live memory?", unit="bytes")

# %% leaks-run
x, y = torch.randn(2048, 96, device=device), torch.randint(10, (2048,), device=device)
zeros = torch.zeros(2048, 10, device=device)


def growth(step, steps=5):
    """Bytes by which live memory grows with each call of step(kept), after the first."""
    kept, sizes = [], []
    for _ in range(steps):
        step(kept)
        model.zero_grad()
        sizes.append(torch.cuda.memory_allocated(device))
    return (sizes[-1] - sizes[0]) // (steps - 1)


def after_backward(kept):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    kept.append(loss)


leak_guess.compare(growth(after_backward), gpu.numbers)

# %% leaks-explain [markdown]
# 512 bytes: one block of the allocator, for the four bytes of the loss. `backward()` frees the saved activations as it
# goes; what hangs on the loss afterwards is a chain of empty nodes on the host. Worth tidying up, and no reason to run
# out of memory. Now the same list in other company:

# %% leaks-kinds
def without_backward(kept):
    kept.append(F.cross_entropy(model(x), y))  # validation, for example


def mse_after_backward(kept):
    loss = F.mse_loss(model(x), zeros)
    loss.backward()
    kept.append(loss.detach())


def outputs(kept):
    kept.append(model(x).detach())


def one_row(kept):
    batch = torch.randn_like(x)
    kept.append(batch[0])


# %% leaks-compare
kinds = {
    "loss, after backward": after_backward,
    "loss, no backward": without_backward,
    "mse_loss, after backward, detached": mse_after_backward,
    "outputs, detached": outputs,
    "one row of the batch": one_row,
}
grown = {name: growth(step) for name, step in kinds.items()}
for name, size in grown.items():
    print(f"{name:<36} {size:>12,} bytes a step ({gpu.numbers})")

# %% leaks-surprise [markdown]
# Two of these surprise most people.
#
# **`mse_loss` keeps the memory of its elements.** It allocates its output at full size, 20,480 numbers, and only then
# resizes it to a scalar, which leaves the storage as large as it was. (The squares go into a second tensor, which is
# freed.) `detach()` shares the storage, so it leaks just as much. `binary_cross_entropy` comes to the same by another
# way: it reduces within the tensor of its elements. `cross_entropy` and `l1_loss` return a scalar of their own.
#
# **One row keeps the batch.** A view has no memory of its own, and keeps all of its storage alive.
#
# The repair is one for all five: keep a *number* (`loss.item()`, or `loss.detach().clone()` and one `.item()` at the
# end, since each waits for the GPU), or a *copy on the host* (`row.cpu()`).

# %% leaks-storage
def loss_bytes(loss_fn):
    """Bytes alive at most while the loss is computed, and those of its storage, and of a clone's."""
    scores = torch.rand(2048, 10, device=device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    loss = loss_fn(scores, zeros)
    peak = torch.cuda.max_memory_allocated(device) - before
    return peak, loss.untyped_storage().nbytes(), loss.detach().clone().untyped_storage().nbytes()


for loss_fn in (F.mse_loss, F.smooth_l1_loss, F.binary_cross_entropy, F.l1_loss, F.huber_loss):
    peak, kept, cloned = loss_bytes(loss_fn)
    print(f"{loss_fn.__name__:<20} at most {peak:>7,} bytes, its storage {kept:>6,}, a clone's {cloned} ({gpu.numbers})")

# %% leaks-plot
import matplotlib.pyplot as plt

gpulab.style.use()
figure, axes = plt.subplots(figsize=(7.2, 3.8))
for (name, size), style in zip(grown.items(), ("-", "-", "-", "--", "-"), strict=True):
    steps = [n for n in range(41) if n * size <= 128 * MIB]
    axes.plot(steps, [n * size / MIB for n in steps], style, label=name)
    if steps[-1] < 40:
        axes.plot(steps[-1], steps[-1] * size / MIB, "x", color="#111111", markersize=9)
axes.set(title="Kept in a list: four kinds grow, one hardly does", xlabel="steps")
axes.set_ylabel(f"kept, MiB ({gpu.numbers})")
axes.legend(loc="upper right")
gpulab.style.show(
    figure,
    alt="Memory kept over 40 steps for five kinds of lists. Losses without backward reach the limit of 128 MiB within "
    "15 steps; rows of a batch grow steadily to 30 MiB; outputs and mean squared errors grow slowly; "
    "losses after backward stay near zero. A cross marks the end.",
)

# %% census-text [markdown]
# ### Find it: a census
#
# When memory grows and you do not see why, count what is alive. Python's garbage collector has a list of every tensor
# that has a Python object, those too that only a graph holds. Group them by shape: the shape tells you what they are.

# %% census-run
def census(most=2):
    """Print which shapes hold the most memory, and what of the live memory Python does not see."""
    shapes, sizes = collections.Counter(), {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor) and thing.is_cuda:
            storage = thing.untyped_storage()
            if storage.data_ptr() not in sizes:
                sizes[storage.data_ptr()] = storage.nbytes()
                shapes[tuple(thing.shape)] += storage.nbytes()
    for shape, nbytes in shapes.most_common(most):
        print(f"{shape!s:<12} {nbytes / MIB:5.1f} MiB", end=", ")
    print(f"not seen {alive() - sum(sizes.values()) / MIB:.1f} MiB ({gpu.numbers})")


census()
kept = []
for _ in range(3):
    without_backward(kept)
census()
kept.clear()

# %% census-explain [markdown]
# The list holds three scalars. What grew has the shape of a hidden layer: activations, so a graph is alive that was never
# run backward.
#
# The census has a gap. What an operation saves of its *inputs* is a tensor that Python has seen. What it saves of its
# *output* (`exp`, `sigmoid`, `tanh`, softmax) is a copy without a Python object, as is what it keeps to itself (a mask).
# The same counting in a process of its own, on the CPU:

# %% census-gap
import subprocess
import sys

code = """
import gc, torch
x, w = torch.randn(256, 64), torch.randn(64, 96, requires_grad=True)
for f in (torch.nn.functional.gelu, torch.exp, torch.sigmoid, torch.tanh):
    kept = [f(x @ w).sum() for _ in range(4)]  # each graph keeps one tensor of 256 x 96
    seen = sum(type(thing) is torch.Tensor and thing.shape == (256, 96) for thing in gc.get_objects())
    print(f"{f.__name__:<8} saved 4 tensors, found by the census: {seen}")
"""
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout, end="")

# %% census-gap-text [markdown]
# On a real GPU these are under *not seen*: read that number too, and look for a shape only if it is small. (A virtual GPU
# looks at every tensor, so there the census misses nothing.) For the *line of code* that asked for each block, record
# the history with `torch.cuda.memory._record_memory_history()` and look at a snapshot, as in lesson 04.
#
# ### No leak: a forgotten `zero_grad`
#
# Forgetting `zero_grad()` is on many lists of memory leaks. Gradients are added into the buffer that is there:

# %% zero-run
F.cross_entropy(model(x), y).backward()
held = []
for _ in range(5):
    F.cross_entropy(model(x), y).backward()  # zero_grad forgotten
    held.append(torch.cuda.memory_allocated(device))
print("the same bytes after each of 5 steps:", len(set(held)) == 1)
model.zero_grad(set_to_none=False)
zeroed = torch.cuda.memory_allocated(device)
model.zero_grad()  # set_to_none=True is the default
print(f"zeros in place of None cost {zeroed - torch.cuda.memory_allocated(device):,} bytes ({gpu.numbers}),",
      f"the parameters have {sum(p.nbytes for p in model.parameters()):,}")

# %% zero-explain [markdown]
# The loss is wrong then, and the memory is not. `set_to_none=True`, advised as a trick, has been the default since
# PyTorch 2.0. It does save memory: during the forward pass there are no gradients. (The difference to the parameters'
# own bytes is rounding up to 512.)

# %% previous-text [markdown]
# ### Half a leak: the step before
#
# A loop variable lives until it is assigned again. In `output = model(x)` the new output is computed *first*; until
# then the old one is there, with its graph if nobody ran backward. How much more than one pass does a loop of three
# need?

# %% previous-predict
peak_guess = gpulab.predict("Peak of three forward passes in a loop, against a single one?", unit="times")

# %% previous-run
def peak_of(run):
    """The most MiB that run() has alive at a time, beyond what was there."""
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    return (torch.cuda.max_memory_allocated(device) - before) / MIB


def passes(count, forget=False):
    for _ in range(count):
        output = model(x)
        if forget:
            del output


one, three = peak_of(lambda: passes(1)), peak_of(lambda: passes(3))
peak_guess.compare(round(three / one, 2), gpu.numbers)
print(f"with `del output` at the end of the loop's body: {peak_of(lambda: passes(3, forget=True)) / one:.2f}")

# %% previous-explain [markdown]
# Not three times: the second old graph goes when the third output takes its name. Nearly twice: two graphs are alive at
# once. After a backward pass only the outputs themselves stay, which for a language model (tokens × vocabulary) may be
# gigabytes. Put the body of the loop into a function, and its variables go by themselves.

# %% eval-text [markdown]
# ## Evaluation keeps nothing, if you say so
#
# `model.eval()` changes dropout and BatchNorm. The graph is built all the same (dropout's masks excepted):

# %% eval-run
def kept_by_forward():
    before = torch.cuda.memory_allocated(device)
    output = model(x)
    return torch.cuda.memory_allocated(device) - before - output.nbytes


print(f"model.train():    {kept_by_forward():>12,} bytes kept beside the output ({gpu.numbers})")
model.eval()
print(f"model.eval():     {kept_by_forward():>12,}")
with torch.no_grad():
    print(f"no_grad():        {kept_by_forward():>12,}")
with torch.inference_mode():
    print(f"inference_mode(): {kept_by_forward():>12,}")
model = model.train()

# %% eval-explain [markdown]
# Both keep nothing. `inference_mode` also drops what autograd needs to check in-place changes, which saves time on the
# host, not memory; in return its tensors can never take part in training (see *Common mistakes*). Use it where results
# leave PyTorch, and `no_grad` where they may come back.
#
# A `detach()` at the end does not replace either: the graph exists until then, and the peak is that of training.

# %% search-text [markdown]
# ## The largest batch that fits
#
# Memory is a straight line in the batch: so much for the model, so much for each sample. Three questions decide whether
# a search finds the right point on it. *What is one attempt?* *What does the attempt before leave behind?* *Where do
# you look next?* The cells use a network with 100 million parameters and Adam on a virtual T4, shapes only.

# %% search-build
def wide():
    with torch.device("cuda"):
        return nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(4096, 4096), nn.ReLU())])


def step_wide(network, optimizer, batch, backward=True):
    loss = network(torch.empty(batch, 4096, device="cuda")).sum()
    if backward:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


# %% search-fits
def fits_wide(batch, steps=2, clean=True, **options):
    """Whether so many steps of a fresh network run; with `clean`, the cache is emptied before."""
    if clean:
        torch.cuda.empty_cache()
    network = wide()
    optimizer = torch.optim.Adam(network.parameters())
    try:
        for _ in range(steps):
            step_wide(network, optimizer, batch, **options)
    except torch.OutOfMemoryError:
        return False
    return True


# %% search-bisect
def bisect(fits, low, high):
    """The largest batch for which fits(batch); low fits, high does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


attempts = {"forward only": {"steps": 1, "backward": False}, "one step": {"steps": 1}, "two steps": {"steps": 2}}
for name, options in attempts.items():
    with gpulab.VirtualGPU("T4", compute=False):
        largest = bisect(lambda batch: fits_wide(batch, **options), 1, 2**18)
    print(f"{name:<13} {largest:>8,} samples (virtual)")

# %% search-explain [markdown]
# One attempt is **two whole steps**. Adam makes its two moments at the end of the first, so the second step is the first
# one that has everything in memory at once. A job that dies in its second step usually has this reason. (One that dies
# at its first validation has another: see above.)
#
# Now the second question. Every failed attempt above is really gone; only its segments are cached. Does it matter?

# %% search-predict
clean_guess = gpulab.predict("The search for two steps, without emptying the cache between attempts, finds", unit="samples")

# %% search-dirty
with gpulab.VirtualGPU("T4", compute=False):
    uncleaned = bisect(lambda batch: fits_wide(batch, clean=False), 1, 2**18)
    clean_guess.compare(uncleaned, "virtual")
    try:
        fits_wide(2**17)  # leaves segments of 2 GiB
        step_wide(wide(), None, uncleaned + 1, backward=False)
    except torch.OutOfMemoryError as error:
        print(str(error).split("Of the ")[1].split(" If ")[0])

# %% search-dirty-explain [markdown]
# A third less, and by no accident a power of two. The first attempt, with batch 131,072, left seven segments of 2 GiB. A
# tensor slightly over 1 GiB moves into one of them, and no second one fits beside it: of 14 GiB only half can be used.
# The allocator cannot give such a segment back, since a tensor lives in it. *Before* the attempt it could have.
#
# So this is where `empty_cache` prevents an error: between attempts of different size, while nothing is alive. Halving
# from above without it tends to end on one of its own sizes, since it made the segments for them.

# %% search-powers
power = 1 << largest.bit_length() - 1
print(f"the largest power of two, {power:,}, leaves {1 - power / largest:.0%} of the largest batch unused (virtual)")

# %% search-powers-explain [markdown]
# A power of two is not needed. Bisect, and round down to a multiple of 8 if you like: NVIDIA advises it for tensor
# cores. (The model says that it matters for the length of a *row*, features or vocabulary, and little for the batch.)
# Then leave 5 to 10% free. The line is straight on average only: sequences differ in length (search with the
# **longest**), and others use the GPU.
#
# A search must also clean up. Its steps move the weights, fill the optimizer's state, and advance BatchNorm's averages
# and the random numbers. Exercise 3 asks for all of it. Or plan it on shapes, and touch nothing:

# %% search-plan
def build(batch):
    network = wide()
    optimizer = torch.optim.Adam(network.parameters())
    return lambda: step_wide(network, optimizer, batch)


plan = gpulab.plan(build, batch=100_000, gpu="T4", largest=True)
print(f"planned: batch {plan.largest_batch:,} (virtual), in {len(plan.tried)} attempts")

# %% fragments-text [markdown]
# ## Fragmentation
#
# The cache helps while sizes repeat. When every batch is a little longer than the last one, no cached block is ever
# large enough: PyTorch takes a new segment each time and keeps the old ones. Only when the GPU is full does it give
# them back, and only those in which nothing lives. Data sorted by length are the classic case. Below, 24 batches of
# growing length, shapes only, on a virtual T4:

# %% fragments-run
def sorted_by_length(settings):
    """Peaks in MiB of training on ever longer sequences, and how often the cache had to be emptied."""
    with gpulab.VirtualGPU("T4", compute=False, settings=settings):
        torch.manual_seed(0)
        with torch.device("cuda"):
            layers = [nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0) for _ in range(3)]
        network = nn.Sequential(*layers)
        for length in range(200, 900, 29):
            network(torch.empty(32, length, 1024, device="cuda")).sum().backward()
            network.zero_grad()
        peaks = torch.cuda.max_memory_allocated() / MIB, torch.cuda.max_memory_reserved() / MIB
        return *peaks, torch.cuda.memory_stats()["num_alloc_retries"]


for settings in ("", "expandable_segments:True"):
    allocated, reserved, retries = sorted_by_length(settings)
    print(f"{settings or 'default':<25} allocated {allocated:6,.0f} MiB, reserved {reserved:6,.0f} MiB,", end=" ")
    print(f"cache emptied {retries} times (virtual)")

# %% fragments-explain [markdown]
# The same work and the same live tensors; without the setting more than half of what is reserved is waste, and the GPU
# is full although it need not be. Here it ends well: what was in the way could be given back. An
# *expandable segment* grows page by page instead of being one fixed piece, so the longer tensor continues where the
# shorter one was. You switch it on from outside, before Python starts:
#
# ```
# PYTORCH_ALLOC_CONF=expandable_segments:True python train.py
# ```
#
# `PYTORCH_CUDA_ALLOC_CONF` is the older name, which the error message still prints; both are read, and the virtual GPU
# reads them too. Set from inside a notebook that has used the GPU already, it does nothing: the allocator has been
# made. It costs little. Not every platform has it: it needs CUDA's virtual memory functions.

# %% cheese-text [markdown]
# Does it cure every fragmentation? In the next cell 2800 tensors of 5 MiB fill the GPU, and every second one goes. Half
# of the memory is free. How much of 1 GiB can be had?

# %% cheese-run
for settings in ("", "expandable_segments:True"):
    with gpulab.VirtualGPU("T4", compute=False, settings=settings):
        tensors = [torch.empty(5 * MIB, dtype=torch.uint8, device="cuda") for _ in range(2800)]
        del tensors[::2]
        try:
            torch.empty(1024 * MIB, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            facts = str(error).split("Of the ")[1].split(" If ")[0].split(" expandable")[0]
            print(f"{settings or 'default'}:\n  {facts}")
        del tensors

# %% cheese-explain [markdown]
# No: a live tensor cannot be moved, and here one sits in every page. Expandable segments mend the waste of *growing*
# sizes, not that of small survivors among large neighbours. For those: make what lives long first, and copy what you
# keep of a large batch to the host.
#
# `max_split_size_mb`, the advice of older messages, forbids the splitting of large blocks. It helps in some cases and
# wastes more in others; try it only where expandable segments do not exist.

# %% remedies-text [markdown]
# ## The remedies, cheapest first
#
# Garbage first: it costs nothing to remove, and every other remedy only hides it. If live tensors of the step itself
# fill the GPU, each remedy has a price. Below, a language model with six layers, batch 80, on a virtual T4, planned
# on shapes. As it is, it does not fit. Which single remedy saves most? And which *gains* time?

# %% remedies-model
from torch.utils.checkpoint import checkpoint


class LanguageModel(nn.Module):
    def __init__(self, checkpointing, layers=6, width=768, vocabulary=16_000):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        options = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 12, **options) for _ in range(layers))
        self.checkpointing = checkpointing

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointing else layer(x)
        return self.head(x)


# %% remedies-build
def remedy(micro_batches=1, half=False, checkpointing=False, kind=torch.optim.Adam, **optimizer_options):
    """A function for gpulab.plan: a training step with these remedies."""
    def build(batch):
        with torch.device("cuda"):
            network = LanguageModel(checkpointing)
        optimizer = kind(network.parameters(), lr=1e-3, **optimizer_options)
        ids = torch.randint(16_000, (batch, 512), device="cuda")

        def step():
            for part in ids.chunk(micro_batches):
                with torch.autocast("cuda", torch.float16, enabled=half):
                    loss = F.cross_entropy(network(part).flatten(0, 1), part.flatten())
                (loss / micro_batches).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step
    return build


# %% remedies-run
remedies = {
    "as it is": remedy(),
    "SGD in place of Adam": remedy(kind=torch.optim.SGD),
    "16-bit autocast": remedy(half=True),
    "4 micro-batches of 20": remedy(micro_batches=4),
    "checkpointing": remedy(checkpointing=True),
    "autocast and 4 micro-batches": remedy(half=True, micro_batches=4),
}
plans = {name: gpulab.plan(build, batch=80, gpu="T4") for name, build in remedies.items()}
base = plans["as it is"]
for name, plan in plans.items():
    fits = "fits" if plan.fits else "does not fit"
    print(f"{name:<29} {plan.peak_allocated / MIB:>7,.0f} MiB, {plan.step_ms / base.step_ms:4.2f} × time, {fits} (virtual)")

# %% remedies-plot
figure, axes = plt.subplots(figsize=(7.2, 3.4))
names = list(plans)[::-1]
fixed = [(plans[n].weights + plans[n].optimizer_state) / MIB for n in names]
rest = [plans[n].peak_allocated / MIB - f for n, f in zip(names, fixed, strict=True)]
axes.barh(names, fixed, color=gpulab.style.SKY, label="weights, optimizer state")
axes.barh(names, rest, left=fixed, color=gpulab.style.ORANGE, label="activations, gradients, the rest")
for y_place, n in enumerate(names):
    axes.text(plans[n].peak_allocated / MIB + 150, y_place, f"{plans[n].step_ms / base.step_ms:.2f} × time", va="center",
              bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
axes.axvline(base.memory / MIB, color="#111111", linestyle="--")
axes.set(title="What grows with the batch is what shrinks", xlabel="peak of a step, MiB (virtual T4; dashed: its memory)")
axes.set_xlim(0, 24_000)
axes.legend(loc="upper center", bbox_to_anchor=(0.3, -0.2), ncols=2)
gpulab.style.show(
    figure,
    alt="Peak memory of a step for six variants, as bars. As it is and with SGD, it exceeds the memory of the T4. "
    "Autocast, four micro-batches, checkpointing and the combination stay below it; the combination needs least.",
)

# %% remedies-table [markdown]
# The tables of the web, put right. The order is that of the price: first what leaves the result as it is (to rounding),
# by the time it takes; then what changes the result; then money. The [checklist](../docs/cheatsheet.md) has the same.
# (Above checkpointing adds a fifth: of each layer all but the last product is computed again, and the head is not.)
#
# | remedy | what it takes away | what it costs |
# |---|---|---|
# | remove garbage: lists, tracebacks, `Out`, idle kernels | what should not be there | nothing |
# | `no_grad` or `inference_mode` in validation | the graph | nothing |
# | expandable segments | waste between tensors | next to nothing |
# | kernels that write less: attention, fused loss, fused optimizer (06) | the largest single tensors | nothing |
# | 16-bit autocast (07) | part of the activations; not weights, gradients, state | large products *gain* time, small steps lose some; care with fp16 |
# | micro-batches with accumulation (08) | activations, in proportion | little speed on large products, more on small ones; BatchNorm |
# | checkpointing (06) | activations inside layers | a second forward pass: up to a third more time where products dominate, more where memory traffic does |
# | offloading (06) | activations, state | the bus |
# | another training: an optimizer with less state (06), LoRA (06), shorter sequences, a smaller model | moments; gradients and state; everything | another result |
# | another GPU, or several GPUs (13) | a share of everything | money |
#
# Smaller batches *without* accumulation are cheap too, but change the training.

# %% simulator-text [markdown]
# ### See where the peak is
#
# A remedy helps only if it takes from what is there at the **moment of the peak**. The simulator opens on a step of 24
# layers without checkpointing (one segment), shortly before the peak. Try this:
#
# 1. Set *Segments* to 24. The peak falls to a third, and moves. Where is it now?
# 2. Stay there, and set *Micro-batches* to 4, or *Precision* to “mixed”. What do these remedies still save, and why?
# 3. Back to one segment: what do the same two settings save now?

# %% simulator
gpulab.sim.step_memory(segments=1, moment=80)

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “`empty_cache()` fixes out-of-memory errors.” “Call it between epochs.” | It frees no tensor, PyTorch does it itself before it fails, and it costs time. It helps between jobs of different size in one process, and other processes. | *What `empty_cache` does*, *The largest batch that fits* |
# | “`empty_cache` or a restart cures fragmentation.” | A restart does. `empty_cache` only while nothing lives in the segments. Expandable segments avoid much of it. | *Fragmentation* |
# | “`losses.append(loss)` leaks the graph.” | After `backward()`: 512 bytes a step. Without backward: everything. With `mse_loss`: as much as its elements, even detached. | *Leaks that are, and leaks that are not* |
# | “Forgetting `zero_grad()` fills the memory.” | Wrong: gradients are added in place. | *No leak: a forgotten `zero_grad`* |
# | “`zero_grad(set_to_none=True)` saves memory.” | True, and the default. | same cell |
# | “In-place activations save memory.” | ReLU: no, the same bytes are kept. LeakyReLU and ELU: yes, a tensor a layer. | next cell |
# | “Batch sizes must be powers of two.” | Unnecessary, and it may leave nearly half of the room unused. | *The largest batch that fits* |
# | “A better DataLoader fixes out-of-memory errors.” | Workers live in the host's memory. Only the batches that you moved count on the GPU. | text |
# | “Preload the data to the GPU.” “Never put the whole data set there.” | Count its bytes: half a MB of digits, yes; ImageNet, no. | next cell |
# | “Smaller batch, fewer updates: use accumulation.” | Accumulation keeps the updates of the large batch. | lesson 08 |

# %% web-inplace
def bytes_of(kind, inplace, norm):
    """MiB kept after forward by six layers with this activation, and the most on the way; without rounding to blocks."""
    torch.manual_seed(0)
    between = nn.BatchNorm1d if norm else nn.Identity
    layers = [layer for _ in range(6) for layer in (nn.Linear(96, 96), between(96), kind(inplace=inplace))]
    network = nn.Sequential(*layers).to(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_stats(device)["requested_bytes.all.current"]
    output = network(x)  # held, or its graph would go
    stats = torch.cuda.memory_stats(device)
    return [(stats[f"requested_bytes.all.{when}"] - before) / MIB for when in ("current", "peak")]


for norm in (False, True):
    for kind in (nn.ReLU, nn.LeakyReLU, nn.ELU):
        (kept, peak), (kept_in, peak_in) = bytes_of(kind, False, norm), bytes_of(kind, True, norm)
        name = f"Linear, {'BatchNorm, ' * norm}{kind.__name__}"
        print(f"{name:<28} kept {kept:4.1f} MiB, in place {kept_in:4.1f}; at most {peak:4.1f}, in place {peak_in:4.1f} ({gpu.numbers})")

# %% web-data
images, labels = gpulab.data.digits()
imagenet = 1_281_167 * 3 * 224 * 224
print(f"digits, float32: {(images.nbytes + labels.nbytes) / 1e6:.1f} MB (measured)")
print(f"ImageNet's training images at 224 × 224: {imagenet / 1e9:.0f} GB as bytes, {4 * imagenet / 1e9:.0f} in float32 (computed)")

# %% web-explain [markdown]
# Why does in-place ReLU save nothing? ReLU's backward needs its *output*. Out of place, the input goes as soon as
# nobody needs it, and neither `Linear` nor BatchNorm needs its output; in place, output and input are one. Kept is one
# tensor in both cases, and the difference is the moment in between (from PyTorch 2.15 on, cuBLAS's workspace of 1 MiB for the
# moment of a product may hide it). LeakyReLU and ELU save their *input*; in place they
# save the output instead, which the next layer keeps anyway: one tensor a layer less.
#
# ## Common mistakes
#
# **Catching everything.** A search that writes `except RuntimeError` takes any fault of the program for a lack of
# memory. Here the model and the data do not fit *each other*:

# %% mistake-runtime
def largest_by_halving(batch):
    while batch:
        try:
            model(torch.randn(batch, 95, device=device))  # the model takes 96 features
            return batch
        except RuntimeError:
            batch //= 2
    return 0


print("largest batch:", largest_by_halving(4096))
print("what was caught in the search is one kind of RuntimeError:", issubclass(torch.OutOfMemoryError, RuntimeError))

# %% mistake-runtime-text [markdown]
# Catch `torch.OutOfMemoryError` (the older name `torch.cuda.OutOfMemoryError` is the same class). Two errors of the same
# origin are not of this class: `CUBLAS_STATUS_ALLOC_FAILED`, when cuBLAS finds no room for its handle, and
# `CUDA error: out of memory`, when the driver has none, for example because others fill the GPU before you begin.
#
# **`del` of a name, while a list has the tensor.** `del` removes a name. Memory goes with the last reference:

# %% mistake-del
history = []
for _ in range(3):
    output = model(x).detach()
    history.append(output)
    del output
print(f"deleted three times, {sum(t.nbytes for t in history):,} bytes alive in the list ({gpu.numbers})")
history.clear()

# %% mistake-inplace-text [markdown]
# **In-place where backward needs the old value.** The sigmoid keeps its output; the addition overwrites it:

# %% mistake-inplace tags=["raises-exception"]
gate = model(x).sigmoid()
gate += 1
gate.sum().backward()

# %% mistake-inplace-repair [markdown]
# The message counts versions: the saved tensor was at version 0 and is at version 1. Write `gate = gate + 1`.
# (In place is safe on a tensor that no earlier operation has saved: `Linear` does not save its output, so `relu_` may
# overwrite it.)
#
# **An inference tensor in training.** What `inference_mode` made cannot be saved for backward:

# %% mistake-inference tags=["raises-exception"]
with torch.inference_mode():
    features = model[:-1](x)
model[-1](features).sum().backward()

# %% mistake-inference-repair [markdown]
# Use `no_grad` for features that will be trained on, or take `features.clone()` outside the block.
#
# **A setting that comes too late.** `os.environ["PYTORCH_ALLOC_CONF"] = …` in the third cell of a notebook is read by
# nobody. Set it before the kernel starts, or in the first lines of the program, before the first import of torch.
#
# **A clean GPU that is full.** `nvidia-smi` shows memory in use, and your process has hardly begun. Look at the list of
# processes at its end: an old notebook kernel that was never shut down keeps its context and its cache for days. In a
# container the list may be empty although the memory is taken.

# %% quiz-text [markdown]
# ## Quick check
#
# Choose with the arrow keys, answer with Tab and Enter. Every option has its reason.

# %% quiz
gpulab.quiz(5)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. The message is an account: capacity = free + this process + others; this process = context + allocated + cached.
#    “Tried” is one segment, and 20 MiB of it means only that the GPU is full.
# 2. Memory goes with the last reference: a list, a graph, a view, a traceback, `Out`. In `except`, take a note and leave.
# 3. After `backward()` a loss is 512 bytes. Without it, it is all activations; and some losses have the storage of all
#    their elements.
# 4. `empty_cache` frees no tensor. Between attempts of different size it makes room; after the error it is too late.
# 5. A batch fits when two whole steps fit. Garbage first, then what costs no time, then time, then another result.
#
# **For the checklist:** `no_grad` in validation · `.item()` or a copy on the host for what is kept · recover outside
# `except` · two steps for a batch search · `PYTORCH_ALLOC_CONF=expandable_segments:True` where sizes vary.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/05_out_of_memory.ipynb): a leaking loop, a reader of messages, and a
# batch search that leaves nothing behind. Then lesson 06 has the remedies that cost something: [the map of the course](00_start_here.ipynb).
#
# ## References
#
# - PyTorch documentation: *CUDA semantics*, “Memory management” (`PYTORCH_ALLOC_CONF`, `expandable_segments`);
#   *Frequently Asked Questions*, “My model reports ‘cuda runtime error(2): out of memory’” and “My out of memory
#   exception handler can't allocate memory”; *Autograd mechanics*, “Locally disabling gradient computation”;
#   `torch.cuda.set_per_process_memory_fraction`, `torch.cuda.memory_stats`.
# - PyTorch source, version 2.15: `c10/cuda/CUDACachingAllocator.cpp` (segments, retries, the message),
#   `aten/src/ATen/native/Loss.cpp` (the outputs of `mse_loss` and `smooth_l1_loss` are allocated at full size and resized;
#   `binary_cross_entropy` reduces into its elements).
# - NVIDIA, knowledge base article 5490: driver 536.40 and shared memory under Windows. The recorded message: a vLLM
#   server's log, published on GitHub.
# - Z. DeVito, *A guide to PyTorch's CUDA caching allocator*, 2022. IPython documentation, *Output caching system*,
#   `%xdel`, `%reset`.
# - Russakovsky et al., *ImageNet Large Scale Visual Recognition Challenge*, arXiv 1409.0575, for the number of images.

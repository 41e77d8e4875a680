# %% title [markdown]
# # 05 · Exercises: out of memory
#
# Three functions, about an hour. A check cell under each tests your code: run it as often as you like. It draws new
# inputs, runs your function on a small virtual GPU of its own, and when it fails it says what it expected, what it got,
# and which section of [the lecture](../notebooks/05_out_of_memory.ipynb) to read.
#
# A cell that says *not attempted yet* is one you have not written. Everything after it still runs.

# %% setup
import copy
import re

import torch
from torch import nn
from torch.nn import functional as F

import gpulab

gpu = gpulab.setup()
device = gpu.device

# %% leak-text [markdown]
# ## 1 · Find the leak
#
# **Repair** the loop below so that it returns the same results and its memory does not grow. **Why:** with leaks like
# these, training runs well for an hour before it fails.
#
# 20 minutes · difficulty ●●○
#
# It keeps three things for each batch: the loss, a score on held-out data, and the hardest sample. How many of the
# three leak? Look before you write.

# %% leaky
def train_leaky(model, optimizer, batches, held_out):
    losses, scores, hardest = [], [], []
    for x, y in batches:
        output = model(x)
        loss = F.mse_loss(output, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        hardest.append(x[(output - y).square().sum(1).argmax()].detach())

        model.eval()
        scores.append(F.l1_loss(model(held_out[0]), held_out[1]))
        model.train()
    return losses, scores, hardest


# %% leaky-run
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64)).to(device)
live = []


def make_batches(count):
    """Make each batch when it is asked for, and record what is allocated by then."""
    for _ in range(count):
        live.append(torch.cuda.memory_allocated(device))
        yield torch.randn(512, 256, device=device), torch.randn(512, 64, device=device)


held_out = torch.randn(384, 256, device=device), torch.randn(384, 64, device=device)
train_leaky(network, torch.optim.SGD(network.parameters(), lr=0.1), make_batches(6), held_out)
print(f"a step leaves {(live[5] - live[2]) // 3:,} bytes more ({gpu.numbers})")

# %% train tags=["solution"]
def train(model, optimizer, batches, held_out):
    """Train for one epoch, as train_leaky does, with live memory that does not grow from step to
    step.

    model, optimizer   on the GPU; the model has dropout, is in training mode and stays in it
    batches            yields pairs (x, y) on the GPU, each made when it is asked for; take one at a
                       time
    held_out           a pair (x, y) on the GPU

    Returns three lists with one entry for each batch: losses, floats: the mse loss of the batch;
    scores, floats: the l1 loss on the held-out data after the step, in evaluation mode, with no
    graph built; hardest, tensors on the CPU: the row of x whose squared error, by the outputs from
    before the step, is the largest.
    """
    # TODO: what may each list hold, so that nothing of the step stays on the GPU?
    ### BEGIN SOLUTION
    losses, scores, hardest = [], [], []
    for x, y in batches:
        output = model(x)
        loss = F.mse_loss(output, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())  # a number: mse_loss's tensor has the storage of all differences
        row = (output.detach() - y).square().sum(1).argmax()
        hardest.append(x[row].cpu())  # a copy: a view would keep the batch

        model.eval()
        with torch.no_grad():
            scores.append(F.l1_loss(model(held_out[0]), held_out[1]).item())
        model.train()
    return losses, scores, hardest
    ### END SOLUTION

# %% check-leak tags=["check"]
gpulab.check.memory_leak(train)

# %% leak-hints [markdown]
# <details><summary>Hint 1</summary>
#
# All three leak, each in a different way. Remove two of the three `append` lines, run the leaky loop, and read the
# growth: so you find the bytes of each leak.
#
# </details>
# <details><summary>Hint 2</summary>
#
# 131,072 bytes are 512 × 64 float32 numbers, the outputs of a batch. 524,288 bytes are 512 × 256 numbers, the inputs of
# a batch. What remains is what a forward pass of the held-out data saves for a backward that never comes.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A number from `.item()` holds nothing. `x[i]` is a view, before and after `detach()`; `.cpu()` copies the row to the
# host. `eval()` does not keep autograd from building a graph; which context manager does?
#
# </details>

# %% message-text [markdown]
# ## 2 · Read the message
#
# **Build** a parser of out-of-memory messages: it returns the figures in bytes, and the remedy that they call for.
# **Why:** most answers to “I get this error, what now?” are in the message itself.
#
# 25 minutes · difficulty ●●●
#
# First a question, to be clear about the first number:
#
# **`read_oom(message)`**
#
# - `tried`, `capacity`, `free`, `allocated`, `cached`: the figures that belong to every message; `cached` is what is
#   reserved but unallocated
# - `process`: what “this process” has in use. In a container the message has no such line: yours is the smallest of the
#   “Process 123 has …” that is at least allocated + cached. A figure above the capacity counts as `None`
# - `allowed`: the limit on this process (“… allowed;”)
# - `pools`: what is “allocated in private pools”
# - `others`: what other processes hold, computed from the figures; less than 64 MiB counts as 0, since the figures are
#   rounded. `None` without `process`
# - `tensor`: (smallest, largest): the sizes of a tensor for which PyTorch tries a segment like this one. Give the lower
#   bound itself as the smallest, `2**20` for 20 MiB; only for 2 MiB it is 1, as no tensor has 0 bytes
# - `need`: the least that live tensors would take if the request had succeeded. What is in pools is not live
# - `remedy`: "smaller request", "raise the limit", "expandable segments", "end the other process", "free tensors" or
#   `None`, from the table *Which cause is it?*
#
# Raises ValueError, with the names of what is missing, if one of the first five is not found: other versions and
# allocators word their messages differently.

# %% message-question
gpulab.quiz(5, "twenty")

# %% read_oom tags=["solution"]
def read_oom(message):
    """What an out-of-memory message says, as a dictionary. Sizes are in bytes; None is for what it
    does not say.
    """
    # TODO: find each figure by the words around it; compute the rest from the figures
    ### BEGIN SOLUTION
    units = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

    def figures(words):
        found = re.findall(words.replace("#", r"([\d.]+) (bytes|KiB|MiB|GiB)"), message)
        return [round(float(number) * units[unit]) for number, unit in found]

    patterns = {
        "tried": "Tried to allocate #",
        "capacity": "total capacity of #",
        "free": "of which # is free",
        "allocated": "# is allocated by PyTorch",
        "cached": "# is reserved by PyTorch but",
        "allowed": "# allowed;",
        "pools": "with # allocated in private pools",
    }
    read = {name: next(iter(figures(words)), None) for name, words in patterns.items()}
    tried, capacity, free, allocated, cached, allowed, pools = read.values()
    missing = [
        name for name in ("tried", "capacity", "free", "allocated", "cached") if read[name] is None
    ]
    if missing:
        raise ValueError(f"a message of another form: {', '.join(missing)} not found")

    lines = [
        size for size in figures(r"Process \d+ has # memory in use") if size >= allocated + cached
    ]
    process = min(figures("this process has # memory in use") or lines, default=None)
    process = process if process is not None and process <= capacity else None
    others = None if process is None else capacity - free - process
    others = 0 if others is not None and others < 64 * 2**20 else others

    known = {2 * 2**20: (1, 2**20), 20 * 2**20: (2**20, 20 * 2**20)}
    tensor = known.get(tried, (max(10 * 2**20, tried - 2 * 2**20), tried))
    past_reserve = "exceeds the expandable-segment reserve" in message
    if tried > min(capacity, allowed or capacity):
        remedy = "smaller request"
    elif (allowed is not None and free >= tried) or past_reserve:
        remedy = "raise the limit"
    elif free > tried:
        remedy = None
    elif cached >= tried and "expandable_segments is enabled" not in message:
        remedy = "expandable segments"
    elif others is None and capacity - free - allocated - cached >= tried - free:
        remedy = None
    elif others and others >= tried - free:
        remedy = "end the other process"
    else:
        remedy = "free tensors"
    need = allocated - (pools or 0) + tensor[0]
    more = {"process": process, "others": others, "tensor": tensor, "need": need}
    return read | {"remedy": remedy} | more
    ### END SOLUTION

# %% check-message tags=["check"]
gpulab.check.oom_message(read_oom)

# %% message-hints [markdown]
# <details><summary>Hint 1</summary>
#
# Every figure is a number, a space and one of four units: `([\d.]+) (bytes|KiB|MiB|GiB)`. Only the words before or
# after it differ. Other processes may have lines of their own, before yours or after it: do not confuse them with
# yours. `re.findall` returns all matches.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Capacity = free + this process + others. For `tensor`: for up to 1 MiB PyTorch tries a segment of 2 MiB, from there to
# below 10 MiB one of 20 MiB, from 10 MiB on the size rounded up to a multiple of 2 MiB. So there are two ways to get 20
# MiB.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The table *Which cause is it?* of the lecture is a chain of `if` and `elif`, in its order. Free and cached are never
# added. “Others hold what is missing”: others is more than 0, and at least tried − free. Where `others` is None, they
# hold at most capacity − free − allocated − cached.
#
# </details>

# %% message-try-text [markdown]
# Try it on a GPU that is filled with tensors of 3 MiB. Is the remedy what you expected? Six of them fit into a segment
# of 20 MiB, and 2 MiB of each segment remain unused.

# %% message-try tags=["needs-answer"]
with gpulab.VirtualGPU("T4", compute=False):
    try:
        kept = [torch.empty(3 * 2**20, dtype=torch.uint8, device="cuda") for _ in range(10_000)]
    except torch.OutOfMemoryError as error:
        read = read_oom(str(error))
smallest, largest = read["tensor"]
print(f"the tensor has {smallest / 2**20:.0f} to {largest / 2**20:.0f} MiB (virtual);", end=" ")
print(f"remedy: {read['remedy']}")

# %% search-text [markdown]
# ## 3 · The largest batch, and nothing left behind
#
# **Build** a search for the largest batch with which training fits. **Why:** everybody needs one, and most home-made
# ones find a batch that is too small or too large, or change the model on the way.
#
# 25 minutes · difficulty ●●●
#
# A batch *fits* when two whole training steps with it run: `zero_grad`, forward, `backward`, `step`, and again. Each
# attempt should find the GPU as a fresh program would.
#
# **`largest_batch(model, optimizer, loss_of, most)`**
#
# - `model`: an `nn.Module` on the GPU, in training mode, with BatchNorm and dropout; its gradients are `None`
# - `optimizer`: over its parameters; it may or may not have state already
# - `loss_of`: `loss_of(batch)` draws a batch of that many samples, runs the model, and returns the loss, a 0-dim
#   tensor. It raises `torch.OutOfMemoryError` if there is no room; do not catch any other error
# - `most`: at least 1
#
# An attempt may be slow: bisect the interval, do not step through it. Afterwards everything is as before: parameters,
# buffers, the optimizer's state, no gradients, the random generators of CPU and GPU, and the memory that live tensors
# take.

# %% largest_batch tags=["solution"]
def largest_batch(model, optimizer, loss_of, most):
    """The largest batch size from 1 to `most` with which training fits on the
    GPU; 0 if not even 1 does.
    """
    # TODO: keep a copy on the host of what an attempt changes; bisect; restore everything
    ### BEGIN SOLUTION
    def to_host(value):
        if isinstance(value, torch.Tensor):
            return value.detach().to("cpu", copy=True)
        if isinstance(value, dict):
            return {key: to_host(item) for key, item in value.items()}
        return [to_host(item) for item in value] if isinstance(value, list) else value

    weights, state = to_host(model.state_dict()), to_host(optimizer.state_dict())

    def fits(batch):
        torch.cuda.empty_cache()  # else cached segments of a larger attempt waste room
        try:
            for _ in range(2):
                optimizer.zero_grad()
                loss_of(batch).backward()
                optimizer.step()
            return True
        except torch.OutOfMemoryError:
            return False  # and leave: within this block the failed attempt is alive

    low, high = 0, most + 1
    with torch.random.fork_rng():
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
            optimizer.zero_grad()
            optimizer.load_state_dict(copy.deepcopy(state))  # its step counts are used as they are
            model.load_state_dict(weights)
    torch.cuda.empty_cache()
    return low
    ### END SOLUTION

# %% check-search tags=["check"]
gpulab.check.batch_search(largest_batch)

# %% search-hints [markdown]
# <details><summary>Hint 1</summary>
#
# Begin with `low = 0`, which needs no attempt, and `high = most + 1`, which cannot be the answer. Write a function
# `fits(batch)` that returns True or False, and do nothing in its `except` block but return.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `model.state_dict()` has parameters *and* buffers, `optimizer.state_dict()` the moments. Their tensors are the live
# ones, so you must copy them; and a copy on the GPU takes room from the attempts.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Three calls that are easy to miss: `torch.cuda.empty_cache()` before each attempt, `torch.random.fork_rng()` around
# all of them, `optimizer.zero_grad()` after the last one, whether it failed or not. If you load your copy of the
# optimizer's state more than once, load a copy of the copy: `load_state_dict` uses Adam's step-count tensors as they
# are, and the next step increments them in your copy.
#
# </details>

# %% search-try tags=["needs-answer"]
def make_job(width=64):
    torch.manual_seed(0)
    layers = []
    for _ in range(6):
        layers += [nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU()]
    model = nn.Sequential(*layers).to(device)

    def loss_of(n):
        return model(torch.randn(n, width, device=device)).mean()

    return model, torch.optim.Adam(model.parameters()), loss_of


total = torch.cuda.get_device_properties(device).total_memory
torch.cuda.set_per_process_memory_fraction(128 * 2**20 / total, device)  # a small GPU: 128 MiB
try:
    found = largest_batch(*make_job(), 2**16)
finally:
    torch.cuda.set_per_process_memory_fraction(1.0, device)
print(f"in 128 MiB: batch {found:,} ({gpu.numbers})")

# %% done [markdown]
# ## Done?
#
# The cell below shows what is recorded. Next: [the map of the course](../notebooks/00_start_here.ipynb).

# %% progress tags=["host-dependent"]
gpulab.progress()

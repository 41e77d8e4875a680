# %% title [markdown]
# # 05 · Out of memory
#
# **Promise:** from `OutOfMemoryError` to its cause, and back to a running job.
#
# After this lesson you can **read** the message number by number and name its cause · **find** who keeps a tensor
# alive · **tell** a leak from what only looks like one · **search** for the largest batch, and leave nothing behind.
#
# | time | before this | runs on |
# |---|---|---|
# | 50 minutes, and 70 for the exercises | `04_memory`: allocated, reserved, peak | any machine |

# %% setup
import collections
import gc
import traceback

import torch
import torchvision
from torch import nn
from torch.nn import functional as F

import gpulab

gpu = gpulab.setup()
device, MIB, GIB = gpu.device, 2**20, 2**30

# %% question-text [markdown]
# ## A question worth asking
#
# A batch does not fit, so the program tries half of it, then half of that. `memory.limit(128)` lets PyTorch reserve 128
# MiB of the GPU. In a fresh kernel, a batch of 2,000 fits in that. The search begins at 65,536.

# %% question-code
def live():  # MiB in live tensors on the GPU
    return torch.cuda.memory_allocated(device) / MIB


def attempt(batch):  # forward and backward
    x = torch.randn(batch, 96, device=device)
    model(x).logsumexp(1).mean().backward()
    model.zero_grad()


def retry_inside(batch):
    try:
        attempt(batch)
    except torch.OutOfMemoryError:
        failed.append(batch)
        if batch > 1:
            retry_inside(batch // 2)

# %% question-predict
halving_guess = gpulab.predict("How many batch sizes fail before one fits?")

# %% question-run
layers = [layer for _ in range(12) for layer in (nn.Linear(96, 96), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(96, 10)).to(device)
failed = []
with gpulab.memory.timeline() as recorded, gpulab.memory.limit(128):
    retry_inside(65_536)
print(f"failed: {failed}\nafterwards: {live():.1f} MiB live ({gpu.numbers})")
halving_guess.compare(len(failed), gpu.numbers, because="None fits, down to a batch of 1.")
recorded

# %% question-answer [markdown]
# Nothing fits, although nearly all of the memory is free again afterwards. Look at what is allocated: it goes down
# only at the end. The first attempt has failed, but its tensors stay alive, and every later attempt fails because of them.
#
# Who holds them? You do not: every variable of `attempt` is local. *Who keeps a tensor alive* answers this. First, read
# the error itself.

# %% message-text [markdown]
# ## The message, number by number
#
# The message is an account of the GPU's memory at the moment of failure. This one comes from eight transformer layers
# and a batch that is too large. The GPU is a virtual T4 that keeps only shapes, so the cell runs anywhere.

# %% message-run
def transformer(depth):
    with torch.device("cuda"):
        layers = [nn.TransformerEncoderLayer(1024, 16, 4096, 0.0, batch_first=True)
                  for _ in range(depth)]
    return nn.Sequential(*layers)


with gpulab.VirtualGPU("T4", compute=False):
    try:
        transformer(8)(torch.empty(32, 1024, 1024, device="cuda")).sum().backward()
    except torch.OutOfMemoryError as error:
        message = str(error)
print(message.partition("  See")[0].replace(". ", ".\n"))

# %% message-parts [markdown]
# | number in the message | what it is | what it is often taken for |
# |---|---|---|
# | Tried to allocate | what PyTorch wanted from the driver for **one** tensor | what the job needs in all |
# | total capacity | the GPU | – |
# | is free | what the driver has left, for every process | what PyTorch has left |
# | this process has … in use | CUDA context + all that PyTorch has reserved | live tensors |
# | Process 16497 has … in use | another process; **in a container also yours** | always another one's |
# | … allowed (only with a limit) | the most that PyTorch may reserve | – |
# | allocated by PyTorch | live tensors, rounded up to blocks; private pools | – |
# | with … in private pools | the part of *allocated* that only CUDA graphs may use | tensors of yours |
# | reserved but unallocated | PyTorch's cache: free pieces inside its segments | a leak |
#
# Two sums connect these numbers:
#
# *Capacity = free + this process + other processes.* *This process = context + allocated + cached*, where *cached*
# is what is reserved but unallocated. (*Context* here includes NCCL's buffers.)

# %% account-turn-text [markdown]
# **Your turn** · 4 minutes. Compute what other processes hold, what the context takes, and the cause. It is
# `"fragmentation"` if at least as much is cached as was tried, else `"another process"` if others hold at least what is
# missing, else `"live tensors"`.

# %% account-turn tags=["your-turn"]
def account(capacity, free, process, allocated, cached, tried):
    ### BEGIN SOLUTION
    others = capacity - free - process
    context = process - allocated - cached
    cause = "live tensors"
    if cached >= tried:
        cause = "fragmentation"
    elif others >= tried - free:
        cause = "another process"
    ### INSTEAD OF
    # others = 0
    # context = 0
    # cause = "live tensors"
    ### END SOLUTION
    return others, context, cause


gpulab.turn.account(account)

# %% tried-text [markdown]
# ### “Tried to allocate” is a segment
#
# PyTorch asks the driver for *segments*, and cuts tensors out of them. The message names the segment that it could
# not get.

# %% tried-predict
tried_guess = gpulab.predict("A 3 MiB tensor does not fit. How many MiB were tried?", unit="MiB")

# %% tried-run
kept = []
with gpulab.memory.limit(128):
    try:
        while True:
            kept.append(torch.empty(3 * MIB, dtype=torch.uint8, device=device))
    except torch.OutOfMemoryError as error:
        mib = float(str(error).split("Tried to allocate ")[1].split(" MiB")[0])
del kept
why = "Between 1 and 10 MiB, a new segment has 20 MiB, whatever the tensor has."
tried_guess.compare(mib, gpu.numbers, because=why)

# %% tried-explain [markdown]
# A tensor of up to 1 MiB takes a segment of 2 MiB. From 10 MiB on, the segment has the tensor's own size, rounded up to
# a multiple of 2 MiB. So a small number says next to nothing about the tensor. It does say that **the GPU is full to
# the last segment.** The failing line is not the culprit; it only came next.
#
# If the number is large, look at this one tensor. `(prediction - target)` with shapes (8000, 1) and (8000,) broadcasts
# to (8000, 8000), which is 244 MiB. With a smaller batch, this bug raises no error: the model trains on a wrong loss.

# %% shape-explain [markdown]
# ### Which cause is it?
#
# Read the message in this order, and stop at the first line that holds:
#
# | you see | cause | remedy |
# |---|---|---|
# | tried > capacity (or > allowed) | one request is too large | look at its shape; then the batch |
# | free ≥ tried, and “allowed” is there; or “exceeds the … reserve” | a limit on this process | raise the limit |
# | free > tried, without either | the message does not tell | read its last sentence, and the line that raised it |
# | cached ≥ tried, and expandable segments are not on | fragmentation | expandable segments |
# | no process's share is given, and others may hold what is missing | the message does not tell | `nvidia-smi` |
# | others hold what is missing | another process | `nvidia-smi`; end it, or take another GPU |
# | none of these: allocated ≈ all | live tensors fill the GPU | find garbage; then fewer bytes per step |
#
# Do not add free and cached. Free memory is the driver's; cached memory lies in pieces between live tensors. In a
# container, your process is the one that has at least allocated + cached. [errors.md](../docs/errors.md) has other
# forms of the message.

# %% holders-text [markdown]
# ## Who keeps a tensor alive
#
# When the last reference to a tensor goes, its memory goes back to PyTorch's cache, at once. So where live tensors fill
# the GPU, ask: *who holds a reference?* (A tensor in a reference cycle waits for `gc.collect()`, one marked with
# `record_stream` for that stream.)
#
# ![An exception holds its traceback, the traceback its frames, a frame its variables, a variable its graph.](../docs/pictures/who_holds.svg)
#
# While an `except` block runs, Python holds the exception, and with it the whole chain. Look into the frames:

# %% holders-run
def who_holds(error):
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name in ("attempt", "forward"):
            for name, value in frame.f_locals.items():
                if isinstance(value, torch.Tensor):
                    print(frame.f_code.co_name, name, tuple(value.shape), value.requires_grad)


try:
    with gpulab.memory.limit(128):
        attempt(65_536)
except torch.OutOfMemoryError as error:
    who_holds(error)
    print(f"in the except block: {live():.0f} MiB live ({gpu.numbers})")
print(f"after it: {live():.1f} MiB live ({gpu.numbers})")

# %% holders-explain [markdown]
# Each of these tensors takes 24 MiB. `input` requires a gradient, so it has a graph, and the graph keeps what every
# layer before it saved for backward. All of this is freed when the `except` block ends, and not earlier. So **in
# `except`, only take a note; recover after the block.**

# %% recover-turn-text [markdown]
# **Your turn** · 3 minutes. Repair the search: halve the batch until `attempt` runs, and return that batch, or 0 if
# none runs.

# %% recover-turn tags=["your-turn"]
def recover(attempt, batch):
    ### BEGIN SOLUTION
    while batch:
        try:
            attempt(batch)
            return batch
        except torch.OutOfMemoryError:
            pass  # the block ends before the next attempt begins
        batch //= 2
    return 0
    ### INSTEAD OF
    # try:
    #     attempt(batch)
    #     return batch
    # except torch.OutOfMemoryError:
    #     return recover(attempt, batch // 2) if batch > 1 else 0
    ### END SOLUTION


gpulab.turn.recover(recover)

# %% notebook-text [markdown]
# ### What a notebook keeps
#
# IPython keeps the last uncaught error for its debugger (`sys.last_traceback`). So after this cell, the failed
# attempt stays:

# %% notebook-error tags=["raises-exception"]
with gpulab.memory.limit(128):
    attempt(65_536)

# %% notebook-after
gc.collect()
torch.cuda.empty_cache()
print(f"after gc.collect() and empty_cache(): {live():.0f} MiB live ({gpu.numbers})")

# %% notebook-repair-text [markdown]
# This is why a notebook that once ran out of memory often stays out of memory.
#
# ![The last traceback holds frames, x, input and the graph. Out, _ and _23 hold features, and so does its own name.](../docs/pictures/notebook_holds.svg)
#
# Any new error replaces the old one. Only reference cycles are left then, and `gc.collect()` breaks them:

# %% notebook-repair tags=["raises-exception"]
raise RuntimeError("an error without tensors, to take the place of the last one")

# %% notebook-repaired
gc.collect()
print(f"{live():.1f} MiB live ({gpu.numbers})")

# %% out-text [markdown]
# The output history keeps tensors, too, here of a cell that ended with `features`. `del features` does not touch it;
# `%xdel features` does. Better: end the line with a semicolon, or print what you want to see.

# %% cache-text [markdown]
# ## What `empty_cache` does
#
# It gives the driver back each segment without a live tensor, and the free pages of expandable segments. That is all:
# `del` lowers *allocated*, `empty_cache` lowers *reserved*. Does it help against the error? Below, 12 GiB are cached in
# four pieces, and one tensor asks for all 12 GiB of a virtual T4.

# %% retry-run
with gpulab.VirtualGPU("T4", compute=False):
    pieces = [torch.empty(3 * GIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
    del pieces
    whole = torch.empty(12 * GIB, dtype=torch.uint8, device="cuda")
    retries = torch.cuda.memory_stats()["num_alloc_retries"]
    print(f"12 GiB in one piece fit; the cache was emptied {retries} time before (virtual)")

# %% retry-explain [markdown]
# PyTorch empties its cache **by itself** before it gives up, and counts these retries. So by the time you see the
# error, this has been tried. A call after every step only adds work: the next step must get its memory from the driver
# again.
#
# Call it in two cases: another process, or a library with its own allocator, needs the memory; or one program runs jobs
# of different sizes, one after the other, as in *The largest batch that fits*.

# %% leaks-text [markdown]
# ## Leaks that are, and leaks that are not
#
# “`losses.append(loss)` leaks the whole graph” is in many tutorials. Is it true? One forward pass of this model saves
# 12 layers × 2048 × 96 numbers for backward: 9.4 MB (computed). We also keep one row of a batch of shape (2048, 96), in
# float32.

# %% leaks-predict
loss_guess = gpulab.predict("How many bytes does a loss in a list keep, after backward()?",
                            unit="bytes")
row_guess = gpulab.predict("And how many bytes does batch[0] keep?", unit="bytes")

# %% leaks-run
def loss_keeps(network, x, backward):
    losses, sizes = [], []
    for _ in range(3):
        loss = network(x).exp().mean()
        if backward:
            loss.backward()
        losses.append(loss)
        sizes.append(torch.cuda.memory_allocated())
    return sizes[2] - sizes[1]


x = torch.randn(2048, 96, device=device)
why = "backward() frees what the graph saved. The 4 bytes of the loss stay, in a block of 512."
loss_guess.compare(loss_keeps(model, x, True), gpu.numbers, because=why)

# %% leaks-row
before = torch.cuda.memory_allocated(device)
row = torch.randn_like(x)[0]
why = "A row is a view: it has no memory of its own, and keeps the whole batch alive."
row_guess.compare(torch.cuda.memory_allocated(device) - before, gpu.numbers, because=why)

# %% leaks-compare-text [markdown]
# What if there is no `backward()`, as in validation? And with two transformer layers in place of this model?

# %% leaks-compare
print(f"this model, no backward: {loss_keeps(model, x, False):,} bytes a loss ({gpu.numbers})")
with gpulab.VirtualGPU("T4", compute=False):
    layers, tokens = transformer(2), torch.empty(8, 128, 1024, device="cuda")
    with gpulab.memory.timeline() as recorded:
        for backward in (True, False):
            recorded.mark(f"{backward=}")
            kept = loss_keeps(layers, tokens, backward)
            print(f"transformer layers, {backward=}: {kept:,} bytes a loss (virtual)")
recorded

# %% leaks-surprise [markdown]
# Without `backward()`, on the right, the loss keeps the whole graph. So the tutorials are right about validation, and
# wrong about training. But which loss function you use matters, too:

# %% leaks-storage
scores, zeros = torch.rand(2048, 10, device=device), torch.zeros(2048, 10, device=device)
for loss_fn in (F.mse_loss, F.smooth_l1_loss, F.binary_cross_entropy, F.l1_loss, F.huber_loss):
    nbytes = loss_fn(scores, zeros).detach().untyped_storage().nbytes()
    print(f"{loss_fn.__name__:<20} keeps {nbytes:>6,} bytes ({gpu.numbers})")

# %% leaks-repair [markdown]
# `mse_loss` surprises most people. It allocates its output at full size, 2048 × 10 numbers, and then resizes it to a
# scalar. The storage stays as large as it was, and `detach()` shares the storage.
#
# The repair is to keep only the value. Of a loss, keep `loss.item()`; or, since `.item()` waits for the GPU, keep
# `loss.detach().clone()` and call `.item()` once at the end. Of a row, keep a copy on the host: `row.cpu()`.

# %% census-text [markdown]
# ### Find it: a census
#
# When memory grows and you do not see why, count what is alive. Python's garbage collector knows the tensors that
# have a Python object. Group them by shape: the shape tells you what they are.

# %% census-run
def census():
    tensors = {}  # each piece of memory once
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor) and thing.is_cuda:
            tensors[thing.data_ptr()] = tuple(thing.shape)
    print(collections.Counter(tensors.values()).most_common(2),
          f"of {live():.1f} MiB live ({gpu.numbers})")


census()
losses = [model(x).exp().mean() for _ in range(3)]
census()

# %% census-explain [markdown]
# The list holds three scalars. But what grew has the shape of a hidden layer, so a graph is alive on which backward
# never ran.
#
# On a real GPU the census has a gap. What `exp`, `sigmoid` or softmax saves of its own *output* has no Python object.
# If the shapes do not add up to what is live, record `torch.cuda.memory._record_memory_history()` and look at a
# snapshot, as in lesson 04.
#
# ### No leak: a forgotten `zero_grad`
#
# Many lists of memory leaks name it. But `backward()` adds gradients into the tensor that already exists:

# %% zero-run
for _ in range(3):
    model(x).mean().backward()  # zero_grad() forgotten
    print(f"{torch.cuda.memory_allocated(device):,} bytes live ({gpu.numbers})")
model.zero_grad()

# %% zero-explain [markdown]
# The gradients are then wrong, but memory does not grow. `zero_grad()` frees the gradients, since `set_to_none=True` is
# the default.

# %% eval-text [markdown]
# ## Evaluation keeps nothing, if you say so
#
# In training mode, a forward pass of a ResNet-18 with four images of 64 × 64 keeps 6.8 MiB for backward (virtual).

# %% eval-predict
eval_guess = gpulab.predict("How many MiB does it keep after model.eval()?", unit="MiB")

# %% eval-run
resnet = torchvision.models.resnet18().eval().to(device)
images = torch.randn(4, 3, 64, 64, device=device)
kept = gpulab.memory.activation_bytes(resnet, images).total / MIB
why = "eval() changes dropout and BatchNorm. Autograd builds the graph all the same."
eval_guess.compare(round(kept, 1), gpu.numbers, because=why)
for context in (torch.no_grad, torch.inference_mode):
    with context():
        print(context.__name__, gpulab.memory.activation_bytes(resnet, images), f"({gpu.numbers})")

# %% eval-explain [markdown]
# Both contexts keep nothing. `inference_mode` also saves work on the host, but its tensors cannot be used in training
# unless cloned: “Inference tensors cannot be saved for backward”. Use it where results leave PyTorch; use `no_grad`
# where they may come back.
#
# A `detach()` at the end replaces neither. The graph exists until then, so the peak is that of a training *forward
# pass*.

# %% validate-turn-text [markdown]
# **Your turn** · 3 minutes. This validation leaks in two ways. Repair it: the same losses, nothing kept on the GPU, and
# no graph built.

# %% validate-turn tags=["your-turn"]
def validate(model, batches):
    model.eval()
    losses = []
    for x, y in batches:
        ### BEGIN SOLUTION
        with torch.no_grad():
            losses.append(F.mse_loss(model(x), y).item())
        ### INSTEAD OF
        # losses.append(F.mse_loss(model(x), y))
        ### END SOLUTION
    model.train()
    return losses


gpulab.turn.validate(validate)

# %% search-text [markdown]
# ## The largest batch that fits
#
# A search answers three questions: *What is one attempt? What does it leave behind? Which batch is tried next?* The
# network has 100 million parameters, the optimizer is Adam, the GPU a virtual T4.

# %% search-build
def fits(batch, count=2):
    try:
        with torch.device("cuda"):
            layers = [layer for _ in range(6) for layer in (nn.Linear(4096, 4096), nn.ReLU())]
        network = nn.Sequential(*layers)
        optimizer = torch.optim.Adam(network.parameters())
        for _ in range(count):
            network(torch.empty(batch, 4096, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return True
    except torch.OutOfMemoryError:
        return False

# %% search-bisect
def bisect(fits, high, low=1):  # low fits, high does not
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def fits_alone(batch):  # on a GPU that no attempt has used before
    with gpulab.VirtualGPU("T4", compute=False):
        return fits(batch, count)


for count in (1, 2):
    largest = bisect(fits_alone, 2**18)
    print(f"steps in an attempt: {count}; largest batch: {largest:,} (virtual)")

# %% search-explain [markdown]
# One attempt is **two whole steps**, since Adam makes its two moments at the end of the first. A job that fails in its
# second step often has this reason. Here is a batch of 112,000:
#
# ![Peaks with 112,000 samples: 14,668 MiB in step 1, 15,436 in step 2, of 14,793 on a T4.](../docs/pictures/second_step.svg)
#
# Now the second question. The attempts above each had a GPU of their own. In one process, a failed attempt's tensors
# are freed as well, but its segments stay in the cache. Does that matter?

# %% search-dirty
for high in (2**18, 200_000, 150_000, 120_000):
    with gpulab.VirtualGPU("T4", compute=False):
        found = bisect(fits, high)
    print(f"search from {high:>7,}: {found:>7,} samples, {1 - found / largest:.0%} less (virtual)")

# %% search-dirty-explain [markdown]
# The search finds a smaller batch, and how much smaller depends on where it begins. The first attempt leaves large
# segments. A smaller tensor of the next attempt takes part of one, and what is left is too small for another. PyTorch
# cannot give this segment back, because a tensor lives in it. So call `empty_cache` before each attempt, while nothing
# is alive; in the `except` block, the failed attempt's tensors still are.

# %% search-powers-explain [markdown]
# The third question has a simple answer: bisect. The largest power of two, 65,536, is 36 % below the largest batch.
# Search with the **longest** sequences, and leave 5 to 10 % of the memory free.
#
# A search must also clean up: its steps change weights, optimizer state, BatchNorm's averages and random numbers.
# Exercise 3 asks for all of it. Or plan with shapes only, which changes nothing:
# `gpulab.plan(build, batch, largest=True)`.

# %% fragments-text [markdown]
# ## Fragmentation
#
# The cache helps while sizes repeat. If every batch is a little longer than the last, no cached block is large enough:
# PyTorch takes a new segment each time, and keeps the old ones. Data sorted by length are the classic case.

# %% fragments-run
def sorted_by_length(settings):
    with gpulab.VirtualGPU("T4", compute=False, settings=settings):
        network = transformer(3)
        for length in range(200, 900, 29):
            network(torch.empty(32, length, 1024, device="cuda")).sum().backward()
            network.zero_grad()
        return torch.cuda.max_memory_allocated() / MIB, torch.cuda.max_memory_reserved() / MIB


for settings in ("", "expandable_segments:True"):
    allocated, reserved = sorted_by_length(settings)
    print(f"{settings or 'default'}: {allocated:,.0f} MiB live, {reserved:,.0f} reserved (virtual)")

# %% fragments-explain [markdown]
# The live tensors are the same. By default, more than half of what is reserved here is waste. An *expandable segment*
# grows page by page, so the longer tensor continues where the shorter one was. You switch it on before Python starts:
#
# ```
# PYTORCH_ALLOC_CONF=expandable_segments:True python train.py
# ```
#
# (`PYTORCH_CUDA_ALLOC_CONF`, the older name, is read as well.) In a notebook that has used the GPU, it is too late.
#
# ### See the blocks
#
# The map shows segments and their blocks, after each line of the script.
#
# 1. Go to the last step. How much is reserved, and how much of it is allocated?
# 2. Switch on *expandable_segments*. What changes?
# 3. Choose “a, b, c, d, e, f, g, h=8MiB; free a, c, e, g; x=60MiB” as the script. Does the switch help now?

# %% simulator
gpulab.sim.allocator(script="growing", memory=112)

# %% fragments-verdict [markdown]
# Expandable segments avoid the waste of *growing* sizes, and reuse gaps that hold whole pages of 20 MiB. They do not
# help where every page has a live tensor, because a live tensor is never moved. So allocate long-lived tensors first,
# and copy results that you keep to the host.

# %% remedies-text [markdown]
# ## The remedies, cheapest first
#
# You know the cause; what do you change? The order is that of the price: remove garbage first, and use `no_grad` in
# validation. Then come expandable segments, kernels that write less (lesson 06), 16-bit autocast (07), micro-batches
# with accumulation (08), checkpointing and offloading (06). These leave the result as it is, up to rounding (BatchNorm
# apart). An optimizer with less state or LoRA (06) changes it. A larger GPU, or several GPUs (13), cost money. The
# [checklist](../docs/cheatsheet.md) has the list.

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “`empty_cache()` fixes out-of-memory errors.” | It frees no tensor, and PyTorch does it before it fails. It helps between jobs of different size. | *What `empty_cache` does* |
# | “`empty_cache` or a restart cures fragmentation.” | A restart does. `empty_cache` does so only for segments in which nothing lives. | *Fragmentation* |
# | “`losses.append(loss)` leaks the graph.” | After `backward()`, no. Without it, yes. `mse_loss` keeps its storage at full size, even detached. | *Leaks that are, and leaks that are not* |
# | “Forgetting `zero_grad()` fills the memory.” | Wrong: gradients are added in place. | *No leak: a forgotten `zero_grad`* |
# | “In-place activations save memory.” | For ReLU, no: as much is kept. For LeakyReLU and ELU, yes: one tensor a layer. | [myths](../docs/myths.md) |
# | “Batch sizes must be powers of two.” | Unnecessary, and it may leave nearly half of the room unused. | *The largest batch that fits* |
# | “A better DataLoader fixes out-of-memory errors.” | Workers live in the host's memory. | text |
# | “Preload the data to the GPU.” | Count its bytes first. The digits fit with 0.5 MB; ImageNet at 224 × 224 does not, with 193 GB even as `uint8` (computed). | text |

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **Catching everything.** A search with `except RuntimeError` takes a wrong shape for a lack of memory, and ends at
# batch 0. Catch `torch.OutOfMemoryError`. Two errors of the same origin are not of this class:
# `CUBLAS_STATUS_ALLOC_FAILED`, and the driver's own `CUDA error: out of memory`.
#
# **`del` of a name, while a list has the tensor.** `del` removes a name. Memory goes with the last reference.
#
# **Saving memory in place.** After `gate = x.sigmoid()`, `gate += 1` makes backward fail: it needs the old value. Write
# `gate = gate + 1`.
#
# **A clean GPU that is full.** Your process has hardly begun, and `nvidia-smi` shows memory in use. Look for an old
# notebook kernel: until it is shut down, it keeps its context and its cache.

# %% quiz-text [markdown]
# ## Quick check
#
# Choose with the arrow keys, answer with Tab and Enter.

# %% quiz
gpulab.quiz(5)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. The message is an account: capacity = free + this process + others; this process = context + allocated + cached.
#    “Tried to allocate” names one segment: 20 MiB says only that the GPU is full.
# 2. Memory goes with the last reference: a list, a graph, a view, a traceback, `Out`. In `except`, take a note and
#    leave.
# 3. After `backward()`, a loss keeps 512 bytes; without it, the whole graph. Some losses keep all their elements.
# 4. `empty_cache` frees no tensor. Between attempts of different size it makes room; inside `except` it comes too
#    early.
# 5. A batch fits when two whole steps fit.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/05_out_of_memory.ipynb): a leaking loop, a reader of messages, and a batch search that
# leaves nothing behind. Then lesson 06 makes a step smaller: [the map of the course](00_start_here.ipynb).
#
# ## References
#
# PyTorch documentation, *CUDA semantics*, “Memory management”; *Frequently Asked Questions*, “My out of memory exception
# handler can't allocate memory”. PyTorch 2.15, `CUDACachingAllocator.cpp` (the message), `Loss.cpp` (resized outputs).

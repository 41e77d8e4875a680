# %% title [markdown]
# # 04 · Exercises: memory
#
# A profiler, a prediction, a tracker that does not lie, and a round of golf: about 100 minutes. A check cell under each
# tests your code: run it as often as you like. It draws new inputs every time, and when it fails it says what it
# expected, what it got, and which section of [the lecture](../notebooks/04_memory.ipynb) to read.
#
# A cell that says *not attempted yet* is one you have not written. Everything after it still runs. The checks run on
# virtual GPUs of their own, so they give the same result on every machine.

# %% setup
import copy
import textwrap
from typing import ClassVar

import torch
from torch import nn

import gpulab

gpu = gpulab.setup()

# %% profiler-text [markdown]
# ## 1 · What does this forward pass cost?
#
# **Build** a function that measures one forward pass: how much memory it keeps, and how high memory rises during it.
# **Why:** activations are the one bucket that you cannot get by adding up parameters, and half a dozen things can
# falsify the measurement.
#
# 25 minutes · difficulty ●●○
#
# On a GPU the allocator counts for you. On the CPU nothing does, but autograd can report what it saves: that is an
# estimate, and must be labelled as one.
#
# **`profile_forward(model, inputs, grad=True)`**
#
# - `model`: an `nn.Module`, all of it on the device of `inputs`; each submodule may be in either mode, and stays in it
# - `inputs`: a tensor on any device: the CPU, or a GPU that need not be the current one
# - `grad`: `True`: a pass that backward could follow, even if the caller is under `torch.no_grad()`; `False`: a pass
#   under `torch.no_grad()`
#
# Returns a dict, with floats in MiB (`2**20` bytes):
#
# - `"source"`: `"allocator"` for a pass on a GPU, `"estimate"` for one on the CPU
# - `"kept_mib"`: allocator: the bytes allocated after the pass, its output still alive, less those before it; estimate:
#   the bytes of every storage that autograd saves, and of the output's; each storage once, and without those of
#   parameters, buffers and inputs, which existed before
# - `"peak_mib"`: allocator: the most that was allocated at any moment of the pass, less what was allocated before it;
#   estimate: `None`, since it was not measured
#
# What only the first pass allocates and then keeps, such as a workspace of cuBLAS, does not count. The function prints
# a line with `kept_mib` to two decimals, `"MiB"`, and the source. When the function returns, the GPU is idle, and
# nothing of the pass is left in memory. An exception of the model passes through.

# %% profile_forward tags=["solution"]
def profile_forward(model, inputs, grad=True):
    """Measure one forward pass, model(inputs), print what it keeps in MiB, and return a dict."""
    # TODO: on a GPU: a pass to warm up, before, the pass, after. On the CPU:
    # saved_tensors_hooks around the pass
    ### BEGIN SOLUTION
    device = inputs.device
    if device.type == "cpu":
        source, peak_bytes, storages = "estimate", None, {}
        before = [*model.parameters(), *model.buffers(), inputs]
        known = {t.untyped_storage().data_ptr() for t in before}

        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                storages[storage.data_ptr()] = storage.nbytes()
            # returning the tensor itself makes a reference cycle if a layer saves its own output
            return tensor.detach()

        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        with hooks, torch.set_grad_enabled(grad):
            output = model(inputs)
        pack(output)
        kept_bytes = sum(storages.values())
    else:
        source = "allocator"
        with torch.set_grad_enabled(grad):
            model(inputs)  # its output dies here, before anything is measured
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            output = model(inputs)
        torch.cuda.synchronize(device)
        kept_bytes = torch.cuda.memory_allocated(device) - before
        peak_bytes = torch.cuda.max_memory_allocated(device) - before
    del output
    kept_mib, peak_mib = kept_bytes / 2**20, None if peak_bytes is None else peak_bytes / 2**20
    print(f"forward pass on {device}: {kept_mib:.2f} MiB kept ({source})")
    return {"source": source, "kept_mib": kept_mib, "peak_mib": peak_mib}
    ### END SOLUTION

# %% check-profiler tags=["check"]
gpulab.check.memory_profiler(profile_forward)

# %% profiler-hints [markdown]
# <details><summary>Hint 1</summary>
#
# Two passes on a GPU: one to warm up, one to measure. Ask yourself at each reading of `memory_allocated` which outputs
# are alive at that moment. `output = model(inputs)` twice in a row keeps the first output alive until the second
# exists.
#
# </details>
# <details><summary>Hint 2</summary>
#
# All functions of `torch.cuda` that report memory take a device: `memory_allocated(device)`,
# `max_memory_allocated(device)`, `reset_peak_memory_stats(device)`, `synchronize(device)`. Without one they mean the
# current GPU. For `grad` there is `torch.set_grad_enabled(grad)`, a context manager.
#
# </details>
# <details><summary>Hint 3</summary>
#
# On the CPU: `with torch.autograd.graph.saved_tensors_hooks(pack, unpack):` around the pass calls `pack(tensor)` for
# everything that autograd saves. Put `storage.nbytes()` into a dict under `storage.data_ptr()`, where `storage` is
# `tensor.untyped_storage()`, unless that address belongs to a parameter, a buffer or the inputs. `pack` has to return
# something that `unpack` turns back into the tensor: return `tensor.detach()`, because a layer that saves its own
# output would otherwise keep itself alive for ever.
#
# </details>

# %% profiler-try tags=["needs-answer"]
device = "cuda" if torch.cuda.is_available() else "cpu"
layers = nn.Linear(512, 2048), nn.ReLU(), nn.Dropout(0.1), nn.Linear(2048, 512)
network = nn.Sequential(*layers).to(device)
for batch in (256, 1024):
    x = torch.randn(batch, 512, device=device)
    with_grad, without = profile_forward(network, x), profile_forward(network, x, grad=False)
    factor = with_grad["kept_mib"] / without["kept_mib"]
    print(f"batch {batch}: {factor:.1f} times as much with gradients ({gpu.numbers})")

# %% buckets-text [markdown]
# ## 2 · Fill the buckets before the first step
#
# **Build** a function that predicts the bytes in each bucket of a training step. **Why:** the question “does it fit?”
# should be answered before the job is submitted, not after it has failed.
#
# 15 minutes · difficulty ●●○
#
# Predict first: a model with 1,000,000 parameters in float32 is trained with AdamW under bfloat16 autocast. How many
# bytes do weights, gradients and optimizer state take together? (The answer is in hint 1.)
#
# **`memory_buckets(model, inputs, optimizer='adamw', amp=False)`**
#
# - `model`: an `nn.Module` in training mode; parameters of any dtype, some of them frozen (`requires_grad=False`), some
#   used by two modules (tied). Its gradients, buffers and modes stay as they are
# - `inputs`: a tensor for `model(inputs)`, on the model's device
# - `optimizer`: `"sgd"` (without momentum), `"momentum"` (SGD with momentum) or `"adamw"`
# - `amp`: `True`: the forward pass runs under autocast with bfloat16
#
# Returns a dict of ints, the bytes of the tensors themselves (without an allocator's rounding), each storage once:
#
# - `"weights"`: the parameters
# - `"buffers"`: the buffers, also those that `state_dict()` leaves out
# - `"gradients"`: what backward will leave in .grad
# - `"optimizer_state"`: the tensors that the optimizer will keep, each as large as its parameter (Adam's step counters,
#   4 bytes each, do not count)
# - `"activations"`: what autograd keeps for backward when the forward pass is over, without the storages of parameters,
#   buffers and inputs

# %% memory_buckets tags=["solution"]
def memory_buckets(model, inputs, optimizer="adamw", amp=False):
    """Predict the bytes in each bucket of a training step. Nothing is trained, and the
    model comes back as it was.
    """
    # TODO: compute four buckets from parameters and buffers; for the fifth, run
    # the forward pass on a copy
    ### BEGIN SOLUTION
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = sum(p.nbytes for p in trained)
    copies = {"sgd": 0, "momentum": 1, "adamw": 2}[optimizer]

    twin = copy.deepcopy(model)  # a forward pass in training mode moves running statistics
    known = {t.untyped_storage().data_ptr() for t in [*twin.parameters(), *twin.buffers(), inputs]}
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    autocast = torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=amp)
    with autocast, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = twin(inputs)  # it has a name, so the graph lives and no address is given out twice
    return {
        "weights": sum(p.nbytes for p in model.parameters()),
        "buffers": sum(b.nbytes for b in model.buffers()),
        "gradients": gradients,
        "optimizer_state": copies * gradients,
        "activations": sum(n for address, n in saved.items() if address not in known),
    }
    ### END SOLUTION

# %% check-buckets tags=["check"]
gpulab.check.memory_buckets(memory_buckets)

# %% buckets-hints [markdown]
# <details><summary>Hint 1</summary>
#
# 16,000,000: 4 bytes for the weight, 4 for the gradient, 8 for Adam's two moments. Autocast changes none of them: it
# makes rounded copies of the weights for the forward pass, and those copies count as activations. `model.parameters()`
# yields a tied parameter once.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A frozen parameter is a weight, but has no gradient and no state. A gradient has the dtype of its parameter, and so
# does each moment. `tensor.nbytes` is elements times bytes per element.
#
# </details>
# <details><summary>Hint 3</summary>
#
# For the activations use the hooks of exercise 1, on `copy.deepcopy(model)`: in training mode BatchNorm changes its
# buffers in every forward pass. The copy's parameters have other addresses than the model's, so take the addresses to
# leave out from the copy. Dropout masks and pooling indices pass through the hooks anyway.
#
# </details>

# %% buckets-try [markdown]
# On the GPU you can compare your prediction with the allocator, which rounds every tensor up to a multiple of 512
# bytes:

# %% buckets-compare tags=["needs-answer"]
def held(model, inputs):
    """Bytes allocated on the GPU after a forward pass, besides the model and its inputs."""
    before = torch.cuda.memory_allocated()
    output = model(inputs)
    return torch.cuda.memory_allocated() - before - output.untyped_storage().nbytes()


x = torch.randn(256, 512, device=device)
predicted = memory_buckets(network, x)
print({bucket: f"{nbytes / 2**20:.2f} MiB" for bucket, nbytes in predicted.items()})
if torch.cuda.is_available():
    found = held(network, x) / 2**20
    mib = predicted["activations"] / 2**20
    print(f"activations: predicted {mib:.2f} MiB, {gpu.numbers} {found:.2f} MiB")

# %% tracker-text [markdown]
# ## 3 · Challenge: `GPUMemoryTracker`
#
# **Build** a context manager that tells how much GPU memory a piece of code takes, and is right even when one is nested
# in another. **Why:** PyTorch keeps *one* peak counter per GPU, and every tracker has to reset it. A tracker that only
# resets and reads is wrong as soon as another is nested in it.
#
# 45 minutes · difficulty ●●●
#
# ```python
# with GPUMemoryTracker() as step:
#     with GPUMemoryTracker() as forward:
#         loss = model(x).sum()
#     loss.backward()
# print(step.peak_memory_mb, forward.peak_memory_mb, forward.memory_delta_mb)
# ```
#
# Begin with a single block, and run the check. It runs scenes in random order, each first with one block and then with
# what else belongs to it (nested blocks, exceptions, several GPUs or none), and stops at the first that is wrong.
#
# Predict first: two naive trackers, one inside the other, reset the counter at entry and read it at exit. Memory
# reaches 900 MiB before the inner block, 700 MiB in it, and 600 MiB after it. What does the outer one report? (See hint
# 2.)
#
# **`GPUMemoryTracker(device=None)`**
#
# - `device`: `None`: the GPU that is current at entry, even if another is current later; a number: that GPU; `"all"`:
#   every GPU
#
# After the block, as attributes or properties; MiB are `2**20` bytes, as in PyTorch's own messages:
#
# - `available`: `True` if there was a GPU at entry, else `False`
# - `peak_by_gpu`: `{GPU number: MiB}`: the most that was allocated at any moment of the block, in absolute terms
# - `delta_by_gpu`: `{GPU number: MiB}`: allocated at the end less allocated at entry; below 0 if the block freed memory
# - `peak_memory_mb`: the sum of `peak_by_gpu`
# - `memory_delta_mb`: the sum of `delta_by_gpu`
# - `peak_above_entry_mb`: `peak_memory_mb` less what was allocated at entry
#
# What it promises:
#
# - `with ... as tracker` gives the tracker itself. Its values at the end of the block do not change afterwards.
# - Inside the block a value covers the block up to that moment, or reading it raises RuntimeError; before the first
#   block reading one raises RuntimeError. A number that was not measured is never returned.
# - Trackers nest to any depth, on the same GPU or on others, in one thread or in several: none loses its peak.
# - A tracker can be used again, and starts afresh. Entering one whose block is open raises RuntimeError, and the open
#   block continues unharmed.
# - An exception (OutOfMemoryError too) ends the block like its normal end, and passes through.
# - At entry and at exit the tracker waits for each watched GPU, so that a kernel's error is raised by the block that it
#   belongs to. That ends the block, too; if the wait at entry raises, the block has not begun. The current GPU stays
#   current.
# - Without a GPU nothing is measured and nothing raises: available is `False`, the numbers are 0.0, the dicts empty.

# %% tracker tags=["solution"]
class GPUMemoryTracker:
    """Context manager: the peak and the change of allocated GPU memory over a `with`
    block, exact to the byte.
    """

    def __init__(self, device=None):
        # TODO: keep the device. Read and reset nothing yet
        ### BEGIN SOLUTION
        self.device = device
        self._entry = None  # bytes at entry by GPU; None before the first block
        ### END SOLUTION

    def __enter__(self):
        # TODO: refuse a second entry. Find the GPUs, wait for them. Which trackers must read
        # the counters before you reset them?
        ### BEGIN SOLUTION
        if self in self._open:
            raise RuntimeError(
                "the block of this tracker is open already: a second one needs a tracker of its own"
            )
        gpus = self._find_gpus()
        for gpu in gpus:
            torch.cuda.synchronize(gpu)
        self._tell_all()
        for gpu in gpus:
            torch.cuda.reset_peak_memory_stats(gpu)
        self._entry = {gpu: torch.cuda.memory_allocated(gpu) for gpu in gpus}
        self._now, self._peak = dict(self._entry), dict(self._entry)
        self._open.append(self)
        return self
        ### END SOLUTION

    def __exit__(self, kind, error, trace):
        # TODO: wait, read and close, whatever happens. Then the values: attributes that you
        # set here, or properties
        ### BEGIN SOLUTION
        try:
            for gpu in self._entry:
                torch.cuda.synchronize(gpu)
        finally:  # a kernel's error comes out of synchronize, and must not leave the tracker open
            self._tell_all()
            self._open.remove(self)
        return False

    # the trackers whose blocks are open, of all threads: they share the counters
    _open: ClassVar = []

    @classmethod
    def _tell_all(cls):
        """Every open tracker takes what the counters say now: the last chance before a reset."""
        for tracker in cls._open:
            for gpu in tracker._entry:
                tracker._now[gpu] = torch.cuda.memory_allocated(gpu)
                tracker._peak[gpu] = max(tracker._peak[gpu], torch.cuda.max_memory_allocated(gpu))

    def _find_gpus(self):
        if not torch.cuda.is_available():
            return []
        if self.device == "all":
            return list(range(torch.cuda.device_count()))
        return [torch.cuda.current_device() if self.device is None else self.device]

    def _in_mib(self, nbytes):
        """By GPU, up to now if the block is open."""
        if self._entry is None:
            raise RuntimeError("this tracker has measured nothing yet: use it as `with tracker:`")
        if self in self._open:
            self._tell_all()
        return {gpu: nbytes(gpu) / 2**20 for gpu in self._entry}

    available = property(lambda self: bool(self._in_mib(self._entry.get)))
    peak_by_gpu = property(lambda self: self._in_mib(lambda gpu: self._peak[gpu]))
    delta_by_gpu = property(
        lambda self: self._in_mib(lambda gpu: self._now[gpu] - self._entry[gpu])
    )
    peak_memory_mb = property(lambda self: sum(self.peak_by_gpu.values()))
    memory_delta_mb = property(lambda self: sum(self.delta_by_gpu.values()))
    peak_above_entry_mb = property(
        lambda self: self.peak_memory_mb - sum(self._entry.values()) / 2**20
    )
    ### END SOLUTION

# %% check-tracker tags=["check"]
gpulab.check.memory_tracker(GPUMemoryTracker)

# %% tracker-hints [markdown]
# <details><summary>Hint 1</summary>
#
# One block first. At entry: `reset_peak_memory_stats(gpu)`, and note `memory_allocated(gpu)`. At exit: read
# `max_memory_allocated(gpu)` and `memory_allocated(gpu)`, and keep them. Use dicts by GPU number from the start,
# `{gpu: bytes}`: then the same code serves one GPU, all GPUs and none, where the dict is empty.
#
# </details>
# <details><summary>Hint 2</summary>
#
# It reports 700: entering the inner tracker reset the counter, and the 900 in it was never recorded. If the inner one
# also reset it at its exit, the outer one would report 600. So which tracker has to record what before each reset? Work
# through three nested trackers on paper.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Let the class (not the instance) hold a list of the trackers whose blocks are open. Whenever one enters or leaves, and
# before any reset, go through that list: each tracker takes, for each of its own GPUs, the larger of its peak so far
# and `max_memory_allocated(gpu)`. An exit needs no reset. `__exit__` gets `(kind, error, trace)`, must remove the
# tracker from the list whatever happens (`try`, `finally`), and returns False.
#
# For GPU numbers: `torch.cuda.current_device()` and `range(torch.cuda.device_count())`, if `torch.cuda.is_available()`.
#
# </details>

# %% tracker-try [markdown]
# Your tracker at work: a training step, and inside it the forward pass. Memory does not peak where the forward pass
# ends. (Up to PyTorch 2.14 the first backward pass also takes a workspace of cuBLAS, which stays: 8 MiB, on Hopper 32.)
#
# Two limits hold for any such tracker: the process has a single counter per GPU, so what other threads allocate
# meanwhile counts too; and with `PYTORCH_ALLOC_CONF=backend:cudaMallocAsync` the driver's own allocator keeps the
# counts, without rounding to 512 bytes.

# %% tracker-step tags=["needs-answer"]
x = torch.randn(1024, 512, device=device)
optimizer = torch.optim.AdamW(network.parameters())
for name in ("first step", "second step"):
    with GPUMemoryTracker() as step:
        with GPUMemoryTracker() as forward:
            loss = network(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    del loss
    for part, told in (("forward", forward), ("step", step)):
        print(f"{name}: {part} {told.memory_delta_mb:+.1f} MiB,", end=" ")
        print(f"peak {told.peak_memory_mb:.1f} MiB ({gpu.numbers})")

# %% golf-text [markdown]
# ## 4 · Stretch: golf, out of memory with next to nothing alive
#
# **Fragment** a GPU so that a request for 2 GiB fails, though nearly all of its memory is free. **Why:** once you have
# caused fragmentation, you recognise it in an error message and remember the allocator's rules.
#
# 15 minutes · difficulty ●●● · the score is the memory still alive: less is better
#
# First a question, on the two numbers of this game:

# %% allocated-question
gpulab.quiz(4, "allocated-reserved")

# %% fragment tags=["solution"]
def fragment():
    """Leave an empty GPU so that torch.empty(2 * 2**30, dtype=torch.uint8,
    device="cuda") runs out of memory.

    It runs on a virtual T4 that keeps shapes only, so a tensor of 2 GiB costs your machine nothing.
    torch.cuda.mem_get_info() returns the free bytes and the total. Allowed: making and deleting
    tensors on "cuda", in any order and stream. Not allowed: limits and settings.

    Returns the list of the tensors that are to stay alive; everything else must be gone. Par is 16
    MiB of torch.cuda.memory_allocated(). A good round needs about 8 MiB, a very good one about 4,
    and the authors' record is 1.0005.
    """
    # TODO: fill the GPU with large segments, and leave one small live block in each
    ### BEGIN SOLUTION
    large = 2 * 2**30
    small = 2**20 + 512  # a request of more than 1 MiB does not go to the small pool
    alive, fillers = [], []

    def take(nbytes):
        return torch.empty(nbytes, dtype=torch.uint8, device="cuda")

    while torch.cuda.mem_get_info()[0] >= large:
        take(large)  # a new segment of 2 GiB, free again at once
        # the only free block that is large enough: the tensor goes to the front of the segment
        alive.append(take(small))
        # the rest is taken, so that the next one cannot go there
        fillers.append(take(large - small))
    del fillers
    return alive
    ### END SOLUTION

# %% check-golf tags=["check"]
gpulab.check.oom_golf(fragment)

# %% golf-hints [markdown]
# <details><summary>Hint 1</summary>
#
# PyTorch returns a segment to the driver only if nothing in it is alive, and does so before it gives up. A live block
# of any size keeps its whole segment. Which requests can such a segment serve? Only those that fit one of its free
# blocks.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Requests up to 1 MiB go to segments of 2 MiB, those below 10 MiB to segments of 20 MiB if no free block is large
# enough, larger ones to segments of their own size. So you get a large segment by making a large tensor. Delete it, and
# its segment is one free block, from which the next request above 1 MiB is cut.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The allocator takes the *smallest* free block that is large enough: if the rest of the first segment is free, the
# second small tensor goes there too. Fill each rest with a filler tensor until the end, then delete all fillers. Stop
# when `torch.cuda.mem_get_info()[0]` is below 2 GiB.
#
# Below 7 MiB: a small block in the *middle* of a segment cuts it into two. For the record: what is a free block of
# another stream worth?
#
# </details>

# %% golf-score [markdown]
# Your score, and the error message that your fragmentation causes. What it says about reserved but unallocated memory
# is how fragmentation looks from outside:

# %% golf-try tags=["needs-answer"]
with gpulab.VirtualGPU("T4", compute=False):
    alive = fragment()
    live, reserved = torch.cuda.memory_allocated() / 2**20, torch.cuda.memory_reserved() / 2**20
    print(f"alive {live:.4f} MiB, reserved {reserved:,.0f} MiB (virtual)")
    try:
        torch.empty(2 * 2**30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        print(textwrap.fill(str(error), 110, break_on_hyphens=False))

# %% done [markdown]
# ## Done?
#
# The cell below shows what is recorded. Next: [the map of the course](../notebooks/00_start_here.ipynb).

# %% progress tags=["host-dependent"]
gpulab.progress()

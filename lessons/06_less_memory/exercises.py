# %% title [markdown]
# # 06 · Exercises: less memory
#
# Two functions, about 40 minutes. A check cell under each tests your code: run it as often as you like. It draws new
# inputs every time, and when it fails it says what it expected, what it got, and which section of
# [the lecture](../notebooks/06_less_memory.ipynb) to read. The checks run on a virtual GPU of their own, so they can
# count bytes on any machine.
#
# A cell that says *not attempted yet* is one you have not written. Everything after it still runs.

# %% setup
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gpulab

gpu = gpulab.setup()

# %% budget-text [markdown]
# ## 1 · Checkpoint within a budget
#
# **Build** a forward and backward pass through a stack of blocks that keeps its activations within a budget, and
# returns its peak. **Why:** checkpointing costs time for every block that is recomputed, so recompute only those that
# you must.
#
# 20 minutes · difficulty ●●●
#
# **Predict first:** eight blocks, and room for the inner activations of four. Which four should keep theirs, the first
# or the last?
#
# **`step_within(blocks, x, loss_fn, inside, budget)`**
#
# - `blocks`: an `nn.ModuleList` of equal blocks with dropout, in training mode, on the current GPU
# - `x`: the input, on the same GPU, which needs no gradient; every block takes and returns a tensor of its size
# - `loss_fn`: `loss_fn(output)` is the loss, a 0-dim tensor
# - `inside`: bytes that a block keeps for backward besides its input (its *inside*)
# - `budget`: bytes that may be kept at a time: an input of `x.nbytes` for each block, and `inside` for as many blocks
#   as fit; at least one does. It covers kept activations only, not temporary tensors while a block runs
#
# Adds to `.grad` what a plain forward and backward pass would add, up to rounding, with the same dropout masks.
# Recomputes no more blocks than it must; nothing leaves the GPU. Sets no seed.
#
# Returns the peak: the most bytes allocated on the GPU during the call, less those allocated before it; an int.

# %% step_within tags=["solution"]
def step_within(blocks, x, loss_fn, inside, budget):
    """Forward and backward through `blocks`, one after the other, with the
    activations within `budget`.
    """
    # TODO: how many blocks may keep their inside, and which? Checkpoint the others, one by one, and
    # measure the peak
    ### BEGIN SOLUTION
    # The last ones: backward begins with them, and has freed their insides when it comes to the
    # recomputed blocks.
    room = (budget - len(blocks) * x.nbytes) // inside
    again = max(len(blocks) - room, 0)
    before = torch.cuda.memory_allocated(x.device)
    torch.cuda.reset_peak_memory_stats(x.device)
    for i, block in enumerate(blocks):
        x = checkpoint(block, x, use_reentrant=False) if i < again else block(x)
    loss_fn(x).backward()
    return torch.cuda.max_memory_allocated(x.device) - before
    ### END SOLUTION

# %% check-budget tags=["check"]
gpulab.check.checkpoint_budget(step_within)

# %% budget-hints [markdown]
# <details><summary>Hint 1</summary>
#
# At the peak, `len(blocks) * x.nbytes` of inputs and the insides of some blocks are kept. How many insides fit into the
# budget?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Backward begins with the last block. What it recomputes comes on top of the insides that are still kept: those of the
# blocks *before* it, if they kept theirs.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `checkpoint(block, x, use_reentrant=False)` for a block that is recomputed, `block(x)` for one that is not. For the
# peak: read `torch.cuda.memory_allocated()` first, then `torch.cuda.reset_peak_memory_stats()`, and after backward
# `torch.cuda.max_memory_allocated()`.
#
# </details>

# %% offload-text [markdown]
# ## 2 · Offload activations, and nothing else
#
# **Build** a context manager that moves large activations to the host, and leaves weights and small tensors where they
# are. **Why:** `save_on_cpu` sends everything that autograd keeps, even the weights, over a slow bus.
#
# 20 minutes · difficulty ●●●
#
# **`offload(model, min_bytes)`**
#
# - `model`: an `nn.Module` on some device
# - `min_bytes`: tensors of fewer bytes stay where they are
#
# Within it, each tensor that autograd keeps for backward goes to the host, if it has at least `min_bytes` and is not (a
# view of) a parameter of the model. Backward, which runs after the context has ended, gets it back on the device it
# came from, with the same values and dtype. Use it like this:
#
# ```python
# with offload(model, 2**20):
#     loss = model(x).sum()
# loss.backward()
# ```
#
# It ends with its block, even if that raises: the exception reaches the caller.
#
# A forward pass without a backward leaves nothing on the GPU.

# %% offload tags=["solution"]
def offload(model, min_bytes):
    """A context manager for the forward pass of `model`: large activations wait for backward on the
    host.
    """
    # TODO: a pack hook that decides and copies, an unpack hook that copies back, and
    # saved_tensors_hooks with both
    ### BEGIN SOLUTION
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor):
        if tensor.nbytes < min_bytes or tensor.untyped_storage().data_ptr() in weights:
            return None, tensor.detach()
        return tensor.device, tensor.to("cpu")

    def unpack(packed):
        device, tensor = packed
        return tensor if device is None else tensor.to(device)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
    ### END SOLUTION

# %% check-offload tags=["check"]
gpulab.check.offload_activations(offload)

# %% offload-hints [markdown]
# <details><summary>Hint 1</summary>
#
# `torch.autograd.graph.saved_tensors_hooks(pack, unpack)` is a context manager already: return it. `pack` gets each
# tensor that autograd would keep, and what it returns is kept instead; `unpack` gets that in backward.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A matrix product keeps its weight as a transposed *view*: another tensor on the same storage. Compare
# `tensor.untyped_storage().data_ptr()`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `unpack` must know where a tensor belongs: return a pair from `pack`, the device and the copy. What the pair refers to
# stays alive, so the tensor on the GPU must not be in it. And return `tensor.detach()` for what stays on the GPU: a
# layer that keeps its own output would otherwise keep itself alive for ever (lesson 04).
#
# </details>

# %% offload-try-text [markdown]
# What it saves, on the MLP of one of the lecture's blocks with 512 tokens:

# %% offload-try tags=["needs-answer"]
mlp = nn.Sequential(nn.Linear(768, 3072), nn.GELU(), nn.Linear(3072, 768)).to(gpu.device)
x = torch.randn(512, 768, device=gpu.device)
mlp(x)  # up to PyTorch 2.14 the workspace of a first product stays, and is not what is counted here
before = torch.cuda.memory_allocated()
with offload(mlp, 2**20):
    loss = mlp(x).sum()
kept = (torch.cuda.memory_allocated() - before) / 2**20
print(f"kept on the GPU with it:    {kept:5.1f} MiB ({gpu.numbers})")
loss = mlp(x).sum()
kept = (torch.cuda.memory_allocated() - before) / 2**20
print(f"kept on the GPU without it: {kept:5.1f} MiB ({gpu.numbers})")

# %% done [markdown]
# ## Done?
#
# The cell below shows what is recorded. Next: [the map of the course](../notebooks/00_start_here.ipynb).

# %% progress tags=["host-dependent"]
gpulab.progress()

# %% title [markdown]
# # 02 · Exercises: devices
#
# Four functions, about an hour. A check cell under each tests your code: run it as often as you like. It draws new
# inputs every time, and when it fails it says what it expected, what it got, and which section of
# [the lecture](../notebooks/02_devices.ipynb) to read.
#
# The checks run your functions on two virtual GPUs of their own, so they test the same on every machine, and nothing
# that goes wrong in them touches a real GPU. A cell that says *not attempted yet* is one you have not written.
# Everything after it still runs.

# %% setup
import torch
from torch import nn
from torch.nn import functional as F

import gpulab

gpu = gpulab.setup()

# %% step-text [markdown]
# ## 1 · One step, on any machine
#
# **Build** a training step that runs on a laptop, on a GPU of any maker, or on the device that the caller names.
# **Why:** most code begins like the script below, and it uses no GPU, even if there is one.
#
# 15 minutes · difficulty ●●○
#
# ```python
# model = nn.Linear(100, 10)
# output = model(torch.randn(32, 100))
# ```
#
# Your function gets such a model and a batch, both on the CPU. The model may have buffers. The class weights come as a
# list of numbers, so you make a tensor of them. On some devices (not on CUDA) moving a model replaces its parameters by
# new ones.
#
# **`train_step(model, inputs, targets, class_weights, device=None)`**
#
# - `model`: an `nn.Module` on the CPU: `model(inputs)` gives logits of shape (32, 10); it is moved, and stays there
# - `inputs`: float32 of shape (32, 100), on the CPU; not to be changed
# - `targets`: int64 of shape (32,), on the CPU; not to be changed
# - `class_weights`: ten floats in a list: the weights of the classes in the loss
# - `device`: a `torch.device`, or a string such as `"cuda:1"` or `"cpu"`. `None`: the accelerator of this machine,
#   NVIDIA's, AMD's, Intel's or Apple's, if there is one that can be used (of several the current one); the CPU
#   otherwise
#
# Take one step of `torch.optim.SGD` with `lr=0.1`, on the cross-entropy weighted by class. The current GPU stays
# current, and no other GPU's memory is touched.
#
# Returns (logits, optimizer): the logits before the step, on the device, and the optimizer, which holds the model's
# parameters.

# %% train_step tags=["solution"]
def train_step(model, inputs, targets, class_weights, device=None):
    """Take a classifier and a batch to a device, and train for one step there."""
    # TODO: choose the device; model, then optimizer; batch and class
    # weights to the device; one step
    ### BEGIN SOLUTION
    if device is None:
        device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logits = model(inputs.to(device))
    weight = torch.tensor(class_weights, device=device)
    F.cross_entropy(logits, targets.to(device), weight=weight).backward()
    optimizer.step()
    return logits.detach(), optimizer
    ### END SOLUTION

# %% check-step tags=["check"]
gpulab.check.device_agnostic(train_step)

# %% step-hints [markdown]
# <details><summary>Hint 1</summary>
#
# `torch.accelerator` names the GPU of the machine, but by default the kind that PyTorch was built for, present or not.
# Which argument makes it check? What does it return then if there is none?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Four things have to be on the device: the model, the inputs, the targets, the class weights. Two need a `.to` whose
# result you keep; the model moves in place; the class weights can be made there.
#
# </details>
# <details><summary>Hint 3</summary>
#
# In this order: `model.to(device)`, the optimizer, the logits of `inputs.to(device)`, the loss with
# `weight=torch.tensor(…, device=…)`, `backward()`, `step()`. No line uses `torch.cuda`.
#
# </details>

# %% try-step-text [markdown]
# The same call of your function on each device of this machine:

# %% try-step tags=["needs-answer"]
for place in (None, "cpu", "cuda:0"):
    torch.manual_seed(0)
    model, batch = nn.Linear(100, 10), (torch.randn(32, 100), torch.randint(0, 10, (32,)))
    logits, _ = train_step(model, *batch, [1.0] * 10, place)
    where = f"on {logits.device}, weights on {model.weight.device}"
    print(f"device={place!s:<7} logits {tuple(logits.shape)} {where}")

# %% verify-text [markdown]
# ## 2 · Is the whole model there?
#
# **Build** a function that says which of a model's tensors are not where they should be. **Why:** the check that most
# web pages give rejects models that are in the right place, and accepts models that are not.
#
# 15 minutes · difficulty ●●○
#
# First a question, to be clear about the problem:

# %% verify-question
gpulab.quiz(2, "equal-devices")

# %% verify_model_device tags=["solution"]
def verify_model_device(model, device):
    """Raise ValueError unless every parameter and every buffer of `model` is on `device`.

    model   an nn.Module, which is not changed. One without any tensors is always accepted
    device  a torch.device or a string. Without a number, as "cuda", it means the current GPU

    The message names every tensor that is elsewhere and no other, by its full name such as
    "block.1.running_mean", and the device that each is on. Works on a machine without a GPU too, if
    model and device are on the CPU.
    """
    # TODO: give the device its number; collect names and devices of tensors elsewhere; raise once
    ### BEGIN SOLUTION
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    tensors = [*model.named_parameters(), *model.named_buffers()]
    elsewhere = [
        f"{name} on {tensor.device}" for name, tensor in tensors if tensor.device != device
    ]
    if elsewhere:
        raise ValueError(f"not on {device}: {', '.join(elsewhere)}")
    ### END SOLUTION

# %% check-verify tags=["check"]
gpulab.check.model_device(verify_model_device)

# %% verify-hints [markdown]
# <details><summary>Hint 1</summary>
#
# `torch.device(device)` takes a string as well as a device. What is the `.index` of `torch.device("cuda")`, and of a
# tensor's device?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.cuda.current_device()` is the number that a bare `cuda` means. It raises if there is no GPU, so call it only in
# the one case that needs it.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `named_parameters()` and `named_buffers()` give full names at every depth. Collect what is elsewhere in a list, and
# raise after the loop unless the list is empty.
#
# </details>

# %% batch-text [markdown]
# ## 3 · A batch of anything
#
# **Build** the function that every training framework has: it moves a batch, however nested, to a device. **Why:** real
# batches are dicts of lists of tensors, with strings and numbers among them, and a dict has no `.to`.
#
# 15 minutes · difficulty ●●○
#
# **`move_batch(batch, device)`**
#
# - `batch`: a tensor, or dicts, lists, tuples and namedtuples of tensors, nested to any depth, with anything else among
#   them: `None`, numbers, strings, bytes, NumPy arrays, objects without a .to. No other containers occur: no sets, and
#   no subclasses of dict or list. It is the caller's, and is not changed
# - `device`: a `torch.device` or a string
#
# Containers come back as new ones of the same type, with the same keys and the same order. What is neither a tensor nor
# one of these containers comes back as it is, the same object. So does a tensor that is already on the device.
#
# A tensor keeps its dtype and its place in the graph: gradients reach the caller's tensor. All values have arrived when
# the function returns, whichever GPU they come from.

# %% move_batch tags=["solution"]
def move_batch(batch, device):
    """The same batch with every tensor in it on `device`."""
    # TODO: move a tensor; rebuild a container from its moved items; return the rest as it is
    ### BEGIN SOLUTION
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: move_batch(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move_batch(item, device) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(move_batch(item, device) for item in batch)
    return batch
    ### END SOLUTION

# %% check-batch tags=["check"]
gpulab.check.move_batch(move_batch)

# %% batch-hints [markdown]
# <details><summary>Hint 1</summary>
#
# Containers hold containers: let the function call itself for every item. What ends the recursion?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Test for `torch.Tensor`, `dict`, `list` and `tuple` by name, with `isinstance`. A string can be iterated over too, but
# is not a container here.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A namedtuple is a tuple with `_fields`. `tuple(items)` takes one iterable; a namedtuple's type takes its items one by
# one, so unpack them with a star.
#
# </details>

# %% late-text [markdown]
# ## 4 · Stretch: the error three lines late
#
# **Build** a search for the step that fails on the GPU. **Why:** the traceback of a failed kernel names the line at
# which the error was noticed, and `CUDA_LAUNCH_BLOCKING=1` has no effect in a process that has already initialised
# CUDA.
#
# 15 minutes · difficulty ●●●
#
# The steps are functions: each takes a tensor on the GPU and returns one. The tables that they use are on the GPU as
# well. A step may fail in its kernel, and then its call returns as if nothing were wrong; or its call may raise, like
# any Python code. After a failed kernel nothing works on that GPU in this process, so you have one attempt.

# %% first_fault tags=["solution"]
def first_fault(steps, batch):
    """The number of the step that fails, counted from 0; None if none does.

    steps  a list of functions: each takes a tensor on the GPU and returns one, for the next step;
           it may be empty
    batch  a tensor on the GPU, for steps[0]

    Runs the steps in order, each once and when the one before it has finished, and none after the
    one that fails. A step fails if its call raises (always a RuntimeError) or if one of its kernels
    does. Raises nothing.
    """
    # TODO: run a step, then make sure that it has finished before the next one starts
    ### BEGIN SOLUTION
    for number, step in enumerate(steps):
        try:
            batch = step(batch)
            torch.accelerator.synchronize()
        except RuntimeError:  # torch.AcceleratorError is one
            return number
    return None
    ### END SOLUTION

# %% check-late tags=["check"]
gpulab.check.late_error(first_fault)

# %% late-hints [markdown]
# <details><summary>Hint 1</summary>
#
# When a step's call returns, its kernels may still be running. What makes the host wait until they have finished?
#
# </details>
# <details><summary>Hint 2</summary>
#
# The wait is what raises. So it belongs to the step before it, inside the same `try`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.AcceleratorError` is a `RuntimeError`. Think of the last step: if nothing comes after it, who would notice?
#
# </details>

# %% late-question [markdown]
# In a training job you would not synchronize after every step. What would you do first?

# %% late-quiz
gpulab.quiz(2, "late-error")

# %% done [markdown]
# ## Done?
#
# The cell below shows what is recorded. Next: [the map of the course](../notebooks/00_start_here.ipynb).

# %% progress tags=["host-dependent"]
gpulab.progress()

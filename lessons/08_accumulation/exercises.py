# %% title [markdown]
# # 08 · Exercises: gradient accumulation
#
# Four functions, about an hour. A check cell under each tests your code: run it as often as you like. It draws new
# inputs every time, and when it fails it says what it expected, what it got, and which section of
# [the lecture](../notebooks/08_accumulation.ipynb) to read.
#
# A cell that says *not attempted yet* is one you have not written. Everything after it still runs.

# %% setup
import copy

import torch
from torch import nn
from torch.nn import functional as F

import gpulab

gpu = gpulab.setup()

# %% window-text [markdown]
# ## 1 · An epoch whose last window is short
#
# **Build** one epoch of training with accumulation that treats every window like a full batch, even the last one.
# **Why:** the loop in most tutorials drops the last window or gives it too small a gradient.
#
# 15 minutes · difficulty ●●○
#
# A *window* is `steps` micro-batches; the last window of the epoch holds what is left. The very last micro-batch may
# also hold fewer samples than the others.
#
# **`train_epoch(model, optimizer, loss_fn, micro_batches, steps)`**
#
# - `model`: an `nn.Module` in training mode; it stays on its device, in its dtype
# - `optimizer`: a torch optimizer over its parameters, in one or more groups
# - `loss_fn`: `loss_fn(outputs, targets)` returns the mean over its samples, a 0-dim tensor
# - `micro_batches`: a list of (inputs, targets) on the model's device; the first dimension is the samples; do not
#   change them
# - `steps`: micro-batches per window, at least 1
#
# Each step uses the gradient of the mean loss over all samples of its window. Gradients that the caller left in `.grad`
# do not count. Only one micro-batch's activations are alive at a time.
#
# Returns the mean loss over all samples of the epoch, a float.

# %% train_epoch tags=["solution"]
def train_epoch(model, optimizer, loss_fn, micro_batches, steps):
    """Train one epoch, one optimizer step for each window of `steps` micro-batches."""
    # TODO: cut the micro-batches into windows, weight each loss by its share of the
    # window, step once per window
    ### BEGIN SOLUTION
    # Also right: weight each mean by len(x), and divide all gradients by the window's
    # samples right before step(). It needs no look-ahead, and costs a pass over the gradients; in
    # fp16 the gradients of the logits, larger by the window's samples, are closer to overflow.
    total, samples = 0.0, 0
    for start in range(0, len(micro_batches), steps):
        window = micro_batches[start : start + steps]
        in_window = sum(len(x) for x, _ in window)
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y)
            (loss * len(x) / in_window).backward()
            total += loss.detach() * len(x)  # not item(): on a GPU it would wait each time
            samples += len(x)
        optimizer.step()
    return (total / samples).item()
    ### END SOLUTION

# %% check-window tags=["check"]
gpulab.check.accumulation_window(train_epoch)

# %% window-hints [markdown]
# <details><summary>Hint 1</summary>
#
# What must you know about a window before the first `backward()` in it? Slice the list: at the end
# `micro_batches[start : start + steps]` is shorter automatically.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `loss_fn` returns the mean over `len(x)` samples. Its weight in the window's mean is `len(x)` divided by the samples
# of the window.
#
# </details>
# <details><summary>Hint 3</summary>
#
# One `zero_grad()` when a window begins, one `step()` when it ends. For the returned loss, add up
# `loss.detach() * len(x)`, divide once by all samples, and take `.item()` at the end.
#
# </details>

# %% tokens-text [markdown]
# ## 2 · Every token counts once
#
# **Build** a function that computes the gradient of a window of texts in which every labelled token has the same
# weight. **Why:** sequences differ in length, and a mean of means favours the short ones.
#
# 15 minutes · difficulty ●●○

# %% accumulate_tokens tags=["solution"]
def accumulate_tokens(model, micro_batches):
    """Add to the gradients of `model` the gradient of the mean loss over all
    labelled tokens of a window.

    model          model(ids) gives logits of shape (B, T, classes); it stays
                   on its device, in its dtype
    micro_batches  a list of (ids, labels), each int64 of shape (B, T), on the model's device; B and
                   T differ between micro-batches. labels[b, t] is the target class at that
                   position, or -100: padding, not to be counted

    The caller has cleared the gradients and will step. Only one micro-batch's activations are alive
    at a time, and no micro-batch goes through the model twice. A micro-batch, or the whole window,
    may hold no labelled token: then it adds nothing. Returns the number of labelled tokens, an int.
    """
    # TODO: count the labelled tokens of the window, then add up the losses of the
    # micro-batches, divided by that
    ### BEGIN SOLUTION
    tokens = sum(int((labels != -100).sum()) for _, labels in micro_batches)
    for ids, labels in micro_batches:
        logits = model(ids).flatten(0, 1)
        loss = F.cross_entropy(logits, labels.flatten(), ignore_index=-100, reduction="sum")
        (loss / max(tokens, 1)).backward()
    return tokens
    ### END SOLUTION

# %% check-tokens tags=["check"]
gpulab.check.token_weighting(accumulate_tokens)

# %% tokens-hints [markdown]
# <details><summary>Hint 1</summary>
#
# `F.cross_entropy` takes logits of shape (tokens, classes) and labels of shape (tokens,): flatten the first two
# dimensions. It ignores labels of −100 by default.
#
# </details>
# <details><summary>Hint 2</summary>
#
# With the default `reduction="mean"` each micro-batch divides by its own number of tokens. Which reduction leaves the
# division to you?
#
# </details>
# <details><summary>Hint 3</summary>
#
# `(labels != -100).sum()` counts the labelled tokens; `labels.numel()` counts the padding too. What would you divide
# by if there were none?
#
# </details>

# %% amp-text [markdown]
# ## 3 · Mixed precision, clipping and a schedule
#
# **Build** the epoch as real training runs it: under autocast, with a gradient scaler, clipping and a learning-rate
# schedule. **Why:** this adds a few calls, and each has one right place.
#
# 15 minutes · difficulty ●●●
#
# Here all micro-batches have the same size; the last window may be short.
#
# **`train_epoch_amp(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm)`**
#
# - `model`, `optimizer`, `loss_fn`, `micro_batches`, `steps`: as in exercise 1, on the CPU; micro-batches of equal size
# - `scaler`: a `torch.amp.GradScaler`, enabled (as it would be for fp16)
# - `scheduler`: a learning-rate schedule that counts updates of the weights; a step that the scaler skips does not
#   count
# - `max_norm`: the largest norm that the gradient of a window may have when the optimizer steps
#
# The forward pass and the loss run under autocast on the CPU in bfloat16. As in exercise 1: one optimizer step for each
# window, with the gradient of the mean loss over its samples; gradients that the caller left in .grad do not count;
# only one micro-batch's activations are alive at a time. Returns nothing.

# %% train_epoch_amp tags=["solution"]
def train_epoch_amp(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    """Train one epoch in mixed precision with accumulation and clipping."""
    # TODO: per micro-batch, a forward pass and a scaled backward; once per window, all the rest
    ### BEGIN SOLUTION
    for start in range(0, len(micro_batches), steps):
        window = micro_batches[start : start + steps]
        optimizer.zero_grad()
        for x, y in window:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_fn(model(x), y) / len(window)
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= before:  # it falls when the step was skipped
            scheduler.step()
    ### END SOLUTION

# %% check-amp tags=["check"]
gpulab.check.accumulation_amp(train_epoch_amp)

# %% amp-hints [markdown]
# <details><summary>Hint 1</summary>
#
# Start from exercise 1. `torch.autocast("cpu", dtype=torch.bfloat16)` goes around the model and the loss, not around
# `backward()`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `max_norm` applies to the true gradient. After `scaler.scale(loss).backward()`, what is in `.grad`?
#
# </details>
# <details><summary>Hint 3</summary>
#
# After the inner loop, in this order: `scaler.unscale_(optimizer)`, `nn.utils.clip_grad_norm_(...)`,
# `scaler.step(optimizer)`, `scaler.update()`; then `scheduler.step()`, unless the step was skipped.
# `scaler.get_scale()` shows that: what does `update` do to the scale after an overflow?
#
# </details>

# %% norm-text [markdown]
# ## 4 · Stretch: a network without BatchNorm
#
# **Build** a function that replaces every BatchNorm of a network with a GroupNorm. **Why:** BatchNorm normalises over
# the micro-batch, and no weighting of losses corrects that.
#
# 20 minutes · difficulty ●●●
#
# First a question, to be clear about the problem:

# %% batch-norm-question
gpulab.quiz(8, "batch-norm")

# %% without_batch_norm tags=["solution"]
def without_batch_norm(model, groups):
    """A copy of `model` in which a GroupNorm of `groups` groups takes the place of every BatchNorm.

    model   an nn.Module that contains nn.BatchNorm1d, 2d and 3d, at any depth; it is not changed
    groups  divides the number of channels of each of them

    A new norm has the old one's name, mode and eps, and a weight and bias of the same values,
    dtype, device and requires_grad, or none if the old one has none (affine=False). A BatchNorm
    that is used in two places is replaced in both. A weight that is shared in `model` is shared in
    the copy. Everything else in the copy is as in `model`, in memory of its own. Returns the copy.
    """
    # TODO: copy the model, walk down to each BatchNorm, put a GroupNorm in its place
    ### BEGIN SOLUTION
    copied = copy.deepcopy(model)
    for name, old in list(copied.named_modules(remove_duplicate=False)):
        if isinstance(old, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            new = nn.GroupNorm(groups, old.num_features, eps=old.eps, affine=old.affine)
            # those of the copy, which nothing else needs
            new.weight, new.bias = old.weight, old.bias
            parent, _, last = name.rpartition(".")
            setattr(copied.get_submodule(parent), last, new.train(old.training))
    return copied
    ### END SOLUTION

# %% check-norm tags=["check"]
gpulab.check.batch_norm_free(without_batch_norm)

# %% norm-hints [markdown]
# <details><summary>Hint 1</summary>
#
# `model.named_modules()` yields every module at every depth with its full name, such as `"3.rest.2"`. To replace one,
# set an attribute on its *parent*.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `model.get_submodule("3.rest")` finds the parent, and `setattr(parent, "2", norm)` replaces the child; it works for
# `nn.Sequential` too. Make a list of the modules before you change the model. A module used in two places has two
# names, and `named_modules()` yields only the first; with `remove_duplicate=False` it yields both.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `nn.GroupNorm(groups, channels, eps=..., affine=...)`, in this order of arguments. Its weight and bias may be those of
# the copy's own BatchNorm, which no longer needs them: a `Parameter` that you assign to an attribute keeps its values,
# dtype, device and `requires_grad`, and assigned in two places it stays shared. `.training` is the mode.
#
# </details>

# %% try-it-text [markdown]
# With your function, a network that had BatchNorm has the same accumulated gradient as with the full batch:

# %% try-it tags=["needs-answer"]
def gap(model, x, y, pieces=4):
    """The largest difference between accumulated and full-batch gradient, relative to the largest
    element.
    """
    gradients = []
    for parts in (1, pieces):
        model.zero_grad()
        for a, b in zip(x.chunk(parts), y.chunk(parts), strict=True):
            (F.cross_entropy(model(a), b) / parts).backward()
        gradients.append(nn.utils.parameters_to_vector(p.grad for p in model.parameters()))
    return ((gradients[0] - gradients[1]).abs().max() / gradients[0].abs().max()).item()


torch.manual_seed(0)
layers = [nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10)]
network, (images, labels) = nn.Sequential(*layers), gpulab.data.digits("train")
batch = images[:64], labels[:64]
print("with BatchNorm, a gap above 1 %:   ", gap(network, *batch) > 0.01)
print(
    "with GroupNorm, a gap above 0.001 %:",
    gap(without_batch_norm(network, groups=4), *batch) > 1e-5,
)

# %% done [markdown]
# ## Done?
#
# The cell below shows what is recorded. Next: [the map of the course](../notebooks/00_start_here.ipynb).

# %% progress tags=["host-dependent"]
gpulab.progress()

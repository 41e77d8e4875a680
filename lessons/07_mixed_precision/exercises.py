# %% title [markdown]
# # 07 · Exercises: mixed precision
#
# Three exercises, about an hour. A check cell under each tests your code: run it as often as you like. It draws new
# inputs every time, and when it fails it says what it expected, what it got, and which section of
# [the lecture](../notebooks/07_mixed_precision.ipynb) to read.
#
# A cell that says *not attempted yet* is one you have not written. Everything after it still runs. Your code needs no
# GPU: the checks start a virtual one where they need it.

# %% setup
import copy
import time

import torch
from torch import nn
from torch.nn import functional as F

import gpulab

gpu = gpulab.setup()

# %% format-questions [markdown]
# Two questions first:

# %% format-question-1
gpulab.quiz(7, "stays-fp32")

# %% format-question-2
gpulab.quiz(7, "why-accurate")

# %% compare-text [markdown]
# ## 1 · A comparison that can be believed
#
# **Build** a function that trains the same network in several precisions, and measures time, memory, losses and skipped
# steps of each. **Why:** most published numbers about mixed precision come from a benchmark with an error in it, and
# the lecture has shown how different the right ones are.
#
# 25 minutes · difficulty ●●●
#
# There are nine errors to avoid: different initial weights for each run, warm-up in the time, a clock that does not
# wait, a peak from another run, a model still in memory from the run before, a baseline that is secretly TF32, fp16
# without a scaler, autocast around the model but not the loss, and settings that stay changed.
#
# **`compare_precisions(make_model, loss_fn, x, y, steps, warm_up)`**
#
# - `make_model`: `make_model()` returns a new `nn.Module` on the CPU, in float32 and in training mode, with random
#   weights
# - `loss_fn`: `loss_fn(outputs, targets)` returns a 0-dim tensor
# - `x`, `y`: the one batch to train on, already on the device to train on: the CPU, or the current GPU; do not change
#   them
# - `steps`: the training steps that count
# - `warm_up`: further steps, before them, at least one: they train too, but count in neither `ms` nor `losses`
#
# On a GPU the precisions are `"fp32"`, `"fp16"` (with a gradient scaler) and `"bf16"`; on the CPU `"fp32"` and
# `"bf16"`. The 16-bit ones use autocast around model and loss; backward is outside. Every run trains a model with the
# same initial weights, in training mode, with `torch.optim.SGD`, `lr=0.01`. When it begins, nothing of another run is
# on the GPU, and nothing stays there at the end. `"fp32"` is without TF32, in matrix products and in convolutions;
# afterwards these settings are as before the call, even if `loss_fn` raises; its exception passes through.
#
# Returns a dict `{precision: row}`; each row is a dict with
#
# - `"ms"`: milliseconds for one of the counted steps, the mean
# - `"peak_bytes"`: the most memory allocated on the GPU in this run (`torch.cuda.max_memory_allocated`); `None` on the
#   CPU
# - `"losses"`: the loss of each counted step, a list of floats, not scaled
# - `"skipped"`: how many of all steps, warm-up included, the scaler skipped; 0 without a scaler

# %% compare_precisions tags=["solution"]
def compare_precisions(make_model, loss_fn, x, y, steps, warm_up):
    """Train the same network in each precision, and measure the runs."""
    # TODO: one function for one run; then the loop over precisions, with TF32 switched off and back
    ### BEGIN SOLUTION
    on_gpu = x.device.type == "cuda"

    def now():
        if not on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # the GPU notes the time, in its queue
        event.record()
        return event

    def milliseconds(start, end):
        if not on_gpu:
            return (end - start) * 1000
        end.synchronize()
        return start.elapsed_time(end)

    def run(model, dtype):
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler(x.device.type, enabled=dtype is torch.float16)
        stepped, losses = [], []
        # unlike get_scale(), it does not wait
        optimizer.register_step_post_hook(lambda *_: stepped.append(True))
        for i in range(warm_up + steps):
            if i == warm_up:
                start = now()
            optimizer.zero_grad()
            with torch.autocast(x.device.type, dtype=dtype, enabled=dtype is not torch.float32):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach())
        return {
            "ms": milliseconds(start, now()) / steps,
            "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
            "losses": [loss.item() for loss in losses[warm_up:]],
            "skipped": warm_up + steps - len(stepped),
        }

    precisions = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    if not on_gpu:
        del precisions["fp16"]
    first = make_model()  # stays on the CPU; every run gets a copy, which ends with it
    tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        return {name: run(copy.deepcopy(first).to(x.device), dtype)
                for name, dtype in precisions.items()}
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = tf32
    ### END SOLUTION

# %% check-compare tags=["check"]
gpulab.check.precision_comparison(compare_precisions)

# %% compare-hints [markdown]
# <details><summary>Hint 1</summary>
#
# Write a function for *one* run, with a model and a dtype. Everything it makes is freed when it returns, so the next
# run has the GPU to itself. With `enabled=` of autocast and of the scaler, one loop serves all three precisions.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The GPU runs behind the host. Either wait for it twice, before you start the clock (the warm-up may still be running)
# and before you read it; or record two `torch.cuda.Event(enable_timing=True)`. Reset the peak at the start of each run.
# `copy.deepcopy(model)` gives every run the same initial weights.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Skipped: either the scale is smaller after `scaler.update()` than before, or the optimizer's `step` did not run
# (`optimizer.register_step_post_hook` can count). TF32: read both `allow_tf32` settings first, set both to False in a
# `try`, and restore them in `finally`.
#
# </details>

# %% compare-use-text [markdown]
# Now use it on a simple network: 100 steps at two batch sizes. “Twice as fast with half the memory”? Predict first: at
# which of these batch sizes is fp16 slower than fp32 on your GPU?

# %% compare-use tags=["needs-answer"]
def make_net():
    return nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))


for batch in (8, 256):
    x = torch.rand(batch, 128, device="cuda")
    y = torch.zeros(batch, dtype=torch.long, device="cuda")
    rows = compare_precisions(make_net, F.cross_entropy, x, y, steps=100, warm_up=5)
    gap = max(abs(row["losses"][-1] - rows["fp32"]["losses"][-1]) for row in rows.values())
    print(f"batch {batch} ({gpu.numbers} times and bytes);", end=" ")
    print(f"last losses within 0.05 of fp32's: {gap < 0.05}")
    for name, row in rows.items():
        peak = row["peak_bytes"] / 2**20
        print(
            f"    {name}: {row['ms']:.3f} ms a step, peak {peak:5.2f} MiB, {row['skipped']} skipped"
        )

# %% compare-use-answer [markdown]
# On the virtual T4, by its clock: at both. A slow-down is a valid result. This network is far too small to fill the
# GPU; casts, scaling and the search for `inf` are extra kernels, and a GPU that waits for the host gains nothing from
# faster matrix products. The peak falls by a few per cent at best, because parameters, gradients and cuBLAS's workspace
# do not shrink.

# %% step-text [markdown]
# ## 2 · One step, in the right order
#
# **Build** a training step with autocast, scaler, clipping and a schedule. **Why:** it takes nine lines, most tutorials
# put one of them in the wrong place, and a skipped step must not advance the schedule.
#
# 15 minutes · difficulty ●●○
#
# **`train_step(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm)`**
#
# - `model`, `optimizer`: the model is on the device of x, in float32; gradients that the caller left in `.grad` do not
#   count
# - `scaler`: a `torch.amp.GradScaler` for that device; it may be switched off (`enabled=False`, for bf16)
# - `scheduler`: a learning-rate schedule that counts updates of the weights
# - `loss_fn`: `loss_fn(outputs, targets)` returns a 0-dim tensor
# - `x`, `y`: one batch
# - `dtype`: `torch.float16` or `torch.bfloat16`, for autocast around model and loss; backward is outside
# - `max_norm`: the largest norm that the gradient may have when the optimizer steps
#
# Returns (loss, stepped): the loss, not scaled, as a float; and whether the optimizer stepped, a bool.

# %% train_step tags=["solution"]
def train_step(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    """One training step in mixed precision."""
    # TODO: zero_grad, forward under autocast, scaled backward, unscale,
    # clip, step, update, schedule
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    with torch.autocast(x.device.type, dtype=dtype):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    before = scaler.get_scale()  # 1.0 if the scaler is off
    scaler.step(optimizer)
    scaler.update()
    # it falls after an overflow, and may grow after a good step
    stepped = scaler.get_scale() >= before
    if stepped:
        scheduler.step()
    return loss.item(), stepped
    ### END SOLUTION

# %% check-step tags=["check"]
gpulab.check.amp_step(train_step)

# %% step-hints [markdown]
# <details><summary>Hint 1</summary>
#
# Autocast's device is `x.device.type`. Put model *and* loss into its block, and nothing else.
#
# </details>
# <details><summary>Hint 2</summary>
#
# After `scaler.scale(loss).backward()` the gradients are multiplied by the scale. `max_norm` applies to the true
# gradients.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `scaler.step` does not say whether it stepped. What does `scaler.update()` do to `scaler.get_scale()` after an overflow,
# and what after 2000 good steps?
#
# </details>

# %% scaler-text [markdown]
# ## 3 · A loss scaler of your own
#
# **Build** the dynamic loss scaler: what `torch.amp.GradScaler` does, in thirty lines. **Why:** after this, no skipped
# step and no strange scale in a log will puzzle you.
#
# 20 minutes · difficulty ●●●
#
# The check runs yours and PyTorch's on the same random sequences of gradients.
#
# **`LossScaler(init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000)`**
#
# `LossScaler(init_scale, growth_factor, backoff_factor, growth_interval)`, then in every iteration:
#
# - `scale(loss)`: returns the loss times the scale, with its graph
# - `unscale_(optimizer)`: divides the gradients of all the optimizer's parameters by the scale, in place, and records
#   whether any element is inf or NaN. The caller may leave it out.
# - `step(optimizer)`: calls `unscale_` unless that was done since the last update; then `optimizer.step()`, unless an
#   inf or NaN was found
# - `update()`: after inf or NaN: multiplies the scale by `backoff_factor`. After `growth_interval` good iterations in a
#   row: by `growth_factor`, and restarts the count. Ends the iteration.
# - `get_scale()`: the scale, a float
#
# There is one optimizer; loss and gradients are float32, on the CPU or a GPU; a parameter may have no gradient (`.grad`
# is `None`), and then gets none. Scale and gradients have no lower or upper limit but those of float32.

# %% LossScaler tags=["solution"]
class LossScaler:
    """A dynamic loss scaler like torch.amp.GradScaler."""

    def __init__(
        self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000
    ):
        # TODO: store these four numbers, a count of good steps and the state of this iteration;
        # then write the five methods
        ### BEGIN SOLUTION
        self.current, self.growth_factor = float(init_scale), growth_factor
        self.backoff_factor, self.growth_interval = backoff_factor, growth_interval
        self.good = 0
        self.unscaled = self.overflow = False

    def scale(self, loss):
        return loss * self.current

    @torch.no_grad()
    def unscale_(self, optimizer):
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad /= self.current
                    self.overflow |= not p.grad.isfinite().all().item()
        self.unscaled = True

    def step(self, optimizer):
        if not self.unscaled:
            self.unscale_(optimizer)
        if not self.overflow:
            optimizer.step()

    def update(self):
        if self.overflow:
            self.current, self.good = self.current * self.backoff_factor, 0
        else:
            self.good += 1
            if self.good == self.growth_interval:
                self.current, self.good = self.current * self.growth_factor, 0
        self.unscaled = self.overflow = False

    def get_scale(self):
        return self.current
        ### END SOLUTION

# %% check-scaler tags=["check"]
gpulab.check.loss_scaler(LossScaler)

# %% scaler-hints [markdown]
# <details><summary>Hint 1</summary>
#
# Four attributes come from the caller, one counts good steps, and two flags belong to an iteration: was `unscale_`
# called, and was an overflow found? `update` clears the flags.
#
# </details>
# <details><summary>Hint 2</summary>
#
# For all parameters, loop over `optimizer.param_groups`, and in it over `group["params"]`. One bad element in any of
# them is enough. `torch.isfinite` finds inf, −inf and NaN.
#
# </details>
# <details><summary>Hint 3</summary>
#
# It counts good steps *in a row*: two events reset it to 0.
#
# </details>

# %% scaler-try-text [markdown]
# Your scaler in a real training step, beside PyTorch's:

# %% scaler-try tags=["needs-answer"]
def train_with(scaler, steps=30):
    """Scale after each step of a small regression whose gradients overflow at the first scales."""
    torch.manual_seed(0)
    model, scales = nn.Linear(8, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(64, 8)
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


ours = train_with(LossScaler(2.0**20, 2.0, 0.5, 5))
theirs = train_with(torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=5))
print("the same scale in each of 30 steps:", ours == theirs)
print(f"lowest {min(ours):,.0f}, highest {max(ours):,.0f}")

# %% done [markdown]
# ## Done?
#
# The cell below shows what is recorded. Next: [lesson 08](../notebooks/08_accumulation.ipynb).

# %% progress tags=["host-dependent"]
gpulab.progress()

# %% title [markdown]
# # 03 · Exercises: moving data
#
# Four functions, about 75 minutes. A check cell under each tests your code: run it as often as you like. It draws new
# inputs every time, and when it fails it says what it expected, what it got, and which section of
# [the lecture](../notebooks/03_moving_data.ipynb) to read. The checks run on a virtual GPU of their own, so that they
# know to the microsecond what happened when; your code is plain PyTorch and runs unchanged on a real GPU.
#
# A cell that says *not attempted yet* is one you have not written. Everything after it still runs.

# %% setup
import statistics

import matplotlib.pyplot as plt
import torch
from torch.nn import functional as F

import gpulab

gpu = gpulab.setup()
device = gpu.device

# %% timer-text [markdown]
# ## 1 · A timer that tells the truth
#
# **Build** a function that times GPU work. **Why:** without it, the numbers in your next report are times of launches.
#
# 10 minutes · difficulty ●○○

# %% time_on_gpu tags=["solution"]
def time_on_gpu(fn, repeats, warm_up):
    """The median time of `fn()` on the GPU, in milliseconds, as a float.

    fn       a function without arguments that queues work in the current stream of the current GPU,
             one or more kernels that run much longer than their launches; it may also wait for them
    repeats  how many calls are timed, an odd number
    warm_up  how many calls go before them untimed; 0 is allowed

    A call's time is that of its own work, from its start on the GPU to its end, without anything
    that was queued earlier. A clock of the host, if one is read, is time.perf_counter: others can
    be set back, are coarse, or count processor time, and none of them works with a virtual GPU.
    """
    # TODO: call fn warm_up times; then time each of `repeats` calls with a
    # clock that waits for the GPU
    ### BEGIN SOLUTION
    # Also right: time.perf_counter() with torch.cuda.synchronize() before each of its two readings.
    for _ in range(warm_up):
        fn()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        fn()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)
    ### END SOLUTION

# %% check-timer tags=["check"]
gpulab.check.honest_timer(time_on_gpu)

# %% timer-hints [markdown]
# <details><summary>Hint 1</summary>
#
# What does the clock show if you read it right after `fn()`? Which call returns only when the GPU is done?
#
# </details>
# <details><summary>Hint 2</summary>
#
# With the host's clock you must wait twice: before the first reading, because the caller may have queued work already, and
# before the second. With events you wait once, before you read `elapsed_time`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.cuda.Event(enable_timing=True)`, twice for each call; `start.record()`, `fn()`, `end.record()`,
# `end.synchronize()`. `elapsed_time` gives milliseconds. One entry in a list for each call, then
# `statistics.median`.
#
# </details>

# %% timer-try-text [markdown]
# Your timer on a matrix product. Does the result stay below the peak in the data sheet?

# %% timer-try tags=["needs-answer"]
a = torch.randn(1024, 1024, device=device)
ms = time_on_gpu(lambda: a @ a, repeats=3, warm_up=1)
print(f"{ms:.3f} ms, {2 * 1024**3 / ms / 1e9:.1f} TFLOP/s ({gpu.numbers})")

# %% benchmark-text [markdown]
# ## 2 · A transfer benchmark
#
# **Build** a benchmark of copies to the GPU that finds the latency and the bandwidth of the link. **Why:** with these
# two numbers you can predict every transfer in your program, and see at once when one is far slower than it should be.
#
# 20 minutes · difficulty ●●○
#
# *Predict first:* what will a copy of 1 GB from ordinary memory take here?
#
# **`transfer_benchmark(sizes, pinned, device, timer)`**
#
# - `sizes`: numbers of bytes, ints, in any order
# - `pinned`: `True`: from page-locked memory; `False`: from ordinary memory. No effect if `device` is the CPU
# - `device`: a `torch.device`: a GPU, with or without a number, or the CPU (then the copies stay on the host: a
#   stand-in, to be labelled as such)
# - `timer`: `timer(fn)` returns the time of `fn()` in milliseconds, the median of several runs after a warm-up
#
# The timed function makes one copy and does nothing else: both buffers are made before, and the destination is reused.
# A size for which the GPU or the host has no room is left out; other errors pass through. No memory is held when the
# function returns.
#
# Returns (ms, `latency_us`, `bandwidth_gbps`): a dict from size to milliseconds, in the order of `sizes`, and the two
# numbers of the line `time = latency + bytes / bandwidth` that fits all of them best (least squares, unweighted, or
# weighted by a power of bytes or of the time), in microseconds and in 10⁹ bytes per second.
#
# At least two sizes will fit.

# %% benchmark-predict
guess = gpulab.predict("A copy of 1 GB from ordinary memory takes how long?", unit="ms")

# %% transfer_benchmark tags=["solution"]
def transfer_benchmark(sizes, pinned, device, timer):
    """Time copies of `sizes` bytes from the CPU to `device`, and find the
    latency and the bandwidth.
    """
    # TODO: two buffers for each size, timer(copy) in between, then fit the line
    ### BEGIN SOLUTION
    ms = {}
    for size in sizes:
        try:
            there = torch.empty(size, dtype=torch.uint8, device=device)
            here = torch.ones(size, dtype=torch.uint8)
            if pinned and there.is_cuda:
                here = here.pin_memory()
        # torch.OutOfMemoryError is one; the host's allocator raises a plain one
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and "memory" not in str(error):
                raise
            continue
        ms[size] = timer(lambda: there.copy_(here, non_blocking=True))
        del here, there
    # Least squares of the relative errors: each row is divided by its time.
    x, t = (torch.tensor(list(row), dtype=torch.float64) for row in (ms, ms.values()))
    rows = torch.stack([1 / t, x / t], dim=1)
    ones = torch.ones(len(t), 1, dtype=torch.float64)
    latency, slope = torch.linalg.lstsq(rows, ones).solution.flatten().tolist()
    return ms, latency * 1e3, 1e-6 / slope
    ### END SOLUTION

# %% check-benchmark tags=["check"]
gpulab.check.transfer_benchmark(transfer_benchmark)

# %% benchmark-hints [markdown]
# <details><summary>Hint 1</summary>
#
# A tensor of `torch.uint8` has as many elements as bytes. `target.copy_(source, non_blocking=True)` copies into an
# existing tensor. What must be done outside the function that you pass to `timer`?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Where can memory run out? On the GPU PyTorch raises `torch.OutOfMemoryError`. The host's allocator raises a plain
# `RuntimeError` whose message mentions memory. Leave that size out, and go on with the next.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Two unknowns, one row per size. Divide each row by its time, so that all sizes count equally: a matrix of `1 / t` and
# `x / t`, and ones on the right-hand side, for `torch.linalg.lstsq`. The first unknown is the latency in ms, the second
# is ms per byte: convert it to 10⁹ bytes per second.
#
# </details>

# %% benchmark-plot-text [markdown]
# The plot is given. Both axes are logarithmic: otherwise the three smaller sizes would fall on one point.

# %% benchmark-plot
def plot(found):
    """Time over size for each kind of memory, with the fitted lines."""
    gpulab.style.use()
    figure, axes = plt.subplots(figsize=(7, 3.6))
    grid = [10 ** (6 + step / 10) for step in range(31)]
    for kind, (ms, latency, bandwidth) in found.items():
        label = f"{kind}: {bandwidth:.1f} GB/s"
        (points,) = axes.plot(list(ms), list(ms.values()), "o", label=label)
        fitted = [latency * 1e-3 + x / bandwidth * 1e-6 for x in grid]
        axes.plot(grid, fitted, "-", color=points.get_color(), linewidth=1.5)
    axes.set(xscale="log", yscale="log", xlabel="size (bytes)", ylabel="time (ms, virtual)")
    axes.set_title("From 10 MB on, nearly all of the time is bandwidth")
    axes.legend()
    lines = "two lines; the model has pageable memory take twice as long."
    gpulab.style.show(figure, alt=f"Time of copies from 1 MB to 1 GB: {lines}")

# %% benchmark-try tags=["needs-answer"]
def once(fn):
    return time_on_gpu(fn, repeats=3, warm_up=1)


sizes, found = [10**6, 10**7, 10**8, 10**9], {}
# shapes only, so that 1 GB costs this machine no copying
with gpulab.VirtualGPU("T4", compute=False):
    for kind in ("pinned", "pageable"):
        found[kind] = transfer_benchmark(sizes, kind == "pinned", torch.device("cuda"), once)
for kind, (ms, latency, bandwidth) in found.items():
    print(f"{kind:<9} latency {latency:.1f} µs, {bandwidth:.2f} GB/s, {len(ms)} sizes (virtual)")
_, latency, bandwidth = found["pageable"]
guess.compare(round(latency * 1e-3 + 1e9 / bandwidth * 1e-6, 1), "virtual")
plot(found)

# %% benchmark-recorded-text [markdown]
# A virtual GPU's copies lie on a line because its model is a line: your function has found its two bandwidths. The
# latencies are above the link's (the model assumes 8 µs), because a single copy between two events waits for the host.
# Copy times on a real GPU have kinks. Give your function recorded times of a Quadro RTX 6000 in place of a timer, and
# see how far off its line is:

# %% benchmark-recorded tags=["needs-answer"]
for kind in ("pinned", "pageable"):
    recorded = gpulab.data.copies()[kind]
    times = iter(recorded.values())
    cpu = torch.device("cpu")
    _, latency, bandwidth = transfer_benchmark(list(recorded), False, cpu, lambda fn: next(times))
    line = {size: latency * 1e-3 + size / bandwidth * 1e-6 for size in recorded}
    worst = max(abs(line[size] / ms - 1) for size, ms in recorded.items())
    print(f"{kind:<9} latency {latency:.1f} µs, {bandwidth:.1f} GB/s,", end=" ")
    print(f"at worst {worst:.0%} off a recorded time (recorded)")

# %% benchmark-real [markdown]
# On a real GPU, remove the line with `VirtualGPU`: the same two functions measure your GPU.

# %% waits-text [markdown]
# ## 3 · Find the hidden waits
#
# **Rewrite** an epoch so that the host never waits for the GPU before the last batch has been queued. **Why:** most
# training scripts look like the loop below, in which the host waits seven or eight times per batch.
#
# 20 minutes · difficulty ●●○

# %% noisy
def noisy_epoch(model, optimizer, batches):
    """Train one epoch, and return its statistics. Do not change it: yours is compared with it."""
    device = next(model.parameters()).device
    total, best, hard, correct, samples = 0.0, float("inf"), 0.0, 0, 0
    for x, y in batches:
        x, y = x.to(device), y.to(device)
        logits = model(x)
        losses = F.cross_entropy(logits, y, reduction="none")
        loss = losses.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += losses.sum().item()
        if loss < best:
            best = loss.item()
        hard += losses[losses > 1.0].sum().item()
        correct += int((logits.argmax(dim=1) == y).sum())
        samples += len(x)
    return {"loss": total / samples, "best": best, "hard": hard, "correct": correct}

# %% quiet_epoch tags=["solution"]
def quiet_epoch(model, optimizer, batches):
    """Train one epoch as `noisy_epoch` does, without waiting for the GPU before the
    last batch has been queued.

    model      an nn.Module on a GPU, the current one or another
    optimizer  a torch optimizer over its parameters; one step for each batch
    batches    a list of (inputs, targets), CPU tensors in pinned memory

    Returns a dict of Python numbers: "loss", the mean over all samples; "best", the smallest mean
    loss of a batch; "hard", the sum of all losses above 1; "correct", an int, how many predictions
    were right. No batch's graph is kept when the next one is computed.
    """
    # TODO: keep on the GPU what noisy_epoch copies to the host, and read it once, after the loop
    ### BEGIN SOLUTION
    device = next(model.parameters()).device
    total, hard, correct = (torch.zeros((), device=device) for _ in range(3))
    best = torch.full((), float("inf"), device=device)
    samples = 0
    for x, y in batches:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        logits = model(x)
        losses = F.cross_entropy(logits, y, reduction="none")
        loss = losses.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses = losses.detach()
        total += losses.sum()
        best = torch.minimum(best, loss.detach())
        hard += torch.where(losses > 1.0, losses, 0.0).sum()
        correct += (logits.argmax(dim=1) == y).sum()
        samples += len(x)
    total, best, hard, correct = torch.stack([total, best, hard, correct]).tolist()
    return {"loss": total / samples, "best": best, "hard": hard, "correct": int(correct)}
    ### END SOLUTION

# %% check-waits tags=["check"]
gpulab.check.hidden_syncs(quiet_epoch)

# %% waits-hints [markdown]
# <details><summary>Hint 1</summary>
#
# `torch.cuda.set_sync_debug_mode("warn")` names the lines of `noisy_epoch`. Two waits are copies; the others read a
# value, or a size that depends on values. Set the mode back to `"default"` afterwards.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The batches are pinned; what else does a copy need to be asynchronous? A running sum can be a 0-dim tensor made on the
# GPU, by `torch.zeros` or `torch.full`. And which function takes the smaller of two tensors without an `if`?
#
# </details>
# <details><summary>Hint 3</summary>
#
# The size of `losses[losses > 1.0]` depends on the values, so the host must wait for it.
# `torch.where(losses > 1.0, losses, 0.0)` has the shape of `losses`, whatever the values. At the end,
# `torch.stack([...]).tolist()` reads all of them with one wait; the count comes back as a float, so convert it with
# `int()`. Detach what you keep from batch to batch, or every graph stays alive.
#
# </details>

# %% prefetch-text [markdown]
# ## 4 · Stretch: a prefetcher with a side stream
#
# **Build** a generator that copies the next batch while the current one is in use. **Why:** it hides the copies of any
# training loop, and its three traps (a missing wait, a needless wait, memory reused too early) are those of all work
# with streams.
#
# 25 minutes · difficulty ●●●
#
# **`prefetch(batches, device)`**
#
# - `batches`: an iterable of (inputs, targets), tuples or lists of CPU tensors in pinned memory; it may be empty, and
#   it may raise
# - `device`: a CUDA device, current or not
#
# Yields (inputs, targets) on `device`, all of them, in order. The copy of batch i + 1 is queued before batch i is
# yielded, and no further ones: at most one batch is taken ahead. Work that the caller queues in its current stream
# starts when the batch has arrived, and does not wait for the next one. The caller may change that stream between two
# batches, and finds its current stream and GPU as they were. The host never waits. The memory of a batch is not reused
# before the caller's stream is done with it; no more than four batches are on the GPU at a time, and none at the end.
#
# An exception from `batches` reaches the caller in its place: after the batches that came before it.

# %% prefetch tags=["solution"]
def prefetch(batches, device):
    """Yield the batches on `device`, each copied in a side stream while
    the one before it is in use.
    """
    # TODO: a side stream; a function that takes one batch and queues its copy there; then the loop
    ### BEGIN SOLUTION
    side, source = torch.cuda.Stream(device), iter(batches)

    def ahead():
        """The next batch, its copy queued, or None; and the exception in its place, or None."""
        try:
            batch = next(source)
        except StopIteration:
            return None, None
        except Exception as error:
            return None, error
        with torch.cuda.stream(side):
            return tuple(t.to(device, non_blocking=True) for t in batch), None

    coming, error = ahead()
    while coming is not None:
        main, batch = torch.cuda.current_stream(device), coming
        # before the next copy is queued, so that main does not wait for that one
        main.wait_stream(side)
        for t in batch:
            t.record_stream(main)
        coming, error = ahead()
        yield batch
    if error is not None:
        raise error
    ### END SOLUTION

# %% check-prefetch tags=["check"]
gpulab.check.prefetcher(prefetch)

# %% prefetch-hints [markdown]
# <details><summary>Hint 1</summary>
#
# The order of three things matters: the caller's stream waits for the side stream; the next copy is queued there; the
# current batch is yielded. What happens if you swap the first two?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Put `with torch.cuda.stream(side):` around the copies only. If the `yield` is inside it, the caller computes in your
# stream. Call `torch.cuda.current_stream(device)` again for each batch.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Each tensor that you yield needs `record_stream` with the caller's stream. For an exception: catch it where you take
# the next batch, keep it, yield the batch that you have, then raise it. `StopIteration` is the normal end.
#
# </details>

# %% prefetch-try tags=["needs-answer"]
batches = [(torch.randn(2048, 512).pin_memory(), torch.zeros(2048).pin_memory()) for _ in range(6)]
weight = torch.randn(512, 2048, device=device)


def one_by_one():
    return [x.to(device, non_blocking=True) @ weight for x, _ in batches]


def prefetched():
    return [x @ weight for x, _ in prefetch(batches, device)]


for work in (one_by_one, prefetched):
    print(f"{work.__name__:<11} {time_on_gpu(work, repeats=3, warm_up=1):.2f} ms ({gpu.numbers})")

# %% prefetch-look [markdown]
# One by one, the times of copies and products add up; with prefetching, only the longer of the two counts. On a fast
# GPU each takes a tenth of a millisecond, and the host that launches them sets the pace: there you need larger batches
# to see a gain.

# %% done [markdown]
# ## Done?
#
# The cell below shows what is recorded. Next: [the map of the course](../notebooks/00_start_here.ipynb).

# %% progress tags=["host-dependent"]
gpulab.progress()

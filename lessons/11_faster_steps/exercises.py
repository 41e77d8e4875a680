# %% title [markdown]
# # 11 · Exercises: faster steps
#
# Three functions, about 70 minutes. A check cell under each tests your code: run it as often as you like. It draws new
# inputs every time, and when it fails it says what it expected, what it got, and which section of
# [the lecture](../notebooks/11_faster_steps.ipynb) to read.
#
# A cell that says *not attempted yet* is one you have not written. Everything after it still runs.

# %% setup
import statistics

import torch
from torch import nn
from torch.nn import functional as F

import gpulab

gpu = gpulab.setup()

# %% graphs-text [markdown]
# ## 1 · Find the recompilation
#
# **Build** a function that returns for each call of a compiled function how many graphs it compiled. **Why:** a
# recompilation costs seconds in the middle of training, and nothing is printed; after eight versions PyTorch stops
# compiling, and only a warning says so.
#
# 20 minutes · difficulty ●●○
#
# A backend is any function `backend(graph, example_inputs)` that returns a callable; `graph.forward` runs the graph as
# it is. `torch._dynamo.config.patch(name=value)` changes settings of the compiler temporarily. While a virtual GPU is
# active nothing is compiled: try yours under `with gpulab.without_gpu():`, as the check does.
#
# *Predict first:* a compiled function is called with tensors of lengths 5, 7, 1 and 9. How many of the four calls
# compile?

# %% graphs-predict
lengths_guess = gpulab.predict("Lengths 5, 7, 1 and 9: how many of the four calls compile?")

# %% graphs_per_call tags=["solution"]
def graphs_per_call(function, calls):
    """How many graphs each call of a function makes torch.compile compile: a list of whole numbers.

    function  to be compiled with torch.compile's defaults, by a backend that generates no kernels.
              It may have been compiled before: count as if it had not
    calls     a list of tuples of arguments; the function is called once with each, in
              this order. It may be empty

    All compilations are counted, even beyond Dynamo's own limit
    (torch._dynamo.config.recompile_limit, 8); its settings are as before when the function returns.
    An exception of `function` reaches the caller.
    """
    # TODO: reset the compiler, count in a backend, compile, and read the count after each call
    ### BEGIN SOLUTION
    graphs, counts = [], []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    with torch._dynamo.config.patch(recompile_limit=10_000, accumulated_recompile_limit=10_000):
        compiled = torch.compile(function, backend=backend)
        for args in calls:
            before = len(graphs)
            compiled(*args)
            counts.append(len(graphs) - before)
    return counts
    ### END SOLUTION

# %% check-graphs tags=["check"]
gpulab.check.graphs_per_call(graphs_per_call)

# %% graphs-hints [markdown]
# <details><summary>Hint 1</summary>
#
# The backend is called once for each graph. Where can it record that, so that your loop can read it after each call?
# And what remains from an earlier compilation, in another cell?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.compiler.reset()` discards all compiled code. A list outside the backend grows by one for each graph; you need
# the difference of its length before and after a call.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The limit is a setting: `with torch._dynamo.config.patch(recompile_limit=10_000, accumulated_recompile_limit=10_000):`
# around the loop: both are restored afterwards, even after an exception.
#
# </details>

# %% graphs-try-text [markdown]
# Your function on the four lengths, and on four cases that look harmless: an int argument, a counter in the module, a
# scheduler's learning rate, and an occasional `eval()`.

# %% graphs-try tags=["needs-answer"]
def found(*cases, function=lambda x: x.softmax(0)):
    with gpulab.without_gpu():
        return graphs_per_call(function, cases)


class Counter(nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


x, layer = torch.ones(3), nn.Dropout(0.1)
counts = found(*[(torch.ones(n),) for n in (5, 7, 1, 9)])
lengths_guess.compare(sum(count > 0 for count in counts), "computed")
print("lengths 5, 7, 1, 9:  ", counts)
print("an int, 0 to 5:      ", found(*[(x, n) for n in range(6)], function=lambda x, n: x * n))
print("in the module:       ", found(*[(x,)] * 6, function=Counter()))
rates = [0.1 * 0.9**epoch for epoch in range(6)]
print(
    "a rate, six epochs:  ",
    found(*[(x, rate) for rate in rates], function=lambda x, rate: x - rate * x),
)
tensors = [(x, torch.tensor(rate)) for rate in rates]
print("the rate as a tensor:", found(*tensors, function=lambda x, rate: x - rate * x))
print(
    "train, eval, train:  ",
    found((x, True), (x, False), (x, True), function=lambda x, on: layer.train(on)(x)),
)

# %% switches-text [markdown]
# ## 2 · Which switches stay
#
# **Build** the loop that tries one switch after the other and keeps those that are worth it. **Why:** people copy lists
# of ten switches from job to job. A gain depends on the network, the GPU and the switches before it, so you have to
# measure; and a measurement that mistakes noise for a gain keeps everything.
#
# 25 minutes · difficulty ●●○
#
# The check simulates a job whose switches it knows: some gain time, some cause slow steps, some cost memory or
# accuracy.
#
# **`keep_switches(run, switches, repeats, most_mib, tolerance)`**
#
# - `run`: `run(on)` runs one step of the job, always with the same batch and the same weights, with the switches in the
#   list `on`, and returns (ms, MiB, loss). The first step after a change of `on` is slow: it compiles or tunes
# - `switches`: the names of those to try, each on top of those that stay, in this order
# - `repeats`: how many steps count on each side of a comparison, an odd number
# - `most_mib`: the memory available
# - `tolerance`: how far the loss may be off, as a fraction of the loss without any switch
#
# For each switch the job is measured anew: first without the switch, then with it; each time one step that does not
# count, then `repeats` that do. (One more step without any switch may come before them all, for its loss.) A switch
# stays if its median time is below the fastest of those without it; if no step with it, the first included, takes more
# than `most_mib`; and if its loss is within `tolerance` of the loss without any switch. One that raises RuntimeError
# does not stay, whichever step raises it. Other exceptions reach the caller, and so does what the job raises without
# the switch.

# %% keep_switches tags=["solution"]
def keep_switches(run, switches, repeats, most_mib, tolerance):
    """The switches that stay on: a list in the order of `switches`."""
    # TODO: a helper that runs 1 + repeats steps; then the comparison for each switch
    ### BEGIN SOLUTION
    stay, plain_loss = [], None
    for name in switches:
        without = [run(stay) for _ in range(1 + repeats)]
        if plain_loss is None:
            plain_loss = without[0][2]
        try:
            tried = [run([*stay, name]) for _ in range(1 + repeats)]
        except RuntimeError:
            continue
        fastest = min(ms for ms, _, _ in without[1:])
        faster = statistics.median(ms for ms, _, _ in tried[1:]) < fastest
        fits = all(mib <= most_mib for _, mib, _ in tried)
        same = all(abs(loss - plain_loss) <= tolerance * abs(plain_loss) for _, _, loss in tried)
        if faster and fits and same:
            stay = [*stay, name]
    return stay
    ### END SOLUTION

# %% check-switches tags=["check"]
gpulab.check.keep_switches(keep_switches)

# %% switches-hints [markdown]
# <details><summary>Hint 1</summary>
#
# Keep a growing list of the switches that stay. Which two lists does `run` get in one comparison, and how often each?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Keep all results of both sides, 1 + `repeats` tuples each. Leave out the first one for the times, not for the memory.
# Compare the loss with a number that you take once, before any switch is on.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `statistics.median(times_with) < min(times_without)`. The `try` goes around the steps with the switch, and catches
# RuntimeError only.
#
# </details>

# %% switches-try-text [markdown]
# Your function on a real job: a small network's training step on this machine's processor (or on your GPU).

# %% switches-try
where = "cuda" if gpu.numbers == "measured" else "cpu"


def real_step(on):
    """One training step with these switches: ms, peak on the GPU in MiB (0 on a CPU), loss."""
    with gpulab.without_gpu():
        torch.manual_seed(0)
        layout = torch.channels_last if "channels_last" in on else torch.contiguous_format
        model = nn.Sequential(
            nn.Conv2d(3, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 10),
        )
        model = model.to(where, memory_format=layout)
        images = torch.randn(8, 3, 64, 64, device=where).to(memory_format=layout)
        optimizer = torch.optim.AdamW(model.parameters(), fused="fused" in on)
        losses = []

        def step():
            with torch.autocast(where, torch.bfloat16, enabled="bf16" in on):
                loss = F.cross_entropy(model(images), torch.arange(8, device=where))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

        if where == "cuda":
            torch.cuda.reset_peak_memory_stats()
        ms = gpulab.timing.measure(step, repeat=1, warm_up=1).median_ms
        mib = torch.cuda.max_memory_allocated() / 2**20 if where == "cuda" else 0.0
    return ms, mib, losses[0]


# %% switches-try-run tags=["needs-answer", "host-dependent"]
kept = keep_switches(real_step, ["fused", "channels_last", "bf16"], 5, 4000, 0.02)
print(kept, f"stay on this {where} (measured)")

# %% step-text [markdown]
# ## 3 · Three times as fast
#
# **Build** a training step as a CUDA graph. **Why:** if a step waits for launches, nothing else gains as much; but it
# is easy to make a graph that trains on the wrong batch, from the wrong weights, or at an outdated learning rate.
#
# 25 minutes · difficulty ●●●
#
# Before a capture the step has to run a few times, in a side stream, so that all lazy initialisation is done: the
# optimizer creates its moments in its first step, and what is created *within* the capture is created again in each
# replay. But those steps train.
#
# The check runs it on a virtual A100, with real values.
#
# **`graphed_step(model, optimizer, x, y)`**
#
# - `model`: on the GPU, in training mode; the loss is `F.cross_entropy(model(x), y)`
# - `optimizer`: AdamW over its parameters, with `capturable=True`; it may or may not have made steps before
# - `x`, `y`: a batch of the usual shape, for warm-up and capture
#
# The plain step is `zero_grad`, forward, backward, `optimizer.step()`. After each batch, loss, parameters, buffers and
# moments are those of the plain step; for batches of the usual shape it takes at most a third of the time. Making the
# step trains nothing: parameters, buffers and the optimizer's moments and step counts are as before when it is returned
# (new moments may exist, but are zero). Streams that use the same tensors wait for each other. A batch of another shape
# is trained as well, at any speed. A returned loss does not change in later steps. The batches are not changed.
#
# A learning rate that is changed between two steps applies from the next step on. It is changed as PyTorch's schedulers
# do it: with `fill_` if it is a tensor, else by a new number in `optimizer.param_groups`.

# %% graphed_step tags=["solution"]
def graphed_step(model, optimizer, x, y):
    """A training step in a third of the time or less: a function step(x, y) that trains on a
    batch and returns its loss.
    """
    # TODO: a plain step; what to save, warm up and restore; the learning rate; the capture; and the
    # function that feeds it
    ### BEGIN SOLUTION
    def plain(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def all_that_trains():
        moments = [value for state in optimizer.state.values() for value in state.values()]
        return [*model.parameters(), *model.buffers(), *moments]

    for group in optimizer.param_groups:
        group["lr"] = torch.as_tensor(group["lr"], device=x.device)
    before = {value: value.detach().clone() for value in all_that_trains()}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            plain(x, y)
    torch.cuda.current_stream().wait_stream(side)
    with torch.no_grad():
        for value in all_that_trains():
            if value in before:
                value.copy_(before[value])
            else:
                value.zero_()
    graph, own_x, own_y = torch.cuda.CUDAGraph(), x.clone(), y.clone()
    with torch.cuda.graph(graph):
        own_loss = plain(own_x, own_y)

    def step(x, y):
        if x.shape != own_x.shape:
            return plain(x, y)
        own_x.copy_(x)
        own_y.copy_(y)
        graph.replay()
        return own_loss.clone()

    return step
    ### END SOLUTION

# %% check-step tags=["check"]
gpulab.check.graphed_step(graphed_step)

# %% step-hints [markdown]
# <details><summary>Hint 1</summary>
#
# Write the plain step first, as a function of (x, y). You need it three times: for the warm-up, the capture, and
# batches of another shape.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Before the warm-up, clone all that a step changes: `model.parameters()`, `model.buffers()`, and the tensors in
# `optimizer.state`. Afterwards restore the values *in place*, `value.copy_(kept)`: the addresses must not change. Zero
# what the optimizer created during the warm-up.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The graph has its own x and y; each step copies the batch in, replays, and returns a *clone* of the loss. Compare
# `x.shape` with that of the graph's own x before you copy. The capture freezes a learning rate that is a number: make
# it a tensor on the GPU first.
#
# </details>

# %% step-try-text [markdown]
# Your step on a narrow network of forty layers, on a virtual A100:

# %% step-try tags=["needs-answer"]
with gpulab.VirtualGPU("A100-80", compute=False), torch.device("cuda"):
    model = nn.Sequential(
        *[layer for _ in range(20) for layer in (nn.Linear(128, 128), nn.ReLU())],
        nn.Linear(128, 10),
    )
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    x, y = torch.randn(64, 128), torch.randint(10, (64,))

    def plain():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    before = gpulab.timing.measure(plain, repeat=5).median_ms
    step = graphed_step(model, optimizer, x, y)
    after = gpulab.timing.measure(lambda: step(x, y), repeat=5).median_ms
print(f"{before:.2f} ms → {after:.2f} ms, {before / after:.1f} × as fast (virtual)")

# %% done [markdown]
# ## Done?
#
# The cell below shows what is recorded. Next: [the map of the course](../notebooks/00_start_here.ipynb).

# %% progress tags=["host-dependent"]
gpulab.progress()

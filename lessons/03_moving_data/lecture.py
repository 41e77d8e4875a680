# %% title [markdown]
# # 03 · Moving data
#
# **Promise:** you time asynchronous work and get the truth, make transfers cheap, and hide the rest
# behind computation.
#
# After this lesson you can **build** a timer that is not fooled · **predict** the time of a copy
# from its bytes · **say** when pinned memory pays · **find** the lines in which the host waits ·
# **overlap** copies with kernels, and prove it with a timeline.
#
# | time | before this | runs on |
# |---|---|---|
# | 60 minutes, and 75 for the exercises | `02_devices`; a training loop of your own | any machine |

# %% setup
import time

import matplotlib.pyplot as plt
import numpy as np
import torch
import torchvision

import gpulab

gpu = gpulab.setup()
device = gpu.device

# %% question-text [markdown]
# ## A question worth asking
#
# How fast is this GPU at a matrix product? A product of two n × n matrices takes $2n^3$ operations.
# So run one, time it, and divide. A T4's data sheet promises 8.1 TFLOP/s in fp32, an A100's 19.5.

# %% question-predict
rate_guess = gpulab.predict("What rate will the next cell report?", unit="TFLOP/s")

# %% question-run tags=["host-dependent"]
n = 2048
a, b = torch.randn(2, n, n, device=device)


def seconds_of(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


fastest = min(seconds_of(lambda: a @ b) for _ in range(9))
why = f"After {1e6 * fastest:.0f} µs the product had been asked for, and not computed."
rate_guess.compare(round(2 * n**3 / fastest / 1e12), gpu.numbers, because=why)

# %% question-answer [markdown]
# No GPU does that in fp32. With a smaller matrix, the same mistake gives a plausible number, which
# ends up in a report. This lesson is about the time between asking for a result and having it.

# %% queue-text [markdown]
# ## The launch queue
#
# A GPU call returns when its work has been *queued*. The host (the CPU and your Python) checks
# shapes, takes memory for the result, and puts a launch into a queue, called a **stream**. The GPU
# works through the queue in order. The tensor that you get back is real. Its values are a promise.
#
# This is a feature: by running ahead, the host keeps the GPU supplied. Below, it queues three long
# products, and then asks for a value.

# %% queue-run
size = 1024 if gpu.numbers == "virtual" else 4096  # in float64 a T4 is slow, an H100 is not
c = torch.randn(size, size, device=device, dtype=torch.float64)


def busy():  # a long queue in three launches
    return [c @ c for _ in range(3)]


gpulab.timing.timeline(lambda: busy()[-1].sum().item())

# %% queue-explain [markdown]
# The launches are the thin line at the start. Then `.item()` needs a number, and the host waits.
#
# `torch.cuda.synchronize()` waits too: it returns when all that is queued on the device, in all
# streams, is done. Outside of debugging you need it in two places: around a host's clock, and
# before you read memory that an asynchronous copy fills.
#
# The queue has a limit. After about a thousand launches (observed, not documented) the host waits
# for room. A timer without `synchronize` then sees part of the truth, and is believed.

# %% simulator-queue-text [markdown]
# ### See it move
#
# Six steps of 24 kernels, and two timers under the picture. One of them is wrong.
#
# 1. Read the loss *every step*. Now both timers agree. Did the step become much slower?
# 2. Set it back to *never*, *Kernel time* to 3 µs and *Launch cost* to 15 µs. Who waits for whom?
# 3. Set *Kernel time* to 200 µs and *Kernels per step* to 200. The queue is full, the host waits,
#    and the timer still lies.

# %% simulator-queue
gpulab.sim.launch_queue()

# %% clock-text [markdown]
# ## A clock that tells the truth
#
# There are two honest ways to time GPU work.
#
# - **The host's clock, with `synchronize` on both sides**: before the start, so that older work is
#   not counted; before the end, so that the new work is. Use `time.perf_counter`, since `time.time`
#   can be set back while you measure.
# - **Two events.** An event is a mark in the stream. The GPU notes the time when it gets there, and
#   `elapsed_time` gives the milliseconds between two marks. The host waits only before it reads.

# %% clock-turn-text [markdown]
# **Your turn** · 2 minutes. Repair the clock of the opening with two more lines. Other work may be
# in the queue when `clock_ms` is called.

# %% clock-turn tags=["your-turn"]
def clock_ms(work):
    ### BEGIN SOLUTION
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    ### INSTEAD OF
    # start = time.perf_counter()
    # work()
    ### END SOLUTION
    return (time.perf_counter() - start) * 1000


gpulab.turn.honest_clock(clock_ms)

# %% clock-events-text [markdown]
# Here is the other way. Repeat it and quote the **median**: other work disturbs single runs, and
# the slowest of them pull up a mean.

# %% clock-run
def gpu_ms(work):
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()  # the host waits until the GPU has passed the mark
    return start.elapsed_time(end)

# %% clock-warm
torch.cuda.empty_cache()
calls = [gpu_ms(lambda: a @ b) for _ in range(5)]
print("five calls, ms:", [round(call, 2) for call in calls])
print(f"median: {2 * n**3 / np.median(calls) / 1e9:.1f} TFLOP/s ({gpu.numbers})")

# %% clock-warm-text [markdown]
# The rate is below the data sheet's, as it should be. One trap is left: the **first** call. It
# takes memory from the driver. In a new process it also loads the kernel's code and creates the
# libraries' handles, and tunes algorithms if that is switched on. So call the work a few times
# before the clock starts.
#
# Write this timer once (the first exercise), and then use a tool: `torch.utils.benchmark.Timer`, or
# `gpulab.timing.measure`, which warms up and shows the spread. Time calls of a few microseconds in
# groups of a hundred: alone, they show only their launch.

# %% clock-measure
def ms(work):
    return gpulab.timing.measure(work, repeat=3, warm_up=1).median_ms


gpulab.timing.measure(lambda: a @ b, repeat=5)

# %% sheet-text [markdown]
# ## Beat the datasheet
#
# Here are three benchmarks of the same product. All of them use events and a warm-up, and divide by
# the same $2n^3$. At least one is a lie. Which one do you believe?

# %% sheet-run
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())  # a and b must be there before side reads them


def in_side_stream():
    with torch.cuda.stream(side):
        a @ b


a16, b16 = a.half(), b.half()
for name, work in ("1", in_side_stream), ("2", lambda: a16 @ b16), ("3", lambda: a @ b):
    work()
    print(f"benchmark {name} {2 * n**3 / gpu_ms(work) / 1e9:7,.1f} TFLOP/s ({gpu.numbers})")

# %% sheet-explain [markdown]
# *1* has a good clock in the wrong place. The events are in the current stream, the product is in
# another, and nothing makes the one wait for the other. *2* is true, but answers another question:
# how fast tensor cores are in fp16. *3* is what was asked for. More ways to report too much:
#
# - **Time on zeros.** An H200 did 769 to 798 TFLOP/s on random numbers and 894 on zeros (recorded,
#   8192³ in bf16). Bits that do not flip take less power, so the clock stays higher.
# - **Stop early.** *2* runs for a moment only. In a loop, a T4 reaches its limit of 70 W and does
#   24 TFLOP/s (recorded).
#
# Compare each rate with the right peak, as `gpulab.timing.mfu` does; it raises an error for a rate
# above it.

# %% bridge-text [markdown]
# ## Two memories and a bridge
#
# Kernels read the GPU's own memory (HBM in an A100). The host's data come over a link, mostly PCIe:
#
# ![Data paths of an A100 to scale: registers to lanes 117 TB/s, L1 and shared memory 19.5, L2 7.2, HBM 2.0, PCIe 0.03.](../docs/pictures/gpu_memories.svg)
#
# Copy 67 MB within the GPU (it reads and writes every byte), and then from the host.

# %% bridge-run
x = torch.randn(2**24)
pinned = x.pin_memory()
there, other = torch.empty(2, 2**24, device=device)
within, across = ms(lambda: other.copy_(there)), ms(lambda: other.copy_(pinned, non_blocking=True))
print(f"within the GPU {2 * x.nbytes / within / 1e6:5.0f} GB/s read and written ({gpu.numbers})")
print(f"from the host  {x.nbytes / across / 1e6:5.0f} GB/s ({gpu.numbers})")

# %% bridge-explain [markdown]
# “PCIe is 60 times slower than the GPU's memory”, says the web. By data sheets it is 20 times on a
# T4 (PCIe 3), 32 on an RTX 4090, 64 on an A100 80GB (both PCIe 4), 52 on an H100 and 75 on an H200
# (PCIe 5). The conclusion is the same: **move data once, keep it there, and compute on it often**.
#
# Mind the dtype. A default copy that also changes the dtype converts on the *host*, and the new
# type crosses the link. (With `non_blocking=True`, PyTorch converts on the GPU.) That helps where
# float64 becomes float32. It hurts here, where 16.8 million bytes become float32:

# %% bridge-dtype
pixels = torch.zeros(2**24, dtype=torch.uint8)
print(f".to(device, torch.float32) {ms(lambda: pixels.to(device, torch.float32)):5.2f} ms")
print(f".to(device).float()        {ms(lambda: pixels.to(device).float()):5.2f} ms ({gpu.numbers})")

# %% cost-text [markdown]
# ## What a copy costs
#
# A copy costs a fixed latency, however small it is, and then time for its bytes:
#
# $$t(\text{bytes}) = \text{latency} + \frac{\text{bytes}}{\text{bandwidth}}$$
#
# The virtual GPU's copies follow this line by construction. So test it on recorded copies: a C
# program on a Quadro RTX 6000, a hundred copies queued at a time. (*Pinned* and *pageable* memory
# are the next section.) From pinned memory, a copy takes some 8 µs there, and then moves 12 GB/s.
# Compare many small ones with a large one:

# %% cost-predict
small_guess = gpulab.predict("256 × 4 KiB take how many times as long as 1 × 1 MiB?", unit="times")

# %% cost-same
recorded = gpulab.data.copies()  # memory: {bytes: milliseconds}
small, large = recorded["pinned"][2**12], recorded["pinned"][2**20]
why = f"{1000 * small:.1f} µs and {1000 * large:.1f} µs: the latency is paid 256 times."
small_guess.compare(round(256 * small / large), "recorded", because=why)

# %% cost-fit-text [markdown]
# Now fit the line, with weights $1/t$, so that relative errors count alike.

# %% cost-fit
gpulab.style.use()
figure, axes = plt.subplots(figsize=(7.2, 3.2))
for kind in ("pinned", "pageable"):
    sizes, took = np.array([*recorded[kind].items()]).T
    slope, latency = np.polyfit(sizes, took, 1, w=1 / took)
    line = f"{kind}: {1e3 * latency:.1f} µs + bytes / {1e-6 / slope:.1f} GB/s"
    axes.plot(sizes, took, "o", label=line)
    axes.plot(sizes, latency + slope * sizes, "k-", linewidth=1)
axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="ms (recorded)")
axes.set_title("Small copies cost the latency, large ones the bandwidth")
axes.legend()
gpulab.style.show(figure, alt="Time over size: flat up to some 8 kB, then rising in proportion.")

# %% cost-explain [markdown]
# No copy here is more than a sixth off its line.
#
# On these axes the line bends where the bytes take as long as the latency: at latency × bandwidth,
# here 90 kB for pinned memory. Far below that size, **make fewer copies**. Far above it, only bytes
# count. A thousand rows of 4 kB on your GPU, one by one and at once:

# %% cost-many
rows = torch.zeros(1000, 1000).pin_memory()
one_by_one = ms(lambda: [row.to(device, non_blocking=True) for row in rows])
at_once = ms(lambda: rows.to(device, non_blocking=True))
print(f"one by one {one_by_one:.2f} ms, at once {at_once:.2f} ms ({gpu.numbers})")

# %% pinned-text [markdown]
# ## Pinned memory
#
# The GPU fetches data by itself (direct memory access), so the pages must stay where they are.
# Ordinary memory is **pageable**: the system may move a page or write it to disk. So the driver
# copies it piece by piece into a **staging buffer**, which is page-locked, and the GPU fetches from
# there.
#
# ![A pageable copy goes piece by piece through the driver's staging buffer, and the host takes part. From pinned memory the GPU fetches by itself.](../docs/pictures/staging.svg)
#
# `pin_memory()` returns a copy whose pages are **locked**, or pinned. The GPU fetches from it at
# the full rate of the link, and the host is free. But locking pages is slow. Three ways to bring
# 67 MB to the GPU:

# %% pinned-run
ways = {
    "x.to(device)": lambda: x.to(device),
    "pinned.to(device, non_blocking=True)": lambda: pinned.to(device, non_blocking=True),
    "x.pin_memory().to(…, non_blocking=True)": lambda: x.pin_memory().to(device, non_blocking=True),
}
ms(ways["x.to(device)"])  # takes the memory on the GPU
for name, way in ways.items():
    print(f"{name:<40} first {gpu_ms(way):5.1f} ms, later {ms(way):4.1f} ms ({gpu.numbers})")

# %% pinned-explain [markdown]
# The line that looks most careful is the slowest, by far in its first call. It locks fresh pages
# (PyTorch keeps pinned blocks, so later calls cost less). And nothing is pipelined. In a pageable
# copy the driver sends one piece while it stages the next; here the transfer begins after the last
# byte has been copied. PyTorch's guide measured up to 2 times the time of `x.to(device)`. (The
# virtual GPU's factors are assumed.)
#
# Pinned memory pays where the pinning is done **beforehand, or by somebody else**. A `DataLoader`
# with `pin_memory=True` pins for you, in a thread of its own if it has workers. A buffer that you
# fill again and again is pinned once. Locked pages cannot be swapped, so pin batches, not data
# sets.

# %% fetch-turn-text [markdown]
# **Your turn** · 2 minutes. The everyday form has two halves: the loader pins, and the loop copies
# without waiting. Put in both. (Without workers, as here, the main process does the pinning.)

# %% fetch-turn tags=["your-turn"]
def fetch(dataset):
    ### BEGIN SOLUTION
    loader = torch.utils.data.DataLoader(dataset, batch_size=256, pin_memory=True)
    for images, labels in loader:
        yield images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)
    ### INSTEAD OF
    # loader = torch.utils.data.DataLoader(dataset, batch_size=256)
    # for images, labels in loader:
    #     yield images.to("cuda"), labels.to("cuda")
    ### END SOLUTION


gpulab.turn.everyday_form(fetch)

# %% waits-text [markdown]
# ## Who waits for a copy
#
# `non_blocking=True` says that *PyTorch* need not wait. Whether the *driver* waits depends on the
# memory. The next cell queues three long products and then copies 1 MB, in four ways: from pageable
# and from pinned memory, without and with the flag.

# %% waits-predict
wait_guess = gpulab.predict("In how many of the four ways can the host go on at once?")

# %% waits-run tags=["host-dependent"]
mb, waited = torch.ones(250_000), []
print("pinned non_blocking  waits, ms")
for source in (mb, mb.pin_memory()):
    for flag in (False, True):
        source.to(device, non_blocking=flag)  # takes the memory on the GPU
        products = busy()
        waited.append(1000 * seconds_of(lambda: source.to(device, non_blocking=flag)))
        torch.cuda.synchronize()
        print(f"{source.is_pinned()!s:<6} {flag!s:<12} {waited[-1]:9.2f} ({gpu.numbers})")
why = """The default waits until its bytes have arrived, so for all that is queued before them, too.
From pageable memory with the flag, CUDA may stage at once or wait for the stream first. Only a
pinned source with the flag is sure to let the host go."""
wait_guess.compare(sum(one < max(waited) / 2 for one in waited), gpu.numbers, because=why)

# %% waits-explain [markdown]
# So every plain `.to(device)` in a training loop waits. Tutorials disagree about the flag on
# pageable memory: it “may be slower”, or “the CPU continues immediately”. The driver has to stage
# the bytes either way, at once or after a wait. The virtual T4 waits. An H200 staged this MB and
# went on after 0.25 ms (recorded). For many small tensors the flag saves time, according to
# PyTorch's guide: the host does not wait for each.

# %% back-text [markdown]
# From the GPU to the host, the flag is **dangerous**. `y.to("cpu", non_blocking=True)` returns at
# once, with pinned memory that is still being filled. Until it is filled, a real GPU lets you read
# whatever stood there, without an error. (The virtual GPU has its values at once.) Synchronise
# before you read, or wait for an event. The same holds for the source of a copy *to* the GPU: do
# not fill a pinned buffer anew while its copy is under way.
#
# And a slice with gaps, such as `pinned[:, :100]`, is made contiguous first, in ordinary memory,
# and copied from there.

# %% streams-text [markdown]
# ## Two streams at once
#
# Now the copy does not hold up the host. Does the GPU compute meanwhile? It could: it has **copy
# engines** beside its multiprocessors. Six batches, each copied and multiplied:

# %% streams-same
batches = [torch.randn(2048, 1024).pin_memory() for _ in range(6)]
weight = torch.randn(1024, 1024, device=device)


def step(batch):
    (batch @ weight).relu_()


def one_stream(batches, step):
    for batch in batches:
        step(batch.to(device, non_blocking=True))


gpulab.timing.timeline(lambda: one_stream(batches, step))

# %% streams-explain [markdown]
# Nothing overlaps. **A stream is a queue, and a queue works in order.** The second batch's copy
# stands behind the first batch's product. `non_blocking` freed the host, and that is all it did.
#
# For overlap, the copies need a stream of their own. But two streams do not wait for each other by
# themselves. You say where one has to:
#
# ![Two streams: while main computes with batch 1, side copies batch 2. Arrows lead from the end of each copy to the start of its kernels.](../docs/pictures/two_streams.svg)
#
# - `main.wait_stream(side)`: what `main` is given **from here on** starts after what `side` has
#   been given **so far**. The host does not wait. Without it, kernels may read a batch that is not
#   there yet. Results are right on most days, garbage on some, and no error says so.
# - `batch.record_stream(main)`: the memory belongs to `side`, but `main` uses it. Without it, the
#   allocator may give a dropped batch's memory to the next copy, while `main` may still be reading.

# %% ahead-turn-text [markdown]
# **Your turn** · 3 minutes. `ahead` copies a batch in `side`. Its caller uses the result in the
# current stream, and then drops it. Put in the two lines that make this safe, without letting the
# host wait.

# %% ahead-turn tags=["your-turn"]
def ahead(batch, side):
    main = torch.cuda.current_stream()
    with torch.cuda.stream(side):
        coming = batch.to("cuda", non_blocking=True)
    ### BEGIN SOLUTION
    main.wait_stream(side)
    coming.record_stream(main)
    return coming
    ### INSTEAD OF
    # return coming
    ### END SOLUTION


gpulab.turn.safe_in_two_streams(ahead)

# %% streams-order [markdown]
# In a loop, the place of these lines matters: `main` waits for batch *i* **before** `side` is given
# batch *i + 1*. Otherwise it waits for both.

# %% streams-side
def two_streams(batches, step, side):
    main = torch.cuda.current_stream()
    with torch.cuda.stream(side):
        coming = batches[0].to(device, non_blocking=True)
    for following in [*batches[1:], None]:
        main.wait_stream(side)
        batch = coming
        batch.record_stream(main)
        if following is not None:
            with torch.cuda.stream(side):
                coming = following.to(device, non_blocking=True)
        step(batch)


two_streams(batches, step, side)  # takes its memory once
gpulab.timing.timeline(lambda: two_streams(batches, step, side))

# %% streams-limit [markdown]
# With overlap a step takes about the *longer* of copy and computation, not their sum. That is at
# best half, if both take equally long.
#
# How much does ResNet-18 gain, on a virtual A100? A batch of 64 images in float32 has 38.5 MB, and
# PCIe 4 moves 32 GB/s by its data sheet. Forward and backward take about 17 ms.

# %% streams-predict
hidden_guess = gpulab.predict("By how much does a second stream shorten this step?", unit="%")

# %% streams-build
def resnet(log):
    model = torchvision.models.resnet18().to("cuda")

    def step(images):
        loss = model(images).square().mean()
        loss.backward()
        log(loss)

    return step

# %% streams-resnet
with gpulab.VirtualGPU("A100-80", compute=False):
    images = [torch.empty(64, 3, 224, 224).pin_memory() for _ in range(6)]
    train, second = resnet(torch.detach), torch.cuda.Stream()
    one = ms(lambda: one_stream(images, train)) / 6
    two = ms(lambda: two_streams(images, train, second)) / 6
print(f"one stream {one:.2f} ms a step, two streams {two:.2f} ms (virtual)")
why = "A copy takes 1.6 ms at the 24 GB/s that the model assumes. The first of six is not hidden."
hidden_guess.compare(round(100 * (1 - two / one)), "virtual", because=why)

# %% streams-worth [markdown]
# So a second stream pays where copies take a large part of the step. Look in a timeline before you
# write it. Images sent as uint8 need a quarter of the bytes, with less code.
#
# ### See the whole pipeline
#
# The simulator opens with fast loading, large batches, and ordinary copies.
#
# 1. Tick *pin_memory*, then *non_blocking copies*. Which of the two shortens the step?
# 2. Tick *Copies in a side stream*. What is hidden now, and what limits the step?
# 3. Set *Batch* to 512 MiB. Which part of the chain is the slowest now?

# %% simulator-pipeline
gpulab.sim.pipeline(load=1, spread=0, workers=4, batch=256, compute=40)

# %% hidden-text [markdown]
# ## Hidden waits
#
# Wherever Python needs a *value* that the GPU has not computed yet, the host waits, and no word in
# the line says so. Here are eight lines that look harmless:

# %% hidden-lines
v = torch.randn(1000, device=device)
loss, mask = v.square().mean(), v > 0


def eight_lines():
    loss.item()
    f"{loss:.3f}"
    bool(loss > 100)  # what `if` and `while` do
    v[mask]
    v.argmax()
    v[mask] = 0.0
    torch.where(mask, v, 0.0)
    torch.tensor([0.1, 0.2], device=device)

# %% hidden-predict
lines_guess = gpulab.predict("In how many of these eight lines does the host wait?", unit="lines")

# %% hidden-run
found = gpulab.timing.syncs(eight_lines)
print(found)
why = """The host waits for a value, or for a size that depends on values: v[mask] has as many
elements as the mask has True. argmax has a known shape, writing one number through a mask needs no
size, and torch.tensor of a list is a default copy from pageable memory (torch.full is not)."""
lines_guess.compare(len(found), gpu.numbers, because=why)

# %% hidden-explain [markdown]
# `nonzero`, `unique` and `masked_select` wait, too. On a real GPU, `syncs` asks PyTorch, as you can
# yourself: after `torch.cuda.set_sync_debug_mode("warn")`, each such line warns that it `called a
# synchronizing CUDA operation`, and `"error"` stops there. Both miss copies for which the *driver*
# holds the host, and parts of `torch.distributed`.

# %% log-turn-text [markdown]
# **Your turn** · 3 minutes. This loop waits twice for each batch. Let it return the same two
# numbers without a wait before the last batch is queued. Keep no graph.

# %% log-turn tags=["your-turn"]
def log(step, batches):
    ### BEGIN SOLUTION
    losses = [step(batch).detach() for batch in batches]
    losses = torch.stack(losses)
    return losses.mean().item(), losses.max().item()
    ### INSTEAD OF
    # total, worst = 0.0, 0.0
    # for batch in batches:
    #     loss = step(batch)
    #     total += loss.item()
    #     worst = max(worst, loss.item())
    # return total / len(batches), worst
    ### END SOLUTION


gpulab.turn.no_wait_in_the_loop(log)

# %% hidden-cost-text [markdown]
# What does a wait cost? By the host's clock, most of a step “is” in `loss.item()`: there the host
# waits for work that has to be done anyway. Take the ResNet-18 again, with its 64 images on the
# virtual A100. (It computes no values here, so `synchronize` stands in for `.item()`.)

# %% hidden-cost-predict
item_guess = gpulab.predict("How much shorter is the step without loss.item()?", unit="%")

# %% hidden-cost
with gpulab.VirtualGPU("A100-80", compute=False):
    images = [torch.empty(64, 3, 224, 224, device="cuda")] * 6
    waits, goes_on = resnet(lambda loss: torch.cuda.synchronize()), resnet(torch.detach)
    one, two = (ms(lambda: one_stream(images, train)) / 6 for train in (waits, goes_on))
print(f"with a wait in each step {one:.2f} ms, without {two:.2f} ms (virtual)")
why = "Only the head start is lost: the GPU idles until the next launch arrives."
item_guess.compare(round(100 * (1 - two / one), 1), "virtual", because=why)

# %% hidden-cost-explain [markdown]
# After a wait the queue is empty. Beside a long step that costs little; it costs more if the host
# loads and augments between two steps. And it adds up with a wait per *parameter*. Here are the
# norms of ResNet-18's gradients, read with 62 waits and with one, and a picture of the first nine
# waits:

# %% hidden-metrics
gradients = [torch.randn_like(p) for p in torchvision.models.resnet18().to(device).parameters()]
one_by_one = ms(lambda: [g.norm().item() for g in gradients])
at_once = ms(lambda: torch.stack([g.norm() for g in gradients]).tolist())
print(f".item() on each {one_by_one:.2f} ms, read at once {at_once:.2f} ms ({gpu.numbers})")
gpulab.timing.timeline(lambda: [g.norm().item() for g in gradients[:9]])

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict |
# |---|---|
# | “`non_blocking=True` overlaps transfer and compute.” | It frees the host, from pinned memory. Overlap needs a second stream. |
# | “Asynchronous copies of unpinned memory may be slower.” | They take about as long, and less time for many small tensors. Pinning in the same line is slower. |
# | “The first iteration is slow because kernels are compiled.” | Hardly in eager mode: memory is taken, code loaded, handles made, algorithms tried. |
# | “Call `synchronize` to be safe.” | Around a clock, and before you read an asynchronous copy. Elsewhere it is one more wait, or for debugging. |
# | “`pin_memory=True` always helps.” | Only with a thread that pins ahead and copies that do not block. |

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **Making the data inside the clock.** A timed `torch.randn(2**22).to(device)` times the CPU's
# random numbers.
#
# **Reading events too early.** `record` only queues the mark. `ValueError: Both events must be
# completed before calculating elapsed time.` means that `end.synchronize()` is missing.
# `ValueError: Both events must be created with argument 'enable_timing=True'.` names its own cure.
#
# **Pinning what is on the GPU.** `cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be
# pinned` means that a data set returns GPU tensors. Let it return CPU tensors.
#
# **Forgetting `wait_stream`.** Values are right on most days, so tests pass. PyTorch's *CUDA
# Sanitizer* looks at who waited for whom: `TORCH_CUDA_SANITIZER=1 python train.py`. It is slow, and
# knows nothing of `record_stream`.

# %% quiz-text [markdown]
# ## Quick check

# %% quiz
gpulab.quiz(3)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. A GPU call returns when it is queued. Synchronise on both sides of a host's clock, or use two
#    events in the stream that does the work. Warm up, and take the median.
# 2. A copy costs about latency + bytes ÷ bandwidth. Make few large copies, of small dtypes, and
#    stay on the GPU.
# 3. Pinned memory is faster, and asynchronous with `non_blocking`, if something pins *ahead*.
# 4. `non_blocking` frees the host. Overlap needs a side stream, with `wait_stream` and
#    `record_stream`, and pays where copies are a large part of the step.
# 5. The host waits where it needs a value, or a size that depends on values. What it loses is its
#    head start.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/03_moving_data.ipynb): a timer, a transfer benchmark, hidden waits, a
# prefetcher. Then [the map of the course](00_start_here.ipynb).
#
# ## References
#
# - PyTorch documentation: *CUDA semantics*; `torch.Tensor.record_stream`; *CUDA Stream Sanitizer*.
# - V. Moens, *A guide on good usage of `non_blocking` and `pin_memory()` in PyTorch*, 2024.
# - NVIDIA, *CUDA Driver API*, “API synchronization behavior”: what a pageable copy waits for.
# - Recorded copies: github.com/npho/cse554. The T4 in a loop: forums.developer.nvidia.com/t/264462.

# %% title [markdown]
# # 03 · Moving data
#
# **Promise:** you time what runs asynchronously and get the truth; you make transfers cheap; then you hide what is left
# of them behind the computation.
#
# After this lesson you can
#
# 1. **explain** why a GPU call returns before its work is done, and **build** a timer that is not fooled by it;
# 2. **predict** the time of a copy from its size, with two numbers, a latency and a bandwidth, and **say** how far that holds;
# 3. **decide** when pinned memory pays, and **recognise** the line in which it costs more than it saves;
# 4. **find** the lines in which the host waits although nobody asked it to;
# 5. **overlap** copies with computation, and **prove** the overlap with a timeline.
#
# | time | before this | runs on |
# |---|---|---|
# | 60 minutes, and as long for the exercises | `02_devices`; a training loop of your own | any machine |

# %% setup-text [markdown]
# The first cell prints what the numbers in this notebook are. On a virtual GPU, GPU times come from its model and repeat
# exactly; the host's clock shows the model's launches and waits, and whatever this machine does in between. On a real
# GPU all of it is measured.

# %% setup
import contextlib
import io
import json
import statistics
import tempfile
import time
import warnings

import matplotlib.pyplot as plt
import torch

import gpulab

gpu = gpulab.setup()
device = gpu.device

# %% question-text [markdown]
# ## A question worth asking
#
# How fast is this GPU at a matrix product? A product of two n × n matrices takes $2n^3$ operations: $n^2$ results, each
# the sum of n products. So run one, stop the time, and divide. A T4's data sheet promises 8.1 TFLOP/s in fp32, an
# A100's 19.5.

# %% question-predict
rate_guess = gpulab.predict("What rate will the next cell report?", unit="TFLOP/s")

# %% question-run tags=["host-dependent"]
n = 2048
a, b = (torch.randn(n, n, device=device) for _ in range(2))
product, tiny, times = torch.empty_like(a), torch.randn(8, 8, device=device), []
for _ in range(4):
    for _ in range(5):
        tiny @ tiny  # a warm-up, so that only the product is in the time
    start = time.perf_counter()
    torch.mm(a, b, out=product)  # into memory that is there already
    times.append(time.perf_counter() - start)

rate = 2 * n**3 / min(times) / 1e12
told = "No single GPU comes near that in fp32: when the clock was stopped, the product had only been asked for."
rate_guess.compare(round(rate), gpu.numbers, because=told)
print(f"the fastest of four took {min(times) * 1e6:.0f} µs: {rate:,.0f} TFLOP/s ({gpu.numbers})")

# %% question-answer [markdown]
# With other sizes the mistake of this cell gives a plausible number, and it ends up in a report. This lesson is about
# what happens between asking and having: for work, and then for data.

# %% queue-text [markdown]
# ## The launch queue
#
# A GPU call returns when the work has been *queued*. The host (the CPU and your Python) checks shapes, takes memory for
# the result, and puts a launch into a queue, called a **stream**. The GPU works off the queue, in order. The tensor you
# get back is real, and its values are a promise.
#
# That is a feature: the host needs microseconds for an operation (the virtual one 15 for a line of Python, 28 to 33
# for a layer's; published trainings that wait for it took 32 to 34 a kernel, recorded, lesson 01), and by running ahead it keeps
# the GPU supplied. Watch two moments: when the call returns, and when the GPU is done. (In float64, at which a T4 is slow, three
# launches are a long queue. A real GPU that is fast at it gets larger matrices.)

# %% queue-run tags=["host-dependent"]
def host_times(work, repeats=3):
    """Milliseconds until `work()` returns and until the GPU is done, by the host's clock; the fastest run."""
    runs = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        kept = work()  # kept, so that freeing the result is not timed
        returned = time.perf_counter()
        torch.cuda.synchronize()
        runs.append(((returned - start) * 1e3, (time.perf_counter() - start) * 1e3))
        del kept
    return min(runs)


c = torch.randn(1024, 1024, device=device, dtype=torch.float64)
while gpu.numbers == "measured" and host_times(lambda: c @ c)[1] < 2:
    c = c.repeat(2, 2)
returned, done = host_times(lambda: [c @ c for _ in range(3)])
print(f"3 products: queued after {returned:.2f} ms, done after {done:.2f} ms ({gpu.numbers})")

# %% queue-explain [markdown]
# `torch.cuda.synchronize()` is the call that waits: it returns when everything queued on the device, in all its
# streams, has been done. It computes nothing, and it does not “refresh” or “free” anything. You need it in two places:
# around a host's clock, and before you touch memory that an asynchronous copy is still filling. Without a GPU it raises
# `RuntimeError: Found no NVIDIA driver on your system`; code for any machine asks `torch.accelerator.is_available()` first.
#
# The queue has an end. After about a thousand launches (observed; NVIDIA does not document it) the next one waits for
# room. A timer without `synchronize` then begins to see part of the truth, and is believed.

# %% simulator-queue-text [markdown]
# ### See it move
#
# The simulator opens on six steps of 24 kernels and a good host, 5 µs for each. Two timers stand under the picture, one of
# them wrong. Try this:
#
# 1. Read the loss *every step*. Now both timers agree. Did the step become much slower?
# 2. Set it back to *never*, *Kernel time* to 3 µs and *Launch cost* to the virtual host's 15 µs. Who waits for whom now, and
#    how much of the time does a kernel run?
# 3. Set *Kernel time* to 200 µs and *Kernels per step* to 200. The queue is full, the host waits, and the timer still
#    lies.

# %% simulator-queue
gpulab.sim.launch_queue()

# %% clock-text [markdown]
# ## A clock that tells the truth
#
# There are two honest ways to time GPU work.
#
# - **The host's clock, with `synchronize` on both sides.** Before the start, so that older work is not counted; before
#   the end, so that the new work is. Use `time.perf_counter`; `time.time` can be set back while you measure.
# - **Two events.** An event is a mark in the stream. The GPU notes the time when it gets there, and `elapsed_time` gives
#   the milliseconds between two marks. The host need not wait, except before it reads.
#
# Then repeat, and quote the **median**: single runs are disturbed, and a mean is dragged by the worst of them. Time a call
# of a few microseconds a hundred at a time; alone, either clock shows little but its launch.

# %% clock-run
def gpu_ms(work, repeats=3):
    """Median milliseconds of `work()`, by the GPU's clock."""
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


took = gpu_ms(lambda: a @ b)
print(f"{took:.3f} ms: {2 * n**3 / took / 1e9:.1f} TFLOP/s ({gpu.numbers})")

# %% clock-warm-text [markdown]
# Below the data sheet, as it should be. One trap is left: the **first** run. It takes memory from the driver, and on a
# real GPU it also loads the kernel's code. The first of all creates the libraries' handles: the model assumes 60 ms for cuBLAS,
# spent further up. Autotuning, where it is on, runs in the first call too. So call the work a few times
# before the clock starts.

# %% clock-warm
torch.cuda.empty_cache()
d = torch.randn(2048, 64, device=device)
calls = [gpu_ms(lambda: d @ d.T, repeats=1) for _ in range(4)]
print("calls 1 to 4, ms:", [round(t, 3) for t in calls], f"({gpu.numbers})")
print("the first is the slowest:", calls[0] > max(calls[1:]))

# %% clock-tools [markdown]
# Write this timer once (the first exercise), and then use a tool. `torch.utils.benchmark.Timer` synchronises for you and
# chooses the number of runs; `gpulab.timing.measure` reads events and gives the spread:

# %% clock-measure
print(gpulab.timing.measure(lambda: a @ b, repeat=3, warm_up=1))

# %% sheet-text [markdown]
# ## Beat the datasheet
#
# Below are three benchmarks of the same product of 2048 × 2048 matrices. All three use events and a warm-up. All three
# divide by the same $2n^3$. At least one is a lie. Which one do you believe?

# %% sheet-run
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())  # `a` and `b` must be there before the side stream reads them


def in_side_stream():
    with torch.cuda.stream(side):
        a @ b


a16, b16 = a.half(), b.half()
benchmarks = {"one": in_side_stream, "two": lambda: a16 @ b16, "three": lambda: a @ b}
for name, work in benchmarks.items():
    work()
    print(f"benchmark {name:<5} {2 * n**3 / gpu_ms(work) / 1e9:>10,.1f} TFLOP/s ({gpu.numbers})")

# %% sheet-explain [markdown]
# *One* claims hundreds of TFLOP/s, with a good clock: but the events stand in the current stream, the product runs in another, and
# nothing makes the one wait for the other. *Two* is true and answers another question: fp16 on tensor cores, set beside
# an fp32 peak, “beats” it. *Three* is what you asked for. More ways to report too much:
#
# - **Time on zeros.** Recorded on an H200, 8192³ in bf16: 769–798 TFLOP/s on random data, 894 on zeros. Bits that do not
#   flip take less power, and the clock stays higher.
# - **Quote the sparse peak.** NVIDIA prints 1,979 TFLOP/s for an H100's bf16, with a footnote: with sparsity. Dense: 989.
# - **Stop early.** A T4 does 40 TFLOP/s in *two* (virtual), and 24 in a loop, at its limit of 70 W (recorded).
# - **Count another model's operations**, or let the result be in cache.
#
# A rate well above the peak is a fault of the benchmark; `gpulab.timing.mfu` refuses it. (A few per cent may be the card:
# data sheets reckon with the nominal boost clock, which gaming cards exceed.)

# %% bridge-text [markdown]
# ## Two memories and a bridge
#
# The GPU's kernels read the GPU's own memory (HBM or GDDR), and the host's data come over a link, mostly PCIe. How
# unequal are the two? Copy 67 MB within the GPU, then from the host. The copy within the GPU reads and writes every
# byte, so its memory moves twice the size.

# %% bridge-predict
bridge_guess = gpulab.predict("By data sheets, an H200's memory is how many times as fast as its PCIe 5 link?", unit="times")

# %% bridge-run
here = torch.randn(2**24).pin_memory()
there, other = (torch.empty(2**24, device=device) for _ in range(2))
within = gpu_ms(lambda: other.copy_(there))
across = gpu_ms(lambda: other.copy_(here, non_blocking=True))
print(f"within the GPU: {2 * there.nbytes / within / 1e6:6.1f} GB/s read and written ({gpu.numbers})")
print(f"from the host:  {here.nbytes / across / 1e6:6.1f} GB/s ({gpu.numbers})")

# %% bridge-table
peaks = {"T4, PCIe 3": (320, 16), "RTX 4090, PCIe 4": (1008, 32), "A100-80, PCIe 4": (2039, 32),
         "H100, PCIe 5": (3350, 64), "H200, PCIe 5": (4800, 64)}
for name, (memory, link) in peaks.items():
    print(f"{name:<17} {memory:>5} / {link} GB/s = {memory / link:2.0f} times (computed from data sheets)")
bridge_guess.compare(memory / link, "computed")

# %% bridge-explain [markdown]
# “PCIe is 60 times slower than the GPU's memory” is a true sentence about an A100 and a false one about most other
# cards. The conclusion is the same on all of these: **move data once, keep it there, and compute on it more than once**. A
# product of large matrices does. An addition does not pay for its own transfer.
#
# One detail costs image pipelines a factor of four in bytes, and the host's work besides. When a default copy also changes
# the dtype, the conversion runs on the *host*, and the larger type crosses the bridge. (With `non_blocking=True` PyTorch converts on the GPU.) Here
# are 16.8 million bytes that shall become float32:

# %% bridge-dtype
pixels = torch.zeros(2**24, dtype=torch.uint8)
conversions = {
    "x.to(device, torch.float32)": lambda: pixels.to(device, torch.float32),
    "x.to(device).float()": lambda: pixels.to(device).float(),
}
for name, convert in conversions.items():
    print(f"{name:<28} {gpu_ms(convert):5.2f} ms ({gpu.numbers})")

# %% cost-text [markdown]
# ## What a copy costs
#
# A copy costs a fixed latency, however small it is, and then time for its bytes. As a line:
#
# $$t(\text{bytes}) = \text{latency} + \frac{\text{bytes}}{\text{bandwidth}}$$
#
# Two numbers would predict every transfer of your program, if copies kept to a line. The virtual GPU's do, for that is how
# its model makes them. So try it on recorded ones: a Quadro RTX 6000, 1 KiB to 1 MiB, from ordinary (**pageable**) and from
# page-locked (**pinned**) memory; the next section says what that is. Your GPU's own times stand beside them, also a
# hundred, one after the other. (The recorded were called from C; yours have Python's part in their latency.)

# %% cost-predict
small_guess = gpulab.predict("RTX 6000, pinned: 1,000 copies of 4 kB take how many times as long as one of 4 MB?", unit="times")

# %% cost-measure
recorded = gpulab.data.copies()
sizes = list(recorded["pinned"])
found = {kind: [recorded[kind][size] for size in sizes] for kind in ("pinned", "pageable")}
here = {"pinned": [], "pageable": []}
for size in sizes:
    ordinary = torch.ones(size, dtype=torch.uint8)
    target = torch.empty(size, dtype=torch.uint8, device=device)
    for kind, source in (("pinned", ordinary.pin_memory()), ("pageable", ordinary)):
        target.copy_(source)  # warm-up
        here[kind].append(gpu_ms(lambda: [target.copy_(source) for _ in range(100)]) / 100)

for numbers, times in (("recorded", found), (gpu.numbers, here)):
    for kind in times:
        some = [f"{times[kind][place] * 1e3:.1f}" for place in (0, 2, 4, 5, 6, 8, 10)]
        print(f"{kind:<9} 1, 4, 16, 32, 64, 256, 1024 KiB: {', '.join(some)} µs ({numbers})")

# %% cost-fit-text [markdown]
# Now the line. Ordinary least squares would look at the largest copy only, since its error in milliseconds is the
# largest. Weight each point by $1/t^2$, and relative errors count alike.

# %% cost-fit
def fit(sizes, times):
    """Latency in ms and bandwidth in bytes per ms: the line with the least relative errors."""
    x, t = torch.tensor(sizes, dtype=torch.float64), torch.tensor(times, dtype=torch.float64)
    rows = torch.stack([1 / t, x / t], dim=1)  # each row divided by its time
    latency, slope = torch.linalg.lstsq(rows, torch.ones_like(t)[:, None]).solution.flatten().tolist()
    return latency, 1 / slope


lines = {kind: fit(sizes, times) for kind, times in found.items()}
for kind, (latency, bandwidth) in lines.items():
    worst = max((abs(latency + x / bandwidth - t) / t, x) for x, t in zip(sizes, found[kind]))
    print(f"{kind:<9} latency {latency * 1e3:4.1f} µs, bandwidth {bandwidth / 1e6:4.1f} GB/s (recorded);", end=" ")
    print(f"furthest from the line: {worst[0]:.0%}, at {worst[1] // 1024} KiB")

# %% cost-check-text [markdown]
# Not quite a line: there are kinks, probably where the driver changes its way of copying, and 32 KiB of pinned memory take no
# longer than 16. Up to a sixth off, for two numbers, will do for planning. Does a line also tell what larger copies take? Fit the
# pinned copies of another machine, a V100 on PCIe 3, up to 10 MB, and look beyond:

# %% cost-check
v100 = recorded["pinned, V100"]
near = [size for size in v100 if size <= 10_000_000]
latency, bandwidth = fit(near, [v100[size] for size in near])
for size in (size for size in v100 if size > 10_000_000):
    predicted = latency + size / bandwidth
    print(f"{size / 1e6:.0f} MB: predicted {predicted:.2f} ms, took {v100[size]:.2f} ms (recorded): {predicted / v100[size] - 1:+.0%}")

# %% cost-plot
gpulab.style.use()
figure, axes = plt.subplots(figsize=(7, 3.8))
grid = [2 ** (10 + step / 4) for step in range(41)]
for kind, color in (("pinned", gpulab.style.BLUE), ("pageable", gpulab.style.ORANGE)):
    latency, bandwidth = lines[kind]
    axes.plot(sizes, found[kind], "o", color=color, label=f"{kind} (recorded)")
    axes.plot(grid, [latency + x / bandwidth for x in grid], "-", color=color, linewidth=1.5)
    axes.axvline(latency * bandwidth, color=color, linestyle=":", linewidth=1.2)
axes.set(xscale="log", yscale="log", xlabel="size of the copy (bytes)", ylabel="time (ms)")
axes.set_title("Small copies cost the latency, large ones the bandwidth")
axes.legend()
gpulab.style.show(
    figure,
    alt="Recorded time of a copy to the GPU over its size, both logarithmic, with fitted lines. Nearly flat up to about 8 kB, then "
    "rising in proportion; above 16 kB pageable copies take longer. Dotted lines mark where latency and bytes cost the same.",
)

# %% cost-explain [markdown]
# Beyond 10 MB most copies keep to the line, and two of this recording took an eighth longer than it says, with others that did not
# between them: a line is a plan, not a promise. (Queued a hundred at a time, as here, a copy has a smaller latency than
# one by one.)
#
# The dotted lines stand at latency × bandwidth: there, half of the time is latency. On the left of it the size hardly
# matters, so *fewer* copies are what helps (below 16 KiB not even pinned memory gained anything here); on the right only the
# bytes matter. A batch of a thousand tensors of 4 kB is far on the left, where the virtual host takes longer to ask for a copy
# (15 µs) than the link for making it:

# %% cost-many
many = [torch.zeros(1000).pin_memory() for _ in range(1000)]
whole = torch.zeros(1000, 1000).pin_memory()
rows = torch.empty(1000, 1000, device=device)
apart = gpu_ms(lambda: [row.copy_(x, non_blocking=True) for row, x in zip(rows, many, strict=True)], repeats=1)
together = gpu_ms(lambda: rows.copy_(whole, non_blocking=True))
print(f"1,000 × 4 kB: {apart:.2f} ms, 1 × 4 MB: {together:.2f} ms ({gpu.numbers})")
latency, bandwidth = lines["pinned"]
by_line = 1000 * (latency + 4000 / bandwidth) / (latency + 4e6 / bandwidth)
told = "By the line through its recorded times. The bytes cost the same, and the latency is paid a thousand times."
small_guess.compare(round(by_line), "computed", because=told)

# %% pinned-text [markdown]
# ## Pinned memory
#
# The GPU fetches data by itself (direct memory access), and for that the pages must stay where they are. Ordinary memory
# is *pageable*: the system may move a page or write it to disk. So the driver copies it piece by piece into a small
# page-locked buffer of its own, the **staging buffer**, and the GPU fetches from there: as if a truck could load only at
# the dock, and you carried each book there from its shelf. Every byte passes the host's memory twice, and the host takes
# part.
#
# `pin_memory()` gives you a tensor whose pages are locked. The GPU fetches straight from it, at the full rate of the
# link, and the host is free. It is also a copy, and locking pages is slow work for the system. Four ways to bring a batch
# of 16.8 MB to the GPU:

# %% pinned-run
x = torch.randn(2**22)
pinned = x.pin_memory()  # made ahead, as a loader's thread does
ways = {
    "x.to(device)": lambda: x.to(device),
    "x.to(device, non_blocking=True)": lambda: x.to(device, non_blocking=True),
    "pinned.to(device, non_blocking=True)": lambda: pinned.to(device, non_blocking=True),
    "x.pin_memory().to(device, non_blocking=True)": lambda: x.pin_memory().to(device, non_blocking=True),
}
ways["x.to(device)"]()  # the GPU's memory is taken once, outside the clock
first = {name: gpu_ms(way, repeats=1) for name, way in ways.items()}
again = {name: gpu_ms(way) for name, way in ways.items()}
for name in ways:
    print(f"{name:<45} {first[name]:6.2f} ms, then {again[name]:5.2f} ms ({gpu.numbers})")

# %% pinned-explain [markdown]
# The line that looks most careful is the slowest, the first time at least. Both it and `x.to(device)` copy every byte once on the host, into
# page-locked memory, from where the GPU fetches it. Two things are lost in line. The first time fresh pages must be locked
# (PyTorch keeps pinned blocks, so later calls cost less). And nothing is pipelined: the driver sends
# one piece while it stages the next, but here the transfer begins when the last byte has been copied, on the thread that
# should be launching kernels. How much that is depends on the host: PyTorch's guide measured up to twice the time; the
# virtual GPU's factors are what its model assumes (2 GB/s into fresh pages, 10 into old ones).
#
# Pinned memory pays where the pinning is done **beforehand or by somebody else**: `DataLoader(pin_memory=True)` pins in a
# thread of its own while your step runs; a buffer that you fill again and again is pinned once. And it is not free:
# pages that are locked cannot be swapped, so a machine with little memory gets slow or fails. Pin batches, not data sets.

# %% pinned-loader-text [markdown]
# So the everyday form has two halves: the loader pins, and the loop copies without blocking. (With `pin_memory=True` and no
# GPU the loader only warns.)

# %% pinned-loader
images, labels = gpulab.data.digits("train")
dataset = torch.utils.data.TensorDataset(images, labels)
loader = torch.utils.data.DataLoader(dataset, batch_size=256, shuffle=True, pin_memory=True)
for inputs, targets in loader:
    was_pinned = inputs.is_pinned()
    inputs, targets = inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
print("pinned by the loader:", was_pinned, "· now on:", inputs.device.type, targets.device.type)

# %% waits-text [markdown]
# ## Who waits for a copy
#
# `non_blocking=True` says that *PyTorch* need not wait. Whether the *driver* must is another question, and the answer
# depends on the memory. The next cell first queues three products, and then copies **1 MB**, which by the line above
# takes a fraction of a millisecond: from pageable and from pinned memory, without the flag and with it.

# %% waits-predict
wait_guess = gpulab.predict("In how many of the four ways to copy can the host go on while the products run?")

# %% waits-run tags=["host-dependent"]
one_mb = torch.ones(250_000)
one_mb_pinned = one_mb.pin_memory()
copies = {
    "x.to(device)": lambda: one_mb.to(device),
    "x.to(device, non_blocking=True)": lambda: one_mb.to(device, non_blocking=True),
    "pinned.to(device)": lambda: one_mb_pinned.to(device),
    "pinned.to(device, non_blocking=True)": lambda: one_mb_pinned.to(device, non_blocking=True),
}
free = 0
for name, copy in copies.items():
    returned, done = host_times(lambda: ([c @ c for _ in range(3)], copy()))
    free += returned < done / 2
    print(f"{name:<37} host free after {returned:5.2f} ms, all done after {done:5.2f} ms ({gpu.numbers})")
told = """The default waits for everything queued before it, and then until its bytes have arrived, from pinned memory
too. From pageable memory the flag lets the host go once they are staged, and CUDA may wait for the stream before that,
as the model does. A pinned source and the flag: the host goes on at once."""
wait_guess.compare(free, gpu.numbers, because=told)

# %% waits-explain [markdown]
# So most training loops have a hidden `synchronize`. And a quarrel of the tutorials is settled: one says that
# `non_blocking` on unpinned memory “may be slower”, another that “the CPU continues immediately”. Neither is right.
# CUDA may synchronise with the stream and stage first; then it gains little for one large tensor, and costs nothing.
# (An H200 staged 1 MB and went on after 0.25 ms, recorded.) For many *small* tensors `non_blocking` does gain from
# ordinary memory too: the host waits once at the end, and not after each (for 8 µs, as the model has it).

# %% waits-many
small = [torch.zeros(1000) for _ in range(1000)]
for non_blocking in (False, True):
    done = gpu_ms(lambda: [t.to(device, non_blocking=non_blocking) for t in small])
    print(f"1,000 pageable tensors of 4 kB, non_blocking={non_blocking!s:<5}: {done:5.1f} ms ({gpu.numbers})")

# %% back-text [markdown]
# On the way back the same flag is **dangerous**. `y.to("cpu", non_blocking=True)` returns at once, with pinned memory that
# is still being filled:

# %% back-run
products = [c @ c for _ in range(3)]
arrived = torch.cuda.Event()
on_host = products[-1].to("cpu", non_blocking=True)
arrived.record()
print("is it pinned?", on_host.is_pinned(), "· are its values there?", arrived.query())
arrived.synchronize()
print("after waiting for the event:", arrived.query())

# %% back-explain [markdown]
# Until the event has happened, a real GPU lets you read whatever stood in that memory before, with no error. (A virtual
# GPU's values are always there; only its clock knows.) Wait for an event or synchronise before you read. The same holds
# for the source of a copy *to* the GPU: do not overwrite a pinned buffer whose copy has not been done. Dropping it is
# fine, PyTorch keeps the block until the copy is through.
#
# And one thing quietly undoes the pinning: a slice with gaps, such as `pinned[:, :100]`, is first made contiguous on the
# host, in ordinary memory.

# %% streams-text [markdown]
# ## Two streams at once
#
# Now the copy is asynchronous for the host. Does the GPU compute while it runs? The GPU has **copy engines** beside its
# multiprocessors, so it could. Six batches; copying one takes about as long as computing with it.

# %% streams-same
batches = [torch.randn(2048, 1024).pin_memory() for _ in range(6)]
weight = torch.randn(1024, 1024, device=device)


def step(batch):
    return (batch @ weight).relu_()


def same_stream():
    return [step(batch.to(device, non_blocking=True)) for batch in batches]


resident = [batch.to(device) for batch in batches]
copying = gpu_ms(lambda: [batch.to(device, non_blocking=True) for batch in batches])
computing = gpu_ms(lambda: [step(batch) for batch in resident])
together = gpu_ms(same_stream)
print(f"copies {copying:.2f} ms, computing {computing:.2f}, both in one stream {together:.2f} ({gpu.numbers})")

# %% streams-explain [markdown]
# The sum: nothing overlapped. **A stream is a queue, and a queue works in order.** The second batch's copy stands behind
# the first batch's products. `non_blocking` freed the host, and that is all it says.
#
# For overlap the copies need a queue of their own. While batch *i* is computed, batch *i + 1* is copied in a side stream.
# Two lines keep it right, `wait_stream` and `record_stream`. How long do the six batches take so?

# %% streams-predict
overlap_guess = gpulab.predict("Six batches, copied in a side stream and computed: how long does it take?", unit="ms")

# %% streams-side
def side_stream():
    main, results = torch.cuda.current_stream(), []
    with torch.cuda.stream(side):
        coming = batches[0].to(device, non_blocking=True)
    for i in range(len(batches)):
        main.wait_stream(side)
        batch = coming
        batch.record_stream(main)
        if i + 1 < len(batches):
            with torch.cuda.stream(side):
                coming = batches[i + 1].to(device, non_blocking=True)
        results.append(step(batch))
    return results


side_stream()  # memory for the side stream is taken once
hidden = gpu_ms(side_stream)
told = "A step takes the longer of copying and computing; the first batch's copy has nothing to hide behind."
overlap_guess.compare(round(hidden, 2), gpu.numbers, because=told)
print("same values:", all(map(torch.equal, same_stream(), side_stream())))

# %% streams-lines-text [markdown]
# Line by line (click one, or choose with the arrow keys):

# %% streams-lines
gpulab.annotated(side_stream, {
    "coming = batches[0]": "The first copy, in a queue of its own. The host goes on at once.",
    "main.wait_stream(side)": "What is queued on main from here on starts after what side has been given so far, which is "
    "the copy of batch i. The host does not wait.",
    "batch.record_stream(main)": "The memory belongs to side: do not give it away while main may be reading it.",
    "coming = batches[i + 1]": "The copy of the next batch. It stands in side, so no product stands before it.",
    "step(batch)": "Queued on main: computes batch i while the copy engine brings batch i + 1.",
})

# %% streams-trace-text [markdown]
# Do not believe a speed-up; look at it. `gpulab.timing.trace` writes a Chrome trace of what the GPU did when (on a real GPU
# with `torch.profiler`); you can open the file in `chrome://tracing` or Perfetto. Here it is drawn:

# %% streams-trace
def traced(work):
    """(lane, start, milliseconds) of the copies and kernels of `work()`."""
    with tempfile.TemporaryDirectory() as folder:
        with gpulab.timing.trace(f"{folder}/trace.json") as path:
            work()
            torch.cuda.synchronize()
        events = json.loads(path.read_text())["traceEvents"]
    lanes = {"to GPU": "copies", "gpu_memcpy": "copies", "kernels": "kernels", "kernel": "kernels"}
    spans = [(lanes[e["cat"]], e["ts"] / 1e3, e["dur"] / 1e3) for e in events if e.get("cat") in lanes]
    begin = min(start for _, start, _ in spans)
    return [(lane, start - begin, length) for lane, start, length in spans]


runs = {"one stream": traced(same_stream), "side stream": traced(side_stream)}
print({name: len(spans) for name, spans in runs.items()}, "copies and kernels")

# %% streams-plot
figure, panels = plt.subplots(2, 1, figsize=(7.6, 3.4), sharex=True)
for axes, (name, spans) in zip(panels, runs.items(), strict=True):
    for row, (lane, color) in enumerate((("copies", gpulab.style.PURPLE), ("kernels", gpulab.style.GREEN))):
        bars = [(start, length) for where, start, length in spans if where == lane]
        axes.broken_barh(bars, (row - 0.35, 0.7), color=color, edgecolor=gpulab.style.INK, linewidth=0.6)
    axes.set_yticks([0, 1], ["copies", "kernels"])
    axes.set_ylabel(name)
    axes.grid(visible=False, axis="y")
panels[0].set_title("In a side stream, copies run while the GPU computes")
panels[1].set_xlabel(f"time (ms, {gpu.numbers})")
gpulab.style.show(
    figure,
    alt="Two timelines of six copies and their kernels. Above, in one stream, copies and kernels alternate. Below, with a "
    "side stream, the copies follow each other without a gap, the kernels run at the same time, and all is done sooner.",
)

# %% streams-limit [markdown]
# With overlap a step takes the *longer* of copy and computation, not their sum: at best half. If the copy is the longer
# one, as on a fast GPU behind a narrow link, computing is hidden and copying is not. And what happens without
# `wait_stream`? The products do not wait for their data:

# %% streams-race
begin, data_there, may_start = (torch.cuda.Event(enable_timing=True) for _ in range(3))
all_of_them = torch.cat(batches * 4).pin_memory()  # so large that no link is done before the host has gone on
torch.cuda.synchronize()
begin.record()
with torch.cuda.stream(side):
    coming = all_of_them.to(device, non_blocking=True)
    data_there.record()
may_start.record()  # the current stream: a product queued here need not wait for the side stream
torch.cuda.synchronize()
print("the product may start before its data are there:", begin.elapsed_time(may_start) < begin.elapsed_time(data_there))

# %% streams-memory [markdown]
# On a real GPU that is a race: right on most days, garbage on some, never an error. `record_stream` guards against its
# mirror image. The batch was allocated in the side stream. When Python drops it, the allocator gives its block to the
# *next* copy of that stream at once, which may overwrite it while the main stream's kernel still reads. With
# `record_stream` the block is held back until `main` has passed. (On the virtual GPU no value can be spoilt, since values
# are computed at once.) Another way out: `side.wait_stream(main)` before each copy, at the price of some overlap.

# %% simulator-pipeline-text [markdown]
# ### See the whole pipeline
#
# The simulator opens with fast loading, large batches, and ordinary copies. Try this, in this order:
#
# 1. Tick *pin_memory*, then *non_blocking copies*. Which of the two shortens the step?
# 2. Tick *Copies in a side stream*. What is hidden now, and what limits the step?
# 3. Set *Batch* to 512 MiB. Which part of the chain is the slowest now?

# %% simulator-pipeline
gpulab.sim.pipeline(load=1, spread=0, workers=4, batch=256, compute=40)

# %% hidden-text [markdown]
# ## Hidden waits
#
# Whenever Python needs a *value* that the GPU has not computed yet, the host waits. No line of it says `synchronize`.
# PyTorch can tell you: `torch.cuda.set_sync_debug_mode("warn")` warns at such a line, and `"error"` stops there.

# %% hidden-tool
def waits(line):
    """Whether PyTorch reports a wait in `line()`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            line()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return any("synchronizing CUDA operation" in str(warning.message) for warning in caught)

# %% hidden-lines
v = torch.randn(1000, device=device)
loss, mask = v.square().mean(), v > 0
suspects = {
    "loss.item()": lambda: loss.item(),
    'print(f"{loss:.3f}")': lambda: f"{loss:.3f}",
    "if loss > 100: ...": lambda: bool(loss > 100),
    "v[mask]": lambda: v[mask],
    "v.nonzero()": lambda: v.nonzero(),
    "v.argmax()": lambda: v.argmax(),
    "v[mask] = 0.0": lambda: v.clone().__setitem__(mask, 0.0),
    "torch.where(mask, v, 0.0)": lambda: torch.where(mask, v, 0.0),
    "torch.tensor([0.1, 0.2], device=device)": lambda: torch.tensor([0.1, 0.2], device=device),
    "torch.full((2,), 0.1, device=device)": lambda: torch.full((2,), 0.1, device=device),
    "x.to(device)": lambda: one_mb.to(device),
    "total += loss.detach()": lambda: loss + loss.detach(),
}

# %% hidden-predict
lines_guess = gpulab.predict("In how many of these twelve lines does the host wait?", unit="lines")

# %% hidden-run
answers = {name: waits(line) for name, line in suspects.items()}
print("\n".join(f"{'waits' if answer else 'goes on':<8} {name}" for name, answer in answers.items()))
told = """The host waits for a value, or for a size that depends on values: v[mask] has as many elements as the mask has
True. argmax has a known shape, writing a number through a mask is a masked_fill and needs no size, and torch.tensor of a
list is a default copy from pageable memory."""
lines_guess.compare(sum(answers.values()), gpu.numbers, because=told)

# %% hidden-explain [markdown]
# `unique` and `masked_select` belong to the lines that wait. The tool sees what *PyTorch* waits for. A copy with
# `non_blocking=True` from unpinned memory, for which the *driver* holds the host, it does not report; nor all of
# `torch.distributed` and `torch.sparse`. It is a process-wide setting: set it back.

# %% hidden-cost-text [markdown]
# What does one wait cost? A profile by the host's clock blames `.item()` for everything the GPU had left to do. Take a loop
# of one product per step that logs its loss each time:

# %% hidden-cost tags=["host-dependent"]
def loop(log, steps=6, matrix=c):
    """GPU milliseconds of the loop, and the host's milliseconds in the lines that log."""
    in_log = 0.0
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(steps):
        loss = (matrix @ matrix).mean()
        before = time.perf_counter()
        log(loss)
        in_log += (time.perf_counter() - before) * 1e3
    end.record()
    end.synchronize()
    return start.elapsed_time(end), in_log


_, (with_item, in_item) = (loop(lambda loss: loss.item()) for _ in range(2))  # the first loads its kernels
without, _ = loop(lambda loss: loss.detach())
print(f"in loss.item(): {in_item / with_item:.0%} of the loop, by the host's clock ({gpu.numbers})")
print(f"the loop without it: {1 - without / with_item:.1%} shorter ({gpu.numbers})")

# %% hidden-cost-explain [markdown]
# Nearly all of the time “is” in `.item()`: the host waits there for work that has to be done anyway. What removing it buys
# is another thing, the **head start**. After a wait the queue is empty, and the GPU idles until the next launch arrives. On a
# T4, which needs 9 ms for this product in float64, that is next to nothing. A GPU that is done sooner loses the same
# microseconds (some 30 in the model, most of them the host's) of a shorter step:

# %% hidden-cost-gpus tags=["host-dependent"]
for name in ("T4", "A100-80", "H100"):
    with gpulab.VirtualGPU(name):
        c_there = torch.randn(1024, 1024, device="cuda", dtype=torch.float64)
        runs = {log: loop(lambda loss: loss.item() if log else None, matrix=c_there)[0] for log in (True, False, True)}
        print(f"{name:<8} {runs[True] / 6:6.3f} ms a step, without .item() {1 - runs[False] / runs[True]:5.1%} shorter (virtual)")

# %% hidden-cost-more [markdown]
# With a wait per *parameter*, or with loading and augmenting between the steps, even a T4 loses much of its time. (A GPU
# that waits for its host anyway has no head start to lose: an H200 took as long either way, recorded.)

# %% hidden-metrics
gradients = [torch.randn(64, 64, device=device) for _ in range(100)]
one_by_one = gpu_ms(lambda: [g.norm().item() for g in gradients])
at_once = gpu_ms(lambda: torch.stack([g.norm() for g in gradients]).tolist())
print(f"100 norms, .item() on each: {one_by_one:.2f} ms; stacked, read once: {at_once:.2f} ms ({gpu.numbers})")
print(f"{one_by_one / at_once:.1f} times as long for the same hundred numbers ({gpu.numbers})")

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “`non_blocking=True` overlaps transfer and compute.” | It frees the host, from pinned memory. Overlap needs a second stream; device to host also needs a wait before reading. | *Two streams at once*, *Who waits for a copy* |
# | “Asynchronous copies of unpinned memory may be slower.” | Mostly wrong: about the same, and sooner for many small ones. Slower, up to 2 times by PyTorch's guide, is pinning in the same line. | *Pinned memory*, *Who waits for a copy* |
# | “With `non_blocking` the CPU continues immediately.” | From pinned memory only. | *Who waits for a copy* |
# | “PCIe is 60 times slower than GPU memory.” | A100 on PCIe 4: 64. T4: 20, RTX 4090: 32, H100 on PCIe 5: 52, H200: 75. | *Two memories and a bridge* |
# | “Transfer time is proportional to bandwidth.” | Inverse: bytes ÷ bandwidth, and a latency that bandwidth does not change. | *What a copy costs* |
# | “The first iteration is slow because kernels are compiled.” | Hardly in eager mode (a few operations are compiled when first used): memory is taken, code loaded, handles created, algorithms tried. | *A clock that tells the truth* |
# | “Call `synchronize` to be safe.” | Around a clock, and before reading an asynchronous copy. Elsewhere it is one more wait. | *The launch queue*, *Hidden waits* |
# | “`pin_memory=True` always helps.” | With a thread that pins ahead and copies that do not block. It takes memory that cannot be swapped. | *Pinned memory* |

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **Timing what is not the transfer.** A benchmark that is often printed makes its data inside the clock. It times the
# CPU's random numbers, and any kind of memory looks alike:

# %% mistake-randn tags=["host-dependent"]
def printed_benchmark():
    return torch.randn(2**22).to(device)


wrong, _ = host_times(printed_benchmark)
right, _ = host_times(lambda: x.to(device))
print(f"with torch.randn inside: {wrong:.1f} ms; the copy: {right:.1f} ms ({gpu.numbers})")

# %% mistake-early-text [markdown]
# **Reading events too early, or making them without a clock.** `record` only queues the mark. PyTorch refuses to guess:

# %% mistake-early
begin, end, plain = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True), torch.cuda.Event()
begin.record()
products = [c @ c for _ in range(3)]
end.record()
for last in (end, plain):
    try:
        begin.elapsed_time(last)
    except (RuntimeError, ValueError) as error:
        print(type(error).__name__, "·", error)
end.synchronize()
print("after end.synchronize():", begin.elapsed_time(end) > 0)

# %% mistake-pin-text [markdown]
# Repair: `end.synchronize()` before you read, and `enable_timing=True` on both.
#
# **Pinning what is on the GPU.** A dataset or `collate_fn` that returns GPU tensors meets `pin_memory=True`:

# %% mistake-pin tags=["raises-exception"]
torch.zeros(3, device=device).pin_memory()

# %% mistake-pin-repair [markdown]
# The message means: only the host's memory can be pinned. Let workers return CPU tensors, and move the batch in the loop.
#
# **`loss.item()` in every step, for a progress bar.** Keep `total += loss.detach()` on the GPU and read it every hundred
# steps. Lesson 08's loops do so.
#
# **`x.pin_memory().to(device, non_blocking=True)` in the loop.** It is printed as advice. Remove the `pin_memory()`, or let
# the `DataLoader` do it.
#
# **Filling a pinned buffer anew while its copy is under way.** The GPU then gets a mixture. Use two buffers in turn, and
# wait for the event of the one you fill.
#
# **Forgetting `wait_stream`.** The values are right on most days. PyTorch's *CUDA Sanitizer* does not look at values but at
# who waited for whom, so it finds the race on any day, and on a virtual GPU too:

# %% mistake-race
from torch.cuda import _sanitizer

_sanitizer.enable_cuda_sanitizer()
try:
    with contextlib.redirect_stderr(io.StringIO()):  # it prints where in your code the two calls stand
        with torch.cuda.stream(side):
            coming = batches[0].to(device, non_blocking=True)
        coming.sum()
except _sanitizer.CUDASanitizerErrors as found:
    race = found.errors[0]
    print(race.current_access.operator.name, "uses what", race.previous_access.operator.name, "may not have done yet")
finally:
    _sanitizer.cuda_sanitizer.disable()

# %% mistake-race-script [markdown]
# For a whole script: `TORCH_CUDA_SANITIZER=1 python train.py`. It is slow, knows nothing of `record_stream`, and sees no
# replay of a CUDA graph.

# %% quiz-text [markdown]
# ## Quick check
#
# Choose with the arrow keys, answer with Tab and Enter. Every option has its reason.

# %% quiz
gpulab.quiz(3)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. A GPU call returns when it is queued. Synchronise on both sides of a host's clock, or use two events in the stream
#    that does the work. A rate well above the peak is a fault of the benchmark.
# 2. A copy costs about latency + bytes ÷ bandwidth. Few large copies; small dtypes over the bridge; then stay there.
# 3. Pinned memory is faster and asynchronous, if something pins *ahead*. In the same line it costs more than it saves.
# 4. Pinned and `non_blocking` free the host. Overlap needs a side stream, with `wait_stream` and `record_stream`.
# 5. The host waits where it needs a value, or a size that depends on values. What is lost is its head start.
#
# **For the checklist:** `pin_memory=True` in the loader · `non_blocking=True` on batches from pinned memory · no `.item()`
# per step · warm up, synchronise, median.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/03_moving_data.ipynb): a timer, a transfer benchmark, hidden waits, a prefetcher. Then
# [the map of the course](00_start_here.ipynb).
#
# ## References
#
# - PyTorch documentation: *CUDA semantics* (“Asynchronous execution”, “Use pinned memory buffers”);
#   `torch.Tensor.record_stream`; `torch.cuda.set_sync_debug_mode`; *CUDA Stream Sanitizer*; `torch.utils.benchmark`.
# - V. Moens, *A guide on good usage of `non_blocking` and `pin_memory()` in PyTorch*, PyTorch tutorials, 2024: the source
#   of “up to twice as slow” for pinning in line.
# - PyTorch, `aten/src/ATen/native/cuda/Copy.cu`: where a copy changes the dtype, and what is first made contiguous.
# - NVIDIA, *CUDA Driver API*, “API synchronization behavior”: what a copy from pageable memory waits for. *CUDA C++
#   Programming Guide*, “Asynchronous concurrent execution”: the 64 KB. *Best Practices Guide*: pinned memory.
# - Recorded copies: github.com/npho/cse554, *assignment1/host_GPU* (Quadro RTX 6000); github.com/microsoft/superbenchmark,
#   *tests/data/cuda_memory_h2d_bw.log* (V100, NVIDIA's `bandwidthTest`).
# - Data sheets of T4, A100, H100 and RTX 4090, for the peaks. An H200 recorded for this course, for random data and zeros. The
#   T4 in a loop: forums.developer.nvidia.com/t/264462.
# - vLLM documentation, *gpu_sync_debug*: what the debug mode does not see.

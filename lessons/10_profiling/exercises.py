# %% title [markdown]
# # 10 · Exercises: profiling
#
# Three functions, about 70 minutes. A check cell under each tests your code: run it as often as you like. It draws new
# inputs every time, and when it fails it says what it expected, what it got, and which section of
# [the lecture](../notebooks/10_profiling.ipynb) to read.
#
# A cell that says *not attempted yet* is one you have not written. Everything after it still runs.

# %% setup
import json
import os
import statistics
import tempfile
from collections import Counter

import torch
import torchvision
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.flop_counter import FlopCounterMode

import gpulab

gpu = gpulab.setup()

# %% name-text [markdown]
# ## 1 · Name the bottleneck
#
# **Build** a function that reads a trace and says what the job is bound by. **Why:** the remedies for one bottleneck do
# nothing for another, and nobody can read a trace of ten thousand events without a rule.
#
# 30 minutes · difficulty ●●●
#
# The input is the list `traceEvents` of a file written by `torch.profiler`, with thousands of events like these:
#
# ```python
# {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#5", "ts": 7020.0, "dur": 4116.5, "args": {}, …}
# {"ph": "X", "cat": "user_annotation", "name": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", …}
# {"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamSynchronize", …}   # the host waits for the GPU
# {"ph": "X", "cat": "kernel", "name": "addmm", "ts": 9021.0, "dur": 187.5,
#  "args": {"device": 0, "stream": 7, "flops": 3.4e10, "bytes": 9.1e7}, …}
# ```
#
# Times are in microseconds. Events whose `"ph"` is not `"X"` name lanes and draw arrows, and have no duration. There
# are other categories: `"cpu_op"`, `"gpu_memcpy"`, and `"gpu_user_annotation"`, which mirrors a host range on the GPU's
# lane. A kernel's FLOPs and bytes are added by the virtual GPU; if one of them is missing, count it as 0.
#
# The host loads data during an event of cat `"user_annotation"` with `DataLoader` in its name. It waits during an event
# of cat `"cuda_runtime"` whose name ends in `Synchronize`: of a stream, an event or the device.
#
# **`name_bottleneck(events, gpu, peak_flops, peak_bandwidth)`**
#
# - `events`: the events of a Chrome trace, a list of dicts in any order
# - `gpu`: the number of the GPU; kernels of other GPUs do not count, nor do their launches
# - `peak_flops`, `peak_bandwidth`: the peaks of this GPU, in FLOP/s and in bytes per second
#
# Look at the time of all steps together, from the first step's begin to the last one's end. A gap is an interval in it
# in which the GPU runs a kernel on none of its streams; copies are not kernels.
#
# If gaps are more than 30 % of the steps' time, they decide, by their time, not their number. Each gap goes to one
# kind, by what the host does: `"input"` if the host loads for more than half of the gap, else `"waits"` if the host is
# in a wait when the gap begins, else `"launches"`. The kind with the most time is the answer. Loads and waits are
# events of the cats named above, and of no other. If gaps do not decide, the larger of two times does: all kernels'
# FLOPs at the peak, `"compute"`, or their bytes at theirs, `"bandwidth"`. But if the longer of a kernel's own two
# times, added up over the kernels, is less than 60 % of the steps' time without the gaps, then neither roof is near:
# `"latency"`.

# %% name_bottleneck tags=["solution"]
def name_bottleneck(events, gpu, peak_flops, peak_bandwidth):
    """What the steps of a trace are bound by: "input", "waits", "launches",
    "compute", "bandwidth" or "latency".
    """
    # TODO: the time window, the gaps in it, a kind for each; and the two roofs
    ### BEGIN SOLUTION
    spans = [(e["ts"], e["ts"] + e["dur"], e) for e in events if e["ph"] == "X"]
    ranges = [span for span in spans if span[2]["cat"] == "user_annotation"]
    steps = [span for span in ranges if span[2]["name"].startswith("ProfilerStep")]
    begin, end = min(span[0] for span in steps), max(span[1] for span in steps)
    loads = [(start, stop) for start, stop, e in ranges if "DataLoader" in e["name"]]
    waits = [
        (start, stop)
        for start, stop, e in spans
        if e["cat"] == "cuda_runtime" and e["name"].endswith("Synchronize")
    ]
    runs = [
        span for span in spans if span[2]["cat"] == "kernel" and span[2]["args"]["device"] == gpu
    ]
    runs = sorted(
        (span for span in runs if begin < span[1] and span[0] < end), key=lambda span: span[0]
    )
    gaps, done = [], begin
    for start, stop in [*(span[:2] for span in runs), (end, end)]:
        if start > done:
            gaps.append((done, start))
        done = max(done, stop)
    if sum(stop - start for start, stop in gaps) > 0.3 * (end - begin):
        lost = Counter()
        for start, stop in gaps:
            loading = sum(max(0, min(stop, b) - max(start, a)) for a, b in loads)
            waiting = any(a <= start <= b for a, b in waits)
            loads_most = loading > 0.5 * (stop - start)
            lost["input" if loads_most else "waits" if waiting else "launches"] += stop - start
        return max(lost, key=lost.get)
    done = [(e["args"].get("flops", 0), e["args"].get("bytes", 0)) for _, _, e in runs]
    needs = [(flops / peak_flops, moved / peak_bandwidth) for flops, moved in done]
    busy = end - begin - sum(stop - start for start, stop in gaps)
    if 1e6 * sum(max(need) for need in needs) < 0.6 * busy:
        return "latency"
    compute, memory = (sum(need[roof] for need in needs) for roof in (0, 1))
    return "compute" if compute > memory else "bandwidth"
    ### END SOLUTION

# %% check-name tags=["check"]
gpulab.check.name_bottleneck(name_bottleneck)

# %% name-hints [markdown]
# <details><summary>Hint 1</summary>
#
# First make three lists: the steps, the kernels of this GPU, and the host's loads and waits, each as (begin, end). For
# which of them does it matter what the others do at the same time?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Gaps: go through the kernels in order of their begin, and remember until when the GPU is busy *so far*: the largest
# end, whatever the stream. If the next kernel begins later than that, there is a gap. The first gap may begin with the
# first step, the last may end with the last step.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Two intervals overlap by `max(0, min(ends) - max(begins))`: add that up over the loads for each gap. With a `Counter`
# of the time lost by kind, `max(lost, key=lost.get)` is the answer. Seconds at the peaks, `flops / peak_flops` and
# `bytes / peak_bandwidth`, can be compared, with each other and with the busy time (which is in microseconds); FLOPs
# and bytes cannot.
#
# </details>

# %% name-try-text [markdown]
# Your function on a job of the lecture, MobileNet on a virtual A100: first with 8 images per step, then with 512.

# %% name-try tags=["needs-answer"]
def trace_of(count):
    """The events of two training steps with this many images."""
    with gpulab.VirtualGPU("A100-80", compute=False), tempfile.TemporaryDirectory() as folder:
        model = torchvision.models.mobilenet_v3_large().cuda()
        images = torch.zeros(count, 3, 224, 224).cuda()
        labels = torch.zeros(count, dtype=torch.long).cuda()
        both = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        plan = schedule(wait=1, warmup=1, active=2)
        with profile(activities=both, schedule=plan, acc_events=True) as recorded:
            for _ in range(4):
                F.cross_entropy(model(images), labels).backward()
                torch.cuda.synchronize()
                recorded.step()
        recorded.export_chrome_trace(os.path.join(folder, "trace.json"))
        with open(os.path.join(folder, "trace.json")) as file:
            return json.load(file)["traceEvents"]


for count in (8, 512):
    print(f"{count} images: {name_bottleneck(trace_of(count), 0, 19.5e12, 2.039e12)} (virtual)")

# %% steps-text [markdown]
# ## 2 · Some steps of many
#
# **Build** a training loop that records a few of its steps at regular intervals, and adds up the GPU time by operation.
# **Why:** a profiler that always runs fills a disk and slows the host down; one that runs once, at the start, records
# untypical steps.
#
# 20 minutes · difficulty ●●○
#
# The check runs the steps on a virtual GPU and reads the files that your function writes.
#
# **`profiled_steps(step, steps, skip, every, count, folder)`**
#
# - `step`: a training step, a function without arguments
# - `steps`: how often it is called: exactly this often
# - `skip`: how many first calls are not recorded
# - `every`: then the last `count` of every `every` calls are recorded, after one step of the profiler's warm-up; there
#   is at least one such cycle, and every > count. An incomplete cycle at the end is not recorded
# - `folder`: where the traces go: one Chrome trace for each cycle, in a file of its own that ends in .json
#
# The activities are CPU and CUDA. The times are milliseconds per recorded step, over all cycles. Each name is that of
# an operation (such as aten::addmm); its time is that of the kernels that it launched itself, without those of nested
# operations; operations without kernels of their own, and kernels, are left out.
#
# An exception of step reaches the caller, and no profiler keeps running.

# %% profiled_steps tags=["solution"]
def profiled_steps(step, steps, skip, every, count, folder):
    """Call step() `steps` times and record some of the calls: the kernels' own time by operation,
    {name: ms}.
    """
    # TODO: a schedule, a function that saves each cycle's trace, the loop,
    # and the rows of operations
    ### BEGIN SOLUTION
    cycles = (steps - skip) // every

    def save(recorded):
        recorded.export_chrome_trace(os.path.join(folder, f"steps-to-{recorded.step_num}.json"))

    both = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    plan = schedule(skip_first=skip, wait=every - count - 1, warmup=1, active=count, repeat=cycles)
    with profile(activities=both, schedule=plan, on_trace_ready=save, acc_events=True) as recorded:
        for _ in range(steps):
            step()
            recorded.step()
    return {
        row.key: row.self_device_time_total / 1e3 / (cycles * count)
        for row in recorded.key_averages()
        if row.device_type.name == "CPU" and row.self_device_time_total
    }
    ### END SOLUTION

# %% check-steps tags=["check"]
gpulab.check.profiled_steps(profiled_steps)

# %% steps-hints [markdown]
# <details><summary>Hint 1</summary>
#
# One cycle has three parts: wait, warm up, record. How long is each, in steps, and how many cycles fit after the first
# `skip` calls? What does the profiler do at the end if it may begin another cycle?
#
# </details>
# <details><summary>Hint 2</summary>
#
# The profiler calls `on_trace_ready` with itself at the end of each cycle: write a file with a new name there.
# `recorded.step_num` differs each time. A new cycle clears the events of the one before, unless `acc_events=True` keeps
# them for the tables.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `key_averages()` has rows of two kinds, distinguished by `row.device_type`: host operations and kernels. Take the
# first kind, and of its two device times the one that you can add up. It is in microseconds, summed over all calls.
#
# </details>

# %% mfu-text [markdown]
# ## 3 · One number
#
# **Build** the MFU of a job by hand. **Why:** training runs are compared by this number, and each of its three parts
# can be wrong by a factor of two without looking odd.
#
# 20 minutes · difficulty ●●○
#
# A step with activation checkpointing computes parts of the forward pass twice. The model does not need that work, so
# it must not raise the MFU; the time that it takes belongs to the job, and lowers the MFU. Hence two functions: the
# step as the job runs it, and the same step without checkpointing.
#
# Data sheets print tensor-core rates with 2:4 sparsity, where half of all weights are zero in a fixed pattern. Dense
# matrix products reach only half of that. For the H100 (SXM), in TFLOP/s and whether with sparsity:
#
# ```python
# {"fp32": (67.0, False), "tf32": (989.0, True), "bf16": (1979.0, True), "fp16": (1979.0, True)}
# ```
#
# *Predict first:* a job that spends a quarter of its time on recomputation runs at 45 % of the peak, counting all
# products. What is its MFU?
#
# **`job_mfu(step, plain_step, dtype, sheet, warm_up, repeats)`**
#
# - `step`: one training step as the job runs it, a function without arguments that queues its work on the GPU
# - `plain_step`: the same without activation checkpointing: it is called once, and not timed, because it trains the
#   model too
# - `dtype`: the dtype of the products: `torch.bfloat16`, `torch.float16` or `torch.float32`. In float32 they run in
#   TF32 if `torch.backends.cuda.matmul.allow_tf32` is set and the sheet has a row for it
# - `sheet`: a data sheet, `{"fp32": (TFLOP/s, sparse), ...}`, with the rows `"fp32"`, `"tf32"`, `"bf16"` and `"fp16"`
#   or some of them; if sparse is `True`, the rate is twice the dense one
# - `warm_up`: how many untimed calls of step come first; 0 is allowed
# - `repeats`: how many calls are timed, an odd number; step is called `warm_up` + repeats times, and no more often
#
# The FLOPs are those that the model needs, forward and backward, as FlopCounterMode counts them. The time is the median
# of single steps, after `warm_up` calls: from a step's start on the GPU to its end, whatever has been queued before.
# The clock is that of events, `torch.cuda.Event(enable_timing=True)`. Between the timed steps the host does not wait
# for the GPU, only at the end: a wait after each step empties the queue, and times a job that nobody runs (lesson 11).

# %% mfu-predict
mfu_guess = gpulab.predict(
    "A quarter of the time is recomputation, and all products together "
    "reach 45 % of the peak. MFU?",
    unit="%",
)


# %% job_mfu tags=["solution"]
def job_mfu(step, plain_step, dtype, sheet, warm_up, repeats):
    """The model FLOPs utilisation of a job on the current GPU, as a float: 1 is the peak."""
    # TODO: three numbers: FLOPs, seconds, the peak
    ### BEGIN SOLUTION
    with FlopCounterMode(display=False) as counter:
        plain_step()
    name = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[dtype]
    if name == "fp32" and torch.backends.cuda.matmul.allow_tf32 and "tf32" in sheet:
        name = "tf32"
    tflops, sparse = sheet[name]
    peak = tflops * 1e12 / (2 if sparse else 1)
    for _ in range(warm_up):
        step()
    marks = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        marks.append((start, end))
    torch.cuda.synchronize()
    seconds = [start.elapsed_time(end) / 1e3 for start, end in marks]
    return counter.get_total_flops() / statistics.median(seconds) / peak
    ### END SOLUTION

# %% check-mfu tags=["check"]
gpulab.check.job_mfu(job_mfu)

# %% mfu-hints [markdown]
# <details><summary>Hint 1</summary>
#
# Each of the three numbers has a trap: which of the two functions do you count, and which do you time? What stops the
# clock if the host does not wait? Which row of the sheet do you need, and is it dense?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `with FlopCounterMode(display=False) as counter:` counts what runs inside it, including backward; `get_total_flops()`
# already counts a multiply-add as two. For the time, record one event before each step and one after it, and keep both.
# After one `torch.cuda.synchronize()` at the end, `start.elapsed_time(end)` returns milliseconds.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The row: the dtype's own, but `"tf32"` for float32 if it is both allowed and in the sheet. The peak: the rate times
# 10¹², halved if the sheet says so. The MFU: FLOPs, divided by the median's seconds, divided by the peak.
#
# </details>

# %% mfu-try-text [markdown]
# The answer: three quarters of the time are the model's own work, at 45 % of the peak; over the whole time that is 34
# %. And your function on ResNet-50 in bf16, on a virtual A100:

# %% mfu-try tags=["needs-answer"]
mfu_guess.compare(round(0.75 * 45))
with gpulab.VirtualGPU("A100-80", compute=False):
    model = torchvision.models.resnet50().cuda()
    images, labels = torch.zeros(256, 3, 224, 224).cuda(), torch.zeros(256, dtype=torch.long).cuda()

    def train():
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()

    share = job_mfu(train, train, torch.bfloat16, {"bf16": (624.0, True)}, 2, 3)
print(f"MFU {share:.0%} (virtual)")

# %% done [markdown]
# ## Done?
#
# The cell below shows what is recorded. Next: [the map of the course](../notebooks/00_start_here.ipynb).

# %% progress tags=["host-dependent"]
gpulab.progress()

# %% title [markdown]
# # 10 · Profiling
#
# **Promise:** before you change a line, you know what the step waits for, and you can show it.
#
# After this lesson you can **time** two versions so that the comparison holds · **read** the
# profiler's table and trace · **tell** which of five bottlenecks a job has · **state** its model
# FLOPs utilisation · **say** what utilisation and power count.
#
# | time | before this | runs on |
# |---|---|---|
# | 50 minutes, and 70 for the exercises | `01_why_gpus` (roofline), `03_moving_data` (launch queue) | any machine |

# %% setup
import torch

import gpulab

gpu = gpulab.setup()

# %% question-text [markdown]
# ## A question worth asking
#
# `nvidia-smi` prints a **utilisation**, and most advice begins there: above 85 % is good, below
# 50 % the loader is slow. PyTorch has a kernel for its own tests, one block of **one thread**. It
# counts clock cycles up to a number, and does nothing else. Run it, and read what the driver says.

# %% question-predict
busy_guess = gpulab.predict("One thread of this GPU spins. What utilisation is read?", unit="%")

# %% question-run tags=["host-dependent"]
with gpulab.monitor.watch() as seen:
    for _ in range(20):
        torch.cuda._sleep(10**8)  # clocks
    torch.cuda.synchronize()
why = "The driver counts the time in which any kernel ran, not how much of the GPU it uses."
busy_guess.compare(round(seen.summary().gpus[0].max_utilization), gpu.numbers, because=why)

# %% question-answer [markdown]
# The counter is the share of the last sample period (1/6 to 1 s) in which at least one kernel ran.
# So a bad job can read high, and a low reading has many possible reasons. This lesson asks
# instead: **how long does it take, where does the time go, and how far is that from what the chip
# can do?**

# %% timer-text [markdown]
# ## Time it so that the number holds
#
# `torch.utils.benchmark.Timer` is PyTorch's timer. It warms up, repeats, and waits for the GPU
# before it reads the clock. Its default clock does the waiting: with another one, which many
# recipes pass, nothing waits.

# %% timer-clock tags=["host-dependent"]
import time

from torch.utils import benchmark

a = torch.randn(1024, 1024, device=gpu.device)
for name, clock in (("its own clock", {}), ("perf_counter", {"timer": time.perf_counter})):
    found = benchmark.Timer("a @ a", globals={"a": a}, **clock).timeit(5)
    print(f"a @ a, by {name}: {1e6 * found.median:.0f} µs ({gpu.numbers})")

# %% timer-cpu-text [markdown]
# The second number is the launch alone, with this machine's time for Python in it. On a CPU, the
# timer uses **one thread** unless `num_threads` says otherwise.
#
# How exact is a median? `blocked_autorange` fills 0.2 s: with hundreds of blocks of a short line,
# but only five of a step of 40 ms. The median of *n* is off by about IQR/√n (IQR: the
# interquartile range). What misleads you is **drift**: the GPU warms up and lowers its clock, a
# neighbour starts a job. So alternate, A, B, A, B, and believe a difference that keeps its sign in
# every round. (`nvidia-smi -lgc 1410` locks the clock if you are allowed to; `-rgc` frees it.)

# %% timer-run tags=["host-dependent"]
names = {"scores": torch.randn(512, 10), "labels": torch.randint(10, (512,))}
loop = "sum(int(s.argmax() == label) for s, label in zip(scores, labels))"
once = "int((scores.argmax(1) == labels).sum())"
about = {"globals": names, "label": "accuracy of 512 (measured)"}
rounds = []
with gpulab.without_gpu():
    for number in ("round 1", "round 2", "round 3"):
        timers = [benchmark.Timer(code, description=number, **about) for code in (loop, once)]
        rounds += [timer.blocked_autorange(min_run_time=0.1) for timer in timers]
table = benchmark.Compare(rounds)
table.trim_significant_figures()
table.print()

# %% timer-explain [markdown]
# `trim_significant_figures` rounds to what the spread allows; without it `Compare` prints all
# digits.
#
# A timer tells *that* code is slow. **cProfile** tells which function is, without a change to the
# code: `python -m cProfile -s tottime train.py`. `tottime` is a function's own time, `cumtime`
# includes what it calls. With a GPU, the time of all queued work goes to the *function* that waits
# for it. And each call is slowed down, so code with few, long calls looks better than it is.
# **py-spy** looks at a running process from outside, at next to no cost: `py-spy dump --pid PID`
# for a job that hangs, `py-spy record -o out.svg --pid PID` for one that crawls.

# %% profiler-text [markdown]
# ## What `torch.profiler` records
#
# The profiler notes each operation on the host, each kernel on the device, and which launched
# which. Here is what it saw of one training step on a real GPU, an H200: ResNet-50, 64 images,
# AdamW, in bf16 by autocast.

# %% profiler-predict
share_guess = gpulab.predict("Of the kernels' time, how much is convolutions?", unit="%")

# %% profiler-recorded
steps = [row for row in gpulab.data.recorded("H200")["steps"] if "operations_ms" in row]
real = {(row["model"], row["batch"], row["mode"]): row for row in steps}


def part(row, word):
    return sum(ms for name, ms in row["operations_ms"].items() if word in name)


row = real["resnet50", 64, "amp_bf16"]
print("Name                                     Self CUDA   Self CUDA % (recorded)")
for name, ms in list(row["operations_ms"].items())[:8]:
    print(f"{name:<40} {ms:6.3f} ms   {ms / row['kernels_ms']:6.1%}")
why = "“ResNet is convolutions” is true of its FLOPs. Most of its time here is batch norm."
share_guess.compare(round(100 * part(row, "convolution") / row["kernels_ms"]), "recorded", because=why)

# %% profiler-recorded-explain [markdown]
# Each row is the operation that launches the kernels: `nn.Conv2d` calls `aten::conv2d`, which ends
# in `aten::cudnn_convolution`. In bf16 the norms are PyTorch's own, `aten::native_batch_norm`; the
# same step in float32 or fp16 has `aten::cudnn_batch_norm` (recorded).
#
# ![Bars for three steps on an H200: GPT-2 host 40, kernels 12, step 41 ms; ResNet-50 with 64 images 37, 28, 37; with 256 images 34, 106, 107.](../docs/pictures/real_steps.svg)
#
# The picture shows three such steps of that GPU (recorded). *Host* is the time in which Python and
# PyTorch launch the step, *kernels* the sum of all kernels' times. With 64 images the GPU waits
# for the host, with 256 the host waits.
#
# Kernels have rows of their own, with names like these (recorded elsewhere):
#
# | kernel | what it is |
# |---|---|
# | `ampere_bf16_s1688gemm_bf16_128x128_ldg8_f2f_stages_32x1_nn` | a product (*gemm*) in bf16, in tiles of 128 × 128 (RTX 4090) |
# | `ncclDevKernel_AllReduce_Sum_bf16_RING_LL(…)` | NCCL's all-reduce in a ring |
#
# Now record a step yourself (on a virtual GPU its times are virtual). This **schedule** skips the
# first step, warms up in one, and records two; `step()` says where a step ends. `record_function`
# names a range of your code.

# %% profiler-model
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule


def gpt(width, depth):
    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True)
    layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(5000, width), layers, nn.Linear(width, 5000))

# %% profiler-run
def training(model, batch):  # a step in bf16; the loss is a stand-in
    model, batch = model.cuda(), batch.cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        with record_function("forward"), torch.autocast("cuda", torch.bfloat16):
            loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step

# %% profiler-table tags=["host-dependent"]
BOTH = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
step = training(gpt(256, 2), torch.zeros(8, 64, dtype=torch.long))
with profile(activities=BOTH, schedule=schedule(wait=1, warmup=1, active=2)) as recorded:
    for _ in range(4):
        step()
        recorded.step()
table = recorded.key_averages().table("device_time_total", row_limit=8, max_name_column_width=28)
for line in table.splitlines():  # without the columns of the CPU, in the middle
    print(line[:30] + line[100:])

# %% profiler-explain [markdown]
# A range such as `forward` launches nothing itself:
#
# ![Forward holds linear and relu; addmm, within linear, and relu launch kernels.](../docs/pictures/nested_ranges.svg)
#
# (On a real GPU a second row `forward` shows its span on the GPU. Backward runs in autograd's
# own thread, so a range around it totals 0.)
#
# | column | what it is | what it is not |
# |---|---|---|
# | Self CPU | the host's time in this operation alone | the GPU's time. A wait for the GPU counts here, at the operation that waits |
# | Self CUDA | time of the kernels that it launched | how *well* they ran |
# | CPU total, CUDA total | with the operations within: rows overlap | anything to add up |
# | CPU Mem, CUDA Mem (`profile_memory=True`) | allocated minus freed during the operation | memory in use at that point (lesson 04) |
#
# **Your turn** · 2 minutes. A run of 100 steps is slow *now and then*. Write a schedule that leaves
# the first 20 steps alone and then records 3 of every 20, each time after one step of warm-up, for
# three cycles.

# %% schedule-turn tags=["your-turn"]
def plan():
    ### BEGIN SOLUTION
    return torch.profiler.schedule(skip_first=20, wait=16, warmup=1, active=3, repeat=3)
    ### INSTEAD OF
    # return torch.profiler.schedule(wait=1, warmup=1, active=3)
    ### END SOLUTION


gpulab.turn.three_of_twenty(plan)

# %% overhead-text [markdown]
# ### Its own weight
#
# A profiler adds microseconds to every operation of the host, and hardly any to kernels. So a job
# whose host is just fast enough looks launch-bound *under the profiler*. Here is a network of small
# layers on the CPU:

# %% overhead-run tags=["host-dependent"]
names = {"x": torch.randn(4, 16), "small": nn.Sequential(*[nn.Linear(16, 16) for _ in range(20)])}
passes = benchmark.Timer("small(x).sum().backward()", globals=names)
with gpulab.without_gpu():
    print(f"plain {1000 * passes.timeit(50).mean:.2f} ms (measured)")
    for options in ({}, {"record_shapes": True}, {"with_stack": True}):
        with profile(activities=[ProfilerActivity.CPU], **options):
            print(f"profiled {1000 * passes.timeit(50).mean:.2f} ms (measured)", options or "")

# %% jobs-text [markdown]
# ## Four jobs, four bottlenecks
#
# A step is **input-bound** if the host waits for the next batch, **launch-bound** if the host
# cannot launch fast enough, **bandwidth-bound** if the kernels wait for memory, **compute-bound**
# if they wait for arithmetic. Here are four jobs, one of each kind, shuffled, on a virtual A100.
# Three of them train the *same network*.

# %% jobs-define
import random

import torchvision
from torch.utils.data import DataLoader


def mobilenet():
    return torchvision.models.mobilenet_v3_large().to(memory_format=torch.channels_last)


def images(count, size=224):
    return torch.zeros(count, 3, size, size).to(memory_format=torch.channels_last)


def slow(rows):
    time.sleep(0.3)  # a disk, a decoder

# %% jobs-list
jobs = [  # network, batch, loader
    (lambda: gpt(4096, 2), torch.zeros(16, 1024, dtype=torch.long), None),
    (mobilenet, images(512), None),
    (mobilenet, images(8), None),
    (mobilenet, images(64, 64), DataLoader(range(1024), batch_size=64, collate_fn=slow)),
]
random.Random(5).shuffle(jobs)

# %% trace-text [markdown]
# Each job runs three steps, and the third becomes a **Chrome trace**: a JSON file of events with a
# start (`ts`) and a duration (`dur`) in microseconds. You open such a file at ui.perfetto.dev
# (nothing is uploaded).

# %% trace-run
import json
import os
import tempfile

folder = tempfile.TemporaryDirectory()
os.chdir(folder.name)  # for traces and a script


def events_of(path):
    with open(path) as file:
        return [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]

# %% trace-jobs
def traced(make, batch, loader):
    # where a loader works, this machine's own time counts
    with gpulab.VirtualGPU("A100-80", compute=False, counts_host=loader is not None):
        step, batches = training(make(), batch), iter(loader or [])
        with profile(activities=BOTH, schedule=schedule(wait=1, warmup=1, active=1)) as recorded:
            for _ in range(3):
                next(batches, None)
                step()
                torch.cuda.synchronize()
                recorded.step()
        recorded.export_chrome_trace("trace.json")
    return events_of("trace.json")


events = {letter: traced(*job) for letter, job in zip("ABCD", jobs)}

# %% trace-rows
def rows_of(found):  # of the picture
    calls = [e for e in found if e["cat"] in ("cpu_op", "cuda_runtime")]
    return {
        "host": [e for e in calls if not e["name"].endswith("Synchronize")],
        "loader": [e for e in found if "DataLoader" in e["name"]],
        "kernels": [e for e in found if e["cat"] == "kernel"],
    }


def step_of(found):
    return next(e for e in found if e["name"].startswith("ProfilerStep"))

# %% trace-plot tags=["host-dependent"]
import matplotlib.pyplot as plt

gpulab.style.use()
figure, panels = plt.subplots(4, 2, figsize=(8, 5.6), width_ratios=(2, 1))
for both, (letter, found) in zip(panels, events.items()):
    begin, ms = step_of(found)["ts"], step_of(found)["dur"] / 1000
    for axes, window in zip(both, ((0, ms), (0.4 * ms, 0.4 * ms + 1))):
        for y, row in enumerate(rows_of(found).values()):
            bars = [((e["ts"] - begin) / 1000, e["dur"] / 1000) for e in row]
            axes.broken_barh(bars, (-y - 0.4, 0.8), color=f"C{y}", linewidth=0)
        axes.set(xlim=window, yticks=(0, -1, -2), yticklabels=["host", "loader", "kernels"])
    both[0].set_title(f"{letter}: a step of {ms:.0f} ms; right: one ms of it")
gpulab.style.show(figure, alt="Host, loader and kernels of four jobs. Two have gaps, two none.")

# %% evidence-text [markdown]
# (Times in ms, virtual; in the job with a loader the host's own time is measured.) Two jobs have
# gaps in the kernels' row, and the rows above say what the host did meanwhile. The other two are
# full, and look alike.
#
# A trace shows *that* a kernel runs, not how well. For that, divide its FLOPs and bytes by the
# GPU's peaks: the longer of both times names the kernel's roof. Do it kernel by kernel: a step
# with products at one roof and norms at the other is, on average, near neither. The virtual GPU
# writes both into the trace. On a real one, count from shapes, or let Nsight Compute measure.

# %% evidence-run tags=["host-dependent"]
def evidence(found):
    # kernels and loader as shares of the step; each roof as a share of the kernels' time
    rows, whole = rows_of(found), step_of(found)["dur"]
    busy, loading = (sum(e["dur"] for e in rows[name]) for name in ("kernels", "loader"))
    told = [e["args"] for e in rows["kernels"]]
    needs = [(a.get("flops", 0) / 312e6, a.get("bytes", 0) / 2039e3) for a in told]
    compute = sum(flops for flops, moved in needs if flops > moved)
    memory = sum(moved for flops, moved in needs if flops <= moved)
    return busy / whole, loading / whole, compute / busy, memory / busy


print("     kernels     loader    compute     memory (virtual)")
for letter, found in events.items():
    print(letter, *(f"{share:10.0%}" for share in evidence(found)))

# %% diagnose-turn-text [markdown]
# A fifth kind has no gaps either, but *neither* roof is near. Such a kernel is **latency-bound**:
# each warp waits for one answer after another, and too few other warps run meanwhile. Small, badly
# shaped or badly written kernels are like that. Nsight Compute draws the line at 60 % of the
# nearer peak; here take 60 % of the kernels' time, both roofs added.
#
# **Your turn** · 4 minutes. Write the rule down: from these four shares, name the bottleneck. It is
# tried on other jobs.

# %% diagnose-turn tags=["your-turn"]
def bottleneck(busy, loading, compute, memory):
    """ "input", "launches", "bandwidth", "compute" or "latency"; shares from 0 to 1."""
    ### BEGIN SOLUTION
    if busy < 0.7:  # gaps: what did the host do in them?
        return "input" if loading > 1 - busy - loading else "launches"
    if compute + memory < 0.6:
        return "latency"
    return "compute" if compute > memory else "bandwidth"
    ### INSTEAD OF
    # return "input" if busy < 0.85 else "compute"
    ### END SOLUTION


gpulab.turn.bottleneck(bottleneck)

# %% diagnose-answer [markdown]
# **A** is the GPT: compute-bound. **B** is MobileNet with batch 512: full, and near the bandwidth.
# **D** is the *same network* with batch 8: hundreds of kernels that the host cannot launch fast
# enough. **C**, the same again, waits for its loader. So a bottleneck belongs to a job, not to a
# network.
#
# The fifth kind is B without `channels_last`: the same operations in the other layout.

# %% latency-run
slow_layout = (torchvision.models.mobilenet_v3_large, torch.zeros(512, 3, 224, 224), None)
print("E", *(f"{share:10.0%}" for share in evidence(traced(*slow_layout))), "(virtual)")

# %% remedies [markdown]
# | bottleneck | look for | worth trying | does nothing |
# |---|---|---|---|
# | input | the host in `DataLoader.__next__` | lesson 09: workers, smaller files | a faster GPU, AMP |
# | launches | short kernels with gaps, the host never waits | larger batches, CUDA graphs, compile (lesson 11) | AMP: it adds casts |
# | bandwidth | full row, most kernels near the bandwidth | 16 bits, fusion (lesson 11) | faster arithmetic |
# | compute | full row, most time near the peak FLOP/s | 16-bit or TF32 products, another GPU, fewer FLOPs | more workers |
# | latency | full row, far from both | another layout, shape or kernel (lesson 11), larger batches | – |
#
# **Waits** are a sixth kind: `.item()`, a print, a mask as an index (lesson 03). The trace shows
# `cudaStreamSynchronize`, and a gap behind it. Which Python line was it? `with_stack=True` writes
# the frames into the trace; `gpulab.timing.syncs(step)`, or `torch.cuda.set_sync_debug_mode("warn")`,
# name file and line.

# %% simulator-text [markdown]
# ### See it move
#
# The simulator opens on a small version of job D: launching a kernel takes longer than running it.
#
# 1. Raise *Kernel time* until the GPU is busy all the time. By what factor did the step grow, and
#    the work?
# 2. Set it back and choose *CUDA graph*. Which lane has changed?
# 3. Set *loss.item()* to every step, with short and with long kernels. What does it cost each
#    time?

# %% simulator
gpulab.sim.launch_queue(kernel=4, launch=15)

# %% roofline-text [markdown]
# ## The job under the roof
#
# A profiler gives times. To say what an operation is bound by you need its FLOPs and bytes as well.
# `gpulab.timing.operations` has all three on a virtual GPU. Here is A, the compute-bound job:

# %% roofline-run
with gpulab.VirtualGPU("A100-80", compute=False):
    step = training(gpt(4096, 2), torch.zeros(16, 1024, dtype=torch.long))
    step()
    print(gpulab.timing.operations(step, top=8))

# %% roofline-explain [markdown]
# Products take most of the time. Most of the *operations* wait for memory.
#
# Left of the ridge (153 FLOPs per byte on an A100 in bf16) no kernel reaches the peak, however well
# it is written. The way up there is *to the right*: fewer bytes for the same work. What lies far
# below both lines is latency-bound, and there tuning helps. On a real GPU `with_flops=True` counts
# products and convolutions, and Nsight Compute draws each kernel under the roof.
#
# In the simulator, choose another operation: on which side of the ridge is it, and what moves it?

# %% simulator-roofline
gpulab.sim.roofline(gpu="A100-80")

# %% compare-text [markdown]
# ## Two traces compared
#
# After a change, compare operation by operation: a total hides what happened to its parts.
# ResNet-50 on the H200 again, now with 256 images and without or with autocast (recorded). All
# kernels together took 284 ms in float32 and 106 in bf16. The batch norms, forward and backward,
# took 43 ms in float32.

# %% compare-predict
norm_guess = gpulab.predict("How long did the batch norms take in bf16?", unit="ms")

# %% compare-run
before, after = real["resnet50", 256, "fp32"], real["resnet50", 256, "amp_bf16"]
for word in ("convolution", "batch_norm"):
    print(f"{word:<12} {part(before, word):6.1f} → {part(after, word):6.1f} ms (recorded)")
why = """Half of the bytes, and yet more time: in bf16 PyTorch left cuDNN's batch norm for a kernel
of its own (torch 2.11). In fp16, with cuDNN's, the same norms took 40 ms."""
norm_guess.compare(round(part(after, "batch_norm"), 1), "recorded", because=why)

# %% compare-explain [markdown]
# ### Several ranks
#
# On several GPUs each rank writes a trace of its own. The exchange of gradients is a kernel too,
# NCCL's all-reduce. It starts when its *own* rank gets there, then spins until the last rank has
# come. Here two ranks multiply matrices, and rank 1 has one product more to do:

# %% ranks-write
# %%writefile ranks.py
import torch
from torch import distributed as dist
from torch.profiler import ProfilerActivity, profile
import gpulab

with gpulab.VirtualGPU("A100-80", count=2, link="pcie4", compute=False):
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    a = torch.randn(8192, 8192, device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        for _ in range(2 + rank):
            a @ a
        dist.all_reduce(a)
    recorded.export_chrome_trace(f"rank{rank}.json")
    dist.destroy_process_group()

# %% ranks-run
gpulab.distributed.run("ranks.py", ranks=2, warm=True)
for rank in (0, 1):
    for e in rows_of(events_of(f"rank{rank}.json"))["kernels"]:
        print(f"rank {rank}: {e['dur'] / 1000:5.1f} ms {e['name']} (virtual)")

# %% ranks-turn-text [markdown]
# Both ranks look busy, near 100 % by the driver's counter, and rank 0 spins for a third of the
# time.
#
# **Your turn** · 1 minute. `lasted` holds the ms in all-reduce kernels by rank, of eight ranks.
# Return the rank that keeps the others waiting.

# %% ranks-turn tags=["your-turn"]
def late_rank(lasted):  # {rank: ms}
    ### BEGIN SOLUTION
    return min(lasted, key=lasted.get)
    ### INSTEAD OF
    # return max(lasted, key=lasted.get)
    ### END SOLUTION


gpulab.turn.late_rank(late_rank)

# %% ranks-explain [markdown]
# ![Rank 0 has computed early: its NCCL kernel starts, spins and sends. Rank 1 is late: its NCCL kernel only sends. Both end together.](../docs/pictures/straggler.svg)
#
# `gpulab.timing.merge_traces` puts the ranks' files on one page. **HTA** (*Holistic Trace
# Analysis*, `pip install HolisticTraceAnalysis`) reads a folder of them, and says for each rank how
# long it was idle, computed, or exchanged.

# %% mfu-text [markdown]
# ## How far from the chip: MFU
#
# **Model FLOPs utilisation** is one number for a job: the FLOPs that the *model* needs in a step,
# over what the chip could do in that time at its dense peak. Recomputation does not count, so
# useless work cannot raise it. `gpulab.timing.mfu(gpulab.timing.flops(step), took, "bf16")` computes
# it for your GPU; count a step without checkpointing.
#
# Take ResNet-50 on the H200, 256 images, again. A step took 107 ms in bf16 (recorded), the dense
# bf16 peak is 989 TFLOP/s, and an image needs 4.09 × 10⁹ multiply-adds in forward.

# %% mfu-predict
mfu_guess = gpulab.predict("What MFU did the training of ResNet-50 reach?", unit="%")

# %% mfu-recorded
for name, batch, multiply_adds in (("vit_b_16", 64, 17.56e9), ("resnet50", 256, 4.09e9)):
    # FLOPs: 2 for each multiply-add in forward, 4 in backward
    for mode, peak in (("fp32", 67e12), ("amp_bf16", 989e12)):
        ms = real[name, batch, mode]["step_ms"]
        mfu = 6 * multiply_adds * batch / (ms / 1000) / peak
        print(f"{name:<9} {mode:<9} {ms:6.1f} ms, MFU {mfu:5.1%} (recorded times)")
why = "Norms are more than half of its time, and no FLOPs of the model to speak of."
mfu_guess.compare(round(100 * mfu, 1), "recorded", because=why)

# %% mfu-explain [markdown]
# The format decides what you divide by: in float32 (TF32 off here; PyTorch's default has it on in
# convolutions) the peak is 67 TFLOP/s, and the same network looks more than five times as good. So
# compare like with like: training with training, one format, networks of one kind. For large
# language models 38 to 43 % were reported (Llama 3 with 405 billion parameters, up to 16,384
# H100s). nanoGPT's GPT-2, eager and with unfused attention, reached 14 % of an A100's peak
# (computed from a recorded speed).

# %% driver-text [markdown]
# ## What the driver counts
#
# `nvidia-smi` and `gpulab.monitor` ask the same library, **NVML**.
#
# | field | what it counts | when it misleads |
# |---|---|---|
# | GPU-Util | time with any kernel running | 100 % with one thread, and while NCCL spins |
# | utilization.memory | time in which memory was read or written | it is no fill level, and no share of bandwidth |
# | Memory-Usage | all that is reserved, by everybody | PyTorch keeps what it has freed (lesson 04) |
# | Power | watts; the limit beside it | far below the limit, at 100 %: small kernels, or waits |
# | Temp | °C of the chip | each board slows down at a limit of its own (`nvidia-smi -q -d TEMPERATURE`) |
#
# Other counters say how much of the GPU works. DCGM has them (`dcgmi dmon -e 1002,1004,1005`), and
# from Hopper on so does NVML (GPM): `SM_ACTIVE`, the share of SMs with work; `PIPE_TENSOR_ACTIVE`,
# time of the tensor cores; `DRAM_ACTIVE`, time of the memory interface. One spinning thread keeps
# one SM active, of 40 on a T4.
#
# Power rises with work, up to the board's limit; there the driver lowers the clock. Here are two
# loops, half a minute each, on an H100 whose board may draw 700 W:

# %% power-run
for name, found in gpulab.data.recorded("H100")["sustained"].items():
    print(f"{name}: {found['rates'][0][1]:,.0f} → {found['rates'][-1][1]:,.0f} {found['unit']}")
    for _, watts, clock, _, degrees in (found["readings"][0], found["readings"][-1]):
        print(f"    {watts:3.0f} W, {clock} MHz, {degrees} °C (recorded)")

# %% energy-explain [markdown]
# Both loops keep kernels running. The products reach the limit, and the clock falls below its
# 1,980 MHz by more than a quarter. The network stays below the limit, and keeps its clock.
#
# Joules per step are watts times seconds. `gpulab.monitor.watch()` around a loop prints the
# difference of NVML's energy counter. Without it, the board's limit times a *measured* time is an
# upper bound; times a predicted time it bounds nothing.
#
# **Nsight Systems** records the whole machine: CUDA calls, kernels, threads, NCCL, your ranges
# (`torch.cuda.nvtx.range("step")`), and PyTorch's operators if you ask:
# `nsys profile -t cuda,nvtx,osrt --pytorch=autograd-shapes-nvtx python train.py`.
# **Nsight Compute** takes *one kernel* apart (bytes, occupancy, stalls, its roofline) by running it
# many times: `ncu --set full -k regex:gemm -s 100 -c 1 -o report python train.py`.
# First `torch.profiler`; then nsys for what lies between kernels, ncu for one kernel that matters.

# %% web-text [markdown]
# ## What the web says
#
# | claim | verdict |
# |---|---|
# | “85 to 99 % utilisation is good; below 50 %, loading is the bottleneck.” | One thread makes 100 %; below 50 %, launches, waits and loading look alike. |
# | “Memory near the maximum and less than 85 °C are signs of health.” | Neither says whether the GPU computes. |
# | “The profiler tells you whether you are bound by compute or bandwidth.” | It gives times. FLOPs and bytes tell, kernel by kernel; a kernel far below both peaks is bound by neither. |
# | “Low utilisation with a large batch: raise `num_workers`.” | Only if the host is in `DataLoader.__next__`. |
# | “Look at it in TensorBoard.” | The plugin was removed in 2026: use Perfetto. |

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **The device's activity alone** (`activities=[ProfilerActivity.CUDA]`) is an error without a GPU;
# with one, you get kernels without their operations. **Totals added up** count a kernel once for
# each level; add self times. **`with_stack=True`**, left on, slows the run that you time.
#
# **A schedule, and no `step()`.** The schedule stays in its first phase, and nothing is recorded.

# %% mistake-step tags=["raises-exception"]
with profile(schedule=schedule(wait=1, warmup=1, active=2)) as recorded:
    torch.ones(3) + 1
recorded.key_averages()

# %% mistake-more [markdown]
# **Names of yesterday**: `AttributeError: 'FunctionEventAvg' object has no
# attribute 'cuda_time_total'`. It is `device_time_total` now.
#
# **`nvidia-smi` parsed by hand**: `ValueError: invalid literal for int() with base 10: '3021\n[N/A]'`.
# It prints a line for each GPU, and `[N/A]` for what a board does not have. Ask NVML:
# `gpulab.monitor.read()`, `torch.cuda.utilization()`, `torch.cuda.power_draw()`.

# %% quiz-text [markdown]
# ## Quick check

# %% quiz
gpulab.quiz(10)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. First time it, then trace it, then count FLOPs and bytes: each answers what the one before
#    cannot.
# 2. Utilisation counts time with any kernel. A bottleneck belongs to a job, not to a network.
# 3. Gaps: what did the host do in them? No gaps: is a roof near, kernel by kernel?
# 4. Self times add up, totals do not. The profiler slows the host, not the kernels.
# 5. Across ranks, the one with the *shortest* all-reduce is late.
# 6. Compare an MFU only with trainings of the same kind and format.
#
# **For the checklist:** recorded on a schedule, after warm-up, three steps, both activities · the
# bottleneck named from a trace before a remedy is tried, and a trace compared after it.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/10_profiling.ipynb): traces drawn afresh, a schedule, one number. Then
# [faster steps](11_faster_steps.ipynb), which tries the remedies one by one.
#
# ## References
#
# - PyTorch documentation: `torch.profiler`, `torch.utils.benchmark`. NVIDIA: NVML API reference;
#   user guides of Nsight Systems, Nsight Compute and DCGM.
# - Kernel names: pytorch/pytorch#181718. TensorBoard's plugin: pytorch/kineto#1248.
# - Chowdhery et al., *PaLM*, arXiv 2204.02311 (MFU). *The Llama 3 Herd of Models*, arXiv 2407.21783.
# - A. Karpathy, nanoGPT (README).

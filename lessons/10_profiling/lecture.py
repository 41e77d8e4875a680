# %% title [markdown]
# # 10 · Profiling
#
# **Promise:** before you change a line, you know what the step waits for, and you can show it to someone else.
#
# After this lesson you can
#
# 1. **time** two versions of a function so that the comparison holds;
# 2. **record** chosen steps with `torch.profiler`, and **read** its table by today's names;
# 3. **tell** from a trace which of four bottlenecks a job has, and which remedies are then worth trying;
# 4. **place** a job's kernels under the roofline, and **state** its model FLOPs utilisation;
# 5. **say** what utilisation, power and temperature count, and when they mislead.
#
# | time | before this | runs on |
# |---|---|---|
# | 50 minutes, and as long for the exercises | `01_why_gpus` (roofline), `03_moving_data` (launch queue) | any machine |

# %% setup-text [markdown]
# Most jobs of this lesson run on a virtual A100 with shapes alone, so that networks of real size take a moment. Where
# this machine's own time is the point, the number says *measured*.

# %% setup
import json
import os
import random
import tempfile
import time
import warnings

import matplotlib.pyplot as plt
import torch
import torchvision
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader, Dataset

import gpulab

gpu = gpulab.setup()
warnings.filterwarnings("ignore", "Warning: Profiler clears")  # older releases say it without a next cycle, too
folder = tempfile.TemporaryDirectory()  # for traces and a script
os.chdir(folder.name)

# %% question-text [markdown]
# ## A question worth asking
#
# `nvidia-smi` prints a **utilisation**, and most advice begins there: above 85 % is good, below 50 % the loader is slow.
# PyTorch has a kernel for its own tests that does nothing: one block of **one thread**, which spins until a number of
# clocks is over. Let it run and read what the driver reads.

# %% question-predict
utilisation_guess = gpulab.predict("One thread of this GPU spins. What utilisation does the driver report?", unit="%")

# %% question-run tags=["host-dependent"]
with gpulab.monitor.watch() as seen:
    for _ in range(20):
        torch.cuda._sleep(10**8)  # clocks
    torch.cuda.synchronize()
one = seen.summary().gpus[0]
told = """The share of the last sample period, between 1/6 s and 1 s, in which at least one kernel ran (NVML's own words,
in ours). So a full one can be a bad job, and 40 % can have five reasons, of which the loader is one."""
utilisation_guess.compare(round(one.max_utilization), gpu.numbers, because=told)
about = torch.cuda.get_device_properties(0)
room = f"{about.multi_processor_count} × {about.max_threads_per_multi_processor:,}"
print(f"{one.name}: busy {one.max_utilization:.0f} %, with 1 thread where {room} fit ({gpu.numbers})")

# %% question-answer [markdown]
# The counter says nothing about how many of the multiprocessors work, or at what. The rest of this lesson is what to
# ask instead: **how long does it take, where does the time go, and how far is that from what the chip can do?**

# %% timer-text [markdown]
# ## Time it so that the number holds
#
# Lesson 03 built a timer that synchronises. `torch.utils.benchmark.Timer` is PyTorch's: it warms up, synchronises,
# repeats until the time is long enough for the clock (`blocked_autorange`), and reports the median and the spread (IQR,
# the interquartile range). It also sets **one thread**, unless `num_threads` says otherwise: a common surprise on a CPU.

# %% timer-run tags=["host-dependent"]
from torch.utils import benchmark

with gpulab.without_gpu():
    scores, labels = torch.randn(512, 10), torch.randint(10, (512,))
    versions = {
        "Python loop": "sum(int(row.argmax() == label) for row, label in zip(scores, labels))",
        "one call": "int((scores.argmax(1) == labels).sum())",
    }
    names = {"scores": scores, "labels": labels}
    told = {"label": "accuracy of 512 (measured)", "description": "this CPU", "timer": time.perf_counter}
    timers = [benchmark.Timer(code, globals=names, sub_label=name, **told) for name, code in versions.items()]
    results = [timer.blocked_autorange(min_run_time=0.3) for timer in timers]
    benchmark.Compare(results).print()
    one = results[1]
    print(f"one call: IQR {one.iqr / one.median:.0%} of the median, {len(one.times)} blocks of {one.number_per_run:,} calls")

# %% timer-explain [markdown]
# `Compare` puts versions side by side and rounds to what the spread allows. The rest of an honest benchmark is yours: the same
# inputs, shapes as in the job, both versions in one process. If two medians differ by less than their
# IQRs, you have measured noise.
#
# A timer tells *that* it is slow. Where, in Python, **cProfile** tells: it counts calls, and needs no change to the code.
# `tottime` is a function's own time, `cumtime` includes what it calls.

# %% cprofile-run tags=["host-dependent"]
import cProfile
import pstats


def accuracy(scores, labels):
    return sum(int(row.argmax() == label) for row, label in zip(scores, labels)) / len(labels)


with gpulab.without_gpu(), cProfile.Profile() as python:
    for _ in range(20):
        accuracy(scores, labels)
stats = pstats.Stats(python).stats
for (file, line, name), (_, calls, own, _, _) in sorted(stats.items(), key=lambda row: -row[1][2])[:4]:
    print(f"{1e3 * own:7.1f} ms own (measured)  {calls:>6} calls  {name}")

# %% cprofile-explain [markdown]
# The costly lines are `argmax` and the generator around it: 512 times per call, a few microseconds each. On a GPU each
# `int(…)` would wait for the device as well (lesson 03), and cProfile would blame *that line* for all the work queued before
# it. cProfile slows every call down, so it flatters code with few, long ones. **py-spy** looks at a running process from
# outside, a hundred times a second, with next to no cost: `py-spy dump --pid PID` for a job that hangs,
# `py-spy record -o out.svg --pid PID` for one that crawls.

# %% profiler-text [markdown]
# ## What `torch.profiler` records
#
# It notes each operation on the host with its time, each kernel on the device, and which launched which. Three things make its
# numbers usable: a **schedule** (skip the first steps, warm up, record a few; `step()` tells it where one ends), **names**
# of your own (`record_function`), and reading it after the block.

# %% profiler-run
def training(model, batch):
    """A training step in bf16 with AdamW, as a function."""
    model, batch = model.cuda(), batch.cuda()
    target = torch.zeros(batch.shape[:1], dtype=torch.long, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        with record_function("forward"), torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(batch), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step

# %% profiler-predict
share_guess = gpulab.predict("ResNet-18, batch 128, A100, bf16. Of the kernels' time, how much is convolutions?", unit="%")

# %% profiler-table
BOTH = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
with gpulab.VirtualGPU("A100-80", compute=False):
    step = training(torchvision.models.resnet18(), torch.randn(128, 3, 224, 224))
    with profile(activities=BOTH, schedule=schedule(wait=1, warmup=1, active=2)) as recorded:
        for _ in range(4):
            step()
            recorded.step()

rows = [row for row in recorded.key_averages() if row.device_type.name == "CPU"]
rows.sort(key=lambda row: -row.self_device_time_total)
kernels = sum(row.self_device_time_total for row in rows)
for row in [*rows[:6], *(row for row in rows if row.key in ("forward", "Optimizer.step#AdamW.step"))]:
    print(f"{row.key:<33} {row.count:>3} calls; kernels of its own {row.self_device_time_total / 2e3:5.2f} ms a step, "
          f"with all within {row.device_time_total / 2e3:5.2f} (virtual)")
convolutions = sum(row.self_device_time_total for row in rows if "convolution" in row.key)
told = "The rest is no arithmetic that anybody counts: norms, activations, the optimizer."
share_guess.compare(round(100 * convolutions / kernels), "virtual", because=told)

# %% profiler-explain [markdown]
# “The model is convolutions” is said of its FLOPs. A range such as `forward` has no kernels of its own, and all that
# were launched within. On a real GPU backward runs in a thread of autograd's, so that a range around `loss.backward()`
# shows none; and rows bear the names of the operations that launch: `aten::cudnn_convolution`, `aten::cudnn_batch_norm`.
#
# `print(recorded.key_averages().table(sort_by="self_device_time_total", row_limit=10))` prints the usual, wide table. What its
# columns really count:
#
# | column | what it is | what it is not |
# |---|---|---|
# | Self CPU | the host's time in this operation alone | time of the GPU's work; but a wait for it counts here, at the line that waits |
# | CPU total | with the operations it calls: rows overlap, so do not add them | |
# | Self CUDA (`self_device_time_total`) | kernels that this operation itself launched | how *well* they ran |
# | CUDA total | with those of the operations within | |
# | CPU Mem, CUDA Mem (`profile_memory=True`) | allocated minus freed *during* the operation; *Self* without what is within | memory in use “at that point”: for that, lesson 04 |
# | # of Calls | of the operation; a kernel's own row counts launches | |
#
# Older texts sort by `cuda_time_total` and read `.cuda_time`, `.cuda_memory_usage`: the attributes are gone or deprecated, since
# the device need not be CUDA; `table(sort_by="cuda_time_total")` is still understood.

# %% schedule-turn-text [markdown]
# **Your turn** · 2 minutes. A run of 100 steps is slow *now and then*. Write a schedule that leaves the first 20 steps
# alone and then records 3 of every 20, each time after one step of warm-up, for three cycles.

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
# A profiler adds time to every operation, some microseconds, and more with `with_stack` (Python's frames), `record_shapes` and
# `profile_memory`. Kernels are hardly slowed, the host is. So a job whose host is just fast enough looks launch-bound
# *under the profiler*. Measured here, on the CPU, with a network of small layers:

# %% overhead-define
def pass_once():
    start = time.perf_counter()
    small(x).sum().backward()
    return time.perf_counter() - start


def seconds(**options):
    """The shortest of ten passes, under a profiler with these options if there are any."""
    pass_once()
    if not options:
        return min(pass_once() for _ in range(10))
    with profile(activities=[ProfilerActivity.CPU], acc_events=True, **options):
        return min(pass_once() for _ in range(10))

# %% overhead-run tags=["host-dependent"]
with gpulab.without_gpu():
    small, x = nn.Sequential(*[nn.Linear(16, 16) for _ in range(20)]), torch.randn(4, 16)
    plain = seconds()
    print(f"a profiler without options: {seconds(with_flops=False) / plain:.1f} times the time without one (measured)")
    for name in ("record_shapes", "profile_memory", "with_stack"):
        print(f"{name}=True: {seconds(**{name: True}) / plain:.1f} times (measured)")

# %% jobs-text [markdown]
# ## Four jobs, four bottlenecks
#
# A step is **input-bound** if the host waits for the next batch, **launch-bound** if the host cannot launch fast enough,
# **bandwidth-bound** if kernels wait for memory, **compute-bound** if they are limited by arithmetic. Here are four jobs, one of each
# kind. Two of them train the *same network*. They are shuffled, so that you diagnose from evidence.

# %% jobs-define
class SmallGPT(nn.Module):
    def __init__(self, width, depth, words=5000):
        super().__init__()
        block = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True)
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)))[:, -1]

# %% jobs-define-images
class SlowImages(Dataset):
    def __len__(self):
        return 1024

    def __getitem__(self, index):
        time.sleep(0.005)  # a disk, a decoder
        return torch.zeros(3, 64, 64)

# %% jobs-list
def images(count, size=224):
    return torch.zeros(count, 3, size, size)


models = torchvision.models
jobs = [  # network, batch, loader
    (lambda: SmallGPT(4096, 2), torch.zeros(16, 1024, dtype=torch.long), None),
    (models.mobilenet_v3_large, images(512), None),
    (models.mobilenet_v3_large, images(8), None),
    (models.resnet18, images(64, 64), DataLoader(SlowImages(), batch_size=64)),
]
random.Random(5).shuffle(jobs)
jobs = dict(zip("ABCD", jobs, strict=True))

# %% trace-text [markdown]
# Each runs three steps, and the third becomes a **Chrome trace**: a JSON file of events with a start (`ts`) and a duration (`dur`)
# in microseconds. Open such a file at ui.perfetto.dev (nothing is uploaded) or `chrome://tracing`.

# %% trace-run
def traced(make, batch, loader):
    """The events of the third step; in the trace, this machine's own work counts where a loader works."""
    with gpulab.VirtualGPU("A100-80", compute=False, counts_host=loader is not None):
        step, batches = training(make(), batch), iter(loader or [])
        with profile(activities=BOTH, schedule=schedule(wait=1, warmup=1, active=1)) as recorded:
            for _ in range(3):
                next(batches, None)
                step()
                torch.cuda.synchronize()
                recorded.step()
        recorded.export_chrome_trace("trace.json")
    with open("trace.json") as file:
        return [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]


events = {letter: traced(*job) for letter, job in jobs.items()}

# %% trace-lanes
LANES = {"host": "#0072B2", "loader": "#D55E00", "kernels": "#E69F00"}


def lane(event):
    """The lane of the picture in which it stands, or none: the host's waits are left out."""
    if event["name"].endswith("Synchronize"):
        return None
    if event["cat"] in ("cpu_op", "cuda_runtime", "kernel"):
        return "kernels" if event["cat"] == "kernel" else "host"
    return "loader" if "DataLoader" in event["name"] else None

# %% trace-plot tags=["host-dependent"]
gpulab.style.use()
figure, panels = plt.subplots(4, 2, figsize=(8, 5.4), width_ratios=(2, 1))
for both, (letter, found) in zip(panels, events.items(), strict=True):
    [whole] = [e for e in found if e["name"].startswith("ProfilerStep")]
    middle = 0.4 * whole["dur"] / 1e3
    for axes, window in zip(both, ((0, whole["dur"] / 1e3), (middle, middle + 1))):
        for row, (name, color) in enumerate(LANES.items()):
            bars = [((e["ts"] - whole["ts"]) / 1e3, e["dur"] / 1e3) for e in found if lane(e) == name]
            axes.broken_barh(bars, (row - 0.4, 0.8), color=color, linewidth=0)
        axes.locator_params(axis="x", nbins=6 if window[0] == 0 else 3)
        axes.set(xlim=window, ylim=(2.6, -0.6), yticks=range(3), yticklabels=LANES if window[0] == 0 else [])
    both[0].set_title(f"{letter}: a step of {whole['dur'] / 1e3:.0f} ms", loc="left")
panels[0, 1].set_title("one millisecond of it", loc="left")
panels[-1, 0].set_xlabel("ms (virtual; the loader's and the host's own time measured here)")
gpulab.style.show(figure, alt="Host, loader and kernels of four jobs, over one step and over one millisecond of it. In one the kernels "
    "are a thin comb under a host lane that is full; in one the loader fills most of the step; in two the kernels' lane is full.")

# %% evidence-text [markdown]
# Two pictures have gaps in the kernels' lane (on the right one sees them), and the lanes above say what the host did meanwhile. The
# other two look alike: full.
# A trace shows *that* a kernel runs, not how well. For that you need what each moved and computed; the virtual GPU's trace
# says it (`bytes`, `flops`), on a real one Nsight Compute measures it, or you count from shapes.

# %% evidence-run tags=["host-dependent"]
def evidence(found):
    """Shares: of the step with a kernel running, and in the loader; of the peak arithmetic and bandwidth, while kernels run."""
    [whole] = [e["dur"] for e in found if e["name"].startswith("ProfilerStep")]
    kernels = [e for e in found if e["cat"] == "kernel"]
    busy = sum(e["dur"] for e in kernels)
    loading = sum(e["dur"] for e in found if "DataLoader" in e["name"])
    flops, moved = (sum(e["args"].get(key, 0) for e in kernels) for key in ("flops", "bytes"))
    return busy / whole, loading / whole, flops / busy / 312e6, moved / busy / 2039e3


for letter, found in events.items():
    busy, loading, flops, moved = evidence(found)
    count = sum(e["cat"] == "kernel" for e in found)
    print(f"{letter}: {count} kernels run {busy:4.0%} of the step, the loader {loading:4.0%}; while they run: "
          f"{flops:4.0%} of peak FLOP/s, {moved:4.0%} of peak bandwidth (virtual)")

# %% diagnose-turn-text [markdown]
# **Your turn** · 4 minutes. Write the rule down: from these four shares, name the bottleneck. It is tried on other jobs.

# %% diagnose-turn tags=["your-turn"]
def bottleneck(busy, loading, flops, moved):
    """ "input", "launches", "bandwidth" or "compute"; all four are shares from 0 to 1, as above."""
    ### BEGIN SOLUTION
    if busy < 0.7:  # gaps: what did the host do in them?
        return "input" if loading > 1 - busy - loading else "launches"
    return "compute" if flops > moved else "bandwidth"
    ### INSTEAD OF
    # return "input" if busy < 0.85 else "compute"
    ### END SOLUTION


gpulab.turn.bottleneck(bottleneck)

# %% diagnose-answer [markdown]
# **A** is the GPT of width 4,096: its products reach most of the peak, so it is compute-bound. **B** is MobileNet with
# batch 512: always busy, at 2 % of the peak arithmetic, so it is bound by memory. **D** is the *same network* with batch 8: 710
# kernels that the host cannot launch fast enough. **C** waits for its loader. So a bottleneck belongs to a job, not to a
# network: batch, GPU and host move it. What helps one does nothing for another:
#
# | bottleneck | look for | worth trying | does nothing |
# |---|---|---|---|
# | input | the host in `DataLoader.__next__` | lesson 09: workers, pinning, smaller files | a faster GPU, AMP |
# | launches | short kernels with gaps, the host never waits | larger batches, fewer Python lines, CUDA graphs, compile (lesson 11) | AMP: it adds casts |
# | bandwidth | full lane, few FLOP/s | 16 bits, channels last, fusion (lesson 11), fewer passes over memory | faster arithmetic |
# | compute | full lane, near the peak FLOP/s | 16-bit or TF32 products, aligned shapes, another GPU, fewer FLOPs | more workers |
#
# A fifth kind has no picture of its own: **waits**. `.item()`, a print, a mask as an index (lesson 03) empty the queue
# once a step, and the lane has one gap behind each.

# %% simulator-text [markdown]
# ### See it move
#
# The simulator opens on job D in small: short kernels, a host that needs longer to launch one than the GPU to run it.
#
# 1. Raise *Kernel time* until the GPU is busy all the time. By what factor did the step grow, and the work?
# 2. Set it back and choose *CUDA graph*. Which lane has changed?
# 3. Read the loss every step. In which of the two states does it cost more?

# %% simulator
gpulab.sim.launch_queue(kernel=4, launch=15)

# %% compare-text [markdown]
# ## Two traces compared
#
# After a change, compare by operation: a total hides that one part gained and another lost. ResNet-18 again, in fp32
# (convolutions in TF32, PyTorch's default) and under autocast in bf16:

# %% compare-define
def by_operation(bf16):
    with gpulab.VirtualGPU("A100-80", compute=False):
        model = torchvision.models.resnet18().cuda()
        x, y = torch.zeros(128, 3, 224, 224, device="cuda"), torch.zeros(128, dtype=torch.long, device="cuda")
        for _ in range(2):  # the second is recorded
            with profile(activities=BOTH) as recorded:
                with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
                    loss = F.cross_entropy(model(x), y)
                loss.backward()
    return {row.key: row.self_device_time_total / 1e3 for row in recorded.key_averages() if row.device_type.name == "CPU"}

# %% compare-predict
cast_guess = gpulab.predict("bf16 for ResNet-18 on an A100: how many of ten operations with the most change get slower?")

# %% compare-run
before, after = by_operation(False), by_operation(True)
changes = {key: after.get(key, 0) - before.get(key, 0) for key in before | after}
largest = sorted(changes, key=lambda key: -abs(changes[key]))[:10]
for key in largest:
    print(f"{key:<42} {before.get(key, 0):6.2f} → {after.get(key, 0):6.2f} ms (virtual)")
print(f"{'all kernels':<42} {sum(before.values()):6.2f} → {sum(after.values()):6.2f} ms (virtual)")
told = """Convolutions gain, and so does everything that only moves bytes, since activations are half as wide. Casts,
aten::_to_copy, are new."""
cast_guess.compare(sum(changes[key] > 0 for key in largest), "virtual", because=told)

# %% compare-explain [markdown]
# On several GPUs each rank writes a trace; `gpulab.timing.merge_traces` puts them on one page. NCCL's kernel starts
# with its own rank and spins for the others: the rank with the *shortest* ones is late. Here rank 1 gets more samples:

# %% ranks-write
# %%writefile ranks.py
import torch
from torch import distributed as dist, nn
from torch.profiler import ProfilerActivity, profile
import gpulab

with gpulab.VirtualGPU("A100-80", count=2, link="pcie4", compute=False):
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank := dist.get_rank())
    layers = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(4)]).cuda()
    model = nn.parallel.DistributedDataParallel(layers, device_ids=[rank])
    for _ in range(2):  # the second one stays
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
            model(torch.randn(1024 + 512 * rank, 4096, device="cuda")).sum().backward()
    recorded.export_chrome_trace(f"rank{rank}.json")
    dist.destroy_process_group()

# %% ranks-run
gpulab.distributed.run("ranks.py", ranks=2, warm=True)
file = gpulab.timing.merge_traces(["rank0.json", "rank1.json"], "ranks.json")
merged = json.loads(file.read_text())["traceEvents"]
names = {e["pid"]: e["args"]["name"] for e in merged if e["name"] == "process_name"}
for lane in ("rank 0: virtual cuda:0", "rank 1: virtual cuda:1"):
    of_lane = [e for e in merged if e.get("cat") == "kernel" and names[e["pid"]] == lane]
    shared = sum(e["dur"] for e in of_lane if "all_reduce" in e["name"])
    print(f"{lane}: all-reduce {shared / 1e3:.1f} ms, other kernels {sum(e['dur'] for e in of_lane) / 1e3 - shared / 1e3:.1f} ms (virtual)")

# %% roofline-text [markdown]
# ## The job under the roof
#
# Lesson 01 drew a roofline for single operations. A trace puts the whole job there: each product or convolution with its
# FLOPs per byte of memory traffic, and with the rate that it reached. “The profiler says whether you are bound by compute or
# bandwidth” is too much: it gives times. FLOPs and bytes come from shapes (here; `with_flops=True` counts those of products
# and convolutions), or from Nsight Compute.

# %% roofline-run tags=["host-dependent"]
figure, axes = plt.subplots(figsize=(8, 3.6))
for letter, color, mark, title in (("A", "#0072B2", "o", "A: GPT's products"), ("B", "#D55E00", "^", "B: MobileNet's convolutions")):
    found = [e for e in events[letter] if e["cat"] == "kernel" and e["args"].get("flops") and e["args"].get("bytes")]
    intensity = [e["args"]["flops"] / e["args"]["bytes"] for e in found]
    reached = [e["args"]["flops"] / e["dur"] / 1e6 for e in found]
    axes.scatter(intensity, reached, [3 + e["dur"] / 40 for e in found], color=color, marker=mark, alpha=0.5, label=title)
roof = [0.1, 312 / 2.039, 3000]
axes.plot(roof, [min(312, 2.039 * x) for x in roof], color="black")
axes.set(xscale="log", yscale="log", xlabel="FLOPs per byte of memory traffic", ylabel="TFLOP/s (virtual)")
axes.legend(loc="lower right")
far = sum(e["dur"] for e, x in zip(found, intensity, strict=True) if x < 15.3) / sum(e["dur"] for e in found)
axes.set_title(f"B spends {far:.0%} of this where a tenth of the peak is out of reach")
gpulab.style.show(figure, alt="Roofline of an A100 on logarithmic axes. MobileNet's convolutions lie under the slope at 0.5 to 100 FLOPs "
    "per byte; the GPT's products lie under the flat roof, right of the ridge at 153.")

# %% roofline-explain [markdown]
# Left of the ridge at 153 FLOPs per byte no kernel can reach the peak, however well it is written; the way up there is *to
# the right*: fewer bytes for the same work. What lies far below both lines is what tuning is for. (A mark's size is its time.)

# %% mfu-text [markdown]
# ## How far from the chip: MFU
#
# **Model FLOPs utilisation** is one number for a job: the FLOPs that the *model* needs in a step, over what the chip could do in that
# time at its dense peak. Recomputation does not count, so it cannot be raised by useless work. For the GPT of job A:

# %% mfu-run
with gpulab.VirtualGPU("A100-80", compute=False):
    step = training(SmallGPT(4096, 2), torch.zeros(16, 1024, dtype=torch.long))
    took = gpulab.timing.measure(step, repeat=3, warm_up=2)
    print(gpulab.timing.mfu(gpulab.timing.flops(step), took, "bf16"))

[run] = [row for row in gpulab.data.trainings("nanoGPT README") if row.unit == "iterations/s"]
per_token = 6 * 124e6 + 12 * 12 * 768 * 1024  # 6 for each parameter, and attention: 12 · layers · width · sequence
reached = per_token * 12 * 1024 * run.value / 1e12
print(f"{run.setting}, {run.gpu}: {reached:.0f} TFLOP/s, MFU {reached / 312:.0%} (computed from a recorded speed)")

# %% mfu-predict
mfu_guess = gpulab.predict("Inference of image models on an RTX 4090, fp16, large batches: half reach less than … of its peak", unit="%")

# %% mfu-recorded
networks = gpulab.data.networks()
shares = sorted(
    2 * networks[row.model].multiply_adds * row.samples_per_s / 165.2e12
    for row in gpulab.data.published("infer-amp-nchw-pt240-cu124-rtx4090")
    if row.model in networks and networks[row.model].image_size == row.image_size
)
low, median, high = (100 * shares[round(part * (len(shares) - 1))] for part in (0.1, 0.5, 0.9))
mfu_guess.compare(round(median), "recorded", because="Real networks move bytes, at batches of up to 1,024 too.")
figure, axes = plt.subplots(figsize=(8, 2.6))
axes.hist([100 * share for share in shares], bins=range(0, 80, 2), color="#0072B2")
axes.set(xlabel="% of the peak, 165 TFLOP/s (inference, recorded)", ylabel="models")
axes.set_title(f"{len(shares)} real models: four in five reach {low:.0f} to {high:.0f} % of the peak")
gpulab.style.show(figure, alt="Histogram of what the published models reach of an RTX 4090's peak: the most between 4 and 20 per cent, "
    "a tail to 75.")

# %% mfu-explain [markdown]
# The tail to 75 % is large vision transformers. So 30 % is good for a convolutional network and poor for a large
# language model: 38 to 43 % were reported for Llama 3 with 405 billion parameters on up to 16,384 H100s. GPT-2 above is
# small, and its attention not fused. Compare like with like. (Recorded: timm's benchmark tables; the peak is Ada's
# dense fp16 rate with fp32 sums.)

# %% driver-text [markdown]
# ## What the driver counts
#
# `nvidia-smi` and `gpulab.monitor` ask the same library, **NVML**. `nvidia-smi dmon` prints a line a second,
# `nvidia-smi --query-gpu=utilization.gpu,power.draw,clocks.sm --format=csv -l 1` what you choose. What fields say (the
# [cheat sheet](../docs/cheatsheet.md) reads a whole screen):
#
# | field | what it counts | when it misleads |
# |---|---|---|
# | GPU-Util | time with any kernel running | 100 % with one thread, as above |
# | utilization.memory | time in which memory was being read or written | it is no fill level, and no share of bandwidth |
# | Memory-Usage | all that is reserved, by everybody | PyTorch keeps what it has freed (lesson 04); “near the maximum” is no goal: a batch twice as large gains nothing once the kernels fill the GPU |
# | Power | watts; the limit beside it | a job at the limit *is* working hard; far below it, busy at 100 %, its kernels are small, or wait |
# | Temp | °C of the chip | each board slows down at a temperature of its own (`nvidia-smi -q -d TEMPERATURE`), so “< 85 °C” is no rule; `-d PERFORMANCE` says what holds the clock down |
#
# Power is the most honest of them: it hardly rises without work. And it is a limit of its own: at it, the driver lowers the
# clock. A T4 may draw 70 W, and its products would like more (in a loop a real one keeps about 24 TFLOP/s of its 65,
# recorded):

# %% power-run
with gpulab.VirtualGPU("T4", compute=False):
    a = torch.empty(4096, 4096, device="cuda", dtype=torch.float16)
    a @ a
    for name, times in (("the first product", 1), ("in a loop of 100", 100)):
        took = gpulab.timing.measure(lambda times=times: [a @ a for _ in range(times)], repeat=1, warm_up=0)
        print(f"{name}: {2 * 4096**3 * times / took.median_ms / 1e9:.0f} TFLOP/s (virtual)")

# %% energy-run
def most_joules(name, batch):
    """Joules an image, were the board at its limit throughout: ResNet-50, forward and backward in fp16."""
    watts = gpulab.sim.roofline(gpu=name).result.spec.watts
    with gpulab.VirtualGPU(name, compute=False), torch.autocast("cuda", torch.float16):
        made = torchvision.models.resnet50().cuda(), torch.zeros(batch, 3, 224, 224, device="cuda")
        model, x = (thing.to(memory_format=torch.channels_last) for thing in made)  # as tensor cores want it
        took = gpulab.timing.measure(lambda: model(x).sum().backward(), repeat=1, warm_up=2)
    return took.median_ms / 1e3 * watts / batch


for name in ("T4", "L4", "A100-80", "H100"):
    few, many = most_joules(name, 32), most_joules(name, 256)
    print(f"{name:<8} at most {few:.2f} J an image with batch 32, {many:.2f} with 256 (virtual time, the board's limit)")

# %% energy-explain [markdown]
# Kept busy, all four spend about alike: an H100 is thirteen times as fast as a T4 here, at ten times its watts. With batch 32 it
# waits for launches, and a waiting GPU draws power too. These are upper bounds; a real board counts its joules itself:
# `gpulab.monitor.watch()` around a loop prints the difference of NVML's energy counter, and you divide by the steps.
#
# **Nsight Systems** (`nsys profile -t cuda,nvtx,osrt python train.py`) records the whole machine: CUDA calls, kernels,
# threads, NCCL, and ranges that you name with `torch.cuda.nvtx.range("step")`; less overhead, and PyTorch's operators only
# inside `torch.autograd.profiler.emit_nvtx()`.
# **Nsight Compute** (`ncu`) takes *one kernel* apart (bytes, occupancy, stalls, its roofline) by running it many
# times. First `torch.profiler`; then nsys for what lies between kernels, ncu for one kernel that matters.

# %% web-text [markdown]
# ## What the web says
#
# | claim | verdict | tested in |
# |---|---|---|
# | “85 to 99 % utilisation is good; below 50 %, loading is the bottleneck.” | Misleading. One thread makes 100 %; below 50 % launches, waits and loading look alike. | *A question worth asking*, *Four jobs* |
# | “Memory near the maximum and less than 85 °C are signs of health.” | Rules of thumb: neither says whether the GPU computes. | *What the driver counts* |
# | “The profiler tells you whether you are bound by compute or bandwidth.” | Times alone do not; FLOPs and bytes do. | *The job under the roof* |
# | “Most operations are limited by bandwidth.” | True by number; by time it depends on the job (A and B). | *Four jobs* |
# | “`cuda_memory` shows the memory at a point.” | It is what an operation allocates, less what it frees. | *What `torch.profiler` records* |
# | “Sort by `cuda_time_total`”; “look at it in TensorBoard” | `table` still understands the name; the attribute is `device_time_total`. TensorBoard's plugin was removed in 2026: Perfetto. | *Common mistakes*, *Four jobs* |
# | “Low utilisation with a large batch: raise `num_workers`.” | If the host is in `DataLoader.__next__`; else it does nothing. | *Four jobs* |

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **The device's activity alone.** Without a GPU nothing is left to record. With one, kernels belong to no operation. Ask
# for both.

# %% mistake-cuda-only
with gpulab.without_gpu(), warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            torch.ones(4, device="cuda") + 1
        names = [row.key for row in recorded.key_averages()]
        print(f"with this GPU: {len(names)} names recorded, {sum(name.startswith('aten::') for name in names)} of them of operations")
    except AssertionError as error:
        print("AssertionError ·", error)
        print(caught[0].category.__name__, "·", caught[0].message)

# %% mistake-step-text [markdown]
# **A schedule, and no `step()`.** The schedule stays in its first phase, and nothing is recorded.

# %% mistake-step tags=["raises-exception"]
with gpulab.without_gpu(), profile(schedule=schedule(wait=1, warmup=1, active=2)) as recorded:
    for _ in range(8):
        torch.ones(3) + 1
recorded.key_averages()

# %% mistake-total-text [markdown]
# **Totals added up.** A total contains those of the operations within: their sum counts a kernel once for each level.

# %% mistake-total
with gpulab.VirtualGPU("A100-80", compute=False):
    layer, x = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True).cuda(), torch.zeros(32, 512, 1024, device="cuda")
    layer(x).sum().backward()
    with profile(activities=BOTH) as recorded:
        layer(x).sum().backward()
rows = [row for row in recorded.key_averages() if row.device_type.name == "CPU"]
own, total = (sum(getattr(row, name) for row in rows) for name in ("self_device_time_total", "device_time_total"))
print(f"kernels of their own {own / 1e3:.1f} ms; totals added up {total / 1e3:.1f} ms (virtual)")

# %% mistake-attribute-text [markdown]
# **Names of yesterday**, from texts of 2023:

# %% mistake-attribute tags=["raises-exception"]
rows[0].cuda_time_total

# %% mistake-parse-text [markdown]
# **`nvidia-smi` parsed by hand.** It prints a line for each GPU, `[N/A]` for what a board does not have, and nothing without
# a driver. Two GPUs answer so to `--query-gpu=utilization.gpu,memory.used --format=csv,noheader,nounits`:

# %% mistake-parse tags=["raises-exception"]
answer = "45, 3021\n[N/A], 18\n"
[int(value) for value in answer.strip().split(", ")]

# %% mistake-parse-repair [markdown]
# Ask NVML: `gpulab.monitor.read()`, or `torch.cuda.utilization()` and `torch.cuda.power_draw()`, NVML's functions in
# PyTorch. Three more mistakes print no error: a loop under the profiler without `zero_grad` (a job that nobody runs),
# `with_stack=True` left on in the run that is timed, and a trace of 500 steps (gigabytes; three steps are enough).

# %% quiz-text [markdown]
# ## Quick check
#
# Choose with the arrow keys, answer with Tab and Enter. Every option has its reason.

# %% quiz
gpulab.quiz(10)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. Time first, then a trace, then FLOPs and bytes: each answers what the one before cannot.
# 2. Utilisation counts time with any kernel. A bottleneck belongs to a job, not to a network.
# 3. Gaps: what did the host do in them? No gaps: which roof is near?
# 4. Own times add up, totals do not. A profiler weighs on the host.
# 5. An MFU is good or bad among networks of its kind.
#
# **For the checklist:** recorded on a schedule, after warm-up, three steps, both activities · the bottleneck named from
# a trace before a remedy is tried, and a trace compared after it · MFU or samples per second kept with batch, versions, date.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/10_profiling.ipynb): four traces drawn afresh, a schedule, one number. Then
# [faster steps](11_faster_steps.ipynb), which tries the remedies one by one; if your job was C,
# [feeding the GPU](09_feeding_the_gpu.ipynb).
#
# ## References
#
# - PyTorch documentation: `torch.profiler`, `torch.utils.benchmark`. Perfetto's viewer, ui.perfetto.dev.
# - NVIDIA: NVML API reference (`nvmlUtilization_t`); user guides of Nsight Systems and Nsight Compute; developer forum,
#   *About GPU peak performance* (a T4 in a loop). pytorch/kineto#1248 (TensorBoard's plugin).
# - Williams, Waterman, Patterson, *Roofline*, CACM 52 (2009). Chowdhery et al., *PaLM*, arXiv 2204.02311 (MFU).
#   *The Llama 3 Herd of Models*, arXiv 2407.21783.
# - R. Wightman, pytorch-image-models, benchmark results (Apache-2.0). A. Karpathy, nanoGPT (README).

# %% title [markdown]
# # 15 · The capstone
#
# **Promise:** you are given a training job that somebody else has written; you find what is wrong with it by measuring, and
# you can show what each repair has bought.
#
# After this lesson you can
#
# 1. **take** a job apart in an order that does not waste your time;
# 2. **name** for each suspicion the instrument that decides it;
# 3. **repair** one fault at a time, and **show** its effect in bytes, milliseconds, gradients or losses;
# 4. **say** in a minute what the fifteen lessons before this one come to.
#
# | time | before this | runs on |
# |---|---|---|
# | 35 minutes, and more than two hours for the exercises | all lessons; at least `03` to `08` | any machine |

# %% setup-text [markdown]
# The job runs on a *virtual* T4 with 16 GB, as rented machines have it. At full size it runs with shapes alone: memory and
# times are right, values are not there. Where values matter, a small one runs.

# %% setup
import os
import pathlib
import runpy
import tempfile
import warnings

import matplotlib.pyplot as plt
import torch

import gpulab

gpu = gpulab.setup()
folder = tempfile.TemporaryDirectory()
os.chdir(folder.name)
warnings.filterwarnings("ignore", "with compute=False")  # shapes have no values: said above

# %% question-text [markdown]
# ## A question worth asking
#
# The script trains a small GPT: 12 blocks of width 768, a context of 1,024 words, 8 rows in a batch. This is the state in which
# it was left. (In the exercise you get the same script with *other* faults.)

# %% question-script
pathlib.Path("train.py").write_text(gpulab.capstone.script("lecture"))


def load(path="train.py"):
    """The script's functions and classes by name; `main` is not run."""
    return runpy.run_path(path)


def parts(job, **sizes):
    """Model, optimizer, scaler and schedule of the job, on the GPU in force."""
    torch.manual_seed(0)
    model = job["GPT"](**sizes).cuda()
    optimizer, scaler = job["make_optimizer"](model), torch.amp.GradScaler("cuda")
    return model, optimizer, scaler, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1.0)

# %% question-run
def updates(most, job):
    """GiB allocated after each update at full size, of at most `most` and until memory runs out; and the peak."""
    with gpulab.VirtualGPU("T4", compute=False):
        model, optimizer, scaler, schedule = parts(job)
        batch = [torch.zeros(8, 1024, dtype=torch.long, device="cuda")] * 2
        after = []
        try:
            for _ in range(most):
                job["train"](model, [batch], optimizer, scaler, schedule, 1)
                after.append(torch.cuda.memory_allocated() / 2**30)
        except torch.OutOfMemoryError:
            pass  # `after` tells how far it came
        return after, torch.cuda.max_memory_allocated() / 2**30


found, peak = updates(4, load())
print(f"peak {peak:.1f} GiB of 14.7 (virtual): it fits")

# %% question-predict
growth_guess = gpulab.predict("It fits. How many MiB more are allocated after each update?", unit="MiB")

# %% question-answer
print("allocated after each update:", ", ".join(f"{gib:.3f}" for gib in found), "GiB (virtual)")
growth = found[-1] - found[-2]
room = (14.7 - 0.3 - peak) / growth  # the context takes 0.3
print(f"{1024 * growth:.0f} MiB more each time: room for {room:.0f} updates more (virtual)")
lived, _ = updates(200, load())
print(f"run to its end: out of memory in update {len(lived) + 1} (virtual)")
growth_guess.compare(round(1024 * growth), "virtual", because="“It fits” was true of four updates.")

# %% question-explain [markdown]
# A job that ends after seventy-odd (PyTorch 2.15; 134 with 2.11) has run for some minutes: long enough to be left alone
# for the night. And it may end well before its room is used up, as here: what each update leaves lies in small pieces
# between the large blocks, and then the scores, 1.5 GiB, find no place in one piece (lesson 05). Room divided by growth
# is an upper bound. Nothing in the script looked wrong, and one number after each step tells. So before any repair: **a
# list of questions, and an instrument for each.**

# %% order-text [markdown]
# ## Five questions, in this order
#
# | | question | instrument | repair what it shows before the next, because |
# |---|---|---|---|
# | 1 | Does it run, and with what peak? | `max_memory_allocated()`, the message of the error | nothing else can be measured |
# | 2 | Does a step leave what it found? | `memory_allocated()` after each; a snapshot | a job that grows has no peak |
# | 3 | Are its own figures true? | the same by events; FLOPs over the peak | you are about to compare them |
# | 4 | Who waits for whom? | a trace: gaps, waits, kernels, rates | it says which remedy is worth trying |
# | 5 | Does it compute what it should? | a reference: one batch in one piece, float32, a small model | a fast wrong result is worth nothing |
#
# Two rules go with it. **One change at a time**, measured before and after with the same instrument; two changes at once
# can hide each other. And **what you have repaired, measure again at the end**, since repairs meet.
#
# Correctness stands last because its references need a job that runs, and not because it matters least. Until then a speed is
# a working figure: the one that you report is measured again when the results are right.

# %% leak-text [markdown]
# ## Question 2: who holds it?
#
# A number has said *that* something grows. The snapshot says *which line* has allocated what is there (lesson 05). Recording
# begins after two updates, so that weights, optimizer state and first calls are not in it.

# %% leak-snapshot
def newcomers(job, count=3):
    """What `count` updates leave: {(function, line): [blocks, MiB]} of the script."""
    lines = {}
    with gpulab.VirtualGPU("T4", compute=False):
        model, *rest = parts(job)
        batch = [torch.zeros(8, 1024, dtype=torch.long, device="cuda")] * 2
        job["train"](model, [batch] * 2, *rest, 1)
        torch.cuda.memory._record_memory_history()
        job["train"](model, [batch] * count, *rest, 1)
        blocks = [b for s in torch.cuda.memory._snapshot()["segments"] for b in s["blocks"]]
        torch.cuda.memory._record_memory_history(None)
    for block in blocks:
        own = [f for f in block.get("frames", []) if f["filename"].endswith("train.py")]
        if own and block["state"] == "active_allocated":
            row = lines.setdefault((own[0]["name"], own[0]["line"]), [0, 0])
            row[0], row[1] = row[0] + 1, row[1] + block["size"] / 2**20
    return lines

# %% leak-run
source = pathlib.Path("train.py").read_text().splitlines()
for (name, line), (count, size) in sorted(newcomers(load()).items(), key=lambda row: -row[1][1]):
    if count >= 3:
        print(f"{count} blocks, {size:7.3f} MiB (virtual)  {name}, line {line}: {source[line - 1].strip()}")

# %% leak-explain [markdown]
# Three updates, three blocks of 24 MiB: the outputs of the last block, one for each forward pass. And three of 512 bytes, from a
# line that stands nearby: `self.norms.append(x.norm())`, a log. The small ones are what the list holds. Each of them
# hangs on its graph, and the graph has kept `x` for a backward pass through the norm, which never comes.
#
# The line that *allocated* the memory is innocent; the line that *holds* it is the small one. That is usual with graphs, and a
# reason to read all lines with the right **count**, not only those with the largest size.

# %% leak-repair
script = pathlib.Path("train.py").read_text()
pathlib.Path("first.py").write_text(script.replace("        self.norms.append(x.norm())\n", "").replace("        self.norms = []\n", ""))
repaired, _ = updates(4, load("first.py"))
print(f"each update leaves {1024 * (repaired[-1] - repaired[-2]):.0f} MiB more, before {1024 * growth:.0f} (virtual)")

# %% leak-after [markdown]
# The log is gone. If it is wanted, `x.detach().norm()` ends the large leak and leaves 512 bytes a pass in a list that nobody
# empties; a mean that is kept up to date leaves nothing. Three non-repairs: `del x` (the list holds on), `empty_cache()` (no
# tensor goes), a smaller batch (it comes later).

# %% clock-text [markdown]
# ## Question 3: are its own figures true?
#
# You are about to compare times, so the clock comes first. A script's own “words per second” may stop its clock when the last
# launch has returned, or count the first step (lesson 03). Two tests take a minute: the same step by events, and FLOPs over the
# peak; a job that claims more than its chip can do has a wrong clock. In this lecture times are those of the GPU's own clock.

# %% speed-text [markdown]
# ## Question 4: who waits?
#
# A trace of one update says how long it takes, how much of it kernels run, and at what rate: FLOPs of the products by their
# time. A T4's tensor cores do 65 TFLOP/s in fp16 on paper; with the 70 W that its board may draw, some 25 to 30 (virtual; lesson 10).

# %% speed-predict
busy_guess = gpulab.predict("Before any repair: what share of an update do kernels run?", unit="%")

# %% speed-run
def one_update(job):
    """ms of an update at full size, ms of kernels in it, and TFLOP/s of its products."""
    with gpulab.VirtualGPU("T4", compute=False) as t4:
        model, *rest = parts(job)
        batch = [torch.zeros(8, 1024, dtype=torch.long, device="cuda")] * 2
        job["train"](model, [batch] * 2, *rest, 1)
        with gpulab.timing.Timer() as whole, t4.timeline() as trace:
            job["train"](model, [batch], *rest, 1)
    kernels = [span for span in trace.spans if span.where == "kernels"]
    products = [span for span in kernels if span.flops]
    rate = sum(span.flops for span in products) / sum(span.seconds for span in products) / 1e12
    return whole.ms, 1e3 * sum(span.seconds for span in kernels), rate


slow = one_update(load("first.py"))
print(f"{slow[0]:,.0f} ms, kernels {slow[1]:,.0f} ms of it; products at {slow[2]:.1f} TFLOP/s (virtual)")
told = "Nobody waits: no remedy against waits, launches or a slow loader can gain here."
busy_guess.compare(round(100 * slow[1] / slow[0]), "virtual", because=told)

# %% speed-explain [markdown]
# It is the kernels themselves: their rate is far below what tensor cores reach, and within what float32 does on
# this chip (8.1 TFLOP/s on paper). One line says why: `torch.autocast("cuda", enabled=False)`, a switch that
# somebody had turned for a test.

# %% speed-repair
script = pathlib.Path("first.py").read_text()
pathlib.Path("second.py").write_text(script.replace('"cuda", enabled=False', '"cuda", dtype=torch.float16'))
fast = one_update(load("second.py"))
print(f"{fast[0]:,.0f} ms, before {slow[0]:,.0f}; products at {fast[2]:.1f} TFLOP/s (virtual)")

# %% speed-after [markdown]
# Nearly four times as fast. And only now is the scaler needed; in float32 it scaled gradients that neither underflow nor overflow.
# **Repairs meet.** What was harmless before this one need not be so after it.

# %% numbers-text [markdown]
# ## Question 5: are the numbers right?
#
# A small model, with values. It trains, and its loss falls. But a loss that falls proves little (lesson 07), and one rare event is
# easily missed in a test of a minute: an **overflow**. The scaler begins at 2¹⁶ and doubles after every 2,000 good updates,
# until a gradient overflows. When that is depends on the gradients: the job below has no overflow in its first sixty updates.
# Bring it forward: begin with a scale of 2²⁶.

# %% numbers-run
SMALL = {"words": 128, "width": 64, "depth": 2, "heads": 1, "length": 32}


def losses(job, scale, epochs=3):
    """The mean losses of epochs of 20 updates, the schedule's count and whether the weights are finite."""
    with gpulab.VirtualGPU("T4"):
        model, optimizer, _, schedule = parts(job, **SMALL)
        scaler = torch.amp.GradScaler("cuda", init_scale=scale)
        text = job["Text"](torch.arange(32 * 8 * 20 + 1) * 7 % 89, 32)
        loader = job["make_loader"](text, 8, True)
        means = [job["train"](model, job["on_gpu"](loader), optimizer, scaler, schedule, 1) for _ in range(epochs)]
        return means, schedule.last_epoch, all(bool(p.isfinite().all()) for p in model.parameters())

# %% numbers-show
for scale in (2.0**16, 2.0**26):
    means, counted, finite = losses(load("second.py"), scale)
    shown = ", ".join(f"{mean:.1f}" for mean in means)
    print(f"scale {scale:>10,.0f}: losses {shown}; {counted} updates counted; weights finite: {finite}")

# %% numbers-explain [markdown]
# From one overflow on everything is nan. The line is `optimizer.step()`: the gradients were unscaled and clipped, the scaler has
# *seen* that they are infinite, and nobody asks it. `scaler.step(optimizer)` asks.

# %% numbers-repair
script = pathlib.Path("second.py").read_text()
pathlib.Path("third.py").write_text(script.replace("        optimizer.step()\n", "        scaler.step(optimizer)\n"))
mended, counted, finite = losses(load("third.py"), 2.0**26)
print(f"losses {', '.join(f'{mean:.1f}' for mean in mended)}; {counted} of 60 updates counted; weights finite: {finite}")

# %% numbers-after [markdown]
# Some updates are skipped while the scale comes down, the schedule does not count them, and training goes on. With that the job is
# as it should be, and the same picture shows all three repairs.

# %% picture
gpulab.style.use()
figure, (memory, speed, loss) = plt.subplots(1, 3, figsize=(10, 3.2))
for values, color, mark, name in ((found, "#D55E00", "o", "as found"), (repaired, "#0072B2", "s", "repaired")):
    memory.plot(range(1, 5), [1024 * (v - values[0]) for v in values], color=color, marker=mark, label=name)
memory.set(xlabel="updates", ylabel="MiB more than after the first (virtual)", title="Memory: flat")
memory.legend()
speed.bar([0, 1], [slow[0], fast[0]], color=["#D55E00", "#0072B2"])
speed.set_xticks([0, 1], ["as found", "repaired"])
speed.set(ylabel="ms an update (virtual)", title="Time: a quarter")
loss.plot(range(1, 4), mended, color="#0072B2", marker="s", label="repaired")
loss.set(xlabel="epochs, first scale 2²⁶", xticks=[1, 2, 3], ylabel="loss (as found: nan)", title="Loss: falls")
gpulab.style.show(figure, alt="Three panels (virtual T4). Allocated memory climbs by 24 MiB an update as found and is flat when repaired. "
    "An update takes 1,696 ms as found and 453 when repaired. The loss falls over three epochs; as found it is nan.")

# %% remedies-text [markdown]
# ## One order of remedies
#
# Most jobs that you are given do not fit, or are slow, without a fault. Then the order is that of the price; it is the same in
# lesson 05, in [the cheat sheet](../docs/cheatsheet.md) and in the interview's answers.
#
# **It does not fit:** 1. garbage, 2. `no_grad` in validation, 3. expandable segments, 4. kernels that write less, 5. 16-bit autocast,
# 6. micro-batches with accumulation, 7. checkpointing, 8. offloading, 9. LoRA or another training, 10. several GPUs.
#
# **It is slow:** 1. an honest clock, 2. who waits for whom, 3. only then mixed precision, a larger batch, `torch.compile`.

# %% turn-text [markdown]
# **Your turn** · 3 minutes. The simplest alarm there is. Write when a job is to be stopped: from the bytes allocated after each
# update, say whether it grows. The first two updates do not count (optimizer state, first calls), an update that is
# larger and goes back is no growth, and a log that is written at every second update is growth.

# %% turn tags=["your-turn"]
def grows(after):
    """Whether allocated memory, a list of bytes after each of some twelve updates, grows from the third on."""
    ### BEGIN SOLUTION
    steady = after[2:]
    half = len(steady) // 2
    return half > 0 and min(steady[half:]) > min(steady[:half])
    ### INSTEAD OF
    # return after[-1] > after[0]
    ### END SOLUTION


gpulab.turn.grows(grows)

# %% summary-text [markdown]
# ## The course on a page
#
# | topic | what to remember | lesson |
# |---|---|---|
# | architecture | thousands of lanes that do the same, a wide memory, and a host that launches; tensor cores for products of 16-bit numbers | 01 |
# | CPU and GPU | many equal operations gain, small or serial ones do not; a job takes the longest of arithmetic, memory traffic, launches, and input | 01, 10 |
# | CUDA and PyTorch | one device line; work is queued, and only a read or `synchronize` waits; copies want pinned memory | 02, 03 |
# | memory management | weights, gradients, optimizer state, activations, and logits; allocated is not reserved; a graph lives as long as a name | 04–06 |
# | mixed precision | products in 16 bits, weights and updates in float32; fp16 with a scaler, bf16 where the chip has it | 07 |
# | multi-GPU | DDP: equal weights, different data, averaged gradients; sharding when one GPU is too small | 12, 13 |
# | best practices | measure, change one thing, measure again; the remedy that costs least first; save so that a run can go on | 08, 09, 11, 14 |

# %% web-text [markdown]
# ## What the web says
#
# | claim | verdict | tested in |
# |---|---|---|
# | “If the first steps fit, the job fits.” | A step that leaves something does not repeat: look at what is allocated after each. | *A question worth asking* |
# | “The snapshot shows the line that leaks.” | It shows the line that allocated. What holds may be another one, of a few bytes. | *Question 2* |
# | “The loss falls, so training is right.” | It fell with an optimizer that takes infinite gradients, until the first overflow. | *Question 5* |
# | “GPU code is slow because of waits and loaders.” | Some is. Here kernels filled the update: nothing against waits could gain. | *Question 4* |

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **The first number of a process.** First calls load libraries and choose kernels. Half a repair's “gain” may be that the second
# run was warm.

# %% mistake-first
with gpulab.VirtualGPU("T4", compute=False):
    a = torch.empty(1024, 1024, device="cuda")
    for run in ("first", "second"):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        a @ a
        end.record()
        torch.cuda.synchronize()
        print(f"{run}: {start.elapsed_time(end):.1f} ms (virtual)")

# %% mistake-two-text [markdown]
# **Two changes at once.** Half the batch and no leak: the peak fell, so the batch gets the praise, and stays small. Below, each by
# itself, for one update after three others.

# %% mistake-two
def peak_of(rows, job):
    with gpulab.VirtualGPU("T4", compute=False):
        model, *rest = parts(job, depth=2)
        batch = [torch.zeros(rows, 1024, dtype=torch.long, device="cuda")] * 2
        job["train"](model, [batch] * 3, *rest, 1)
        return torch.cuda.max_memory_allocated() / 2**20


base = peak_of(8, load())
for name, rows, path in (("no leak", 8, "first.py"), ("half the batch", 4, "train.py"), ("both", 4, "first.py")):
    print(f"{name:<15} {base - peak_of(rows, load(path)):6.0f} MiB less of {base:.0f} (virtual)")

# %% mistake-two-explain [markdown]
# After three updates the leak is a small part of what both save, and the batch looks like the remedy. After three hundred it is all of
# it. A remedy is judged by what it repairs, not by the size of the first difference.
#
# **A repair that was not measured.** “It should be faster now” is a prediction. You have an instrument for it.

# %% quiz-text [markdown]
# ## Quick check
#
# The knowledge check of the course: ten questions, each with the lesson that it is about. Choose with the arrow keys, answer with
# Tab and Enter. Every option has its reason.

# %% quiz
gpulab.quiz(15)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. Five questions in this order: runs, repeats, true figures, who waits, right numbers.
# 2. A number after each step finds what a number at the peak does not.
# 3. The line that allocates is not always the line that holds.
# 4. Rare events are brought forward, not waited for.
# 5. One change, one instrument, before and after.
#
# **For the checklist:** `memory_allocated()` after each step is in the log · the rate of the products stands beside the chip's · one
# overflow has been seen and survived · each repair has its two numbers.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/15_capstone.ipynb): twelve faults, and a script of your own. Then your own job, with the five
# questions. What this course leaves out: writing kernels (Triton, CUDA C++), training in fp8 and fp4, expert and context
# parallelism, serving.
#
# ## References
#
# - PyTorch documentation: “Understanding CUDA Memory Usage”, “Automatic Mixed Precision examples”, “Performance Tuning Guide”.
# - A. Karpathy, *A Recipe for Training Neural Networks* (2019): from one batch to the whole.
# - This course's [myths](../docs/myths.md), [messages](../docs/errors.md) and [checklist](../docs/cheatsheet.md).

# %% title [markdown]
# # 15 · The capstone
#
# **Promise:** you are given a training job that somebody else has written; you find what is wrong with it by measuring,
# and you show what each repair has bought.
#
# After this lesson you can **take** a job apart in an order that wastes no time · **name** for each suspicion the
# instrument that decides it · **repair** one fault at a time, with a number before and after · **sum up** the course
# in a minute.
#
# | time | before this | runs on |
# |---|---|---|
# | 40 minutes, and more than two hours for the exercises | all lessons; at least `03` to `08` | any machine |

# %% setup
import contextlib
import pathlib
import runpy
import tempfile
import warnings

import torch

import gpulab

gpu = gpulab.setup()
folder = tempfile.TemporaryDirectory()
script = pathlib.Path(folder.name, "train.py")
warnings.filterwarnings("ignore", "with compute=False")  # shapes have no values: said below

# %% question-text [markdown]
# ## A question worth asking
#
# The script `train.py` trains a small GPT: 12 blocks of width 768, 8 rows of 1,024 words in a batch. (In the exercise
# it has *other* faults.) `on_t4` gives you one update of it as a function, on a *virtual* T4 with 16 GB. There it runs
# with shapes alone: tensors have bytes and times, but no values.


# %% question-script
def load(text):
    script.write_text(text)
    return runpy.run_path(str(script))  # its functions and classes; `main` is not run


@contextlib.contextmanager
def on_t4(text, rows=8, depth=12):
    job = load(text)
    with gpulab.VirtualGPU("T4", compute=False):
        model = job["GPT"](depth=depth).cuda()
        optimizer, scaler = job["make_optimizer"](model), torch.amp.GradScaler("cuda")
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1.0)
        words = torch.zeros(rows, 1024, dtype=torch.long, device="cuda")
        yield lambda: job["train"](model, [(words, words)], optimizer, scaler, schedule, 1)

# %% question-run
found = gpulab.capstone.script("lecture")
with on_t4(found) as update:
    for _ in range(4):
        update()
    peak = torch.cuda.max_memory_allocated() / 2**30
print(f"four updates: peak {peak:.1f} GiB of 14.7 (virtual)")

# %% question-predict
growth_guess = gpulab.predict("It fits. How many MiB does each update add?", unit="MiB")

# %% question-answer
live = []
with on_t4(found) as update:
    try:
        for _ in range(200):
            update()
            live.append(torch.cuda.memory_allocated() / 2**20)
    except torch.OutOfMemoryError as error:
        print(f"update {len(live) + 1}: {str(error).partition(' If ')[0]} (virtual)")
growth = live[3] - live[2]
room = (14.7 - 0.3 - peak) * 1024 / growth  # 0.3: the context
print(f"by growth alone, room for {room:.0f} updates (virtual)")
growth_guess.compare(round(growth), "virtual", because="“It fits” was true of four updates.")

# %% question-plot
import matplotlib.pyplot as plt

gpulab.style.use()
figure, axes = plt.subplots(figsize=(8, 2.6))
axes.plot(range(1, len(live) + 1), live, "X-", color="#D55E00", markevery=[-1])
axes.set(xlabel="updates", ylabel="MiB after it (virtual)", title="Each update leaves something")
gpulab.style.show(figure, alt="A straight line up, which ends where memory runs out")

# %% question-explain [markdown]
# Nothing in the script looked wrong; one number after each update shows it. In a test of four updates the job runs;
# left alone overnight, it ends within minutes.
#
# It may end before its room is used up. What each update leaves lies between the large blocks, until there is no free
# piece large enough for the logits, 1.54 GiB (lesson 05; how soon depends on the version of PyTorch). So before any
# repair: **a list of questions, and an instrument for each.**

# %% order-text [markdown]
# ## Five questions, in this order
#
# | | question | instrument | why now |
# |---|---|---|---|
# | 1 | Does it run, and with what peak? | `max_memory_allocated()`, the message of the error | nothing else can be measured |
# | 2 | Does a step leave memory as it found it? | `memory_allocated()` after each; a snapshot | a job that grows has no fixed peak |
# | 3 | Are the job's own figures true? | the same times by CUDA events; FLOPs against the peak | you are about to compare them |
# | 4 | Who waits for whom? | a trace: gaps, waits, kernels, rates | the trace says which remedy is worth trying |
# | 5 | Does it compute what it should? | a reference: float32, a small model, one batch in one piece | a fast wrong result is worth nothing |
#
# Two rules go with it. **One change at a time**, measured before and after with the same instrument: two changes at
# once can hide each other. And **measure again at the end**, since repairs affect each other.
#
# Correctness comes last because its references need a job that runs. Until then a speed is provisional: measure it
# again once the results are right.

# %% leak-text [markdown]
# ## Question 2: who holds it?
#
# You know *that* something grows. A snapshot says *which line* allocated what is still there (lesson 05). Recording
# begins after two updates, so that weights, optimizer state and first calls are not in it.

# %% leak-snapshot
with on_t4(found) as update:
    update()
    update()
    torch.cuda.memory._record_memory_history()
    for _ in range(3):
        update()
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(None)

# %% leak-run
kept = {}
for segment in snapshot["segments"]:
    for block in segment["blocks"]:
        frames = [f for f in block.get("frames", []) if f["filename"].endswith("train.py")]
        if frames and block["state"] == "active_allocated":
            kept.setdefault(frames[0]["line"], []).append(block["size"] / 2**20)
for line, sizes in kept.items():
    code = found.splitlines()[line - 1].strip()
    print(f"line {line}: {len(sizes)} blocks, {sum(sizes):.3f} MiB (virtual)  {code}")

# %% leak-explain [markdown]
# After three updates, two lines have three blocks each. One line's blocks have 24 MiB: the output of the last
# transformer block, once for each forward pass. The other's have 512 bytes: `self.norms.append(x.norm())`, a log.
#
# The small blocks are what the list holds. Each norm keeps its graph, and the graph keeps `x` for a backward pass
# through the norm, which never comes. The line that *allocated* the memory is innocent; the line that *holds* it is
# the small one. So look at every line with the right **count**, not only at the largest sizes.

# %% leak-repair
first = found.replace("        self.norms.append(x.norm())\n", "")
with on_t4(first) as update:
    update()
    before = torch.cuda.memory_allocated()
    update()
    left = torch.cuda.memory_allocated() - before
print(f"an update leaves {left} bytes, before {growth:.0f} MiB (virtual)")

# %% leak-after [markdown]
# If you want the log, `x.detach().norm()` ends the large leak, but leaves 512 bytes an update in a list that nobody
# empties. A running mean leaves nothing. Three things repair nothing: `del x` (the graph still holds it),
# `empty_cache()` (it frees no tensor), a smaller batch (the error only comes later).
#
# **Your turn** · 3 minutes. Write the alarm that was missing: from the bytes allocated after each update, say whether
# a job grows. The first two updates do not count (optimizer state, first calls). One update that takes more, if the
# next gives it back, is no growth. A log that is written at every second update is growth.

# %% turn tags=["your-turn"]
def grows(after):
    """Whether `after`, bytes after each of some twelve updates, grows from the third on."""
    ### BEGIN SOLUTION
    steady = after[2:]
    half = len(steady) // 2
    return half > 0 and min(steady[half:]) > min(steady[:half])
    ### INSTEAD OF
    # return after[-1] > after[0]
    ### END SOLUTION


gpulab.turn.grows(grows)

# %% clock-text [markdown]
# ## Question 3: are its own figures true?
#
# You are about to compare times, so the clock comes first. A script's own “words per second” may stop its clock when
# the last *launch* has returned, or count the first step (lesson 03).
#
# One test needs only the figure. A training step takes at least 6 FLOPs for each word and each parameter of a product: 2
# in forward, 4 in backward. (Attention adds more.) A job that claims more than the peak has a wrong clock or count.
#
# **Your turn** · 3 minutes. Write the test.

# %% clock-turn tags=["your-turn"]
def possible(words_per_second, parameters, peak_tflops):
    """Whether a GPU with this peak, in TFLOP/s, could train so many words a second."""
    # TODO: compare the rate that the job claims with the peak
    ### BEGIN SOLUTION
    return 6 * parameters * words_per_second <= peak_tflops * 1e12
    ### END SOLUTION


gpulab.turn.possible(possible)

# %% clock-after [markdown]
# The test finds gross errors only. To be sure, time a step by CUDA events. The times below are by the GPU's own clock.

# %% speed-text [markdown]
# ## Question 4: who waits?
#
# A trace of one update says how long it takes, for how much of that time kernels run, and at what rate. Predict the
# second.

# %% speed-predict
busy_guess = gpulab.predict("For what share of an update do kernels run?", unit="%")

# %% speed-run
with on_t4(first) as update:
    update()
    slow = gpulab.timing.operations(update, top=4)
    lanes = gpulab.timing.timeline(update)
lanes.show()
told = "Nobody waits: no remedy against waits, launches or a slow loader can gain here."
busy_guess.compare(round(100 * slow.ms / lanes.ms), "virtual", because=told)

# %% speed-rates
def rate(table):
    """TFLOP/s of the operations that have FLOPs: products and attention."""
    products = [row for row in table if row.flops]
    return sum(row.flops for row in products) / sum(row.ms for row in products) / 1e9


print(slow)
print(f"products: {rate(slow):.1f} TFLOP/s (virtual)")

# %% speed-explain [markdown]
# The host waits, and that costs nothing: the GPU is always busy. The kernels themselves are slow. A T4's tensor cores
# do 65 TFLOP/s in fp16 on paper, and its float32 lanes 8.1. The printed rate fits float32.
#
# One line says why: `torch.autocast("cuda", enabled=False)`, left over from a test.

# %% speed-repair
second = first.replace('"cuda", enabled=False', '"cuda", dtype=torch.float16')
with on_t4(second) as update:
    update()
    fast = gpulab.timing.operations(update, top=4)
print(fast)
print(f"{fast.ms:,.0f} ms, before {slow.ms:,.0f}; products {rate(fast):.1f} TFLOP/s (virtual)")

# %% speed-after [markdown]
# The products gain most, and stay below the paper's 65: 70 W do not feed all tensor cores (lesson 07). What runs
# between them is bound by memory, and now takes a large part of the time.
#
# And only now is the scaler needed. In float32 it scaled gradients that neither underflow nor overflow. **Repairs
# affect each other:** what was harmless before one of them may do harm after it.

# %% numbers-text [markdown]
# ## Question 5: are the numbers right?
#
# Take a small model, with values. It trains, and its loss falls. But a falling loss proves little (lesson 07), and a
# test of a minute easily misses a rare event: an **overflow**. The scale begins at 2¹⁶ and doubles after 2,000 good
# updates in a row, until a gradient overflows. The job below has no overflow in its first sixty updates; with other
# data there may be some in the first steps. So bring one forward: begin with a scale of 2²⁶.


# %% numbers-run
def train_small(text, scale):
    """Mean losses of three epochs of 20 updates, updates counted, whether weights are finite."""
    job, losses = load(text), []
    with gpulab.VirtualGPU("T4"):
        torch.manual_seed(0)
        model = job["GPT"](words=128, width=64, depth=1, heads=1, length=32).cuda()
        optimizer = job["make_optimizer"](model)
        scaler = torch.amp.GradScaler("cuda", init_scale=scale)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1.0)
        row = job["Text"](torch.arange(32 * 8 * 20 + 1) * 7 % 89, 32)
        for _ in range(3):
            batches = job["on_gpu"](job["make_loader"](row, 8, True))
            losses.append(job["train"](model, batches, optimizer, scaler, schedule, 1))
        finite = all(bool(p.isfinite().all()) for p in model.parameters())
    return losses, schedule.last_epoch, finite


# %% numbers-show
for scale in (2.0**16, 2.0**26):
    losses, counted, finite = train_small(second, scale)
    shown = [round(loss, 2) for loss in losses]
    print(f"scale {scale:>10,.0f}: losses {shown}; weights finite: {finite}")

# %% numbers-explain [markdown]
# After one overflow everything is nan. The faulty line is `optimizer.step()`: the gradients were unscaled and clipped,
# the scaler has *seen* that they are infinite, but nobody asks it. `scaler.step(optimizer)` asks, and skips the
# update; then `scaler.update()` halves the scale.

# %% numbers-predict
skip_guess = gpulab.predict("Repaired, from 2²⁶: how many of the 60 updates are skipped?")

# %% numbers-repair
third = second.replace("        optimizer.step()\n", "        scaler.step(optimizer)\n")
mended, counted, finite = train_small(third, 2.0**26)
in_float32 = third.replace('"cuda", dtype=torch.float16', '"cuda", enabled=False')
reference, _, _ = train_small(in_float32, 2.0**16)
for name, losses in (("from 2²⁶", mended), ("float32", reference)):
    print(f"{name:<10} losses {[round(loss, 2) for loss in losses]}")
told = "At most ten were possible: after ten halvings it is at 2¹⁶, where nothing overflowed."
skip_guess.compare(60 - counted, "virtual", because=told)

# %% numbers-after [markdown]
# The schedule does not count skipped updates, and training goes on. The reference is the same job in float32. From 2¹⁶
# the job's losses agreed with it (the row *scale 65,536* above); from 2²⁶ it is behind by what it has skipped. The
# results are right now, so **measure again**. This is the script with all three repairs:

# %% picture-run
after = []
with on_t4(third) as update:
    for _ in range(4):
        update()
        after.append(torch.cuda.memory_allocated() / 2**20)
    final = gpulab.timing.operations(update).ms
print(f"{final:,.0f} ms an update, {after[3] - after[2]:.0f} MiB left by it (virtual)")

# %% picture
figure, (memory, speed, loss) = plt.subplots(1, 3, figsize=(10, 3.2))
for values, color, name in ((live[:4], "#D55E00", "as found"), (after, "#0072B2", "repaired")):
    memory.plot(range(1, 5), [v - values[0] for v in values], "o-", color=color, label=name)
memory.set(xlabel="updates", ylabel="MiB more than after the first", title="Memory: flat")
memory.legend()
speed.bar(["as found", "repaired"], [slow.ms, final], color=["#D55E00", "#0072B2"])
speed.set(ylabel="ms an update (virtual)", title="Time: about a quarter")
loss.plot(range(1, 4), mended, "s-", color="#0072B2", label="repaired")
loss.plot(range(1, 4), reference, "--", color="#009E73", label="float32")
loss.set(xlabel="epochs", xticks=[1, 2, 3], ylabel="loss (as found: nan)", title="Loss: falls")
loss.legend()
gpulab.style.show(figure, alt="As found and repaired: memory, time of an update, loss")

# %% remedies-text [markdown]
# ## One order of remedies
#
# Many jobs do not fit, or are slow, without a fault. Then take remedies by price, as at the end of lesson 08 and in [the
# cheat sheet](../docs/cheatsheet.md).
#
# **It does not fit:** 1. garbage, 2. `no_grad` in validation, 3. expandable segments, 4. kernels that write less,
# 5. 16-bit autocast, 6. micro-batches with accumulation, 7. checkpointing, 8. offloading, 9. LoRA or another training,
# 10. several GPUs.
#
# **It is slow:** 1. an honest clock, 2. who waits for whom, 3. only then mixed precision, a larger batch,
# `torch.compile`.
#
# The two lists meet: a remedy of the first that costs time is a fault in a job that fits without it. Checkpointing in a
# step with room to spare buys nothing and costs a forward pass.

# %% summary-text [markdown]
# ## The course on a page
#
# | topic | what to remember | lesson |
# |---|---|---|
# | architecture | thousands of lanes that do the same, a wide memory, and a host that launches; tensor cores for products of 16-bit numbers | 01 |
# | CPU and GPU | many equal operations gain, small or serial ones do not; a job takes the longest of arithmetic, memory traffic, launches, and input | 01, 10 |
# | CUDA and PyTorch | one device line; work is queued, and only a read or `synchronize` waits; copies want pinned memory | 02, 03 |
# | memory management | weights, gradients, optimizer state, activations, and logits; allocated is not reserved; a graph lives as long as something refers to it | 04–06 |
# | mixed precision | products in 16 bits, weights and updates in float32; fp16 with a scaler, bf16 where the chip has it | 07 |
# | multi-GPU | DDP: equal weights, different data, averaged gradients; sharding when one GPU is too small | 12, 13 |
# | best practices | measure, change one thing, measure again; the remedy that costs least first; save so that a run can go on | 08, 09, 11, 14 |

# %% web-text [markdown]
# ## What the web says
#
# | claim | verdict | tested in |
# |---|---|---|
# | “If the first steps fit, the job fits.” | A step that leaves something does not repeat: look at what is allocated after each. | *A question worth asking* |
# | “The snapshot shows the line that leaks.” | It shows the line that allocated. The line that holds may be another one, with a few bytes. | *Question 2* |
# | “The loss falls, so training is right.” | It fell with an optimizer that takes infinite gradients, until the first overflow. | *Question 5* |
# | “GPU code is slow because of waits and loaders.” | Some is. Here kernels filled the update: no remedy against waits could help. | *Question 4* |

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **The first number of a process.** First calls load libraries and choose kernels. A repair's “gain” may be that
# the second run was warm (lesson 03).
#
# **A repair that was not measured.** “It should be faster now” is a prediction.
#
# **Two changes at once.** You halve the batch and remove the leak: the peak falls, so the batch gets the credit, and
# stays small. Here is each by itself, in a model of two blocks, after three updates:


# %% mistake-two
def peak_of(text, rows):
    with on_t4(text, rows, depth=2) as update:
        for _ in range(3):
            update()
        return torch.cuda.max_memory_allocated() / 2**20


base = peak_of(found, 8)
for name, text, rows in (("no leak", first, 8), ("half the batch", found, 4), ("both", first, 4)):
    print(f"{name:<15} {base - peak_of(text, rows):6.0f} MiB less of {base:.0f} (virtual)")

# %% mistake-two-explain [markdown]
# After three updates the batch looks like the remedy. The leak adds 24 MiB with each update, so after three hundred it
# is the larger part. Judge a remedy by what it repairs, not by the size of the first difference.

# %% quiz-text [markdown]
# ## Quick check
#
# The knowledge check of the course: ten questions, each with the lesson that it is about.

# %% quiz
gpulab.quiz(15)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. Ask in this order: does it run, does it repeat, are its figures true, who waits, are its results right?
# 2. A number after each step finds what a number at the peak does not.
# 3. The line that allocates is not always the line that holds.
# 4. Bring rare events forward; do not wait for them.
# 5. One change, one instrument, before and after.
#
# **For the checklist:** `memory_allocated()` after each step is in the log · the rate of the products stands beside the
# chip's · one overflow has been seen and survived · each repair has its two numbers.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/15_capstone.ipynb): twelve faults, and a script of your own. Then your own job, with the
# five questions. Not in this course: writing kernels (Triton, CUDA C++), training in fp8 and fp4, expert and context
# parallelism, serving.
#
# ## References
#
# - PyTorch documentation: “Understanding CUDA Memory Usage”, “Automatic Mixed Precision examples”.
# - A. Karpathy, *A Recipe for Training Neural Networks* (2019): from one batch to the whole.
# - This course's [myths](../docs/myths.md), [messages](../docs/errors.md) and [checklist](../docs/cheatsheet.md).

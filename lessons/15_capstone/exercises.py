# %% title [markdown]
# # 15 · Exercises: a script with twelve faults
#
# A colleague has left you a training script. It trains a small GPT; on a T4 it runs out of memory, is slow,
# and does not train as it should. **Find its twelve faults by measuring, and repair them**: four cost memory, four cost
# time, four make its results wrong. Some can be guessed by reading; one cannot. Then a second script, drawn for you
# alone.
#
# Work as in [the lecture](../notebooks/15_capstone.ipynb). A cell that says *not attempted yet* waits for your
# repairs; everything after it still runs.

# %% setup
import contextlib
import os
import runpy
import shutil
import tempfile
import warnings

import torch

import gpulab

gpu = gpulab.setup()
folder = tempfile.TemporaryDirectory()  # the files come and go; your work is in the cells
os.chdir(folder.name)
# with shapes alone there are no values, and none are needed here
warnings.filterwarnings("ignore", "with compute=False")

# %% script-text [markdown]
# ## 1 · The script
#
# **Repair** it in the cell below, one fault at a time. **Why:** a repair that was not measured is a guess.
#
# 90 minutes · difficulty ●●●
#
# Running the cell writes `train.py`. What a function promises is in its docstring, which is right. Keep the
# names of functions and classes, their arguments, and the names of a model's parameters: the check calls them.
# Everything else you may change. A fault is one or two lines, sometimes three.

# %% script tags=["script"]
# %%writefile train.py

# %% job-text [markdown]
# ### Measure
#
# `job()` prints three lines, whatever is still wrong: `main` at its own size on a virtual T4, with shapes alone; four
# batches of one row, which fit before any repair; and the losses of a small model, with values. Its last window and
# last batch are short, and it trains for another epoch after `save` and `load`.
#
# Before a repair, say which number it will move, and to what. Once the script has changed, `job` asks for that first:
# `job(expect="four rows: peak 6.5 GiB")`. Then it measures, and shows old and new values of the lines that changed. A
# number may also stay because of another fault.
#
# `load()` gives you the script's functions, loaded anew each time, for your own measurements: a `Block` alone, `train`
# with two batches, `evaluate` with a small model.

# %% job
SMALL = {"words": 128, "width": 64, "depth": 1, "heads": 1, "length": 32}


def load(path="train.py"):
    """The script's functions and classes by name; `main` is not run."""
    return runpy.run_path(os.fspath(path))


def parts(script, rate=3e-4, **sizes):
    """Model, optimizer, scaler and schedule of the script, on the GPU in force."""
    model = script["GPT"](**sizes).cuda()
    optimizer, scaler = script["make_optimizer"](model, rate), torch.amp.GradScaler("cuda")
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: min(1.0, (update + 1) / 20))
    return model, optimizer, scaler, warm


def batches(script, row, length, batch, train):
    """The script's batches of a row of word numbers, on the GPU."""
    return script["on_gpu"](script["make_loader"](script["Text"](row, length), batch, train))


def whole(path):
    """`main` at its own size, for one update: peak and time, or the message that ends it."""
    with gpulab.VirtualGPU("T4", compute=False) as t4:
        try:
            load(path)["main"](updates=1)
        except torch.OutOfMemoryError as error:
            return str(error)
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() / 2**30
        return f"peak {peak:.2f} GiB, {t4.clock.now():.2f} s (virtual)"


def four_rows(path):
    """`train`, then `evaluate`, with four batches of one row: peaks, time, kernels, waits."""
    row = torch.zeros(4 * 1024 + 1, dtype=torch.long)
    with gpulab.VirtualGPU("T4", compute=False) as t4:
        script = load(path)
        model, *rest = parts(script)
        torch.cuda.synchronize()
        start = t4.clock.now()
        with t4.timeline() as trace:
            script["train"](model, batches(script, row, 1024, 1, True), *rest, 4)
            torch.cuda.synchronize()
        seconds, trained = t4.clock.now() - start, torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        script["evaluate"](model, batches(script, row, 1024, 1, False))
        evaluated = torch.cuda.max_memory_allocated()
    kernels = sum(span.where == "kernels" for span in trace.spans)
    waits = sum(span.where == "to host" or "staging" in span.name for span in trace.spans)
    peaks = f"peak {trained / 2**30:.2f} GiB, in evaluation {evaluated / 2**30:.2f} GiB"
    return f"{peaks}; {seconds:.2f} s, {kernels:,} kernels, {waits} waits (virtual)"


def small(path):
    """The mean losses of two epochs with a short last window, of an uneven evaluation, and
    of an epoch after `load`.
    """
    row = torch.arange(18 * 8 * 32 + 1) * 7 % 89
    # seven rows as in training, and one that cannot be predicted
    held_out = torch.cat([row[: 7 * 32], row[:33].flip(0)])
    with gpulab.VirtualGPU("T4"):
        torch.manual_seed(0)
        script = load(path)
        model, *rest = parts(script, 0.02, **SMALL)
        losses = []
        for _ in range(2):
            losses.append(script["train"](model, batches(script, row, 32, 8, True), *rest, 4))
        losses.append(script["evaluate"](model, batches(script, held_out, 32, 7, False))[0])
        script["save"]("kept.pt", model, *rest)
        model, *rest = parts(script, 0.02, **SMALL)
        script["load"]("kept.pt", model, *rest)
        losses.append(script["train"](model, batches(script, row, 32, 8, True), *rest, 4))
    return "loss {:.2f}, {:.2f}; held out {:.2f}; after load {:.2f}".format(*losses)


printed = {}  # by path: the script, and the lines that were printed


def job(path="train.py", expect=""):
    """Print what the script at `path` does as a whole, with four rows, and with values; if it
    has changed, `expect` must name a number.
    """
    with open(path, encoding="utf-8") as file:
        text = file.read()
    was, before = printed.get(path, (text, {}))
    if text != was and not any(letter.isdigit() for letter in expect):
        print('the script has changed; say first which number moves, and to what: job(expect="…")')
        return
    if expect:
        print(f"expected:  {expect}")
    lines = {}
    for title, measure in (("main", whole), ("four rows", four_rows), ("small", small)):
        with contextlib.redirect_stdout(None):
            lines[title] = measure(path)
        print(f"{title + ':':<10} {lines[title]}")
        if before.get(title, lines[title]) != lines[title]:
            print(f"  before:  {before[title]}")
    printed[path] = text, lines

# %% job-run tags=["host-dependent"]
job()

# %% own-text [markdown]
# ### Your measurements
#
# Use this cell, and add more. As an example, it measures what a `Block` keeps for backward:

# %% own
with gpulab.VirtualGPU("T4", compute=False):
    block = load()["Block"](768, 12).cuda()
    x = torch.empty(4, 1024, 768, device="cuda", requires_grad=True)

    def forward():
        with torch.autocast("cuda", dtype=torch.float16):
            return block(x)

    forward()  # the first call also allocates what stays: cuBLAS's workspaces, up to PyTorch 2.14
    before = torch.cuda.memory_allocated()
    out = forward()
    print(f"{(torch.cuda.memory_allocated() - before) / 2**20:.0f} MiB (virtual)")

# %% check-text [markdown]
# ### Score
#
# Each place of the script is measured by itself, on a virtual T4, with the check's own models and batches: any repair
# counts, in any order, whatever else is still wrong. A repaired fault is named, with its evidence before and after, and
# is recorded. For a fault that is left, the check names the tool that shows it. It also names what you broke.

# %% check tags=["check", "host-dependent"]
gpulab.check.capstone("train.py")

# %% hints [markdown]
# <details><summary>Hint 1: in which order</summary>
#
# First memory, which ends the run. Measure what attention keeps, what the MLP keeps and in which type, what grows from
# batch to batch, in training and in evaluation: four questions, four `memory_allocated()`. Then time: which kernels, how
# many, who waits. Last the results: they need a reference, such as the same batches at once.
#
# </details>
# <details><summary>Hint 2: where</summary>
#
# Memory: one in `attend`, one in `mlp`, one in `train`, one in `evaluate`. Speed: `make_loader`,
# `make_optimizer`, `loss_of`, `train`. Results: two in `train`, one in `evaluate`, one in `save` and `load`.
#
# </details>
# <details><summary>Hint 3: what the lessons call it</summary>
#
# Attention scores that are materialised (06), an operation that autocast runs in float32 (07), a graph that is kept (05), no
# gradient needed (05); pageable memory (03), kernels tensor by tensor (06), a format without tensor cores (07), a
# hidden wait (03); clip and unscale (07), the last window (08), a mean of means (08), state that a run depends on (14).
#
# </details>

# %% drawn-text [markdown]
# ## 2 · Your own script
#
# **Repair** another one. **Why:** the first time you knew that there were twelve, and had hints.
#
# 45 minutes · difficulty ●●●
#
# Put your name into the cell below and run it. It writes `mine.py`, with twelve faults drawn for this name from a pool
# of thirty-six, and adds a cell with the script below itself. Another name gives other faults, the same name the same ones.
# (If your front end adds no cell, open the file.) Every script of the pool becomes the same program when it is
# repaired. A copy of your first one would pass, but would teach you nothing: measure.

# %% draw tags=["host-dependent"]
mine = gpulab.capstone.draw("Ada Lovelace", "mine.py")
job(mine)

# %% repaired tags=["solution"]
def repaired():
    """The drawn script, `mine`, when its file has your repairs."""
    # TODO: repair the script in its cell and run the cell; then this function is one line,
    # return mine
    ### BEGIN SOLUTION
    shutil.copy("train.py", mine)  # repaired, it is the same program, whatever its faults were
    return mine
    ### END SOLUTION

# %% check-drawn tags=["check", "host-dependent"]
gpulab.check.capstone_drawn(repaired)

# %% done [markdown]
# ## Done?
#
# The cell below shows what is recorded. `gpulab.certificate("your name", "certificate.html")` makes a page of it, with
# the faults that you have repaired and the days. It is your own record, not signed by anyone; print it if you like.
# The course ends here: [the map](../notebooks/00_start_here.ipynb) shows what you have left out.

# %% progress tags=["host-dependent"]
gpulab.progress()

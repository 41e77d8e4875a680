# %% title [markdown]
# # 15 · Exercises: a script with twelve faults
#
# A colleague has left, and a training script has stayed. It trains a small GPT; on a T4 it runs out of memory, is slow, and
# does not train as it should. **Find its twelve faults by measuring, and repair them**: four cost memory, four cost time, four
# make its results wrong. Then a second script, drawn for you alone.
#
# Go about it as in [the lecture](../notebooks/15_capstone.ipynb). A cell that says *not attempted yet* waits for your
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
warnings.filterwarnings("ignore", "with compute=False")  # shapes alone have no values, and need none here

# %% script-text [markdown]
# ## 1 · The script
#
# **Repair** it in the cell below, one fault at a time. **Why:** so it is with every job that you are given; and a repair that
# was not measured is a guess.
#
# 90 minutes · difficulty ●●●
#
# Running the cell writes `train.py`. What a function promises stands in its docstring, and that is right. Keep the names of
# functions and classes, their arguments, and the names of a model's parameters: the check calls them. Elsewhere you may write
# what you like. A fault is one or two lines, here and there three.

# %% script tags=["script"]
# %%writefile train.py

# %% job-text [markdown]
# ### Measure
#
# First the whole job: one update at full size on a virtual T4, with shapes alone. `load()` gives you the script's functions,
# afresh each time, for measurements of your own: a `Block` alone, `train` with two batches, `evaluate` with a small model.

# %% job
def load(path="train.py"):
    """The script's functions and classes by name; `main` is not run."""
    return runpy.run_path(os.fspath(path))


def job(path="train.py"):
    """The peak in GiB and the seconds of `main` at full size on a T4 (virtual); or how it ends."""
    with gpulab.VirtualGPU("T4", compute=False) as t4, contextlib.redirect_stdout(None):
        try:
            load(path)["main"](batch=16, accumulate=2, updates=1)
        except torch.OutOfMemoryError as error:
            return str(error).partition(". GPU")[0]
        torch.cuda.synchronize()
        return f"peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB, {t4.clock.now():.1f} s"

# %% job-run
print(job(), "(virtual)")

# %% own-text [markdown]
# ### Your measurements
#
# Use this cell, and more like it. As an example, what a `Block` keeps for backward:

# %% own
with gpulab.VirtualGPU("T4", compute=False):
    block, x = load()["Block"](768, 12).cuda(), torch.empty(4, 1024, 768, device="cuda", requires_grad=True)

    def forward():
        with torch.autocast("cuda", dtype=torch.float16):
            return block(x)

    forward()  # the first call also makes what stays: cuBLAS's workspaces, up to PyTorch 2.14
    before = torch.cuda.memory_allocated()
    out = forward()
    print(f"{(torch.cuda.memory_allocated() - before) / 2**20:.0f} MiB (virtual)")

# %% check-text [markdown]
# ### Score
#
# Each place of the script is measured by itself, on a virtual T4, with models and batches of the check's own: any repair
# counts, in any order, whatever else is still wrong. What is repaired is named, with its evidence before and after, and
# is recorded. What is not is told by the instrument that shows it. What you break is told too.

# %% check tags=["check", "host-dependent"]
gpulab.check.capstone("train.py")

# %% hints [markdown]
# <details><summary>Hint 1: in which order</summary>
#
# First what ends the run: memory. Take apart what a block keeps, what a step adds with depth, what grows from batch to
# batch, in training and in evaluation: four questions, four `memory_allocated()`. Then time: which kernels, how many,
# who waits. Results last: they need a reference, such as the same batches at once.
#
# </details>
# <details><summary>Hint 2: where</summary>
#
# Memory: one in `attend`, one in `GPT.forward`, one in `train`, one at `evaluate`. Speed: `make_loader`,
# `make_optimizer`, `loss_of`, `train`. Results: two in `train`, one in `evaluate`, one in `save` and `load`.
#
# </details>
# <details><summary>Hint 3: what the lessons call it</summary>
#
# Scores that are written out (06), recomputation (06), a graph that is held (05), no gradient needed (05); pageable memory
# (03), kernels tensor by tensor (06), a format without tensor cores (07), a hidden wait (03); clip and unscale (07), the last
# window (08), a mean of means (08), state that a run depends on (14).
#
# </details>

# %% drawn-text [markdown]
# ## 2 · Your own script
#
# **Repair** another one. **Why:** the first time you knew that there were twelve, and had hints.
#
# 45 minutes · difficulty ●●●
#
# Put your name into the cell below and run it. It writes `mine.py`, with twelve faults drawn for this name from a
# pool of thirty-six, and puts a cell with the script below itself. Another name, other faults; the same name, the same ones. (In
# a front end that adds no cell, open the file.) Every script of the pool leads to the same program when it is repaired. A copy of
# your first one would pass, and would teach you nothing: measure.

# %% draw
mine = gpulab.capstone.draw("Ada Lovelace", "mine.py")
print(job(mine), "(virtual)")

# %% repaired tags=["solution"]
def repaired():
    """The drawn script, `mine`, when its file has your repairs."""
    # TODO: repair the script in its cell and run that; then this function is one line, return mine
    ### BEGIN SOLUTION
    shutil.copy("train.py", mine)  # repaired, it is the same program, whichever the twelve were
    return mine
    ### END SOLUTION

# %% check-drawn tags=["check", "host-dependent"]
gpulab.check.capstone_drawn(repaired)

# %% done [markdown]
# ## Done?
#
# The cell below shows what is recorded. `gpulab.certificate("your name", "certificate.html")` makes a page of it, with the
# faults that you have repaired and the days. It is a record of your own, signed by nobody; print it if you like. The course
# ends here: [the map](../notebooks/00_start_here.ipynb) says what you have left out.

# %% progress tags=["host-dependent"]
gpulab.progress()

# %% title [markdown]
# # 14 · Exercises: a run that survives interruptions
#
# Four exercises, about 95 minutes. A check cell under each tests your code: run it as often as you like. It draws new
# inputs every time, and when it fails it says what it expected, what it got, and which section of
# [the lecture](../notebooks/14_long_runs.ipynb) to read.
#
# A cell that says *not attempted yet* is one you have not written. Everything after it still runs.

# %% setup
import copy
import io
import math
import os
import pathlib
import random
import signal
import tempfile
import zipfile
import zlib

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import gpulab

gpu = gpulab.setup()

# %% resume-text [markdown]
# ## 1 · To the bit
#
# **Build** the state from which a run continues as if it had never been interrupted. **Why:** a run that resumes from
# the weights alone raises no error. It may train worse, and nobody knows why; and you can reproduce a bug that appears
# at step 90,000 only if the steps before it repeat bit for bit.
#
# 25 minutes · difficulty ●●○
#
# **Predict first:** of the twelve pieces of state below, how many does `model.state_dict()` hold?
#
# The check interrupts small runs before their first step, at the start of an epoch and in the middle of one, on one
# virtual GPU and on two. It resumes in a run that has already trained, with other seeds, and compares every piece of
# state with a run that was never interrupted.
#
# **`Resumable(run)`**
#
# - `state_dict()`: a dictionary of everything that the next steps of run depend on. It does not change while run
#   continues, even after it has been loaded; `torch.save` writes it, and `torch.load(path, weights_only=True)` reads
#   it. Calling it does not affect run.
# - `load_state_dict(state)`: puts run into that state, whatever it has done before, and on whichever device
#   `torch.load` has put the tensors. Its next steps are then those of the run that was saved, to the bit. The model,
#   optimizer, scheduler and scaler stay the same objects, and the optimizer steps the model's own parameters.
#
# `run.model`, `run.optimizer`, `run.scheduler` and `run.scaler` are PyTorch objects; the model may be spread over two
# GPUs. `run.epoch` and `run.place` are whole numbers: the epochs done, and the batches done in the current one.
#
# `run.order` is the order of this epoch's data: a tensor on the CPU, drawn when the epoch begins; `None` before the
# first. A step draws from the global generators of Python (random), NumPy and PyTorch on the CPU, and from that of each
# GPU.

# %% Resumable tags=["solution"]
class Resumable:
    """A run's state as one object: Resumable(run), with the two methods of
    torch.distributed.checkpoint's Stateful.
    """

    def __init__(self, run):
        # TODO: keep the run; then write state_dict and load_state_dict. Which parts have a
        # state_dict of their own, and which don't?
        ### BEGIN SOLUTION
        self.run = run

    def state_dict(self):
        run = self.run
        parts = ("model", "optimizer", "scheduler", "scaler")
        state = {part: getattr(run, part).state_dict() for part in parts}
        state["where"] = run.epoch, run.place, run.order
        state["python"] = random.getstate()
        name, keys, *rest = np.random.get_state()
        state["numpy"] = name, keys.tolist(), *rest  # weights_only reads no NumPy arrays
        state["cpu"] = torch.get_rng_state()
        state["gpus"] = torch.cuda.get_rng_state_all()
        return copy.deepcopy(state)  # a state dict's tensors are those that train

    def load_state_dict(self, state):
        # the optimizer continues with the very tensors that it gets
        run, state = self.run, copy.deepcopy(state)
        for part in ("model", "optimizer", "scheduler", "scaler"):
            getattr(run, part).load_state_dict(state[part])
        run.epoch, run.place, order = state["where"]
        run.order = order if order is None else order.cpu()
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
        # a generator's state is on the CPU, even a GPU's
        torch.set_rng_state(state["cpu"].cpu())
        torch.cuda.set_rng_state_all([numbers.cpu() for numbers in state["gpus"]])
        ### END SOLUTION

# %% check-resume tags=["check"]
gpulab.check.resume_exactly(Resumable)

# %% resume-hints [markdown]
# <details><summary>Hint 1</summary>
#
# Go through `step()` line by line: what does it read that an earlier step has written? Four parts have a `state_dict()`
# of their own. Three are plain attributes. The rest is in random generators.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `random.getstate()`, `np.random.get_state()`, `torch.get_rng_state()`, `torch.cuda.get_rng_state_all()`, and the
# functions that set them. NumPy's state is a tuple with an array in it; `weights_only=True` reads tensors, numbers,
# strings and containers of those.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Three traps. The tensors in a `state_dict()` are the live ones, which training changes: `copy.deepcopy` before you
# return it. An optimizer's `load_state_dict` keeps the tensors that it gets, and training changes them: load a copy.
# And `torch.load(…, map_location="cuda")` puts *every* tensor on the GPU, even the generators' states and the order:
# `.cpu()`.
#
# </details>

# %% resume-seen-text [markdown]
# Your class on a run that is interrupted in its second epoch: eight steps without interruption, then the last three of
# them again.

# %% resume-run
class Run:
    def __init__(self, seed):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 2)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)
        self.scaler = torch.amp.GradScaler("cuda")
        self.epoch = self.place = 0
        self.order = None

# %% resume-step
def step(run):
    if run.place == 0:
        run.order = torch.randperm(32)
    rows = run.order[8 * run.place : 8 * run.place + 8]
    x = (rows[:, None] * torch.arange(8)).sin() + random.gauss(0, 0.1) + np.random.normal(0, 0.1)
    loss = F.cross_entropy(run.model(x.cuda()), (rows % 2).cuda())
    run.optimizer.zero_grad()
    run.scaler.scale(loss).backward()
    run.scaler.step(run.optimizer)
    run.scaler.update()
    run.scheduler.step()
    run.epoch, run.place = divmod(4 * run.epoch + run.place + 1, 4)
    return loss.item()

# %% resume-seen tags=["needs-answer"]
first, second = Run(seed=1), Run(seed=2)
losses = [step(first) for _ in range(5)]
torch.save(Resumable(first).state_dict(), file := io.BytesIO())
losses += [step(first) for _ in range(3)]
print("three more steps:", [f"{loss:.3f}" for loss in losses[-3:]])
Resumable(second).load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
again = [step(second) for _ in range(3)]
same = "to the bit" if again == losses[-3:] else "not the same"
print("from the file:   ", [f"{loss:.3f}" for loss in again], same)

# %% atomic-text [markdown]
# ## 2 · Whole, or not there
#
# **Build** a class that keeps a run's checkpoints in a folder, so that an interruption at any moment does no harm.
# **Why:** `torch.save(state, "checkpoint.pt")` begins by truncating the only checkpoint there is. Machines disappear in
# the middle of something, and a large run spends minutes of every hour writing checkpoints.
#
# 30 minutes · difficulty ●●●
#
# **Predict first:** after how many of the operations of `torch.save(state, path)` is there no complete file?
#
# The check records your save with `gpulab.crash`, and calls latest() after a kill at every operation and after a power
# cut at every moment. Then it damages files. Nothing is really killed, and no disk really waits.
#
# **`Checkpoints(folder, keep)`**
#
# - `folder`: a `pathlib.Path` of an existing folder, on a disk of its own, like a mounted one
# - `save(state, step)`: writes state with `torch.save`, as `f"step{step}.pt"`; each step is larger than those before.
#   Only the `keep` newest files stay, and those that `latest()` has set aside: the next save also removes what a killed
#   save has left.
# - `latest()`: the state with the largest step, read with `torch.load(…, weights_only=True)`; `None` if nothing was
#   ever saved
#
# Other programs read these files: at every moment each file whose name ends in `.pt` is complete. At whatever operation
# of save a process is killed, `latest()` then returns the state of the save before, or the new one. The same holds
# after a power cut. Once save has returned, it is the new one, even after a power cut.
#
# If a state cannot be saved, save raises what `torch.save` raises, and all files are as before.
#
# A disk may damage a file: truncate it, or replace some of its bytes by zeros. `latest()` then takes the one before it,
# and the damaged file is set aside under a name with another ending, and stays there, so that somebody can look at it.
# If all are damaged, `latest()` raises at every call: `None` would start the run at step 0.
#
# A file that cannot be opened is not damaged, nor is a complete one that `torch.load` refuses: `latest()` raises, and
# the file keeps its name.
#
# The next call may come from another process, with an object of its own.

# %% Checkpoints tags=["solution"]
class Checkpoints:
    """The checkpoints of a run, in a folder of their own:
    Checkpoints(folder, keep), with two methods.
    """

    def __init__(self, folder, keep):
        # TODO: keep both. Then save, in steps that are each done fully or not at all; and latest,
        # newest first
        ### BEGIN SOLUTION
        self.folder, self.keep = folder, keep

    def files(self):
        """The newest first, by the number in the name. glob would hide an unreadable folder."""
        steps = {
            int(path.stem.removeprefix("step")): path
            for path in self.folder.iterdir()
            if path.match("step*.pt")
        }
        return [steps[step] for step in sorted(steps, reverse=True)]

    def save(self, state, step):
        # one name: the next save writes over what a killed one has left
        temporary = self.folder / "unfinished.tmp"
        try:
            with open(temporary, "wb") as file:
                torch.save(state, file)
                file.flush()  # from Python to the system,
                os.fsync(file.fileno())  # from the system to the disk
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        os.replace(temporary, self.folder / f"step{step}.pt")
        self.sync_folder()
        for old in self.files()[self.keep :]:
            old.unlink()

    def sync_folder(self):
        """A name is an entry of its folder, which has to reach the disk too."""
        if os.name == "posix":
            folder = os.open(self.folder, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)

    def latest(self):
        for path in self.files():
            # raises where the disk does not answer, which says nothing of the file
            content = path.read_bytes()
            if self.whole(content):
                return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            os.replace(path, path.with_suffix(".damaged"))
        if any(self.folder.glob("*.damaged")):
            raise RuntimeError(f"all checkpoints in {self.folder} are damaged")
        return None

    def whole(self, content):
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                if archive.testzip():  # torch.load does not look at the checksums
                    return False
            # the list of parts has none
            torch.load(io.BytesIO(content), map_location="meta", weights_only=True)
        # what damaged bytes raise
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError):
            return False
        return True
        ### END SOLUTION

# %% check-atomic tags=["check"]
gpulab.check.atomic_checkpoint(Checkpoints)

# %% atomic-hints [markdown]
# <details><summary>Hint 1</summary>
#
# A rename happens fully or not at all; a write does not. So write under another name, in the same folder, and rename
# with `os.replace` when everything is written. What happens to that other file when the process is killed, and who
# removes it?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Data may wait in three places: in Python's buffer (`file.flush()`), in the system's cache (`os.fsync(file.fileno())`),
# and in the folder, which has an entry for the new name (`os.open(folder, os.O_RDONLY)`, `os.fsync`, `os.close`;
# Windows cannot open a folder). In which order do they come with the rename, and when may you remove the oldest file?
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.load` detects a truncated file, but not one with zeros in the middle. `torch.save` writes a zip archive:
# `zipfile.ZipFile(path).testzip()` compares the checksum of each part, and `zipfile.BadZipFile` means that the file is
# not an archive. The list of the parts, at the end, has no checksum: `torch.load` detects zeros there, and raises
# RuntimeError, ValueError or EOFError. An `except Exception` sets healthy files aside too, for example when a file
# server is away for a minute. Sort by `int(...)` of the step: as strings, 9 comes after 10.
#
# </details>

# %% atomic-seen-text [markdown]
# What your latest() returns after a kill at every moment of a save, in order; after a power cut during the save; and
# after a power cut once the save has returned:

# %% atomic-seen tags=["needs-answer"]
def latest_steps(states):
    found = []
    for state in states:
        with state.opened() as place:
            found.append(Checkpoints(place, 2).latest()["step"])
    return [*dict.fromkeys(found)]


with tempfile.TemporaryDirectory() as name:
    Checkpoints(pathlib.Path(name), 2).save({"step": 1, "w": torch.zeros(2000)}, 1)
    with gpulab.crash.record(name) as journal:
        Checkpoints(pathlib.Path(name), 2).save({"step": 2, "w": torch.ones(2000)}, 2)
    before, after = (
        latest_steps([state for state in journal.power_cuts if state.finished == done])
        for done in (False, True)
    )
    print("steps:", latest_steps(journal.kills), sorted(before), after)

# %% notice-text [markdown]
# ## 3 · The notice
#
# **Build** the loop of a job that may be asked to stop. **Why:** SLURM sends a signal before it takes the machine away,
# and so does a program that watches for a cloud's notice. A handler runs between two bytecode instructions: in the
# middle of a step, a save, or an exception. A handler that saves at once saves an inconsistent state.
#
# 20 minutes · difficulty ●●○
#
# **Predict first:** a handler runs between two instructions of the main thread. What does the thread do meanwhile?
#
# The check calls your function in a process of its own, in the main thread, because only there can a handler be set,
# and sends real signals at moments of its choice.
#
# **`save_on_notice(train_step, save, first, last, every)`**
#
# - `train_step(step)`: call it call it for each step from first to last - 1, in order; not at all if first is last
# - `save(done)`: call it call it after every `every` steps and after the last one, with the number of the next step:
#   first + every is the first such number. It takes a while.
#
# SIGTERM is the notice. The current step runs to its end, no other one begins, and save is called once, even if a save
# was due anyway. A notice during save does not change that: what is being saved is not saved again. A second notice has
# no effect.
#
# The returned value is for the caller, which leaves a file that says “again”, like `main` in the lecture: an exit code
# would not get through `torchrun`.
#
# When this function ends, the handler of SIGTERM is the previous one: even after an exception of `train_step` or of
# save, or Ctrl-C, which reaches the caller, and nothing is saved after it.

# %% save_on_notice tags=["solution"]
def save_on_notice(train_step, save, first, last, every):
    """Train and save until the end, or until SIGTERM comes; return 75 if a notice has left steps
    undone, else 0.
    """
    # TODO: a handler that only records the notice; a loop that checks after each step; and restore
    # the old handler, whatever happens
    ### BEGIN SOLUTION
    noticed = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: noticed.append(number))
    try:
        for step in range(first, last):
            train_step(step)
            done = step + 1
            if noticed or done == last or (done - first) % every == 0:
                save(done)
            if noticed and done < last:
                return 75
        return 0
    finally:
        signal.signal(signal.SIGTERM, before)
    ### END SOLUTION

# %% check-notice tags=["check"]
gpulab.check.save_on_notice(save_on_notice)

# %% notice-hints [markdown]
# <details><summary>Hint 1</summary>
#
# `signal.signal(signal.SIGTERM, handler)` installs a function of (number, frame), and returns the previous handler. The
# less the handler does the better: it may append to a list.
#
# </details>
# <details><summary>Hint 2</summary>
#
# After each step there are three reasons for a single save: a notice, the last step, or a save is due. Then check again
# for a notice, because it may have come during the save.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Put all of it in `try … finally`, and restore the old handler in `finally`. Use no `except`: after Ctrl-C or a failed
# step the user wants to see the exception, and the state is then in the middle of a step.
#
# </details>

# %% notice-seen-text [markdown]
# Your loop in this notebook, whose cells run in the main thread. The notice comes in the middle of step 5:

# %% notice-seen tags=["needs-answer"]
def noisy_step(step):
    if step == 5:
        signal.raise_signal(signal.SIGTERM)
    print("step", step, end=", ")


code = save_on_notice(
    noisy_step, lambda done: print(f"saved: {done} steps done", end=", "), 0, 20, 4
)
print("and the code is", code)

# %% interval-text [markdown]
# ## 4 · Stretch: how often to save
#
# **Compute** the interval between checkpoints that loses the least time, and the hours to request. **Why:** if you save
# too often, you pay for checkpoints; if you save too rarely, you pay for work done twice. And a run on a hundred
# machines is interrupted a hundred times as often as a run on one.
#
# 20 minutes · difficulty ●●○
#
# **Predict first:** a machine fails once in 200 days. How often does a run on 200 machines stop?
#
# An interruption is equally likely at any moment, even while a checkpoint is written or the run restarts. After it the
# run restarts, which takes $R$ hours, and continues from the last checkpoint. With a mean of $M$ hours between
# interruptions of the run, a stretch of $t$ hours (work and the checkpoint after it) takes on average
# $M\,e^{R/M}\,(e^{t/M} - 1)$ hours, all repetitions included (Daly, 2006). The work is cut into equal stretches, and
# after each one, the last too, a checkpoint is written.
#
# **`best_interval(checkpoint_seconds, restart_minutes, hours_between, machines, work_hours)`**
#
# - `checkpoint_seconds`: seconds to write a checkpoint
# - `restart_minutes`: minutes from an interruption until the run continues from its last checkpoint
# - `hours_between`: mean hours between two interruptions of one machine
# - `machines`: how many machines there are: a failure of any interrupts the whole run
# - `work_hours`: hours that the run takes without interruptions and checkpoints, at most 100 times the mean time
#   between two interruptions of the run
#
# The interval is one with which the hours lost, `expected - work_hours`, are the least, to within 1 %: even if a
# checkpoint takes about as long as the time between interruptions, and if it is best to save only at the end; then it
# is `work_hours`.
#
# `expected` is the mean time of the whole run with this interval, to within 1 %.

# %% best_interval tags=["solution"]
def best_interval(checkpoint_seconds, restart_minutes, hours_between, machines, work_hours):
    """(interval, expected): hours of work between two checkpoints, and hours that the
    run then takes on average.
    """
    # TODO: convert to hours; the expected time for n stretches; and the n with the least time
    ### BEGIN SOLUTION
    checkpoint, restart = checkpoint_seconds / 3600, restart_minutes / 60
    between = hours_between / machines

    def expected(stretches):
        length = work_hours / stretches + checkpoint
        return stretches * between * math.exp(restart / between) * math.expm1(length / between)

    most = math.ceil(work_hours / math.sqrt(2 * checkpoint * between)) * 4 + 10
    best = min(range(1, most), key=expected)
    return work_hours / best, expected(best)
    ### END SOLUTION

# %% check-interval tags=["check"]
gpulab.check.best_interval(best_interval)

# %% interval-hints [markdown]
# <details><summary>Hint 1</summary>
#
# Three units come in. Convert them in the first line, and divide the time between interruptions by the number of
# machines.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Write the expected time as a function of the number of stretches: that number times the time of one stretch, whose
# length is the work divided by the number, plus a checkpoint. `math.expm1(x)` is $e^x - 1$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `min(range(1, most), key=expected)` tries them all. Young's $\sqrt{2CM}$ shows where to look: try up to a few times as
# many stretches as it gives.
#
# </details>

# %% interval-seen-text [markdown]
# Your numbers for a week of work on 8 and on 1,024 machines that fail once in 200 days, with a checkpoint of 90 seconds
# (computed):

# %% interval-seen tags=["needs-answer"]
for machines in (8, 1024):
    interval, expected = best_interval(90, 10, 200 * 24, machines, 7 * 24)
    print(f"{machines:5,} machines: save every {60 * interval:.0f} minutes,", end=" ")
    print(f"{expected:.1f} hours instead of {7 * 24}")

# %% done [markdown]
# ## Done?
#
# The cell below shows what is recorded. Next: [the map of the course](../notebooks/00_start_here.ipynb).

# %% progress tags=["host-dependent"]
gpulab.progress()

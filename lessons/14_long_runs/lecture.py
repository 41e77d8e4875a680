# %% title [markdown]
# # 14 · Long runs
#
# **Promise:** a run that is interrupted at any moment goes on with the numbers that it would have had anyway.
#
# After this lesson you can **resume** a run to the bit · **write** a checkpoint that is whole or not there · **answer**
# a notice of 30 seconds · **compute** how often to save, and what a run costs · **tell** from a log what a run suffers
# from.
#
# | time | before this | runs on |
# |---|---|---|
# | 55 minutes, and 95 for the exercises | `07_mixed_precision`, `12_many_gpus` | any machine; the signals need Linux or macOS |

# %% question-text [markdown]
# ## A question worth asking
#
# A small network learns the digits, with all that large ones have: dropout, AdamW, a schedule, fp16 with a scaler,
# augmentation. It should make 60 steps, 15 an epoch, but is interrupted after 38. As in most tutorials it has saved
# `model.state_dict()`. A new process loads that and trains on. Is it still the same run?

# %% setup
import sys

import torch

import gpulab

gpu = gpulab.setup()
programs = gpulab.course.lesson(14).folder / "programs"  # job.py, checkpoints.py, train.py, …
sys.path.insert(0, str(programs))

# %% question-run tags=["host-dependent"]
import job
import matplotlib.pyplot as plt

wanted = job.train(job.fresh(1), 0, 60)  # nobody interrupts it

interrupted = job.fresh(1)
got = job.train(interrupted, 0, 38)
resumed = job.fresh(2)  # as in a new process, with other random numbers
resumed["model"].load_state_dict(interrupted["model"].state_dict())
got += job.train(resumed, 38, 60, late=8)  # 8 batches of this epoch are done: it begins it anew

gpulab.style.use()
figure, axes = plt.subplots(figsize=(7.2, 2.3))
axes.plot(got, label="interrupted after step 38, resumed from the weights")
axes.plot(wanted, label="not interrupted")
axes.set(xlabel="step", ylabel="loss (measured)", title="After the restart it is another run")
axes.legend()
gpulab.style.show(figure, alt="Two curves of losses: equal up to step 38, different from there on.")

# %% question-answer [markdown]
# There is no error. On a large network you may see a bump in the curve after each restart. Some samples count twice,
# and a bug that shows at step 90,000 cannot be reproduced.

# %% bits-text [markdown]
# ## The same run, to the bit
#
# Which parts of a run have a state? Here are two functions of `job.py`. Click a line with a note, or
# choose with the arrow keys:

# %% bits-job
import inspect

gpulab.annotated(inspect.getsource(job.build) + "\n" + inspect.getsource(job.batch), {
    "Dropout": "Weights: model.state_dict(). Dropout's masks come from the GPU's own generator.",
    "AdamW": "Two averages for each parameter, and a count of steps: optimizer.state_dict().",
    "schedule = ": "How many steps it has made. It makes none where the scaler skips one.",
    "scaler = ": "The scale, and how many good steps have gone by since it grew.",
    "divmod": "The place in the data: epoch and batch. Here both follow from the step.",
    "randperm": "The order of an epoch, from a generator of its own: the same in each process.",
    "randint": "The augmentation draws from Python's generator, NumPy's, and PyTorch's on the CPU.",
})

# %% bits-text-pieces [markdown]
# There are nine pieces: four parts with a `state_dict()`, the place in the data, four generators. All are saved at
# step 38. Then one run resumes with all nine, and nine more each leave one out.

# %% bits-predict
pieces_guess = gpulab.predict("Of nine pieces, how many make no difference if left out?")

# %% bits-folder
import os
import pathlib
import shutil
import tempfile

here, folder = os.getcwd(), tempfile.TemporaryDirectory()
shutil.copytree(programs, folder.name, dirs_exist_ok=True)
os.chdir(folder.name)

# %% bits-save
import checkpoints

interrupted = job.fresh(1)
job.train(interrupted, 0, 38)
state = {name: part.state_dict() for name, part in interrupted.items()}
torch.save(state | {"random": checkpoints.random_state()}, "all.pt")


def resume(without=None):
    state, again = torch.load("all.pt"), job.fresh(2)
    for name in again.keys() - {without}:
        again[name].load_state_dict(state[name])
    random = {name: numbers for name, numbers in state["random"].items() if name != without}
    checkpoints.set_random_state(checkpoints.random_state() | random)
    return job.train(again, 38, 60, late=8 if without == "place" else 0)

# %% bits-run tags=["host-dependent"]
print("all nine: equal to the bit", resume() == wanted[38:])
harmless = 0
for piece in (*interrupted, "place", "python", "numpy", "cpu", "gpus"):
    gaps = [abs(a - b) for a, b in zip(resume(without=piece), wanted[38:])]
    harmless += max(gaps) == 0
    print(f"without {piece:<9} the largest difference is {max(gaps):.2f}")
why = "The scaler, by luck: the scale still was 65,536, where a new one starts."
pieces_guess.compare(harmless, "measured", because=why)

# %% bits-random [markdown]
# `random_state` keeps the generators in types that a safe load accepts. `weights_only=True`, the default, builds only
# tensors, numbers and plain containers. With `False` a file may run any code.

# %% bits-lines
gpulab.annotated(checkpoints.random_state, {
    "keys.tolist()": "NumPy keeps an array, and a safe load refuses it: on the day you resume.",
    "get_rng_state_all": "One for each GPU. With N ranks, each rank saves its own of all four.",
})

# %% bits-answer [markdown]
# **What is not equal to the bit:**
#
# - another number of ranks, another kind of GPU, another PyTorch: sums may add up in another order;
# - operations with atomic additions, and kernels chosen by timing (lesson 11: deterministic mode, no `cudnn.benchmark`);
# - the generators *inside* DataLoader workers, whose states nobody saves. Make an augmentation depend on (seed, epoch,
#   index) instead; torchdata's `StatefulDataLoader` saves a data set's `state_dict()` in each worker.
#
# `iter(loader)` draws a number from PyTorch's generator, and `shuffle=True` another, often only at the first batch. So
# give the loader a `generator` of its own.

# %% place-turn-text [markdown]
# **Your turn** · 3 minutes. `batches` yields one epoch. Make it go on where the run was interrupted, in the same
# order. Reading samples only to skip them is too expensive: skip indices.
#
# ![Of 15 batches 8 are done. Without the place all 15 follow, with it the other 7.](../docs/pictures/place_in_epoch.svg)

# %% place-turn tags=["your-turn"]
def batches(data, epoch, size, done):
    """Yield the batches of an epoch that follow after `done` of them."""
    ### BEGIN SOLUTION
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
    for rows in order.split(size)[done:]:
        yield data[rows]
    ### INSTEAD OF
    # order = torch.randperm(len(data))
    # for rows in order.split(size):
    #     yield data[rows]  # data[rows] reads the samples
    ### END SOLUTION


gpulab.turn.rest_of_epoch(batches)

# %% files-text [markdown]
# ## A file is whole or not there
#
# What damages a checkpoint? Often the save itself: `torch.save(state, path)` over the last one. `gpulab.crash` records
# what a save does. From that it computes what is left if the process is killed, between two writes or within one, or if
# the power fails. (Nothing is killed: each computed state counts once.)

# %% files-predict
question = "torch.save overwrites the only checkpoint and is killed: how often is none whole?"
killed_guess = gpulab.predict(question, unit="%")

# %% files-define
def plain(state, folder):
    torch.save(state, folder / "last.pt")


def renamed(state, folder):
    torch.save(state, folder / "unfinished.tmp")
    os.replace(folder / "unfinished.tmp", folder / "last.pt")  # the name changes over in one step


def synced(state, folder):
    checkpoints.save(state, folder, state["step"])

# %% files-run
import crashes

lost = crashes.newest_after(plain, "kills")
why = "torch.save empties the file first; it is whole again with the last write."
killed_guess.compare(round(100 * lost.count(0) / len(lost)), "computed", because=why)

# %% files-plot tags=["host-dependent"]
told = "Bars. Plain: mostly none is whole. Renamed: none after some power cuts. Synced: always one."
gpulab.style.show(crashes.picture(plain, renamed, synced), alt=told)

# %% files-explain [markdown]
# The **rename** protects against a kill: the old file stays until the new one is complete. A power cut is worse. The
# system keeps what was written in its own memory for a while, and may put the new *name* on the disk before the bytes.
# Then the checkpoint's name leads to an empty file. `fsync` forces the order:

# %% files-lines
gpulab.annotated(checkpoints.save, {
    "path, temporary": "In one folder, so on one file system: across two a rename fails.",
    "os.fsync(file": "From the system to the disk (on macOS only fcntl's F_FULLFSYNC does that).",
    "for later in": "You have gone back to an earlier step: these belong to the run that diverged.",
    "os.replace(temp": "Now the bytes are there, and the name changes over.",
    "os.fsync(desc": "A name is an entry of its folder, and has to reach the disk too.",
    "too_many": "The last three stay, and each thousandth: trouble may begin before the last.",
})

# %% whole-text [markdown]
# ### Is it whole?
#
# A disk can damage a file years after `fsync`, and a copy can be cut off. Does `torch.load` notice?

# %% whole-flip
torch.save({"weights": torch.ones(20_000)}, "flipped.pt")
content = bytearray(pathlib.Path("flipped.pt").read_bytes())
content[content.index(b"\x00\x00\x80\x3f" * 4) + 3] ^= 0x40  # one bit of one 1.0
pathlib.Path("flipped.pt").write_bytes(content)
print(torch.load("flipped.pt")["weights"][:3], "· whole:", checkpoints.whole("flipped.pt"))

# %% whole-explain [markdown]
# It does not. But a checkpoint is a zip archive with a checksum for each part, and `zipfile` compares them.
#
# A loader that finds a damaged file sets it aside and takes the one before. Beware of `except Exception` there: if the
# file server is gone for a minute, such a loader sets *healthy* files aside, one after the other. Then it begins at
# step 0, saves, and the run is lost without an error.

# %% damage-turn-text [markdown]
# **Your turn** · 3 minutes. Loading a checkpoint may raise these errors. Which of them say that the *bytes* are damaged?
# Return their types; all others will be raised.
#
# | error | message |
# |---|---|
# | `zipfile.BadZipFile` | File is not a zip file |
# | `zlib.error` | Error -3 while decompressing data |
# | `OSError` | [Errno 116] Stale file handle |
# | `PermissionError` | [Errno 13] Permission denied |
# | `pickle.UnpicklingError` | Weights only load failed … Unsupported global |
# | `RuntimeError` | PytorchStreamReader failed reading file data/0: file read failed |
# | `EOFError` | Ran out of input |

# %% damage-turn tags=["your-turn"]
import zipfile
import zlib


def damage():
    ### BEGIN SOLUTION
    return zipfile.BadZipFile, zlib.error, RuntimeError, EOFError
    ### INSTEAD OF
    # return (Exception,)
    ### END SOLUTION


gpulab.turn.damage(damage)

# %% whole-lines
code = inspect.getsource(checkpoints.whole) + "\n" + inspect.getsource(checkpoints.newest)
gpulab.annotated(code, {
    "read_bytes": "Outside of try: a disk that does not answer says nothing about the file.",
    "testzip": "Compares the checksum of each part. The list of the parts has none,",
    '"meta"': "so torch.load is asked too. No tensors: out of memory is a RuntimeError as well.",
    "except": "What damaged bytes raise, and no more.",
    "path.replace": "Set aside, not deleted: somebody may want to look.",
    "raise RuntimeError": "There are checkpoints, and none is whole. Step 0 would lose the run.",
    "return None": "Nothing was ever saved: only this is a new run.",
})

# %% tiers-text [markdown]
# ### Where the file goes, and how large it is
#
# fp32 weights and AdamW's two averages are 12 bytes a parameter: 84 GB for 7B, 42 s at 2 GB/s (computed). Check on the
# first day whether four of them fit: `save` writes a fourth beside the three that it keeps. A full disk raises an
# error in `save`, and the last good file stays.
#
# A spot machine's local disk is lost with the machine. So save there, which is fast, and copy the file to a **second
# tier**, a bucket or a network disk. Object stores have no `fsync`, and most no atomic rename. A small file that is
# written last says that the large one is complete (`checkpoints.upload`).
#
# A step need not wait for the disk, only for a copy in the host's memory: `torch.distributed.checkpoint.async_save`
# (lesson 13). Wait for one save before you begin the next, and check whether it failed.

# %% notice-text [markdown]
# ## The notice
#
# Spot machines are cheap because they can be taken back. How do you hear of it?
#
# | where | notice | how it comes | what your process gets |
# |---|---|---|---|
# | AWS | 2 minutes, best effort | instance metadata, EventBridge | nothing at the notice, unless an agent asks every 5 s; SIGTERM at the shutdown |
# | GCP | 30 s by default, best effort | the machine is shut down | SIGTERM from the system, perhaps late; a shutdown script can signal |
# | Azure | 30 s, best effort | *Scheduled Events* in the metadata | nothing, unless an agent asks |
# | Kubernetes | 30 s by default | the pod is deleted | SIGTERM, to the container's first process |
# | SLURM | `GraceTime`, 0 by default | pre-emption | SIGCONT, SIGTERM, to what `srun` has started |
#
# ![Who passes a notice on. SLURM's signal before the limit goes through the shell's trap and srun to the ranks; at pre-emption straight to them; torchrun passes it on; a shell as a container's first process does not.](../docs/pictures/signals.svg)
#
# If a container's **first process** is a shell, the shell gets the signal and does not pass it on. Write
# `exec python train.py`. And as the first process, Python ignores SIGTERM unless it has a handler.
#
# Python runs a handler between two bytecode instructions of the main thread: perhaps between `backward` and `step`, or
# between the optimizer's step and the schedule's. **So a handler never saves; it takes note.** After each step, the
# loop checks. This is `main` of `train.py`, alone or on N ranks:

# %% notice-lines
import train

gpulab.annotated(train.main, {
    "signal.signal(": "The handler takes note, and does nothing else.",
    "resume(": "Rank 0 chooses the newest whole checkpoint, and all ranks load that one.",
    "told.fill_": "Did a notice come to this rank?",
    "all_reduce": "And to any rank? All stop at the same step, or the others wait for ever.",
    "if told or done %": "At intervals too: a crash gives no notice.",
    '"again"': "Not done: a file says so to whatever starts the job. An exit code may not.",
})

# %% notice-run-text [markdown]
# Here is a real process, and a real SIGTERM in the middle of its run:

# %% notice-run
import signal

from processes import finish, losses, start

process, before = start("train.py", "--folder", "noticed"), ""
for line in process.stdout:
    before += line
    if line.startswith("step 25:"):
        process.send_signal(signal.SIGTERM)
print("exit code", process.wait(), "· wants to go on:", os.path.exists("noticed/again"))

# %% notice-compare
rest, alone = finish("noticed"), finish("alone")
print(len(losses(before)) + len(losses(rest)), "steps made for 60")
print("equal to the bit:", losses(before) | losses(rest) == losses(alone))

# %% notice-explain [markdown]
# Nothing was lost, and no step was made twice. The notice has to be longer than a step, a save and its upload. If
# steps take milliseconds, check after every tenth only: reading `told` waits for the GPU. A save of 2 minutes does not
# fit into a notice of 30 s: then only checkpoints at intervals help.

# %% ranks-text [markdown]
# ## A rank dies, a node goes, a job is queued
#
# `torchrun` starts the ranks. If one dies, it ends all of them, and with `--max-restarts=1` it starts them again,
# once. All that the new ones know is the last checkpoint. We kill rank 1, as the host's out-of-memory killer does.
# Then `torchrun` gets a notice, and passes it on to the ranks.

# %% ranks-run tags=["host-dependent"]
import re

import psutil

torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
pair, text = start(*torchrun, "train.py", "--folder", "pair"), ""
for line in pair.stdout:
    text += line
    if line.startswith("step 25:") and "goes on" not in text:
        ranks = psutil.Process(pair.pid).children()
        next(rank for rank in ranks if rank.environ()["RANK"] == "1").kill()
    elif line.startswith("rank 0 goes on"):
        pair.send_signal(signal.SIGTERM)
print("exit code", pair.wait(), "· wants to go on:", os.path.exists("pair/again"))
print(*[line for line in text.splitlines() if "goes on" in line], sep="\n")
errors = pathlib.Path("errors.log").read_text()
print(re.search(r"failed \(exitcode: -?\d+\) local_rank: \d", errors)[0])

# %% ranks-compare
rest, both = finish("pair", ranks=2), finish("both", ranks=2)
print("equal to two ranks that nobody stopped:", losses(text) | losses(rest) == losses(both))

# %% ranks-explain [markdown]
# The steps after the last whole checkpoint were made twice:
#
# ![Saved at steps 10 and 20, killed in step 25. The new ranks go on from step 20 until a notice comes.](../docs/pictures/restart.svg)
#
# All ranks saved and ended with 0, but `torchrun` ended
# with 1: **exit codes do not get through it.** A rank that ends with any code but 0 makes it worse: `torchrun`, while
# it has restarts left, starts all ranks anew, on the doomed machine. So use the file `again`. After SIGTERM `torchrun`
# gives the ranks 30 s by default. SIGUSR1 kills `torchrun`, and the ranks train on alone, unless it has
# `--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1`.
#
# (With `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` each start has a new store of addresses. In the old one a new rank may
# find the address of a dead one: `Connection refused`, pytorch#135712.)

# %% nodes-text [markdown]
# On **two nodes** the same command runs on each, and both must see the folder:
#
# ```
# torchrun --nnodes=2 --nproc-per-node=8 --max-restarts=3 \
#     --rdzv-id=run7 --rdzv-backend=c10d --rdzv-endpoint=node0:29500 train.py
# ```
#
# The **rendezvous** is where the nodes meet, also after a failure: a store on `node0`. If node0 dies, so does the
# store.
#
# **A run that hangs** is worse than one that dies: nobody notices. A rank that waits for a lost message, a dead file
# server or a bad cable just stops. PyTorch's NCCL watchdog gives up after 10 minutes (lesson 12:
# `init_process_group(timeout=…)`, flight recorder). That timeout must be longer than a save, for which the other ranks
# wait. And if all ranks wait for a disk, none is in a collective, and it notices nothing. So you also need a
# **watchdog** outside the job: if the log has not grown for longer than the longest save or evaluation takes, it kills
# the job, and the restart does the rest.

# %% slurm-text [markdown]
# ### SLURM
#
# To try things, `salloc --nodes=1 --gpus=2 --time=1:00:00` takes an allocation, and `srun --pty bash` within it opens a
# shell on the node. A long run is a file that `sbatch` puts into the queue. Here 2 GPUs mean 2 ranks:

# %% slurm-lines
gpulab.annotated(pathlib.Path("train.sbatch").read_text(), {
    "--cpus-per-task": "A task is a rank here, with its loader's workers: not 1, the default.",
    "--signal=B:USR1": "USR1 to this shell, 3 to 4 minutes before the limit: longer than a save.",
    "srun": "Starts the ranks. A minute after one has ended, it ends the others: they may wait for it.",
    "exec python": "The names that PyTorch reads, and then no shell between SLURM and Python.",
    "trap": "A shell handles a signal only while it waits. It hands this one to the ranks.",
    "while wait": "The trap ends a wait: wait again, or a second signal cuts the ranks' save off.",
    "requeue \"": "Saved, not done: back into the queue, with the same job id.",
})

# %% slurm-explain [markdown]
# **Pre-emption** is different. SIGTERM comes at the start of the grace time, to what `srun` has started; the shell
# gets nothing, unless the site has set otherwise. A job that then ends by itself counts as done, so `again` matters
# there too. `make cluster` runs all this: a rank killed, two nodes, this file on a real SLURM.

# %% interval-text [markdown]
# ## How often to save
#
# If you save rarely, much work is lost; if you save often, you do little else. Say a save takes 2 minutes of training
# time, and an interruption comes every 8 hours on average.

# %% interval-predict
interval_guess = gpulab.predict("What interval between saves finishes soonest?", unit="minutes")

# %% interval-run
best = 60 * gpulab.sim.spot(work=100, checkpoint=120, between=8, restart=10).result.best
why = "Young's formula gives 44, Daly's less."
interval_guess.compare(round(best), "virtual", because=why)

# %% interval-explain [markdown]
# An interval $\tau$ costs $\delta/\tau$ of the time for saves of length $\delta$, and half an interval for each
# interruption, one every $M$ hours: $\tau/2M$. The sum is least where
#
# $$\tau = \sqrt{2\,\delta\,M}$$
#
# That is **Young's** formula; **Daly's** adds what happens during saves and restarts. The curve is flat: half or twice
# the interval costs 2 or 3 % here. So *measure* $\delta$, count interruptions, and do not fine-tune.
#
# An interruption loses half an interval on average, and at most a whole one; more if the newest file is damaged, or is
# still being written in the background.
#
# N machines break about N times as often. *Recorded* for Llama 3 on 16,384 H100s: 419 unexpected interruptions in 54
# days, one every 3.1 hours.

# %% simulator-text [markdown]
# ### See it run
#
# The simulator opens on a checkpoint every 4 hours. Try this:
#
# 1. Move *Checkpoint every* to the best interval, then to half of it and twice it.
# 2. Set *Writing a checkpoint* to 5 s, as in the background. What is best now?
# 3. Set *Interrupted every* to 1 h. Up to which interval is spot, 65 % cheaper by the hour, still cheaper?

# %% simulator
gpulab.sim.spot()

# %% cost-text [markdown]
# ### What it costs
#
# An hour on spot costs 35 % of one on demand here, but the run pays for what it does twice. Here is its price, in
# percent of the on-demand price, at the best interval and with a save every 4 hours:

# %% cost-run
for hours in (8, 2, 1):
    run = gpulab.sim.spot(checkpoint=120, between=hours, restart=10, interval=240).result
    best, rare = run.best_cost / run.cost_on_demand, run.cost / run.cost_on_demand
    print(f"interrupted every {hours} h: {best:.0%}, if saved every 4 h {rare:.0%} (virtual)")

# %% money-text [markdown]
# What does a whole training cost? A dense transformer with $N$ parameters takes $2N$ operations a token forward and
# $4N$ backward. For $D$ tokens that is $6ND$ (attention over long sequences comes on top; MFU: lesson 10). *Recorded*:
# Llama 2 with 6.74 billion parameters and 2.0 trillion tokens took 184,320 hours of A100s. An A100 does at most 312
# TFLOP/s in bf16.

# %% money-predict
mfu_guess = gpulab.predict("What share of that peak (MFU) did the training reach?", unit="%")

# %% money-run
share = 6 * 6.74e9 * 2.0e12 / (184_320 * 3600 * 312e12)
why = "6ND over hours, 3,600 and the peak. Published large runs reach some 35 to 50 %."
mfu_guess.compare(round(100 * share), "recorded", because=why)

# %% money-turn-text [markdown]
# **Your turn** · 3 minutes. What will a training cost? `tflops` is the GPU's peak, `mfu` the share of it that your own
# short run has reached, `price` dollars for an hour of one GPU. One thing is missing below.

# %% money-turn tags=["your-turn"]
def dollars(parameters, tokens, tflops, mfu, price):
    ### BEGIN SOLUTION
    seconds = 6 * parameters * tokens / (tflops * 1e12 * mfu)
    return seconds / 3600 * price
    ### INSTEAD OF
    # seconds = 6 * parameters * tokens / (tflops * 1e12)
    # return seconds / 3600 * price
    ### END SOLUTION


gpulab.turn.dollars(dollars)

# %% money-explain [markdown]
# The number of GPUs is not in it: with twice as many you pay for half the time, as long as they scale (lesson 12).

# %% logs-text [markdown]
# ## Logs: five ill runs
#
# Log what you may want to know later. Seven numbers tell most: loss, learning rate, the scaler's scale, the
# gradients' norm, the wait for data, peak memory, samples (or tokens) a second. **TensorBoard** draws what a
# `SummaryWriter` writes (`tensorboard --logdir logs`):

# %% logs-lines
import ill

gpulab.annotated(ill.logged, {
    "wait = ": "The time for data alone: nothing of the GPU is in it.",
    '("loss"': "loss.item() waits for the GPU. Every 10 or 50 steps are enough.",
    "get_total_norm": "clip_grad_norm_ returns it too. It often rises before the loss does.",
})

# %% logs-text-ill [markdown]
# Five runs follow. Each is ill in its own way. (A sleep stands in for the slow disk and the hot GPU.)

# %% logs-plot tags=["host-dependent"]
ill.train_all()
logs = {name: ill.read(name) for name in "ABCDE"}
told = "A: slow from step 30. B: the scale falls. C: it waits. D: the loss jumps. E: memory grows."
figure = ill.picture(logs)
figure.suptitle(f"Five ill runs, 60 steps each (memory {gpu.numbers}, the rest measured)")
gpulab.style.show(figure, alt=told)

# %% logs-turn-text [markdown]
# **Your turn** · 5 minutes. Write the rule down. It gets the means of the first and of the last ten steps, `early` and
# `late`, with `loss`, `scale`, `memory`, and in ms `wait` and `step`. It returns `"data"`, `"throttled"`, `"overflow"`,
# `"diverged"`, `"leak"` or `"healthy"`. It is tried on other runs. A loss may be nan.

# %% logs-turn tags=["your-turn"]
def illness(early, late):
    ### BEGIN SOLUTION
    if late["scale"] < early["scale"] / 100:
        return "overflow"
    if not late["loss"] <= early["loss"]:  # also nan
        return "diverged"
    if late["memory"] > 1.2 * early["memory"]:
        return "leak"
    slower = late["step"] > 1.3 * early["step"]
    return "data" if late["wait"] > late["step"] / 2 else "throttled" if slower else "healthy"
    ### INSTEAD OF
    # return "diverged" if late["loss"] > 1 else "data"
    ### END SOLUTION


gpulab.turn.illness(illness)

# %% logs-answer [markdown]
# | run | what shows it | illness | look at |
# |---|---|---|---|
# | A | slower, no wait, same loss | **throttled**, or a straggler | clocks and temperature (lesson 10); which rank is late (12) |
# | B | scale halves every step, loss stops falling | **overflow**: every step is skipped | the first gradient that is not finite (07) |
# | C | the wait is most of the step, from the start | **data** | workers, file sizes (09) |
# | D | loss jumps; the scale falls a little, then holds | **diverged**: the learning rate | go back to a checkpoint before it, with a lower rate |
# | E | memory grows by the same in each step | **leak** | what is kept with its graph (05) |

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “Spot is 60–90 % cheaper, with two minutes' notice.” | Cheaper by the hour. Two minutes on AWS, best effort; 30 s on GCP and Azure. | *What it costs*, *The notice* |
# | “Handle SIGTERM, and you are safe.” | SLURM and Kubernetes send it. On AWS nobody does at the notice, unless you run an agent. | *The notice* |
# | “Save `model.state_dict()`, and you can resume.” | What resumes is another run. | *A question worth asking*, *The same run, to the bit* |

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **NumPy's state as it is.** Saving works. Loading, on another day, fails:

# %% mistake-numpy tags=["raises-exception"]
import numpy

torch.save({"random": numpy.random.get_state()}, "numpy.pt")
torch.load("numpy.pt")

# %% mistake-numpy-repair [markdown]
# Save `keys.tolist()`, and try loading on the first day.
#
# **A file that is cut off**, by a full disk or a copy that was interrupted:

# %% mistake-cut tags=["raises-exception"]
pathlib.Path("cut.pt").write_bytes(pathlib.Path("all.pt").read_bytes()[:1000])
torch.load("cut.pt")

# %% mistake-cut-repair [markdown]
# Set it aside, and take the one before.
#
# **Saving in the handler.** If the signal comes just after `optimizer.step()`, the file holds the weights of step 21
# beside the schedule of step 20. On resuming, that step is made twice. And while a rank waits in a collective, no handler
# runs.

# %% tidy
os.chdir(here)
folder.cleanup()

# %% quiz-text [markdown]
# ## Quick check
#
# Choose with the arrow keys, answer with Tab and Enter. Every option has its reason.

# %% quiz
gpulab.quiz(14)

# %% takeaways [markdown]
# ## Take-aways
#
# 1. A run is its weights, optimizer, schedule, scaler, place in the data, and every random generator. With all of them, on
#    the same GPUs and PyTorch, it is equal to the bit.
# 2. Temporary file, `fsync`, rename, `fsync` of the folder; keep several. Only damaged bytes are set aside; every other
#    error is raised.
# 3. A handler takes note, the loop saves, all ranks stop at the same step, and a file says that the run wants to go
#    on.
# 4. Save every √(2 · save · time between interruptions).
# 5. GPU-hours = 6ND / (peak · MFU · 3,600).
#
# **For the checklist:** all nine pieces saved · loaded on the first day · `fsync` before and after the rename · a
# second tier · a notice tried with `kill -TERM` · the interval from measured numbers · a watchdog · seven numbers in
# the log.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/14_long_runs.ipynb) of this lesson, then [the map of the course](00_start_here.ipynb).
#
# ## References
#
# - PyTorch documentation: *Reproducibility*; `torch.load`; *torchrun (Elastic Launch)*; `torch.utils.tensorboard`.
# - Pillai et al., *All File Systems Are Not Created Equal*, OSDI 2014.
# - Daly, *A Higher Order Estimate of the Optimum Checkpoint Interval for Restart Dumps*, FGCS 22 (2006).
# - AWS, *Spot Instance interruption notices*; Google Cloud, *Spot VMs*; Azure, *Scheduled Events*; SLURM, *Preemption*.
# - *Llama 2*, arXiv 2307.09288, table 2 (GPU-hours). *The Llama 3 Herd of Models*, arXiv 2407.21783 (interruptions).

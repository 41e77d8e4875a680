# %% title [markdown]
# # 14 · Long runs
#
# **Promise:** a run that is interrupted at any moment goes on with the numbers that it would have had anyway; and you
# know how often to save, how a notice comes, and what to write down.
#
# After this lesson you can
#
# 1. **save** and **resume** a run to the bit, and say what cannot be had to the bit;
# 2. **write** a checkpoint that is whole or not there, whenever the process or the power goes;
# 3. **answer** a notice of 30 seconds, on spot machines and under SLURM;
# 4. **compute** how often to save, and what a run costs on spot;
# 5. **tell** from a log which of five illnesses a run has.
#
# | time | before this | runs on |
# |---|---|---|
# | 60 minutes, and 95 for the exercises | `07_mixed_precision`, `12_many_gpus` | any machine; the signals need Linux or macOS |

# %% setup-text [markdown]
# Processes, signals and files of this lesson are real, in a temporary folder. A power cut is not: its results are computed.

# %% setup
import collections
import functools
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import matplotlib.pyplot as plt
import psutil
import torch

import gpulab

gpu = gpulab.setup()

# %% setup-launch
start, folder = os.getcwd(), tempfile.TemporaryDirectory()
os.chdir(folder.name)
sys.path.insert(0, folder.name)  # for what this notebook writes
where = {"OMP_NUM_THREADS": "1"} | ({} if torch.cuda.device_count() > 1 else {"GPULAB_GPU": "virtual:T4"})
launch = functools.partial(gpulab.distributed.run, "train.py", warm=True, env=where)
gpulab.style.use()

# %% question-text [markdown]
# ## A question worth asking
#
# A small network on the digits, with what real ones have: dropout, AdamW, a schedule, fp16 with a scaler, augmentation.
# It stands in a file, for the script below.

# %% job-write
# %%writefile job.py
"""What is trained: a small network on the digits, and all of it that has a state."""
import random
import numpy as np
import torch
from torch import nn
import gpulab


def build(device, steps):
    torch.manual_seed(0)  # the same weights in every process
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    scaler = torch.amp.GradScaler(device.type)
    return {"model": net, "optimizer": optimizer, "schedule": schedule, "scaler": scaler}

# %% job-write-data
# %%writefile -a job.py


images, labels = gpulab.data.digits("train")
per_epoch = len(images) // 100


def seed(number):
    for generator in (random.seed, np.random.seed, torch.manual_seed):
        generator(number)


def batch(step, rank=0, ranks=1):
    """This rank's part of the 100 samples of a step."""
    epoch, place = divmod(step, per_epoch)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
    rows = order[100 * place : 100 * (place + 1)][rank::ranks]
    x = images[rows].roll(random.randint(-1, 1), dims=-1)  # augmented with Python's generator,
    return x * np.random.uniform(0.8, 1.2) + 0.1 * torch.randn(x.shape), labels[rows]  # NumPy's and PyTorch's

# %% job-write-step
# %%writefile -a job.py


def train_step(model, parts, x, y):
    device = next(model.parameters()).device
    with torch.autocast(device.type, torch.float16):
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
    parts["optimizer"].zero_grad()
    scaler = parts["scaler"]
    scaler.scale(loss).backward()
    before = scaler.get_scale()
    scaler.step(parts["optimizer"])
    scaler.update()
    if scaler.get_scale() >= before:  # else the scaler has left the step out
        parts["schedule"].step()
    return loss.item()

# %% question-ask [markdown]
# An epoch has 15 steps. The run is to make 60 and is interrupted after 38. As in most tutorials it has saved
# `model.state_dict()`, and a new process loads that and trains on.

# %% question-predict
gap_guess = gpulab.predict("The losses of the next 22 steps are near 0.7. By how much does one differ at most?")

# %% question-run
import job


def train(parts, first, last, late=0):
    """The losses of these steps; `late` batches behind in the data."""
    return [job.train_step(parts["model"], parts, *job.batch(step - late)) for step in range(first, last)]


def fresh(seed):  # as in a new process
    parts = job.build(gpu.device, 60)
    job.seed(seed)
    return parts

# %% question-resume tags=["host-dependent"]
wanted = train(fresh(1), 0, 60)  # nobody interrupts it

interrupted = fresh(1)
train(interrupted, 0, 38)
torch.save(interrupted["model"].state_dict(), "model.pt")

resumed = fresh(2)
resumed["model"].load_state_dict(torch.load("model.pt"))
got = train(resumed, 38, 60, late=8)  # it knows nothing of the 8 batches of this epoch, and begins it anew
gap = max(abs(a - b) for a, b in zip(got, wanted[38:]))
why = "AdamW begins without its averages, the schedule at its first rate, the epoch at its first batch."
gap_guess.compare(round(gap, 1), "measured", because=why)

# %% question-answer [markdown]
# No error comes, and it is another run. On a large network it is the bump in the curve after each restart, samples that
# count twice, and a bug that nobody can reproduce.

# %% bits-text [markdown]
# ## The same run, to the bit
#
# What has a state? The four parts have `state_dict()`. The place in the data must be known. Every generator of random
# numbers stands somewhere: Python's, NumPy's, PyTorch's, and one on each GPU, which drew the dropout. The lesson's second
# file keeps those, in types that a safe load accepts.

# %% checkpoints-write
# %%writefile checkpoints.py
"""Checkpoints that are whole or not there, and where the random generators stand."""
import io
import os
import pathlib
import random
import shutil
import zipfile
import zlib
import numpy as np
import torch


def random_state():
    name, keys, *rest = np.random.get_state()
    numbers = (name, keys.tolist(), *rest)  # a list: weights_only takes no array of NumPy's
    gpus = torch.cuda.get_rng_state_all()  # [] without a GPU
    return {"python": random.getstate(), "numpy": numbers, "cpu": torch.get_rng_state(), "gpus": gpus}

# %% checkpoints-write-random
# %%writefile -a checkpoints.py


def set_random_state(state):
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["cpu"])
    for gpu, numbers in zip(range(torch.cuda.device_count()), state["gpus"]):
        torch.cuda.set_rng_state(numbers, gpu)

# %% bits-text-pieces [markdown]
# Nine pieces: four parts, the place in the epoch, four generators. Below, all are saved at step 38, and a run resumes with
# all but one.

# %% bits-predict
pieces_guess = gpulab.predict("Of the nine, how many can be left out, one at a time, without a change in any loss?")

# %% bits-save
import checkpoints

interrupted = fresh(1)
train(interrupted, 0, 38)
parts = {name: part.state_dict() for name, part in interrupted.items()}
torch.save(parts | {"random": checkpoints.random_state()}, "all.pt")  # a file is a copy; state_dict() itself is none


def resume(without=None):
    state, again = torch.load("all.pt", weights_only=True), fresh(2)
    for name in again.keys() - {without}:
        again[name].load_state_dict(state[name])
    random = {name: value for name, value in state["random"].items() if name != without}
    checkpoints.set_random_state(checkpoints.random_state() | random)
    return train(again, 38, 60, late=8 if without == "place" else 0)

# %% bits-run tags=["host-dependent"]
print("all nine: equal to the bit", resume() == wanted[38:])
harmless = 0
for piece in ("model", "optimizer", "schedule", "scaler", "place", "python", "numpy", "cpu", "gpus"):
    gaps = [abs(a - b) for a, b in zip(resume(without=piece), wanted[38:])]
    first = next((f"step {38 + i}" for i, gap in enumerate(gaps) if gap), "none")
    harmless += first == "none"
    print(f"without {piece:<9} first loss that differs: {first:<7} · largest difference {max(gaps):.2f}")
why = "The scaler, by luck: the scale still was 65,536, where a new one starts."
pieces_guess.compare(harmless, "measured", because=why)

# %% bits-answer [markdown]
# **What cannot be had to the bit:**
#
# - another number of ranks, another kind of GPU, another PyTorch: sums add up in another order;
# - operations with atomic additions, and kernels that are chosen by timing (lesson 11: deterministic mode, no
#   `cudnn.benchmark`);
# - the generators *inside* DataLoader workers, which start anew with each iterator. Make an augmentation depend on
#   (seed, epoch, index) instead; torchdata's `StatefulDataLoader` saves workers too.
#
# In `job.batch` the place follows from the step. A loop over a `DataLoader` has to be brought there; and `iter(loader)`
# draws from PyTorch's generator: set its state after that, or give the loader a `generator` of its own.

# %% place-turn-text [markdown]
# **Your turn** · 3 minutes. `batches` gives one epoch. Make it begin where the run was interrupted. Reading the skipped
# samples is too dear: only indices may be skipped.

# %% place-turn tags=["your-turn"]
def batches(data, epoch, size, done):
    """Yield the batches of an epoch that follow after `done` of them; data[rows] reads the samples."""
    # TODO: the same order as without the interruption, less what has been seen
    ### BEGIN SOLUTION
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
    for rows in order.split(size)[done:]:
        yield data[rows]
    ### INSTEAD OF
    # order = torch.randperm(len(data))
    # for rows in order.split(size):
    #     yield data[rows]
    ### END SOLUTION


gpulab.turn.rest_of_epoch(batches)

# %% files-text [markdown]
# ## A file is whole or not there
#
# Is a checkpoint whole? `torch.load` is a poor judge: a file that is cut off raises one of several errors, as it happens
# to be cut, and one with a wrong *bit* none. But it is a zip archive, and that has a checksum for each part; the list of
# the parts has none, and damage there only `torch.load` finds. So ask both. What else goes wrong is no damage, and is
# raised: a file server that is gone for a minute, a class that `torch.load` refuses.

# %% checkpoints-write-whole
# %%writefile -a checkpoints.py


def whole(path):
    """Are the bytes those that were written? An OSError is raised: a disk that does not answer says nothing of them."""
    content = pathlib.Path(path).read_bytes()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if archive.testzip():
                return False
        torch.load(io.BytesIO(content), map_location="meta", weights_only=True)  # the list of the parts has no checksum
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError):  # what damaged bytes raise, and no more
        return False
    return True

# %% checkpoints-write-newest
# %%writefile -a checkpoints.py


def listed(folder, ending):
    """In the order of their steps. Unlike glob, os.listdir raises where the folder cannot be read."""
    names = (name for name in os.listdir(folder) if name.startswith("step") and name.endswith(ending))
    return [pathlib.Path(folder, name) for name in sorted(names)]


def too_many(paths, keep, milestone=1000):
    """All but the last `keep`, and every `milestone`th step."""
    return [path for path in paths[:-keep] if int(path.stem[4:]) % milestone]


def newest(folder):
    """The newest whole checkpoint's path; None where none was ever saved. A damaged one is set aside."""
    for path in reversed(listed(folder, ".pt")):
        if whole(path):
            return path
        print(f"{path.name} is damaged, and set aside", flush=True)
        path.replace(path.with_suffix(".damaged"))
    if listed(folder, ".damaged"):
        raise RuntimeError(f"all checkpoints in {folder} are damaged: beginning at step 0 would lose the run")
    return None

# %% files-flip
import importlib

importlib.reload(checkpoints)  # the file has grown
torch.save({"weights": torch.ones(20_000)}, "flipped.pt")
content = bytearray(pathlib.Path("flipped.pt").read_bytes())
content[content.index(b"\x00\x00\x80\x3f" * 4) + 3] ^= 0x40  # one bit of one 1.0
pathlib.Path("flipped.pt").write_bytes(content)
print("torch.load:", torch.load("flipped.pt")["weights"][:3].tolist(), "· whole:", checkpoints.whole("flipped.pt"))

# %% files-text-kill [markdown]
# What damages a file? Most often the save itself, `torch.save(state, path)` over the last checkpoint. `gpulab.crash`
# records what a save does, and computes what is left if the process is killed between two writes or within one, or if
# the power goes.

# %% files-predict
killed_guess = gpulab.predict("A kill during torch.save over the last checkpoint: after what share of the moments is no checkpoint whole?", unit="%")

# %% files-define
def plain(state, folder):
    torch.save(state, folder / "last.pt")


def renamed(state, folder):
    torch.save(state, folder / "unfinished.tmp")
    os.replace(folder / "unfinished.tmp", folder / "last.pt")  # the name changes over in one step


def newest_in(state):
    with state.opened() as place:
        steps = [torch.load(path)["step"] for path in place.glob("*.pt") if checkpoints.whole(path)]
    return f"step {max(steps)}" if steps else "none"

# %% files-define-after
def after(save, crash):
    """After each crash during a second save: the step of the newest whole checkpoint, counted."""
    with tempfile.TemporaryDirectory() as place:
        for step in (1, 2):
            with gpulab.crash.record(place) as journal:
                save({"step": step, "weights": torch.zeros(20_000)}, pathlib.Path(place))
    return collections.Counter(newest_in(state) for state in getattr(journal, crash))


def told(counts):
    return ", ".join(f"{found}: {number}" for found, number in sorted(counts.items()))

# %% files-run tags=["host-dependent"]
for save in (plain, renamed):
    for crash in ("kills", "power_cuts"):
        print(f"{save.__name__:<8} {crash:<11}", told(after(save, crash)), "(states that can be left)")
counts = after(plain, "kills")
why = "torch.save empties the file first; it is whole again with the last write."
killed_guess.compare(round(100 * counts["none"] / counts.total()), "computed", because=why)

# %% files-explain [markdown]
# The rename protects against a kill: the old file stays
# until the new one is complete. A power cut is worse. The system keeps what was written in memory for a while, and may
# put the new *name* on the disk before the bytes: a rename to an empty file. So the order has to be forced, by `fsync`,
# which returns when the disk has it (on macOS `F_FULLFSYNC` does): the data, then the name, then the folder, since a name is an entry of its folder.

# %% checkpoints-write-save
# %%writefile -a checkpoints.py


def save(state, folder, step, keep=3):
    """Write folder/step00000040.pt, whole or not at all; its path. The last `keep` stay."""
    folder = pathlib.Path(folder)
    path, temporary = folder / f"step{step:08}.pt", folder / "unfinished.tmp"  # in one folder: one file system
    with open(temporary, "wb") as file:
        torch.save(state, file)
        file.flush()  # from Python to the system,
        os.fsync(file.fileno())  # from the system to the disk
    for later in [other for other in listed(folder, ".pt") if other > path]:  # the run has gone back behind these
        later.replace(later.with_suffix(".left"))
    os.replace(temporary, path)
    if os.name == "posix":  # Windows opens no folders
        os.fsync(descriptor := os.open(folder, os.O_RDONLY))
        os.close(descriptor)
    for old in too_many(listed(folder, ".pt"), keep):
        old.unlink()
    return path

# %% files-safe tags=["host-dependent"]
importlib.reload(checkpoints)


def synced(state, folder):
    checkpoints.save(state, folder, state["step"])


for crash in ("kills", "power_cuts"):
    print(f"synced   {crash:<11}", told(after(synced, crash)))

# %% files-safe-text [markdown]
# Never none. More than one is kept all the same: a disk can damage a file years after `fsync`.
#
# `weights_only=True`, the default since PyTorch 2.6, builds tensors, numbers and plain containers only. With `False` a file
# may run any code.
#
# ### Where the file goes
#
# A spot machine's disk goes with it. So save to the local disk, which is fast, and copy the file to a **second tier**. An
# object store has neither rename nor `fsync`: a mark that is written last says that a file is all there.

# %% checkpoints-write-upload
# %%writefile -a checkpoints.py


def upload(path, store, keep=3):
    """Copy a checkpoint into `store`; a mark, written last, says that it is whole."""
    store, mark = pathlib.Path(store), path.with_suffix(".done").name
    for later in [other for other in listed(store, ".done") if other.name >= mark]:
        later.unlink()
    shutil.copyfile(path, store / path.name)
    (store / mark).touch()
    for old in too_many(listed(store, ".done"), keep):
        old.unlink()
        old.with_suffix(".pt").unlink()


def fetch(store, folder):
    """Bring the newest with a mark into `folder`, where it is not there."""
    for mark in listed(store, ".done")[-1:]:
        path = pathlib.Path(folder, mark.with_suffix(".pt").name)
        if not path.exists():
            shutil.copyfile(mark.with_suffix(".pt"), path.with_name("unfinished.tmp"))
            os.replace(path.with_name("unfinished.tmp"), path)

# %% tiers-text [markdown]
# AdamW's state and fp32 weights are 12 bytes a parameter: 84 GB for 7B, 42 s at 2 GB/s (computed). A step need not wait
# for the disk, only for a copy in the host's memory, as `torch.distributed.checkpoint.async_save` makes it (lesson 13); nor
# for the upload, which a thread can make. Wait for either before the next save, and ask whether it has failed.

# %% notice-text [markdown]
# ## The notice
#
# Spot machines are cheap because they can be taken back. How do you hear of it?
#
# | where | notice | how it comes | what your process gets |
# |---|---|---|---|
# | AWS | 2 minutes, best effort | instance metadata, EventBridge | nothing yet, unless an agent asks every 5 s, and signals; SIGTERM at the shutdown |
# | GCP | 30 s by default, best effort | the machine is shut down | SIGTERM from the system, perhaps late; a shutdown script can signal |
# | Azure | 30 s, best effort | *Scheduled Events* in the metadata; then the machine goes | nothing, unless an agent asks |
# | Kubernetes | 30 s unless set | the pod is deleted | SIGTERM, to the container's first process |
# | SLURM | the partition's grace time | pre-emption | SIGCONT, SIGTERM, to what `srun` has started |
#
# A signal is handled between two bytecode instructions, perhaps between `backward` and `step`. **So a handler never saves; it
# takes note.** The loop looks after each step. The whole script (`--device cpu` takes gloo):

# %% train-write
# %%writefile train.py
"""Train alone or on N ranks; stop after any step, and go on to the bit."""
import argparse
import os
import pathlib
import signal
import torch
import torch.distributed as dist
import checkpoints
import gpulab
import job

notices = []
for name in {"SIGTERM", "SIGUSR1"} & {one.name for one in signal.Signals}:  # Windows has no SIGUSR1
    signal.signal(signal.Signals[name], lambda number, frame: notices.append(number))

# %% train-write-start
# %%writefile -a train.py

parser = argparse.ArgumentParser()
for name, value in (("folder", "kept"), ("store", ""), ("steps", 60), ("every", 10), ("device", "cuda")):
    parser.add_argument(f"--{name}", type=type(value), default=value)
args = parser.parse_args()
rank, ranks, local = (int(os.environ.get(*pair)) for pair in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)))
device = torch.device("cuda", local) if args.device == "cuda" else torch.device("cpu")
if args.device == "cuda":
    gpulab.setup()  # this rank's virtual GPU, where there is no real one; without gpulab leave it out
    torch.cuda.set_device(device)
if ranks > 1:
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
torch.use_deterministic_algorithms(True)
parts = job.build(device, args.steps)
job.seed(1 + rank)  # each rank has dropout and augmentation of its own

# %% train-write-save
# %%writefile -a train.py


def save(step):
    states = [checkpoints.random_state()]
    if ranks > 1:
        dist.all_gather_object(states := [None] * ranks, checkpoints.random_state())  # every rank's
    if rank == 0:
        state = {name: part.state_dict() for name, part in parts.items()}
        path = checkpoints.save(state | {"step": step, "random": states}, args.folder, step)
        if args.store:
            checkpoints.upload(path, args.store)
    if ranks > 1:
        dist.barrier()  # nobody ends before the file is there

# %% train-write-resume
# %%writefile -a train.py


def resume():
    """The step to go on with."""
    if args.store and rank == 0:
        checkpoints.fetch(args.store, args.folder)
    path = [checkpoints.newest(args.folder) if rank == 0 else None]
    if ranks > 1:
        dist.broadcast_object_list(path)  # one rank chooses for all
    if path[0] is None:
        return 0
    state = torch.load(path[0], map_location="cpu", weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    if len(state["random"]) == ranks:  # on another number of ranks it is not to the bit anyway
        checkpoints.set_random_state(state["random"][rank])
    print(f"rank {rank} goes on from {path[0].name}", flush=True)
    return state["step"]

# %% train-write-loop
# %%writefile -a train.py


for name in filter(None, (args.folder, args.store)):
    pathlib.Path(name).mkdir(parents=True, exist_ok=True)
done, told = resume(), torch.zeros((), device=device)
net = parts["model"]
model = torch.nn.parallel.DistributedDataParallel(net) if ranks > 1 else net  # after loading: all take rank 0's weights
while done < args.steps and not told:
    loss = job.train_step(model, parts, *job.batch(done, rank, ranks))
    if rank == 0:
        print(f"step {done}: loss {loss!r}", flush=True)  # all digits
    done += 1
    told.fill_(len(notices))
    if ranks > 1:
        dist.all_reduce(told)  # a notice to one is one to all: they stop together, or some wait for ever
    if told or done % args.every == 0 or done == args.steps:
        save(done)

# %% train-write-end
# %%writefile -a train.py
if rank == 0 and done < args.steps:
    pathlib.Path(args.folder, "again").touch()  # for whoever has started this: torchrun passes no exit code on
if ranks > 1:
    dist.destroy_process_group()

# %% notice-run-text [markdown]
# A real process, and a real SIGTERM in the middle of it:

# %% notice-run
command, environment = [sys.executable, "train.py", "--folder", "noticed"], os.environ | where
process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
before = []
for line in process.stdout:
    before.append(line)
    if line.startswith("step 25:"):
        process.send_signal(signal.SIGTERM)
print("exit code", process.wait(), "· wants to go on:", os.path.exists("noticed/again"))

# %% notice-compare
def losses(text):
    """By step; of one that was made twice, the last."""
    return {line.split(":")[0]: line.split()[-1] for line in text.splitlines() if line.startswith("step ")}


alone = launch(ranks=1, args=["--folder", "alone"]).ranks[0].output
rest = launch(ranks=1, args=["--folder", "noticed"]).ranks[0].output
made = len(losses("".join(before))) + len(losses(rest))
print(f"{made} steps made for 60; equal to the bit:", losses("".join(before) + rest) == losses(alone))

# %% notice-explain [markdown]
# Nothing was lost and no step made twice. The file `again` tells whoever starts jobs that this one wants to go on. The
# notice has to cover a step, a save and its upload: with long steps look after each micro-batch, with steps of milliseconds
# every tenth step, since `told` waits for the GPU and all ranks. A save of 2 minutes fits into no notice of 30 s, and a
# crash gives none. So checkpoints come at intervals too (*How often to save*).

# %% ranks-text [markdown]
# ## A rank dies, a node goes, a job is queued
#
# `torchrun` starts ranks, and restarts them. With `--max-restarts=1` the death of one has it end all and start all anew,
# once; what they know then is in the last checkpoint. Rank 1 is killed here as the out-of-memory killer does it; then
# `torchrun` gets a notice, and hands it on.
# (`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` gives each start a new store of addresses. In the old one, which PyTorch
# keeps, a new rank may find the address of a dead one: `Connection refused`, pytorch#135712.)

# %% ranks-run tags=["host-dependent"]
torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
own_store = environment | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
with open("torchrun.log", "w") as log:
    pair = subprocess.Popen([*torchrun, "train.py", "--folder", "pair"], stdout=subprocess.PIPE, stderr=log, text=True, env=own_store)
    text = ""
    for line in pair.stdout:
        text += line
        if line.startswith("step 25:") and "goes on" not in text:
            next(p for p in psutil.Process(pair.pid).children() if p.environ()["RANK"] == "1").kill()
        elif "rank 0 goes on" in line:
            pair.send_signal(signal.SIGTERM)
print("torchrun:", re.search(r"failed \(exitcode: -?\d+\) local_rank: \d", pathlib.Path("torchrun.log").read_text())[0])
print(*sorted(line for line in text.splitlines() if "goes on" in line), sep="\n")

# %% ranks-compare
print("exit code", pair.wait(), "· wants to go on:", os.path.exists("pair/again"))
both, rest = (losses(launch(ranks=2, args=["--folder", name]).ranks[0].output) for name in ("both", "pair"))
print("equal to the bit to two ranks that nobody stopped:", losses(text) | rest == both)

# %% nodes-text [markdown]
# What came after the last whole checkpoint was made twice. And **exit codes do not get through `torchrun`**: with any but 0
# it starts all ranks anew, on the machine that goes, or ends with 1, as it does after SIGTERM. So the ranks end with
# 0, and the file tells. `torchrun` waits 30 s for their save. USR1 kills it, and they train on alone, unless it has
# `--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1`.
#
# On **two nodes** the same command runs on each:
#
# ```
# TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nnodes=2 --nproc-per-node=8 --max-restarts=3 \
#     --rdzv-id=run7 --rdzv-backend=c10d --rdzv-endpoint=node0:29500 train.py
# ```
#
# The **rendezvous** is where they meet, also after a failure: a store at the endpoint, on `node0`. If node0 dies, so does
# the store. `--nnodes=1:2` goes on with one node where the other stays away; then the number of ranks is another, and the
# batch should not be. The folder is no local disk then, but one that both see.
#
# ### SLURM
#
# To try things, `salloc --nodes=1 --gpus=2 --time=1:00:00` takes an allocation, and `srun --pty bash` within it opens a
# shell on the node. A long run is a file that `sbatch` puts into the queue:

# %% slurm-write
with open("train.sbatch", "w", newline="\n") as file:
    file.write(r"""#!/bin/bash
#SBATCH --job-name=digits --output=%x-%j.log --open-mode=append
#SBATCH --nodes=1 --ntasks-per-node=2 --cpus-per-task=1
##SBATCH --gpus-per-node=2
#SBATCH --time=08:00:00 --signal=B:USR1@60 --requeue
export WORLD_SIZE=$SLURM_NTASKS MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
rm -f kept/again
srun --wait=60 bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID \
    LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE exec python train.py --folder kept' &
run=$!
trap 'kill -USR1 $run' USR1
while wait $run; code=$?; kill -0 $run 2>/dev/null; do :; done
if [ -e kept/again ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $code
""")

# %% slurm-explain [markdown]
# | line | what it does |
# |---|---|
# | `--open-mode=append` | a job that comes again writes on in its log |
# | `--ntasks-per-node=2` | two processes: `srun` starts the ranks |
# | `##SBATCH` | a line that is off; take one `#` away where there are GPUs: without it they are virtual here |
# | `--signal=B:USR1@60` | 60 s before the *time limit*, or up to a minute earlier, USR1 to this shell |
# | `RANK=$SLURM_PROCID …` | the names that PyTorch reads |
# | `--wait=60` | a minute after the first has ended, the others are ended: else they wait for a dead rank |
# | `&`, `trap`, `while wait` | a shell handles a signal only while it waits; the trap hands it to the ranks and ends that `wait`: so again, while they live |
# | `again`, `scontrol requeue` | saved, not done: back into the queue, with the same job id |
#
# **Pre-emption** is another thing. SIGTERM comes at the start of the grace time, to what `srun` has started; the shell, and
# what it started without `srun`, get nothing. A job that then ends by itself counts as done, so `again` matters there
# too. `make cluster` runs all this: a rank killed, two nodes, this file on a real SLURM.

# %% interval-text [markdown]
# ## How often to save
#
# Rarely, and much work is lost; often, and you do little else. Say a save takes 2 minutes of training time, and an
# interruption comes every 8 hours on average.

# %% interval-predict
interval_guess = gpulab.predict("What interval between checkpoints finishes soonest?", unit="minutes")

# %% interval-run
best = 60 * gpulab.sim.spot(work=100, checkpoint=120, between=8, restart=10).result.best
interval_guess.compare(round(best), "virtual", because="Young's formula gives 44, Daly's less.")

# %% interval-explain [markdown]
# An interval $\tau$ costs $\delta/\tau$ of the time for saves of length $\delta$, and half an interval for each
# interruption, one every $M$ hours: $\tau/2M$. The sum is least where
#
# $$\tau = \sqrt{2\,\delta\,M}$$
#
# That is **Young's** formula. **Daly's** adds what happens during saves and restarts. The curve is flat: half or twice
# the interval costs 2 or 3 % here. An order of magnitude counts, so *measure* $\delta$ and count interruptions.
#
# N machines break N times as often. *Recorded* for Llama 3 on 16,384 H100s: 419 unexpected interruptions in 54 days, one
# every 3.1 hours.

# %% simulator-text [markdown]
# ### See it run
#
# It opens on a checkpoint every 4 hours. Try this:
#
# 1. Move *Checkpoint every* to the best interval, then to half and twice of it.
# 2. Set *Writing a checkpoint* to 5 s, as in the background. What is best now?
# 3. Set *Interrupted every* to 1 h. From where on is spot, 65 % cheaper by the hour, no longer cheap?

# %% simulator
gpulab.sim.spot()

# %% cost-text [markdown]
# ### What it costs
#
# An hour on spot costs 35 % of one on demand here; but the run pays for what it does twice.

# %% cost-run
for hours in (8, 2, 1):
    run = gpulab.sim.spot(work=100, checkpoint=120, between=hours, restart=10, interval=240).result
    best, rarely = (cost / run.cost_on_demand for cost in (run.best_cost, run.cost))
    print(f"interrupted every {hours} h: {best:.0%} of on demand, saved every {60 * run.best:.0f} minutes; every 4 h {rarely:.0%} (virtual)")

# %% logs-text [markdown]
# ## Logs: five ill runs
#
# What you did not write down you cannot ask afterwards. Seven numbers tell most: loss, learning rate, the scaler's scale,
# the gradients' norm, the wait for data, peak memory, and samples (or tokens) a second. Every 10 or 50 steps are enough,
# since each `.item()` waits for the GPU. **TensorBoard** draws what a `SummaryWriter` writes (`tensorboard --logdir logs`).

# %% logs-write
from torch.utils.tensorboard import SummaryWriter


def logged(name, fetch=job.batch, trouble=lambda step, parts, x: None):
    parts = fresh(1)
    model, (group,), scaler = parts["model"], parts["optimizer"].param_groups, parts["scaler"]
    with SummaryWriter(f"logs/{name}") as writer:
        for step in range(60):
            begin = time.perf_counter()
            x, y = fetch(step)
            wait = time.perf_counter() - begin
            trouble(step, parts, x)
            numbers = {"loss": job.train_step(model, parts, x, y), "wait": 1e3 * wait, "lr": group["lr"], "scale": scaler.get_scale()}
            numbers["norm"] = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
            numbers["memory"] = torch.cuda.max_memory_allocated() / 2**20
            numbers["rate"] = len(x) / (time.perf_counter() - begin)  # samples a second
            for tag, value in numbers.items():
                writer.add_scalar(tag, value, step)

# %% logs-ill-text [markdown]
# Five runs follow, each made ill in another way, and shuffled. (Where a disk or a hot GPU is to blame, a sleep plays it.)

# %% logs-ill
def slow(step, parts, x):
    time.sleep(0.04 * (step >= 30))


def infinite(step, parts, x):
    if step == 20:  # from here on a gradient is infinite, as that of sqrt is at 0
        parts["model"][-1].bias.register_hook(lambda grad: grad * float("inf"))


def jump(step, parts, x):
    if step == 20:
        parts["optimizer"].param_groups[0]["lr"] *= 100


kept = []


def keep(step, parts, x):
    kept.append(parts["model"](x.to(gpu.device)))

# %% logs-make
def starved(step):
    time.sleep(0.04)
    return job.batch(step)


for name, ill in {"A": slow, "B": infinite, "D": jump, "E": keep}.items():
    torch.cuda.reset_peak_memory_stats()
    logged(name, trouble=ill)
    if name == "B":
        logged("C", fetch=starved)

# %% logs-read
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


runs = {name: EventAccumulator(f"logs/{name}").Reload() for name in "ABCDE"}
logs = {name: {tag: [e.value for e in run.Scalars(tag)] for tag in run.Tags()["scalars"]} for name, run in runs.items()}
print(len(logs), "runs read back, each with", ", ".join(sorted(logs["A"])))

# %% logs-plot tags=["host-dependent"]
figure, rows = plt.subplots(5, 4, figsize=(9, 7), sharex=True)
for (name, log), panels in zip(logs.items(), rows):
    log["grown"] = [peak - log["memory"][0] for peak in log["memory"]]  # a GPU's libraries hold something from the start
    for axes, tag in zip(panels, ("loss", "scale", "grown", "wait")):
        axes.plot(log[tag], color="#E69F00" if tag == "wait" else "#0072B2")
    panels[1].set_yscale("log", base=2)
    panels[2].set_ylim(-1, 12)
    panels[3].plot([1e5 / rate for rate in log["rate"]], color="#0072B2")  # ms for 100 samples
    panels[3].set_ylim(0, 100)
    panels[0].set_ylabel(name, rotation=0, labelpad=12, fontsize=14)
for axes, title in zip(rows[0], ("loss", "scale", "peak: MiB since step 0", "ms a step; its wait")):
    axes.set_title(title, fontsize=10)
figure.suptitle(f"Five ill runs, 60 steps each (memory {gpu.numbers}, the rest measured)")
gpulab.style.show(figure, alt="Five rows A to E of four curves. A: the step takes much longer from step 30 on, without a wait. B: from step 20 the "
    "scale falls by halves. C: most of each step is a wait. D: the loss jumps at step 20. E: memory grows all the time.")

# %% logs-turn-text [markdown]
# **Your turn** · 5 minutes. Write the rule down. It gets the means of the first and of the last ten steps and names the
# illness. It is tried on other runs.

# %% logs-turn tags=["your-turn"]
def illness(early, late):
    """"data", "throttled", "overflow", "diverged", "leak" or "healthy"; both have loss, scale, memory, and in ms wait and step."""
    # TODO: all six; a loss may be nan
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
# | B | scale halves every step, loss falls no more | **overflow**: every step is skipped | the first gradient that is not finite (07) |
# | C | the wait is most of the step, from the start | **data** | workers, file sizes (09) |
# | D | loss jumps; the scale falls a little, then holds | **diverged**: the learning rate | the schedule; go back to a checkpoint before it, with a lower rate |
# | E | memory grows by the same in each step | **leak** | what is kept with its graph (05) |
#
# D is why several checkpoints stay, and each thousandth: the last may be from after the jump. Move these away to go back.

# %% web-text [markdown]
# ## What the web says
#
# | you will read | verdict | tested in |
# |---|---|---|
# | “Spot is 60–90 % cheaper, with two minutes' notice.” | By the hour. Two minutes on AWS, best effort; 30 s on GCP and Azure. | *What it costs*, *The notice* |
# | “Handle SIGTERM, and you are safe.” | SLURM and Kubernetes send it. On AWS nobody does at the notice, unless an agent. | *The notice* |
# | “Save `model.state_dict()`, and you can resume.” | Another run: eight of nine pieces change it. | *A question worth asking*, *The same run* |
# | “Save in the signal handler.” | It saves a state within a step. | *Common mistakes* |

# %% mistakes-text [markdown]
# ## Common mistakes
#
# **NumPy's state as it is.** Saving works. Loading is another day:

# %% mistake-numpy tags=["raises-exception"]
import numpy

torch.save({"random": numpy.random.get_state()}, "numpy.pt")
torch.load("numpy.pt")

# %% mistake-numpy-repair [markdown]
# Save `keys.tolist()`, as `random_state` does, and try loading on the first day.
#
# **A file that is cut off**, by a full disk or a copy that was interrupted:

# %% mistake-cut tags=["raises-exception"]
pathlib.Path("cut.pt").write_bytes(pathlib.Path("all.pt").read_bytes()[:1000])
torch.load("cut.pt")

# %% mistake-cut-repair [markdown]
# Set it aside, and take the one before. A loader that catches everything sets healthy files aside too, begins at step
# 0, and loses the run without a word.
#
# **Saving in the handler**: the signal comes at the worst moment, just after `optimizer.step()`:

# %% mistake-handler
parts, saved = fresh(1), []
weight, schedule = parts["model"][1].weight, parts["schedule"]
old = signal.signal(signal.SIGTERM, lambda number, frame: saved.extend((schedule.last_epoch, weight.clone())))
train(parts, 0, 20)
complete = weight.clone()  # as the loop would have saved it after 20 steps
parts["optimizer"].register_step_post_hook(lambda *_: signal.raise_signal(signal.SIGTERM))
train(parts, 20, 21)
signal.signal(signal.SIGTERM, old)
print("schedule saved at step", saved[0], "· weights saved are those of step 20:", torch.equal(saved[1], complete))

# %% mistake-handler-repair [markdown]
# The weights are those of step 21: resumed, that step is made twice. And a handler runs only between two instructions of Python:
# a rank that waits in a collective does not hear it until that is over.

# %% tidy
os.chdir(start)
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
# 1. A run is its weights, optimizer, schedule, scaler, place in the data, and every random generator: all, and it is the
#    same run to the bit.
# 2. Temporary file, `fsync`, rename, `fsync` of the folder; keep several, and ask a file whether it is whole.
# 3. A handler takes note, the loop saves, all ranks stop at one step; a file tells that the run wants to go on.
# 4. Save every √(2 · save · time between interruptions); N machines break N times as often.
# 5. Write down seven numbers, and load a checkpoint on the first day.
#
# **For the checklist:** all nine pieces saved · `fsync` before and after the rename · `weights_only=True` · a damaged file set
# aside, every other error raised · a notice tried with `kill -TERM` · the interval from measured numbers.

# %% next [markdown]
# ## What next
#
# The [exercises](../exercises/14_long_runs.ipynb) of this lesson, then [the map of the course](00_start_here.ipynb).
#
# ## References
#
# - PyTorch documentation: *Reproducibility*; `torch.load`; *torchrun (Elastic Launch)*; `torch.utils.tensorboard`.
# - Pillai et al., *All File Systems Are Not Created Equal*, OSDI 2014.
# - Young, CACM 17 (1974). Daly, *A Higher Order Estimate of the Optimum Checkpoint Interval for Restart Dumps*, FGCS 22 (2006).
# - AWS, *Spot Instance interruption notices*; Google Cloud, *Spot VMs*; Azure, *Scheduled Events*; SLURM, *Preemption*.
# - *The Llama 3 Herd of Models*, arXiv 2407.21783, section 3.3.4 (interruptions).

# %% checkpoints-write
# %%writefile checkpoints.py
"""Checkpoints that are whole or not there, and the numbers that random generators stand at."""
import os
import pathlib
import random
import zipfile
import numpy as np
import torch

# %% checkpoints-write-save
# %%writefile -a checkpoints.py


def save(state, folder, step, keep=3):
    """Write folder/step00000040.pt, whole or not at all; the last `keep` stay."""
    folder = pathlib.Path(folder)
    path, temporary = folder / f"step{step:08}.pt", folder / "unfinished.tmp"
    with open(temporary, "wb") as file:
        torch.save(state, file)
        file.flush()  # from Python to the system,
        os.fsync(file.fileno())  # from the system to the disk
    os.replace(temporary, path)  # the name changes over in one step
    if os.name == "posix":  # a name is an entry of its folder, and that has to reach the disk too
        os.fsync(descriptor := os.open(folder, os.O_RDONLY))
        os.close(descriptor)
    for old in sorted(folder.glob("step*.pt"))[:-keep]:
        old.unlink()

# %% checkpoints-write-newest
# %%writefile -a checkpoints.py


def whole(path):
    """What torch.save writes is a zip archive, with a checksum for each of its parts."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except zipfile.BadZipFile:
        return False


def newest(folder):
    """The newest whole checkpoint's path, None without one; a damaged one is set aside."""
    for path in sorted(pathlib.Path(folder).glob("step*.pt"), reverse=True):
        if whole(path):
            return path
        print(f"{path.name} is damaged, and set aside", flush=True)
        path.replace(path.with_suffix(".damaged"))
    return None

# %% checkpoints-write-random
# %%writefile -a checkpoints.py


def random_state():
    name, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), *rest),  # a list: weights_only takes no array of NumPy's
        "cpu": torch.get_rng_state(),
        "gpus": torch.cuda.get_rng_state_all(),  # [] without a GPU
    }


def set_random_state(state):
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["cpu"])
    for gpu, numbers in zip(range(torch.cuda.device_count()), state["gpus"]):
        torch.cuda.set_rng_state(numbers, gpu)

# %% train-write
# %%writefile train.py
"""Train on the digits, alone or on N ranks; stop after any step, and go on to the bit."""
import argparse
import os
import pathlib
import random
import signal
import sys
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
import checkpoints
import gpulab

# %% train-write-start
# %%writefile -a train.py

parser = argparse.ArgumentParser()
for name, value in (("folder", "kept"), ("steps", 60), ("every", 10), ("device", "cuda")):
    parser.add_argument(f"--{name}", type=type(value), default=value)
args = parser.parse_args()
notices = []  # a handler takes note, and no more: within a step there is no state worth saving
for name in {"SIGTERM", "SIGUSR1"} & {one.name for one in signal.Signals}:  # Windows has the first only
    signal.signal(signal.Signals[name], lambda number, frame: notices.append(number))
if args.device == "cuda":
    gpulab.setup()  # this rank's virtual GPU, where there is no real one; without gpulab leave it out
rank, ranks, local = (int(os.environ.get(*pair)) for pair in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)))
device = torch.device("cuda", local) if args.device == "cuda" else torch.device("cpu")
if args.device == "cuda":
    torch.cuda.set_device(device)
if ranks > 1:
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")

# %% train-write-model
# %%writefile -a train.py

torch.use_deterministic_algorithms(True)
torch.manual_seed(0)  # the same weights on every rank
net = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10)).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
scaler = torch.amp.GradScaler(device.type)
parts = {"model": net, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
for seed in (random.seed, np.random.seed, torch.manual_seed):
    seed(1 + rank)  # each rank draws dropout and augmentation of its own

# %% train-write-data
# %%writefile -a train.py

images, labels = gpulab.data.digits("train")
per_epoch = len(images) // 100


def batch(step):
    """This rank's part of it. The place within the epoch follows from the step: there is nothing else to save."""
    epoch, place = divmod(step, per_epoch)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
    rows = order[100 * place : 100 * (place + 1)][rank::ranks]
    x = images[rows].roll(random.randint(-1, 1), dims=-1)  # augmented with Python's generator,
    x = x * np.random.uniform(0.8, 1.2) + 0.1 * torch.randn(x.shape)  # with NumPy's and PyTorch's
    return x.to(device), labels[rows].to(device)

# %% train-write-save
# %%writefile -a train.py


def save(step):
    states = [checkpoints.random_state()]  # of every rank: each draws other numbers
    if ranks > 1:
        dist.all_gather_object(states := [None] * ranks, checkpoints.random_state())
    if rank == 0:
        state = {name: part.state_dict() for name, part in parts.items()}
        checkpoints.save(state | {"step": step, "random": states}, args.folder, step)
    if ranks > 1:
        dist.barrier()  # nobody ends before the file is there

# %% train-write-resume
# %%writefile -a train.py


def resume():
    """The step to go on with."""
    path = [checkpoints.newest(args.folder) if rank == 0 else None]
    if ranks > 1:
        dist.broadcast_object_list(path)  # one rank chooses for all
    if path[0] is None:
        return 0
    state = torch.load(path[0], map_location="cpu", weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    if len(state["random"]) == ranks:  # on another number of ranks the sums differ anyway
        checkpoints.set_random_state(state["random"][rank])
    print(f"rank {rank} goes on from {path[0].name}", flush=True)
    return state["step"]

# %% train-write-step
# %%writefile -a train.py


def train_step(step):
    x, y = batch(step)
    with torch.autocast(device.type, torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= scale:  # else the scaler has left the step out
        scheduler.step()
    if rank == 0:
        print(f"step {step}: loss {loss.item()!r}", flush=True)  # all digits: to be compared to the bit

# %% train-write-loop
# %%writefile -a train.py


pathlib.Path(args.folder).mkdir(parents=True, exist_ok=True)
done, told = resume(), torch.zeros((), device=device)
model = nn.parallel.DistributedDataParallel(net) if ranks > 1 else net
while done < args.steps and not told:
    train_step(done)
    done += 1
    told.fill_(len(notices))
    if ranks > 1:
        dist.all_reduce(told)  # a notice to one is one to all: they stop together, or some wait for ever
    if told or done % args.every == 0 or done == args.steps:
        save(done)
if ranks > 1:
    dist.destroy_process_group()
if done < args.steps:
    sys.exit(75)  # EX_TEMPFAIL, "try again": 1 would say that it has failed

# %% slurm-write
with open("train.sbatch", "w", newline="\n") as file:
    file.write(r"""#!/bin/bash
#SBATCH --job-name=digits --output=%x-%j.log --open-mode=append
#SBATCH --nodes=1 --ntasks-per-node=2 --cpus-per-task=1
##SBATCH --gpus-per-node=2
#SBATCH --time=08:00:00 --signal=B:USR1@60 --requeue
export WORLD_SIZE=$SLURM_NTASKS MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec python train.py --folder kept' &
trap 'kill -USR1 $!' USR1
wait $!
wait $!
if [ $? -eq 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
""")

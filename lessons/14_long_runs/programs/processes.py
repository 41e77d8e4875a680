"""Starts train.py in processes of its own, and reads what it prints."""

import os
import subprocess
import sys

import torch

import gpulab

added = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
if torch.cuda.device_count() < 2:
    added["GPULAB_GPU"] = "virtual:T4"  # one for each rank


def start(*command):
    """Python with these arguments. Its errors go to errors.log."""
    with open("errors.log", "w") as errors:
        return subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | added
        )


def finish(folder, ranks=1):
    """What train.py prints to its end, on ranks that start sooner than torchrun's."""
    run = gpulab.distributed.run("train.py", ranks, args=["--folder", folder], warm=True, env=added)
    return run.ranks[0].output


def losses(text):
    """The loss of each step, as printed; of a step that was made twice, the last."""
    return dict(line.split(":") for line in text.splitlines() if line.startswith("step "))

"""A script that chooses its GPU at the top, as scripts do, and starts processes that import it anew."""

import sys

import torch
import torch.multiprocessing as mp

import gpulab

gpulab.setup("A100-80")


def work(rank):
    x = torch.ones(1000, device="cuda")
    sys.stdout.write(f"rank {rank}: {torch.cuda.get_device_name()} {x.sum().item():.0f}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
    sys.stdout.write("done\n")

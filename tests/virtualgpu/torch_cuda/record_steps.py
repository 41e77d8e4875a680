"""Memory of whole training steps, model by model and mode by mode: one JSON row each, on standard output.

Runs inside a process that sees the stand-in; record.py starts it. The models and the steps are those that gpulab
records on real GPUs, to compare the two row by row.
"""

import os

import torch
from printing import of_this_gpu, print_rows

from virtualgpu.validate import memory
from virtualgpu.validate.models import models, optimizers


def circumstances():
    """How cuBLAS and cuDNN get their workspaces."""
    kept = os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"
    planned = {"cudnn": "planned"} if "STAND_IN_CUDNN" in os.environ else {}
    return {"workspaces": "kept" if kept else "per call"} | planned


def modes():
    """How a step is run on this GPU."""
    return list(of_this_gpu(dict.fromkeys(memory.STEP_MODES)))


def plan():
    """The steps; optimizers other than AdamW in fp32 and in plain circumstances only."""
    plain = circumstances() == {"workspaces": "per call"}
    for model in models():
        for size in model.sizes:
            for mode in modes():
                for optimizer in optimizers() if mode == "fp32" and plain else ("adamw",):
                    yield memory.Step(model, size, mode, optimizer)


def record(step):
    """The first step's marks, peaks of the first two and of the third, and what remains, in bytes."""
    return memory.step_peaks(step, cudnn=False)


def print_steps(steps, record):
    rows = ((step.names | circumstances(), (step,)) for step in steps)
    print_rows(rows, record, longest=None, cuda=torch.version.cuda)


if __name__ == "__main__":
    print_steps(plan(), record)

"""Memory of whole training steps, model by model and mode by mode: one JSON row each, on standard output.

Runs inside a process that sees the stand-in; record.py starts it. Argument: the number of rows to skip. The models and
the steps are those that gpulab records on real GPUs, to compare the two row by row.
"""

import json
import os
import sys

import torch

from virtualgpu.validate import memory
from virtualgpu.validate.models import models, optimizers


def circumstances():
    """How cuBLAS and cuDNN get their workspaces."""
    kept = os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"
    planned = {"cudnn": "planned"} if "STAND_IN_CUDNN" in os.environ else {}
    return {"workspaces": "kept" if kept else "per call"} | planned


def modes():
    """How a step is run on this GPU: bf16 from capability 8.0 on."""
    return [m for m in memory.STEP_MODES if "bf16" not in m or torch.cuda.get_device_capability() >= (8, 0)]


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


def main(skip, steps, record):
    """Print the rows of all but the first `skip` steps; `record` makes one of a step."""
    print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda}), flush=True)
    for number, step in enumerate(steps):
        if number < skip:
            continue
        row = step.names | circumstances()
        print(json.dumps(row | {"started": number}), flush=True)
        try:
            row |= record(step)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), plan(), record)

"""Memory of whole training steps, model by model and mode by mode: one JSON row each, on standard output.

Runs inside a process that sees the stand-in; record.py starts it. Argument: the number of rows to skip.
"""

import copy
import functools
import gc
import json
import os
import sys

import models
import torch
from torch.nn import functional as F

MODES = {
    "fp32": (None, 1),
    "tf32": (None, 1),
    "amp_fp16": (torch.float16, 1),
    "amp_bf16": (torch.bfloat16, 1),
    "accum4_bf16": (torch.bfloat16, 4),
}
OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p),
    "sgd_momentum": lambda p: torch.optim.SGD(p, 0.01, 0.9),
    "adamw_fused": lambda p: torch.optim.AdamW(p, fused=True),
    "adamw_loop": lambda p: torch.optim.AdamW(p, foreach=False),
}


def circumstances():
    """How cuBLAS and cuDNN get their workspaces."""
    kept = os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"
    planned = {"cudnn": "planned"} if "STAND_IN_CUDNN" in os.environ else {}
    return {"workspaces": "kept" if kept else "per call"} | planned


def plan():
    """The rows: bf16 from capability 8.0 on; optimizers other than AdamW in fp32 and in plain circumstances only."""
    plain = circumstances() == {"workspaces": "per call"}
    for name, make, batch, sizes in models.cases():
        made = functools.cache(make)
        for size in sizes:
            for mode in MODES:
                if "bf16" in mode and torch.cuda.get_device_capability() < (8, 0):
                    continue
                for optimizer in OPTIMIZERS if mode == "fp32" and plain else ("adamw",):
                    yield {"model": name, "batch": size, "mode": mode, "optimizer": optimizer}, made, batch


def record(row, make, batch):
    """Fill `row` as the recorder for real GPUs does: the first step's marks, peaks of the first two and the third."""
    autocast, micro_batches = MODES[row["mode"]]
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    tf32 = row["mode"] == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    row["base"] = [torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]
    model = copy.deepcopy(make()).to(models.DEVICE).train()
    row["weights"] = torch.cuda.memory_allocated() - row["base"][0]
    optimizer = OPTIMIZERS[row["optimizer"]](model.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=autocast is torch.float16)
    marks = {}

    def step(first=False):
        for _ in range(micro_batches):
            x, y = batch(row["batch"])
            with torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
                z = model(x)
                loss = F.cross_entropy(z.flatten(0, -2), y.flatten()) / micro_batches
            if first:
                marks["forward"] = torch.cuda.memory_allocated()
            del x, y, z
            scaler.scale(loss).backward()
            del loss
            if first:
                marks["backward"] = torch.cuda.memory_allocated()
        scaler.step(optimizer)
        scaler.update()
        if first:
            marks["optimizer"] = torch.cuda.memory_allocated()
        optimizer.zero_grad()

    step(True)
    step()
    row["marks"] = marks
    row["peak_first_two"] = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
    torch.cuda.reset_peak_memory_stats()
    step()
    row["peak"] = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
    row["requested_peak"] = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    row["steady"] = torch.cuda.memory_allocated()


def main(skip: int) -> None:
    print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda}), flush=True)
    for number, (row, make, batch) in enumerate(plan()):
        if number < skip:
            continue
        row |= circumstances()
        print(json.dumps(row | {"started": number}), flush=True)
        try:
            record(row, make, batch)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""Memory of whole training steps of the further models, as record_steps.py has it; record.py starts both.

And what a step allocates in all, transient tensors and workspaces of kernels included: how often, how many bytes.
"""

import record_steps
import torch
from more_models import models

from virtualgpu.validate import memory

# They are trained with momentum, so that the peak is backward's; with AdamW it is often the optimizer's own.
MOMENTUM = ("diffusion", "vit_registers", "densenet", "regnet", "efficientnet", "inception", "deeplab")


MODES = ("fp32", "amp_fp16", "amp_bf16")


def plan():
    """Every model in every mode that the GPU has."""
    for model in models():
        (size,) = model.sizes
        for mode in (mode for mode in MODES if mode in record_steps.modes()):
            yield memory.Step(model, size, mode, "sgd_momentum" if model.name in MOMENTUM else "adamw")


def allocations(run):
    """The number of allocations of a further step, and the bytes that they ask for."""

    def counts():
        stats = torch.cuda.memory_stats()
        return [stats[f"{what}.all.allocated"] for what in ("allocation", "requested_bytes")]

    before = counts()
    run()
    return {"allocations": [after - first for after, first in zip(counts(), before, strict=True)]}


def record(step):
    return memory.step_peaks(step, cudnn=False, then=allocations)


if __name__ == "__main__":
    record_steps.print_steps(plan(), record)
